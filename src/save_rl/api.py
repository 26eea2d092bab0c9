"""Training from Python, with the names and defaults of the command line."""

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from save_rl.errors import InputError, require, require_numbers, unknown_name
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.settings import TrainSettings, check_kinds, named_options

if TYPE_CHECKING:
    from save_rl.training.run.loop import TrainResult


def default_out(settings: TrainSettings) -> Path:
    """Return the default folder of a run: `runs/ENV-AGENT-SEED`."""
    env = settings.env.replace(":", ".").replace("/", "-")
    return Path("runs") / f"{env}-{settings.agent}-{settings.seeds[0]}"


def env_name(env: str | Callable[..., Any]) -> str:
    """Return the name by which workers and resumed runs find an environment.

    A factory (a function or class at the top level of a file) becomes `package.module:factory`.
    """
    if isinstance(env, str):
        return env
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "")
    if module == "__main__":
        script = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(script).stem if script else None
    if module is None or not name.isidentifier():
        raise InputError(
            f"ENV: {name or env!r} can't be found by a worker or a resumed run; give a "
            "function or class at the top level of a file, or its name package.module:factory."
        )
    return f"{module}:{name}"


def run_training(
    settings: TrainSettings,
    out: Path,
    cluster: str | None,
    cluster_settings: ClusterSettings,
    **options: Any,
) -> "TrainResult":
    """Train in this process, or on the cluster at this address."""
    check_kinds(cluster_settings, "--cluster.")
    require_numbers(named_options(cluster_settings, "--cluster."))
    require_numbers((f"--{name.replace('_', '-')}", value) for name, value in options.items())
    seconds = options.get("checkpoint_seconds", 0.0)
    require(seconds >= 0, "--checkpoint-seconds", seconds, "0 (after every chunk) or more")
    if cluster is not None:
        from save_rl.training.cluster.run import train_on_cluster

        return train_on_cluster(settings, out, cluster_settings, cluster, **options)
    usual = dict(named_options(ClusterSettings(), "--cluster."))
    for option, value in named_options(cluster_settings, "--cluster."):
        require(value == usual[option], option, value, "left out without --cluster")
    from save_rl.training.run.loop import train as train_here

    return train_here(settings, out, **options)


def train(
    env: str | Callable[..., Any] = "tightrope",
    *,
    agent: str = "save",
    out: str | Path | None = None,
    seed: int | tuple[int, ...] = 0,
    resume: bool = False,
    device: str = "auto",
    workers: int = -1,
    step_timeout: float = 0.0,
    checkpoint_seconds: float = 60.0,
    light_checkpoints: bool = False,
    progress: bool = True,
    cluster: str | None = None,
    cluster_settings: ClusterSettings | None = None,
    **settings: Any,
) -> "TrainResult":
    """Train an agent and write a run directory; see `TrainSettings` for all other settings.

    env: a name of `save-rl envs`, `gym/ID`, `package.module:factory`, or such a factory itself.
    Several seeds, `seed=(0, 1, 2)`, train in parallel in one compiled program.
    cluster: the address of a Ray cluster to train on, or `"auto"`; see `cluster_settings`. This
    process then uses JAX on the CPU only, and leaves GPUs to the learner. light_checkpoints: leave
    the replay out of checkpoints; a run that is resumed from one fills it anew.
    """
    seeds = tuple(seed) if isinstance(seed, tuple | list | range) else (seed,)
    known = [one.name for one in fields(TrainSettings)]
    for name in settings:
        if name not in known:
            raise unknown_name("setting", name, known, "train")
    if isinstance(said := settings.get("stochastic"), bool):
        settings["stochastic"] = str(said).lower()
    full = TrainSettings(env=env_name(env), agent=agent, seeds=seeds, **settings)
    full.check()
    return run_training(
        full,
        Path(out) if out is not None else default_out(full),
        cluster,
        cluster_settings or ClusterSettings(),
        resume=resume,
        device=device,
        workers=workers,
        step_timeout=step_timeout,
        checkpoint_seconds=checkpoint_seconds,
        light_checkpoints=light_checkpoints,
        progress=progress,
    )
