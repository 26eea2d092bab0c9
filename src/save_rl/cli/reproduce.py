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
    """Figure 2a-c: four agents with tables. The scale sets the axes; options override it."""

    scale: str = "small"
    """smoke (seconds), small (a minute), paper (the whole grid)."""
    out: Path = Path("runs/tightrope-tabular")
    """Folder for the results."""
    resume: bool = False
    """Continue the experiment in --out."""
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
    """Figure 2d: learning curves with networks. The scale sets the axes; options override it."""

    scale: str = "small"
    """smoke (a minute), small (3 seeds, 1e5 episodes), paper (10 seeds, 1e6 episodes)."""
    out: Path = Path("runs/tightrope-network")
    """Folder for the results."""
    resume: bool = False
    """Continue the experiment in --out."""
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
class ConstructionOptions:
    """The scale sets the axes; options override it."""

    scale: str = "small"
    """smoke (a minute), small (3 seeds, 10,000 episodes), paper (10 seeds, 1e6 episodes)."""
    resume: bool = False
    """Continue the experiment in --out."""
    device: str = "auto"
    """auto, cpu or gpu."""
    workers: int = -1
    """Processes for simulators: -1 for one per core, 0 for none."""
    jobs: int = 1
    """Training runs in parallel, each in its own process; they share the cores."""
    tasks: tuple[str, ...] | None = None
    """silhouette, connecting, covering, covering-hard."""
    agents: tuple[str, ...] | None = None
    """Agents that learn."""
    seeds: int | None = None
    """Number of seeds."""
    episodes: int | None = None
    """Training episodes."""
    budget: int | None = None
    """Simulations per decision while training."""
    budgets: tuple[int, ...] | None = None
    """Simulations per decision in tests."""
    test_episodes: int | None = None
    """Test episodes per budget, on the hardest level."""
    lanes: int | None = None
    """Episodes played in parallel while training."""
    epsilon_episodes: float | None = None
    """Episodes over which ε falls."""
    beta_episodes: float | None = None
    """Episodes over which the weights of the losses change."""
    uct_budget: int | None = None
    """Simulations of UCT, with the network of Q-learning; 0 leaves it out."""
    uct_episodes: int | None = None
    """Test episodes of UCT."""

    def reproduce(self, name: str, out: Path) -> None:
        """Run the experiment of this name."""
        from dataclasses import asdict

        from save_rl.experiments.construction import run

        axes = _given(**asdict(self))
        scale, resume, device, workers, jobs = (
            axes.pop(option) for option in ("scale", "resume", "device", "workers", "jobs")
        )
        _finish(run(name, scale, axes, out, resume, _command_line(), device, workers, jobs), out)


@dataclass(frozen=True)
class Construction:
    """Figure 3a-c: rewards of SAVE, SAVE without amortization and Q-learning over test budgets."""

    construction: Annotated[ConstructionOptions, tyro.conf.arg(name="")] = ConstructionOptions()
    out: Path = Path("runs/construction")
    """Folder for the results."""

    def run(self) -> None:
        self.construction.reproduce("construction", self.out)


@dataclass(frozen=True)
class ConstructionAblations:
    """Figures 3d, C.1 and C.2: variants of SAVE on covering, their curves and rewards."""

    construction: Annotated[ConstructionOptions, tyro.conf.arg(name="")] = ConstructionOptions()
    out: Path = Path("runs/construction-ablations")
    """Folder for the results."""

    def run(self) -> None:
        self.construction.reproduce("construction-ablations", self.out)


@dataclass(frozen=True)
class ConstructionExploration:
    """Figure C.3: four exploration strategies of SAVE in training, on covering."""

    construction: Annotated[ConstructionOptions, tyro.conf.arg(name="")] = ConstructionOptions()
    out: Path = Path("runs/construction-exploration")
    """Folder for the results."""

    def run(self) -> None:
        self.construction.reproduce("construction-exploration", self.out)


@dataclass(frozen=True)
class ConstructionEfficiency:
    """Figure C.4: SAVE and Q-learning on covering, over all simulator steps."""

    construction: Annotated[ConstructionOptions, tyro.conf.arg(name="")] = ConstructionOptions()
    out: Path = Path("runs/construction-efficiency")
    """Folder for the results."""

    def run(self) -> None:
        self.construction.reproduce("construction-efficiency", self.out)


