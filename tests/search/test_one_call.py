"""`save_rl.search.save`, `uct` and `puct` on states of Tightrope."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import save_rl
from save_rl.envs.tightrope import TightropeState
from save_rl.errors import InputError
from tests.search.table_simulators import maze

LANES, BUDGET = 3, 8
STATES = TightropeState(jnp.array([0, 4, 9]), jnp.full(LANES, 10))


@pytest.fixture(scope="module")
def dense():
    return save_rl.make("tightrope", seed=1, reward="dense", terminal=50)


@pytest.fixture(scope="module")
def save_search(dense):
    """A search from a linear Q-function, compiled once."""

    @jax.jit
    def run(q, seed):
        return save_rl.search.save(dense, STATES, lambda seen: seen @ q, budget=BUDGET, seed=seed)

    return run


def test_save_starts_from_the_q_function_and_keeps_it_where_nothing_was_tried(dense, save_search):
    q = jax.random.normal(jax.random.PRNGKey(0), (dense.observations.shape[1], 100))
    result = save_search(q, 0)
    prior = np.asarray(dense.observations[np.asarray(STATES.position)] @ q)
    assert np.asarray(result.visits).sum(1).tolist() == [BUDGET] * LANES
    assert result.tree is None
    untried = ~np.asarray(result.explored)
    np.testing.assert_allclose(np.asarray(result.q_values)[untried], prior[untried], rtol=1e-5)


def test_uct_values_what_it_tried_by_what_happened(dense):
    """Not compiled as a whole, which the other searches here are.

    On the last step a safe action pays 0.1 and ends, a fatal one pays 0: no guess is left.
    """
    result = save_rl.search.uct(dense, STATES, budget=BUDGET, c=0.1)
    lane, position = 2, 9
    explored = np.flatnonzero(result.explored[lane])
    safe = 1 - np.asarray(dense.fatal)[position]
    np.testing.assert_allclose(result.q_values[lane][explored], 0.1 * safe[explored], rtol=1e-6)
    assert len(explored) > 0


class Clock:
    """A step pays 1, and the third is the last; in Python and in JAX."""

    num_actions = 1

    def reset(self, seed):
        return 0

    def step(self, time, action):
        return time + 1, 1.0 + 0.0 * time, time < 0, time >= 2

    def observe(self, time):
        return 1.0 * time


def test_the_rollouts_of_uct_end_when_time_is_up():
    for states in ([0, 1, 2], jnp.array([0, 1, 2])):
        result = save_rl.search.uct(Clock(), states, budget=1, discount=1.0)
        np.testing.assert_array_equal(result.q_values, [[3], [2], [1]])


def test_puct_follows_its_policy_and_noise_disturbs_it(dense):
    favourite = 7
    logits = jnp.zeros(100).at[favourite].set(20.0)

    def policy_value(seen):
        return jnp.tile(logits, (seen.shape[0], 1)), jnp.zeros(seen.shape[0])

    @jax.jit
    def with_and_without_noise():
        return [
            save_rl.search.puct(dense, STATES, policy_value, budget=BUDGET, noise=noise)
            for noise in (0.0, 1.0)
        ]

    quiet, noisy = with_and_without_noise()
    # The very first simulation has no counts to go by and is random; the others are not.
    assert (np.asarray(quiet.visits)[:, favourite] >= BUDGET - 1).all()
    assert (np.asarray(noisy.visits)[:, favourite] < BUDGET - 1).any()


def test_the_same_seed_gives_the_same_search_and_another_one_another(dense, save_search):
    zero = jnp.zeros((dense.observations.shape[1], 100))
    first, again, other = (save_search(zero, seed) for seed in (0, 0, 1))
    assert np.array_equal(first.visits, again.visits)
    assert not np.array_equal(first.visits, other.visits)


@pytest.mark.parametrize("kind", ["JAX", "Python"])
@pytest.mark.parametrize("shape", [(LANES, 99), (100,), (), (LANES, 100, 1)])
def test_a_function_that_returns_another_shape_is_named(dense, kind, shape):
    env, states = dense, STATES
    if kind == "Python":
        env = maze(0)
        states = [env.reset(seed) for seed in range(LANES)]
    wrong, right = np.zeros(shape), np.zeros((LANES, env.num_actions))
    with pytest.raises(
        InputError, match=r"^q_function: an array of shape \(.*\) is not possible; "
    ):
        save_rl.search.save(env, states, lambda seen: wrong, budget=2)
    with pytest.raises(InputError, match=r"^policy_value: .*, a row of actions for each state\.$"):
        save_rl.search.puct(env, states, lambda seen: (wrong, np.zeros(LANES)), budget=2)
    with pytest.raises(InputError, match=r"^policy_value: .* must be \(3,\), one value for each"):
        save_rl.search.puct(env, states, lambda seen: (right, right), budget=2)
