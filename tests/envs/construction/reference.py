"""The rules of the Construction tasks, literally and slowly.

Every function transcribes the rules of docs/construction/index.md, at the anchor it names or on the
page of its task, with plain floats and loops; nothing is shared with the library but the tables of
`scene.py` and `state.py`.
"""

import math
from itertools import pairwise
from typing import NamedTuple

from save_rl.envs.construction.scene import BALL, BLOCKS, BOX, MARBLE_BLOCKS, RAMP, Scene, Supply
from save_rl.envs.construction.state import State

Point = tuple[float, float]
Polygon = list[Point]

STICKY_PENALTY = {  # #rules-of-an-episode; Marble Run also with 0.04
    "silhouette": 0.5, "connecting": 0.0, "covering": 2.0, "covering_hard": 0.5, "marble_run": 0.0,
}  # fmt: skip
THRESHOLD = {  # #rules-of-an-episode; in Marble Run progress is 0 or 1, and 1 ends the episode
    "silhouette": 0.98, "connecting": 0.98, "covering": 0.99, "covering_hard": 0.99,
    "marble_run": 0.5,
}  # fmt: skip
TYPES = ("block", "available", "obstacle", "target", "marble")  # #as-a-graph, features 14-18


class Block(NamedTuple):
    """A placed block; the width of a mirrored ramp is negative."""

    slot: int
    sticky: bool
    x: float
    y: float
    angle: float
    width: float
    height: float
    kind: int


class Node(NamedTuple):
    """An object of the scene, as the graph shows it."""

    type: str
    x: float
    y: float
    width: float
    height: float
    kind: int = BOX
    angle: float = 0.0
    sticky: bool = False
    placed: bool = False
    slot: int = -1


def task_of(scene: Scene) -> str:
    """Return the task in the spelling of the tables above."""
    return scene.task.replace("-", "_")


def supply_of(scene: Scene) -> Supply:
    """#geometry: the available blocks, left to right."""
    return MARBLE_BLOCKS if task_of(scene) == "marble_run" else BLOCKS


def blocks_of(state: State) -> list[Block]:
    """The placed blocks, in order of placement."""
    shapes = supply_of(state.scene).shapes
    blocks = []
    for slot, sticky, x, y, angle in state.block_array.tolist():
        blocks.append(Block(int(slot), sticky != 0, x, y, angle, *shapes[int(slot)]))
    return blocks


# Geometry


def corners(
    width: float, height: float, kind: int, x: float, y: float, angle: float = 0.0
) -> Polygon:
    """#geometry: the corners of a box or a ramp at a pose, counter-clockwise."""
    if kind == BOX:
        local = [(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)]
    elif kind == RAMP:
        local = [(-0.5, -0.5), (-0.5, 0.5), (0.5, -0.5)]
    else:
        raise ValueError(f"kind {kind} has no corners")
    cos, sin = math.cos(angle), math.sin(angle)
    points = []
    for a, b in local:
        u, v = a * width, b * height
        points.append((x + cos * u - sin * v, y + sin * u + cos * v))
    return points if signed_area(points) >= 0 else points[::-1]


def block_corners(block: Block) -> Polygon:
    """The corners of a placed block where it is."""
    return corners(block.width, block.height, block.kind, block.x, block.y, block.angle)


def signed_area(polygon: Polygon) -> float:
    """The shoelace formula: positive if counter-clockwise."""
    total = 0.0
    for i in range(len(polygon)):
        (ax, ay), (bx, by) = polygon[i], polygon[(i + 1) % len(polygon)]
        total += ax * by - ay * bx
    return total / 2


def _left_of(p: Point, a: Point, b: Point) -> float:
    """Positive if p lies to the left of the line from a to b."""
    return (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])


