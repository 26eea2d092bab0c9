"""When and how an agent leaves its best action.

Most random actions are fatal in the paper's tasks, so a constant ε would explore the beginning of
episodes alone. Following Bapst et al. (2019), the probability grows inside an episode while its
mean over a typical episode stays ε.
"""

from typing import Any

import numpy as np

from save_rl.types import Array

_LONGEST = 1024  # episodes longer than this are explored as if they had this length
_HARMONIC = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, _LONGEST + 1))]).astype(np.float32)


def epsilon_at_step(epsilon: Any, step: Array, typical_length: Any) -> Array:
    """Probability of a random action at 0-based `step` of an episode.

    `p_n = min(1, x / max(L - n, 1))` with the `x` for which the mean over n = 0 … L-1 is `epsilon`.
    For x between the integers j and j+1 that mean is `(j + x (H_L - H_j)) / L`, H the harmonic
    numbers, so x is found exactly by counting the j whose mean is not above `epsilon`.
    """
    length = (typical_length + 0.5).astype(np.int32).clip(1, _LONGEST)
    j = np.arange(_LONGEST + 1)
    rest = (_HARMONIC * (j == length)).sum() - _HARMONIC
    reached = (j * (1 + rest) <= epsilon * length) & (j < length)
    below = reached.sum() - 1
    x = (epsilon * length - below) / (rest * (j == below)).sum()
    return (x / (length - step).clip(1)).clip(0.0, 1.0)


def typical_length(estimate: Any, finished: Any, mean_length: Any, rate: float = 0.01) -> Any:
    """Move the running estimate of episode length by `finished` episodes of this mean length."""
    return estimate + (1 - (1 - rate) ** finished) * (mean_length - estimate)


def epsilon_ladder(lanes: int) -> np.ndarray:
    """The ε that each lane of R2D2 keeps (atari_r2d2.md, 1): `ε_i = 0.4^(1 + 7 i / (N - 1))`,
    `[N]`, from 0.4 to 0.4⁸, and 0.4 for a single lane.
    """
    return 0.4 ** np.linspace(1, 8, lanes)
