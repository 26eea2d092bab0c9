"""Search over lanes of simulators: what a literal transcription of the paper finds, lane by lane,
however the lanes are grouped and wherever they are simulated."""

import os
import signal
import xml.etree.ElementTree as ET
from contextlib import ExitStack
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl import search
from save_rl.envs.pool import Source
from save_rl.search import draw, host, rules
from save_rl.search.rules import PAPER_RULES, TIE_TOLERANCE, Rule
from save_rl.search.simulators import LaneSearch, Rows
from save_rl.search.tree_lanes import SEATS, tree_pool
from save_rl.types import SearchResult
from tests.envs.pool_simulators import have_ended
from tests.search import mdps, reference
from tests.search.table_simulators import Dice, Place, TableSimulator, luck, make, tables

each_rule = pytest.mark.parametrize("rule", PAPER_RULES, ids=lambda r: r.name)
C, DISCOUNT = 1.0, 0.9
CONSTANTS = {"c": C, "discount": DISCOUNT}


def evaluator(mdp, rule):
    """Looks states up by their number; the rows behind them must not be looked at."""
    prior, value = mdps.priors(mdp, rule)

    def evaluate(states, mask):
        np.testing.assert_array_equal(mask, mdp.mask[states])
        rows = np.full((2, prior.shape[1]), np.nan)
        found = np.concatenate([prior[states], rows]).astype(np.float32)
        values = np.concatenate([value[states], rows[:, 0]]).astype(np.float32)
        found.flags.writeable = values.flags.writeable = False  # as those of JAX are
        return found, values

    return evaluate


def equations(mdp, root, rule, budget, seed, c=C, discount=DISCOUNT):
    prefer = mdps.prefer(int(seed))
    return reference.search(
        mdp, root, rule.name.lower(), budget, c, discount, prefer, TIE_TOLERANCE
    )


def check(result, lane, outcome):
    """Whether a lane found what the equations say; too close a call says nothing."""
    if outcome.ambiguous:
        return
    np.testing.assert_array_equal(result.visits[lane], outcome.visits)
    np.testing.assert_array_equal(result.explored[lane], outcome.explored)
    np.testing.assert_allclose(result.q_values[lane], outcome.q_values, atol=1e-5)


def check_untouched(result, lane):
    assert np.all(result.q_values[lane] == -np.inf)
    assert not result.visits[lane].any()
    assert not result.explored[lane].any()


def kept(result):
    """A copy of what a search found; the next one writes to the same place."""
    return SearchResult(result.q_values.copy(), result.visits.copy(), result.explored)


def pool_at(simulator, roots, sizes, **options):
    """A pool of this process whose lanes stand at the roots, in groups of these sizes."""
    pool = tree_pool([simulator], sizes, **options)
    for lane, root in enumerate(roots):
        pool.place(lane, Place(int(root), 0))
    return pool


@st.composite
def lanes(draw_, most=5):
    """Sizes of groups; roots, seeds and taking part of their lanes."""
    sizes = draw_(st.lists(st.integers(1, 2), min_size=1, max_size=most))
    count = sum(sizes)
    roots = draw_(st.lists(st.integers(0, mdps.STATES - 1), min_size=count, max_size=count))
    seeds = draw_(st.lists(st.integers(0, 2**32 - 1), min_size=count, max_size=count))
    active = draw_(st.lists(st.sampled_from([True, True, False]), min_size=count, max_size=count))
    return sizes, roots, np.array(seeds, np.uint32), np.array(active)


@each_rule
@given(
    data=st.data(), lanes=lanes(), budget=st.integers(0, 20),
    c=st.sampled_from([0.0, 0.1, 2.0]), discount=st.sampled_from([0.5, 1.0]),
)  # fmt: skip
@settings(max_examples=40)
def test_every_lane_finds_what_the_equations_say(rule, data, lanes, budget, c, discount):
    mdp = data.draw(mdps.mdps(rule))
    sizes, roots, seeds, active = lanes
    simulator = TableSimulator(mdp)
    searcher = LaneSearch(pool_at(simulator, roots, sizes), range(len(sizes)), budget)
    result = searcher.run(
        evaluator(mdp, rule), rule=rule, c=c, discount=discount, seeds=seeds, lanes=active
    )
    assert result.tree is None
    assert result.actions.shape == (len(roots), 0)  # every action has a slot
    for lane, root in enumerate(roots):
        if not active[lane]:
            check_untouched(result, lane)
            assert searcher.simulations[lane] == 0
            continue
        outcome = equations(mdp, root, rule, budget, seeds[lane], c, discount)
        check(result, lane, outcome)
        # A way that ends in a known terminal state asks no simulator.
        assert searcher.simulations[lane] == outcome.simulator_calls or outcome.ambiguous
    # A wrong guess stays in its seat until all seats have one, and another is in need of it.
    in_vain = simulator.count("step") - searcher.simulations.sum()
    most = SEATS + budget if rule == Rule.SAVE else 0
    assert 0 <= in_vain <= most * active.sum()


