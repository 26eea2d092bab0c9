"""With chance, searches average over outcomes: as the equations say, and in the limit exactly."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from save_rl.search import device, draw, host, rules
from save_rl.search.nodes import tree_nodes
from save_rl.search.outcomes import OUTCOMES as OUTCOMES_OF
from save_rl.search.rules import PAPER_RULES, TIE_TOLERANCE, Rule
from tests.search import chance_reference as reference
from tests.search.chance_reference import ChanceMdp
from tests.search.mdps import prefer, priors

pytestmark = pytest.mark.xdist_group("device_search")

STATES, ACTIONS, OUTCOMES = 10, 5, 4
CONSTANTS = {
    "c": st.sampled_from([0.0, 0.1, 1.0, 2.0]),
    "discount": st.sampled_from([0.5, 0.99, 1.0]),
}


@st.composite
def mdps(draw: st.DrawFn, rule: Rule) -> ChanceMdp:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape, full = (STATES, ACTIONS), (STATES, ACTIONS, OUTCOMES)
    branching = draw(st.integers(1, ACTIONS))
    mask = np.zeros(shape, bool)
    mask[:, :branching] = rng.random((STATES, branching)) < draw(st.sampled_from([0.5, 1.0]))
    mask[np.arange(STATES), rng.integers(0, branching, STATES)] = True
    prior = rng.uniform(-1, 1, shape)
    if rule == Rule.PUCT:
        prior = np.where(mask, np.exp(prior), 0.0)
        prior /= prior.sum(1, keepdims=True)
    rewards = rng.uniform(-1, 1, full)
    if draw(st.booleans()):
        rewards = np.round(rewards)  # ties
    return ChanceMdp(
        next_state=rng.integers(0, STATES, full),
        reward=rewards,
        terminal=rng.random(full) < draw(st.sampled_from([0.0, 0.3])),
        mask=mask,
        prior=prior,
        value=rng.uniform(-1, 1, STATES),
    )


def luck_of(seed):
    """The seed of the step to a path, from the lane's seed."""

    def node(path):
        return rules.luck(luck(path), path[-1][0], rules.NODE) if path else seed

    def luck(path):
        return rules.luck(node(path[:-1]), path[-1][1], rules.OUTCOME)

    return luck


def expected(mdp, rule, budget, c, discount, seed):
    outcome = reference.search(
        mdp, 0, rule.name.lower(), budget, c, discount, luck_of(seed), prefer(seed), TIE_TOLERANCE
    )
    assume(not outcome.ambiguous)
    return outcome


def host_search(mdp, roots, rule, budget, c, discount, seeds, return_tree=False):
    prior, value = priors(mdp, rule)
    prior = prior.astype(np.float32)
    states = np.zeros((len(roots), budget + 1), int)
    states[:, 0] = roots
    lanes = np.arange(len(roots))

    def step(nodes, actions, new, luck):
        asked = actions >= 0
        at = states[lanes, nodes], np.maximum(actions, 0), luck % mdp.reward.shape[2]
        after = mdp.next_state[at]
        states[asked, new] = after[asked]
        return mdp.reward[at], mdp.terminal[at], prior[after], value[after]

    return host.search(
        prior[roots], step, rule=rule, budget=budget, c=c, discount=discount,
        seeds=np.asarray(seeds, np.uint32), stochastic=True, return_tree=return_tree,
    )  # fmt: skip


class ChanceTables:
    """The same as a JAX environment: luck is the number that a key was made of."""

    num_actions, stochastic = ACTIONS, True

    def __init__(self, tables):
        self.tables = tables

    def step(self, state, action, key):
        at = (state, action, key[-1] % OUTCOMES)
        done = self.tables.terminal[at]
        return self.tables.next_state[at], self.tables.reward[at], done, done & False


