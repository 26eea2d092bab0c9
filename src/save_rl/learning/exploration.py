"""Exploration schedules: the probability of a random action.

Most random actions are fatal in the paper's tasks, so a constant ε would explore only the beginning
of episodes. Following Bapst et al. (2019), the probability grows within an episode while its mean
over a typical episode stays ε.
"""

from typing import Any

import numpy as np

from save_rl.types import Array

_LONGEST = 1024  # longer episodes are treated as if they had this length
_HARMONIC = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, _LONGEST + 1))]).astype(np.float32)


def epsilon_at_step(epsilon: Any, step: Array, typical_length: Any) -> Array:
    """Return the probability of a random action at 0-based `step` of an episode.

    `p_n = min(1, x / max(L - n, 1))`, with the `x` that makes the mean over n = 0 … L-1 equal to
    `epsilon`. For x between the integers j and j+1 that mean is `(j + x (H_L - H_j)) / L`, H the
    harmonic numbers; counting the j whose mean is at most `epsilon` gives x exactly.
    """
    length = (typical_length + 0.5).astype(np.int32).clip(1, _LONGEST)
    j = np.arange(_LONGEST + 1)
    rest = (_HARMONIC * (j == length)).sum() - _HARMONIC
    reached = (j * (1 + rest) <= epsilon * length) & (j < length)
    below = reached.sum() - 1
    x = (epsilon * length - below) / (rest * (j == below)).sum()
    return (x / (length - step).clip(1)).clip(0.0, 1.0)


def typical_length(estimate: Any, finished: Any, mean_length: Any, rate: float = 0.01) -> Any:
    """Update the running estimate of episode length with `finished` episodes of this mean."""
    return estimate + (1 - (1 - rate) ** finished) * (mean_length - estimate)


def epsilon_ladder(lanes: int) -> np.ndarray:
    """Return R2D2's fixed ε of each lane, `ε_i = 0.4^(1 + 7 i / (N - 1))`, `[N]`.

    Runs from 0.4 to 0.4⁸; a single lane gets 0.4 (Ape-X, as used by Kapturowski et al. 2019).
    """
    return 0.4 ** np.linspace(1, 8, lanes)
