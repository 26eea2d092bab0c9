"""The commands of `save-rl` as dataclasses: a field is an option, its docstring the help."""

import contextlib
import io
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

import tyro

from save_rl.api import default_out, run_training, settings_of
from save_rl.cli.bench import Bench
from save_rl.cli.compare import Compare
from save_rl.cli.reproduce import reproduce_command
from save_rl.cli.resume import split_resume
from save_rl.cli.studio import Studio
from save_rl.envs import SEED_IS_NO_OPTION
from save_rl.errors import InputError, require, require_numbers
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.options import named_options
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
        if name == "seed":
            raise InputError(SEED_IS_NO_OPTION)
        try:
            options[name] = json.loads(text)
        except (ValueError, RecursionError):
            options[name] = text
        try:
            json.dumps(options[name], allow_nan=False)
        except ValueError:
            raise InputError(
                f"--env-options: '{pair}' is not possible; numbers must be finite."
            ) from None
    return options


@dataclass(frozen=True)
class Train:
    """Train an agent and write a run directory."""

    settings: Annotated[TrainSettings, tyro.conf.arg(name="")]
    env_options: tuple[str, ...] = ()
    """Options of the environment, as name=value (tightrope: reward=dense terminal=50)."""
    out: Path | None = None
    """Folder of the run; default runs/ENV-AGENT-SEED."""
    resume: bool = False
    """Continue the run in --out; or --resume DIR, which needs no other option: the settings are
    those of the run in DIR."""
    from_run: Annotated[Path | None, tyro.conf.arg(name="from", metavar="DIR")] = None
    """Start with the parameters of the run in DIR, whose network must have the same shapes."""
    log: tuple[str, ...] = ("tensorboard",)
    """Where to log, besides metrics.csv: tensorboard, jsonl (metrics.jsonl in the run folder) and
    wandb (Weights & Biases)."""
    trust: bool = False
    """Allow --resume DIR to import the package.module:factory that its folder names."""
    device: str = "auto"
    """auto, cpu or gpu."""
    workers: int = -1
    """Processes for simulators written in Python: -1 for one per core, 0 for none."""
    step_timeout: float = 0.0
    """Seconds in one call of a simulator after which its worker is replaced; 0 for no limit."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints, or more: checkpointing takes at most 10 % of the run time; 0 for
    one after every chunk."""
    light_checkpoints: bool = False
    """Leave the replay out of checkpoints: small enough to send, but a resumed run fills a new one
    first, so it is not the same bit for bit."""
    check: bool = True
    """Look for faults of a simulator of your own before training, for a few seconds."""
    cluster: str | None = None
    """Train on a Ray cluster: its address, as ray start prints it; or auto, for the cluster that
    this machine is part of, or else a new one on this machine."""
    cluster_settings: Annotated[ClusterSettings, tyro.conf.arg(name="cluster")] = field(
        default_factory=ClusterSettings
    )
    given: Annotated[frozenset[str], tyro.conf.Suppress] = frozenset()
    """Names of the settings that were given, even if they are the defaults."""

    def run(self) -> None:
        settings = self.settings  # of a resumed run, these have its options of the environment
        if self.env_options or not settings.env_options:
            settings = replace(settings, env_options=read_options(self.env_options))
        out = self.out or default_out(settings)
        options: dict[str, Any] = {
            "resume": self.resume, "device": self.device, "workers": self.workers,
            "step_timeout": self.step_timeout, "checkpoint_seconds": self.checkpoint_seconds,
            "light_checkpoints": self.light_checkpoints, "given": self.given, "check": self.check,
            "log": self.log, "from_run": self.from_run,
        }  # fmt: skip
        metrics = run_training(
            settings, out, self.cluster, self.cluster_settings, **options
        ).metrics
        rewards = [row["return_mean"] for row in metrics if "return_mean" in row]
        reward = f"reward {rewards[-1]:.3f}" if rewards else "no reward yet"
        episodes = f"{metrics[-1]['episodes']:,.0f} episodes" if metrics else "no metrics"
        print(f"{out}: {episodes}, {reward}")
        if "tensorboard" in self.log:
            print(f"tensorboard --logdir {shlex.quote(str(out))}  shows its curves")


