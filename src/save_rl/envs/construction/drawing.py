"""Pictures of states, for people and for agents with image observations.

Pictures show the 16 m × 16 m of `VIEW`, in the colours of docs/construction/index.md#pictures. Agg,
matplotlib's rasteriser, draws them with anti-aliasing.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image

from save_rl.envs.construction.scene import BALL, VIEW, Shape, Supply
from save_rl.envs.construction.state import BOND_FIELDS, State
from save_rl.envs.construction.tasks import TASKS

if TYPE_CHECKING:
    from matplotlib.path import Path as Curve

Colour = tuple[float, float, float, float]  # red, green, blue, alpha, each from 0 to 1

WHITE, BLACK = (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 1.0)
BLOCK, STICKY, OBSTACLE = (0.0, 0.0, 1.0, 1.0), (0.0, 0.8, 1.0, 1.0), (1.0, 0.0, 0.0, 1.0)
TARGET, SILHOUETTE_TARGET = (0.0, 0.0, 1.0, 0.5), (0.0, 1.0, 0.0, 0.3)
MARBLE, MARBLE_AT_START = (0.0, 1.0, 0.0, 1.0), (0.0, 1.0, 0.0, 0.5)
GLUE = (0.5, 0.5, 0.5, 1.0)
CURSOR, TRACE = (1.0, 0.6, 0.0, 1.0), (0.0, 0.5, 0.0, 1.0)  # ours

GLUE_DIAMETER, CURSOR_LENGTH, CURSOR_WIDTH = 0.2, 0.7, 0.2  # metres; ours
SELECTOR_Y = -1.0  # docs/construction/index.md#geometry
OUTLINED_FROM = 200  # pixels; smaller pictures have no outlines

_TURN = np.arange(0, 2 * np.pi, np.pi / 24)
_DISC = np.stack([np.cos(_TURN), np.sin(_TURN)], 1) / 2  # of diameter 1


class Layer(NamedTuple):
    """Shapes that are drawn together.

    polygons: each `[corners, 2]`, in metres.
    fill, edge: their colours; None draws none.
    closed: False draws open lines.
    """

    polygons: Iterable[np.ndarray]
    fill: Colour | None
    edge: Colour | None = None
    closed: bool = True


def draw(
    state: State,
    size: int = 480,
    *,
    path: np.ndarray | None = None,
    cursor: tuple[float, float, float] | None = None,
) -> np.ndarray:
    """Draw a picture of a state, `[size, size, 3]` uint8.

    path: the marble's positions `[T, 2]`, drawn as a line with the marble at its last point.
    cursor: `(selector x, x, y)`, drawn as a cross below the floor and one at `(x, y)`.
    """
    from matplotlib.backends.backend_agg import RendererAgg  # slow to import
    from matplotlib.transforms import Affine2D

    left, right, bottom, top = VIEW
    view = Affine2D().translate(-left, -bottom).scale(size / (right - left), size / (top - bottom))
    renderer = RendererAgg(size, size, 72)
    pen = renderer.new_gc()
    pen.set_snap(False)
    for layer in _layers(state, size >= OUTLINED_FROM, path, cursor):
        pen.set_linewidth(size / 480 if layer.edge else 0)
        pen.set_foreground(layer.edge or BLACK, isRGBA=True)
        renderer.draw_path(pen, _curve(layer), view, layer.fill)
    pixels = np.asarray(renderer.buffer_rgba())
    return np.stack([pixels[..., channel] for channel in range(3)], axis=-1)


def image_observation(state: State, cursor: tuple[float, float, float] | None = None) -> np.ndarray:
    """Return an agent's image `[64, 64, 3]` uint8: 128 × 128 pixels averaged over 2 × 2 patches."""
    return np.array(Image.fromarray(draw(state, 128, cursor=cursor)).reduce(2))


