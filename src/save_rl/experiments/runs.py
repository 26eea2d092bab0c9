"""Experiments that are made of training runs: what all of them check, train, test and read."""

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from save_rl.agents import get_agent
from save_rl.errors import require
from save_rl.experiments.folder import open_folder

CURVE_POINTS = 60
Metrics = list[dict[str, float]]
"""The lines of a `metrics.csv`."""
Tests = dict[int, np.ndarray]
"""Returns of test episodes by budget."""
_Point = TypeVar("_Point", bound=tuple[Any, ...])


def check_choices(axes: Any, names: Iterable[str]) -> None:
    """Refuse axes (a dataclass) without a value, or with one twice."""
    for name in names:
        given = getattr(axes, name)
        require(len(given) > 0, f"--{name}", "()", "at least one value")
        require(len(set(given)) == len(given), f"--{name}", given, "different values")


def check_agents(agents: Sequence[str], hint: str = "") -> None:
    """Refuse agents that do not learn."""
    for agent in agents:
        learns = get_agent(agent, "--agents").learns
        require(learns, "--agents", repr(agent), f"agents that learn{hint}")


def begin(
    name: str, axes: Any, out: Path, resume: bool, device: str, workers: int, envs: Iterable[str]
) -> Any:
    """Refuse what can't be done, then prepare the folder; returns the JAX device."""
    from save_rl.envs import make
    from save_rl.training.devices import select_device

    axes.check()
    require(workers >= -1, "--workers", workers, "-1 (one per core), 0 (no processes) or more")
    for env in envs:
        make(env)  # refuses at once where the physics engine is not installed
    chosen = select_device(device)
    open_folder(out, name, axes, resume)
    return chosen


def training_budget(agent: str, budget: int) -> int:
    """Simulations per decision while an agent trains: 0 for one that trains without search."""
    return budget if get_agent(agent).search is not None else 0


def read_tests(path: Path, budgets: Sequence[int], episodes: int) -> Tests | None:
    """Returns by budget from an `evaluation.csv`; None unless it is there with just these."""
    if not path.exists():
        return None
    found: dict[int, list[float]] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            found.setdefault(int(line["budget"]), []).append(float(line["return"]))
    counts = {budget: len(returns) for budget, returns in found.items()}
    if counts != dict.fromkeys(budgets, episodes):
        return None
    return {budget: np.array(found[budget]) for budget in budgets}


def train_and_test(
    chosen: Any,
    folder: Path,
    tables: Sequence[str],
    read: Callable[[Path], Tests | None],
    test: Callable[[list[str]], object],
    *,
    device: str,
    workers: int,
    label: str,
) -> tuple[Metrics, list[Tests]]:
    """The metrics of a run and what its tests found; what is done is only read.

    chosen: settings. tables: names of the files of tests in the folder. read: one of them, None if
    it is not complete. test: makes those that are named.
    """
    from save_rl.training.loop import train
    from save_rl.training.run_directory import RunDirectory

    run, begun = RunDirectory(folder), (folder / "config.json").exists()
    metrics = run.read_metrics() if begun and (folder / "metrics.csv").exists() else []
    if not metrics or metrics[-1]["episodes"] < chosen.episodes:
        for table in tables:
            (folder / table).unlink(missing_ok=True)  # of a run that had not ended
    missing = [table for table in tables if read(folder / table) is None]
    if missing:
        train(chosen, folder, resume=begun, device=device, workers=workers, label=label)
        test(missing)
        metrics = run.read_metrics()
    found = [read(folder / table) for table in tables]
    return metrics, [tests for tests in found if tests is not None]


def thin(points: Iterable[_Point], most: int = CURVE_POINTS) -> list[_Point]:
    """At most so many of the points (episodes, …), evenly over log episodes; ends are kept."""
    points = [point for point in points if point[0] > 0]
    if len(points) <= most:
        return points
    at = np.log([point[0] for point in points])
    wanted = np.linspace(at[0], at[-1], most)
    nearest = np.abs(at[:, None] - wanted).argmin(0)
    return [points[i] for i in np.unique(nearest)]