@each_rule
@given(data=st.data(), lanes=lanes(), budget=st.integers(1, 20))
@settings(max_examples=25)
def test_lanes_do_not_see_each_other_nor_how_they_are_grouped(rule, data, lanes, budget):
    mdp = data.draw(mdps.mdps(rule))
    sizes, roots, seeds, _ = lanes
    evaluate = evaluator(mdp, rule)

    def run(sizes, which):
        pool = pool_at(TableSimulator(mdp), np.array(roots)[which], sizes)
        found = LaneSearch(pool, range(len(sizes)), budget)
        return found.run(evaluate, rule=rule, seeds=seeds[which], **CONSTANTS)

    together = run(sizes, np.arange(len(roots)))
    lane = data.draw(st.integers(0, len(roots) - 1))
    alone = run([1], np.array([lane]))
    np.testing.assert_array_equal(together.q_values[lane], alone.q_values[0])
    np.testing.assert_array_equal(together.visits[lane], alone.visits[0])


def test_a_simulator_without_masks_is_allowed_everything():
    mdp = tables(0, masked=False)
    roots, seeds = [3, 5], np.array([1, 2], np.uint32)
    pool = pool_at(TableSimulator(mdp, masked=False), roots, [2])
    prior, value = mdps.priors(mdp, Rule.SAVE)

    def evaluate(states, mask):
        assert mask.shape == (len(states), 0)
        return prior[states].astype(np.float32), value[states].astype(np.float32)

    result = LaneSearch(pool, [0], 10).run(evaluate, rule=Rule.SAVE, seeds=seeds, **CONSTANTS)
    for lane in (0, 1):
        check(result, lane, equations(mdp, roots[lane], Rule.SAVE, 10, seeds[lane]))


def test_a_known_end_is_visited_again_without_the_simulator():
    mdp = tables(0)._replace(terminal=np.ones((12, 7), bool))
    simulator = TableSimulator(mdp)
    searcher = LaneSearch(pool_at(simulator, range(4), [2, 2]), [0, 1], 40)
    result = searcher.run(
        evaluator(mdp, Rule.SAVE), rule=Rule.SAVE, seeds=np.arange(4, dtype=np.uint32), **CONSTANTS
    )
    np.testing.assert_array_equal(result.visits.sum(1), [40] * 4)
    np.testing.assert_array_equal(searcher.simulations, result.explored.sum(1))
    assert simulator.count("step") == searcher.simulations.sum() <= 4 * 7


WORKERS, BUDGET = (0, 2), 12
SIZES = [2, 3]  # lanes of each group, of each of two simulators
OWNERS = np.array([0, 0, 1, 1, 0, 0, 0, 1, 1, 1])
EPISODES = np.array([5, 0, 7, 2, 11, 3, 8, 4, 6, 1])  # where the lanes begin


@pytest.fixture(scope="module")
def pools():
    """The same lanes, simulated and searched here and in worker processes."""
    sources = [Source("tests.search.table_simulators:make", seed, {}) for seed in (0, 1)]
    with ExitStack() as stack:
        made = [
            stack.enter_context(tree_pool([make(0), make(1)], SIZES, workers=n, sources=sources))
            for n in WORKERS
        ]
        assert [pool.workers for pool in made] == list(WORKERS)
        yield made


def begin(pool, groups):
    """A search leaves the lanes showing what it tried last, so that each needs its own start."""
    for group in groups:
        low, high = pool.groups[group]
        pool.reset(group, np.arange(low, high), EPISODES[low:high])


class ByLane:
    """Looks states up in the tables of the lane's simulator; notes what it was asked."""

    def __init__(self, rule):
        found = zip(*(mdps.priors(tables(seed), rule) for seed in (0, 1)), strict=True)
        self.prior, self.value = (np.array(x, np.float32) for x in found)
        self.asked = []

    def ask(self, question):
        before = sum(group == question.group for group, _, _, _ in self.asked)
        self.asked.append((question.group, before, question.rows, question.lanes))
        at = OWNERS[question.lanes], question.observation
        return Rows(question.rows, self.prior[at], self.value[at], question.start)


