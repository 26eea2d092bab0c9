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


MOST_SPLITS = 20_000
"""Splits of two samples up to which a rank test counts them all: 8 against 8 seeds."""


def greater_p(a: ArrayLike, b: ArrayLike) -> float:
    """Return the one-sided Mann-Whitney p-value for `a` (N,) being larger than `b` (M,).

    Exact for few values, ties included: the share of all ways to split the values into N and M
    whose rank sums are at least as large. For many, the normal approximation. nan if a value is.
    """
    counted = _rank_sums(a, b)
    if counted is None:
        return _approximate_p(a, b, "greater")
    own, sums = counted
    return float(np.mean(sums >= own))


def two_sided_p(a: ArrayLike, b: ArrayLike) -> float:
    """Return the two-sided Mann-Whitney p-value of samples `a` (N,) and `b` (M,).

    As `greater_p`, but with the rank sums that differ at least as much from their mean.
    """
    counted = _rank_sums(a, b)
    if counted is None:
        return _approximate_p(a, b, "two-sided")
    own, sums = counted
    return float(np.mean(np.abs(sums) >= abs(own)))


def _rank_sums(a: ArrayLike, b: ArrayLike) -> tuple[int, np.ndarray] | None:
    """Return the rank sum of `a` and those of all splits; None with too many splits, or nan.

    Twice the differences from their mean: whole numbers, where the ranks of ties may be halves.
    """
    from scipy.stats import rankdata

    together, count = np.concatenate([a, b]), np.size(a)
    if count in (0, together.size):
        raise ValueError("a rank test needs values on both sides")
    if math.comb(together.size, count) > MOST_SPLITS or np.isnan(together).any():
        return None
    twice = np.rint(2 * rankdata(together)).astype(int)
    middle = count * (together.size + 1)
    splits = np.array(list(itertools.combinations(range(together.size), count)))
    return int(twice[:count].sum()) - middle, twice[splits].sum(1) - middle


def _approximate_p(a: ArrayLike, b: ArrayLike, alternative: str) -> float:
    """Return the p-value of many values; 1 if all tie, when the statistic has no variance."""
    from scipy.stats import mannwhitneyu

    if np.ptp(np.concatenate([a, b])) == 0:
        return 1.0
    return float(mannwhitneyu(a, b, alternative=alternative).pvalue)


def too_few(*samples: Sequence[float] | np.ndarray, at_least: int = 5) -> bool:
    """Test whether any sample has fewer values than a comparison needs."""
    return any(len(sample) < at_least for sample in samples)