def overlap_area(first: Polygon, second: Polygon) -> float:
    """The common area of two convex, counter-clockwise polygons.

    Sutherland-Hodgman: the first is cut along every edge of the second.
    """
    rest = list(first)
    for i in range(len(second)):
        a, b = second[i], second[(i + 1) % len(second)]
        kept = []
        for j in range(len(rest)):
            p, q = rest[j], rest[(j + 1) % len(rest)]
            side_p, side_q = _left_of(p, a, b), _left_of(q, a, b)
            if side_p >= 0:
                kept.append(p)
            if side_p * side_q < 0:
                t = side_p / (side_p - side_q)
                kept.append((p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])))
        rest = kept
    return signed_area(rest)


def disc_overlap_area(disc: tuple[float, float, float], polygon: Polygon) -> float:
    """The common area of a disc `(x, y, radius)` and a polygon.

    The polygon is the signed sum of the triangles between the centre and each edge. An edge is cut
    where it crosses the circle; a piece inside spans a triangle, one outside a sector.
    """
    centre_x, centre_y, radius = disc
    total = 0.0
    for i in range(len(polygon)):
        ax, ay = polygon[i][0] - centre_x, polygon[i][1] - centre_y
        end = polygon[(i + 1) % len(polygon)]
        dx, dy = end[0] - centre_x - ax, end[1] - centre_y - ay
        # |a + t d|^2 = r^2
        qa, qb, qc = dx * dx + dy * dy, ax * dx + ay * dy, ax * ax + ay * ay - radius * radius
        cuts = [0.0, 1.0]
        if qa > 0 and qb * qb - qa * qc > 0:
            root = math.sqrt(qb * qb - qa * qc)
            cuts += [t for t in ((-qb - root) / qa, (-qb + root) / qa) if 0 < t < 1]
        cuts.sort()
        for s, t in pairwise(cuts):
            px, py, qx, qy = ax + s * dx, ay + s * dy, ax + t * dx, ay + t * dy
            middle = math.hypot((px + qx) / 2, (py + qy) / 2)
            cross, dot = px * qy - py * qx, px * qx + py * qy
            if middle <= radius:
                total += cross / 2
            else:
                total += radius * radius * math.atan2(cross, dot) / 2
    return abs(total)


def disc_overlap_area_by_grid(
    disc: tuple[float, float, float], polygon: Polygon, cells: int = 400
) -> float:
    """The same by counting the centres of `cells` x `cells` squares around the disc that lie in
    both; the polygon is convex and counter-clockwise."""
    centre_x, centre_y, radius = disc
    side = 2 * radius / cells
    count = 0
    for i in range(cells):
        for j in range(cells):
            u, v = (i + 0.5) * side - radius, (j + 0.5) * side - radius
            if u * u + v * v > radius * radius:
                continue
            p = centre_x + u, centre_y + v
            count += all(
                _left_of(p, polygon[k], polygon[(k + 1) % len(polygon)]) >= 0
                for k in range(len(polygon))
            )
    return count * side * side


# Scores


def silhouette_score(blocks: list[Block], targets) -> int:
    """silhouette.md#reward: targets that an upright block of the same size covers by over 90 %."""
    count = 0
    for x, y, width, height in targets:
        nearest, nearest_distance = None, math.inf
        for block in blocks:
            distance = math.hypot(block.x - x, block.y - y)
            if abs(math.sin(block.angle)) < 0.05 and distance < nearest_distance:
                nearest, nearest_distance = block, distance
        if nearest is None:
            continue
        if abs(nearest.width - width) > 1e-3 or abs(nearest.height - height) > 1e-3:
            continue
        overlap_x = max(width - abs(nearest.x - x), 0.0)
        overlap_y = max(height - abs(nearest.y - y), 0.0)
        if overlap_x * overlap_y / (width * height) > 0.9:
            count += 1
    return count


def covers(block: Block, point: Point) -> bool:
    """connecting.md#reward: the triangles from the point to the four sides have the area of the
    rectangle, to 0.1 %."""
    rectangle = block_corners(block)
    area = block.width * block.height
    triangles = 0.0
    for i in range(4):
        triangles += abs(_left_of(point, rectangle[i], rectangle[(i + 1) % 4])) / 2
    return triangles <= area + 0.001 * area


