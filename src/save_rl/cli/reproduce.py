"""`save-rl reproduce`: a command per experiment."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _finish(claims: Any, out: Path) -> None:
    from rich.console import Console

    from save_rl.report.claims import print_claims

    print_claims(claims, Console())
    print(f"results.csv, figure.png and claims.json are in {out}")


def _command_line() -> str:
    return " ".join(["save-rl", *sys.argv[1:]])


@dataclass(frozen=True)
class TightropeTabular:
    """Figure 2a-c: four agents with tables. The scale sets the axes; an axis given here wins."""

    scale: str = "small"
    """smoke (seconds), small (a minute), paper (the whole grid)."""
    out: Path = Path("runs/tightrope-tabular")
    """Folder for the results."""
    resume: bool = False
    """Go on with the experiment in --out."""
    reward: tuple[str, ...] | None = None
    """dense, sparse."""
    terminal: tuple[float, ...] | None = None
    """Percentages of terminal actions."""
    budgets: tuple[int, ...] | None = None
    """Simulations per decision."""
    agents: tuple[str, ...] | None = None
    """Agents."""
    seeds: int | None = None
    """Number of seeds."""
    episodes: int | None = None
    """Training episodes."""

    def run(self) -> None:
        from save_rl.experiments.tightrope_tabular import run

        axes = _given(
            reward=self.reward, terminal=self.terminal, budgets=self.budgets, agents=self.agents,
            seeds=self.seeds, episodes=self.episodes,
        )  # fmt: skip
        _finish(run(self.scale, axes, self.out, self.resume, _command_line()), self.out)


@dataclass(frozen=True)
class TightropeNetwork:
    """Figure 2d: learning curves with networks. The scale sets the axes; an axis given wins."""

    scale: str = "small"
    """smoke (a minute), small (3 seeds, 1e5 episodes), paper (10 seeds, 1e6 episodes)."""
    out: Path = Path("runs/tightrope-network")
    """Folder for the results."""
    resume: bool = False
    """Go on with the experiment in --out."""
    device: str = "auto"
    """auto, cpu or gpu."""
    agents: tuple[str, ...] | None = None
    """Agents."""
    seeds: int | None = None
    """Number of seeds."""
    episodes: int | None = None
    """Training episodes."""
    budget: int | None = None
    """Simulations per decision."""
    terminal: float | None = None
    """Percentage of terminal actions."""
    reward: str | None = None
    """sparse or dense."""

    def run(self) -> None:
        from save_rl.experiments.tightrope_network import run

        axes = _given(
            agents=self.agents, seeds=self.seeds, episodes=self.episodes, budget=self.budget,
            terminal=self.terminal, reward=self.reward,
        )  # fmt: skip
        claims = run(self.scale, axes, self.out, self.resume, _command_line(), self.device)
        _finish(claims, self.out)


@dataclass(frozen=True)
class Reproduce:
    """Reproduce a figure of the paper: results.csv, figure.png and claims.json."""

    experiment: (
        Annotated[TightropeTabular, tyro.conf.subcommand("tightrope-tabular", prefix_name=False)]
        | Annotated[TightropeNetwork, tyro.conf.subcommand("tightrope-network", prefix_name=False)]
    )

    def run(self) -> None:
        self.experiment.run()
