"""The two scripted heuristics that Bapst et al. (2019) compare their agents with.

Their supplement describes each in a sentence and does not give clearances, so those numbers are
ours (docs/construction/silhouette.md#the-scripted-agent,
docs/construction/covering.md#the-scripted-agent). Both use the current poses of the blocks, keep no
memory and simulate nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from save_rl.envs.construction.graph import LIFT, Placement
from save_rl.envs.construction.scene import BLOCKS, BOUND_X, BOUND_Y
from save_rl.envs.construction.state import State

SMALL, MEDIUM, LARGE = 0, 3, 6  # slots
WIDTHS = np.array([shape.width for shape in BLOCKS.shapes])
HEIGHT = BLOCKS.shapes[0].height
LAYER = HEIGHT + 0.015  # distance of stacked blocks (docs/construction/index.md#constants)
SCAN = np.linspace(-BOUND_X, BOUND_X, 301)  # positions that Covering considers, every 5 cm
BESIDE_OBSTACLE, BESIDE_BLOCK = 0.1, 0.05  # clearances of Covering, in metres
STEADY = 0.05  # metres by which a supported centre of mass lies inside its support
LEAN = 0.1  # a block may be tilted by this many metres and still support another


class Boxes(NamedTuple):
    """The axis-aligned bounding boxes of the placed blocks, `[blocks]` each."""

    left: np.ndarray
    right: np.ndarray
    bottom: np.ndarray
    top: np.ndarray
    sticky: np.ndarray


def silhouette(state: State) -> Placement:
    """Fill the targets layer by layer, from the centre of the scene outwards.

    A block is sticky if its centre of mass is unsupported and no block it touches is sticky.
    Targets that are occupied or have nothing below them are skipped.
    """
    boxes = _boxes(state)
    by_layer = sorted(state.scene.targets, key=lambda target: (target[1], abs(target[0])))
    for x, y, width, _ in by_layer:
        bottom, here = y - HEIGHT / 2, np.array([x])
        touched = _touched(boxes, here, width, bottom)[0]
        on_the_floor = bottom < LIFT
        if _occupied(boxes, here, width, bottom)[0] or not (on_the_floor or touched.any()):
            continue
        supported = _supported(boxes, here, width, bottom)[0]
        sticky = not supported and not boxes.sticky[touched].any()
        return Placement(int(np.abs(WIDTHS - width).argmin()), x, y + LIFT, sticky)
    return _aside(state, boxes)


def covering(state: State, *, careful: bool = False) -> Placement:
    """Build layer by layer, large blocks first.

    In layers with obstacles fill the gaps; in the layers above cover the obstacles, then fill, from
    the centre outwards. Nothing is sticky: the paper mentions no glue here, and it costs more than
    covering the average obstacle gains.

    careful: place a block only where its centre of mass is supported. Ours, and the better
        heuristic; without it the scores are those of the paper.
    """
    boxes, obstacles = _boxes(state), state.scene.obstacle_array
    highest = obstacles[:, 1].max()
    for bottom in np.arange(0.0, highest + HEIGHT, LAYER):
        places = {
            slot: _places(state, boxes, slot, bottom, careful) for slot in (LARGE, MEDIUM, SMALL)
        }
        for slot, x in places.items():
            for obstacle in obstacles[obstacles[:, 1] < bottom]:
                bare = _bare(boxes, obstacle)
                above = x[(np.abs(x[:, None] - bare) < WIDTHS[slot] / 2).any(1)]
                if above.size:
                    return _put(slot, _nearest(above, bare.mean()), bottom)
        for slot, x in places.items():
            if x.size and bottom < highest:
                return _put(slot, _nearest(x, 0.0), bottom)
    return _aside(state, boxes)


SCRIPTED: dict[str, Callable[[State], Placement]] = {"silhouette": silhouette, "covering": covering}


def _boxes(state: State) -> Boxes:
    slot, sticky, x, y, angle = state.block_array.T.astype(np.float64)
    width, cos, sin = WIDTHS[slot.astype(int)], np.abs(np.cos(angle)), np.abs(np.sin(angle))
    half_x, half_y = (width * cos + HEIGHT * sin) / 2, (width * sin + HEIGHT * cos) / 2
    return Boxes(x - half_x, x + half_x, y - half_y, y + half_y, sticky > 0)


def _occupied(
    boxes: Boxes, x: np.ndarray, width: float, bottom: float, room: float = 0.0
) -> np.ndarray:
    """Test at which x a block in a layer would overlap another one, `[len(x)]`."""
    start, reach = bottom + LIFT, width / 2 + room
    beside = (boxes.bottom < start + HEIGHT) & (boxes.top > start)
    near = (boxes.left < x[:, None] + reach) & (boxes.right > x[:, None] - reach)
    return np.any(beside & near, axis=1)


def _touched(boxes: Boxes, x: np.ndarray, width: float, bottom: float) -> np.ndarray:
    """Test on which blocks a block at x would stand, `[len(x), blocks]`; never on tilted ones."""
    level = boxes.top - boxes.bottom < HEIGHT + LEAN
    below = level & (np.abs(boxes.top - bottom) < LIFT)
    near = (boxes.left < x[:, None] + width / 2) & (boxes.right > x[:, None] - width / 2)
    return below & near


def _supported(boxes: Boxes, x: np.ndarray, width: float, bottom: float) -> np.ndarray:
    """Test at which x a block's centre of mass is above its support, `[len(x)]`."""
    if bottom < LIFT:
        return np.ones(len(x), bool)
    touched = _touched(boxes, x, width, bottom)
    left = np.where(touched, boxes.left, np.inf).min(1, initial=np.inf)
    right = np.where(touched, boxes.right, -np.inf).max(1, initial=-np.inf)
    return (left + STEADY < x) & (x < right - STEADY)


