"""Figure 2d: learning curves with networks on Tightrope (sparse, 95 % terminal)."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from save_rl.agents import get_agent
from save_rl.errors import require
from save_rl.experiments.folder import check_scale, open_folder, write_provenance
from save_rl.experiments.tightrope_claims import SOLVED, network_claims

NAME = "tightrope-network"


@dataclass(frozen=True)
class Axes:
    """The agents, the length of training and the version of Tightrope."""

    agents: tuple[str, ...]
    seeds: int
    episodes: int
    budget: int
    terminal: float
    reward: str = "sparse"
    test_episodes: int = 128

    def check(self) -> None:
        require(len(self.agents) > 0, "--agents", "()", "at least one agent")
        for agent in self.agents:
            settings(self, agent).check()
        require(0 <= self.terminal <= 100, "--terminal", self.terminal, "a percentage, 0 to 100")
        require(self.reward in ("sparse", "dense"), "--reward", repr(self.reward),
                "'sparse' or 'dense'")  # fmt: skip


_AGENTS = ("save", "q-learning", "puct")
SCALES = {
    "smoke": Axes(_AGENTS, seeds=2, episodes=2_000, budget=10, terminal=95, test_episodes=32),
    "small": Axes(_AGENTS, seeds=3, episodes=100_000, budget=10, terminal=95),
    "paper": Axes(_AGENTS, seeds=10, episodes=1_000_000, budget=10, terminal=95),  # paper B.3
}


def settings(axes: Axes, agent: str) -> Any:
    """Return the training settings of one agent."""
    from save_rl.training.settings import TrainSettings

    require(axes.seeds >= 1, "--seeds", axes.seeds, "at least 1")
    for_states = not get_agent(agent, "--agents").recurrent
    require(for_states, "--agents", repr(agent), "an agent that does not learn from frames")
    return TrainSettings(
        env="tightrope",
        agent=agent,
        episodes=axes.episodes,
        budget=axes.budget,
        seeds=tuple(range(axes.seeds)),
        env_options={"reward": axes.reward, "terminal": axes.terminal},
        test_episodes=axes.test_episodes,
    )


def curve_rows(agent: str, budget: int, metrics: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return long-form rows of one agent: its curve, and a summary of the curve per seed."""
    rows: list[dict[str, Any]] = []

    def add(seed: int, episodes: int, metric: str, value: float) -> None:
        rows.append({
            "experiment": NAME, "agent": agent, "seed": seed, "budget": budget,
            "episodes": episodes, "metric": metric, "value": value,
        })  # fmt: skip

    for seed in sorted({int(row["seed"]) for row in metrics}):
        curve = [row for row in metrics if row["seed"] == seed]
        x = np.array([row["episodes"] for row in curve])
        y = np.array([row["test_return"] for row in curve])
        for episodes, value in zip(x, y, strict=True):
            add(seed, int(episodes), "test_reward", float(value))
        last = int(x[-1])
        add(seed, last, "final_test_reward", float(y[-min(5, len(y)) :].mean()))
        solved = np.flatnonzero(y >= SOLVED)
        if len(solved):
            add(seed, last, "episodes_to_solve", float(x[solved[0]]))
        log_x = np.log10(x)
        area = np.trapezoid(y, log_x) / (log_x[-1] - log_x[0]) if len(x) > 1 else y[0]
        add(seed, last, "area_under_curve", float(area))
    return rows


def run(
    scale: str, overrides: dict[str, Any], out: Path, resume: bool, command: str, device: str
) -> list[Any]:
    """Train the agents one after the other and write the files; return the claims."""
    from save_rl.report.claims import write_claims
    from save_rl.report.plots import learning_curves
    from save_rl.report.results import write_results
    from save_rl.training.devices import select_device
    from save_rl.training.loop import train

    check_scale(scale)
    axes = Axes(**{**SCALES[scale].__dict__, **overrides})
    axes.check()
    chosen = select_device(device)
    open_folder(out, NAME, axes, resume)
    started = time.monotonic()
    rows = []
    for agent in axes.agents:
        folder = out / "runs" / agent
        result = train(
            settings(axes, agent),
            folder,
            resume=(folder / "config.json").exists(),
            device=device,
            label=agent,
        )
        rows += curve_rows(agent, axes.budget, result.metrics)
    write_results(out / "results.csv", rows)
    learning_curves(
        rows, out / "figure.png",
        title=f"Tightrope, {axes.reward} reward, {axes.terminal:g} % terminal, "
        f"budget {axes.budget}",
    )  # fmt: skip
    claims = network_claims(rows)
    write_claims(out / "claims.json", claims)
    write_provenance(out, command, chosen.device_kind, started)
    return claims
