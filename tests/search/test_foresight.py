"""States that are simulated ahead: they change how long a search takes, and nothing else."""

from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.search import tree_lanes
from save_rl.search.nodes import tree_nodes
from save_rl.search.rules import Rule
from save_rl.search.simulators import LaneSearch, Plain
from save_rl.search.tree_lanes import tree_pool
from tests.search import mdps
from tests.search.table_simulators import TableSimulator, tables
from tests.search.test_simulators import CONSTANTS, check_untouched, evaluator, lanes, pool_at


@pytest.fixture(scope="module", autouse=True)
def deep():
    """Searches foresee how deep they may ever go: the tables have few actions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_lanes, "SHALLOW", np.inf)
        yield


class Counting(Plain):
    """A network that counts how often it is asked about new states."""

    def ask(self, question):
        COUNTS.append((question.of_roots, len(question.rows)))
        return super().ask(question)


COUNTS: list[tuple[bool, int]] = []


def searched(simulator, roots, sizes, seats, budget, evaluate, **options):
    """Q-values, visits, simulations, trees, and what the network was asked."""
    COUNTS.clear()
    pool = pool_at(simulator, roots, sizes, seats=seats)
    search = LaneSearch(pool, range(len(sizes)), budget)
    found = search.run(Counting(evaluate), return_tree=True, **options)
    trees = found.tree if isinstance(found.tree, list) else [found.tree]
    nodes = [str(tree_nodes(tree, i)) for tree in trees for i in range(len(tree.parent))]
    return found.q_values, found.visits, search.simulations, nodes, list(COUNTS)


@given(
    data=st.data(), lanes=lanes(), budget=st.integers(0, 30), seats=st.integers(2, 16),
    c=st.sampled_from([0.0, 0.1, 2.0]), discount=st.sampled_from([0.5, 1.0]),
)  # fmt: skip
@settings(max_examples=60)
def test_what_is_foretold_changes_nothing(data, lanes, budget, seats, c, discount):
    mdp = data.draw(mdps.mdps(Rule.SAVE))
    sizes, roots, seeds, active = lanes
    options = {"c": c, "discount": discount, "rule": Rule.SAVE, "seeds": seeds, "lanes": active}
    one, several = (
        searched(TableSimulator(mdp), roots, sizes, n, budget, evaluator(mdp, Rule.SAVE), **options)
        for n in (1, seats)
    )
    for here, there in zip(one[:3], several[:3], strict=True):
        np.testing.assert_array_equal(here, there)
    for lane in np.flatnonzero(active):
        assert one[3][lane] == several[3][lane]  # node by node, in their order
    # No round is for nothing, so there are no more of them than without foresight.
    assert len(several[4]) <= len(one[4])


def promised(seed, states=40, actions=4, discount=0.9):
    """A tree of states whose priors are what they promise: the true values of all actions."""
    rng = np.random.default_rng(seed)
    mdp = tables(seed, states, actions, ends=0.1, masked=False)
    after = np.minimum(np.arange(states)[:, None] + rng.integers(1, 4, mdp.mask.shape), states - 1)
    ends = mdp.terminal | (after == states - 1)
    best, prior = np.zeros(states), np.zeros(mdp.mask.shape)
    for state in reversed(range(states)):
        prior[state] = mdp.reward[state] + discount * np.where(ends[state], 0.0, best[after[state]])
        best[state] = prior[state].max()
    return mdp._replace(next_state=after, terminal=ends, prior=prior.astype(np.float32))


@given(seed=st.integers(0, 2**32 - 1), budget=st.integers(1, 30), c=st.sampled_from([0.3, 2.0]))
@settings(max_examples=30)
def test_where_priors_keep_their_promise_nothing_is_simulated_in_vain(seed, budget, c):
    mdp = promised(seed)
    simulator = TableSimulator(mdp)
    seeds = np.array([seed], np.uint32)
    *_, simulations, _, _ = searched(
        simulator, [0], [1], 16, budget, evaluator(mdp, Rule.SAVE), c=c, discount=0.9,
        rule=Rule.SAVE, seeds=seeds,
    )  # fmt: skip
    assert simulator.count("step") == simulations.sum()


def test_a_round_knows_no_more_than_the_actions_of_states_that_were_seen():
    """Four actions of the root, then sixteen of its children: 20 simulations in two rounds."""
    mdp = tables(0, 12, 4, ends=0.0, masked=False)
    mdp = mdp._replace(reward=0 * mdp.reward, prior=0 * mdp.prior)
    *_, visits, simulations, _, counts = searched(
        TableSimulator(mdp), [3], [1], 16, 20, evaluator(mdp, Rule.SAVE), c=1.0, discount=1.0,
        rule=Rule.SAVE, seeds=np.array([5], np.uint32),
    )  # fmt: skip
    assert (visits.tolist(), simulations.tolist()) == ([[5, 5, 5, 5]], [20])
    assert counts == [(True, 1), (False, 4), (False, 16)]


@pytest.mark.parametrize("rule", [Rule.UCT, Rule.PUCT], ids=lambda rule: rule.name)
def test_rules_whose_priors_promise_nothing_simulate_one_state_at_a_time(rule):
    mdp = tables(0)
    simulator = TableSimulator(mdp)
    *_, simulations, _, counts = searched(
        simulator, [3, 5], [2], 16, 12, evaluator(mdp, rule), rule=rule,
        seeds=np.arange(2, dtype=np.uint32), **CONSTANTS,
    )  # fmt: skip
    assert simulator.count("step") == simulations.sum()
    assert max(count for _, count in counts) <= 2


def test_a_wrong_guess_that_fails_costs_nothing():
    """A simulator raises where the search never goes, but a guess does."""
    mdp, seeds = tables(4, 12, 7), np.arange(1, dtype=np.uint32)
    options = {"rule": Rule.SAVE, "seeds": seeds, "c": 0.1, "discount": 0.9}

    def steps(seats):
        simulator = TableSimulator(mdp)
        searched(simulator, [root], [1], seats, 12, evaluator(mdp, Rule.SAVE), **options)
        return {(call[1], call[3]) for call in simulator.calls if call[0] == "step"}

    found = 0
    for root in range(12):
        needed = steps(1)
        for pair in steps(16) - needed:
            failing = TableSimulator(mdp, fails=frozenset({pair}))
            pool = pool_at(failing, [root], [1])
            result = LaneSearch(pool, [0], 12).run(evaluator(mdp, Rule.SAVE), **options)
            assert not pool.lost.any()
            expected = searched(
                TableSimulator(mdp), [root], [1], 1, 12, evaluator(mdp, Rule.SAVE), **options
            )
            np.testing.assert_array_equal(result.q_values, expected[0])
            assert pair in [(call[1], call[3]) for call in failing.calls if call[0] == "step"]
            found += 1
        failing = TableSimulator(mdp, fails=frozenset({max(needed)}))
        pool = pool_at(failing, [root], [1])
        result = LaneSearch(pool, [0], 12).run(evaluator(mdp, Rule.SAVE), **options)
        assert pool.lost.all()
        check_untouched(result, 0)
    assert found > 0


def test_searches_that_go_deep_simulate_one_state_at_a_time(monkeypatch):
    monkeypatch.setattr(tree_lanes, "SHALLOW", 1.0)
    mdp, seeds = tables(0, 12, 7, masked=False), np.array([3], np.uint32)
    for budget, most in ((6, 6), (7, 1)):
        simulator = TableSimulator(mdp)
        *_, simulations, _, counts = searched(
            simulator, [3], [1], 16, budget, evaluator(mdp, Rule.SAVE), rule=Rule.SAVE,
            seeds=seeds, **CONSTANTS,
        )  # fmt: skip
        assert max(count for _, count in counts) <= most
        if most == 1:
            assert simulator.count("step") == simulations.sum()
    assert not tree_lanes.is_shallow(10, 6)  # as in Taxi
    assert tree_lanes.is_shallow(10, tree_lanes.slots_for(10, 8610))  # as in Covering


def test_seats_are_as_many_as_a_simulator_can_use():
    from tests.search.table_simulators import Dice

    with closing(tree_pool([Dice(tables(1, masked=False), masked=False)], [2])) as pool:
        assert pool.arrays["seat asked"].shape == (2, 1)  # chance: outcomes depend on what was seen
    with closing(tree_pool([TableSimulator(tables(0))], [2])) as pool:
        assert pool.arrays["seat asked"].shape == (2, 16)
