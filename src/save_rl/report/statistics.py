"""Summaries over seeds: medians with bootstrap intervals, and a rank test between two agents."""

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


def too_few(*samples: Sequence[float] | np.ndarray, at_least: int = 5) -> bool:
    """Test whether any sample has fewer values than a comparison needs."""
    return any(len(sample) < at_least for sample in samples)
