"""A network for dictionaries of arrays: images through convolutions, the rest flattened, then the
layers of the MLP."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from save_rl.networks.conv import Convolutions, features_of, is_image
from save_rl.networks.mlp import MLPNetwork
from save_rl.types import Array


class DictNetwork(eqx.Module):
    """Encodes each entry, and joins them in the order of their names.

    shown: the entries by name, or their shapes and dtypes. images: of the entries that are images,
    see `conv.is_image`; each has convolutions of its own.
    """

    images: dict[str, Convolutions]
    mlp: MLPNetwork

    def __init__(
        self, shown: dict[str, Any], num_actions: int, key: Array, value_head: bool,
        filters: tuple[int, ...], hidden: tuple[int, ...],
    ):  # fmt: skip
        mlp_key, *keys = jax.random.split(key, len(shown) + 1)
        self.images, features = {}, 0
        for name, own in zip(sorted(shown), keys, strict=True):
            shape = shown[name].shape
            if is_image(shown[name], len(filters)):
                self.images[name] = Convolutions(shape, filters, own)
                features += features_of(shape, filters)
            else:
                features += math.prod(shape)
        self.mlp = MLPNetwork(features, num_actions, mlp_key, value_head, hidden)

    def __call__(self, observations: dict[str, Array]) -> tuple[Array, Array | None]:
        """Map entries `[B, ...]` to `(head [B, A], value [B] or None)`."""
        parts = []
        for name in sorted(observations):
            x = observations[name]
            encode = self.images.get(name)
            flat = x.reshape(x.shape[0], -1).astype(jnp.float32)
            parts.append(flat if encode is None else encode(x))
        return self.mlp(jnp.concatenate(parts, -1))