def _places(state: State, boxes: Boxes, slot: int, bottom: float, careful: bool) -> np.ndarray:
    """Return the x at which a block fits into a layer, left to right."""
    width = WIDTHS[slot]
    x, y, obstacle_width, _ = state.scene.obstacle_array.T
    beside = (bottom < y) & (y < bottom + HEIGHT)
    reach = (width + obstacle_width) / 2 + BESIDE_OBSTACLE
    free = ~(beside & (np.abs(SCAN[:, None] - x) < reach)).any(1)
    free &= ~_occupied(boxes, SCAN, width, bottom, BESIDE_BLOCK)
    return SCAN[free & _supported(boxes, SCAN, width, bottom)] if careful else SCAN[free]


def _bare(boxes: Boxes, obstacle: np.ndarray) -> np.ndarray:
    """Return the points of an obstacle, about every 5 cm, that have no block above them."""
    x, y, width, _ = obstacle
    points = np.linspace(x - width / 2, x + width / 2, round(width / 0.05))[:, None]
    higher = (boxes.bottom + boxes.top) / 2 >= y
    return points[~(higher & (boxes.left < points) & (points < boxes.right)).any(1), 0]


def _nearest(x: np.ndarray, wish: float) -> float:
    return float(x[np.abs(x - wish).argmin()])


def _put(slot: int, x: float, bottom: float) -> Placement:
    """Return a placement in the layer above `bottom`."""
    return Placement(slot, float(x), float(bottom) + HEIGHT / 2 + LIFT, False)


def _aside(state: State, boxes: Boxes) -> Placement:
    """Return a harmless placement: a small block, as low and as far outside as possible."""
    for bottom in np.arange(0.0, BOUND_Y, LAYER):
        x = _places(state, boxes, SMALL, bottom, careful=True)
        if x.size:
            return _put(SMALL, x[np.abs(x).argmax()], bottom)
    return _put(SMALL, BOUND_X, boxes.top.max())
