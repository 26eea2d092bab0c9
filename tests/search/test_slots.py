"""Trees that keep only the best actions of a state find what trees of all actions find."""

from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.envs.pool import Source
from save_rl.search import host
from save_rl.search import slots as slots_of
from save_rl.search.rules import TIE_TOLERANCE, Rule, Space
from save_rl.search.simulators import LaneSearch, Rows
from save_rl.search.tree_lanes import Shown, slots_for, tree_pool
from save_rl.training.host.evaluator import Lists, best_slots
from save_rl.types import SearchResult
from tests.search import mdps
from tests.search.reference import Mdp
from tests.search.table_simulators import Place, TableSimulator, wide, wide_tables
from tests.search.test_simulators import CONSTANTS, check, check_untouched, equations


def evaluator(mdp):
    """Looks states up by their number."""
    prior, value = (x.astype(np.float32) for x in mdps.priors(mdp, Rule.SAVE))
    return lambda states, mask: (prior[states], value[states])


def at_roots(simulator, roots, sizes, slots=0):
    pool = tree_pool([simulator], sizes, slots)
    for lane, root in enumerate(roots):
        pool.place(lane, Place(int(root), 0))
    return pool


def by_action(found, priors):
    """Results by slot as results by action; priors `[lanes, A]` of the roots."""
    q_values, visits = priors.astype(np.float32), np.zeros(priors.shape, np.int32)
    for lane, (values, counts, actions) in enumerate(zip(*found[:3], strict=True)):
        listed, untried = values > -np.inf, (values > -np.inf) & (counts == 0)
        assert len(set(actions[listed])) == listed.sum()  # no action has two slots
        np.testing.assert_array_equal(values[untried], q_values[lane, actions[untried]])
        assert not counts[~listed].any()
        q_values[lane, actions[listed]] = values[listed]
        visits[lane, actions[listed]] = counts[listed]
    return SearchResult(q_values, visits, visits > 0)


def assert_same_search(found, expected):
    np.testing.assert_array_equal(found.visits, expected.visits)
    np.testing.assert_array_equal(found.q_values, expected.q_values)


# What a search finds


@given(
    seed=st.integers(0, 2**32 - 1), budget=st.integers(0, 12), more=st.integers(0, 5),
    actions=st.integers(20, 60), allowed=st.sampled_from([0.1, 0.6, 1.0]), start=st.integers(0, 19),
    ends=st.sampled_from([0.0, 0.3]), c=st.sampled_from([0.0, 0.5, 2.0]),
    sizes=st.lists(st.integers(1, 2), min_size=1, max_size=3), space=st.sampled_from(Space),
)  # fmt: skip
@settings(max_examples=60)
def test_the_best_actions_are_enough(
    seed, budget, more, actions, allowed, start, ends, c, sizes, space
):
    """The best three of a state tie, and are all in the list."""
    masked = allowed < 1
    mdp, rng = wide_tables(seed, actions, masked, ends, allowed), np.random.default_rng(seed)
    lanes, slots = sum(sizes), max(budget + 1, 3) + more
    roots, seeds = rng.integers(0, 10, lanes), rng.integers(2**32, size=lanes, dtype=np.uint32)
    results, simulations = [], []
    for listed in (slots, 0):
        simulator = TableSimulator(mdp, masked=masked)
        searcher = LaneSearch(at_roots(simulator, roots, sizes, listed), range(len(sizes)), budget)
        options = {"rule": Rule.SAVE, "c": c, "discount": 0.9, "seeds": seeds, "space": space}
        results.append(searcher.run(evaluator(mdp), start=start, **options))
        assert searcher.simulations.sum() <= simulator.count("step")
        simulations.append(searcher.simulations)
    few, every = results
    assert few.actions.shape == few.visits.shape == (lanes, slots)
    listed = np.minimum(mdp.mask[roots].sum(1), slots)
    np.testing.assert_array_equal((few.q_values > -np.inf).sum(1), listed)
    priors = mdps.priors(mdp, Rule.SAVE)[0][roots].astype(np.float32)
    values, explored = few.of_all_actions(priors)
    few = by_action(few, priors)
    np.testing.assert_array_equal(values, few.q_values)
    np.testing.assert_array_equal(explored, few.explored)
    assert_same_search(few, every)
    np.testing.assert_array_equal(*simulations)
    for lane, root in enumerate(roots if space == Space.PLAIN else ()):
        check(few, lane, equations(mdp, int(root), Rule.SAVE, budget, seeds[lane], c))


