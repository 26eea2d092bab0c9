"""Tracks of glued planks, with blocks placed anywhere.

A plan is a list of parts in a frame where the marble is to the left of the goal (`u` = ±x). The
marble starts on a ramp and continues on the floor or on a track of planks. There are two kinds of
tracks, blocked by different obstacles:

* tables: each plank lies on a column of j boxes. Obstacles in rows j and j + 1 block them.
* spans: up to four planks, glued end to end, hang between two posts of j boxes, slightly higher
  than these. Only obstacles in row j block them, but the marble also touches the posts.

A ramp leads from the floor to a span one box high. `plans` lists what geometry allows; `build`
builds one plan after the other until the marble arrives.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from save_rl.envs.construction.box2d.physics import BOUNCES
from save_rl.envs.construction.graph import Placement
from save_rl.envs.construction.scene import MARBLE_BLOCKS, Rectangle, Scene
from save_rl.envs.construction.simulator import Construction
from save_rl.envs.construction.state import State

BOX, WIDE, TALL, PLANK, RISING, FALLING = 0, 1, 2, 4, 5, 6  # slots; ramps as seen from the left
UNIT = MARBLE_BLOCKS.shapes[BOX].width
RADIUS = UNIT / 2
RAMP, SLOPE = 3 * UNIT, 1 / 3  # the length of a ramp
LENGTH, THICKNESS = MARBLE_BLOCKS.shapes[PLANK][:2]
GAP = 0.012  # metres between neighbours on a track; below 0.02 they touch and are glued
REST = 0.018  # metres between a glued block and its support
MARGIN = 0.025  # clearance from obstacles
RAISED = 0.075  # height of the top of a span above its level of whole boxes
ASIDE = (0.0, 0.2, -0.2, 0.4, -0.4, 0.6, -0.6)  # offsets of a column from the middle of its plank
# The orders in which the planks of a span are placed, and how far the ends of each swing down
# before the glue holds. The last plank of a span closes it, and is held at both ends.
ORDERS = {
    (0,): [(0.0, 0.0)],
    (0, 1): [(0.0, 0.02), (0.0, 0.0)],
    (1, 0): [(0.0, 0.0), (0.02, 0.0)],
    (0, 2, 1): [(0.0, 0.02), (0.0, 0.0), (0.02, 0.0)],
    (0, 3, 1, 2): [(0.0, 0.075), (0.075, 0.14), (0.0, 0.0), (0.02, 0.0)],
    (3, 0, 2, 1): [(0.0, 0.02), (0.0, 0.0), (0.14, 0.075), (0.075, 0.0)],
}


class Part(NamedTuple):
    """A part of a plan.

    kind: 'start' a ramp below the marble, 'stairs' two of them, one above the other; 'table';
        'post'; 'span' the planks between two existing supports; 'up' and 'down' ramps between the
        floor and a span; 'finish' the ramps that lift the marble to the goal.
    u: its left end.
    level: number of stacked boxes below it.
    height: of the track, or of the support of a ramp.
    column: the middle of the column of a table.
    order: of the planks of a span.
    """

    kind: str
    u: float
    level: int = 0
    height: float = 0.0
    column: float = 0.0
    order: tuple[int, ...] = ()


class View(NamedTuple):
    """A scene, mirrored if needed so that the marble is to the left of the goal.

    sign: 1, or -1 if the scene is mirrored.
    obstacles: including the walls.
    """

    sign: int
    marble: tuple[float, float]
    goal: tuple[float, float]
    obstacles: tuple[Rectangle, ...]

    def clear(self, left: float, right: float, low: float, high: float) -> bool:
        """Test that no obstacle is in or near a rectangle."""
        return all(
            left - MARGIN >= u + w / 2
            or right + MARGIN <= u - w / 2
            or low - MARGIN >= y + h / 2
            or high + MARGIN <= y - h / 2
            for u, y, w, h in self.obstacles
        )

    def passes(self, left: float, right: float, height: float) -> bool:
        """Test whether the marble can pass along a track, or the floor, from left to right."""
        left, right = max(left, self.marble[0]), min(right, self.goal[0])
        return right <= left or self.clear(left, right, height, height + 2 * RADIUS)

    def passes_ramp(self, left: float, low: float, right: float, high: float) -> bool:
        """Test whether the marble can pass in a straight line from one height to another."""
        us, heights = np.linspace(left, right, 9).tolist(), np.linspace(low, high, 9).tolist()
        return all(
            self.passes(us[i] - RADIUS, us[i + 1] + RADIUS, max(heights[i : i + 2]))
            for i in range(8)
        )

    def room_for_ramp(self, left: float, base: float) -> bool:
        return self.clear(left, left + RAMP, base, base + UNIT + REST)


def view(scene: Scene) -> View:
    """Return the view of a scene."""
    assert scene.marble is not None
    goal_x, goal_y, _, _ = scene.targets[0]
    sign = 1 if goal_x > scene.marble[0] else -1
    marble = sign * scene.marble[0], scene.marble[1]
    obstacles = tuple((sign * x, y, width, height) for x, y, width, height in scene.obstacles)
    return View(sign, marble, (sign * goal_x, goal_y), obstacles)


def stack(level: int, slot: int = BOX) -> list[int]:
    """Return the slots of a column. A single box is too light to hold a hanging plank; a wide one
    is not."""
    return [slot] * (level % 2) + [TALL] * (level // 2)


def stack_height(level: int) -> float:
    return level * UNIT + len(stack(level)) * REST


class _Route(NamedTuple):
    """A partial plan: its right end, level and height, and the number of the marble's contacts.

    support: the route ends at a post or a ramp that a span can be glued to.
    """

    parts: tuple[Part, ...]
    u: float
    level: int
    height: float
    contacts: int
    support: bool = False


def plans(scene: Scene) -> list[tuple[Part, ...]]:
    """Return all plans that geometry allows, with few contacts first and similar ones spread."""
    seen = view(scene)
    found: dict[tuple, list[tuple[Part, ...]]] = defaultdict(list)
    for start in _starts(seen):
        for route in _routes(seen, start):
            kinds = tuple((part.kind, part.level, part.order) for part in route.parts)
            found[route.contacts, len(kinds), kinds].append(route.parts)
    groups = [found[key] for key in sorted(found)]
    return [plan for turn in zip_longest(*groups) for plan in turn if plan is not None]


def _starts(seen: View) -> Iterator[_Route]:
    u, y = seen.marble
    for ramp in start_on(seen, 0.0):
        yield _Route((ramp,), ramp.u + RAMP, 0, 0.0, 2)
    for ramp in start_on(seen, UNIT + REST):
        right = ramp.u + RAMP
        if seen.clear(right - 2 * UNIT, right + RAMP, 0, UNIT + 2 * REST):
            yield _Route((Part("stairs", ramp.u),), right + GAP + RAMP, 0, 0.0, 3)
    for level in range(1, int((y - RADIUS) / UNIT + 0.5)):
        for begin in np.arange(u + 0.9, u - 2.0, -0.1).tolist():
            for table in _tables(seen, begin, level):
                for ramp in start_on(seen, table.height):
                    yield _Route((table, ramp), begin + LENGTH, level, table.height, 2)
            post = Part("post", begin - post_width(level), level)
            if not _room_for_post(seen, post.u, level):
                continue
            for ramp in start_on(seen, level * UNIT + RAISED):
                route = _Route((post,), begin, level, 0.0, 1, support=True)
                for held in _spans(seen, route, lowest=level):
                    yield held._replace(parts=(*held.parts, ramp))
            for ramp in start_on(seen, stack_height(level)):
                if ramp.u <= post.u + RADIUS <= ramp.u + RAMP - UNIT:
                    yield _Route((post, ramp), begin, level, stack_height(level), 1, support=True)


def start_on(seen: View, height: float) -> Iterator[Part]:
    """Yield a ramp on whose slope the marble starts (or above it, from high), if there is room."""
    u, y = seen.marble
    above = y - height - REST - (RADIUS + 0.02) * (1 + SLOPE**2) ** 0.5
    reach = min(above / SLOPE, RAMP - 0.15)
    left = u + reach - RAMP
    if reach < 0.3 or not seen.room_for_ramp(left, height):
        return
    if seen.passes_ramp(u, height + reach * SLOPE, u + reach, height):
        yield Part("start", left, height=height)


def post_width(level: int) -> float:
    return MARBLE_BLOCKS.shapes[stack(level, WIDE)[0]].width


def _room_for_post(seen: View, left: float, level: int) -> bool:
    return seen.clear(left, left + post_width(level), 0, stack_height(level))


def _tables(seen: View, left: float, level: int) -> Iterator[Part]:
    """Yield the table that starts at `left`, if there is room for it and its column."""
    height = stack_height(level) + REST + THICKNESS
    if not seen.clear(left, left + LENGTH, height - THICKNESS - REST, height):
        return
    if not seen.passes(left, left + LENGTH, height):
        return
    for aside in ASIDE:
        column = left + LENGTH / 2 + aside
        if seen.clear(column - RADIUS, column + RADIUS, 0, stack_height(level)):
            yield Part("table", left, level, height, column)
            return


def _spans(seen: View, route: _Route, lowest: int = 1) -> Iterator[_Route]:
    """Yield routes with a span glued to the support at the route's end, at its level or below."""
    for level in range(lowest, route.level + 1):
        for order, swings in ORDERS.items():
            yield from _span(seen, route, level, order, swings)