@dataclass(frozen=True)
class Evaluate:
    """Test a run at several search budgets; writes evaluation.csv into its folder."""

    run_or_env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of a run; or an environment, with an --agent that learns nothing."""
    budgets: tuple[int, ...] = (0, 5, 10, 20, 50)
    """Simulations per decision."""
    episodes: int = 100
    """Test episodes per budget."""
    agent: str | None = None
    """An agent that learns nothing, to test on an environment: uct, random, scripted. On the folder
    of a run: uct, which then evaluates leaves with the run's Q-values."""
    level: int | None = None
    """Level of the test episodes of a run with a curriculum; default the hardest."""
    last: bool = False
    """Test the last parameters of a run that keeps its best, as runs with a curriculum do."""
    seed: int = 0
    """Seed of the environment, with --agent."""
    env_options: tuple[str, ...] = ()
    """Options of the environment, as name=value; for a run, those that differ from its own."""
    out: Path | None = None
    """Where to write the table; default DIR/evaluation.csv (evaluation.csv with --agent)."""
    device: str = "auto"
    """auto, cpu or gpu."""
    workers: int = -1
    """Processes for simulators written in Python: -1 for one per core, 0 for none."""
    step_timeout: float = 0.0
    """Seconds in one call of a simulator after which its worker is replaced; 0 for no limit."""
    trust: bool = False
    """Allow the run to import the package.module:factory that its folder names."""
    c: float | None = None
    """Exploration constant of the searches; default that of the run."""
    baseline: str = "auto"
    """uct plays UCT without learning beside a run, at the same budgets, into
    DIR/evaluation-baseline.csv; auto does so unless the run learned from frames; none never."""

    def run(self) -> None:
        from rich.console import Console

        from save_rl.evaluation import evaluate, mean_and_error, mean_of
        from save_rl.report.plots import budget_table
        from save_rl.training.run.progress import warn

        results = evaluate(
            self.run_or_env,
            self.budgets,
            self.episodes,
            agent=self.agent,
            seed=self.seed,
            env_options=read_options(self.env_options),
            out=self.out,
            device=self.device,
            workers=self.workers,
            step_timeout=self.step_timeout,
            level=self.level,
            last=self.last,
            trust=self.trust,
            c=self.c,
            baseline=self.baseline,
        )
        title = f"Test reward of {self.run_or_env}, {self.episodes} episodes"
        cells = {result.budget: mean_and_error(result) for result in results}
        beside = {r.budget: mean_of(r.baseline) for r in results if r.baseline is not None}
        rows = {self.agent or "run": cells, **({"UCT without learning": beside} if beside else {})}
        Console().print(budget_table(rows, title))
        for budget, (mean, error) in beside.items():
            if mean - error > cells[budget][0] + cells[budget][1]:
                warn(f"UCT without learning is better at budget {budget}; train for longer.")


@dataclass(frozen=True)
class Demo:
    """Run SAVE on Tightrope for a minute: live progress, a table, a picture."""

    out: Path = Path("runs/demo")
    """Folder for the runs and curve.png; replaces an earlier demo there."""
    episodes: int = 12_000
    """Training episodes of each agent."""

    def run(self) -> None:
        from save_rl.experiments.demo import run

        require(self.episodes > 0, "--episodes", self.episodes, "at least 1")
        run(self.out, self.episodes)


@dataclass(frozen=True)
class Watch:
    """Play one episode of an environment or of a run and write it as a GIF."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """An environment with pictures (see save-rl envs), package.module:factory, or a run."""
    out: Path
    """The GIF to write."""
    agent: str | None = None
    """random (the default), scripted (silhouette, covering, marble-run) or uct; a run plays
    itself."""
    difficulty: str | None = None
    """Level of the episode; default a random one."""
    seed: int = 0
    """Seed of the episode and of the agent's choices."""
    budget: int | None = None
    """Simulations per decision; default 50 for uct, the training budget for a run; 0 for a run
    without search."""
    steps: int = 1000
    """Most steps to play; a longer episode is cut off."""
    env_options: tuple[str, ...] = ()
    """Options of the environment, as name=value (atari: max_frames=4000, which is 1,000 steps)."""
    trust: bool = False
    """Allow a run to import the package.module:factory that its folder names."""

    def run(self) -> None:
        from save_rl.watch import CUT, watch

        level: int | str | None = self.difficulty
        with contextlib.suppress(TypeError, ValueError):
            level = int(self.difficulty or "")
        episode = watch(
            self.env, self.out, agent=self.agent, seed=self.seed, budget=self.budget,
            steps=self.steps, difficulty=level, trust=self.trust,
            env_options=read_options(self.env_options),
        )  # fmt: skip
        ending = getattr(episode.states[-1], "ending", "") or "the end"
        ending = f"{CUT} (--steps)" if episode.moves[-1].remark == CUT else ending
        moves = len(episode.moves)
        print(f"{self.out}: {moves} steps, reward {episode.total:.2f}, {ending}")


