"""Agents with tables: the update is a gradient step, and short runs do what probability says."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from save_rl.agents import get_agent
from save_rl.envs.tightrope import tightrope_simulator
from save_rl.errors import InputError
from save_rl.training.tabular import TabularSettings, softmax, train_and_test, update_q

# One worker runs them all, with the tests of the experiment, so that Numba compiles once.
pytestmark = pytest.mark.xdist_group("tabular")

STATES, ACTIONS = 3, 5
numbers = st.floats(-5, 5)
rows = st.lists(numbers, min_size=ACTIONS, max_size=ACTIONS).map(np.array)
tables = st.lists(rows, min_size=STATES, max_size=STATES).map(np.array)
rates = st.sampled_from([0.0, 0.01, 0.5, 1.0])


@jax.jit
@jax.grad
def loss_gradient(q, state, action, target, rate_q, q_mcts, rate_a):
    cross_entropy = -jnp.sum(jax.nn.softmax(q_mcts) * jax.nn.log_softmax(q[state]))
    return rate_q * 0.5 * (target - q[state, action]) ** 2 + rate_a * cross_entropy


@given(
    q=tables,
    q_mcts=rows,
    state=st.integers(0, STATES - 1),
    action=st.integers(0, ACTIONS - 1),
    target=numbers,
    rate_q=rates,
    rate_a=rates,
)
def test_an_update_is_a_gradient_step(q, q_mcts, state, action, target, rate_q, rate_a):
    with jax.enable_x64(True):
        gradient = np.asarray(loss_gradient(q, state, action, target, rate_q, q_mcts, rate_a))
    assert gradient.dtype == np.float64
    updated, policy = q.copy(), scipy.special.softmax(q_mcts)
    update_q(updated, state, action, target, rate_q, policy, rate_a, np.zeros(ACTIONS))
    np.testing.assert_allclose(updated, q - gradient, atol=1e-12)


@given(row=rows)
def test_softmax(row):
    out = np.zeros(ACTIONS)
    softmax(row, out)
    np.testing.assert_allclose(out, scipy.special.softmax(row), rtol=1e-12)


@cache
def rewards(agent, reward, terminal, budget, seed, episodes=200):
    env = tightrope_simulator(seed, reward=reward, terminal=terminal)
    settings = TabularSettings(episodes=episodes)
    return train_and_test(get_agent(agent), env, budget, seed, settings)


@pytest.mark.parametrize("agent", ["save", "q-learning", "puct", "uct"])
def test_a_seed_gives_the_same_run_again(agent):
    env = tightrope_simulator(3, reward="dense", terminal=90)
    settings = TabularSettings(episodes=20)

    def run(seed):
        return train_and_test(get_agent(agent), env, 5, seed, settings)

    np.testing.assert_array_equal(run(7), run(7))
    assert not all(np.array_equal(run(7), run(other)) for other in range(5))


@pytest.mark.parametrize("seed", range(3))
def test_save_solves_dense_tightrope(seed):
    # Ten safe steps of 0.1 each are the most there is.
    test_rewards = rewards("save", "dense", 50, 10, seed)
    assert test_rewards.shape == (100,)
    assert test_rewards.mean() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_without_fatal_actions_every_agent_walks_to_the_end(seed):
    for agent in ("save", "q-learning", "puct", "uct"):
        np.testing.assert_allclose(rewards(agent, "dense", 0, 10, seed, 5), 1.0, rtol=1e-5)
        np.testing.assert_allclose(rewards(agent, "sparse", 0, 10, seed, 5), 1.0, rtol=1e-5)


@pytest.mark.parametrize("agent", ["save", "q-learning", "puct", "uct"])
def test_where_every_action_is_fatal_nothing_is_paid(agent):
    np.testing.assert_array_equal(rewards(agent, "dense", 100, 10, 0, 5), 0.0)


def chance_of_a_safe_step(budget, threshold):
    """Probability that UCT takes a safe action where 95 of 100 actions are fatal.

    Every score is 0 + U until a safe action is found. As U counts max(N, 1), a fatal action tried
    once ties with the untried ones, and only those tried twice fall behind. So each simulation
    draws uniformly from the actions tried at most once. A safe action, once found, has returned at
    least 0.1 and is chosen in the end. If none was found, plain UCT takes a fatal action, and the
    threshold variant one that was not explored.
    """
    fatal, actions = 95, 100
    found, searching = 0.0, {(0, 0): 1.0}  # (fatal actions tried once, more than once)
    for _ in range(budget):
        following = {}
        for (once, more), p in searching.items():
            tied = actions - more
            found += p * (actions - fatal) / tied
            untried = fatal - once - more
            for state, weight in (((once + 1, more), untried), ((once - 1, more + 1), once)):
                if weight > 0:
                    following[state] = following.get(state, 0.0) + p * weight / tied
        searching = following
    if threshold:
        found += sum(
            p * (actions - fatal) / (actions - once - more) for (once, more), p in searching.items()
        )
    return found


def test_the_chance_of_a_safe_step_lies_between_drawing_with_and_without_replacement():
    assert chance_of_a_safe_step(1, threshold=False) == pytest.approx(0.05)
    with_replacement = 1 - 0.95**10  # 0.401
    without = 1 - scipy.special.comb(95, 10) / scipy.special.comb(100, 10)  # 0.416
    assert with_replacement < chance_of_a_safe_step(10, threshold=False) < without


@pytest.mark.parametrize("agent", ["uct", "uct-threshold"])
@pytest.mark.parametrize("budget", [1, 10])
def test_uct_earns_what_probability_gives_it(agent, budget):
    p = chance_of_a_safe_step(budget, threshold=agent == "uct-threshold")
    # Steps are independent: 0.1 for each until the first fatal one, ten at most.
    outcomes = 0.1 * np.arange(11)
    chances = np.array([p**n * (1 - p if n < 10 else 1) for n in range(11)])
    mean = outcomes @ chances
    deviation = np.sqrt((outcomes - mean) ** 2 @ chances)
    seeds = 100
    earned = np.mean([rewards(agent, "dense", 95, budget, seed).mean() for seed in range(seeds)])
    assert abs(earned - mean) < 3.5 * deviation / np.sqrt(seeds * 100)


@pytest.mark.parametrize("agent", ["save-l2", "save-no-q-learning", "save-puct"])
def test_agents_without_a_tabular_version_are_refused(agent):
    with pytest.raises(InputError, match=agent):
        train_and_test(get_agent(agent), tightrope_simulator(0), 10, 0)
