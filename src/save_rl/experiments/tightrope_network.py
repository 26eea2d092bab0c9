"""Figure 2d: learning curves with networks on Tightrope (sparse, 95 % terminal)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from save_rl.agents import get_agent
from save_rl.errors import require
from save_rl.experiments.experiment import Experiment, Resources, Work, folder_options
from save_rl.experiments.runs import check_choices
from save_rl.experiments.tightrope_claims import SOLVED, network_claims
from save_rl.report.results import Row

NAME = "tightrope-network"


@dataclass(frozen=True)
class NetworkAxes:
    """The agents, the length of training and the version of Tightrope."""

    agents: tuple[str, ...]
    seeds: int
    episodes: int
    budget: int
    terminal: float
    reward: str = "sparse"
    test_episodes: int = 128

    def check(self) -> None:
        check_choices(self, ("agents",))
        for agent in self.agents:
            settings(self, agent).check()
        require(0 <= self.terminal <= 100, "--terminal", self.terminal, "a percentage, 0 to 100")
        require(self.reward in ("sparse", "dense"), "--reward", repr(self.reward),
                "'sparse' or 'dense'")  # fmt: skip


_AGENTS = ("save", "q-learning", "puct")
SCALES = {
    "smoke": NetworkAxes(
        _AGENTS, seeds=2, episodes=2_000, budget=10, terminal=95, test_episodes=32
    ),
    "small": NetworkAxes(_AGENTS, seeds=3, episodes=100_000, budget=10, terminal=95),
    "paper": NetworkAxes(  # paper B.3
        _AGENTS, seeds=10, episodes=1_000_000, budget=10, terminal=95
    ),
}


def settings(axes: NetworkAxes, agent: str) -> Any:
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


def work(axes: NetworkAxes, out: Path, resources: Resources) -> Work:
    """Return the work: to train the agents one after the other."""
    from save_rl.training.devices import select_device

    def make() -> list[Row]:
        from save_rl.training.run.loop import train

        rows = []
        for agent in axes.agents:
            folder = out / "runs" / agent
            result = train(
                settings(axes, agent),
                folder,
                resume=(folder / "config.json").exists(),
                device=resources.device,
                label=agent,
            )
            rows += curve_rows(agent, axes.budget, result.metrics)
        return rows

    return Work(select_device(resources.device).device_kind, make)


def figures(rows: Sequence[Row], axes: NetworkAxes, out: Path, _: str) -> None:
    """Draw the learning curves."""
    from save_rl.report.plots import learning_curves

    learning_curves(
        rows, out / "figure.png",
        title=f"Tightrope, {axes.reward} reward, {axes.terminal:g} % terminal, "
        f"budget {axes.budget}",
    )  # fmt: skip


TIGHTROPE_NETWORK = Experiment(
    NAME,
    "Figure 2d: learning curves with networks. The scale sets the axes; options override it.",
    SCALES,
    options={
        **folder_options(
            "smoke (a minute), small (3 seeds, 1e5 episodes), paper (10 seeds, 1e6 episodes)."
        ),
        "device": "auto, cpu or gpu.",
        "agents": "Agents.",
        "seeds": "Number of seeds.",
        "episodes": "Training episodes.",
        "budget": "Simulations per decision.",
        "terminal": "Percentage of terminal actions.",
        "reward": "sparse or dense.",
    },
    work=work,
    claims=lambda rows, _: network_claims(rows),
    figures=figures,
)
