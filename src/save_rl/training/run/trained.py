"""Read a trained run: its settings and its parameters."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import get_agent
from save_rl.envs import require_trust
from save_rl.errors import InputError
from save_rl.training.run import checkpoint
from save_rl.training.run.progress import warn
from save_rl.training.run.run_directory import BEST, read_config, read_settings
from save_rl.training.settings import TrainSettings


def checked_settings(folder: Path, option: str) -> TrainSettings:
    """Return the settings of the run in a folder; refuse invalid ones."""
    settings = read_settings(folder, option)
    try:
        settings.check()
    except InputError as error:
        raise InputError(f"{option}: '{folder / 'config.json'}' is invalid: {error}") from error
    return settings


def settings_of_run(folder: Path, option: str, trust: bool) -> TrainSettings:
    """Return the settings of the run in a folder; refuse invalid ones.

    Refuses also to run an environment's code without permission; see `trust` of `evaluate`.
    """
    settings = checked_settings(folder, option)
    require_trusted_code(settings, folder, trust, option)
    return settings


def require_trusted_code(
    settings: TrainSettings, folder: Path, trust: bool, option: str, *, env: bool = True
) -> None:
    """Refuse to import what the settings in a folder or file name, unless the user trusts it.

    env: the environment will be made by its name, too.
    """
    for name in (settings.network, *([settings.env] if env else [])):
        require_trust(name, folder, trust, option)


def read_params(
    folder: Path, template: Any, option: str, last: bool = False,
    warn: Callable[[str], None] = warn,
) -> tuple[Any, str]:  # fmt: skip
    """Return the parameters of all seeds of a run, `[seeds, ...]`, and which they are: the 'best'
    if they were kept, else the 'last'.

    template: their shapes and dtypes. last: the last ones, even if the best were kept.
    """
    settings, run_id = read_config(folder, option)
    if not last:
        best = checkpoint.load_newest(folder / BEST, template, warn, option, run_id=run_id)
        if best is not None:
            return best.state, "best"
    inside = ".state" if get_agent(settings.agent).recurrent else ""
    found = checkpoint.load_newest(
        folder / "checkpoints", template, warn, option, run_id=run_id,
        part=f"{inside}.learner.params",
    )  # fmt: skip
    if found is None:
        raise InputError(f"{option}: '{folder}' has no checkpoint yet.")
    return found.state, "last"


def params_to_start_from(
    folder: Path, template: Any, seeds: Sequence[int]
) -> tuple[Any, dict[str, str]]:
    """Return parameters `[seeds, ...]` of another run for the seeds of a new one, and its folder
    and id.

    template: of the new run's. Each seed starts from the same seed of that run, or all from its
    only one.
    """
    settings, run_id = read_config(folder, "--from")
    theirs = settings.seeds
    if len(theirs) > 1 and not set(seeds) <= set(theirs):
        raise InputError(
            f"--from: '{folder}' has seeds {', '.join(map(str, theirs))}; --seed must be among "
            "them, so that each seed starts from its own."
        )
    many = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((len(theirs), *x.shape[1:]), x.dtype), template
    )
    problems: list[str] = []
    try:
        found, _ = read_params(folder, many, "--from", warn=problems.append)
    except InputError as error:
        if not problems:
            raise
        why = problems[0].partition("(")[2].rpartition(")")[0]
        raise InputError(
            f"--from: the parameters of '{folder}' do not fit this run, whose network must have "
            f"the same shapes ({why})."
        ) from error
    which = [theirs.index(seed) if len(theirs) > 1 else 0 for seed in seeds]
    params = jax.tree.map(lambda x: np.asarray(x)[which], found)
    return params, {"folder": str(folder), "run_id": run_id}


def with_params(state: Any, params: Any) -> Any:
    """Return the first state of a run with these parameters `[seeds, ...]` instead of its own."""
    # Copies, because a compiled chunk takes over the memory of all its arguments.
    copies = {name: jax.tree.map(jnp.array, params) for name in ("params", "target")}
    state = state._replace(learner=state.learner._replace(**copies))
    # R2D2's actors have parameters of their own.
    return state._replace(acting=copies["params"]) if hasattr(state, "acting") else state