def _span(
    seen: View, route: _Route, level: int, order: tuple[int, ...], swings: list[tuple[float, float]]
) -> Iterator[_Route]:
    height, count = level * UNIT + RAISED, len(order)
    right = route.u + count * (LENGTH + GAP) + GAP
    if not seen.passes(route.u, right, height):
        return
    lefts = [route.u + GAP + i * (LENGTH + GAP) for i in range(count)]
    span = Part("span", route.u, level, height, order=order)
    if count == 1 and _room_for_plank(seen, lefts[0], (0.0, 0.02), height):
        yield _Route((*route.parts, span), right, level, height, route.contacts + 1)
    if not all(_room_for_plank(seen, *pair, height) for pair in zip(lefts, swings, strict=True)):
        return
    contacts, after = route.contacts + count + 1, right + post_width(level)
    if seen.passes(right, after, height) and _room_for_post(seen, right, level):
        parts = (*route.parts, Part("post", right, level), span)
        yield _Route(parts, after, level, height, contacts, support=True)
    if level == 1 and seen.room_for_ramp(right, 0.0):
        parts = (*route.parts, Part("down", right), span)
        yield _Route(parts, right + RAMP, 0, 0.0, contacts + 1)


def _room_for_plank(seen: View, left: float, swing: tuple[float, float], height: float) -> bool:
    """Test whether there is room for a plank whose left and right end swing down this far."""
    piece = LENGTH / 8
    for i in range(8):
        low = height - THICKNESS - max(np.interp((i, i + 1), (0, 8), swing))
        if not seen.clear(left + i * piece, left + (i + 1) * piece, low, height):
            return False
    return True


