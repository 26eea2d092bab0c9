"""Scenes before anything is built, in metres.

Scenes are drawn in generator units and mapped linearly: x from 0 to the generator width becomes -7
to 7 m, y = 0 stays the top of the floor, y grows upwards.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

HALF_WIDTH = 7.0  # metres; the scene spans x from -7 to 7
BOUND_X, BOUND_Y = 7.5, 15.0  # centres of placed blocks: |x| <= 7.5, 0 <= y <= 15
VIEW = (-8.0, 8.0, -3.0, 13.0)  # limits of pictures: left, right, bottom, top
BOX, BALL, RAMP = 0, 1, 2  # kinds of shapes, in the order of the one-hot features


class Shape(NamedTuple):
    """The shape of a block. A ramp has its right angle at the lower left and slopes down to the
    right; a negative width mirrors it."""

    width: float
    height: float
    kind: int = BOX

    @property
    def corners(self) -> tuple[tuple[float, float], ...]:
        """The polygon relative to the centre of the bounding box, counter-clockwise."""
        x, y = self.width / 2, self.height / 2
        if self.kind == BOX:
            return (-x, -y), (x, -y), (x, y), (-x, y)
        triangle = (-x, -y), (x, -y), (-x, y)
        return triangle if x > 0 else triangle[::-1]


class Supply(NamedTuple):
    """The seven shapes of a task, the row below the floor that shows them, and the floor.

    scale: metres per generator unit.
    shapes: the available blocks, left to right.
    display: the `(x, y)` of each shape in the row.
    floor: `(x, y, width, height)`.
    """

    scale: float
    shapes: tuple[Shape, ...]
    display: tuple[tuple[float, float], ...]
    floor: tuple[float, float, float, float]


def _supply(width: int, sizes: list[tuple[float, float, int]]) -> Supply:
    """Lay the shapes out in a row with equal gaps; sizes are in generator units."""
    scale = 2 * HALF_WIDTH / width
    gap = (width - sum(abs(w) for w, _, _ in sizes)) / (len(sizes) - 1)
    left, display = 0.0, []
    for w, _, _ in sizes:
        display.append(((left + abs(w) / 2) * scale - HALF_WIDTH, -30 * scale))
        left += abs(w) + gap
    shapes = tuple(Shape(w * scale, h * scale, kind) for w, h, kind in sizes)
    return Supply(scale, shapes, tuple(display), (0.0, -2.5 * scale, 2 * width * scale, 5 * scale))


_SMALL, _MEDIUM, _LARGE = (10, 10, BOX), (30, 10, BOX), (50, 10, BOX)
BLOCKS = _supply(200, [_SMALL, _SMALL, _SMALL, _MEDIUM, _MEDIUM, _MEDIUM, _LARGE])
MARBLE_BLOCKS = _supply(
    250,
    [
        (10, 10, BOX), (20, 10, BOX), (10, 20, BOX), (30, 20 / 3, BOX), (50, 3, BOX),
        (-30, 10, RAMP), (30, 10, RAMP),
    ],
)  # fmt: skip

Rectangle = tuple[float, float, float, float]  # x, y of the centre, width, height


@dataclass(frozen=True, eq=True)
class Scene:
    """One drawn scene: everything that stays fixed during an episode.

    task, preset, level: the scene's origin.
    max_steps: the episode ends after this many placements.
    obstacles: rectangles that must not be touched; in Marble Run the two walls come first.
    targets: rectangles; in Marble Run the bounding box of the goal, a disc.
    marble: `(x, y, diameter)` of the marble's start, in Marble Run.
    """

    task: str
    preset: str
    level: int | str
    max_steps: int
    obstacles: tuple[Rectangle, ...]
    targets: tuple[Rectangle, ...] = ()
    marble: tuple[float, float, float] | None = None

    @cached_property
    def obstacle_array(self) -> np.ndarray:
        """The obstacles as `[n, 4]`."""
        return np.array(self.obstacles, np.float64).reshape(-1, 4)

    @cached_property
    def target_array(self) -> np.ndarray:
        """The targets as `[n, 4]`."""
        return np.array(self.targets, np.float64).reshape(-1, 4)

    @cached_property
    def bases(self) -> tuple[Rectangle, ...]:
        """Objects other than the floor and blocks to build on: obstacles, targets, the marble."""
        marble = self.marble
        disc = ((marble[0], marble[1], marble[2], marble[2]),) if marble is not None else ()
        return (*self.obstacles, *self.targets, *disc)

    @cached_property
    def obstacle_width(self) -> float:
        """The sum of all obstacles' widths."""
        return sum(width for _, _, width, _ in self.obstacles)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of the fields, in order: the arguments of `Scene`."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def _hash(self) -> int:
        return hash(self.values)

    def __hash__(self) -> int:  # states are hashed often, and share their scene
        return self._hash

    def __reduce__(self) -> Any:  # leaves out cached values
        return Scene, self.values
