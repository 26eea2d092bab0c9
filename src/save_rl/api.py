"""The Python door to training, with the names and defaults of the command line."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from save_rl.errors import InputError
from save_rl.training.settings import TrainSettings

if TYPE_CHECKING:
    from save_rl.training.loop import TrainResult


def default_out(settings: TrainSettings) -> Path:
    """Where a run goes when nobody says: `runs/ENV-AGENT-SEED`."""
    env = settings.env.replace(":", ".").replace("/", "-")
    return Path("runs") / f"{env}-{settings.agent}-{settings.seeds[0]}"


def env_name(env: str | Callable[..., Any]) -> str:
    """The name under which a run, and its worker processes, find an environment again.

    A factory, a function or class at the top level of a file, becomes `package.module:factory`.
    """
    if isinstance(env, str):
        return env
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "")
    if module == "__main__":
        script = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(script).stem if script else None
    if module is None or not name.isidentifier():
        raise InputError(
            f"ENV: {name or env!r} can't be found again by a worker or a resumed run; give a "
            "function or class at the top level of a file, or its name package.module:factory."
        )
    return f"{module}:{name}"


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
    progress: bool = True,
    **settings: Any,
) -> "TrainResult":
    """Train an agent and leave a run directory; see `TrainSettings` for everything else to set.

    env: a name of `save-rl envs`, `gym/ID`, `package.module:factory`, or such a factory itself.
    Several seeds, `seed=(0, 1, 2)`, train side by side in one compiled program.
    """
    from save_rl.training.loop import train as run

    seeds = (seed,) if isinstance(seed, int) else tuple(seed)
    full = TrainSettings(env=env_name(env), agent=agent, seeds=seeds, **settings)
    full.check()
    return run(
        full,
        Path(out) if out is not None else default_out(full),
        resume=resume,
        device=device,
        workers=workers,
        step_timeout=step_timeout,
        checkpoint_seconds=checkpoint_seconds,
        progress=progress,
    )