def _routes(seen: View, route: _Route) -> Iterator[_Route]:
    """Yield all continuations of a route to the goal."""
    if route.contacts >= BOUNCES:
        return
    yield from _arrivals(seen, route)
    if route.level == 0:
        fast = any(part.kind in ("stairs", "down") for part in route.parts[-2:])
        for up in _ups(seen, route) if fast else ():
            for held in _spans(seen, up):
                yield from _routes(seen, held)
        return
    if route.u > seen.goal[0]:
        return
    if route.support:
        for held in _spans(seen, route):
            yield from _routes(seen, held)
    if route.parts[-1].kind != "span":
        left = route.u + GAP
        for level in range(1, route.level + 1):
            for table in _tables(seen, left, level):
                parts = (*route.parts, table)
                yield from _routes(
                    seen, _Route(parts, left + LENGTH, level, table.height, route.contacts + 1)
                )
    if seen.clear(route.u, route.u + 0.7, 0.0, route.height + RADIUS):
        yield from _routes(
            seen, route._replace(level=0, height=0.0, contacts=route.contacts + 1, support=False)
        )


def _ups(seen: View, route: _Route) -> Iterator[_Route]:
    """Yield routes with a ramp in front of the next obstacle on the floor."""
    lefts = [u - w / 2 for u, y, w, _ in seen.obstacles if y < UNIT and u - w / 2 > route.u]
    for gap in (0.06, 0.2, 0.4, 0.7):
        left = min(lefts, default=0.0) - gap - RAMP
        if (
            lefts
            and left > route.u
            and seen.room_for_ramp(left, 0.0)
            and seen.passes(route.u, left, 0.0)
            and seen.passes_ramp(left, 0.0, left + RAMP, UNIT)
        ):
            parts = (*route.parts, Part("up", left))
            yield _Route(parts, left + RAMP, 1, 0.0, route.contacts + 1, support=True)


