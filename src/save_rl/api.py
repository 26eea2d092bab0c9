"""Training from Python, with the names and defaults of the command line."""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from save_rl.agents import get_agent
from save_rl.envs import HERE, give_factory, require_trust_in
from save_rl.errors import InputError, require, require_numbers, unknown_name
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.options import check_kinds, named_options
from save_rl.training.settings import TrainSettings

if TYPE_CHECKING:
    from save_rl.training.run.result import TrainResult


def default_out(settings: TrainSettings) -> Path:
    """Return the default folder of a run: `runs/ENV-AGENT-SEED`."""
    env = settings.env.replace(":", ".").replace("/", "-")
    seed = next(iter(settings.seeds), 0)  # a run without seeds is refused later
    return Path("runs") / f"{env}-{settings.agent}-{seed}"


def env_name(env: Any, option: str = "ENV") -> str:
    """Return the name by which workers and resumed runs find an environment, or another factory.

    A factory at the top level of a file becomes `package.module:factory`. One of a notebook, a
    prompt or a function becomes `__main__:factory`, which only this process can make.
    """
    if isinstance(env, str):
        return env
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "")
    inside, _, own = name.rpartition("<locals>.")
    if not callable(env) or not own.isidentifier():
        raise InputError(
            f"{option}: {name or env!r} has no name by which a run could find it again; give a "
            "function or class with a name of its own, or package.module:factory."
        )
    if module == HERE:
        script = getattr(sys.modules[HERE], "__file__", None)
        module = Path(script).stem if script else HERE
    elif getattr(sys.modules.get(module or ""), own, None) is not env:
        module = HERE  # code that is run without being imported
    if inside or module == HERE:
        module = HERE
        give_factory(f"{HERE}:{own}", env)
    return f"{module}:{own}"


def _workers_for(env: str, given: Any, workers: int) -> int:
    """Return the number of workers: 0 for a factory that other processes can't find."""
    if env.startswith(f"{HERE}:"):
        require(workers <= 0, "workers", workers, f"0 for '{env}': workers import their simulators "
                "from files, and can't import what a notebook or a function defines")  # fmt: skip
        return 0
    if workers == 0 and not isinstance(given, str):
        give_factory(env, given)  # so that a script is not imported a second time
    return workers


def settings_of(folder: str | Path, trust: bool) -> tuple[TrainSettings, Path]:
    """Return the settings of the run in a folder, to resume it, and the folder.

    Refuses to run code that the folder names without permission.
    """
    from save_rl.training.run.run_directory import settings_to_resume

    folder = Path(folder)
    settings = settings_to_resume(folder)
    require_trust_in(settings, folder, trust, "--resume")
    return settings, folder


def run_training(
    settings: TrainSettings,
    out: Path,
    cluster: str | None,
    cluster_settings: ClusterSettings,
    *,
    given: Collection[str] = (),
    check: bool = True,
    log: Sequence[str] = ("tensorboard",),
    callbacks: Sequence[Any] = (),
    from_run: Path | None = None,
    **options: Any,
) -> "TrainResult":
    """Train in this process, or on the cluster at this address.

    given: names of the settings that the user gave; others are chosen where `automatic.applies`.
    check: look for faults of the environment first, if it is the user's own. log, callbacks,
    from_run: see `train`.
    """
    check_kinds(cluster_settings, "--cluster.")
    require_numbers(named_options(cluster_settings, "--cluster."))
    require_numbers((f"--{name.replace('_', '-')}", value) for name, value in options.items())
    seconds = options.get("checkpoint_seconds", 0.0)
    require(seconds >= 0, "--checkpoint-seconds", seconds, "0 (after every chunk) or more")
    if from_run is not None:
        if options.get("resume"):
            raise InputError("--from: a run that is resumed has its own parameters; leave one out.")
        settings = _with_scale_of(from_run, settings, given)
        given = {*given, "reward_scale"}
    if cluster is not None:
        require(from_run is None, "--from", f"'{from_run}'", "left out with --cluster")
        require(tuple(log) == ("tensorboard",), "--log", " ".join(log), "left out with --cluster")
        require(not callbacks, "callbacks", f"{len(callbacks)} of them", "left out with a cluster")
        from save_rl.training.cluster.run import check_request

        places = ("device", "workers", "step_timeout")
        check_request(settings, cluster_settings, cluster, *(options[name] for name in places))
        # The lanes of a cluster are for its actors.
        given = {*given, "lanes", "batch", "replay_ratio"}
    else:
        usual = dict(named_options(ClusterSettings(), "--cluster."))
        for option, value in named_options(cluster_settings, "--cluster."):
            require(value == usual[option], option, value, "left out without --cluster")
    settings, chosen = _prepared(settings, out, given, check, options)
    options["chosen"] = chosen
    result = _train(settings, out, cluster, cluster_settings, log, callbacks, from_run, **options)
    if options.get("progress", True):
        from save_rl.training.advice import advise
        from save_rl.training.learner import with_measured_scale

        if result.trainer is not None:  # else a cluster has it
            params = result.trainer.params(result.state)
            settings = with_measured_scale(settings, params)
        advise(settings, result.metrics)
    return result


