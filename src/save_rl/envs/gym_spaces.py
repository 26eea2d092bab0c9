"""Observations of Gymnasium spaces as one vector: which part goes where."""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from save_rl.errors import require

NUMBERS = (spaces.Box, spaces.MultiBinary)
ONE_HOT = (spaces.Discrete, spaces.MultiDiscrete)
NESTED = (spaces.Dict, spaces.Tuple)


class Part(NamedTuple):
    """A part of an observation: numbers go to `place`, a category sets index `hot + value`.

    path: its keys in nested dictionaries and tuples. shape: as it is not flattened.
    """

    path: tuple[Any, ...]
    place: slice
    shape: tuple[int, ...]
    scale: int = 1
    hot: Any = None


def observation_parts(
    space: Any, path: tuple[Any, ...] = (), begin: int = 0
) -> tuple[list[Part], int]:
    """Return the parts of an observation and the index after the last."""
    if isinstance(space, NESTED):
        parts: list[Part] = []
        for key, inner in spaces_inside(space):
            more, begin = observation_parts(inner, (*path, key), begin)
            parts += more
        return parts, begin
    require(
        isinstance(space, NUMBERS + ONE_HOT),
        "ENV",
        f"an observation space of {type(space).__name__}",
        "Box, Discrete, MultiBinary, MultiDiscrete, or a Dict or Tuple of these",
    )
    end = begin + spaces.flatdim(space)
    place = slice(begin, end)
    if isinstance(space, NUMBERS):
        image = isinstance(space, spaces.Box) and space.dtype == np.uint8
        return [Part(path, place, space.shape, scale=255 if image else 1)], end
    sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    hot = begin + np.cumsum(sizes) - sizes - np.ravel(space.start)
    return [Part(path, place, (-1,), hot=hot.astype(np.int64))], end


def spaces_inside(space: Any) -> list[tuple[Any, Any]]:
    """Return the keys and spaces directly inside a dictionary or tuple of spaces."""
    inner = space.spaces if isinstance(space, NESTED) else ()
    return list(inner.items() if isinstance(inner, dict) else enumerate(inner))
