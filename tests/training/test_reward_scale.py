"""Rewards that are 1,024 times as large change nothing, if the scale says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from save_rl.training.host.trainer import HostTrainer
from save_rl.training.settings import TrainSettings
from tests.envs.broken_simulators import Ladder

FACTOR = 1024.0  # exact in binary


class Rich(Ladder):
    def step(self, state, action):
        after, reward, terminated, truncated = super().step(state, action)
        return after, FACTOR * reward, terminated, truncated


def trained(simulator, agent, scale):
    settings = TrainSettings(
        env="x", agent=agent, lanes=4, batch=8, replay_ratio=4, replay=64, min_replay=8, chunk=6,
        budget=4, learning_rate=1e-2, reward_scale=scale,
    )  # fmt: skip
    trainer = HostTrainer(settings, [simulator])
    state = trainer.begin()
    for chunk in range(4):
        state = trainer.advance(state, 6 * chunk, np.ones(1, np.bool_))
    trainer.close()
    return trainer, state


@pytest.mark.parametrize("agent", ["save", pytest.param("q-learning", marks=pytest.mark.slow)])
def test_learning_and_decisions_do_not_depend_on_the_size_of_rewards(agent):
    small, one = trained(Ladder(), agent, 1.0)
    large, other = trained(Rich(), agent, FACTOR)
    actions = [np.asarray(x.replay.data.action) for x in (one, other)]
    np.testing.assert_array_equal(*actions)
    for a, b in zip(*(jax.tree.leaves(x.learner.params) for x in (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    seen = jnp.eye(8)
    q = [np.asarray(t.learning.network(jax.tree.map(lambda x: x[0], s.learner.params))(seen)[0])
         for t, s in ((small, one), (large, other))]  # fmt: skip
    np.testing.assert_allclose(FACTOR * q[0], q[1], rtol=1e-3, atol=1e-2)
    assert one.stats.return_max * FACTOR == other.stats.return_max  # metrics are as they are
