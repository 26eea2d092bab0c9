"""The level of the next episodes, against the rules of paper D.3 (adaptive) and the supplement of
Bapst et al. 2019 (linear); see docs/construction/training.md#curricula."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from save_rl.learning.curriculum import Bins, linear_level, no_bins, record


class Reference:
    """The rules of paper D.3, word for word: results of the current level, by bin."""

    def __init__(self) -> None:
        self.level = 0
        self.results: dict[int, list[bool]] = {}
        self.ignored = 0  # bins that did not count when it last rose

    def record(self, codes: list[int], solved: list[bool], hardest: int) -> None:
        for code, success in zip(codes, solved, strict=True):
            self.results.setdefault(code, []).append(success)
        if self.results and self.level < hardest and all(map(self.passes, self.results)):
            self.ignored = sum(map(self.is_rare, self.results))
            self.level, self.results = self.level + 1, {}

    def passes(self, code: int) -> bool:
        last = self.results[code][-50:]
        return self.is_rare(code) or (len(last) == 50 and sum(last) >= 25)

    def is_rare(self, code: int) -> bool:
        episodes = sum(map(len, self.results.values()))
        rate, uniform = Fraction(len(self.results[code]), episodes), Fraction(1, len(self.results))
        return episodes >= 300 and rate < uniform / 4


def feed(bins: Bins, episodes: list[tuple[int, bool]], hardest: int = 9) -> Bins:
    """Record episodes one at a time."""
    for code, success in episodes:
        bins = record(bins, np.array([code]), np.array([success]), hardest)
    return bins


def record_all(bins: Bins, episodes: list[tuple[int, bool]], hardest: int = 9) -> Bins:
    """Record episodes in one call."""
    codes, solved = zip(*episodes, strict=True)
    return record(bins, np.array(codes), np.array(solved), hardest)


def results(code: int, solved: int, failed: int = 0) -> list[tuple[int, bool]]:
    """Episodes of a bin, the failed ones first."""
    return [(code, False)] * failed + [(code, True)] * solved


def counts(bins: Bins) -> dict[int, int]:
    """Episodes of every bin."""
    seen = bins.episodes > 0
    return dict(zip(bins.code[seen].tolist(), bins.episodes[seen].tolist(), strict=True))


# Random streams


def play(seed: int, most: int, hardest: int) -> list[tuple[int, int]]:
    """A random stream for `record` and for the reference; where it rose: episodes, bins ignored.

    most: the size of the largest call.
    """
    rng = np.random.default_rng(seed)
    reference, bins = Reference(), no_bins()
    rises, at_this_level, to_come = [], 0, 700
    codes = rng.choice(2**40, size=rng.integers(1, 5), replace=False)
    weights = rng.choice([1.0, 1.0, 0.3, 0.05], size=len(codes))
    skill = rng.choice([0.4, 0.5, 0.6, 0.9, 1.0], size=len(codes))
    while to_come > 0:
        size = min(int(rng.integers(0 if most > 1 else 1, most + 1)), to_come)
        which = rng.choice(len(codes), size=size, p=weights / weights.sum())
        solved = rng.random(size) < skill[which]
        before = reference.level
        bins = record(bins, codes[which], solved, hardest)
        reference.record(codes[which].tolist(), solved.tolist(), hardest)
        assert int(bins.level) == reference.level
        assert counts(bins) == {code: len(x) for code, x in reference.results.items()}
        to_come -= size
        at_this_level += size
        if reference.level > before:
            rises.append((at_this_level, reference.ignored))
            at_this_level = 0
            skill = rng.permutation(skill)
    return rises


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), most=st.sampled_from([1, 7, 90]), hardest=st.integers(0, 4))
def test_levels_rise_when_the_specification_says_so(seed, most, hardest):
    event(f"{len(play(seed, most, hardest))} levels")


@pytest.mark.parametrize("most", [pytest.param(1, marks=pytest.mark.slow), 20])
def test_streams_rise_in_every_way(most):
    """What the test above compares is not idle: levels rise, early and with bins that are rare."""
    rises = [play(seed, most, hardest=3) for seed in range(16)]
    assert any(found == [] for found in rises)
    assert any(len(found) == 3 for found in rises)
    every = [rise for found in rises for rise in found]
    assert any(episodes < 300 for episodes, _ in every)
    assert any(ignored > 0 for _, ignored in every)
    assert any(episodes > 300 and ignored == 0 for episodes, ignored in every)


# Cases by hand


def test_a_run_begins_at_level_0_without_bins():
    assert int(no_bins().level) == 0
    assert counts(no_bins()) == {}


@pytest.mark.parametrize(("solved", "level"), [(25, 1), (24, 0)])
def test_half_of_fifty_is_enough(solved, level):
    bins = feed(no_bins(), results(5, solved, 50 - solved))
    assert int(bins.level) == level


def test_a_bin_with_49_episodes_blocks():
    bins = feed(no_bins(), results(5, 49))
    assert int(bins.level) == 0
    bins = feed(bins, results(5, 1))
    assert int(bins.level) == 1


def test_every_bin_needs_its_own_fifty():
    bins = record_all(no_bins(), results(5, 200) + results(6, 49))
    assert int(bins.level) == 0
    assert int(feed(bins, results(5, 1)).level) == 0
    assert int(feed(bins, results(6, 1)).level) == 1


def test_only_the_newest_fifty_are_looked_at():
    bins = feed(no_bins(), results(5, 24, 100))
    assert int(bins.level) == 0
    bins = feed(bins, results(5, 1))
    assert int(bins.level) == 1


def test_a_bin_that_was_solved_once_does_not_count_as_solved():
    """All bins at the same time: the first one has been forgotten when the second is solved."""
    bins = record_all(no_bins(), [*results(6, 0, 1), *results(5, 50)])
    bins = feed(bins, results(5, 0, 26))
    bins = feed(bins, results(6, 60))
    assert int(bins.level) == 0
    bins = feed(bins, results(5, 24))
    assert int(bins.level) == 0  # 24 successes, 26 failures
    bins = feed(bins, results(5, 1))
    assert int(bins.level) == 1


def test_a_rare_bin_blocks_before_300_episodes_and_not_after():
    bins = feed(no_bins(), results(6, 0, 1) + results(5, 298))
    assert (int(bins.level), sum(counts(bins).values())) == (0, 299)
    bins = feed(bins, results(5, 1))
    assert int(bins.level) == 1


def test_a_quarter_of_the_uniform_rate_is_not_rare():
    """38 of 304 episodes in two bins are exactly a quarter of half."""
    bins = feed(no_bins(), results(6, 0, 38) + results(5, 304 - 38))
    assert int(bins.level) == 0
    assert int(feed(bins, results(5, 1)).level) == 1


@pytest.mark.parametrize(
    ("others", "level"),
    [([370], 1), ([185, 185], 1), ([124, 123, 123], 0), ([74] * 5, 0)],
)
def test_the_uniform_rate_depends_on_how_many_bins_are_known(others, level):
    """30 of 400 are fewer than a quarter of 200 and of 133, and more than a quarter of 100.

    They are fewer than 50, too, so their bin blocks where it is not rare.
    """
    known = [episode for code, size in enumerate(others) for episode in results(code, size)]
    bins = record_all(no_bins(), results(99, 30) + known)
    assert int(bins.level) == level


def test_a_bin_that_is_not_rare_blocks_as_long_as_it_has_fewer_than_fifty():
    bins = record_all(no_bins(), results(6, 45) + results(5, 255))
    assert int(bins.level) == 0
    assert int(record_all(bins, results(6, 5)).level) == 1


def test_a_new_level_starts_with_no_bins():
    """What was rare and unsolved before is not known any more; 300 episodes are counted anew."""
    bins = feed(no_bins(), results(6, 0, 1) + results(5, 299))
    assert int(bins.level) == 1
    assert counts(bins) == {}
    assert int(feed(bins, results(5, 50)).level) == 2
    bins = feed(bins, results(7, 0, 1) + results(5, 298))
    assert int(bins.level) == 1
    bins = feed(bins, results(5, 1))
    assert int(bins.level) == 2


def test_old_successes_do_not_help_a_new_level():
    bins = feed(no_bins(), results(5, 50))
    assert int(feed(bins, results(5, 24, 26)).level) == 1
    assert int(feed(bins, results(5, 49)).level) == 1


@pytest.mark.parametrize("hardest", [0, 1, 2])
def test_nothing_rises_above_the_hardest_level(hardest):
    bins = feed(no_bins(), results(5, 400), hardest)
    assert int(bins.level) == hardest
    assert counts(bins) == {5: 400 - 50 * hardest}


def test_one_call_rises_by_one_level_at_most():
    bins = record_all(no_bins(), results(5, 500))
    assert int(bins.level) == 1
    assert counts(bins) == {}


def test_what_counts_is_the_end_of_a_call():
    bins = record_all(no_bins(), [*results(5, 50), *results(5, 0, 26)])
    assert int(bins.level) == 0


def test_a_call_without_episodes_changes_nothing():
    nothing = np.array([], np.int64), np.array([], np.bool_)
    assert int(record(no_bins(), *nothing, hardest=3).level) == 0
    bins = feed(no_bins(), results(5, 49))
    after = record(bins, *nothing, hardest=3)
    for old, new in zip(bins, after, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("episodes", [results(5, 1), results(6, 2), results(5, 60)])
def test_what_was_recorded_before_is_left_as_it_is(episodes):
    bins = feed(no_bins(), results(5, 0, 30))
    before = [x.copy() for x in bins]
    record_all(bins, episodes)
    for old, new in zip(before, bins, strict=True):
        np.testing.assert_array_equal(old, new)


def test_results_keep_their_shapes_and_types():
    """A checkpoint holds them; no level has another layout."""
    empty = no_bins()
    for bins in (feed(empty, results(2**50, 3)), feed(empty, results(5, 50)), no_bins(4)):
        layout = [(np.shape(x), np.asarray(x).dtype) for x in bins]
        assert layout == [(x.shape, x.dtype) for x in empty]


def test_512_bins_can_be_told_apart_and_no_more():
    bins = record_all(no_bins(), [(code, False) for code in range(512)])
    bins = feed(bins, [(0, True), (511, True)])
    assert counts(bins) == {code: 1 + (code in (0, 511)) for code in range(512)}
    with pytest.raises(ValueError, match="512"):
        feed(bins, [(512, True)])


# Linear


@pytest.mark.parametrize("hardest", [0, 1, 2, 7, 9])
@pytest.mark.parametrize("total", [1, 7, 40_000])
def test_linear_begins_at_0_and_ends_at_the_hardest(hardest, total):
    assert linear_level(0, total, hardest) == 0
    assert linear_level(total, total, hardest) == hardest
    assert linear_level(total + 1, total, hardest) == hardest
    assert linear_level(10**9 * total, total, hardest) == hardest


@given(
    st.integers(0, 10**7), st.integers(0, 10**5), st.integers(1, 10**6), st.integers(0, 20)
)  # fmt: skip
def test_linear_rises_in_proportion_and_never_falls(steps, more, total, hardest):
    level = linear_level(steps, total, hardest)
    assert isinstance(level, int)
    assert abs(level - min(Fraction(hardest * steps, total), hardest)) < 1
    assert level <= linear_level(steps + more, total, hardest) <= hardest
    assert linear_level(np.int64(steps), total, hardest) == level


def test_linear_gives_every_level_the_same_time():
    levels = [linear_level(steps, 40, 4) for steps in range(45)]
    assert levels == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 10 + [4] * 5
