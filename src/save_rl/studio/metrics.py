"""metrics.csv: its last lines for the list of runs, all of it for curves, read on as it grows."""

import itertools
import math
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from save_rl.studio.reading import open_file

_BLOCK = 2**20  # bytes
_TAIL = 2**13  # bytes
_CELL = 20  # bytes; few cells are longer
_LINES_PER_POINT = 4
_MOST_VALUES = 2**25  # numbers in memory, of all tables: 256 MiB


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
        with self._lock, open_file(self._path) as file:
            now = os.fstat(file.fileno())
            identity = (now.st_dev, now.st_ino)
            shrunk = now.st_size < self._offset
            rewritten = now.st_size == self._offset and now.st_mtime_ns != self._modified
            if identity != self._identity or shrunk or rewritten:
                self._start(identity)
            self._modified = now.st_mtime_ns
            self._read_on(file, now.st_size)
            return Table(self._columns, self._values, self._damaged)

    def _read_on(self, file: BinaryIO, size: int) -> None:
        pieces = [self._values] if len(self._values) else []
        file.seek(self._offset)
        while self._offset < size:
            block = file.read(min(_BLOCK, size - self._offset))
            end = block.rfind(b"\n") + 1
            if end == 0:
                break  # half a line
            file.seek(self._offset + end)
            lines = block[:end].splitlines()
            if self._offset == 0:
                self._columns = _columns(lines.pop(0))
                self._values = np.empty((0, len(self._columns)))
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


def _open(path: Path) -> tuple[BinaryIO, tuple[str, ...], int, int]:
    """Return an open file, its columns, and where its lines begin and end."""
    file = open_file(path)
    columns = _columns(file.readline(_BLOCK))
    return file, columns, file.tell(), os.fstat(file.fileno()).st_size


def _whole_lines(file: BinaryIO, first: int, size: int, start: int) -> list[bytes]:
    """Return the lines that lie completely in `size` bytes from `first`."""
    data = os.pread(file.fileno(), size, first)  # and no more, as a buffer would
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return lines[1:] if first > start else lines  # the first one lacks its beginning


def read_tail(path: Path, lines: int) -> Table:
    """Return about the last `lines` lines of a file, however long it is."""
    file, columns, start, end = _open(path)
    with file:
        size = max(_TAIL, lines * _CELL * len(columns))
        first = max(start, end - size)
        whole = _whole_lines(file, first, end - first, start)[-lines:]
    rows = [_numbers(line, len(columns)) for line in whole]
    good = [row for row in rows if row is not None]
    values = np.array(good) if good else np.empty((0, len(columns)))
    return Table(columns, values, len(rows) - len(good))


def sample_column(path: Path, name: str, points: int, seeds: int = 1) -> list[float]:
    """Return means of a column at no more than `points` places of a file, without reading it all.

    Places are evenly spaced over the file; those without a value are left out, and the first
    values count where there are many. seeds: lines that belong together.
    """
    file, columns, start, end = _open(path)
    with file:
        if name not in columns:
            return []
        size = max(_LINES_PER_POINT, seeds + 1) * _CELL * len(columns)
        if end - start <= points * size:  # short: all of it
            lines = _whole_lines(file, start, end - start, start)
            each = max(seeds, math.ceil(len(lines) / points))
            groups = [lines[i : i + each] for i in range(0, len(lines), each)]
        else:
            places = np.linspace(start, end - size, points).astype(int).tolist()
            groups = [_whole_lines(file, place, size, start) for place in places]
    index, found = columns.index(name), []
    enough = max(_LINES_PER_POINT, seeds)
    for group in groups:
        cells = (_number(line, index, len(columns)) for line in group)
        known = list(itertools.islice(filter(math.isfinite, cells), enough))
        if known:
            found.append(float(f"{sum(known) / len(known):.4g}"))
    return found


def _number(line: bytes, index: int, width: int) -> float:
    """Return one number of a line; NaN for an empty cell or a damaged line."""
    if line.count(b",") != width - 1:
        return math.nan
    try:
        return float(line.split(b",", index + 1)[index])
    except ValueError:
        return math.nan
