"""Rewards that are 1,024 times as large, or as small, change nothing, if the scale says so."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import save_rl
from save_rl.learning import reward_scale
from save_rl.training.device.trainer import DeviceTrainer
from save_rl.training.host.trainer import HostTrainer
from save_rl.training.learner import with_measured_scale
from save_rl.training.settings import TrainSettings
from tests.envs.broken_simulators import Ladder

MEASURED = reward_scale.NOTHING_YET
FACTORS = [1024.0, pytest.param(1 / 1024, marks=pytest.mark.slow)]  # exact in binary


class Paid(Ladder):
    """Action 1 pays 0.75, action 0 costs 0.25, times `factor`."""

    def __init__(self, factor=1.0):
        self.factor = factor

    def step(self, state, action):
        after, reward, terminated, truncated = super().step(state, action)
        return after, self.factor * (reward - 0.25), terminated, truncated


class PaidInJax(NamedTuple):
    """The same for the device."""

    factor: Any
    num_actions = 2
    max_steps = 6

    def reset(self, seed):
        return jnp.zeros((), jnp.int32)

    def step(self, state, action):
        return state + 1, self.factor * (action - 0.25), state == 5, state < 0

    def observe(self, state):
        return jnp.eye(8)[state]


def trainer_of(path, factor, scale, agent="save") -> Any:
    settings = TrainSettings(
        env="x", agent=agent, lanes=4, batch=8, replay_ratio=4, replay=64, min_replay=8, chunk=6,
        budget=4, learning_rate=1e-2, reward_scale=scale,
    )  # fmt: skip
    if path == "host":
        return HostTrainer(settings, [Paid(factor)])
    return DeviceTrainer(settings, [PaidInJax(jnp.float32(factor))])


def go_on(trainer, state, first, last):
    for chunk in range(first, last):
        state = trainer.advance(state, 6 * chunk, np.ones(1, np.bool_))
    return state


def trained(path, factor, scale, agent="save", first=None) -> Any:
    """first: the scale that has been measured at the start."""
    trainer = trainer_of(path, factor, scale, agent)
    state = trainer.begin()
    if first is not None:
        params, target = (x._replace(scale=jnp.full(1, first)) for x in state.learner[:2])
        state = state._replace(learner=state.learner._replace(params=params, target=target))
    state = jax.tree.map(np.array, go_on(trainer, state, 0, 4))
    trainer.close()
    return state


def assert_same(some, others):
    some, others = jax.tree.leaves(some), jax.tree.leaves(others)
    for a, b in zip(some, others, strict=True):
        np.testing.assert_array_equal(a, b)


def network(state, scale):
    return state.learner.params.network if scale == MEASURED else state.learner.params


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("given", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    ("path", "agent"),
    [
        ("host", "save"),
        pytest.param("host", "q-learning", marks=pytest.mark.slow),
        pytest.param("device", "save", marks=pytest.mark.slow),
    ],
)
def test_learning_and_decisions_do_not_depend_on_the_size_of_rewards(path, agent, given, factor):
    scales = (1.0, factor) if given else (MEASURED, MEASURED)
    first = (None, None) if given else (1.0, factor)
    one = trained(path, 1.0, scales[0], agent, first[0])
    other = trained(path, factor, scales[1], agent, first[1])
    assert_same(one.replay.data.action, other.replay.data.action)
    assert_same(one.replay.data.target, other.replay.data.target)
    assert_same(network(one, scales[0]), network(other, scales[1]))
    assert one.stats.return_max * factor == other.stats.return_max  # metrics are as they are
    if not given:
        # With γ = 0.99, six steps of 0.75 add up to 4.39: the scale is 4, unless none was so good.
        assert one.learner.params.scale in (2.0, 4.0)
        assert one.learner.params.scale * factor == other.learner.params.scale


@pytest.mark.parametrize("xp", [np, jnp])
def test_the_scale_is_the_power_of_two_below_the_largest_discounted_sum(xp):
    fresh, half = xp.array([[True, True]]), 0.5
    sums = reward_scale.next_sums(xp.zeros((1, 2)), xp.array([[0.0, -3.0]]), half, fresh, xp)
    scale = reward_scale.grown(xp.zeros(1), sums, xp)
    np.testing.assert_array_equal(sums, [[0, -3]])
    np.testing.assert_array_equal(scale, [2])
    sums = reward_scale.next_sums(sums, xp.array([[1.0, -7.0]]), half, ~fresh, xp)
    np.testing.assert_array_equal(sums, [[1, -8.5]])
    scale = reward_scale.grown(scale, sums, xp)
    np.testing.assert_array_equal(scale, [8])
    sums = reward_scale.next_sums(sums, xp.array([[1.0, 1.0]]), half, fresh, xp)
    np.testing.assert_array_equal(sums, [[1, 1]])  # nothing of the episodes before
    np.testing.assert_array_equal(reward_scale.grown(scale, sums, xp), [8])  # it never falls


def test_without_rewards_there_is_no_scale_and_nothing_is_divided():
    scale = reward_scale.grown(np.zeros(1), np.zeros((1, 4)), np)
    assert scale == MEASURED
    assert reward_scale.divisor(scale, np) == 1


@pytest.mark.parametrize("path", ["host", pytest.param("device", marks=pytest.mark.slow)])
def test_a_measured_scale_survives_a_checkpoint(path):
    whole = trained(path, 8.0, MEASURED)
    before = trainer_of(path, 8.0, MEASURED)
    saved = jax.tree.map(np.array, before.snapshot(go_on(before, before.begin(), 0, 2)))
    before.close()
    after = trainer_of(path, 8.0, MEASURED)
    state = go_on(after, after.restore(saved), 2, 4)
    after.close()
    assert_same(whole._replace(stats=()), jax.tree.map(np.array, state)._replace(stats=()))


def test_a_run_tests_and_acts_in_the_units_of_rewards(tmp_path):
    run = save_rl.train(
        Paid, env_options={"factor": 64.0}, steps=512, out=tmp_path / "run", workers=0,
        progress=False, reward_scale=MEASURED, check=False, budget=4,
    )  # fmt: skip
    params = run.trainer.params(run.state)
    measured = with_measured_scale(run.trainer.settings, params)
    assert measured.reward_scale in (64.0, 128.0, 256.0)  # at most 4.39 x 64
    policy = save_rl.load(run.path, simulator=Paid(64.0))
    found = policy.act(0, budget=0, simulator=Paid(64.0))
    own = jax.tree.map(lambda x: x[0], params)
    q = run.trainer.learning.network(own)(jnp.eye(8)[:1])[0]
    np.testing.assert_allclose(found.q_values, measured.reward_scale * q[0], rtol=1e-6)
    found = policy.act(5, budget=8, simulator=Paid(64.0))  # the last step: pays, and ends
    tried = (np.array([-16.0, 48.0]) * found.visits + found.prior) / (found.visits + 1)
    np.testing.assert_allclose(found.q_values, tried, rtol=1e-5)
    rewards = found.tree.arrays.reward[0]
    assert set(rewards[1 : 1 + found.explored.sum()].tolist()) <= {-16.0, 48.0}
