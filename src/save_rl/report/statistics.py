"""Summaries over seeds: medians with bootstrap intervals, and a rank test between two agents."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Interval(NamedTuple):
    """A median and the ends of its confidence interval."""

    median: float
    low: float
    high: float


def median_interval(
    values: ArrayLike, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Return the median of `values` (N,) and its percentile bootstrap interval, fixed by `seed`."""
    sample = np.asarray(values, np.float64)
    if sample.size == 0:
        raise ValueError("the median of no values is not defined")
    drawn = np.random.default_rng(seed).integers(sample.size, size=(resamples, sample.size))
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(np.median(sample[drawn], axis=1), [tail, 100.0 - tail])
    return Interval(float(np.median(sample)), float(low), float(high))


def greater_p(a: ArrayLike, b: ArrayLike) -> float:
    """Return the one-sided Mann-Whitney U p-value for `a` (N,) being larger than `b` (M,)."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.size == 0 or b.size == 0:
        raise ValueError("a rank test needs values on both sides")
    if np.ptp(np.concatenate([a, b])) == 0:
        return 1.0  # all values tie, so the test statistic has no variance

    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(a, b, alternative="greater").pvalue)


MOST_SPLITS = 20_000
"""Splits of two samples up to which a rank test counts them all: 8 against 8 seeds."""


def two_sided_p(a: ArrayLike, b: ArrayLike) -> float:
    """Return the two-sided Mann-Whitney p-value of samples `a` (N,) and `b` (M,).

    Exact for few values, ties included: the share of all ways to split the values into N and M
    whose rank sums differ as much from their mean. For many, the normal approximation.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.size == 0 or b.size == 0:
        raise ValueError("a rank test needs values on both sides")
    from scipy.stats import mannwhitneyu, rankdata

    if math.comb(a.size + b.size, a.size) > MOST_SPLITS:
        together = np.concatenate([a, b])
        return 1.0 if np.ptp(together) == 0 else float(mannwhitneyu(a, b).pvalue)
    twice = np.rint(2 * rankdata(np.concatenate([a, b]))).astype(int)  # ranks may be halves
    splits = np.array(list(itertools.combinations(range(len(twice)), a.size)))
    sums = twice[splits].sum(1)
    middle = a.size * (len(twice) + 1)
    return float(np.mean(np.abs(sums - middle) >= abs(twice[: a.size].sum() - middle)))


def too_few(*samples: Sequence[float] | np.ndarray, at_least: int = 5) -> bool:
    """Test whether any sample has fewer values than a comparison needs."""
    return any(len(sample) < at_least for sample in samples)