@each_rule
@pytest.mark.parametrize("groups", [[0, 1], [1]])
def test_it_does_not_matter_who_simulates(pools, rule, groups):
    low, high = (0, 10) if 0 in groups else (4, 10)
    seeds = np.random.default_rng(3).integers(2**32, size=high - low, dtype=np.uint32)
    active = np.arange(high - low) != 1
    found, asked = [], []
    for pool in pools:
        begin(pool, groups)
        searcher, evaluate = LaneSearch(pool, groups, BUDGET), ByLane(rule)
        result = searcher.run(evaluate, rule=rule, seeds=seeds, lanes=active, **CONSTANTS)
        found.append((*kept(result)[:3], searcher.simulations.copy()))
        asked.append(evaluate.asked)
    for other in found[1:]:
        for here, there in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(here, there)
    for root, owner, lane in zip(EPISODES[low:], OWNERS[low:], range(high - low), strict=True):
        if active[lane]:
            mdp = tables(int(owner))
            check(result, lane, equations(mdp, int(root), rule, BUDGET, seeds[lane]))
        else:
            check_untouched(result, lane)
    # Questions are about one group each, and about lanes that show something new. Groups go on as
    # soon as they can, so the order of questions is that of the processes.
    in_order = [sorted(one, key=lambda question: question[:2]) for one in asked]
    for (*what, rows, lanes), (*same, others, _) in zip(*in_order, strict=True):
        assert what == same
        np.testing.assert_array_equal(rows, others)
        assert 0 < len(rows) == len(set(rows))
        assert low + 1 not in lanes
        assert set(lanes) <= set(range(*pools[0].groups[what[0]]))


class Late(NamedTuple):
    """An evaluation that is ready when it was looked at often enough."""

    rows: Rows
    looks: list[int]  # left

    def ready(self):
        self.looks[0] -= 1
        return self.looks[0] < 0

    def write(self, arrays):
        self.rows.write(arrays)


class Dawdling(ByLane):
    """Takes its time, another one for every question."""

    def __init__(self, rule, seed):
        super().__init__(rule)
        self._rng = np.random.default_rng(seed)

    def ask(self, question):
        return Late(super().ask(question), [int(self._rng.integers(4))])


def test_it_does_not_matter_which_group_is_evaluated_first(pools):
    seeds = np.random.default_rng(3).integers(2**32, size=10, dtype=np.uint32)
    found, orders = [], set()
    for pool in pools:
        for evaluate in (ByLane(Rule.SAVE), *(Dawdling(Rule.SAVE, seed) for seed in range(3))):
            begin(pool, [0, 1])
            searcher = LaneSearch(pool, [0, 1], BUDGET)
            result = searcher.run(evaluate, rule=Rule.SAVE, seeds=seeds, **CONSTANTS)
            found.append((*kept(result)[:3], searcher.simulations.copy()))
            orders.add(tuple(group for group, *_ in evaluate.asked))
    assert len(orders) > 1
    for other in found[1:]:
        for here, there in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("late", [0, 1])
def test_a_group_is_yielded_with_its_result_while_others_are_searched(pools, late):
    """Whatever its lanes do then is of no consequence for the others."""

    class Slow(ByLane):
        def ask(self, question):
            looks = 2**62 if question.group == late else 0
            return Late(super().ask(question), [looks])

    seeds = np.random.default_rng(3).integers(2**32, size=10, dtype=np.uint32)
    options = {"rule": Rule.SAVE, "seeds": seeds, **CONSTANTS}
    for pool in pools:
        begin(pool, [0, 1])
        searcher, evaluate = LaneSearch(pool, [0, 1], BUDGET), Slow(Rule.SAVE)
        expected = kept(searcher.run(ByLane(Rule.SAVE), **options))
        begin(pool, [0, 1])
        groups = searcher.run_by_group(evaluate, **options)
        assert next(groups) == 1 - late
        assert [before for group, before, *_ in evaluate.asked if group == late] == [0]
        mine = slice(*pool.groups[1 - late])
        np.testing.assert_array_equal(searcher.roots.q_values[mine], expected.q_values[mine])
        pool.advance(1 - late, expected.q_values[mine].argmax(1))
        assert list(groups) == [late]
        pool.receive(1 - late)
        np.testing.assert_array_equal(searcher.roots.q_values, expected.q_values)
        np.testing.assert_array_equal(searcher.roots.visits, expected.visits)


