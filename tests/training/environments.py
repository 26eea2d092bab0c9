"""Environments that misbehave, for `tests.training.environments:name`."""

from typing import NamedTuple

import jax.numpy as jnp


class Counter(NamedTuple):
    """Counts steps; the reward stops being a number after `good` of them."""

    good: int = 40

    @property
    def num_actions(self) -> int:
        return 3

    def reset(self, seed):
        return jnp.zeros((), jnp.int32)

    def step(self, state, action):
        state = state + 1
        reward = jnp.where(state > self.good, jnp.nan, 1.0)
        never = jnp.zeros((), jnp.bool_)
        return state, reward, never, state >= 50

    def observe(self, state):
        return jnp.stack([state / 50, 1.0])


def turns_nan() -> Counter:
    """Pays NaN in the last steps of an episode."""
    return Counter()


def never_nan() -> Counter:
    """The same without the flaw."""
    return Counter(good=100)