BUDGET, SIZES = 9, [2, 1, 2]
OWNERS = np.concatenate([np.repeat([0, 1], size) for size in SIZES])


@pytest.fixture(scope="module", params=[True, False], ids=["masked", "free"])
def pools(request):
    """Lanes of two simulators, with lists here and in two processes, and with all actions here."""
    options = {"masked": request.param}
    sources = [Source("tests.search.table_simulators:wide", seed, options) for seed in (0, 1)]
    simulators = [wide(seed, **options) for seed in (0, 1)]
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                tree_pool(simulators, SIZES, slots, workers=workers, sources=sources)
            )
            for slots, workers in ((BUDGET + 1, 0), (BUDGET + 1, 2), (0, 0))
        ]


class ByLane:
    """Looks states up in the tables of the lane's simulator."""

    def __init__(self, masked):
        tables = [mdps.priors(wide_tables(seed, masked=masked), Rule.SAVE) for seed in (0, 1)]
        self.prior, self.value = (np.array(x, np.float32) for x in zip(*tables, strict=True))

    def ask(self, question):
        at = OWNERS[question.lanes], question.observation
        return Rows(question.rows, self.prior[at], self.value[at], question.start)


def test_lists_are_enough_in_every_process(pools):
    """Search after search, in the same memory; some lanes take no part."""
    rng, evaluate = np.random.default_rng(0), ByLane(pools[0].layout.masked)
    for number in range(4):
        roots, active = rng.integers(0, 10, 10), rng.random(10) < 0.8
        seeds, start = rng.integers(2**32, size=10, dtype=np.uint32), int(rng.integers(50))
        found, groups = [], range(number % 2, 3)
        for pool in pools:
            low = pool.groups[groups[0]].low
            for group in groups:
                lanes = pool.groups[group].lanes
                pool.reset(group, lanes, roots[lanes])
            result = LaneSearch(pool, groups, BUDGET).run(
                evaluate, rule=Rule.SAVE, seeds=seeds[low:], lanes=active[low:], start=start,
                **CONSTANTS,
            )  # fmt: skip
            found.append((result.q_values.copy(), result.visits.copy(), result.actions.copy()))
        here, there, every = found
        for a, b in zip(here, there, strict=True):
            np.testing.assert_array_equal(a, b)
        for lane in np.flatnonzero(~active[low:]):
            check_untouched(result, lane)
        which = active[low:]
        priors = evaluate.prior[OWNERS, roots][low:][which]
        few = by_action([x[which] for x in here], priors)
        assert_same_search(few, SearchResult(every[0][which], every[1][which], None))
        assert np.all(few.visits.sum(1) == BUDGET)


@given(seed=st.integers(0, 2**32 - 1), order=st.permutations(range(4)))
@settings(max_examples=20)
def test_rows_say_which_list_belongs_to_a_lane(seed, order):
    """Step by step, in the trees themselves; one lane takes no part."""
    mdp, rng, budget = wide_tables(seed), np.random.default_rng(seed), 6
    prior, value = (x.astype(np.float32) for x in mdps.priors(mdp, Rule.SAVE))
    roots, seeds, lanes = rng.integers(0, 10, 4), rng.integers(2**31, size=4), np.array([0, 1, 3])
    order, rows = np.array(order), np.argsort(order)
    states = np.zeros((4, budget + 1), int)
    states[:, 0] = roots
    trees = host.Search(4, budget, budget + 1, chosen=True)
    at = {"rows": rows, "lanes": lanes, "seeds": seeds, "rule": Rule.SAVE}
    priors, *slots = chosen(prior[roots[order]], 0, budget + 1)
    root = slots[0][rows]
    trees.begin(priors, slots=slots_of.Slots(*slots), **at, **CONSTANTS)
    for k in range(budget):
        nodes, actions = trees.select()
        assert actions[2] == -1
        step = states[np.arange(4), nodes], np.maximum(actions, 0)
        states[:, k + 1] = mdp.next_state[step]
        seen = states[order, k + 1]
        priors, *slots = chosen(prior[seen], 0, budget + 1)
        trees.expand(
            mdp.reward[step], mdp.terminal[step], priors, value[seen], rows, slots_of.Slots(*slots)
        )
    q_values, visits = np.full((4, 7), -np.inf, np.float32), np.zeros((4, 7), np.int32)
    trees.result(q_values, visits)
    found = by_action((q_values, visits, root), prior[roots])
    assert not visits[2].any()
    for lane in lanes:
        outcome = equations(mdp, int(roots[lane]), Rule.SAVE, budget, seeds[lane])
        check(found, lane, outcome)