def connecting_score(blocks: list[Block], targets) -> int:
    """connecting.md#reward: targets whose centre lies in some block."""
    count = 0
    for x, y, _, _ in targets:
        if any(covers(block, (x, y)) for block in blocks):
            count += 1
    return count


def projected_width(block: Block) -> float:
    """covering.md#reward: diagonal · max(|cos(α + θ)|, |cos(π - α + θ)|)."""
    alpha = math.atan2(block.height, block.width)
    diagonal = math.hypot(block.width, block.height)
    return diagonal * max(
        abs(math.cos(alpha + block.angle)), abs(math.cos(math.pi - alpha + block.angle))
    )


def covering_score(blocks: list[Block], obstacles) -> float:
    """covering.md#reward: per obstacle the length below at least one block, summed.

    The x range of the obstacle is cut wherever a block begins or ends; each piece is covered as a
    whole or not at all.
    """
    total = 0.0
    for x, y, width, _ in obstacles:
        left, right = x - width / 2, x + width / 2
        intervals = []
        for block in blocks:
            if block.y >= y:
                half = projected_width(block) / 2
                intervals.append((block.x - half, block.x + half))
        ends = {end for interval in intervals for end in interval}
        cuts = sorted({left, right} | {end for end in ends if left < end < right})
        for a, b in pairwise(cuts):
            middle = (a + b) / 2
            if any(begin <= middle <= end for begin, end in intervals):
                total += b - a
    return total


def progress(state: State) -> float:
    """#score: the score P; in Marble Run 1 once the marble has touched the goal."""
    task, scene, blocks = task_of(state.scene), state.scene, blocks_of(state)
    if task == "silhouette":
        return float(silhouette_score(blocks, scene.targets))
    if task == "connecting":
        return float(connecting_score(blocks, scene.targets))
    if task in ("covering", "covering_hard"):
        return covering_score(blocks, scene.obstacles)
    if task == "marble_run":
        return float(state.ending == "complete")
    raise ValueError(task)


def best_progress(scene: Scene) -> float:
    """#score: P_max."""
    task = task_of(scene)
    if task in ("silhouette", "connecting"):
        return float(len(scene.targets))
    if task in ("covering", "covering_hard"):
        return math.fsum(width for _, _, width, _ in scene.obstacles)
    if task == "marble_run":
        return 1.0
    raise ValueError(task)


def sticky_cost(state: State, penalty: float) -> float:
    """#rules-of-an-episode: the cost C, with the default bad-choice penalty of 0."""
    return penalty * sum(block.sticky for block in blocks_of(state))


# Collisions


def solids(state: State) -> list[Polygon]:
    """#rules-of-an-episode: what a new block can overlap: floor, obstacles, placed blocks.

    Blocks pass through targets, a displayed marble is not physical, and the row of available blocks
    lies below the floor, out of reach.
    """
    x, y, width, height = supply_of(state.scene).floor
    polygons = [corners(width, height, BOX, x, y)]
    for x, y, width, height in state.scene.obstacles:
        polygons.append(corners(width, height, BOX, x, y))
    return polygons + [block_corners(block) for block in blocks_of(state)]


def spawn_overlap(polygon: Polygon, others: list[Polygon]) -> bool:
    """#rules-of-an-episode: a new shape shares area with another; touching is no overlap."""
    return any(overlap_area(polygon, other) > 1e-12 for other in others)


def marble_blocked(state: State) -> bool:
    """marble-run.md#rules: the marble's start overlaps a block or the floor by over 1e-4 m²."""
    assert state.scene.marble is not None
    x, y, diameter = state.scene.marble
    floor_x, floor_y, width, height = supply_of(state.scene).floor
    polygons = [corners(width, height, BOX, floor_x, floor_y)]
    polygons += [block_corners(block) for block in blocks_of(state)]
    return any(disc_overlap_area((x, y, diameter / 2), polygon) > 1e-4 for polygon in polygons)


# Graph and actions


