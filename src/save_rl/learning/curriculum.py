"""Curricula: the highest level of the next episodes (docs/construction/training.md#curricula).

`linear` raises the level with the steps of a run. `adaptive` raises it as the agent improves:
episodes are sorted into *bins* of scenes with the same properties, and the level rises once the
agent solves half of the last 50 episodes in every bin at the same time. Rare bins do not count.
"""

from typing import NamedTuple

import numpy as np

CURRICULA = ("none", "linear", "adaptive")
WINDOW = 50  # newest episodes of a bin that count
SOLVED = 0.5  # share of them to solve
WARM_UP = 300  # episodes at a level before rare bins are ignored
RARE = 0.25  # a bin is rare below this share of the uniform rate
MOST_BINS = 512  # per level; the paper's levels have fewer than 100


class Bins(NamedTuple):
    """Results at the current level, by bin. Checkpoints store these arrays."""

    level: np.ndarray  # []
    code: np.ndarray  # [512] the properties shared by a bin's scenes; 0 for an unused bin
    episodes: np.ndarray  # [512] at this level
    solved: np.ndarray  # [512, 50] bool, of the newest episodes


def no_bins(level: int = 0) -> Bins:
    """Return empty bins, for the start of a level."""
    return Bins(
        np.array(level, np.int32),
        np.zeros(MOST_BINS, np.int64),
        np.zeros(MOST_BINS, np.int64),
        np.zeros((MOST_BINS, WINDOW), np.bool_),
    )


def linear_level(steps: int, total: int, hardest: int) -> int:
    """Return the level after `steps` steps: 0 at first, `hardest` after `total` steps."""
    return min(hardest, hardest * int(steps) // total)


def record(bins: Bins, codes: np.ndarray, solved: np.ndarray, hardest: int) -> Bins:
    """Count episodes `[n]` that have just ended; raise the level if all bins are solved."""
    bins = Bins(*(np.array(x) for x in bins))
    for code, success in zip(codes.tolist(), solved.tolist(), strict=True):
        known = bins.episodes > 0
        found = np.flatnonzero(known & (bins.code == code))
        at = int(found[0]) if len(found) else int(np.count_nonzero(known))
        if at == MOST_BINS:
            raise ValueError(f"a curriculum supports at most {MOST_BINS} kinds of scenes per level")
        bins.code[at] = code
        bins.solved[at, bins.episodes[at] % WINDOW] = success
        bins.episodes[at] += 1
    if int(bins.level) < hardest and masters(bins):
        return no_bins(int(bins.level) + 1)
    return bins


def masters(bins: Bins) -> bool:
    """Test whether every bin that counts is solved often enough for the next level."""
    known = bins.episodes > 0
    total = int(bins.episodes.sum())
    if total == 0:
        return False
    counts = known.copy()
    if total >= WARM_UP:
        counts &= bins.episodes >= RARE * total / np.count_nonzero(known)
    enough = bins.episodes >= WINDOW
    share = bins.solved.mean(1)
    return bool(np.all((enough & (share >= SOLVED))[counts]))
