"""Long-form results: one measurement per row.

A row has `experiment`, `agent`, `seed`, the conditions of its experiment, `metric` and `value`.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from save_rl.errors import InputError
from save_rl.files import write_atomically

Row = dict[str, object]

_FIRST = ("experiment", "agent", "seed")
_LAST = ("metric", "value")
_NAMES = frozenset({"experiment", "agent", "metric"})
_INTEGER = re.compile(r"-?[0-9]+")
_FLOAT = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|nan|-?inf")


def write_results(path: str | Path, rows: Iterable[Row]) -> None:
    """Write rows as CSV; conditions appear in the order in which rows first mention them.

    A missing condition is an empty cell.
    """
    rows = list(rows)
    conditions = dict.fromkeys(key for row in rows for key in row if key not in _FIRST + _LAST)
    columns = [*_FIRST, *conditions, *_LAST]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        missing = [key for key in _FIRST + _LAST if key not in row]
        if missing:
            raise ValueError(f"a row of results lacks {', '.join(missing)}: {row}")
        writer.writerow([_to_cell(row.get(column)) for column in columns])
    write_atomically(path, text.getvalue())


def read_results(path: str | Path) -> list[Row]:
    """Read the rows of a results file: numbers as numbers, without empty cells.

    `experiment`, `agent` and `metric` stay text; a condition that looks like a number becomes one.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        columns = next(lines, [])
        if tuple(columns[:3]) != _FIRST or tuple(columns[-2:]) != _LAST:
            raise InputError(
                f"{path}: not a results file; its columns must start with "
                f"{','.join(_FIRST)} and end with {','.join(_LAST)}."
            )
        return [
            {
                column: cell if column in _NAMES else _from_cell(cell)
                for column, cell in zip(columns, line, strict=True)
                if cell != ""
            }
            for line in lines
        ]


def select(rows: Iterable[Row], **conditions: object) -> list[Row]:
    """Return the rows that match all conditions (any column can be one)."""
    return [
        row
        for row in rows
        if all(key in row and row[key] == value for key, value in conditions.items())
    ]


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    """Return a numeric column; (len(rows),) float64."""
    return np.array([row[name] for row in rows], np.float64)


def values(rows: Iterable[Row], **conditions: object) -> np.ndarray:
    """Return the values of the rows that match the conditions, sorted by seed; (N,) float64."""
    chosen = select(rows, **conditions)
    return column(chosen, "value")[np.argsort(column(chosen, "seed"), kind="stable")]


def seed_curves(rows: Sequence[Row], over: str = "episodes") -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each seed's curve `(at, values)` over a condition, sorted by it, without points at 0.

    Seeds are sorted too.
    """
    rows = [row for row, after in zip(rows, column(rows, over) > 0, strict=True) if after]
    curves = []
    for seed in np.unique(column(rows, "seed")):
        of_seed = select(rows, seed=seed)
        order = np.argsort(column(of_seed, over), kind="stable")
        curves.append((column(of_seed, over)[order], column(of_seed, "value")[order]))
    return curves


def _to_cell(value: object) -> str:
    """Return a cell that `_from_cell` can read back; booleans become 0 or 1."""
    if value is None:
        return ""
    return str(int(value) if isinstance(value, bool | np.bool_) else value)


def _from_cell(cell: str) -> int | float | str:
    """Return a cell's number, or its text; stricter than Python, which reads 1_000 as 1000."""
    if _INTEGER.fullmatch(cell):
        return int(cell)
    return float(cell) if _FLOAT.fullmatch(cell) else cell