@dataclass(frozen=True)
class MarbleRun:
    """Figures 4, D.2 and D.3: rewards per level. The scale sets the axes; options override it."""

    scale: str = "small"
    """smoke (two minutes), small (3 seeds, 20,000 episodes), paper (10 seeds, 1e6 episodes)."""
    out: Path = Path("runs/marble-run")
    """Folder for the results."""
    resume: bool = False
    """Continue the experiment in --out."""
    device: str = "auto"
    """auto, cpu or gpu."""
    workers: int = -1
    """Processes for simulators: -1 for one per core, 0 for none."""
    jobs: int = 1
    """Training runs in parallel, each in its own process; they share the cores."""
    costs: tuple[float, ...] | None = None
    """Costs of a sticky block."""
    agents: tuple[str, ...] | None = None
    """Agents that learn."""
    levels: tuple[int, ...] | None = None
    """Test levels, from 0 to 6."""
    seeds: int | None = None
    """Number of seeds."""
    episodes: int | None = None
    """Training episodes."""
    budget: int | None = None
    """Simulations per decision while training and in tests."""
    test_episodes: int | None = None
    """Test episodes per level and budget."""
    lanes: int | None = None
    """Episodes played in parallel while training."""
    epsilon_episodes: float | None = None
    """Episodes over which ε falls."""
    beta_episodes: float | None = None
    """Episodes over which the weights of the losses change."""

    def run(self) -> None:
        from dataclasses import asdict

        from save_rl.experiments.marble_run import run

        axes = _given(**asdict(self))
        scale, out, resume, device, workers, jobs = (
            axes.pop(option) for option in ("scale", "out", "resume", "device", "workers", "jobs")
        )
        _finish(run(scale, axes, out, resume, _command_line(), device, workers, jobs), out)


@dataclass(frozen=True)
class Atari:
    """Figures 5 and E.1, Table E.1: R2D2 and SAVE. The scale sets the axes; options override it."""

    scale: str = "small"
    """smoke (two minutes), small (4e6 frames, about 10 minutes per run on one accelerator), paper
    (1e10 frames)."""
    out: Path = Path("runs/atari")
    """Folder for the results."""
    resume: bool = False
    """Continue the experiment in --out."""
    device: str = "auto"
    """auto, cpu or gpu."""
    workers: int = -1
    """Processes for emulators: -1 for one per core, 0 for none."""
    jobs: int = 1
    """Training runs in parallel, each in its own process; they share the cores."""
    games: tuple[str, ...] | None = None
    """Games by the names of their ROMs; default the paper's 14."""
    agents: tuple[str, ...] | None = None
    """r2d2 (the paper's baseline), r2d2-controlled, r2d2-save; default the last two at scale small,
    else all three."""
    seeds: int | None = None
    """Number of seeds."""
    frames: float | None = None
    """Game frames to train each run for; 4 per agent step."""
    budget: int | None = None
    """Simulations per decision while r2d2-save trains."""
    profile: str | None = None
    """Sizes of network, replay and batch: two-cores, minutes, accelerator or paper."""
    lanes: int | None = None
    """Episodes played in parallel (the paper's actors); default the profile's."""
    score_episodes: int | None = None
    """The score is the mean return of this many last training episodes."""
    max_frames: int | None = None
    """Frames after which an episode is truncated."""
    discards: bool = False
    """Let r2d2-controlled search like r2d2-save but discard the result, as in the paper; it acts
    and learns the same."""

    def run(self) -> None:
        from dataclasses import asdict

        from save_rl.experiments.atari import run

        axes = _given(**asdict(self))
        scale, out, resume, device, workers, jobs = (
            axes.pop(option) for option in ("scale", "out", "resume", "device", "workers", "jobs")
        )
        _finish(run(scale, axes, out, resume, _command_line(), device, workers, jobs), out)


@dataclass(frozen=True)
class Reproduce:
    """Reproduce a figure of the paper: results.csv, figure.png and claims.json."""

    experiment: (
        Annotated[TightropeTabular, tyro.conf.subcommand("tightrope-tabular", prefix_name=False)]
        | Annotated[TightropeNetwork, tyro.conf.subcommand("tightrope-network", prefix_name=False)]
        | Annotated[Construction, tyro.conf.subcommand("construction", prefix_name=False)]
        | Annotated[
            ConstructionAblations,
            tyro.conf.subcommand("construction-ablations", prefix_name=False),
        ]
        | Annotated[
            ConstructionExploration,
            tyro.conf.subcommand("construction-exploration", prefix_name=False),
        ]
        | Annotated[
            ConstructionEfficiency,
            tyro.conf.subcommand("construction-efficiency", prefix_name=False),
        ]
        | Annotated[MarbleRun, tyro.conf.subcommand("marble-run", prefix_name=False)]
        | Annotated[Atari, tyro.conf.subcommand("atari", prefix_name=False)]
    )

    def run(self) -> None:
        self.experiment.run()
