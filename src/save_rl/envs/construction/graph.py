"""Scenes as graphs, and the discrete actions: place a block along an edge, with an offset, sticky
or not (docs/construction/index.md#as-a-graph and #actions).

Each node is an object: the seven available blocks, obstacles, targets, the marble, the floor,
placed blocks in the order of placement; then padding. Where blocks are not replaced (Covering
Hard), a placed block keeps its node among the available blocks. Every ordered pair of nodes is an
edge; edges are ordered by sender, so those from available blocks come first:

    edge(u, v) = u * (nodes - 1) + v - (v > u)
    action(edge, offset, sticky) = (edge * 15 + offset) * 2 + sticky
"""

from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import numpy as np

from save_rl.compiled import njit
from save_rl.envs.construction.scene import BALL, BOUND_X, Rectangle, Scene
from save_rl.envs.construction.state import BLOCK_FIELDS, State, block_table
from save_rl.envs.construction.tasks import TASKS, Task

AVAILABLE = 7
OFFSETS = tuple(np.linspace(-13 / 12, 13 / 12, 15).tolist())  # of half the sum of the two widths
ACTIONS_PER_EDGE = 2 * len(OFFSETS)
_BLOCK = Struct(f"{len(BLOCK_FIELDS)}f")  # a row of `State.blocks`
BLOCK_BYTES = _BLOCK.size
REACH = BOUND_X - 1e-6
LIFT = 0.04  # metres between a base and the block above it
_FREE, _STICKY, _SHAPE, _TYPE = 9, 10, 11, 14  # columns
_BLOCK_TYPE, _AVAILABLE_TYPE, _OBSTACLE_TYPE, _TARGET_TYPE, _MARBLE_TYPE = range(5)
_NONE: frozenset[int] = frozenset()
_OWN_NODES = -1  # in place of the first block's node: blocks keep the nodes of their slots

NODE_FEATURES = (
    "x", "y", "cos", "sin", "width", "height", "velocity_x", "velocity_y", "angular_velocity",
    "free", "sticky", "box", "ball", "ramp", "is_block", "is_available", "is_obstacle",
    "is_target", "is_marble",
)  # fmt: skip


class Placement(NamedTuple):
    """A block to place: its slot in the row of available blocks, its position, its sticky flag."""

    slot: int
    x: float
    y: float
    sticky: bool


def feature_count(task: str) -> int:
    """Return the number of node features: 18, or 19 with a marble."""
    return 19 if task == "marble-run" else 18


