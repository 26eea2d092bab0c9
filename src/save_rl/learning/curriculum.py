"""Which level the next episodes are drawn up to (construction.md, 7.6 and 13.5).

`linear` rises with the steps of a run. `adaptive` rises when the agent solves what it is given: its
episodes are sorted into *bins* of scenes that have the same properties, and the level rises once
half of the last 50 episodes of every bin are solved, all at the same time. Bins that come up rarely
do not count.
"""

from typing import NamedTuple

import numpy as np

CURRICULA = ("none", "linear", "adaptive")
WINDOW = 50  # episodes of a bin that are looked at
SOLVED = 0.5  # share of them
WARM_UP = 300  # episodes of a level before rare bins are told from others
RARE = 0.25  # of the rate at which bins would come up if all were equally likely
MOST_BINS = 512  # that can be told apart at a level; paper levels have fewer than 100


class Bins(NamedTuple):
    """Results at the present level, by bin. A checkpoint holds these arrays."""

    level: np.ndarray  # []
    code: np.ndarray  # [512] what is alike in the scenes of a bin; 0 where there is no bin
    episodes: np.ndarray  # [512] at this level
    solved: np.ndarray  # [512, 50] bool, of the newest episodes


def no_bins(level: int = 0) -> Bins:
    """The beginning of a level."""
    return Bins(
        np.array(level, np.int32),
        np.zeros(MOST_BINS, np.int64),
        np.zeros(MOST_BINS, np.int64),
        np.zeros((MOST_BINS, WINDOW), np.bool_),
    )


def linear_level(steps: int, total: int, hardest: int) -> int:
    """The level after so many steps: 0 at first, the hardest one after `total` steps."""
    return min(hardest, hardest * int(steps) // total)


def record(bins: Bins, codes: np.ndarray, solved: np.ndarray, hardest: int) -> Bins:
    """Count episodes `[n]` that have just ended, and rise by a level where all bins are solved."""
    bins = Bins(*(np.array(x) for x in bins))
    for code, success in zip(codes.tolist(), solved.tolist(), strict=True):
        known = bins.episodes > 0
        found = np.flatnonzero(known & (bins.code == code))
        at = int(found[0]) if len(found) else int(np.count_nonzero(known))
        if at == MOST_BINS:
            raise ValueError(f"a curriculum can tell {MOST_BINS} kinds of scenes apart, no more.")
        bins.code[at] = code
        bins.solved[at, bins.episodes[at] % WINDOW] = success
        bins.episodes[at] += 1
    if int(bins.level) < hardest and masters(bins):
        return no_bins(int(bins.level) + 1)
    return bins


def masters(bins: Bins) -> bool:
    """Whether every bin that counts is solved often enough to go on to the next level."""
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
