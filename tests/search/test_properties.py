"""What holds for every search, whatever the rule, the back end and the MDP."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.search import host
from save_rl.search.rules import PAPER_RULES, Rule
from tests.search import mdps
from tests.search.reference import Mdp

# One worker of xdist runs all that searches here on the device: programs are compiled once.
pytestmark = pytest.mark.xdist_group("device_search")

ROOTS = np.array([1, 0])
BACK_ENDS = {
    "host": lambda *arguments: mdps.host_search(*arguments)[0],
    "device": mdps.device_search,
}
CONSTANTS = {
    "budget": st.sampled_from(mdps.DEVICE_BUDGETS),
    "c": st.sampled_from([0.0, 0.1, 2.0]),
    "discount": st.sampled_from([0.5, 1.0]),
    "seed": st.integers(0, 2**32 - 1),
}
each_rule = pytest.mark.parametrize("rule", PAPER_RULES, ids=lambda r: r.name)
each_back_end = pytest.mark.parametrize("back_end", list(BACK_ENDS))


def poisoned(mdp: Mdp) -> Mdp:
    """The same MDP, but a masked action pays NaN: taken at any depth, it would reach the root."""
    return mdp._replace(reward=np.where(mdp.mask, mdp.reward, np.nan))


@each_back_end
@each_rule
@given(data=st.data(), **CONSTANTS)
@settings(max_examples=40)
def test_masked_actions_are_never_taken(back_end, rule, data, budget, c, discount, seed):
    mdp = poisoned(data.draw(mdps.mdps(rule)))
    result = BACK_ENDS[back_end](mdp, ROOTS, rule, budget, c, discount, [seed, seed])
    q_values, visits = np.asarray(result.q_values), np.asarray(result.visits)
    allowed = mdp.mask[ROOTS]
    assert np.all(visits[~allowed] == 0)
    assert np.all(q_values[~allowed] == -np.inf)
    assert np.all(np.isfinite(q_values[allowed]))


@each_back_end
@each_rule
@given(data=st.data(), **CONSTANTS)
@settings(max_examples=40)
def test_every_simulation_is_counted_once(back_end, rule, data, budget, c, discount, seed):
    mdp = data.draw(mdps.mdps(rule))
    result = BACK_ENDS[back_end](mdp, ROOTS, rule, budget, c, discount, [seed, seed])
    np.testing.assert_array_equal(np.asarray(result.visits).sum(1), [budget, budget])
    np.testing.assert_array_equal(np.asarray(result.explored), np.asarray(result.visits) > 0)


@each_back_end
@each_rule
@given(data=st.data(), **CONSTANTS)
@settings(max_examples=40)
def test_untried_actions_keep_what_they_began_with(back_end, rule, data, budget, c, discount, seed):
    mdp = data.draw(mdps.mdps(rule))
    result = BACK_ENDS[back_end](mdp, ROOTS, rule, budget, c, discount, [seed, seed])
    untried = mdp.mask[ROOTS] & (np.asarray(result.visits) == 0)
    start = mdp.prior[ROOTS] if rule == Rule.SAVE else np.zeros_like(mdp.prior[ROOTS])
    np.testing.assert_allclose(
        np.asarray(result.q_values)[untried], start[untried], rtol=1e-6, atol=0
    )


@each_back_end
@each_rule
@given(data=st.data())
@settings(max_examples=10)
def test_without_simulations_nothing_is_explored(back_end, rule, data):
    mdp = data.draw(mdps.mdps(rule))
    result = BACK_ENDS[back_end](mdp, ROOTS, rule, 0, 2.0, 1.0, [5, 6])
    start = mdp.prior[ROOTS] if rule == Rule.SAVE else 0.0
    expected = np.where(mdp.mask[ROOTS], start, -np.inf)
    np.testing.assert_allclose(np.asarray(result.q_values), expected, rtol=1e-6)
    assert not np.asarray(result.visits).any()
    assert not np.asarray(result.explored).any()


@each_rule
@given(data=st.data(), budget=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_the_simulator_is_asked_about_each_terminal_step_once(rule, data, budget, seed):
    mdp = data.draw(mdps.mdps(rule))
    mdp = mdp._replace(terminal=np.ones_like(mdp.terminal))
    result, calls = mdps.host_search(mdp, ROOTS, rule, budget, 2.0, 1.0, [seed, seed + 1])
    np.testing.assert_array_equal(calls, result.explored.sum(1))
    np.testing.assert_array_equal(result.visits.sum(1), [budget, budget])


@each_rule
@given(data=st.data(), budget=st.integers(1, 30), seed=st.integers(0, 2**31))
@settings(max_examples=40)
def test_lanes_do_not_see_each_other(rule, data, budget, seed):
    mdp = data.draw(mdps.mdps(rule))
    roots, seeds = np.arange(mdps.STATES), seed + np.arange(mdps.STATES)
    together, calls = mdps.host_search(mdp, roots, rule, budget, 2.0, 0.99, seeds)
    lane = data.draw(st.integers(0, mdps.STATES - 1))
    alone, calls_alone = mdps.host_search(
        mdp, roots[[lane]], rule, budget, 2.0, 0.99, seeds[[lane]]
    )
    np.testing.assert_array_equal(together.q_values[lane], alone.q_values[0])
    np.testing.assert_array_equal(together.visits[lane], alone.visits[0])
    assert calls[lane] == calls_alone[0]


def always_tied(usable: int, rule: Rule) -> Mdp:
    """Every action ends the episode with nothing: with c = 0 all scores stay 0, tried or not."""
    shape = (mdps.STATES, mdps.ACTIONS)
    mask = np.zeros(shape, bool)
    mask[:, :usable] = True
    return Mdp(
        next_state=np.zeros(shape, int),
        reward=np.zeros(shape),
        terminal=np.ones(shape, bool),
        mask=mask,
        prior=np.where(mask, 1 / usable if rule == Rule.PUCT else 0.0, 0.0),
        value=np.zeros(mdps.STATES),
    )


@each_rule
@pytest.mark.parametrize("seeds", ["in a row", "random"])
def test_ties_are_broken_uniformly_and_afresh(rule, seeds):
    usable, lanes = 6, 6000
    numbers = np.arange(lanes)
    if seeds == "random":
        numbers = np.random.default_rng(1).integers(0, 2**32, lanes)
    roots, mdp = np.zeros(lanes, int), always_tied(usable, rule)
    visits = [
        mdps.host_search(mdp, roots, rule, budget, 0.0, 1.0, numbers)[0].visits
        for budget in (1, 2, 3)
    ]
    # With the same seeds a longer search begins like a shorter one, so the differences are choices.
    first, second, third = (
        step.argmax(1) for step in (visits[0], visits[1] - visits[0], visits[2] - visits[1])
    )
    # Afresh: later choices fall on all actions alike, whatever the earlier ones were.
    for earlier, later in ((first, second), (second, third), (first, third)):
        pairs = np.bincount(earlier * usable + later, minlength=usable**2)
        assert pairs.size == usable**2  # all of them usable actions
        assert scipy.stats.chisquare(pairs).pvalue > 1e-3


@each_rule
def test_ties_are_broken_afresh_at_each_node(rule):
    """At a later state of the path the same tie may fall differently."""
    usable, lanes = 6, 6000
    mdp = always_tied(usable, rule)
    terminal = mdp.terminal.copy()
    terminal[0] = False  # the root leads to state 1, where all ends
    mdp = mdp._replace(terminal=terminal, next_state=np.ones_like(mdp.next_state))
    mdp.reward[1] = np.arange(mdps.ACTIONS)
    # Only what state 1 pays tells which action was chosen there; as it differs from action to
    # action, this is read off those searches whose second simulation repeats the first root action.
    result, _ = mdps.host_search(mdp, np.zeros(lanes, int), rule, 2, 0.0, 1.0, np.arange(lanes))
    again = result.visits.max(1) == 2
    root_action = result.visits.argmax(1)[again]
    total = result.q_values.max(1)[again] * (3 if rule == Rule.SAVE else 2)
    deeper_action = np.rint(total).astype(int)
    pairs = np.bincount(root_action * usable + deeper_action, minlength=usable**2)
    assert pairs.size == usable**2
    assert 0.12 < again.mean() < 0.22  # 1 in 6
    assert scipy.stats.chisquare(pairs).pvalue > 1e-3


@each_rule
@given(data=st.data(), budget=st.integers(1, 30), seed=st.integers(0, 2**31))
@settings(max_examples=25)
def test_the_tree_of_the_host_tells_the_same_story(rule, data, budget, seed):
    mdp = data.draw(mdps.mdps(rule))
    prior, value = mdps.priors(mdp, rule)
    states = np.zeros((1, budget + 1), int)

    def step(nodes, actions, new_node):
        before, action = states[[0], nodes], np.maximum(actions, 0)
        after = mdp.next_state[before, action]
        states[0, new_node] = after[0]
        return mdp.reward[before, action], mdp.terminal[before, action], prior[after], value[after]

    arguments = {"rule": rule, "budget": budget, "c": 2.0, "discount": 0.99, "seeds": [seed]}
    result = host.search(prior[:1], step, return_tree=True, **arguments)
    tree = result.tree
    assert tree.chosen[0, 0] == budget
    children, child = {}, tree.first_child[0, 0]
    while child != 0:
        assert tree.parent[0, child] == 0
        children[tree.action[0, child]] = tree.visits[0, child]
        child = tree.sibling[0, child]
    assert children == {a: n for a, n in enumerate(result.visits[0]) if n > 0}
    assert host.search(prior[:1], step, **arguments).tree is None


@given(data=st.data(), seed=st.integers(0, 2**31))
@settings(max_examples=25)
def test_the_tree_of_the_device_tells_the_same_story(data, seed):
    mdp = data.draw(mdps.mdps(Rule.SAVE))
    seeds = [seed, seed + 1]
    result = mdps.device_search(mdp, np.zeros(2, int), Rule.SAVE, 10, 2.0, 0.99, seeds)
    tree = result.tree
    for lane in (0, 1):
        # mctx counts the evaluation of a node as its first visit.
        node_visits = np.asarray(tree.node_visits[lane])
        children = np.asarray(tree.children_index[lane, 0])
        visits = np.where(children >= 0, node_visits[children], 0)
        np.testing.assert_array_equal(visits, np.asarray(result.visits[lane]))
        assert node_visits[0] == 10 + 1
