"""Summaries over tasks, against scipy and cases worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import mannwhitneyu, trim_mean

from save_rl.report.aggregates import (
    estimate,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)

NUMBERS = st.floats(-100, 100, width=32)


def scores(tasks):
    return st.integers(1, 7).flatmap(lambda n: arrays(np.float64, (n, tasks), elements=NUMBERS))


@given(st.integers(1, 4).flatmap(scores))
def test_the_interquartile_mean_is_the_mean_without_a_quarter_at_each_end(sample):
    assert interquartile_mean(sample) == pytest.approx(trim_mean(sample, 0.25, axis=None))


@given(scores(3), scores(3))
def test_the_probability_of_improvement_is_the_mean_of_rank_statistics(ours, theirs):
    expected = [
        mannwhitneyu(a, b).statistic / (len(a) * len(b))
        for a, b in zip(ours.T, theirs.T, strict=True)
    ]
    assert probability_of_improvement(ours, theirs) == pytest.approx(np.mean(expected))


def test_a_profile_counts_scores_above_its_thresholds():
    found = performance_profile(np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([-1.0, 0.0, 1.0, 2.0]))
    assert found.tolist() == [1.0, 0.75, 0.25, 0.0]


def test_seeds_are_drawn_within_their_task():
    """Two tasks of constant scores: whatever is drawn, each task keeps its own."""
    found = estimate(interquartile_mean, np.array([[0.0, 10.0]] * 4))
    assert (found.value, found.low, found.high) == (5.0, 5.0, 5.0)


def test_an_interval_surrounds_its_number_and_covers_the_truth():
    """Of 200 samples of a known distribution, about 95 % of the intervals hold its mean."""
    rng, covered = np.random.default_rng(0), 0
    for number in range(200):
        sample = rng.normal(size=(20, 5))
        found = estimate(lambda x: x.mean((-2, -1)), sample, seed=number)
        assert found.low < found.value < found.high
        covered += bool(found.low < 0 < found.high)
    assert 0.88 <= covered / 200 <= 0.99


def test_both_sides_of_a_comparison_are_drawn_anew():
    ours, theirs = np.arange(6.0)[:, None], np.arange(6.0)[:, None] + 1
    found = estimate(probability_of_improvement, ours, theirs)
    assert found.low < found.value < found.high
    assert found.value == pytest.approx((6 * 5 / 2 - 5 + 0.5 * 5) / 36)