def _arrivals(seen: View, route: _Route) -> Iterator[_Route]:
    """Yield ways to end a route here: at the goal's height, or with ramps that lift the marble."""
    (goal, y), level = seen.goal, route.level
    rise = y - RADIUS - route.height
    if abs(rise) < 0.4:
        if (level == 0 or route.u > goal - 0.3) and seen.passes(route.u, goal, route.height):
            yield route._replace(contacts=route.contacts + 1)
        return
    ramps = round(rise / UNIT)
    first = goal + 0.5 - ramps * (RAMP + GAP)
    if ramps in (1, 2) and (route.u < first if level == 0 else route.u > goal - 0.6 and ramps == 1):
        for step in range(ramps):
            base = route.height + step * (UNIT + REST)
            if not seen.room_for_ramp(first + step * (RAMP + GAP), base):
                return
        if seen.passes(route.u, first, route.height):
            parts = (*route.parts, Part("finish", first, height=route.height))
            yield route._replace(parts=parts, contacts=route.contacts + ramps + 1)


class _Site:
    """A scene under construction."""

    def __init__(self, sim: Construction, state: State):
        self.sim, self.state, self.sign = sim, state, view(state.scene).sign
        self.placements: list[Placement] = []

    def put(self, slot: int, u: float, y: float) -> bool:
        """Place a sticky block by its centre; return False if the episode ends."""
        if self.sign < 0 and slot in (RISING, FALLING):
            slot = RISING + FALLING - slot
        placement = Placement(slot, self.sign * u, y, True)
        self.state = self.sim.drop(self.state, placement)[0]
        self.placements.append(placement)
        return not self.state.ending

    def build(self, plan: tuple[Part, ...]) -> bool:
        """Build a plan; return True if the marble arrives."""
        for part in plan:
            if not all(self.put(*block) for block in blocks(part, view(self.state.scene))):
                break
        return self.state.ending == "complete"


def blocks(part: Part, seen: View) -> Iterator[tuple[int, float, float]]:
    """Yield slot, u and y of the blocks of a part, in the order of placement."""
    middle, base = part.u + RAMP / 2, part.height + REST + RADIUS
    above = base + UNIT + REST
    if part.kind == "table":
        yield from _column(part.column, stack(part.level))
        yield PLANK, part.u + LENGTH / 2, part.height - THICKNESS / 2
    elif part.kind == "post":
        yield from _column(part.u + post_width(part.level) / 2, stack(part.level, WIDE))
    elif part.kind == "span":
        for i in part.order:  # each slightly lower than the last; those that swing stay lower
            y = part.height - 0.004 * i + (0.005 if i != part.order[-1] else 0.0)
            yield PLANK, part.u + i * (LENGTH + GAP) + GAP + LENGTH / 2, y - THICKNESS / 2
    elif part.kind in ("start", "down"):
        yield FALLING, middle, base
    elif part.kind == "stairs":
        yield FALLING, middle + GAP + RAMP, base
        yield WIDE, part.u + RAMP - UNIT, base
        yield FALLING, middle, above
    else:
        yield RISING, middle, base
        if part.kind == "finish" and seen.goal[1] - base > UNIT:
            yield WIDE, part.u + RAMP + GAP + UNIT, base
            yield RISING, middle + RAMP + GAP, above


def _column(u: float, slots: list[int]) -> Iterator[tuple[int, float, float]]:
    y = 0.0
    for slot in slots:
        height = MARBLE_BLOCKS.shapes[slot].height
        yield slot, u, y + REST + height / 2
        y += REST + height


def build(sim: Construction, state: State, limit: int = 40) -> list[Placement] | None:
    """Return placements that solve a scene, block by block; None if `limit` plans fail."""
    steps = state.scene.max_steps - state.steps
    for plan in plans(state.scene)[:limit]:
        site = _Site(sim, state)
        if site.build(plan) and len(site.placements) <= steps:
            return site.placements
    return None