def test_random_rollouts_are_the_same_in_every_process(pools):
    seeds = np.random.default_rng(4).integers(2**32, size=10, dtype=np.uint32)
    found = []
    for pool in pools:
        begin(pool, [0, 1])
        searcher = LaneSearch(pool, [0, 1], BUDGET)
        found.append(kept(searcher.run(None, rule=Rule.UCT, seeds=seeds, **CONSTANTS)))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].q_values, other.q_values)
        np.testing.assert_array_equal(found[0].visits, other.visits)
    masks = np.stack([tables(seed).mask for seed in (0, 1)])[OWNERS, EPISODES]
    np.testing.assert_array_equal(np.isfinite(found[0].q_values), masks)
    np.testing.assert_array_equal(found[0].visits.sum(1), [BUDGET] * 10)


@each_rule
def test_rooms_are_used_again_from_search_to_search(rule):
    """Whatever was searched before, the result is that of a new room."""
    rng = np.random.default_rng(0)
    mdp = tables(2)
    pool = pool_at(TableSimulator(mdp), [0] * 5, [3, 2])
    used = LaneSearch(pool, [0, 1], BUDGET)
    for _ in range(6):
        roots, active = rng.integers(0, 12, 5), rng.random(5) < 0.7
        seeds = rng.integers(2**32, size=5, dtype=np.uint32)
        found = []
        for searcher in (used, LaneSearch(pool, [0, 1], BUDGET)):
            for lane, root in enumerate(roots):
                pool.place(lane, Place(int(root), 0))
            options = {"rule": rule, "seeds": seeds, "lanes": active, **CONSTANTS}
            found.append(kept(searcher.run(evaluator(mdp, rule), **options)))
        np.testing.assert_array_equal(found[0].q_values, found[1].q_values)
        np.testing.assert_array_equal(found[0].visits, found[1].visits)


def test_priors_are_those_of_where_the_lanes_stand():
    mdp, roots = tables(2), np.array([4, 0, 9, 9])
    searcher = LaneSearch(pool_at(TableSimulator(mdp), roots, [1, 3]), [0, 1], 0)
    active = np.array([True, True, False, True])
    found = searcher.priors(evaluator(mdp, Rule.SAVE), active)
    expected = np.where(mdp.mask[roots], mdp.prior[roots], -np.inf)
    np.testing.assert_array_equal(found.q_values[active], expected[active])
    assert not found.explored.any()
    assert not searcher.simulations.any()
    check_untouched(found, 2)


def test_noise_changes_the_roots_of_the_lanes_it_is_given():
    """Below the root, which no way leads back to, the policy stays as it is."""
    mdp = tables(5)
    mdp = mdp._replace(next_state=1 + mdp.next_state % 11)
    loud = np.random.default_rng(0).dirichlet(np.ones(7), 5).astype(np.float32)
    active, seeds = np.array([True, False, True, True, True]), np.arange(5, dtype=np.uint32)

    def noise(priors, which):
        priors[:] = np.where(priors > -np.inf, loud[which], -np.inf)

    searcher = LaneSearch(pool_at(TableSimulator(mdp), [0] * 5, [3, 2]), [0, 1], BUDGET)
    result = searcher.run(
        evaluator(mdp, Rule.PUCT), rule=Rule.PUCT, seeds=seeds, lanes=active, noise=noise,
        **CONSTANTS,
    )  # fmt: skip
    for lane in np.flatnonzero(active):
        prior = mdp.prior.copy()
        prior[0] = loud[lane]
        noisy = mdp._replace(prior=prior)
        check(result, lane, equations(noisy, 0, Rule.PUCT, BUDGET, seeds[lane]))
    assert len({tuple(row) for row in result.visits[active]}) > 1


def test_a_lane_whose_simulator_fails_is_left_out_and_the_others_go_on():
    mdp, roots = tables(0), [3, 8, 3, 5]
    seeds = np.arange(4, dtype=np.uint32)
    first_try = int(np.argmax(np.where(mdp.mask[8], mdp.prior[8], -np.inf)))
    outcomes = [
        equations(mdp, root, Rule.SAVE, BUDGET, seed)
        for root, seed in zip(roots, seeds, strict=True)
    ]
    failing = TableSimulator(mdp, fails=frozenset({(8, first_try)}))
    pool = pool_at(failing, roots, [2, 2])
    result = LaneSearch(pool, [0, 1], BUDGET).run(
        evaluator(mdp, Rule.SAVE), rule=Rule.SAVE, seeds=seeds, **CONSTANTS
    )
    assert pool.lost[1]
    assert pool.faults[0] == pool.lost.sum() < 4
    for lane, outcome in enumerate(outcomes):
        if pool.lost[lane]:
            check_untouched(result, lane)
        else:
            check(result, lane, outcome)
    # Lost lanes take no part until they are reset.
    pool.place(0, Place(roots[0], 0))
    calls = failing.count("step")
    again = LaneSearch(pool, [0], BUDGET)
    result = again.run(evaluator(mdp, Rule.SAVE), rule=Rule.SAVE, seeds=seeds[:2], **CONSTANTS)
    check_untouched(result, 1)
    check(result, 0, outcomes[0])
    assert failing.count("step") >= calls + again.simulations.sum()
    assert again.simulations[1] == 0