@functools.partial(jax.jit, static_argnames=("rule", "budget"))
def _device_search(tables, prior, value, roots, rule, budget, c, discount, seeds):
    return device.search(
        ChanceTables(tables), roots, lambda states, key: (prior[states], value[states]), rule=rule,
        budget=budget, c=c, discount=discount, seeds=seeds, key=jax.random.PRNGKey(0),
        return_tree=True,
    )  # fmt: skip


def device_search(mdp, roots, rule, budget, c, discount, seeds):
    prior, value = (jnp.asarray(x, jnp.float32) for x in priors(mdp, rule))
    single = {"f": np.float32, "i": np.int32, "b": np.bool_}
    tables = ChanceMdp(*(jnp.asarray(x.astype(single[x.dtype.kind])) for x in mdp))
    roots, seeds = jnp.asarray(roots, jnp.int32), jnp.asarray(seeds, jnp.uint32)
    return _device_search(tables, prior, value, roots, rule, budget, c, discount, seeds)


def check(result, lane, outcome):
    np.testing.assert_array_equal(np.asarray(result.visits[lane]), outcome.visits)
    np.testing.assert_allclose(np.asarray(result.q_values[lane]), outcome.q_values, atol=1e-5)


@pytest.mark.parametrize("rule", PAPER_RULES, ids=lambda r: r.name)
@given(data=st.data(), budget=st.integers(0, 70), seed=st.integers(0, 2**32 - 1), **CONSTANTS)
@settings(max_examples=20)
def test_host_equals_the_equations(rule, data, budget, c, discount, seed):
    mdp = data.draw(mdps(rule))
    outcome = expected(mdp, rule, budget, c, discount, seed)
    found = host_search(mdp, np.array([1, 0]), rule, budget, c, discount, [seed] * 2, True)
    check(found, 1, outcome)
    tree, heads = found.tree, []
    child = tree.first_child[1, 0]
    while child != 0:
        heads.append((int(tree.action[1, child]), int(tree.chance[1, child, OUTCOMES_OF])))
        child = tree.sibling[1, child]
    tried = np.flatnonzero(outcome.outcomes)
    assert sorted(heads) == [(a, outcome.outcomes[a]) for a in tried]


SLOW = [Rule.SAVE, *(pytest.param(rule, marks=pytest.mark.slow) for rule in (Rule.UCT, Rule.PUCT))]


@pytest.mark.parametrize("rule", SLOW)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), **CONSTANTS)
@settings(max_examples=15)
def test_device_equals_the_equations_and_the_host(rule, data, c, discount, seed):
    mdp, budget = data.draw(mdps(rule)), 20
    outcome = expected(mdp, rule, budget, c, discount, seed)
    arguments = (np.array([1, 0]), rule, budget, c, discount, [seed] * 2)
    check(device_search(mdp, *arguments), 1, outcome)
    check(host_search(mdp, *arguments), 1, outcome)


def test_both_back_ends_show_the_same_outcomes_in_pictures():
    rng = np.random.default_rng(0)
    mdp = ChanceMdp(
        next_state=rng.integers(0, STATES, (STATES, ACTIONS, OUTCOMES)),
        reward=rng.uniform(-1, 1, (STATES, ACTIONS, OUTCOMES)),
        terminal=np.zeros((STATES, ACTIONS, OUTCOMES), bool),
        mask=np.ones((STATES, ACTIONS), bool),
        prior=rng.uniform(-1, 1, (STATES, ACTIONS)),
        value=np.zeros(STATES),
    )
    arguments = (np.array([1, 0]), Rule.SAVE, 20, 1.0, 0.99, [5, 6])
    found = host_search(mdp, *arguments, return_tree=True), device_search(mdp, *arguments)
    ours, mctx = (sorted(tree_nodes(one.tree, 1)[1:]) for one in found)
    assert len(ours) == 20  # every simulation draws an outcome
    assert [node[:4] for node in ours] == [node[:4] for node in mctx]
    for one, other in zip(ours, mctx, strict=True):
        assert one[4:] == pytest.approx(other[4:], abs=1e-5)
    pictures = [draw.tree_svg(one.tree, 1) for one in found]
    assert all(picture.count("data-node") == 21 for picture in pictures)


