"""Tests of an agent without exploration, at any search budget."""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from save_rl.agents import Agent, get_agent
from save_rl.envs import make, make_simulator, runs_on_host
from save_rl.errors import InputError, require, require_numbers, unknown_name
from save_rl.players import Move, Player, make_player
from save_rl.players import play as play_episode
from save_rl.policy import load
from save_rl.training.baseline import PATIENCE, TooSlow, Uct, patient, untrained_uct
from save_rl.training.device.trainer import DeviceTrainer
from save_rl.training.devices import select_device
from save_rl.training.learner import with_measured_scale
from save_rl.training.r2d2.trainer import R2D2Trainer
from save_rl.training.run.evaluation_file import Conditions, EvaluationFile
from save_rl.training.run.progress import Progress, warn
from save_rl.training.run.trained import read_params
from save_rl.training.run.trained import settings_of_run as settings_of_run
from save_rl.training.run.trainers import make_trainer
from save_rl.training.settings import TrainSettings
from save_rl.training.trainer import Trainer
from save_rl.types import Simulator, State

_HOST_LANES = 64
_LARGE_BUDGET, _LARGE_BUDGET_LANES = 200, 16  # large trees need memory
_OVER_RUNS = ("uct", "uct-threshold")  # agents that can search over the network of a run
BASELINES = ("auto", "uct", "none")
_PLAYERS_ONLY = ("random", "scripted")  # agents that need no search, and no network


class TestEpisodes(NamedTuple):
    """Test episodes at one budget; arrays `[seeds, episodes]`.

    baseline: returns of UCT without learning at the same budget, if it was played.
    """

    budget: int
    returns: np.ndarray
    steps: np.ndarray
    baseline: np.ndarray | None = None