def steps_of_lanes(mdp, roots, seeds):
    """The pairs of state and action that a search from each root uses, in their order."""
    found = []
    for root, seed in zip(roots, seeds, strict=True):
        simulator = TableSimulator(mdp)
        searcher = LaneSearch(pool_at(simulator, [root], [1], seats=1), [0], BUDGET)
        searcher.run(evaluator(mdp, Rule.SAVE), rule=Rule.SAVE, seeds=seed[None], **CONSTANTS)
        found.append([(call[1], call[3]) for call in simulator.calls if call[0] == "step"])
    return found


@pytest.mark.parametrize("workers", WORKERS)
def test_a_simulator_that_fails_late_in_a_search_costs_its_lane_alone(workers):
    mdp, roots, seeds = tables(0), EPISODES[:8], np.arange(8, dtype=np.uint32)
    steps = steps_of_lanes(mdp, roots, seeds)
    # What some lanes do, and none of them at first.
    pairs = {pair for own in steps for pair in own} - {pair for own in steps for pair in own[:4]}
    pair = max(pairs, key=lambda pair: (sum(pair in own for own in steps) in (2, 3), pair))
    expected = np.array([pair in own for own in steps])
    assert 1 < expected.sum() < 4
    options = {"fails": [pair]}
    source = Source("tests.search.table_simulators:make", 0, options)
    said = []
    with tree_pool(
        [make(**options)], [3, 5], workers=workers, sources=[source], warn=said.append
    ) as pool:
        for group, (low, high) in enumerate(pool.groups):
            pool.reset(group, np.arange(low, high), roots[low:high])
        searcher = LaneSearch(pool, [0, 1], BUDGET)
        result = searcher.run(evaluator(mdp, Rule.SAVE), rule=Rule.SAVE, seeds=seeds, **CONSTANTS)
        np.testing.assert_array_equal(pool.lost, expected)
        assert pool.faults[0] == expected.sum()
        assert all("ValueError" in text for text in said)
        for lane, own in enumerate(steps):
            if expected[lane]:
                check_untouched(result, lane)
                assert searcher.simulations[lane] == own.index(pair)
            else:
                check(result, lane, equations(mdp, roots[lane], Rule.SAVE, BUDGET, seeds[lane]))
                assert searcher.simulations[lane] == len(own)


class Deadly(ByLane):
    """Ends a worker process when it is asked about a group for the n-th time."""

    def __init__(self, pool, group, number):
        super().__init__(Rule.SAVE)
        self._worker, self._group, self._left = pool._workers[0].process, group, number

    def ask(self, question):
        self._left -= question.group == self._group
        if question.group == self._group and self._left == 0:
            os.kill(self._worker.pid, signal.SIGKILL)
            assert have_ended([self._worker.pid])
        return super().ask(question)


@pytest.mark.parametrize(
    "moment",
    [*(pytest.param(when, marks=pytest.mark.slow) for when in ((0, 1), (1, 2), (0, 3))), (1, 3)],
    ids=str,
)  # fmt: skip
def test_a_worker_that_ends_in_a_search_costs_its_lanes_alone(moment):
    """Trees and states of the others go on; the next search has all lanes again."""
    sources = [Source("tests.search.table_simulators:make", seed, {}) for seed in (0, 1)]
    seeds, said = np.arange(10, dtype=np.uint32), []
    with tree_pool([make(0), make(1)], SIZES, workers=2, sources=sources, warn=said.append) as pool:
        begin(pool, [0, 1])
        searcher = LaneSearch(pool, [0, 1], BUDGET)
        options = {"rule": Rule.SAVE, "seeds": seeds, **CONSTANTS}
        result = searcher.run(Deadly(pool, *moment), **options)
        mine = [0, 1, 4, 5, 6]  # of the first worker, all of them of the first simulator
        assert np.flatnonzero(pool.lost).tolist() == mine
        assert pool.faults.tolist() == [1, 0]
        assert len(said) == 1
        outcomes = [
            equations(tables(int(owner)), int(root), Rule.SAVE, BUDGET, seed)
            for owner, root, seed in zip(OWNERS, EPISODES, seeds, strict=True)
        ]
        for lane, outcome in enumerate(outcomes):
            if lane in mine:
                check_untouched(result, lane)
            else:
                check(result, lane, outcome)
                assert searcher.simulations[lane] == outcome.simulator_calls
        begin(pool, [0, 1])
        result = searcher.run(ByLane(Rule.SAVE), **options)
        assert not pool.lost.any()
        for lane, outcome in enumerate(outcomes):
            check(result, lane, outcome)


