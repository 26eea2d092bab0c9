"""`metrics.csv`: append lines, cut it back to a checkpoint, read it."""

import csv
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from save_rl.errors import InputError
from save_rl.files import append, write_atomically

METRICS: tuple[str, ...] = (
    "time_s", "episodes", "env_steps", "simulator_steps", "updates", "return_mean", "return_min",
    "return_max", "loss_q", "loss_a", "epsilon", "beta_q", "beta_a", "episode_length",
    "level", "level_return", "test_return", "restarts", "explored", "changed", "seed",
)  # fmt: skip
_NEW_COLUMNS = ("explored", "changed")  # a run that started without them stays without them


def _header(columns: tuple[str, ...]) -> bytes:
    return ",".join(columns).encode() + b"\n"


def _numbers(line: bytes, columns: tuple[str, ...]) -> dict[str, float] | None:
    """Return the numbers of a line, empty cells left out; None for a damaged line."""
    cells = line.removesuffix(b"\n").split(b",")
    if not line.endswith(b"\n") or len(cells) != len(columns):
        return None
    try:
        return {name: float(x) for name, x in zip(columns, cells, strict=True) if x}
    except ValueError:
        return None


class MetricsFile:
    """The metrics of a run; `warn` reports damage."""

    def __init__(self, path: Path, warn: Callable[[str], None]):
        self.path, self._warn = path, warn
        self._columns = METRICS

    def create(self) -> None:
        """Write the header."""
        write_atomically(self.path, _header(self._columns))

    def check_columns(self) -> None:
        """Refuse a file with the columns of another version."""
        lines = self._lines()
        before = tuple(name for name in METRICS if name not in _NEW_COLUMNS)
        if lines and lines[0] == _header(before):
            self._columns = before
        elif lines and lines[0] != _header(METRICS) and re.fullmatch(rb"[a-z_,]+\n", lines[0]):
            raise InputError(
                f"--resume: '{self.path}' was written by another version of save_rl; "
                "choose another --out."
            )

    def size(self) -> int:
        """Sync the file; return its size in bytes."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        return self.path.stat().st_size

    def append(self, rows: list[dict[str, Any]]) -> None:
        text = io.StringIO()
        csv.DictWriter(text, self._columns, extrasaction="ignore", lineterminator="\n").writerows(
            rows
        )
        append(self.path, text.getvalue().encode())

    def cut(self, size: int | None) -> None:
        """Keep the first `size` bytes, as written before a checkpoint; None keeps only the header.

        A file that is shorter or damaged keeps its valid lines.
        """
        lines = self._lines(0 if size is None else size)
        whole = [line for line in lines if _numbers(line, self._columns) is not None]
        kept = b"".join([_header(self._columns), *whole])
        if size is not None and (len(kept) != size or kept != b"".join(lines)):
            self._warn(
                f"'{self.path}' is damaged or shorter than it was at the checkpoint; lines before "
                "the checkpoint are missing."
            )
        write_atomically(self.path, kept)

    def read(self) -> list[dict[str, float]]:
        """Return the numbers of every line, empty cells left out."""
        header, *lines = self._lines() or [b""]
        columns = tuple(header.decode(errors="replace").rstrip("\n").split(","))
        rows = [_numbers(line, columns) for line in lines]
        if None in rows:
            self._warn(f"'{self.path}' has lines that can't be read; they are left out.")
        return [row for row in rows if row is not None]

    def _lines(self, size: int | None = None) -> list[bytes]:
        """Return the lines of the first `size` bytes, all for None; none without a file."""
        try:
            length = self.path.stat().st_size
            with self.path.open("rb") as file:
                return file.read(length if size is None else min(size, length)).splitlines(True)
        except FileNotFoundError:
            return []