def edge_lists(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return senders and receivers of all edges between nodes, `[nodes * (nodes - 1)]` each."""
    senders, receivers = np.divmod(np.arange(nodes * (nodes - 1)), nodes - 1)
    return senders.astype(np.int32), (receivers + (receivers >= senders)).astype(np.int32)


def node_count(scene: Scene, blocks: int) -> int:
    """Return the number of nodes in use with this many blocks placed."""
    return AVAILABLE + len(scene.bases) + 1 + (blocks if TASKS[scene.task].replaced else 0)


@lru_cache(maxsize=1024)
def _fixed_nodes(scene: Scene, padded: int) -> np.ndarray:
    """Return nodes `[padded, features]` of everything but the placed blocks."""
    supply = TASKS[scene.task].supply
    nodes = np.zeros((padded, feature_count(scene.task)), np.float32)
    rows: list[tuple[float, float, float, float, int, int]] = []
    for (x, y), shape in zip(supply.display, supply.shapes, strict=True):
        rows.append((x, y, shape.width, shape.height, shape.kind, _AVAILABLE_TYPE))
    rows += [(*box, 0, _OBSTACLE_TYPE) for box in scene.obstacles]
    goal = BALL if scene.marble is not None else 0
    rows += [(*box, goal, _TARGET_TYPE) for box in scene.targets]
    if scene.marble is not None:
        x, y, diameter = scene.marble
        rows.append((x, y, diameter, diameter, BALL, _MARBLE_TYPE))
    rows.append((*supply.floor, 0, _BLOCK_TYPE))
    for node, (x, y, width, height, kind, role) in zip(nodes, rows, strict=False):
        node[:6] = x, y, 1.0, 0.0, width, height
        node[_SHAPE + kind] = node[_TYPE + role] = 1.0
    return nodes


@lru_cache(maxsize=8)
def _shape_features(task: str) -> np.ndarray:
    """Return width, height and one-hot kind of each slot, `[7, 5]`."""
    shapes = TASKS[task].supply.shapes
    return np.array([(s.width, s.height, *np.eye(3)[s.kind]) for s in shapes], np.float32)


def node_features(state: State, padded: int) -> np.ndarray:
    """Return raw features `[padded, 18 or 19]`; unused rows are zero, and so are velocities."""
    scene, blocks = state.scene, state.block_array
    nodes = _fixed_nodes(scene, padded).copy()
    if len(blocks):
        first = node_count(scene, 0) if TASKS[scene.task].replaced else _OWN_NODES
        angles = blocks[:, 4]
        shapes = _shape_features(scene.task)
        _show_blocks(nodes, first, blocks, np.cos(angles), np.sin(angles), shapes)
    return nodes


@njit
def _show_blocks(nodes, first, blocks, cos, sin, shapes):
    """Write the features of placed blocks to the nodes from `first` on, or to those of their
    slots. Cosines and sines are NumPy's, as those of other libraries are rounded differently."""
    for i in range(len(blocks)):
        slot = int(blocks[i, 0])
        node = slot if first == _OWN_NODES else first + i
        if not (0 <= slot < len(shapes) and 0 <= node < len(nodes)):
            raise IndexError("there is no node for a block")
        row, shape = nodes[node], shapes[slot]
        row[:] = 0.0
        row[0], row[1] = blocks[i, 2], blocks[i, 3]
        row[2], row[3] = cos[i], sin[i]
        row[4], row[5] = shape[0], shape[1]
        row[_FREE] = row[_TYPE + _BLOCK_TYPE] = 1.0
        row[_STICKY] = blocks[i, 1]
        for kind in range(3):  # Numba compiles this in a tenth of the time of slices
            row[_SHAPE + kind] = shape[2 + kind]


def taken(state: State, task: Task) -> frozenset[int]:
    """Return the slots of used-up blocks."""
    return _NONE if task.replaced else _taken(state.blocks)


@lru_cache(maxsize=256)
def _taken(blocks: bytes) -> frozenset[int]:
    return frozenset(_slots(blocks))


@lru_cache(maxsize=256)
def _slots(blocks: bytes) -> tuple[int, ...]:
    """Return the slots of placed blocks."""
    return tuple(map(int, block_table(blocks)[:, 0].tolist()))


def edge_mask(state: State, padded: int) -> np.ndarray:
    """Mark the valid ones `[7 * (padded - 1)]` of the edges from the first seven nodes: from an
    available block to any other kind of object."""
    gone = taken(state, TASKS[state.scene.task])
    available = np.zeros(padded, bool)
    available[[slot for slot in range(AVAILABLE) if slot not in gone]] = True
    bases = ~available
    bases[node_count(state.scene, len(state.blocks) // BLOCK_BYTES) :] = False
    return _without_diagonal(available[:AVAILABLE, None] & bases[None, :])


def existing_edges(state: State, padded: int) -> np.ndarray:
    """Mark the edges `[edges]` between nodes in use."""
    used = np.arange(padded) < node_count(state.scene, len(state.blocks) // BLOCK_BYTES)
    return _without_diagonal(used[:, None] & used[None, :])


def _without_diagonal(pairs: np.ndarray) -> np.ndarray:
    """Flatten values `[rows, nodes]` of pairs of nodes to a list of edges."""
    rows, nodes = pairs.shape
    keep = np.arange(nodes)[None, :] != np.arange(rows)[:, None]
    return pairs[keep]


def _other_base(state: State, receiver: int, task: Task) -> Rectangle | None:
    """Return the floor or a placed block by its node; None if it is neither."""
    index = receiver - AVAILABLE - len(state.scene.bases)  # 0 is the floor, then come blocks
    if index == 0:
        return task.supply.floor
    if task.replaced:
        place = index - 1
    else:  # a placed block keeps its node among the available blocks
        slots = _slots(state.blocks)
        place = slots.index(receiver) if receiver in slots else -1
    if not 0 <= place < len(state.blocks) // BLOCK_BYTES:
        return None
    slot, _, x, y, _ = _BLOCK.unpack_from(state.blocks, place * BLOCK_BYTES)
    width, height, _ = task.supply.shapes[int(slot)]
    return x, y, width, height


def place(state: State, sender: int, receiver: int, offset: int, sticky: int) -> Placement | None:
    """Return the placement of an action; None for an invalid edge.

    The block is placed above its base, or inside a target. Sizes are those of unrotated objects,
    even if the base is tilted.
    """
    scene = state.scene
    task = TASKS[scene.task]
    if sender >= AVAILABLE or sender in taken(state, task):
        return None
    index = receiver - AVAILABLE
    if 0 <= index < len(scene.bases):
        base = scene.bases[index]
    else:
        base = _other_base(state, receiver, task)
        if base is None:
            return None
    x, y, width, height = base
    moved = task.supply.shapes[sender]
    x += OFFSETS[offset] * (abs(width) + abs(moved.width)) / 2
    obstacles = len(scene.obstacles)
    on_target = obstacles <= index < obstacles + len(scene.targets)
    y += LIFT if on_target else LIFT + (height + moved.height) / 2
    return Placement(sender, min(max(x, -REACH), REACH), y, sticky != 0)