def test_a_search_draws_its_own_luck_and_a_real_step_has_the_luck_it_is_given():
    mdp = tables(1, masked=False)
    dice = Dice(mdp, masked=False)
    seeds = np.array([7, 2**32 - 1, 0], np.uint32)
    pool = pool_at(dice, [2, 2, 6], [2, 1])
    searcher = LaneSearch(pool, [0, 1], BUDGET)

    def worthless(states, mask):
        return np.zeros((len(states), 7), np.float32), np.zeros(len(states), np.float32)

    result = searcher.run(worthless, rule=Rule.UCT, c=1.0, discount=0.0, seeds=seeds)
    samples = [call for call in dice.calls if call[0] == "step"]
    assert searcher.simulations.tolist() == [BUDGET] * 3  # no step ends an episode
    assert len(samples) == 3 * BUDGET
    numbers = [call[-1] for call in samples]
    assert all(0 <= number < 2**31 for number in numbers)
    # Nothing after the first step counts here: an action's value is the mean of what its steps
    # paid. With few visits, every one of them draws another outcome.
    for lane, seed in enumerate(seeds.tolist()):
        drawn = [luck(rules.luck(seed, number)) for number in range(BUDGET)]
        for action in np.flatnonzero(result.explored[lane]):
            expected = np.mean(drawn[: result.visits[lane, action]])
            assert np.isclose(result.q_values[lane, action], expected, atol=1e-6)

    dice.calls.clear()
    for group, (actions, seeds) in enumerate((([3, 4], [11, 12]), ([0], [13]))):
        pool.advance(group, np.array(actions), np.array(seeds))
        pool.receive(group)
    assert [call[-1] for call in dice.calls] == [11, 12, 13]
    np.testing.assert_allclose(pool.arrays.reward, [luck(11), luck(12), luck(13)])


class Coin:
    """The first step tosses a coin; to guess it pays 1 and ends the episode."""

    num_actions = 2
    stochastic = True

    def reset(self, seed):
        return None

    def step(self, state, action, seed):
        if state is not None:
            return state, float(action == state), True, False
        return int(np.random.default_rng(seed).integers(2)), 0.0, False, False

    def observe(self, state):
        return np.zeros(1, np.float32)


def test_rollouts_do_not_know_the_luck_of_the_step_before_them():
    lanes = 2000
    result = search.uct(Coin(), [None] * lanes, budget=1, discount=1.0)
    guessed = result.q_values[result.explored].mean()
    assert abs(guessed - 0.5) < 4 * 0.5 / np.sqrt(lanes)


class Named(TableSimulator):
    """Shows a dictionary."""

    def observe(self, place):
        return {"state": np.int32(place.state), "rest": np.full((2, 3), place.state / 7)}


def test_observations_may_be_dictionaries(ties):
    mdp = tables(6)

    def q_function(seen):
        np.testing.assert_allclose(seen["rest"][:, 1, 2], seen["state"] / 7, rtol=1e-6)
        return mdp.prior[seen["state"]]

    result = search.save(Named(mdp), PLACES, q_function, budget=9, **CONSTANTS)
    for lane, root in enumerate(ROOTS):
        check(result, lane, equations(mdp, root, Rule.SAVE, 9, ties[0][lane]))


def test_a_real_step_that_the_search_has_tried_is_not_simulated_again():
    mdp = tables(3)
    simulator = TableSimulator(mdp)
    pool = pool_at(simulator, [1], [1])
    searcher = LaneSearch(pool, [0], BUDGET)
    result = searcher.run(
        evaluator(mdp, Rule.SAVE), rule=Rule.SAVE, seeds=np.array([0], np.uint32), **CONSTANTS
    )
    action = int(result.visits[0].argmax())
    calls = simulator.count("step")
    pool.advance(0, np.array([action]))
    pool.receive(0)
    assert simulator.count("step") == calls
    assert pool.arrays.reward[0] == mdp.reward[1, action]
    assert pool.observation(np.array([0]))[0] == mdp.next_state[1, action]


# One call on a list of states.


