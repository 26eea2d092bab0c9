"""The root noise of PUCT is Dirichlet(1/n) over the n unmasked actions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from save_rl.search.device import root_noise

DRAWS = 8000
draw = jax.jit(jax.vmap(root_noise, (0, None, None)))


def noise(policy, fraction=1.0):
    """`[DRAWS, A]`; with the default fraction nothing of the policy is left."""
    keys = jax.random.split(jax.random.key(0), DRAWS)
    return np.asarray(draw(keys, jnp.asarray(policy, jnp.float32), fraction), np.float64)


def policy_over(n, actions):
    """Uniform over n of the actions, every second one as long as they last; the rest is masked."""
    policy = np.full(actions, -np.inf)
    policy[np.argsort(np.arange(actions) % 2, kind="stable")[:n]] = 1 / n
    return policy


@functools.cache
def full_noise(n, actions):
    """What several tests look at."""
    return noise(policy_over(n, actions))


CASES = pytest.mark.parametrize(("n", "actions"), [(2, 6), (3, 6), (6, 6), (100, 100)])


@CASES
def test_marginals_are_beta(n, actions):
    # One coordinate of Dirichlet(a_1 … a_n) is Beta(a_i, Σa - a_i); here a_i = 1/n and Σa = 1.
    exact = scipy.stats.beta(1 / n, 1 - 1 / n)
    policy = policy_over(n, actions)
    x = full_noise(n, actions)
    allowed = np.flatnonzero(policy > -np.inf)
    assert len(allowed) == n
    for action in (allowed[0], allowed[-1]):
        # The Kolmogorov-Smirnov distance. Values below 1e-6 are no different from 0 in a policy;
        # for large n most of the mass lies there, so the distance is taken above.
        ordered = np.sort(x[:, action])
        cdf = exact.cdf(ordered)
        ranks = np.arange(DRAWS + 1) / DRAWS
        visible = ordered > 1e-6
        distance = max(
            np.max(np.abs(ranks[1:] - cdf)[visible]), np.max(np.abs(ranks[:-1] - cdf)[visible])
        )
        assert scipy.stats.kstwo.sf(distance, DRAWS) > 1e-3


@CASES
def test_moments_are_those_of_the_dirichlet(n, actions):
    policy = policy_over(n, actions)
    x = full_noise(n, actions)[:, policy > -np.inf]
    # For concentrations that add up to 1: variance m (1 - m) / 2, covariance -m² / 2, m = 1/n.
    mean, variance, covariance = 1 / n, (1 / n) * (1 - 1 / n) / 2, -1 / n**2 / 2
    first, last = x[:, 0], x[:, -1]
    products = (first - mean) * (last - mean)
    squares = (first - mean) ** 2
    for sample, expected in ((first, mean), (squares, variance), (products, covariance)):
        assert abs(sample.mean() - expected) < 4 * sample.std() / np.sqrt(DRAWS)


def test_a_quarter_of_the_mass_is_noise():
    policy = np.array([0.5, -np.inf, 0.3, 0.2, -np.inf, -np.inf])
    allowed = policy > -np.inf
    mixed = noise(policy, fraction=0.25)
    np.testing.assert_allclose(mixed[:, allowed].sum(1), 1.0, atol=1e-5)
    assert np.all(mixed[:, allowed] >= 0.75 * policy[allowed] - 1e-6)
    assert np.all(mixed[:, ~allowed] == -np.inf)
    only_noise = noise(policy)
    np.testing.assert_allclose(
        mixed[:, allowed], 0.75 * policy[allowed] + 0.25 * only_noise[:, allowed], atol=1e-6
    )


def test_one_allowed_action_keeps_all_the_mass():
    mixed = noise([-np.inf, 1.0, *[-np.inf] * 4], fraction=0.25)
    np.testing.assert_allclose(mixed[:, 1], 1.0, atol=1e-5)
    assert np.all(mixed[:, [0, 2, 3, 4, 5]] == -np.inf)
