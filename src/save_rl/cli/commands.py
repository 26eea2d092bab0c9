"""The commands of `save-rl` as dataclasses: a field is an option, its docstring the help."""

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import tyro

from save_rl.api import default_out
from save_rl.errors import InputError
from save_rl.training.settings import TrainSettings


class Command(Protocol):
    def run(self) -> None: ...


def read_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `name=value` pairs; values are numbers, true, false or text."""
    options = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--env-options: '{pair}' is not possible; write name=value.")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


@dataclass(frozen=True)
class Train:
    """Train an agent and leave a run directory."""

    settings: tyro.conf.OmitArgPrefixes[TrainSettings]
    env_options: tuple[str, ...] = ()
    """Options of the environment, as name=value (tightrope: reward=dense terminal=50)."""
    out: Path | None = None
    """Folder of the run; default runs/ENV-AGENT-SEED."""
    resume: bool = False
    """Go on with the run in --out."""
    device: str = "auto"
    """auto, cpu or gpu."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints."""

    def run(self) -> None:
        from dataclasses import replace

        from save_rl.training.loop import train

        settings = replace(self.settings, env_options=read_options(self.env_options))
        settings.check()
        out = self.out or default_out(settings)
        result = train(
            settings, out, resume=self.resume, device=self.device,
            checkpoint_seconds=self.checkpoint_seconds,
        )  # fmt: skip
        last = result.metrics[-1]
        print(f"{out}: {last['episodes']:,.0f} episodes, reward {last.get('return_mean', 0):.3f}")


