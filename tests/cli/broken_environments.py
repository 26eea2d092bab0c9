"""Environments that can't be trained on, each for another reason; `test_errors` asks for them."""

import jax.numpy as jnp


class Walk:
    """Two steps to the end: nothing is wrong with this one."""

    num_actions = 2

    def reset(self, key):
        return jnp.zeros((), jnp.int32)

    def step(self, state, action):
        after = state + 1
        return after, jnp.float32(action), after == 2, after == 9

    def observe(self, state):
        return jnp.ones(3) * state


def walk():
    return Walk()


def without_step():
    env = Walk()
    broken = type("WithoutStep", (), {"num_actions": 2, "reset": env.reset, "observe": env.observe})
    return broken()


class Branching(Walk):
    def step(self, state, action):
        reward = 1.0 if action == 0 else 0.0  # Python looks at a value that is not there yet
        return state + 1, reward, True, False


class Growing(Walk):
    def step(self, state, action):
        _, reward, terminated, truncated = super().step(state, action)
        return jnp.zeros(2, jnp.int32), reward, terminated, truncated


class Drifting(Walk):
    def step(self, state, action):
        after, reward, terminated, truncated = super().step(state, action)
        return after + 0.5, reward, terminated, truncated


class Hidden(Walk):
    """Draws a table from its seed, out of sight of JAX."""

    def __init__(self, seed):
        self.table = jnp.arange(2.0) + seed


class EndsInNumbers(Walk):
    def step(self, state, action):
        after, reward, terminated, truncated = super().step(state, action)
        return after, reward, terminated.astype(jnp.int32), truncated.astype(jnp.int32)


class PaysTwice(Walk):
    def step(self, state, action):
        after, _, terminated, truncated = super().step(state, action)
        return after, jnp.zeros(2), terminated, truncated


class SeesAPair(Walk):
    def observe(self, state):
        return state, state


class SeesNothing(Walk):
    def observe(self, state):
        return {}
