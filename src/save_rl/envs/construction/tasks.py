"""The five tasks as a table of settings, and the level probabilities of a curriculum."""

from typing import NamedTuple

import numpy as np

from save_rl.envs.construction.scene import BLOCKS, MARBLE_BLOCKS, Supply
from save_rl.errors import InputError, require, unknown_name

PRESETS = ("paper", "released")


class Task(NamedTuple):
    """The settings in which tasks differ.

    supply: the available blocks.
    max_difficulty: the hardest numbered level, by preset.
    sticky_penalty: cost of a sticky block.
    threshold: the episode is complete above this share of the best possible score.
    replaced: blocks can be used any number of times.
    curriculum_p: 0 draws levels uniformly; p > 0 prefers hard ones (`level_probabilities`).
    generalization: names of levels outside the curriculum.
    """

    supply: Supply
    max_difficulty: dict[str, int]
    sticky_penalty: float
    threshold: float
    replaced: bool = True
    curriculum_p: float = 0.0
    generalization: tuple[str, ...] = ()


TASKS = {
    "silhouette": Task(
        BLOCKS, {"paper": 7, "released": 7}, 0.5, 0.98,
        generalization=("double_the_targets",),
    ),
    "connecting": Task(
        BLOCKS, {"paper": 9, "released": 9}, 0.0, 0.98,
        generalization=("mixed_height_targets", "additional_layer"),
    ),
    "covering": Task(BLOCKS, {"paper": 2, "released": 2}, 2.0, 0.99),
    "covering-hard": Task(
        BLOCKS, {"paper": 1, "released": 1}, 0.5, 0.99, replaced=False
    ),
    "marble-run": Task(
        MARBLE_BLOCKS, {"paper": 6, "released": 8}, 0.0, 0.98, curriculum_p=0.5
    ),
}  # fmt: skip


def check_difficulty(
    task: str, preset: str, difficulty: int | str, curriculum_sample: bool
) -> int | str:
    """Raise an error for an unknown task, preset or level; return the level as plain int or str."""
    if task not in TASKS:
        raise unknown_name("task", task, TASKS, "TASK")
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS, "preset")
    entry = TASKS[task]
    hardest = entry.max_difficulty[preset]
    names = "".join(f", or '{name}'" for name in entry.generalization)
    number = isinstance(difficulty, int | np.integer) and not isinstance(difficulty, bool)
    require(
        isinstance(curriculum_sample, bool), "curriculum_sample", repr(curriculum_sample),
        "true or false",
    )  # fmt: skip
    if number and 0 <= int(difficulty) <= hardest:
        return int(difficulty)
    if difficulty not in entry.generalization:
        raise InputError(
            f"difficulty: {difficulty!r} is not a level of {task} ({preset}); "
            f"it must be a whole number from 0 to {hardest}{names}."
        )
    if curriculum_sample:
        raise InputError(
            f"difficulty: '{difficulty}' is outside the curriculum; use curriculum_sample=False."
        )
    return str(difficulty)


def level_probabilities(difficulty: int, p: float) -> np.ndarray:
    """Return the probabilities of levels k = 0 … `difficulty`: uniform for p = 0, else
    ∝ p·(1-p)^(difficulty-k)."""
    if p == 0:
        return np.full(difficulty + 1, 1 / (difficulty + 1))
    weights = p * (1 - p) ** (difficulty - np.arange(difficulty + 1))
    return weights / weights.sum()
