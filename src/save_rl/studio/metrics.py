"""metrics.csv: its last lines for the list of runs, all of it for curves, read on as it grows."""

import math
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np

_BLOCK = 2**20  # bytes
_TAIL = 2**16  # bytes; some hundred lines
_MOST_VALUES = 2**24  # numbers in memory, of all tables: 128 MiB


class Table(NamedTuple):
    """The lines of a metrics.csv as numbers `[lines, columns]`, NaN for an empty cell."""

    columns: tuple[str, ...]
    values: np.ndarray
    damaged: int

    def column(self, name: str) -> np.ndarray:
        """Return a column `[lines]`; NaN where there is none."""
        if name not in self.columns:
            return np.full(len(self.values), np.nan)
        return self.values[:, self.columns.index(name)]


def _numbers(line: bytes, width: int) -> list[float] | None:
    """Return the numbers of a line, NaN for an empty cell; None for a damaged line."""
    cells = line.split(b",")
    if len(cells) != width:
        return None
    try:
        return [float(cell) if cell else math.nan for cell in cells]
    except ValueError:
        return None


def _columns(line: bytes) -> tuple[str, ...]:
    return tuple(line.decode(errors="replace").strip().split(","))


class MetricsReader:
    """One file. `read` reads what was appended since the last time; all of it if it was replaced,
    as a resumed run does."""

    def __init__(self, path: Path):
        self._path = path
        self._lock = threading.Lock()
        self._start(None)

    def _start(self, identity: object) -> None:
        self._identity, self._offset, self._modified = identity, 0, -1
        self._columns: tuple[str, ...] = ()
        self._values = np.empty((0, 0))
        self._damaged = 0

    def read(self) -> Table:
        """Return all whole lines; a half-written last line is left for the next time."""
        with self._lock, self._path.open("rb") as file:
            now = os.fstat(file.fileno())
            identity = (now.st_dev, now.st_ino)
            shrunk = now.st_size < self._offset
            rewritten = now.st_size == self._offset and now.st_mtime_ns != self._modified
            if identity != self._identity or shrunk or rewritten:
                self._start(identity)
            self._modified = now.st_mtime_ns
            self._read_on(file, now.st_size)
            return Table(self._columns, self._values, self._damaged)

    def _read_on(self, file: object, size: int) -> None:
        pieces = [self._values] if len(self._values) else []
        file.seek(self._offset)  # pyright: ignore[reportAttributeAccessIssue]
        while self._offset < size:
            block = file.read(min(_BLOCK, size - self._offset))  # pyright: ignore
            end = block.rfind(b"\n") + 1
            if end == 0:
                break  # half a line
            file.seek(self._offset + end)  # pyright: ignore[reportAttributeAccessIssue]
            lines = block[:end].splitlines()
            if self._offset == 0:
                self._columns = _columns(lines.pop(0))
            self._offset += end
            rows = [_numbers(line, len(self._columns)) for line in lines]
            whole = [row for row in rows if row is not None]
            self._damaged += len(rows) - len(whole)
            if whole:
                pieces.append(np.array(whole))
        if pieces:
            self._values = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]


class MetricsCache:
    """Readers of many files; those used last stay, within a limit of memory."""

    def __init__(self, most_values: int = _MOST_VALUES):
        self._most = most_values
        self._lock = threading.Lock()
        self._readers: OrderedDict[Path, tuple[MetricsReader, int]] = OrderedDict()

    def read(self, path: Path) -> Table:
        """Return the lines of a file as they are now."""
        with self._lock:
            reader = self._readers.pop(path, (MetricsReader(path), 0))[0]
        table = reader.read()
        with self._lock:
            self._readers[path] = reader, table.values.size
            while len(self._readers) > 1 and self._size() > self._most:
                self._readers.popitem(last=False)
        return table

    def _size(self) -> int:
        return sum(size for _, size in self._readers.values())


def read_tail(path: Path, lines: int) -> Table:
    """Return the last lines of a file, at least `lines` of them if it has as many."""
    with path.open("rb") as file:
        columns = _columns(file.readline(_BLOCK))
        start, size = file.tell(), os.fstat(file.fileno()).st_size
        want = max(_TAIL, 4 * lines * 16 * len(columns))
        first = max(start, size - want)
        file.seek(first)
        data = file.read(size - first)
    whole = data[: data.rfind(b"\n") + 1].splitlines()
    if first > start:
        whole = whole[1:]  # the first is half a line
    rows = [_numbers(line, len(columns)) for line in whole]
    good = [row for row in rows if row is not None]
    values = np.array(good) if good else np.empty((0, len(columns)))
    return Table(columns, values, len(rows) - len(good))