@dataclass(frozen=True)
class Evaluate:
    """Test a run at several search budgets; writes evaluation.csv into its folder."""

    run_or_env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of a run; or an environment, with --agent uct, which learns nothing."""
    budgets: tuple[int, ...] = (0, 5, 10, 20, 50)
    """Simulations per decision."""
    episodes: int = 100
    """Test episodes per budget."""
    agent: str | None = None
    """An agent that learns nothing, to test on an environment."""
    seed: int = 0
    """Seed of the environment, with --agent."""
    env_options: tuple[str, ...] = ()
    """Options of the environment, with --agent."""
    out: Path | None = None
    """Where to write the table; default DIR/evaluation.csv (evaluation.csv with --agent)."""
    device: str = "auto"
    """auto, cpu or gpu."""

    def run(self) -> None:
        from rich.console import Console

        from save_rl.evaluation import evaluate, mean_and_error
        from save_rl.report.plots import budget_table

        results = evaluate(
            self.run_or_env,
            self.budgets,
            self.episodes,
            agent=self.agent,
            seed=self.seed,
            env_options=read_options(self.env_options),
            out=self.out,
            device=self.device,
        )
        title = f"Test reward of {self.run_or_env}, {self.episodes} episodes"
        cells = {result.budget: mean_and_error(result) for result in results}
        Console().print(budget_table({self.agent or "run": cells}, title))


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


@dataclass(frozen=True)
class BenchSearch:
    """Simulations per second, next to mctx.muzero_policy on the same shapes."""

    json: bool = False
    """Print JSON instead of a table."""
    device: str = "auto"
    """auto, cpu or gpu."""

    def run(self) -> None:
        from save_rl.training.devices import select_device

        chosen = select_device(self.device)
        import jax

        from save_rl.bench.search import bench_search

        with jax.default_device(chosen):
            report = bench_search()
        _print_bench(report, self.json)


@dataclass(frozen=True)
class BenchTrain:
    """Training throughput on Tightrope, and where a second goes."""

    json: bool = False
    """Print JSON instead of a table."""
    device: str = "auto"
    """auto, cpu or gpu."""
    seeds: tuple[int, ...] = (1,)
    """Numbers of seeds to train side by side."""

    def run(self) -> None:
        from save_rl.errors import require
        from save_rl.training.devices import select_device

        require(bool(self.seeds) and min(self.seeds) > 0, "--seeds", self.seeds, "at least 1 each")
        chosen = select_device(self.device)
        import jax

        from save_rl.bench.train import bench_train

        with jax.default_device(chosen):
            report = bench_train(chosen, self.seeds)
        _print_bench(report, self.json)


@dataclass(frozen=True)
class Bench:
    """Measure throughput on this machine."""

    what: (
        Annotated[BenchSearch, tyro.conf.subcommand("search", prefix_name=False)]
        | Annotated[BenchTrain, tyro.conf.subcommand("train", prefix_name=False)]
    )

    def run(self) -> None:
        self.what.run()


def _print_bench(report: dict[str, Any], as_json: bool) -> None:
    """Print a report of cases, nested numbers as columns of their own."""
    if as_json:
        print(json.dumps(report, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    flat = []
    for case in report["cases"]:
        cells: dict[str, str] = {}
        for name, value in case.items():
            inner = value if isinstance(value, dict) else {"": value}
            for key, number in inner.items():
                label = f"{name} {key}".strip().replace("_", " ")
                cells[label] = f"{number:,}" if isinstance(number, int) else str(number)
        flat.append(cells)
    table = Table(title=report["device"], title_justify="left")
    table.add_column("")
    for _ in flat:
        table.add_column(justify="right")
    for label in flat[0]:
        table.add_row(label, *(cells.get(label, "") for cells in flat))
    Console().print(table)


@dataclass(frozen=True)
class Demo:
    """A minute of SAVE on Tightrope: live progress, a table, a picture."""

    out: Path = Path("runs/demo")
    """Folder for the runs and curve.png; an earlier demo there is replaced."""
    episodes: int = 12_000
    """Training episodes of each agent."""

    def run(self) -> None:
        from save_rl.errors import require
        from save_rl.experiments.demo import run

        require(self.episodes > 0, "--episodes", self.episodes, "at least 1")
        run(self.out, self.episodes)


@dataclass(frozen=True)
class Envs:
    """List the environments."""

    def run(self) -> None:
        from save_rl.envs import ENVIRONMENTS

        _print_list({name: entry.summary for name, entry in ENVIRONMENTS.items()})


@dataclass(frozen=True)
class Agents:
    """List the agents."""

    def run(self) -> None:
        from save_rl.agents import AGENTS

        _print_list({name: agent.summary for name, agent in AGENTS.items()})


@dataclass(frozen=True)
class Experiments:
    """List the experiments."""

    def run(self) -> None:
        from save_rl.experiments import EXPERIMENTS

        _print_list({name: f"{e.paper}: {e.summary}" for name, e in EXPERIMENTS.items()})


def _print_list(lines: dict[str, str]) -> None:
    width = max(map(len, lines))
    for name, line in lines.items():
        print(f"{name:<{width}}  {line}")


COMMANDS: dict[str, Any] = {
    "train": Train,
    "evaluate": Evaluate,
    "reproduce": Reproduce,
    "bench": Bench,
    "demo": Demo,
    "envs": Envs,
    "agents": Agents,
    "experiments": Experiments,
}


def _one_sentence(box: str) -> str:
    """What tyro says in a box, as a sentence: its first part, and the option it suggests."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines()[1:]:  # the first line is the title
        text = line.strip(" │╭╮╰╯|+")
        if set(text) <= {"─", "-"}:
            parts.append([])
        else:
            parts[-1].append(text)
    said = [part for part in parts if part] or [[box.strip()]]
    sentence = " ".join(said[0]).rstrip(".")
    for part in said[1:]:
        if part[0].startswith("Perhaps you meant") and len(part) > 1:
            sentence += f"; did you mean '{part[1].split()[0]}'"
    return f"{sentence}; see save-rl --help."


def parse(arguments: Sequence[str]) -> Command:
    """The command that these arguments ask for."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                prog="save-rl",
                description="Search with Amortized Value Estimates, for small search budgets.",
                args=list(arguments),
                config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as stop:
        if stop.code != 2:  # --help
            raise
        raise InputError(_one_sentence(errors.getvalue())) from None