def _with_scale_of(
    from_run: Path, settings: TrainSettings, given: Collection[str]
) -> TrainSettings:
    """Return settings with the reward scale of the run to start from, in whose units its values
    are, unless another one is given. A measured one is a parameter, so both have it or neither."""
    from save_rl.training.run.run_directory import read_settings

    scale = read_settings(from_run, "--from").reward_scale
    if "reward_scale" not in given:
        return replace(settings, reward_scale=scale)
    allowed = f"{'0' if scale == 0 else 'above 0'} as in '{from_run}', or left out"
    fits = (scale == 0) == (settings.reward_scale == 0)
    require(fits, "--reward-scale", settings.reward_scale, allowed)
    return settings


def _prepared(
    settings: TrainSettings, out: Path, given: Collection[str], check: bool, options: dict[str, Any]
) -> tuple[TrainSettings, list[str]]:
    """Return the settings with all that is chosen, and lines about the choice; refuse what is
    impossible or wrong."""
    get_agent(settings.agent)  # an unknown one is refused first
    from save_rl.training import automatic
    from save_rl.training.run.progress import warn
    from save_rl.training.run.run_directory import RunDirectory

    if not automatic.applies(settings):
        settings.check()
        return settings, []
    if options.get("resume"):
        return automatic.as_before(settings, given, out), []
    RunDirectory.check_new(out)
    apart = options.get("workers", -1) != 0
    return automatic.first_look(settings, given, check=check, apart=apart, warn=warn)


def _train(
    settings: TrainSettings, out: Path, cluster: str | None, cluster_settings: ClusterSettings,
    log: Sequence[str], callbacks: Sequence[Any], from_run: Path | None, **options: Any,
) -> "TrainResult":  # fmt: skip
    if cluster is not None:
        from save_rl.training.cluster.run import train_on_cluster

        return train_on_cluster(settings, out, cluster_settings, cluster, **options)
    from save_rl.training.run.loggers import make_loggers
    from save_rl.training.run.loop import train as train_here

    told = [*make_loggers(log), *callbacks]
    return train_here(settings, out, from_run=from_run, callbacks=told, **options)


def train(
    env: str | Callable[..., Any] = "tightrope",
    *,
    agent: str = "save",
    out: str | Path | None = None,
    seed: int | tuple[int, ...] = 0,
    resume: bool | str | Path = False,
    from_run: str | Path | None = None,
    log: Sequence[str] = ("tensorboard",),
    callbacks: Sequence[Any] = (),
    trust: bool = False,
    device: str = "auto",
    workers: int = -1,
    step_timeout: float = 0.0,
    checkpoint_seconds: float = 60.0,
    light_checkpoints: bool = False,
    progress: bool = True,
    check: bool = True,
    cluster: str | None = None,
    cluster_settings: ClusterSettings | None = None,
    **settings: Any,
) -> "TrainResult":
    """Train an agent and write a run directory; see `TrainSettings` for all other settings.

    env: a name of `save-rl envs`, `gym/ID`, `package.module:factory`, or such a factory itself.
    `network` and `optimizer` of your own are given in the same two ways. An environment that is
    defined in a notebook or a function is simulated in this process. Several seeds,
    `seed=(0, 1, 2)`, train in parallel in one compiled program.
    cluster: the address of a Ray cluster to train on, or `"auto"`; see `cluster_settings`. This
    process then uses JAX on the CPU only, and leaves GPUs to the learner. light_checkpoints: leave
    the replay out of checkpoints; a run that is resumed from one fills it anew. check: look for
    faults of an environment of your own first.
    resume: true continues the run in `out`, with the settings repeated; the folder of a run
    continues that one, with its own settings (and a higher `episodes` or `steps`, if given).
    trust: lets it import and run the `package.module:factory` that its folder names.
    from_run: start with the parameters of another run; shapes must fit. log: `tensorboard`,
    `jsonl` and `wandb`. callbacks: objects with some of the methods of `save_rl.Callback`.
    """
    seeds = tuple(seed) if isinstance(seed, tuple | list | range) else (seed,)
    known = [one.name for one in fields(TrainSettings)]
    for name in settings:
        if name not in known:
            raise unknown_name("setting", name, known, "train")
    if isinstance(said := settings.get("stochastic"), bool):
        settings["stochastic"] = str(said).lower()
    for key in ("network", "optimizer"):
        if callable(settings.get(key)):
            settings[key] = env_name(settings[key], f"--{key}")
    name = env_name(env)
    workers = _workers_for(name, env, workers)
    if not isinstance(resume, bool):
        before, folder = settings_of(resume, trust)
        given = {"env": name, "agent": agent, "seeds": seeds}
        usual = TrainSettings()
        given = {key: x for key, x in given.items() if x != getattr(usual, key)}
        full, out = replace(before, **given, **settings), folder if out is None else Path(out)
        require(out == folder, "out", f"'{out}'", f"left out, or '{folder}', which is resumed")
    else:
        full = TrainSettings(env=name, agent=agent, seeds=seeds, **settings)
    return run_training(
        full,
        Path(out) if out is not None else default_out(full),
        cluster,
        cluster_settings or ClusterSettings(),
        given=settings.keys(),
        check=check,
        log=log,
        callbacks=callbacks,
        from_run=None if from_run is None else Path(from_run),
        resume=resume is not False,
        device=device,
        workers=workers,
        step_timeout=step_timeout,
        checkpoint_seconds=checkpoint_seconds,
        light_checkpoints=light_checkpoints,
        progress=progress,
    )
