"""What a finished or interrupted run has learned: its settings and its parameters."""

from pathlib import Path
from typing import Any

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
    require_trust(settings.env, folder, trust, option)
    return settings


def read_params(folder: Path, template: Any, option: str, last: bool = False) -> Any:
    """Return the parameters of all seeds of a run, `[seeds, ...]`: the best if they were kept.

    template: their shapes and dtypes. last: the last ones, even if the best were kept.
    """
    settings, run_id = read_config(folder, option)
    if not last:
        best = checkpoint.load_newest(folder / BEST, template, warn, option, run_id=run_id)
        if best is not None:
            return best.state
    inside = ".state" if get_agent(settings.agent).recurrent else ""
    found = checkpoint.load_newest(
        folder / "checkpoints", template, warn, option, run_id=run_id,
        part=f"{inside}.learner.params",
    )  # fmt: skip
    if found is None:
        raise InputError(f"{option}: '{folder}' has no checkpoint yet.")
    return found.state
