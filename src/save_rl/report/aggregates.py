"""Summaries over several tasks (Agarwal et al. 2021, arXiv:2108.13264), with few seeds per task.

Scores are `[seeds, tasks]`, normalised so that tasks can be averaged. Intervals come from a
stratified bootstrap: seeds are drawn anew within every task, so all tasks always count the same.
The definitions are those of the package `rliable`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000


class Estimate(NamedTuple):
    """A number, or an array of them, and its 95 % bootstrap interval."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of all scores `[..., seeds, tasks]`.

    A quarter of the scores, rounded down, is left out at each end.
    """
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    left_out = flat.shape[-1] // 4
    return flat[..., left_out : flat.shape[-1] - left_out].mean(-1)


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the share of scores `[..., seeds, tasks]` above each threshold, `[..., T]`."""
    flat = scores.reshape(*scores.shape[:-2], -1, 1)
    return (flat > thresholds).mean(-2)


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return the probability that a seed of ours beats one of theirs, averaged over tasks.

    Arrays `[..., seeds, tasks]`; the numbers of seeds may differ. Ties count half.
    """
    a, b = ours[..., :, None, :], theirs[..., None, :, :]
    return ((a > b) + 0.5 * (a == b)).mean((-3, -2, -1))


def estimate(
    summary: Callable[..., np.ndarray], *scores: np.ndarray, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Return a summary of one or several arrays of scores `[seeds, tasks]`, with its interval.

    summary: takes arrays with any leading axes. Each array is resampled by itself.
    """
    rng = np.random.default_rng(seed)

    def drawn(of: np.ndarray) -> np.ndarray:
        seeds, tasks = of.shape
        return of[rng.integers(seeds, size=(RESAMPLES, seeds, tasks)), np.arange(tasks)]

    resampled = summary(*(drawn(of) for of in scores))
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(resampled, [tail, 100.0 - tail], axis=0)
    return Estimate(np.asarray(summary(*scores)), low, high)
