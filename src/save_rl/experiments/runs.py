"""Experiments made of training runs: their common options, checks, work and results."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from save_rl.agents import get_agent
from save_rl.errors import require
from save_rl.experiments.cells import Cell, Found, Metrics, Tests, of_seed, train_and_test
from save_rl.experiments.experiment import A, Resources, Work, folder_options
from save_rl.experiments.jobs import run_jobs
from save_rl.report.results import Row, write_results

CURVE_POINTS = 60
SCENES = 6  # in a gallery
_Point = TypeVar("_Point", bound=tuple[Any, ...])


def run_options(scales: str, simulators: str = "simulators") -> dict[str, str]:
    """Return the options of every experiment made of training runs, with their help."""
    return {
        **folder_options(scales),
        "device": "auto, cpu or gpu.",
        "workers": f"Processes for {simulators}: -1 for one per core, 0 for none.",
        "jobs": "Training runs in parallel, each in its own process; they share the cores.",
        "light_checkpoints": "Leave replays out of checkpoints; resumed runs fill new ones first.",
    }


def check_choices(axes: Any, names: Iterable[str]) -> None:
    """Raise an error for axes (a dataclass) that have no value, or duplicates."""
    for name in names:
        given = getattr(axes, name)
        require(len(given) > 0, f"--{name}", "()", "at least one value")
        require(len(set(given)) == len(given), f"--{name}", given, "different values")


def check_agents(agents: Sequence[str], hint: str = "", *, frames: bool = False) -> None:
    """Raise an error for agents that do not learn, or that need frames (`frames`: that do not)."""
    kind = f"an agent that {'learns' if frames else 'does not learn'} from frames"
    for agent in agents:
        row = get_agent(agent, "--agents")
        require(row.learns, "--agents", repr(agent), f"an agent that learns{hint}")
        require(row.recurrent == frames, "--agents", repr(agent), kind)


def training_runs(
    make_cells: Callable[[A, Path], list[Cell]],
    rows_of: Callable[[A, Cell, Metrics, dict[str, Tests]], list[Row]],
) -> Callable[[A, Path, Resources], Work]:
    """Return the work of an experiment that is made of training runs: its cells and their rows."""

    def work(axes: A, out: Path, resources: Resources) -> Work:
        from save_rl.envs import make
        from save_rl.training.devices import select_device

        device, workers, jobs, _ = resources
        require(workers >= -1, "--workers", workers, "-1 (one per core), 0 (no processes) or more")
        require(jobs >= 1, "--jobs", jobs, "at least 1")
        if jobs > 1:  # jobs share the GPU, so none may preallocate its memory
            os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        cells = make_cells(axes, out)
        for env in dict.fromkeys(cell.settings.env for cell in cells):
            make(env)  # fails early if the physics engine is not installed
        kind = select_device(device).device_kind
        return Work(kind, lambda: run_cells(cells, partial(rows_of, axes), out, resources))

    return work


def run_settings(axes: Any, env: str, agent: str, **more: Any) -> Any:
    """Return the training settings of one run: those of the axes of every experiment, and more."""
    from save_rl.training.settings import TrainSettings

    seeds = tuple(range(axes.seeds))
    return TrainSettings(
        env=env, agent=agent, budget=axes.budget, seeds=seeds, lanes=axes.lanes, **more
    )


def training_budget(agent: str, budget: int) -> int:
    """Return the simulations per decision in training: 0 if the agent trains without search."""
    return budget if get_agent(agent).search is not None else 0


def thin(points: Iterable[_Point], most: int = CURVE_POINTS) -> list[_Point]:
    """Return at most `most` points (episodes, …), evenly over log episodes, with both ends."""
    points = [point for point in points if point[0] > 0]
    if len(points) <= most:
        return points
    at = np.log([point[0] for point in points])
    wanted = np.linspace(at[0], at[-1], most)
    nearest = np.abs(at[:, None] - wanted).argmin(0)
    return [points[i] for i in np.unique(nearest)]


def build(folder: Path, sim: Any, budget: int, device: str) -> list[Any]:
    """Play a run's agent on scenes 0 … 5 of a simulator; return `players` episodes."""
    from save_rl.evaluation import trained_player
    from save_rl.players import play

    player = trained_player(folder, sim, budget, device=device)
    return [play(sim, player, seed) for seed in range(SCENES)]


def run_cells(
    cells: Sequence[Cell],
    rows_of: Callable[[Cell, Metrics, dict[str, Tests]], list[Row]],
    out: Path,
    resources: Resources,
) -> list[Row]:
    """Train and test all cells; return their rows, and write them to `results.csv`.

    rows_of: from a cell with one seed and the results of that seed. Rows are in the order of the
    cells, whichever finishes first.
    """
    rows: dict[int, list[Row]] = {}

    def in_order() -> list[Row]:
        return [row for number in sorted(rows) for row in rows[number]]

    def keep(number: int, found: Found) -> None:
        cell, seeds = cells[number], cells[number].settings.seeds
        rows[number] = [
            row
            for seed, results in zip(seeds, found, strict=True)
            for row in rows_of(of_seed(cell, seed), *results)
        ]
        write_results(out / "results.csv", in_order())

    labels = [f"{number}/{len(cells)} {cell.name}" for number, cell in enumerate(cells, 1)]
    if resources.jobs > 1:
        run_jobs(cells, labels, keep, out, resources)
    else:
        for number, (cell, label) in enumerate(zip(cells, labels, strict=True)):
            found = train_and_test(
                cell, label, resources.device, resources.workers, resources.light_checkpoints
            )
            keep(number, found)
    return in_order()