def test_without_a_search_the_best_actions_are_listed():
    mdp, roots = wide_tables(3), np.array([2, 7, 2])
    searcher = LaneSearch(at_roots(TableSimulator(mdp), roots, [1, 2], 5), [0, 1], 0)
    found = searcher.priors(evaluator(mdp), np.array([True, True, False]), start=11)
    check_untouched(found, 2)
    for lane in (0, 1):
        prior = np.where(mdp.mask[roots[lane]], mdp.prior[roots[lane]], -np.inf)
        np.testing.assert_array_equal(found.q_values[lane], np.sort(prior)[::-1][:5])
        np.testing.assert_array_equal(prior[found.actions[lane]], found.q_values[lane])
    assert not found.explored.any()


@given(budget=st.integers(0, 200), actions=st.integers(1, 5000))
def test_there_are_slots_for_all_that_a_search_can_try(budget, actions):
    slots = slots_for(budget, actions)
    assert min(budget + 1, actions) <= slots <= actions
    assert slots == actions or 4 * slots < actions


# Ties that do not fit into the list


def tied(actions, mask=None):
    """Every action ends the episode and pays nothing: with c = 0 all scores stay 0."""
    shape = (1, actions)
    return Mdp(
        next_state=np.zeros(shape, int), reward=np.zeros(shape), terminal=np.ones(shape, bool),
        mask=np.ones(shape, bool) if mask is None else mask[None], prior=np.zeros(shape),
        value=np.zeros(1),
    )  # fmt: skip


def tries(mdp, slots, budget, lanes, seed, start):
    """How often each lane tries each action, `[lanes, A]`."""
    seeds = np.random.default_rng(seed).integers(2**32, size=lanes, dtype=np.uint32)
    pool = at_roots(TableSimulator(mdp), np.zeros(lanes, int), [lanes], slots)
    found = LaneSearch(pool, [0], budget).run(
        evaluator(mdp), rule=Rule.SAVE, c=0.0, discount=1.0, seeds=seeds, start=start
    )
    if not slots:
        return found.visits
    return by_action(found, mdps.priors(mdp, Rule.SAVE)[0][np.zeros(lanes, int)]).visits


def test_the_first_of_all_that_tie_is_drawn_uniformly():
    actions, lanes = 20, 300
    mdp = tied(actions)
    first = [tries(mdp, 3, 1, lanes, start, start).argmax(1) for start in range(actions)]
    counts = np.bincount(np.concatenate(first), minlength=actions)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    # One start draws from its part alone.
    assert set(first[18]) == {18, 19, 0}


def test_of_masked_actions_those_behind_the_start_are_drawn():
    """Uniformly, if as many are forbidden between any two that are allowed."""
    actions, lanes = 21, 300
    mask = np.arange(actions) % 3 == 1
    starts = range(actions)
    first = [tries(tied(actions, mask), 3, 1, lanes, start, start).argmax(1) for start in starts]
    for start, chosen in zip(starts, first, strict=True):
        behind = (start + np.arange(actions)) % actions
        assert set(chosen) == set(behind[mask[behind]][:3])
    counts = np.bincount(np.concatenate(first), minlength=actions)
    assert not counts[~mask].any()
    assert scipy.stats.chisquare(counts[mask]).pvalue > 1e-3


