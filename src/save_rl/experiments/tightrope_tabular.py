"""Figure 2a-c: tabular agents on Tightrope, over reward, terminal actions and search budget."""

import os
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from save_rl.agents import get_agent
from save_rl.errors import Interrupted, require
from save_rl.experiments.folder import check_scale, open_folder, write_provenance

NAME = "tightrope-tabular"


@dataclass(frozen=True)
class Axes:
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
        for option in ("reward", "terminal", "budgets", "agents"):
            require(len(getattr(self, option)) > 0, f"--{option}", "()", "at least one value")
        require(self.seeds >= 1, "--seeds", self.seeds, "at least 1")
        require(self.episodes >= 0, "--episodes", self.episodes, "0 or more")


_AGENTS = ("save", "puct", "uct", "q-learning", "uct-threshold")
_BOTH = ("dense", "sparse")
SCALES = {
    "smoke": Axes(_BOTH, (50, 95), (5,), _AGENTS, seeds=2, episodes=50),
    "small": Axes(_BOTH, (50, 95, 99), (10, 50), _AGENTS, seeds=5, episodes=500),
    "paper": Axes(  # paper B.2; 20 seeds, 500 episodes
        _BOTH, (50, 75, 90, 95, 99), (5, 10, 20, 50, 100), _AGENTS, seeds=20, episodes=500
    ),
}


class Cell(NamedTuple):
    """One run of the grid, which gives one number."""

    agent: str
    seed: int
    reward: str
    terminal: float
    budget: int


def cells(axes: Axes) -> Iterator[Cell]:
    """Yield all cells; the seeds of a setting follow one another."""
    grid = product(axes.reward, axes.terminal, axes.budgets, axes.agents, range(axes.seeds))
    for reward, terminal, budget, agent, seed in grid:
        yield Cell(agent, seed, reward, terminal, budget)


def run_cell(cell: Cell, episodes: int) -> float:
    """Train one agent on its seed's Tightrope; return its mean test reward."""
    import numpy as np

    from save_rl.envs.tightrope import tightrope_simulator
    from save_rl.training.tabular import TabularSettings, train_and_test

    env = tightrope_simulator(cell.seed, reward=cell.reward, terminal=cell.terminal)
    # The seed determines the environment; the cell determines the randomness of training and tests.
    stream = np.random.SeedSequence([cell.seed, zlib.crc32(repr(cell).encode())])
    rewards = train_and_test(
        get_agent(cell.agent), env, cell.budget, int(stream.generate_state(1)[0] >> 1),
        TabularSettings(episodes=episodes),
    )  # fmt: skip
    return float(rewards.mean())


def _row(cell: Cell, value: float) -> dict[str, Any]:
    return {"experiment": NAME, **cell._asdict(), "metric": "test_reward", "value": value}


def run(scale: str, overrides: dict[str, Any], out: Path, resume: bool, command: str) -> list[Any]:
    """Run the grid and write its files; return the claims."""

    from save_rl.experiments.tightrope_claims import tabular_claims
    from save_rl.report.claims import write_claims
    from save_rl.report.plots import tabular_figure
    from save_rl.report.results import read_results, write_results
    from save_rl.training.interrupt import StopOnSignal
    from save_rl.training.progress import Progress

    check_scale(scale)
    if "terminal" in overrides:  # 95 and 95.0 are the same setting, with the same random numbers
        whole = tuple(int(t) if float(t).is_integer() else t for t in overrides["terminal"])
        overrides = {**overrides, "terminal": whole}
    axes = Axes(**{**SCALES[scale].__dict__, **overrides})
    axes.check()
    open_folder(out, NAME, axes, resume)
    started = time.monotonic()
    done: dict[Cell, float] = {}
    path = out / "results.csv"
    if resume and path.exists():
        for row in read_results(path):
            cell = Cell._make(row[field] for field in Cell._fields)
            done[cell] = float(str(row["value"]))

    def save() -> list[dict[str, Any]]:
        rows = [_row(cell, done[cell]) for cell in cells(axes) if cell in done]
        write_results(path, rows)
        return rows

    todo = [cell for cell in cells(axes) if cell not in done]
    total, saved = len(todo) + len(done), time.monotonic()
    cores = len(os.sched_getaffinity(0))
    with (
        StopOnSignal() as stop,
        Progress("tables", total, "runs") as bar,
        ThreadPoolExecutor(cores) as pool,
    ):
        futures: dict[Future[float], Cell] = {
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
    rows = save()
    shown = [row for row in rows if row["agent"] != "uct-threshold"]  # not in the paper's figure
    if shown:
        tabular_figure(shown, out / "figure.png")
    claims = tabular_claims(rows)
    write_claims(out / "claims.json", claims)
    write_provenance(out, command, f"CPU, {cores} threads", started)
    return claims
