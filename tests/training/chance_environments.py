"""Walks with chance, in Python and in JAX; for `tests.training.chance_environments:name`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

CELLS, LIMIT, SLIPS = 5, 12, 0.25


class Place(NamedTuple):
    cell: int
    steps: int


class Unsaid:
    """A walk to the last of five cells, which pays 1; a step goes the other way with luck.

    It does not say that its steps take a seed. `made`: all real and simulated steps, in order.
    """

    num_actions = 2

    def __init__(self):
        self.made: list[tuple[Place, int, int]] = []

    def reset(self, seed):
        return Place(1 + int(seed) % 2, 0)

    def step(self, state, action, seed):
        self.made.append((state, int(action), seed))
        slips = np.random.default_rng(seed).random() < SLIPS
        cell = max(state.cell + (1 if (action == 1) != slips else -1), 0)
        after = Place(cell, state.steps + 1)
        return after, float(cell == CELLS - 1), cell == CELLS - 1, after.steps >= LIMIT

    def observe(self, state):
        return np.eye(CELLS, dtype=np.float32)[state.cell]


class Slippery(Unsaid):
    stochastic = True


class NoSeed(Slippery):
    """Says that there is chance, and takes no seed."""

    def step(self, state, action):
        return super().step(state, action, 0)


class UnsaidInJax(NamedTuple):
    """The same walk for JAX; a pytree."""

    slips: jax.Array

    num_actions = 2
    max_steps = LIMIT

    def reset(self, key):
        return Place(jax.random.randint(key, (), 1, 3), jnp.int32(0))

    def step(self, state, action, key):
        slips = jax.random.uniform(key) < self.slips
        cell = jnp.maximum(state.cell + jnp.where((action == 1) != slips, 1, -1), 0)
        arrived, steps = cell == CELLS - 1, state.steps + 1
        return Place(cell, steps), arrived.astype(jnp.float32), arrived, steps >= LIMIT

    def observe(self, state):
        return jax.nn.one_hot(state.cell, CELLS)


class SlipperyInJax(UnsaidInJax):
    stochastic = True


def unsaid_in_jax() -> UnsaidInJax:
    return UnsaidInJax(jnp.float32(SLIPS))


def slippery_in_jax() -> SlipperyInJax:
    return SlipperyInJax(jnp.float32(SLIPS))


class Wheel(NamedTuple):
    """A wheel of eight numbers; the reward is the number on which it stops."""

    size: jax.Array

    stochastic = True
    num_actions = 8

    def reset(self, key):
        return Place(0, jnp.int32(0))

    def step(self, state, action, key):
        del action
        number = jax.random.randint(jax.random.split(key)[1], (), 0, self.size)
        after = Place(0, state.steps + 1)
        return after, number.astype(jnp.float32), after.steps >= LIMIT, after.steps < 0

    def observe(self, state):
        return jax.nn.one_hot(state.cell, CELLS)