@dataclass(frozen=True)
class Check:
    """Test whether a simulator is pure and correct, and report what is wrong."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """An environment (see save-rl envs), gym/ID, or package.module:factory."""
    env_options: tuple[str, ...] = ()
    """Options of the environment, as name=value."""
    seed: int = 0
    """Seed of the environment, the episodes and their actions."""
    seconds: float = 20.0
    """Approximate time limit; a slow simulator is checked on fewer steps."""

    def run(self) -> None:
        from rich.console import Console

        from save_rl.envs.check import check_named

        require(self.seed >= 0, "--seed", self.seed, "0 or more")
        require(self.seconds > 0, "--seconds", self.seconds, "more than 0")
        console, options = Console(), read_options(self.env_options)
        with console.status(f"Playing {self.env}"):
            report = check_named(self.env, options, seed=self.seed, seconds=self.seconds)
        report.print(console)
        if not report.ok:
            raise SystemExit(1)


@dataclass(frozen=True)
class Envs:
    """List the environments, those of a suite, or show scenes of one."""

    env: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = None
    """A suite to list: gymnax, jumanji or pgx; or an environment whose scenes to show."""
    scenes: Path | None = None
    """A PNG with sampled scenes of every level of ENV."""
    preset: str = "paper"
    """paper or released: which source of a task to follow where they differ."""
    seed: int = 0
    """Seed of the scenes."""

    def run(self) -> None:
        from save_rl.envs import ENVIRONMENTS, FAMILIES, SUITES

        if self.scenes is None and self.env is not None:
            suite = self.env.rstrip("/")
            if suite not in SUITES:
                raise InputError(
                    f"ENV: '{self.env}' is no suite to list ({', '.join(SUITES)}); scenes of an "
                    "environment need a file, as in save-rl envs covering --scenes out.png."
                )
            from save_rl.envs.suites.listing import table

            for line in table(suite):
                print(line, flush=True)
            return
        if self.env is None and self.scenes is not None:
            raise InputError("ENV: scenes need both, as in save-rl envs covering --scenes out.png.")
        if self.env is None or self.scenes is None:
            _print_list({**{name: e.summary for name, e in ENVIRONMENTS.items()}, **FAMILIES})
            return
        from save_rl.watch import scenes

        scenes(self.env, self.scenes, preset=self.preset, seed=self.seed)
        print(f"{self.scenes}: scenes of {self.env}")


@dataclass(frozen=True)
class Agents:
    """List the agents."""

    def run(self) -> None:
        from save_rl.agents import AGENTS
        from save_rl.players import PLAYERS

        _print_list({**{name: agent.summary for name, agent in AGENTS.items()}, **PLAYERS})


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
    "compare": Compare,
    "reproduce": reproduce_command,
    "bench": Bench,
    "watch": Watch,
    "studio": Studio,
    "check": Check,
    "demo": Demo,
    "envs": Envs,
    "agents": Agents,
    "experiments": Experiments,
}
"""The commands; a function makes its command from what it imports."""


def command_type(name: str) -> Any:
    """Return the dataclass of a command."""
    found = COMMANDS[name]
    return found if is_dataclass(found) else found()


def _one_sentence(box: str, command: str) -> str:
    """Return tyro's boxed error as one sentence: its first part, and the suggested option."""
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
    return f"{sentence}; see save-rl {command} --help."


def _named(command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options of a command by their command-line names."""
    for one in fields(command):
        value = getattr(command, one.name)
        if isinstance(value, TrainSettings | ClusterSettings):
            prefix = "--" if isinstance(value, TrainSettings) else "--cluster."
            yield from named_options(value, prefix)
        elif is_dataclass(value):
            yield from _named(value)
        else:
            yield f"--{one.name.replace('_', '-')}", value


def parse(arguments: Sequence[str]) -> Command:
    """Return the command of these arguments; refuse numbers that are out of range."""
    name, *options = arguments
    more: dict[str, Any] = {}
    if name == "train":
        options, resumed = split_resume(options)
        if resumed is not None:
            settings, folder = settings_of(resumed, "--trust" in options)
            more["default"] = Train(settings, out=folder, resume=True)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            command = tyro.cli(
                command_type(name), prog=f"save-rl {name}", args=options,
                config=(tyro.conf.OmitSubcommandPrefixes,), **more,
            )  # fmt: skip
    except SystemExit as stop:
        if stop.code != 2:  # --help
            raise
        raise InputError(_one_sentence(errors.getvalue(), name)) from None
    require_numbers(_named(command))
    if isinstance(command, Train):
        names = {option.partition("=")[0].lstrip("-").replace("-", "_") for option in options}
        if any(name.startswith("network.") for name in names):
            names.add("network_settings")
        given = frozenset(one.name for one in fields(TrainSettings) if one.name in names)
        return replace(command, given=given)
    return command
