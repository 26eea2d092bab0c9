"""Figure 2a-c: tabular agents on Tightrope, over reward, terminal actions and search budget."""

import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from save_rl.agents import get_agent
from save_rl.errors import Interrupted, require
from save_rl.experiments.experiment import Experiment, Resources, Work, folder_options
from save_rl.experiments.runs import check_choices
from save_rl.experiments.tightrope_claims import tabular_claims
from save_rl.report.results import Row, read_results, write_results

NAME = "tightrope-tabular"


@dataclass(frozen=True)
class TabularAxes:
    """The grid: every agent in every combination, over seeds `0 … seeds-1`."""

    reward: tuple[str, ...]
    terminal: tuple[float, ...]
    budgets: tuple[int, ...]
    agents: tuple[str, ...]
    seeds: int
    episodes: int

    def check(self) -> None:
        from save_rl.training.tabular import check_agent

        for agent in self.agents:
            check_agent(get_agent(agent, "--agents"))
        for reward in self.reward:
            require(reward in ("dense", "sparse"), "--reward", repr(reward), "'dense' or 'sparse'")
        for terminal in self.terminal:
            require(0 <= terminal <= 100, "--terminal", terminal, "a percentage from 0 to 100")
        for budget in self.budgets:
            require(budget >= 1, "--budgets", budget, "at least 1")
        check_choices(self, ("reward", "terminal", "budgets", "agents"))
        require(self.seeds >= 1, "--seeds", self.seeds, "at least 1")
        require(self.episodes >= 0, "--episodes", self.episodes, "0 or more")


_AGENTS = ("save", "puct", "uct", "q-learning", "uct-threshold")
_BOTH = ("dense", "sparse")
SCALES = {
    "smoke": TabularAxes(_BOTH, (50, 95), (5,), _AGENTS, seeds=2, episodes=50),
    "small": TabularAxes(_BOTH, (50, 95, 99), (10, 50), _AGENTS, seeds=5, episodes=500),
    "paper": TabularAxes(  # paper B.2; 20 seeds, 500 episodes
        _BOTH, (50, 75, 90, 95, 99), (5, 10, 20, 50, 100), _AGENTS, seeds=20, episodes=500
    ),
}


class TabularCell(NamedTuple):
    """One run of the grid, which gives one number."""

    agent: str
    seed: int
    reward: str
    terminal: float
    budget: int


def cells(axes: TabularAxes) -> Iterator[TabularCell]:
    """Yield all cells; the seeds of a setting follow one another."""
    grid = product(axes.reward, axes.terminal, axes.budgets, axes.agents, range(axes.seeds))
    for reward, terminal, budget, agent, seed in grid:
        yield TabularCell(agent, seed, reward, terminal, budget)


def run_cell(cell: TabularCell, episodes: int) -> float:
    """Train one agent on its seed's Tightrope; return its mean test reward."""
    import numpy as np

    from save_rl.envs.tightrope import tightrope_simulator
    from save_rl.training.tabular import TabularSettings, train_and_test

    env = tightrope_simulator(cell.seed, reward=cell.reward, terminal=cell.terminal)
    # The seed determines the environment; the cell determines the randomness of training and tests.
    # Its text is that of results/tightrope-tabular, whatever the class is called.
    settings = ", ".join(f"{name}={value!r}" for name, value in cell._asdict().items())
    stream = np.random.SeedSequence([cell.seed, zlib.crc32(f"Cell({settings})".encode())])
    rewards = train_and_test(
        get_agent(cell.agent), env, cell.budget, int(stream.generate_state(1)[0] >> 1),
        TabularSettings(episodes=episodes),
    )  # fmt: skip
    return float(rewards.mean())


def _row(cell: TabularCell, value: float) -> Row:
    return {"experiment": NAME, **cell._asdict(), "metric": "test_reward", "value": value}


def run_grid(axes: TabularAxes, out: Path, cores: int) -> list[Row]:
    """Run the cells that `results.csv` does not have, in threads; return the rows of all."""
    from save_rl.training.run.interrupt import StopOnSignal
    from save_rl.training.run.progress import Progress

    done: dict[TabularCell, float] = {}
    path = out / "results.csv"
    if path.exists():
        for row in read_results(path):
            cell = TabularCell._make(row[field] for field in TabularCell._fields)
            done[cell] = float(str(row["value"]))

    def save() -> list[Row]:
        rows = [_row(cell, done[cell]) for cell in cells(axes) if cell in done]
        write_results(path, rows)
        return rows

    todo = [cell for cell in cells(axes) if cell not in done]
    total, saved = len(todo) + len(done), time.monotonic()
    with (
        StopOnSignal() as stop,
        Progress("tables", total, "runs") as bar,
        ThreadPoolExecutor(cores) as pool,
    ):
        futures: dict[Future[float], TabularCell] = {
            pool.submit(run_cell, cell, axes.episodes): cell for cell in todo
        }
        try:
            for future in as_completed(futures):
                done[futures[future]] = future.result()
                latest = futures[future]
                bar.update(len(done), f"{latest.agent} {latest.reward} {latest.terminal:g} %")
                if time.monotonic() - saved > 10:
                    save()
                    saved = time.monotonic()
                if stop.code is not None:
                    break
        finally:
            pool.shutdown(cancel_futures=True)
            if done:
                save()
        if stop.code is not None and len(done) < total:
            raise Interrupted(f"stopped; '{out}' is saved, continue with --resume.", stop.code)
    return save()


def work(axes: TabularAxes, out: Path, _: Resources) -> Work:
    """Return the work: to run the grid on all cores."""
    cores = len(os.sched_getaffinity(0))
    return Work(f"CPU, {cores} threads", lambda: run_grid(axes, out, cores))


def figures(rows: Sequence[Row], axes: TabularAxes, out: Path, device: str) -> None:
    """Draw the rewards of the agents that are in the paper's figure."""
    from save_rl.report.plots import tabular_figure

    shown = [row for row in rows if row["agent"] != "uct-threshold"]
    if shown:
        tabular_figure(shown, out / "figure.png")


def whole_percentages(axes: TabularAxes, _: Mapping[str, Any]) -> TabularAxes:
    """Return the axes with 95.0 as 95: the same setting, with the same random numbers."""
    whole = (int(t) if float(t).is_integer() else t for t in axes.terminal)
    return replace(axes, terminal=tuple(whole))


TIGHTROPE_TABULAR = Experiment(
    NAME,
    "Figure 2a-c: four agents with tables. The scale sets the axes; options override it.",
    SCALES,
    options={
        **folder_options("smoke (seconds), small (a minute), paper (the whole grid)."),
        "reward": "dense, sparse.",
        "terminal": "Percentages of terminal actions.",
        "budgets": "Simulations per decision.",
        "agents": "Agents.",
        "seeds": "Number of seeds.",
        "episodes": "Training episodes.",
    },
    work=work,
    claims=lambda rows, axes: tabular_claims(rows, axes.episodes),
    figures=figures,
    settle=whole_percentages,
)