def two_layers(seed):
    """State 0 leads to states 1-3, and these to the end, unless the first step was one already."""
    rng = np.random.default_rng(seed)
    full = (4, 2, OUTCOMES)
    last = np.broadcast_to(np.arange(4)[:, None, None] > 0, full)
    return ChanceMdp(
        next_state=rng.integers(1, 4, full),
        reward=rng.uniform(0, 1, full) * (rng.random(full) < 0.5),
        terminal=last | (rng.random(full) < 0.1),
        mask=np.ones((4, 2), bool),
        prior=np.zeros((4, 2)),
        value=np.zeros(4),
    )


def errors(rule, budgets, seeds):
    """Mean distance of the root's best value to the exact one, by budget."""
    found = {budget: [] for budget in budgets}
    for seed in seeds:
        mdp = two_layers(seed)
        exact = reference.expectimax(mdp, 0, 0.9, 1).max()
        for budget in budgets:
            result = host_search(mdp, np.zeros(4, int), rule, budget, 0.5, 0.9, np.arange(4) + seed)
            tried = np.where(result.explored, result.q_values, -np.inf)
            found[budget] += np.abs(tried.max(1) - exact).tolist()
    return [float(np.mean(found[budget])) for budget in budgets]


@pytest.mark.parametrize("rule", [Rule.SAVE, Rule.UCT], ids=lambda r: r.name)
def test_values_come_near_those_of_expectimax_as_the_budget_grows(rule):
    few, more, many = errors(rule, [10, 150, 2000], range(6))
    assert few / 2 > more > 2 * many
    assert many < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Rule.SAVE, Rule.UCT], ids=lambda r: r.name)
def test_values_come_as_near_as_one_likes(rule):
    found = errors(rule, [100, 1000, 10_000, 50_000], range(10))
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.03


def test_an_action_is_worth_the_mean_of_its_outcomes():
    """By hand: one action that pays 0 or 1 and ends the episode. Ten simulations draw as many
    outcomes: 4 √9 is 12."""
    mdp = ChanceMdp(
        next_state=np.zeros((1, 1, 2), int), reward=np.array([[[0.0, 1.0]]]),
        terminal=np.ones((1, 1, 2), bool), mask=np.ones((1, 1), bool), prior=np.zeros((1, 1)),
        value=np.zeros(1),
    )  # fmt: skip
    paid = [luck_of(5)(((0, w),)) % 2 for w in range(10)]
    assert 0 < sum(paid) < 10
    uct = host_search(mdp, np.array([0]), Rule.UCT, 10, 1.0, 0.9, [5])
    assert uct.q_values[0, 0] == pytest.approx(sum(paid) / 10)
    save = host_search(mdp, np.array([0]), Rule.SAVE, 10, 1.0, 0.9, [5])
    assert save.q_values[0, 0] == pytest.approx(sum(paid) / 26)  # the prior, 0, counts 16 times


@given(budget=st.integers(1, 3000))
def test_the_device_has_room_for_all_outcomes(budget):
    outcomes = 1
    for visits in range(1, budget):
        outcomes += outcomes < np.ceil(4 * np.sqrt(visits))
    assert rules.most_outcomes(budget) == outcomes


def test_lucks_are_spread_evenly_and_actions_share_them():
    lucks = np.array([rules.luck(seed, number) for seed in range(100) for number in range(100)])
    assert lucks.min() >= 0
    assert lucks.max() < 2**31
    assert len(set(lucks.tolist())) > 9_900
    for sides in (2, 3, 6):  # a simulator may take the remainder for a die
        counts = np.bincount(lucks % sides, minlength=sides)
        assert np.abs(counts - 10_000 / sides).max() < 4 * np.sqrt(10_000 / sides)
    seed, number = np.uint32(4_000_000_000), np.uint32(7)
    assert int(rules.luck(jnp.asarray(seed), jnp.asarray(number))) == rules.luck(4_000_000_000, 7)
