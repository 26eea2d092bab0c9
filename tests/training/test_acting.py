"""Which action is taken in the end, and what a random rollout is worth."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.agents import get_agent
from save_rl.networks.table import TableNetwork
from save_rl.search.lanes import masks, random_action, rollouts
from save_rl.training.device.acting import choose_action, run_search
from save_rl.types import SearchResult

DRAWS = 6000
ACTIONS = 6  # cases with fewer are padded with masked ones, so that each agent is compiled once
MASKED = -np.inf


@functools.partial(jax.jit, static_argnames=("agent", "test"))
def _choices(agent, result, epsilon, keys, test):
    epsilon = None if test else epsilon
    return jax.vmap(lambda key: choose_action(agent, result, epsilon, key))(keys)


@functools.cache
def keys():
    return jax.random.split(jax.random.key(0), DRAWS)


def choices(name, q, visits, epsilon=None):
    """Final actions over many keys; `epsilon` None is a test."""
    room = (0, ACTIONS - len(q))
    visits = jnp.pad(jnp.asarray(visits, jnp.int32), room)
    q = jnp.pad(jnp.asarray(q, jnp.float32), room, constant_values=MASKED)
    at = jnp.float32(0.0 if epsilon is None else epsilon)
    result = SearchResult(q, visits, visits > 0)
    return np.asarray(_choices(get_agent(name), result, at, keys(), epsilon is None))


def is_drawn_from(actions, weights):
    """Whether actions are as frequent as their weights say; none that has weight 0."""
    weights = np.asarray(weights, float)
    counts = np.bincount(actions, minlength=len(weights))
    assert len(counts) == len(weights)
    assert not counts[weights == 0].any(), counts
    if np.sum(weights > 0) == 1:
        return True
    expected = weights[weights > 0] / weights.sum() * len(actions)
    return scipy.stats.chisquare(counts[weights > 0], expected).pvalue > 1e-3


@st.composite
def searches(draw, least=0):
    """Values and visits of the actions, some masked, as a search could leave them.

    least: visits that one of the allowed actions has at the least.
    """
    allowed = draw(st.lists(st.booleans(), min_size=ACTIONS, max_size=ACTIONS))
    sure = draw(st.integers(0, ACTIONS - 1))
    allowed[sure] = True
    value = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
    q = [draw(value) if is_allowed else MASKED for is_allowed in allowed]
    visits = [draw(st.integers(0, 3)) if is_allowed else 0 for is_allowed in allowed]
    visits[sure] = max(visits[sure], least)
    return q, visits


@pytest.mark.parametrize(
    "name", ["save", "puct", "uct-threshold", "save-ucb", "save-softmax", "save-counts"]
)
@pytest.mark.parametrize(
    "epsilon",
    [None, 0.5, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.0, 1.0))],
)  # half of the actions are random: of thousands of draws, many are of either kind
@given(search=searches(least=1))  # agents that sample visits need some
@settings(max_examples=15)
def test_masked_actions_are_never_chosen(name, epsilon, search):
    q, visits = search
    actions = choices(name, q, visits, epsilon)
    assert np.isfinite(np.array(q)[actions]).all()


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("save-softmax", [np.exp(0.1), 0, np.exp(0.9), np.exp(-2.0), 0]),
        ("save-counts", [3, 0, 0, 1, 0]),
        # c = 2: 0.1 + 2 √(ln 7 / 4) = 1.49, 0.9 + 2 √(ln 7) = 3.69, -2 + 2 √(ln 7 / 2) = -0.03.
        ("save-ucb", [0, 0, 1, 0, 0]),
    ],
)
def test_other_ways_to_explore(name, weights):
    q, visits = [0.1, MASKED, 0.9, -2.0, MASKED], [3, 0, 0, 1, 0]
    assert is_drawn_from(choices(name, q, visits, 0.0), weights)
    assert is_drawn_from(choices(name, q, visits), [1, 0, 0, 0, 0])  # a test


@pytest.mark.parametrize("name", ["save", "q-learning"])
def test_epsilon_one_is_uniform_over_what_is_allowed(name):
    q, visits = [0.1, MASKED, 0.9, -2.0, MASKED], [3, 0, 0, 1, 0]
    assert is_drawn_from(choices(name, q, visits, 1.0), [1, 0, 1, 1, 0])


def test_epsilon_is_the_share_of_random_actions():
    # Of 4 actions a random one is the best in a quarter of the cases: 0.6 + 0.4 / 4 = 0.7.
    actions = choices("save", [0.1, 0.2, 0.3, 0.4], [1, 1, 1, 1], 0.4)
    assert is_drawn_from(actions, [0.1, 0.1, 0.1, 0.7])


@pytest.mark.parametrize("name", ["save", "uct"])
@pytest.mark.parametrize("epsilon", [None, 0.0])
def test_the_best_explored_action_is_taken_even_if_an_unexplored_one_seems_better(name, epsilon):
    q, visits = [0.9, -0.5, -0.2, 0.0], [0, 2, 1, 0]
    assert set(choices(name, q, visits, epsilon)) == {2}


@pytest.mark.parametrize("epsilon", [None, 0.0])
def test_ties_of_values_are_broken_at_random(epsilon):
    q, visits = [0.5, 0.5, 0.1, 0.5, 0.5], [1, 2, 1, 0, 7]
    assert is_drawn_from(choices("save", q, visits, epsilon), [1, 1, 0, 0, 1])


def test_nothing_explored_leaves_the_best_of_all():
    assert set(choices("save", [0.1, MASKED, 0.7, 0.3], [0, 0, 0, 0])) == {2}


def test_puct_takes_the_most_visited_action_in_tests():
    q, visits = [0.9, 0.1, 0.3, MASKED], [2, 5, 1, 0]
    assert set(choices("puct", q, visits)) == {1}


def test_puct_breaks_ties_of_visits_at_random():
    q, visits = [0.9, 0.1, 0.3, MASKED, 0.0], [4, 4, 1, 0, 4]
    assert is_drawn_from(choices("puct", q, visits), [1, 1, 0, 0, 1])


def test_puct_samples_visits_while_training_whatever_epsilon():
    visits = [6, 0, 3, 1, 0]
    for epsilon in (0.0, 1.0):
        actions = choices("puct", [0.0, 0.9, 0.1, 0.3, MASKED], visits, epsilon)
        assert is_drawn_from(actions, visits)


@pytest.mark.parametrize(
    ("q", "visits", "weights"),
    [
        ([0.0, -0.3, 0.0, 0.0, MASKED], [2, 1, 0, 0, 0], [0, 0, 1, 1, 0]),  # nothing above 0
        ([0.1, -0.3, 0.0, 0.0, MASKED], [2, 1, 0, 0, 0], [1, 0, 0, 0, 0]),  # something is
        ([0.0, -0.3, MASKED, 0.0, MASKED], [2, 1, 0, 4, 0], [1, 0, 0, 1, 0]),  # nothing unexplored
        ([0.0, 0.0, MASKED, 0.0, 0.0], [0, 0, 0, 0, 0], [1, 1, 0, 1, 1]),  # nothing explored
    ],
)
def test_the_threshold_variant_leaves_what_it_explored_if_none_of_it_is_above_zero(
    q, visits, weights
):
    assert is_drawn_from(choices("uct-threshold", q, visits), weights)


class Fan(NamedTuple):
    """Two states of four actions, each of which ends the episode; an action may be masked."""

    mask: np.ndarray

    num_actions = 4

    def reset(self, key):
        return jax.random.randint(key, (), 0, 2)

    def step(self, state, action):
        return state, jnp.float32(0.0), True, False

    def observe(self, state):
        return state

    def action_mask(self, state):
        return jnp.asarray(self.mask)[state]


FAN = Fan(np.array([[True, True, True, True], [True, False, True, True]]))
HEAD = np.array([[0.1, 0.9, 0.3, -1.0], [0.1, 5.0, 0.3, -1.0]], np.float32)


def network(value_head=False):
    return eqx.tree_at(lambda n: n.head, TableNetwork(2, 4, value_head), jnp.asarray(HEAD))


def search_result(name, rule, budget):
    """What the agent knows of both states before it acts."""

    def run(states):
        return run_search(
            get_agent(name), network(name == "puct"), FAN, states, rule=rule, budget=budget,
            c=2.0, discount=1.0, key=jax.random.key(0),
        )  # fmt: skip

    return jax.tree.map(np.asarray, jax.jit(run)(jnp.array([0, 1])))


@pytest.mark.parametrize("name", ["save", "q-learning", "save-puct", "puct"])
def test_budget_zero_is_greedy_on_the_prior(name):
    agent = get_agent(name)
    result = search_result(name, agent.test_search, budget=0)
    assert not result.explored.any()
    prior = np.where(FAN.mask, HEAD, MASKED)
    if agent.prior != "q":
        prior = np.where(FAN.mask, scipy.special.softmax(prior, axis=1), MASKED)
    np.testing.assert_allclose(result.q_values, prior, rtol=1e-6)
    # PUCT's settings refuse to train with budget 0: there would be no visits to sample.
    for epsilon in (None,) if name == "puct" else (None, 0.0):
        for lane, best in enumerate([1, 2]):  # the 5.0 of state 1 is masked
            actions = choices(name, result.q_values[lane], result.visits[lane], epsilon)
            assert set(actions) == {best}


def test_an_agent_that_trains_without_search_acts_on_its_prior_at_any_budget():
    result = search_result("q-learning", get_agent("q-learning").search, budget=10)
    np.testing.assert_array_equal(result.q_values, np.where(FAN.mask, HEAD, MASKED))
    assert not result.visits.any()


class Chain(NamedTuple):
    """Four states; some actions lead on, others end the episode, and masked ones pay a fortune."""

    after: np.ndarray
    reward: np.ndarray

    num_actions = 3

    def step(self, state, action):
        after = jnp.asarray(self.after)[state, action]
        reward = jnp.asarray(self.reward)[state, action]
        return jnp.maximum(after, 0), reward, after < 0, after == 99


class MaskedChain(Chain):
    def action_mask(self, state):
        return jnp.asarray(self.reward)[state, jnp.arange(3)] < 100


AFTER = np.array([[1, -1, 2], [2, 3, -1], [3, -1, 0], [-1, -1, -1]], np.int32)
REWARD = np.array([[0.5, 1.0, -1.0], [0.0, 2.0, 0.3], [0.1, -0.4, 0.0], [1.0, 0.0, 3.0]])
RICH = REWARD.copy()
RICH[[0, 1, 3], [2, 0, 1]] = 1000.0  # a masked action in three of the states
CHAINS = {
    "everything allowed": (Chain(AFTER, REWARD), np.ones((4, 3), bool)),
    "some masked": (MaskedChain(AFTER, RICH), RICH < 100),
}


def expected_returns(chain, allowed, discount):
    """Solve `v = r + γ P v` for the uniform policy over allowed actions."""
    policy = allowed / allowed.sum(1, keepdims=True)
    step = np.zeros((4, 4))
    for state, action in zip(*np.nonzero(chain.after >= 0), strict=True):
        step[state, chain.after[state, action]] += policy[state, action]
    paid = (policy * chain.reward).sum(1)
    return np.linalg.solve(np.eye(4) - discount * step, paid)


@pytest.mark.parametrize(
    ("which", "discount"),
    [
        ("everything allowed", 1.0),
        ("some masked", 0.7),
        pytest.param("everything allowed", 0.7, marks=pytest.mark.slow),
        pytest.param("some masked", 1.0, marks=pytest.mark.slow),
    ],
)
def test_rollouts_are_worth_what_a_random_policy_earns(which, discount):
    chain, allowed = CHAINS[which]
    lanes = 8000
    states = jnp.repeat(jnp.arange(4, dtype=jnp.int32), lanes)
    rolled = jax.jit(lambda s, key: rollouts(chain, s, discount, key))(states, jax.random.key(1))
    returns = np.asarray(rolled).reshape(4, lanes)
    error = returns.std(1) / np.sqrt(lanes)
    expected = expected_returns(chain, allowed, discount)
    assert np.all(np.abs(returns.mean(1) - expected) < 4 * error), (returns.mean(1), expected)
    assert returns.max() < 100


def test_a_rollout_without_an_end_is_cut():
    # One step of 1 for ever with γ = 0.9 comes to 1 / (1 - 0.9) = 10.
    chain = Chain(np.zeros((1, 3), np.int32), np.ones((1, 3), np.float32))
    returns = rollouts(chain, jnp.zeros(2, jnp.int32), 0.9, jax.random.key(0))
    np.testing.assert_allclose(returns, 10.0, rtol=1e-5)


class Bets(NamedTuple):
    """Ten bets on the bit that the luck of a step begins with; each that is right pays 1."""

    stochastic = True
    num_actions = 2

    def step(self, state, action, key):
        bit = jax.random.bits(key) % 2
        return state + 1, (action == bit).astype(jnp.float32), state == 9, state < 0


def test_the_actions_of_rollouts_do_not_know_the_luck():
    returns = rollouts(Bets(), jnp.zeros(4000, jnp.int32), 1.0, jax.random.key(0))
    assert abs(returns.mean() - 5) < 4 * np.sqrt(10 / 4 / len(returns))


@pytest.mark.parametrize("mask", [[1, 0, 1, 1, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]])
def test_random_actions_are_uniform_over_the_mask(mask):
    actions = jax.vmap(lambda key: random_action(key, jnp.array(mask, bool), 5))(keys())
    assert is_drawn_from(np.asarray(actions), mask)


def test_an_environment_without_masks_allows_everything():
    assert masks(Chain(AFTER, REWARD), jnp.arange(4)).shape == (4, 0)
    actions = jax.vmap(lambda key: random_action(key, jnp.zeros(0, bool), 5))(keys())
    assert is_drawn_from(np.asarray(actions), [1] * 5)