def objects(state: State) -> list[Node]:
    """#as-a-graph: every object, in the order of the nodes."""
    scene, supply = state.scene, supply_of(state.scene)
    task, blocks = task_of(scene), blocks_of(state)
    available = []
    for slot, (shape, (x, y)) in enumerate(zip(supply.shapes, supply.display, strict=True)):
        width, height, kind = shape
        available.append(Node("available", x, y, width, height, kind, slot=slot))
    placed = [
        Node("block", b.x, b.y, b.width, b.height, b.kind, b.angle, b.sticky, True, b.slot)
        for b in blocks
    ]
    if task == "covering_hard":
        for node in placed:
            available[node.slot] = node
        placed = []
    target_kind = BALL if task == "marble_run" else BOX
    result = available
    result += [Node("obstacle", *rectangle) for rectangle in scene.obstacles]
    result += [Node("target", *rectangle, target_kind) for rectangle in scene.targets]
    if scene.marble is not None:
        x, y, diameter = scene.marble
        result.append(Node("marble", x, y, diameter, diameter, BALL))
    result.append(Node("block", *supply.floor))
    return result + placed


def nodes(state: State) -> list[list[float]]:
    """#as-a-graph: the features of every node, 18, or 19 in Marble Run."""
    types = TYPES if task_of(state.scene) == "marble_run" else TYPES[:4]
    table = []
    for node in objects(state):
        row = [node.x, node.y, math.cos(node.angle), math.sin(node.angle), node.width, node.height]
        row += [0.0, 0.0, 0.0]  # velocities: the scene has settled
        row += [float(node.placed), float(node.sticky)]
        row += [float(node.kind == kind) for kind in (BOX, BALL, RAMP)]
        row += [float(node.type == name) for name in types]
        table.append(row)
    return table


def valid_edges(state: State) -> set[tuple[int, int]]:
    """#actions: from an available block to the floor, a placed block, an obstacle, a target, the
    marble."""
    bases = ("block", "obstacle", "target", "marble")
    everything = objects(state)
    edges = set()
    for sender, taken in enumerate(everything):
        for receiver, base in enumerate(everything):
            if taken.type == "available" and base.type in bases:
                edges.add((sender, receiver))
    return edges


def offsets(count: int = 15) -> list[float]:
    """#actions: evenly spaced on ±(1 + max(1/m, 0.04)), m = count - 3."""
    bound = 1 + max(1 / (count - 3), 0.04)
    return [-bound + 2 * bound * i / (count - 1) for i in range(count)]


def placement(state: State, sender: int, receiver: int, offset_index: int) -> Point:
    """#actions: where the centre of the taken block goes, at angle 0."""
    everything = objects(state)
    taken, base = everything[sender], everything[receiver]
    x = base.x + offsets()[offset_index] * (abs(base.width) + abs(taken.width)) / 2
    x = min(max(x, -7.5 + 1e-6), 7.5 - 1e-6)
    if base.type == "target":
        return x, base.y + 0.04
    return x, base.y + 0.04 + (abs(base.height) + abs(taken.height)) / 2


# Episodes


def blocks_left(state: State) -> int:
    """#rules-of-an-episode: the number of available blocks; only Covering Hard does not replace
    them."""
    return sum(node.type == "available" for node in objects(state))


def outcome(
    previous_progress: float,
    previous_cost: float,
    new_progress: float,
    new_cost: float,
    *,
    spawn_collision: bool,
    obstacle_hit: bool,
    steps: int,
    max_steps: int,
    left: int,
    best: float,
    threshold: float,
) -> tuple[float, str]:
    """#rules-of-an-episode: the reward of a step, and why the episode is over ('' if it is not).

    Steps and blocks left are counted after the placement; later reasons overwrite earlier ones.
    """
    ending = ""
    if left == 0 or steps >= max_steps:
        ending = "max_steps"
    if spawn_collision:
        ending = "spawn_collision"
        reward = 0.0
    elif obstacle_hit:
        ending = "obstacle_hit"
        reward = 0.0
    else:
        reward = (new_progress - previous_progress) - (new_cost - previous_cost)
        if new_progress > threshold * best:
            ending = "complete"
    return reward, ending
