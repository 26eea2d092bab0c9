"""How ε is spread over an episode, and how settings change over training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from save_rl.learning.exploration import epsilon_at_step, typical_length
from save_rl.learning.schedules import LinearSchedule, constant
from save_rl.training.settings import TrainSettings

LONGEST = 1024
lengths = st.integers(1, LONGEST)
epsilons = st.floats(0, 1)
jitted = jax.jit(epsilon_at_step)


def within_episode(epsilon, length, steps=None):
    steps = np.arange(length if steps is None else steps)
    return epsilon_at_step(epsilon, steps, np.float64(length))


def bisection(epsilon, length):
    """p_n = min(1, x / (L - n)) with the x whose mean is ε, found by halving intervals."""
    left = length - np.arange(length)

    def error(x):
        return np.minimum(1, x / left).mean() - epsilon

    return np.minimum(1, scipy.optimize.bisect(error, 0, length, xtol=1e-13) / left)


@given(epsilon=epsilons, length=lengths)
def test_the_mean_over_an_episode_is_epsilon(epsilon, length):
    assert within_episode(epsilon, length).mean() == pytest.approx(epsilon, abs=2e-6)


@given(epsilon=epsilons, length=lengths)
def test_it_agrees_with_bisection(epsilon, length):
    np.testing.assert_allclose(
        within_episode(epsilon, length), bisection(epsilon, length), atol=1e-3
    )


@given(epsilon=epsilons, length=lengths)
def test_it_never_falls_within_an_episode(epsilon, length):
    p = within_episode(epsilon, length, steps=2 * length + 3)  # also past the typical length
    assert np.all(np.diff(p) >= 0)
    assert np.all((p >= 0) & (p <= 1))


@given(length=lengths)
def test_epsilon_one_is_always_random_and_zero_never(length):
    np.testing.assert_allclose(within_episode(1.0, length), 1.0, atol=1e-3)
    np.testing.assert_array_equal(within_episode(0.0, length), 0.0)


def test_a_hand_worked_episode_of_three_steps():
    # x / 3, x / 2, x / 1 with mean 0.11: x (2 + 3 + 6) / 6 = 0.33, x = 0.18.
    np.testing.assert_allclose(within_episode(0.11, 3), [0.06, 0.09, 0.18], rtol=1e-6)
    # Mean 0.75: the last step is random for sure, x (2 + 3) / 6 = 1.25, x = 1.5.
    np.testing.assert_allclose(within_episode(0.75, 3), [0.5, 0.75, 1.0], rtol=1e-6)


def test_typical_lengths_are_rounded_and_bounded():
    steps = np.arange(10)
    for length, rounded in ((2.4, 2), (2.6, 3), (0.2, 1), (5000.0, LONGEST)):
        np.testing.assert_array_equal(
            epsilon_at_step(0.3, steps, np.float32(length)),
            epsilon_at_step(0.3, steps, np.float32(rounded)),
        )


@given(epsilon=epsilons, length=lengths)
def test_jax_computes_the_same(epsilon, length):
    on_device = jitted(jnp.float32(epsilon), jnp.arange(2 * LONGEST), jnp.float32(length))
    on_host = within_episode(epsilon, length, steps=2 * LONGEST)
    np.testing.assert_allclose(on_device, on_host, atol=2e-3)


@given(
    estimate=st.floats(1, 100),
    finished=st.integers(0, 64),
    mean_length=st.floats(1, 100),
    rate=st.sampled_from([0.01, 0.3, 1.0]),
)
def test_many_episodes_at_once_count_as_that_many(estimate, finished, mean_length, rate):
    expected = estimate
    for _ in range(finished):
        expected += rate * (mean_length - expected)
    assert typical_length(estimate, finished, mean_length, rate) == pytest.approx(expected)


def test_one_episode_moves_the_estimate_by_a_hundredth():
    # 10 + 0.01 x (20 - 10)
    assert typical_length(10.0, 1, 20.0) == pytest.approx(10.1)


@given(start=st.floats(-5, 5), end=st.floats(-5, 5), episodes=st.floats(1, 1e6))
def test_linear_schedules_begin_end_and_stay(start, end, episodes):
    schedule = LinearSchedule(start, end, episodes)
    assert schedule.at(0) == start
    assert schedule.at(episodes / 4) == pytest.approx(start + (end - start) / 4, abs=1e-9)
    for later in (episodes, episodes * 1.5, episodes * 1e6):
        assert schedule.at(later) == pytest.approx(end, abs=1e-9)


def test_schedules_take_arrays():
    # From 2 to 6 over 8 episodes: 0.5 per episode.
    at = np.array([0, 2, 4, 8, 9])
    expected = [2.0, 3.0, 4.0, 6.0, 6.0]
    np.testing.assert_allclose(LinearSchedule(2, 6, 8).at(at), expected)
    np.testing.assert_allclose(LinearSchedule(2, 6, 8).at(jnp.asarray(at)), expected)


def test_a_constant_schedule_never_changes():
    np.testing.assert_array_equal(constant(0.3).at(np.array([0, 1, 5, 10**9])), 0.3)


def test_epsilon_is_annealed_as_in_the_paper():
    # 1 to 0.01 over 1e4 episodes: halfway 1 - 0.99 / 2
    assert [TrainSettings().epsilon.at(n) for n in (0, 5000, 10_000, 10**6)] == pytest.approx(
        [1.0, 0.505, 0.01, 0.01]
    )
