"""Convolutional networks for observations like images, `[H, W, C]`.

The default is the network of MinAtar (Young and Tian 2019, section 3): 16 filters of 3 x 3 pixels
with stride 1, then 128 hidden units, then one linear output per action; ReLU.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from save_rl.networks.heads import Batched, with_heads
from save_rl.networks.mlp import MLP, Linear
from save_rl.types import Array

FILTERS = (16,)  # MinAtar
HIDDEN = (128,)  # MinAtar
SMALLEST_IMAGE = 5  # pixels along both sides of what `auto` takes for an image
_SIDE = 3  # pixels of a filter
# Pixels of an image up to which a convolution is a product of matrices. With several seeds, whose
# filters differ, XLA makes a grouped convolution of it, which was slower (5 seeds, 10 x 10 pixels,
# two CPU cores); images of 84 x 84 pixels were several times faster without the product.
SMALL_IMAGE = 32 * 32


def is_image(observation: Any, layers: int = 1) -> bool:
    """Test whether an array is an image `[H, W, C]`, large enough for so many convolutions."""
    least = max(SMALLEST_IMAGE, smallest_side(layers))
    return has_pixels(observation, least)


def has_pixels(observation: Any, least: int) -> bool:
    """Test whether an array is `[H, W, C]` with at least this many pixels along both sides."""
    shape = getattr(observation, "shape", ())
    return len(shape) == 3 and min(shape[:2]) >= least


def smallest_side(layers: int) -> int:
    """Return the pixels along a side that leave one after so many convolutions."""
    return 1 + layers * (_SIDE - 1)


class Convolutions(eqx.Module):
    """Layers of 3 x 3 filters with stride 1 and without padding, each followed by ReLU.

    shape: of an image `[H, W, C]`. filters: per layer; the weights of a filter are ordered by row,
    column and channel.
    """

    layers: tuple[Linear, ...]

    def __init__(self, shape: tuple[int, ...], filters: tuple[int, ...], key: Array):
        channels = (shape[-1], *filters)
        keys = jax.random.split(key, len(filters))
        self.layers = tuple(
            Linear(_SIDE * _SIDE * before, after, k)
            for before, after, k in zip(channels[:-1], channels[1:], keys, strict=True)
        )

    def __call__(self, images: Array) -> Array:
        """Map images `[..., H, W, C]` to features `[..., features]`; bytes count as 0 to 1."""
        leading, x = images.shape[:-3], as_pixels(images)
        for layer in self.layers:
            convolve = _of_patches if math.prod(x.shape[-3:-1]) <= SMALL_IMAGE else _convolved
            x = jax.nn.relu(convolve(layer, x))
        return x.reshape(*leading, -1)


def _of_patches(layer: Linear, x: Array) -> Array:
    """Return a convolution of images `[..., H, W, C]` as a product with patches around pixels."""
    height, width = (side - _SIDE + 1 for side in x.shape[-3:-1])
    patches = [x[..., i : i + height, j : j + width, :] for i in range(_SIDE) for j in range(_SIDE)]
    return layer(jnp.concatenate(patches, -1))


def _convolved(layer: Linear, x: Array) -> Array:
    """Return the same, without a copy of all patches."""
    *leading, height, width, channels = x.shape
    found = jax.lax.conv_general_dilated(
        x.reshape(-1, height, width, channels),
        layer.weight.reshape(_SIDE, _SIDE, channels, -1),
        (1, 1),
        "VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return (found + layer.bias).reshape(*leading, *found.shape[1:])


def features_of(shape: tuple[int, ...], filters: tuple[int, ...]) -> int:
    """Return the number of features that `Convolutions` makes of an image `[H, W, C]`."""
    lost = smallest_side(len(filters)) - 1
    return int(np.prod([side - lost for side in shape[:2]])) * filters[-1]


def as_pixels(images: Array) -> Array:
    """Return images as float32: bytes divided by 255, anything else as it is."""
    pixels = images.astype(jnp.float32)
    return pixels / 255 if images.dtype == jnp.uint8 else pixels


class ImageTorso(eqx.Module):
    """Convolutions and hidden layers, of one image `[H, W, C]`."""

    convolutions: Convolutions
    hidden: MLP

    def __call__(self, image: Array) -> Array:
        return self.hidden(self.convolutions(image))


def conv_network(
    shape: tuple[int, ...], num_actions: int, key: Array, value_head: bool = False,
    filters: tuple[int, ...] = FILTERS, hidden: tuple[int, ...] = HIDDEN,
) -> Batched:  # fmt: skip
    """Return a network for images of this shape, with linear heads."""
    conv_key, hidden_key, head_key = jax.random.split(key, 3)
    sizes = (features_of(shape, filters), *hidden)
    torso = ImageTorso(
        Convolutions(shape, filters, conv_key), MLP(sizes, hidden_key, activate_last=True)
    )
    return Batched(with_heads(torso, hidden[-1], num_actions, value_head, head_key))