def _layers(
    state: State,
    outlined: bool,
    path: np.ndarray | None,
    cursor: tuple[float, float, float] | None,
) -> Iterator[Layer]:
    """Yield layers from back to front. White lines separate touching blocks, and outline targets
    behind blocks."""
    scene, supply = state.scene, TASKS[state.scene.task].supply
    edge = WHITE if outlined else None
    if scene.marble is None:
        targets = [_rectangle(*target) for target in scene.targets]
    else:
        targets = [_disc(x, y, diameter) for x, y, diameter, _ in scene.targets]
    blocks: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    for slot, sticky, x, y, angle in state.block_array.tolist():
        blocks[sticky > 0].append(_moved(_polygon(supply.shapes[int(slot)]), x, y, angle))

    yield Layer([_rectangle(0, 0, 99, 99)], WHITE)
    yield Layer(targets, SILHOUETTE_TARGET if scene.task == "silhouette" else TARGET)
    yield Layer((_rectangle(*obstacle) for obstacle in scene.obstacles), OBSTACLE)
    yield Layer(_available(state, supply), BLOCK)
    yield Layer(blocks[False], BLOCK, edge)
    yield Layer(blocks[True], STICKY, edge)
    if outlined:
        yield Layer(targets, None, edge)
    yield Layer([_rectangle(*supply.floor)], BLACK)
    yield Layer((_disc(x, y, GLUE_DIAMETER) for x, y in _glue_points(state)), GLUE)
    if scene.marble is not None:
        yield Layer([_disc(*scene.marble)], MARBLE_AT_START)
        if path is not None and len(path):
            x, y = path[-1]
            yield Layer([path], None, TRACE, closed=False)
            yield Layer([_disc(x, y, scene.marble[2])], MARBLE)
    if cursor is not None:
        selector_x, x, y = cursor
        yield Layer([*_cross(selector_x, SELECTOR_Y), *_cross(x, y)], CURSOR)


def _available(state: State, supply: Supply) -> Iterator[np.ndarray]:
    """Yield the row of blocks below the floor, without those that are used up."""
    used = set() if TASKS[state.scene.task].replaced else set(state.block_array[:, 0].tolist())
    for slot, (shape, position) in enumerate(zip(supply.shapes, supply.display, strict=True)):
        if slot not in used:
            yield _polygon(shape) + position


def _glue_points(state: State) -> Iterator[np.ndarray]:
    """Yield the first contact point `[2]` of each glued pair, moving with the older block."""
    poses = [*state.block_array[:, 2:].tolist(), (0.0, 0.0, 0.0)]  # -1, the last, is the floor
    x = BOND_FIELDS.index("contact_x")
    for bond in state.bond_array:
        yield _moved(bond[x : x + 2], *poses[int(bond[0])])


def _polygon(shape: Shape) -> np.ndarray:
    """Return the corners `[corners, 2]`, relative to the centre."""
    return _DISC * shape.width if shape.kind == BALL else np.array(shape.corners)


def _rectangle(x: float, y: float, width: float, height: float) -> np.ndarray:
    return np.add(Shape(width, height).corners, (x, y))


def _disc(x: float, y: float, diameter: float) -> np.ndarray:
    return _DISC * diameter + (x, y)


def _cross(x: float, y: float) -> list[np.ndarray]:
    bars = (CURSOR_LENGTH, CURSOR_WIDTH), (CURSOR_WIDTH, CURSOR_LENGTH)
    return [_rectangle(x, y, width, height) for width, height in bars]


def _moved(points: np.ndarray, x: float, y: float, angle: float) -> np.ndarray:
    """Transform points `[..., 2]` from a body's frame to the world's."""
    c, s = np.cos(angle), np.sin(angle)
    return points @ np.array([(c, s), (-s, c)]) + (x, y)


def _curve(layer: Layer) -> "Curve":
    """Return all polygons of a layer as one path, which is drawn in one call."""
    from matplotlib.path import Path as Curve

    vertices, codes = [np.zeros((0, 2))], []
    for polygon in layer.polygons:
        vertices.append(polygon)
        codes += [Curve.MOVETO, *[Curve.LINETO] * (len(polygon) - 1)]
        if layer.closed:
            vertices.append(polygon[:1])
            codes.append(Curve.CLOSEPOLY)
    curve = Curve(np.concatenate(vertices), codes)
    curve.should_simplify = False
    return curve
