"""Tables instead of networks, for environments whose observation is the index of the state."""

import equinox as eqx
import jax.numpy as jnp

from save_rl.types import Array


class TableNetwork(eqx.Module):
    """A table with one row per state, initialised to zero; observations are integers `[B]`."""

    head: Array  # [S, A]
    value: Array | None  # [S]

    def __init__(self, states: int, num_actions: int, value_head: bool = False):
        self.head = jnp.zeros((states, num_actions))
        self.value = jnp.zeros(states) if value_head else None

    def __call__(self, observations: Array) -> tuple[Array, Array | None]:
        value = None if self.value is None else self.value[observations]
        return self.head[observations], value
