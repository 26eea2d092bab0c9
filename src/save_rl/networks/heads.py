"""Heads on a torso, and networks for one observation as networks for batches."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from save_rl.networks.mlp import Linear
from save_rl.types import Array


class WithHeads(eqx.Module):
    """A torso and linear heads; see `with_heads`."""

    torso: Any
    head: Linear
    value: Linear | None

    def __call__(self, observation: Any) -> Any:
        """Map one observation to `[A]`, or with a value head to `([A], [])`."""
        x = self.torso(observation)
        head = self.head(x)
        return head if self.value is None else (head, self.value(x)[0])


def with_heads(torso: Any, width: int, num_actions: int, value_head: bool, key: Array) -> WithHeads:
    """Return a network with one output per action, and a state value if `value_head`.

    torso: maps one observation to `[width]`, activated. The heads are linear; their weights are
    drawn from `key`.
    """
    head_key, value_key = jax.random.split(key)
    value = Linear(width, 1, value_key) if value_head else None
    return WithHeads(torso, Linear(width, num_actions, head_key), value)


class Batched(eqx.Module):
    """A network for one observation, applied to batches.

    nodes: of padded graphs; others are 0. The trainer cuts padding off, which is put back here.
    """

    one: Any
    nodes: int = eqx.field(static=True, default=0)

    def __call__(self, observations: Any) -> tuple[Array, Array | None]:
        """Map observations `[B, ...]` to `(head [B, A], value [B] or None)`."""
        if self.nodes:
            missing = self.nodes - observations["node_mask"].shape[1]
            observations = jax.tree.map(
                lambda x: jnp.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)]), observations
            )
        out = jax.vmap(lambda x: self.one(x))(observations)  # modules can't always be hashed
        head, value = out if isinstance(out, tuple) else (out, None)
        return head.astype(jnp.float32), None if value is None else value.astype(jnp.float32)