def evaluate_parameters(
    trainer: Trainer, params: Any, budgets: Sequence[int], episodes: int, level: int | None = None
) -> list[TestEpisodes]:
    """Test all seeds of a trainer with these parameters at every budget."""
    size = min(episodes, trainer.test_batch or episodes)
    results = []
    for budget in budgets:
        batches = [
            trainer.play(params, size, budget, 2**20 + batch, level)
            for batch in range(-(-episodes // size))
        ]
        returns = np.concatenate([returns for returns, _ in batches], 1)[:, :episodes]
        steps = np.concatenate([steps for _, steps in batches], 1)[:, :episodes]
        results.append(TestEpisodes(budget, returns, steps))
    return results


def mean_and_error(result: TestEpisodes) -> tuple[float, float]:
    """Return the mean return over all episodes, and its standard error."""
    return mean_of(result.returns)


def mean_of(returns: np.ndarray) -> tuple[float, float]:
    """Return the mean of returns, and its standard error."""
    return float(returns.mean()), float(returns.std() / np.sqrt(returns.size))


def _load_run(
    folder: Path, target: Any, lanes: int, workers: int, step_timeout: float = 0.0,
    plays: Agent | None = None, options: dict[str, Any] | None = None, trust: bool = False,
    budgets: Sequence[int] = (), last: bool = False, c: float | None = None,
) -> tuple[Trainer, Any, str]:  # fmt: skip
    """Return the trainer of a run, its parameters by seed, and which they are: the best ones if
    they were kept, else the last.

    plays: the agent to test with them; default the run's own. options: of the environment, if they
    differ from the run's own. trust, last, c: see `evaluate`. budgets: of the tests.
    """
    settings = settings_of_run(folder, "DIR", trust)
    # Tests need no replay, so a run can be tested on a machine without memory for it.
    replay = replace(settings.r2d2.replay, capacity=1, minimum=1)
    settings = replace(
        settings, env_options={**settings.env_options, **(options or {})},
        r2d2=replace(settings.r2d2, replay=replay), c=settings.c if c is None else c,
    )  # fmt: skip
    if plays is not None and get_agent(settings.agent).value_loss != "td":
        raise InputError(
            f"--agent: '{plays.name}' needs a run that learned Q-values, and '{settings.agent}' "
            "does not."
        )
    trainer = make_trainer(
        settings, target, workers=workers, step_timeout=step_timeout, test_lanes=lanes,
        train=False, plays=plays, budgets=budgets,
    )  # fmt: skip
    try:
        return trainer, *read_params(folder, trainer.params(trainer.template()), "DIR", last)
    except BaseException:
        trainer.close()
        raise


def _pure_search(settings: TrainSettings, env: Simulator) -> tuple[Trainer, Any]:
    """Return a trainer for an agent that learns nothing, and unused parameters."""
    if get_agent(settings.agent).learns:
        raise InputError(
            f"--agent: '{settings.agent}' must be trained; give the folder of its run."
        )
    trainer = DeviceTrainer(settings, [env])
    return trainer, trainer.params(trainer.begin())


def _play_simulator(
    sim: Simulator, settings: TrainSettings, budgets: Sequence[int], episodes: int
) -> list[TestEpisodes]:
    """Test an agent that learns nothing on a Python simulator, episode by episode."""
    env, agent, seed, results = settings.env, settings.agent, settings.seeds[0], []
    for budget in budgets:
        player = make_player(agent, sim, budget, settings.c)
        returns, steps = np.zeros((1, episodes)), np.zeros((1, episodes), int)
        with Progress(f"{env}, {agent}, budget {budget}", episodes, "episodes") as progress:
            for i in range(episodes):
                episode = play_episode(sim, player, seed * 2**20 + i)
                returns[0, i], steps[0, i] = episode.total, len(episode.moves)
                progress.update(i + 1, f"reward {returns[0, : i + 1].mean():.2f}")
        results.append(TestEpisodes(budget, returns, steps))
    return results


def evaluate(
    run: str | Path,
    budgets: Sequence[int] = (0, 5, 10, 20, 50),
    episodes: int = 100,
    *,
    agent: str | None = None,
    seed: int = 0,
    env_options: dict[str, Any] | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    workers: int = -1,
    step_timeout: float = 0.0,
    level: int | None = None,
    last: bool = False,
    trust: bool = False,
    c: float | None = None,
    baseline: str = "auto",
    append: bool = True,
    progress: bool = True,
) -> list[TestEpisodes]:
    """Test the run in a folder at every budget and write its `evaluation.csv`.

    With `agent`, one that learns nothing, `run` is an environment instead: `uct`, or `random` and
    `scripted`, which have no budget (it is written as 0). `uct` on the
    folder of a run evaluates leaves with the run's Qθ instead of random rollouts.

    level: of the test episodes, for a run with a curriculum; default the hardest. env_options: of
    the environment; for a run, only those that differ from its own. last: test the last parameters
    of a run, even if it has kept its best. trust: allow a run to import
    and run the `package.module:factory` that its folder names; an environment that this process
    has made or trained on needs no permission.

    c: exploration constant of the searches; default that of the run. baseline: `uct` plays UCT
    without learning beside a run, at the same budgets, and writes `evaluation-baseline.csv`; `auto`
    does so unless the run learned from frames, and `none` never. append: keep what earlier
    evaluations under other conditions have written. A table is written after every budget.
    """
    require_numbers(
        {
            "--budgets": tuple(budgets), "--episodes": episodes, "--seed": seed, "--level": level,
            "--workers": workers, "--step-timeout": step_timeout, "--c": c,
        }.items()
    )  # fmt: skip
    if baseline not in BASELINES:
        raise unknown_name("baseline", baseline, BASELINES, "--baseline")
    require(c is None or c >= 0, "--c", c, "0 or more")
    if agent in _PLAYERS_ONLY:
        budgets = (0,)
    require(len(budgets) > 0, "--budgets", "()", "at least one number")
    lowest = 1 if agent == "uct" else 0
    for budget in budgets:
        require(budget >= lowest, "--budgets", budget, f"at least {lowest}")
    require(episodes > 0, "--episodes", episodes, "at least 1")
    require(seed >= 0, "--seed", seed, "0 or more")
    options, seeds = env_options or {}, (seed,)
    of_run = agent is None or (agent in _OVER_RUNS and (Path(run) / "config.json").exists())
    name = "evaluation.csv" if agent is None else f"evaluation-{agent}.csv"
    target = Path(out) if out else Path(run) / name if of_run else Path("evaluation.csv")
    if out:
        target.parent.mkdir(parents=True, exist_ok=True)
    chosen = select_device(device)
    with jax.default_device(chosen):
        if of_run:
            plays = get_agent(agent) if agent else None
            lanes = min(episodes, _HOST_LANES)
            if max(budgets) >= _LARGE_BUDGET:
                lanes = min(lanes, _LARGE_BUDGET_LANES)
            trainer, params, which = _load_run(
                Path(run), chosen, lanes, workers, step_timeout, plays, options, trust, budgets,
                last, c,
            )  # fmt: skip
            with closing(trainer), ExitStack() as stack:
                s = trainer.settings
                beside = None
                if agent is None and _has_baseline(baseline, trainer):
                    uct = with_measured_scale(s, params)
                    beside = stack.enter_context(untrained_uct(uct, lanes, workers, step_timeout))
                conditions = Conditions(agent or s.agent, s.env, s.c, level, s.env_options, which)
                return _test_run(
                    trainer, params, budgets, episodes, level, beside, baseline == "uct", progress,
                    EvaluationFile(target, append), conditions,
                )  # fmt: skip
        else:
            assert agent is not None
            settings = TrainSettings(env=str(run), agent=agent, seeds=seeds, env_options=options)
            settings = replace(settings, c=settings.c if c is None else c)
            env = make(settings.env, seed, **options)
            if runs_on_host(env, settings.env):
                results = _play_simulator(env, settings, budgets, episodes)
            elif agent in _PLAYERS_ONLY:
                twin = make_simulator(settings.env, seed, **options)
                results = _play_simulator(twin, settings, budgets, episodes)
            else:
                trainer, params = _pure_search(settings, env)
                results = evaluate_parameters(trainer, params, budgets, episodes)
    file = EvaluationFile(target, append)
    conditions = Conditions(agent, str(run), settings.c, level, options)
    for result in results:
        file.add(result.budget, result.returns, result.steps, seeds, conditions)
    return results


def _has_baseline(baseline: str, trainer: Trainer) -> bool:
    """Test whether UCT is played beside a run."""
    if trainer.agent.recurrent:
        # Rollouts to the end of a game of Atari take longer than the game.
        require(baseline != "uct", "--baseline", "'uct'", "'none' for an agent that learns frames")
        return False
    return baseline != "none"


def _test_run(
    trainer: Trainer, params: Any, budgets: Sequence[int], episodes: int, level: int | None,
    beside: Uct | None, wait: bool, progress: bool, file: EvaluationFile, conditions: Conditions,
) -> list[TestEpisodes]:  # fmt: skip
    """Test a run budget by budget, with UCT beside it; write each result at once.

    wait: play UCT to the end, however long it takes.
    """
    s, results, many = trainer.settings, [], len(trainer.settings.seeds)
    uct = conditions._replace(agent="uct", parameters="")
    others = EvaluationFile(file.path.with_stem(f"{file.path.stem}-baseline"), append=True)
    for budget in budgets:
        began = time.monotonic()
        with Progress(
            f"{conditions.agent}, budget {budget}", episodes, "episodes", progress
        ) as bar:
            trainer.watch_tests(lambda done, bar=bar: bar.update(done / len(s.seeds)))
            (result,) = evaluate_parameters(trainer, params, (budget,), episodes, level)
        file.add(budget, result.returns, result.steps, s.seeds, conditions)
        if beside is not None and budget > 0:
            seconds = math.inf if wait else max(PATIENCE, 3 * (time.monotonic() - began))
            try:
                with Progress(f"uct, budget {budget}", episodes, "episodes", progress) as bar:
                    report = patient(lambda done, bar=bar: bar.update(done / many), seconds)
                    returns, steps = beside(episodes, budget, level, report)
                others.add(budget, returns, steps, s.seeds, uct)
                result = result._replace(baseline=returns)
            except TooSlow as slow:
                warn(f"UCT without learning takes long ({slow}); --baseline uct waits for it.")
                beside = None
        results.append(result)
    return results


def evaluate_levels(
    run: str | Path,
    levels: Sequence[int],
    budgets: Sequence[int],
    episodes: int,
    *,
    device: str = "auto",
    workers: int = -1,
) -> None:
    """Test a run at every budget on each of these levels, as `evaluate` does on one.

    Writes `evaluation-level-LEVEL.csv` into its folder.
    """
    chosen, lanes = select_device(device), min(episodes, _HOST_LANES)
    with jax.default_device(chosen):
        trainer, params, which = _load_run(Path(run), chosen, lanes, workers, budgets=budgets)
        s = trainer.settings
        with closing(trainer):
            for level in levels:
                file = EvaluationFile(Path(run) / level_table(level), append=False)
                conditions = Conditions(s.agent, s.env, s.c, level, s.env_options, which)
                for result in evaluate_parameters(trainer, params, budgets, episodes, level):
                    file.add(result.budget, result.returns, result.steps, s.seeds, conditions)


def level_table(level: int) -> str:
    """Return the name of the file with the tests on one level."""
    return f"evaluation-level-{level}.csv"


def trained_player(
    run: str | Path, sim: Simulator, budget: int, *, device: str = "auto", trust: bool = False
) -> Player:
    """Return the first seed of a run as a player of a Python simulator; it acts as in tests.

    A recurrent agent must see every state of an episode, from the first on. trust: see `evaluate`.
    """
    require(budget >= 0, "--budget", budget, "0 or more")
    settings = settings_of_run(Path(run), "DIR", trust)
    if not get_agent(settings.agent).recurrent:
        return load(run, device=device, trust=trust, simulator=sim).player(budget)
    require(budget >= 1, "--budget", budget, f"at least 1 for '{settings.agent}'")
    chosen = select_device(device)
    with jax.default_device(chosen):
        trainer, params, _ = _load_run(Path(run), chosen, 1, 0, trust=trust)
        trainer.close()
        assert isinstance(trainer, R2D2Trainer)
        player = trainer.player(params, sim, budget)

    def move(state: State, rng: np.random.Generator) -> Move:
        with jax.default_device(chosen):
            return player(state, rng)

    return move
