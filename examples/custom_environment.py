"""Thin ice: a small custom environment for `03_custom_jax_environment.py`.

A walker on a 6 x 6 pond has to reach the bottom right corner. The moves are right, down, left and
up; those that would leave the pond are masked. Some cells are holes: stepping on one ends the
episode with reward 0. The corner pays 1. An episode starts on a path that is known to be free of
holes, and is truncated after 30 steps.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SIZE, LIMIT = 6, 30
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))


class State(NamedTuple):
    """One walker; the loops add the leading axis of lanes."""

    cell: Any  # [2] row and column
    steps: Any  # [] steps so far


class ThinIce(NamedTuple):
    """The environment is a pytree: its arrays may differ from seed to seed."""

    holes: Any  # [6, 6] bool
    way: Any  # [11, 2] cells without holes, from the top left to the bottom right

    num_actions = len(MOVES)
    max_steps = LIMIT  # longest test episode; default 1000

    def reset(self, key: Any) -> State:
        start = jax.random.randint(key, (), 0, len(self.way) - 1)
        return State(self.way[start], jnp.int32(0))

    def step(self, state: State, action: Any) -> tuple[State, Any, Any, Any]:
        cell = jnp.clip(state.cell + jnp.array(MOVES)[action], 0, SIZE - 1)
        steps = state.steps + 1
        arrived = jnp.all(cell == SIZE - 1)
        terminated = arrived | self.holes[cell[0], cell[1]]
        truncated = ~terminated & (steps >= LIMIT)
        return State(cell, steps), arrived.astype(jnp.float32), terminated, truncated

    def observe(self, state: State) -> Any:
        """Row and column, each as a one-hot vector: `[12]`."""
        return jax.nn.one_hot(state.cell, SIZE).reshape(-1)

    def action_mask(self, state: State) -> Any:
        """`[4]`, True where the move stays on the pond."""
        target = state.cell + jnp.array(MOVES)
        return jnp.all((target >= 0) & (target < SIZE), -1)


def thin_ice(seed: int = 0, holes: int = 12) -> ThinIce:
    """Draw a pond with up to this many holes, but keep one way across free."""
    rng = np.random.default_rng(seed)
    broken = np.zeros((SIZE, SIZE), bool)
    broken.flat[rng.permutation(SIZE * SIZE)[:holes]] = True
    moves = rng.permutation(MOVES[:2] * (SIZE - 1))  # only right and down: a shortest way
    way = np.concatenate([np.zeros((1, 2), int), np.cumsum(moves, 0)])
    broken[way[:, 0], way[:, 1]] = False
    return ThinIce(jnp.asarray(broken), jnp.asarray(way, jnp.int32))