@pytest.fixture
def ties(monkeypatch):
    """The seeds that searches broke their ties with."""
    seen, run = [], LaneSearch.run

    def spied(self, *arguments, **options):
        seen.append(options["seeds"])
        return run(self, *arguments, **options)

    monkeypatch.setattr(LaneSearch, "run", spied)
    return seen


ROOTS = [0, 4, 9, 4]
PLACES = [Place(root, 0) for root in ROOTS]


def with_short_episodes():
    """Rollouts come to an end soon."""
    return tables(6, ends=0.5)


def test_save_on_a_list_of_states(ties):
    mdp = tables(6)
    prior = np.random.default_rng(0).normal(size=mdp.prior.shape).astype(np.float32)
    result = search.save(
        TableSimulator(mdp), PLACES, lambda seen: prior[seen], budget=20, **CONSTANTS
    )
    for lane, root in enumerate(ROOTS):
        check(
            result, lane, equations(mdp._replace(prior=prior), root, Rule.SAVE, 20, ties[0][lane])
        )


def test_puct_on_a_list_of_states(ties):
    mdp = tables(6)
    logits = np.where(mdp.mask, np.log(np.maximum(mdp.prior, 1e-9)), 5.0)  # masked ones tempt

    def policy_value(seen):
        return logits[seen] + 1.0, mdp.value[seen]

    options = {"budget": 20, **CONSTANTS}
    result = search.puct(TableSimulator(mdp), PLACES, policy_value, **options)
    for lane, root in enumerate(ROOTS):
        check(result, lane, equations(mdp, root, Rule.PUCT, 20, ties[0][lane]))
    noisy = search.puct(TableSimulator(mdp), PLACES, policy_value, noise=1.0, **options)
    assert not np.array_equal(noisy.visits, result.visits)
    assert not noisy.visits[~mdp.mask[ROOTS]].any()


def test_uct_on_a_list_of_states(ties):
    """Where all actions of a state do the same, there is one random rollout only."""
    rng = np.random.default_rng(0)
    after = np.minimum(np.arange(12) + rng.integers(1, 4, 12), 11)
    reward, ends = rng.uniform(-1, 1, 12), np.arange(12) == 11
    value = np.zeros(12)
    for state in reversed(range(12)):
        value[state] = reward[state] + DISCOUNT * (not ends[state]) * value[after[state]]
    wide = np.ones((1, 7), int)
    mdp = tables(6)._replace(
        next_state=after[:, None] * wide, reward=reward[:, None] * wide,
        terminal=ends[:, None] * wide > 0, value=value,
    )  # fmt: skip
    result = search.uct(TableSimulator(mdp), PLACES, budget=20, **CONSTANTS)
    for lane, root in enumerate(ROOTS):
        check(result, lane, equations(mdp, root, Rule.UCT, 20, ties[0][lane]))


class Twin:
    """The tables in JAX."""

    def __init__(self, mdp):
        self.num_actions = mdp.mask.shape[1]
        self._after, self._reward = jnp.asarray(mdp.next_state, jnp.int32), jnp.asarray(mdp.reward)
        self._ends, self._mask = jnp.asarray(mdp.terminal), jnp.asarray(mdp.mask)

    def step(self, state, action):
        at = (state, action)
        return self._after[at], self._reward[at], self._ends[at], jnp.zeros((), bool)

    def observe(self, state):
        return state

    def action_mask(self, state):
        return self._mask[state]


def test_a_list_and_its_twin_in_jax_have_the_same_result():
    """Random values never tie; both back ends draw their ties from other numbers."""
    mdp = tables(6)
    prior = np.random.default_rng(1).normal(size=mdp.prior.shape).astype(np.float32)
    options = {"budget": 10, "c": 2.0, "discount": 0.99}
    here = search.save(TableSimulator(mdp), PLACES, lambda seen: prior[seen], **options)
    table = jnp.asarray(prior)
    twin = jax.jit(lambda states: search.save(Twin(mdp), states, lambda s: table[s], **options))
    there = twin(jnp.array(ROOTS, jnp.int32))
    np.testing.assert_array_equal(here.visits, there.visits)
    np.testing.assert_allclose(here.q_values, there.q_values, atol=1e-5)


