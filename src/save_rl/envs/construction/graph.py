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
from typing import NamedTuple

import numpy as np

from save_rl.envs.construction.scene import BALL, BOUND_X, Rectangle, Scene
from save_rl.envs.construction.state import BLOCK_FIELDS, State
from save_rl.envs.construction.tasks import TASKS, Task

AVAILABLE = 7
OFFSETS = tuple(np.linspace(-13 / 12, 13 / 12, 15).tolist())  # of half the sum of the two widths
ACTIONS_PER_EDGE = 2 * len(OFFSETS)
BLOCK_BYTES = 4 * len(BLOCK_FIELDS)
REACH = BOUND_X - 1e-6
LIFT = 0.04  # metres between a base and the block above it
_FREE, _STICKY, _SHAPE, _TYPE = 9, 10, 11, 14  # columns
_BLOCK_TYPE, _AVAILABLE_TYPE, _OBSTACLE_TYPE, _TARGET_TYPE, _MARBLE_TYPE = range(5)

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
    scene = state.scene
    nodes = _fixed_nodes(scene, padded).copy()
    blocks = state.block_array
    if len(blocks):
        slots = blocks[:, 0].astype(np.intp)
        if TASKS[scene.task].replaced:
            first = node_count(scene, 0)
            rows = nodes[first : first + len(blocks)]
        else:
            rows = np.zeros((len(blocks), nodes.shape[1]), np.float32)
        shapes = _shape_features(scene.task)[slots]
        rows[:, 0:2] = blocks[:, 2:4]
        rows[:, 2] = np.cos(blocks[:, 4])
        rows[:, 3] = np.sin(blocks[:, 4])
        rows[:, 4:6] = shapes[:, :2]
        rows[:, _FREE] = 1.0
        rows[:, _STICKY] = blocks[:, 1]
        rows[:, _SHAPE : _SHAPE + 3] = shapes[:, 2:]
        rows[:, _TYPE + _BLOCK_TYPE] = 1.0
        if not TASKS[scene.task].replaced:
            nodes[slots] = rows
    return nodes


def taken(state: State, task: Task) -> frozenset[int]:
    """Return the slots of used-up blocks."""
    if task.replaced:
        return frozenset()
    return frozenset(state.block_array[:, 0].astype(int).tolist())


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
    blocks = state.block_array
    if not task.replaced:  # a placed block keeps its node among the available blocks
        blocks = blocks[blocks[:, 0] == receiver]
    else:
        blocks = blocks[index - 1 :] if index > 0 else blocks[:0]
    if not len(blocks):
        return None
    slot, _, x, y, _ = blocks[0].tolist()
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
