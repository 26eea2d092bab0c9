"""A training run of an experiment with its tests: what it is, making it, reading its results."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Metrics = list[dict[str, float]]
"""The lines of a `metrics.csv`."""
Tests = dict[int, np.ndarray]
"""Returns of test episodes by budget."""
Found = list[tuple[Metrics, dict[str, Tests]]]
"""The results of a cell by seed: its metrics, and its tests by the names of their tables."""


class Table(NamedTuple):
    """A file of test results in a run's folder: `episodes` test episodes at each budget.

    agent: that searches with the run's network, if not the run's own. level: default the hardest.
    last: test the last parameters instead of the best.
    """

    name: str
    budgets: tuple[int, ...]
    episodes: int
    agent: str | None = None
    level: int | None = None
    last: bool = False


class Cell(NamedTuple):
    """A training run of an experiment, with one or several seeds, and its tests.

    name: for display. settings: `TrainSettings`. tables: those with levels differ only in level.
    """

    name: str
    folder: Path
    settings: Any
    tables: tuple[Table, ...]


def read_tests(path: Path, budgets: Sequence[int], episodes: int, seed: int = 0) -> Tests | None:
    """Read returns by budget from an `evaluation.csv`; None unless it has exactly these.

    seed: of a run with several.
    """
    if not path.exists():
        return None
    found: dict[int, list[float]] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            if int(line.get("seed", seed)) == seed:
                found.setdefault(int(line["budget"]), []).append(float(line["return"]))
    counts = {budget: len(returns) for budget, returns in found.items()}
    if counts != dict.fromkeys(budgets, episodes):
        return None
    return {budget: np.array(found[budget]) for budget in budgets}


def read_cell(cell: Cell) -> Found | None:
    """Return the results of a cell; None unless it is trained and tested."""
    metrics = _trained(cell)
    tests = {table.name: _read_table(cell, table) for table in cell.tables}
    found = {name: by_seed for name, by_seed in tests.items() if by_seed is not None}
    if not metrics or len(found) < len(tests):
        return None
    return [
        (own, {name: by_seed[i] for name, by_seed in found.items()})
        for i, own in enumerate(metrics)
    ]


def of_seed(cell: Cell, seed: int) -> Cell:
    """Return a cell with one of its seeds alone."""
    return cell._replace(settings=replace(cell.settings, seeds=(seed,)))


def is_over(settings: Any, line: Mapping[str, float]) -> bool:
    """Test whether this line of metrics is the last of a run with these settings."""
    if settings.steps > 0 and line["env_steps"] >= settings.steps:
        return True
    return line["episodes"] >= settings.episodes


def _trained(cell: Cell) -> list[Metrics]:
    """Return the metrics of a finished run by seed; none if it is unfinished."""
    from save_rl.training.run.run_directory import RunDirectory

    if not all((cell.folder / name).exists() for name in ("config.json", "metrics.csv")):
        return []
    lines = RunDirectory(cell.folder).read_metrics()
    metrics = [[line for line in lines if line["seed"] == seed] for seed in cell.settings.seeds]
    over = all(own and is_over(cell.settings, own[-1]) for own in metrics)
    return metrics if over else []


def _read_table(cell: Cell, table: Table) -> list[Tests] | None:
    """Return the tests of a table by seed; None unless all are there."""
    found = [
        read_tests(cell.folder / table.name, table.budgets, table.episodes, seed)
        for seed in cell.settings.seeds
    ]
    whole = [tests for tests in found if tests is not None]
    return whole if len(whole) == len(found) else None


def train_and_test(
    cell: Cell, label: str, device: str, workers: int, light_checkpoints: bool = False
) -> Found:
    """Train a cell, resuming if it was started, and run the missing tests."""
    from save_rl.evaluation import evaluate, evaluate_levels
    from save_rl.training.run.loop import train

    if (found := read_cell(cell)) is not None:
        return found
    folder, places = cell.folder, {"device": device, "workers": workers}
    if not _trained(cell):
        for table in cell.tables:
            (folder / table.name).unlink(missing_ok=True)  # tested before training ended
    begun = (folder / "config.json").exists()
    train(
        cell.settings, folder, resume=begun, label=label, light_checkpoints=light_checkpoints,
        **places,
    )  # fmt: skip
    missing = [table for table in cell.tables if _read_table(cell, table) is None]
    levels = [table.level for table in missing if table.level is not None]
    if levels:
        evaluate_levels(folder, levels, missing[0].budgets, missing[0].episodes, **places)
    for name, budgets, episodes, agent, level, last in missing:
        if level is None:
            evaluate(
                folder, budgets, episodes, agent=agent, out=folder / name, last=last,
                baseline="none", append=False, **places,
            )  # fmt: skip
    found = read_cell(cell)
    assert found is not None, f"'{folder}' has no complete tests"
    return found