def test_the_same_seed_gives_the_same_search_and_another_one_another():
    simulator = TableSimulator(with_short_episodes())
    first, again, other = (search.uct(simulator, PLACES, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.q_values, again.q_values)
    assert not np.array_equal(first.visits, other.visits)


@each_rule
def test_trees_can_be_drawn(rule):
    mdp = with_short_episodes()
    simulator, options = TableSimulator(mdp), {"budget": 9, "return_tree": True, **CONSTANTS}
    result = {
        Rule.SAVE: lambda: search.save(simulator, PLACES, lambda s: mdp.prior[s], **options),
        Rule.UCT: lambda: search.uct(simulator, PLACES, **options),
        Rule.PUCT: lambda: search.puct(
            simulator, PLACES, lambda s: (mdp.prior[s], mdp.value[s]), **options
        ),
    }[rule]()
    for lane in range(len(PLACES)):
        nodes = ET.fromstring(draw.tree_svg(result.tree, lane, rule=rule)).findall(
            ".//*[@data-node]"
        )
        # A node for the root and one for everything that was simulated.
        made = len(nodes) - 1
        assert result.explored[lane].sum() <= made <= 9


def test_groups_have_a_tree_each():
    mdp = tables(0)
    searcher = LaneSearch(pool_at(TableSimulator(mdp), [1, 2, 3], [2, 1]), [0, 1], 4)
    result = searcher.run(
        evaluator(mdp, Rule.SAVE), rule=Rule.SAVE, seeds=np.zeros(3, np.uint32), return_tree=True,
        **CONSTANTS,
    )  # fmt: skip
    assert [tree.chosen[:, 0].tolist() for tree in result.tree] == [[4, 4], [4]]
    assert all("<svg" in draw.tree_svg(tree) for tree in result.tree)


# The trees of the host, one step at a time.


def step_by_step(
    trees, mdp, roots, rule, seeds, budget, lanes=None, drop_at=None, shuffle=None, out=None
):
    """Search with `host.Search`; rows of priors lie in any order, and lanes may be dropped."""
    prior, value = (x.astype(np.float32) for x in mdps.priors(mdp, rule))
    order = np.arange(len(roots)) if shuffle is None else shuffle
    rows = np.argsort(order)
    states = np.zeros((len(roots), budget + 1), int)
    states[:, 0] = roots
    every = np.arange(len(roots))
    trees.begin(prior[roots[order]], rule=rule, seeds=seeds, lanes=lanes, rows=rows, **CONSTANTS)
    for k in range(budget):
        nodes, actions = trees.select()
        if drop_at is not None and k == drop_at[0]:
            trees.drop(np.array(drop_at[1]))
        at = states[every, nodes], np.maximum(actions, 0)
        states[:, k + 1] = mdp.next_state[at]
        seen = states[order, k + 1]
        trees.expand(mdp.reward[at], mdp.terminal[at], prior[seen], value[seen], rows)
    q_values, visits = out or (np.zeros((len(roots), prior.shape[1])) for _ in range(2))
    trees.result(q_values, visits)
    return SearchResult(q_values, visits, visits > 0)


@each_rule
@given(
    data=st.data(), seed=st.integers(0, 2**31), budget=st.integers(1, 15),
    order=st.permutations(range(4)),
)  # fmt: skip
@settings(max_examples=25)
def test_rows_say_which_prior_belongs_to_a_lane(rule, data, seed, budget, order):
    mdp = data.draw(mdps.mdps(rule))
    roots, seeds = np.array([0, 3, 7, 3]), seed + np.arange(4)
    trees = host.Search(4, budget, mdps.ACTIONS)
    result = step_by_step(trees, mdp, roots, rule, seeds, budget, shuffle=np.array(order))
    for lane in range(4):
        check(result, lane, equations(mdp, int(roots[lane]), rule, budget, seeds[lane]))


@each_rule
def test_dropped_lanes_stay_as_they_were_and_the_others_do_not_notice(rule):
    mdp, roots, seeds = tables(0), np.array([1, 2, 3, 4]), np.arange(4)
    out = np.full((4, 7), 5.0, np.float32), np.full((4, 7), 3, np.int32)
    trees = host.Search(4, BUDGET, 7)
    result = step_by_step(
        trees, mdp, roots, rule, seeds, BUDGET, np.array([0, 1, 3]), (5, [1]), out=out
    )
    for lane in (1, 2):  # dropped, and never there
        assert np.all(result.q_values[lane] == 5.0)
        assert np.all(result.visits[lane] == 3)
    for lane in (0, 3):
        check(result, lane, equations(mdp, int(roots[lane]), rule, BUDGET, seeds[lane]))
    # The next search is a new one.
    result = step_by_step(trees, mdp, roots[::-1], rule, seeds, BUDGET)
    fresh = step_by_step(host.Search(4, BUDGET, 7), mdp, roots[::-1], rule, seeds, BUDGET)
    np.testing.assert_array_equal(result.q_values, fresh.q_values)
    np.testing.assert_array_equal(result.visits, fresh.visits)
