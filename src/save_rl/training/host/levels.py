"""Levels of simulators, and the curriculum of a run over them."""

from typing import Any

from save_rl.envs import ENVIRONMENTS
from save_rl.errors import require
from save_rl.training.settings import TrainSettings
from save_rl.types import Simulator


def hardest_level(simulator: Any) -> int:
    """Return the last level of a curriculum."""
    return int(simulator.difficulty)


def has_levels(simulator: Any) -> bool:
    """Test whether a curriculum can set the level of a simulator."""
    number = isinstance(getattr(simulator, "difficulty", None), int)
    return number and bool(getattr(simulator, "curriculum_sample", False))


def curriculum_of(settings: TrainSettings, simulator: Simulator) -> str:
    """Return the kind of curriculum of this run."""
    name = settings.curriculum
    if name == "auto":
        entry = ENVIRONMENTS.get(settings.env)
        return entry.curriculum if entry and has_levels(simulator) else "none"
    require(
        name == "none" or has_levels(simulator), "--curriculum", repr(name),
        "'none' in an environment without levels to sample from",
    )  # fmt: skip
    require(
        name == "none" or hasattr(simulator, "kind"), "--curriculum", repr(name),
        "'none' in a simulator without kind(state)",
    )  # fmt: skip
    require(
        name != "adaptive" or hasattr(simulator, "solved"), "--curriculum", repr(name),
        "'none' or 'linear' in a simulator without solved(state)",
    )  # fmt: skip
    return name