@pytest.mark.parametrize("slots", [4, 7, 0])
@pytest.mark.parametrize("actions", [8, 20])
def test_untried_actions_win_a_tie_as_often_as_if_all_of_them_were_listed(actions, slots):
    """Of three draws from n actions, 1, 2 or 3 are distinct: 1, 3 (n-1) and (n-1) (n-2) of n²."""
    lanes, n = 6000, actions
    visits = np.concatenate([
        tries(tied(actions), slots, 3, lanes // 4, start, start) for start in range(4)
    ])  # fmt: skip
    distinct = np.bincount((visits > 0).sum(1), minlength=4)
    expected = np.array([0, 1, 3 * (n - 1), (n - 1) * (n - 2)]) / n**2 * lanes
    assert distinct[0] == 0
    assert scipy.stats.chisquare(distinct[1:], expected[1:]).pvalue > 1e-3


def test_untried_actions_below_a_tie_have_no_part_in_it():
    """Two actions are better than all others, of which more tie than the list has room for."""
    actions, lanes = 20, 3000
    mdp = tied(actions)
    mdp.prior[0, [5, 12]] = mdp.reward[0, [5, 12]] = 1.0
    visits = tries(mdp, 4, 3, lanes, 0, 3)
    assert set(np.flatnonzero(visits.sum(0))) == {5, 12}
    # Three draws from two actions: all the same in a quarter of the cases.
    assert abs((visits.max(1) == 3).mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / lanes)


# The list


def literal(prior, start, slots):
    """Values and actions of the list, number of allowed actions, ties that have no room."""
    rotated = np.roll(np.arange(len(prior)), -start)
    order = rotated[np.argsort(-prior[rotated].astype(np.float64), kind="stable")]
    order = order[prior[order] > -np.inf]
    best = prior[order[:slots]]
    more = 0
    if len(order) > slots:
        more = np.sum(prior[order[slots:]] >= np.float64(best[-1]) - TIE_TOLERANCE)
    return best, order[:slots], len(order), more


@st.composite
def rows(draw, actions=None, slots=None):
    """Priors `[n, A]`, often tied, some masked; a start and a number of slots."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = 3 if actions else draw(st.integers(1, 4))
    actions = actions or draw(st.integers(1, 40))
    grid = draw(st.sampled_from([None, 4, 1, 0]))
    prior = rng.normal(size=(n, actions))
    prior = prior if grid is None else np.round(prior * grid) / max(grid, 1)
    prior[rng.random(prior.shape) < draw(st.sampled_from([0.0, 0.5, 0.95, 1.0]))] = -np.inf
    slots = slots or draw(st.integers(1, actions))
    prior += 0.0  # to a device, -0 is less than 0
    return prior.astype(np.float32), draw(st.integers(0, actions - 1)), slots


def chosen(prior, start, slots):
    shape = (len(prior), slots)
    values, actions = np.full(shape, np.nan, np.float32), np.full(shape, -7, np.int32)
    valid, more = np.full(len(prior), -7, np.int32), np.full(len(prior), -7, np.int32)
    slots_of.best_actions(prior, start, values, actions, valid, more)
    return values, actions, valid, more


@given(case=rows())
@settings(max_examples=200)
def test_the_list_is_the_head_of_a_sorted_row(case):
    prior, start, slots = case
    values, actions, valid, more = chosen(*case)
    for i, row in enumerate(prior):
        best, which, count, ties = literal(row, start, slots)
        np.testing.assert_array_equal(values[i, : len(best)], best)
        np.testing.assert_array_equal(actions[i, : len(best)], which)
        assert np.all(values[i, len(best) :] == -np.inf)
        assert np.all(actions[i, len(best) :] == 0)
        assert (valid[i], more[i]) == (count, ties)


def test_a_list_by_hand():
    prior = np.array([[1.0, 3.0, 1.0, -np.inf, 1.0, 1.0]], np.float32)
    values, actions, valid, more = chosen(prior, 4, 3)
    assert values.tolist() == [[3.0, 1.0, 1.0]]
    assert actions.tolist() == [[1, 4, 5]]  # the ties that come first from 4 on
    assert valid.tolist() == [5]
    assert more.tolist() == [2]  # actions 0 and 2
    # What is almost the same ties, too.
    prior[0, [0, 2]] -= TIE_TOLERANCE / 3, 3 * TIE_TOLERANCE
    assert chosen(prior, 4, 3)[3].tolist() == [1]


@given(case=rows(24, 5))
@settings(max_examples=60)
def test_the_device_makes_the_same_list(case):
    prior, start, slots = case
    value = np.arange(3, dtype=np.float32) / 3
    found = _best_slots(jnp.asarray(prior), value, start)
    shown = Shown(
        {}, np.zeros((4, 0), np.uint8), np.zeros((4, slots), np.float32),
        np.zeros((4, slots), np.int32), *(np.zeros(4, np.int32) for _ in range(2)),
        np.full(4, -1.0),
    )  # fmt: skip
    at = 0, slice(3)  # of one seed, in this order
    Lists(np.array([1, 2, 3]), at, slots, found).write(shown)
    values, actions, valid, more = chosen(*case)
    listed = values > -np.inf
    np.testing.assert_array_equal(shown.prior[1:], values)
    np.testing.assert_array_equal(shown.choice[1:][listed], actions[listed])
    np.testing.assert_array_equal(shown.valid[1:], valid)
    np.testing.assert_array_equal(shown.more[1:], more)
    np.testing.assert_array_equal(shown.value, np.float32([-1, 0, 1 / 3, 2 / 3]))
    assert not shown.prior[0].any()


_best_slots = jax.jit(lambda prior, value, start: best_slots(prior, value, start, 5)[None])
