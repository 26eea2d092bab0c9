"""Bootstrap intervals and the rank test, against cases known without them."""

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from save_rl.report.statistics import greater_p, median_interval, too_few, two_sided_p

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20)


@given(value=st.floats(-1e6, 1e6), size=st.integers(1, 20))
def test_a_constant_sample_has_an_interval_of_no_width(value, size):
    assert median_interval([value] * size) == (value, value, value)


@given(sample=SAMPLES)
def test_the_interval_lies_in_the_sample_and_a_wider_level_contains_it(sample):
    median, low, high = median_interval(sample)
    _, lower, higher = median_interval(sample, level=0.99)
    assert min(sample) <= lower <= low <= high <= higher <= max(sample)
    assert median == np.median(sample)


def test_the_interval_of_a_symmetric_sample_surrounds_its_median():
    median, low, high = median_interval(np.arange(-10, 11))
    assert median == 0
    assert low < 0 < high
    assert low == pytest.approx(-high, abs=1)


def test_more_seeds_make_a_narrower_interval():
    draws = np.random.default_rng(1).normal(size=640)
    widths = [
        interval.high - interval.low
        for interval in (median_interval(draws[:size]) for size in (10, 80, 640))
    ]
    assert widths[0] > widths[1] > widths[2]


def test_the_interval_contains_the_true_median_about_as_often_as_it_says():
    draws = np.random.default_rng(2).normal(size=(400, 20))
    intervals = [median_interval(sample, resamples=500) for sample in draws]
    assert np.mean([low <= 0 <= high for _, low, high in intervals]) == pytest.approx(
        0.95, abs=0.03
    )


def test_two_values_resample_to_three_medians():
    # Medians of (0, 1) drawn twice: 0, ½, ½, 1 with probability ¼ each.
    assert median_interval([0, 1], level=0.4) == (0.5, 0.5, 0.5)
    assert median_interval([0, 1], level=0.6) == (0.5, 0, 1)


def test_same_seed_same_interval():
    sample = np.random.default_rng(0).normal(size=20)
    assert median_interval(sample, seed=3) == median_interval(sample, seed=3)


def test_no_values_have_no_median():
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


@pytest.mark.parametrize(
    ("a", "b", "orders"),
    [
        ([4, 5, 6], [1, 2, 3], 1),  # of the 20 ways to place a's three ranks, only this one
        ([3, 5, 6], [1, 2, 4], 2),  # and the one above
        ([1, 2, 3], [4, 5, 6], 20),  # every placement is at least as large
    ],
)
def test_the_p_value_counts_the_orders_at_least_as_large(a, b, orders):
    assert greater_p(a, b) == pytest.approx(orders / comb(6, 3))


@pytest.mark.parametrize(
    ("a", "b", "p"),
    [
        ([1, 1, 1], [0, 0, 0], 1 / 20),
        ([1, 1, 1], [0, 0, 1], 4 / 20),  # both zeros in b, with any of the four ones
        ([1] * 5, [0, 0, 0, 1, 1], 21 / 252),  # all zeros in b, with two of the seven ones
        ([0, 0, 0], [0, 0, 0], 1.0),
        ([0, 0], [0, 1], 1.0),
    ],
)
def test_ties_are_counted_exactly_too(a, b, p):
    assert greater_p(a, b) == pytest.approx(p)


def test_identical_constant_samples_say_nothing():
    assert greater_p([1.0] * 20, [1.0] * 20) == 1.0


def test_constant_samples_that_differ_are_told_apart():
    assert greater_p([1.0] * 10, [0.5] * 10) < 0.001 < 0.999 < greater_p([0.5] * 10, [1.0] * 10)


def test_a_rank_test_needs_values():
    with pytest.raises(ValueError, match="both sides"):
        greater_p([], [1.0])


def test_what_is_not_a_number_has_no_p_value():
    assert np.isnan(greater_p([1.0, np.nan], [0.0, 0.0]))


def test_too_few_looks_at_the_smallest_sample():
    assert too_few([1] * 5, [1] * 4)
    assert not too_few([1] * 5, np.ones(6))
    assert too_few([1] * 5, at_least=6)


@pytest.mark.parametrize(
    ("a", "b", "p"),
    [
        ([3, 4], [1, 2], 2 / 6),  # the most extreme of six splits, and its mirror image
        ([1, 4], [2, 3], 1.0),
        ([5, 6, 7, 8, 9], [0, 1, 2, 3, 4], 2 / 252),
        ([1, 1], [1, 1], 1.0),
        ([2, 2, 3], [1, 1, 2], 6 / 20),  # ranks 4, 4, 6 of 1½, 1½, 4, 4, 4, 6: sums 14 and 7
        ([7], [5], 1.0),
    ],
)
def test_few_values_are_compared_exactly(a, b, p):
    assert two_sided_p(a, b) == pytest.approx(p)
    assert two_sided_p(b, a) == pytest.approx(p)


@given(values=st.lists(st.integers(0, 10**6), min_size=4, max_size=9, unique=True))
def test_the_exact_test_is_scipys_where_there_are_no_ties(values):
    from scipy.stats import mannwhitneyu

    a, b = values[:2], values[2:]
    assert two_sided_p(a, b) == pytest.approx(mannwhitneyu(a, b, method="exact").pvalue)


def test_many_values_are_compared_approximately():
    a, b = np.arange(20.0), np.arange(20.0) + 15
    assert two_sided_p(a, b) < 1e-4
    assert two_sided_p([1.0] * 20, [1.0] * 20) == 1.0
    with pytest.raises(ValueError, match="values on both sides"):
        two_sided_p([], [1.0])
