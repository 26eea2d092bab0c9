"""Multilayer perceptrons with the paper's heads (B.3)."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

HIDDEN = (64, 64)  # paper B.3, for torso and heads
NORM_EPSILON = 1e-5  # of layer normalisation


class Linear(eqx.Module):
    """Fully connected layer: truncated-normal weights with σ = 1/√fan-in, zero bias (Sonnet)."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, fan_in: int, fan_out: int, key: Array):
        self.weight = jax.random.truncated_normal(key, -2, 2, (fan_in, fan_out)) / math.sqrt(fan_in)
        self.bias = jnp.zeros(fan_out)

    def __call__(self, x: Float[Array, "*B inputs"]) -> Float[Array, "*B outputs"]:
        return x @ self.weight + self.bias


class MLP(eqx.Module):
    """ReLU layers of the given sizes; the last one is linear unless `activate_last`."""

    layers: tuple[Linear, ...]
    activate_last: bool = eqx.field(static=True)

    def __init__(self, sizes: tuple[int, ...], key: Array, activate_last: bool = False):
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(
            Linear(i, o, k) for i, o, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )
        self.activate_last = activate_last

    def __call__(self, x: Float[Array, "*B inputs"]) -> Float[Array, "*B outputs"]:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i + 1 < len(self.layers) or self.activate_last:
                x = jax.nn.relu(x)
        return x


class MLPNetwork(eqx.Module):
    """Torso, a head with one output per action (Qθ or policy logits), optionally a value head.

    hidden: widths of the torso; those of the heads are the paper's.
    """

    torso: MLP
    head: MLP
    value: MLP | None

    def __init__(
        self, features: int, num_actions: int, key: Array, value_head: bool = False,
        hidden: tuple[int, ...] = HIDDEN,
    ):  # fmt: skip
        torso_key, head_key, value_key = jax.random.split(key, 3)
        self.torso = MLP((features, *hidden), torso_key, activate_last=True)
        self.head = MLP((hidden[-1], *HIDDEN, num_actions), head_key)
        self.value = MLP((hidden[-1], *HIDDEN, 1), value_key) if value_head else None

    def __call__(
        self, observations: Shaped[Array, "B ..."]
    ) -> tuple[Float[Array, "B A"], Float[Array, " B"] | None]:
        """Map observations `[B, ...]` to `(head [B, A], value [B] or None)`."""
        x = self.torso(observations.reshape(observations.shape[0], -1))
        return self.head(x), None if self.value is None else self.value(x)[:, 0]
