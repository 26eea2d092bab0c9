"""Tables of test episodes: a line per episode, with the conditions under which it was played."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from save_rl.files import write_atomically

COLUMNS = (
    "budget", "episode", "return", "steps", "seed", "agent", "env", "c", "level", "options",
    "parameters",
)  # fmt: skip
_SAME = ("budget", "seed", "agent", "env", "c", "level", "options")


class Conditions(NamedTuple):
    """The conditions of test episodes, besides their budget and seed.

    level: None for the default. options: of the environment. parameters: those that played: 'best',
    'last', or '' if the agent has none.
    """

    agent: str
    env: str
    c: float
    level: int | None = None
    options: dict[str, Any] = {}  # noqa: RUF012  # never changed
    parameters: str = ""

    def cells(self) -> dict[str, str]:
        """Return the cells of a line."""
        return {
            "agent": self.agent,
            "env": self.env,
            "c": f"{self.c:g}",
            "level": "" if self.level is None else str(self.level),
            "options": json.dumps(self.options, sort_keys=True),
            "parameters": self.parameters,
        }


class EvaluationFile:
    """A table that is whole after every `add`, so that an interrupted evaluation loses little.

    append: keep the lines of earlier evaluations; those under the same conditions are replaced.
    """

    def __init__(self, path: Path, append: bool):
        self.path = path
        self._lines: list[dict[str, str]] = _read(path) if append and path.exists() else []

    def add(
        self, budget: int, returns: np.ndarray, steps: np.ndarray, seeds: Sequence[int],
        conditions: Conditions,
    ) -> None:  # fmt: skip
        """Write the episodes of all seeds at one budget; arrays `[seeds, episodes]`."""
        new = [
            {
                "budget": str(budget),
                "episode": str(episode),
                "return": repr(float(value)),
                "steps": str(int(length)),
                "seed": str(seed),
                **conditions.cells(),
            }
            for seed, values, lengths in zip(seeds, returns, steps, strict=True)
            for episode, (value, length) in enumerate(zip(values, lengths, strict=True))
        ]
        replaced = {_key(line) for line in new}
        self._lines = [line for line in self._lines if _key(line) not in replaced] + new
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([line[name] for name in COLUMNS] for line in self._lines)
        write_atomically(self.path, text.getvalue())


def _key(line: dict[str, str]) -> tuple[str, ...]:
    return tuple(line[name] for name in _SAME)


def _read(path: Path) -> list[dict[str, str]]:
    """Return the lines of a table; those of earlier versions lack columns."""
    with path.open(newline="") as file:
        return [
            {name: line.get(name) or "" for name in COLUMNS}
            for line in csv.DictReader(file)
        ]  # fmt: skip
