"""Box2D worlds, built for one call and then discarded.

A world is built from a settled arrangement: poses, contact impulses and glue bonds. Nothing
survives a call, so the same arrangement and placement give the same bits in any order and in any
process. Sizes are in metres, times in seconds; the constants are listed in
docs/construction/index.md#constants.

`World` is the reference in Python. `settle` and `roll` do the same in one compiled call (`kernel`)
if the kernels know this build of Box2D: the same bits in half the time.
"""

import math
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.construction.box2d import engine, kernel, native
from save_rl.envs.construction.box2d.kernel import (
    BOUNCES,
    FALLEN,
    GOAL,
    LOOK_STEPS,
    LOST,
    MARBLE,
    MARBLE_REST,
    OBSTACLES,
    POSITION_ITERATIONS,
    QUIET_SPEED,
    QUIET_STEPS,
    ROLL_STEP,
    ROLL_STEPS,
    SETTLE_STEP,
    SETTLE_STEPS,
    VELOCITY_ITERATIONS,
)  # fmt: skip
from save_rl.envs.construction.scene import Scene
from save_rl.envs.construction.state import FLOOR
from save_rl.envs.construction.tasks import TASKS


class _Definitions(threading.local):
    """Body definitions; overwritten for each body, so every thread has its own."""

    def __init__(self) -> None:
        self.static, self.block = engine.body(False), engine.body(True)
        self.marble = engine.body(True, angular_damping=0.0)


_definitions = _Definitions()


class Arrangement(NamedTuple):
    """Blocks at rest, as the tables of `State`; worlds are built from it and read back into it."""

    blocks: bytes
    contacts: bytes
    bonds: bytes


class Settled(NamedTuple):
    """The result of a placement.

    arrangement: the blocks at rest, or at the moment an obstacle was touched.
    hit: something touched an obstacle.
    """

    arrangement: Arrangement
    hit: bool


class EngineFailure(Exception):
    """A body left the world or has no finite position, or an assertion of Box2D failed."""


class Rolled(NamedTuple):
    """The run of the marble: `reached` is true if it got to the goal; its path is `[steps, 2]`."""

    reached: bool
    path: np.ndarray


class Fixtures(NamedTuple):
    """The fixture definitions of a scene, and their addresses.

    floor, obstacles, blocks: definitions; one block per slot.
    marble: definitions of the goal and the marble, if there is one.
    addresses, marble_addresses: the same for the kernels.
    """

    floor: Any
    obstacles: tuple[Any, ...]
    blocks: tuple[Any, ...]
    marble: tuple[Any, ...]
    addresses: np.ndarray
    marble_addresses: np.ndarray


@lru_cache(maxsize=8)
def _task_fixtures(task: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the definitions of the floor and of the blocks."""
    supply = TASKS[task].supply
    blocks = (engine.fixture(engine.polygon(shape.corners)) for shape in supply.shapes)
    return engine.fixture(engine.rectangle(*supply.floor)), tuple(blocks)


@lru_cache(maxsize=1024)
def _fixtures(scene: Scene) -> Fixtures:
    floor, blocks = _task_fixtures(scene.task)
    obstacles = tuple(engine.fixture(engine.rectangle(*box)) for box in scene.obstacles)
    marble = ()
    if scene.marble is not None:
        x, y, diameter, _ = scene.targets[0]
        goal = engine.fixture(engine.disc(diameter, x, y), engine.GOAL_ONLY)
        disc, mask = engine.disc(scene.marble[2]), engine.SOLID | engine.GOAL_ONLY
        marble = goal, engine.fixture(disc, mask, friction=0.0)
    addresses = native.addresses((floor, *blocks, *obstacles))
    return Fixtures(floor, obstacles, blocks, marble, addresses, native.addresses(marble))


class World:
    """A Box2D world with an arrangement, asleep."""

    def __init__(self, scene: Scene, arrangement: Arrangement):
        self.scene = scene
        self.world = world = engine.new_world()
        self.fixtures = _fixtures(scene)
        static = _definitions.static
        static.userData = FLOOR
        self.floor = world.CreateBody(static)
        self.floor.CreateFixture(self.fixtures.floor)
        static.userData = OBSTACLES
        self.obstacles = world.CreateBody(static)
        for fixture in self.fixtures.obstacles:
            self.obstacles.CreateFixture(fixture)
        self.table: list[tuple[int, bool]] = []
        self.bodies: list[Any] = []
        self.sticky: list[Any] = []
        self.bonds: dict[tuple[int, int], tuple[Any, list[float]]] = {}
        for slot, sticky, x, y, angle in _rows(arrangement.blocks, 5):
            self.add(int(slot), sticky != 0, x, y, angle)
        for first, second, *bond in _rows(arrangement.bonds, 10):
            joint = self._weld((int(first), int(second)), bond[:5])
            engine.set_weld_impulse(joint, (bond[5], bond[6], bond[7]))
        if self.bodies:
            world.Step(0.0, 0, 0)  # finds the contacts and moves nothing
            self._restore_impulses(arrangement.contacts)
            for body in self.bodies:
                body.awake = False

    def add(self, slot: int, sticky: bool, x: float, y: float, angle: float = 0.0) -> Any:
        """Create a block at rest, awake."""
        block = _definitions.block
        block.position = (x, y)
        block.angle = angle
        block.userData = len(self.bodies)
        body = self.world.CreateBody(block)
        body.CreateFixture(self.fixtures.blocks[slot])
        self.table.append((slot, sticky))
        self.bodies.append(body)
        if sticky:
            self.sticky.append(body)
        return body

    def settle(self, placed: Any) -> bool:
        """Simulate until nothing moves or an obstacle is touched; return true in the second case.

        Nothing moves once every body is slower than 0.01 m/s and 0.01 rad/s for ten consecutive
        steps; half of these limits with glue. The original's 20 seconds end in the same place
        (docs/construction/index.md#settling).
        """
        step, bodies, obstacles = self.world.Step, self.bodies, self.obstacles
        first_contact, sticky = engine.first_contact, bool(self.sticky)
        limit = QUIET_SPEED / 2 if sticky else QUIET_SPEED  # welds bend, and recover slowly
        quiet, probe = 0, placed
        for tick in range(SETTLE_STEPS):
            step(SETTLE_STEP, VELOCITY_ITERATIONS, POSITION_ITERATIONS)
            edge = first_contact(obstacles)
            while edge is not None:
                if edge.contact.touching:
                    return True
                edge = edge.next
            if sticky:
                self._glue()
            if _moves(probe, limit):  # usually the body that moved one step ago
                quiet = 0
                if tick % 50 == 49:
                    self._stop_fallen()
                continue
            for body in bodies:
                if _moves(body, limit):
                    probe, quiet = body, 0
                    break
            else:
                quiet += 1
                if quiet == QUIET_STEPS:
                    break
        return False

    def _stop_fallen(self) -> None:
        """Stop blocks that have rolled off the end of the floor, 14 m away."""
        for body in self.bodies:
            if body.position.y < FALLEN:
                body.awake = False

    def read(self) -> Arrangement:
        """Return the world's arrangement; raise `EngineFailure` if a body left the world."""
        rows: list[float] = []
        for (slot, sticky), body in zip(self.table, self.bodies, strict=True):
            position = body.position
            x, y, angle = position.x, position.y, body.angle
            if not (abs(x) < LOST and abs(y) < LOST and abs(angle) < math.inf):
                raise EngineFailure("a body left the world")
            rows += (slot, sticky, x, y, angle)
        contacts: list[float] = []
        for contact in self.world.contacts:
            if contact.touching:
                first, second = contact.fixtureA.body.userData, contact.fixtureB.body.userData
                points = contact.manifold.points
                contacts += (first, second)
                for point in points:
                    contacts += (point.normalImpulse, point.tangentImpulse)
                if len(points) < 2:
                    contacts += (0.0, 0.0)
        bonds: list[float] = []
        for pair, (joint, bond) in self.bonds.items():
            bonds += (*pair, *bond, *engine.weld_impulse(joint))
        return Arrangement(_floats(rows), _floats(contacts), _floats(bonds))

    def roll(self, record: bool) -> Rolled:
        """Release the marble; simulate at most eight bounces of at most ten seconds each.

        A bounce ends when the marble touches something new. Rolling ends at the goal, when
        anything touches an obstacle, and when the marble is at rest.
        """
        step, marble = self.world.Step, self._release_marble()
        path: list[tuple[float, float]] = []
        touching: set[int] = set()
        stopped = False
        for _ in range(BOUNCES):
            for tick in range(ROLL_STEPS):
                step(ROLL_STEP, VELOCITY_ITERATIONS, POSITION_ITERATIONS)
                if record:
                    path.append(tuple(marble.position))
                if tick % LOOK_STEPS == 0:
                    self._glue()
                    stopped = _touched(self.obstacles)
                    asleep = not marble.awake and not any(body.awake for body in self.bodies)
                    stopped |= asleep  # nothing will ever move again
                before, touching = touching, _partners(marble)
                stopped |= OBSTACLES in touching
                if stopped or not touching <= before:
                    break
            velocity = marble.linearVelocity
            spin = abs(marble.angularVelocity)
            still = max(abs(velocity.x), abs(velocity.y), spin) < MARBLE_REST
            if stopped or still or GOAL in touching:
                break
        end = tuple(marble.position)
        if not all(map(math.isfinite, end)):
            raise EngineFailure("the marble lost its position")
        return Rolled(GOAL in touching, np.array(path or [end], np.float32))

    def _release_marble(self) -> Any:
        """Create the goal, and the marble at rest."""
        assert self.scene.marble is not None
        goal_fixture, marble_fixture = self.fixtures.marble
        static, disc = _definitions.static, _definitions.marble
        static.userData = GOAL
        self.world.CreateBody(static).CreateFixture(goal_fixture)
        disc.position, disc.userData = self.scene.marble[:2], MARBLE
        marble = self.world.CreateBody(disc)
        marble.CreateFixture(marble_fixture)
        return marble

    def _restore_impulses(self, table: bytes) -> None:
        saved = {(first, second): impulses for first, second, *impulses in _rows(table, 6)}
        for contact in self.world.contacts:
            pair = contact.fixtureA.body.userData, contact.fixtureB.body.userData
            impulses = saved.get(pair)
            if impulses is not None:
                for point, i in zip(contact.manifold.points, (0, 2), strict=False):
                    point.normalImpulse, point.tangentImpulse = impulses[i : i + 2]

    def _glue(self) -> None:
        """Weld every new touching pair in which one block is sticky."""
        for body in self.sticky:
            if not body.awake:
                continue
            index = body.userData
            edge = engine.first_contact(body)
            while edge is not None:
                other = edge.other.userData
                if other >= FLOOR and edge.contact.touching:
                    pair = (other, index) if other < index else (index, other)
                    if pair not in self.bonds:
                        self._bond(pair, edge.contact)
                edge = edge.next

    def _bond(self, pair: tuple[int, int], contact: Any) -> None:
        """Weld a pair, anchored at the centre of the younger body.

        An anchor at the older one's centre comes 0.0004 closer to a published reward, but a block
        glued to the end of the floor would then have a lever of 7 m to the floor's centre, and such
        structures explode. The mean contact point is kept for drawings.
        """
        first, second = map(self._block, pair)
        points = contact.worldManifold.points[: contact.manifold.pointCount]
        x = sum(point[0] for point in points) / len(points)
        y = sum(point[1] for point in points) / len(points)
        seen, anchor = first.GetLocalPoint((x, y)), first.GetLocalPoint(second.position)
        angle = second.angle - first.angle
        self._weld(pair, [anchor.x, anchor.y, angle, seen.x, seen.y])

    def _weld(self, pair: tuple[int, int], bond: list[float]) -> Any:
        first, second = map(self._block, pair)
        joint = engine.weld(self.world, first, second, (bond[0], bond[1]), bond[2])
        self.bonds[pair] = joint, bond
        return joint

    def _block(self, index: int) -> Any:
        return self.floor if index == FLOOR else self.bodies[index]


def _rows(table: bytes, fields: int) -> list[list[float]]:
    return np.frombuffer(table, np.float32).reshape(-1, fields).tolist() if table else []


def _floats(values: list[float]) -> bytes:
    return array("f", values).tobytes() if values else b""


def _touched(body: Any) -> bool:
    """Test whether anything touches a body. Polling is cheaper than a listener in Python."""
    edge = engine.first_contact(body)
    while edge is not None:
        if edge.contact.touching:
            return True
        edge = edge.next
    return False


def _partners(body: Any) -> set[int]:
    """Return the names of the bodies that touch a body."""
    partners = set()
    edge = engine.first_contact(body)
    while edge is not None:
        if edge.contact.touching:
            partners.add(edge.other.userData)
        edge = edge.next
    return partners


def _moves(body: Any, limit: float) -> bool:
    velocity = body.linearVelocity
    x, y = velocity.x, velocity.y
    return x * x + y * y > limit * limit or abs(body.angularVelocity) > limit


_only_python = False


def engine_kind() -> str:
    """Return 'compiled', or 'python' if `native.difference` reports a difference."""
    return "python" if _only_python or native.difference() else "compiled"


@contextmanager
def in_python() -> Iterator[None]:
    """Run without the kernels, as with another build of Box2D. For comparisons; affects all
    threads."""
    global _only_python
    before, _only_python = _only_python, True
    try:
        yield
    finally:
        _only_python = before


def settle(
    scene: Scene, arrangement: Arrangement, slot: int, sticky: bool, x: float, y: float
) -> Settled:
    """Add a block to an arrangement and simulate until it is at rest."""
    if engine_kind() == "compiled":
        fixtures = _fixtures(scene).addresses
        ended, tables = native.settle(fixtures, arrangement, slot, sticky, x, y)
        if ended == kernel.FAILED:
            raise EngineFailure("a body left the world")
        if ended != kernel.ODD:
            return Settled(Arrangement(*tables), ended == kernel.REACHED)
    try:
        world = World(scene, arrangement)
        hit = world.settle(world.add(slot, sticky, x, y))
        return Settled(world.read(), hit)
    except AssertionError as error:  # raised by Box2D's wrapper if the simulation breaks down
        raise EngineFailure(str(error)) from error


def roll(scene: Scene, arrangement: Arrangement, record: bool = True) -> Rolled:
    """Release the marble over an arrangement; without `record` the path is only its end."""
    if engine_kind() == "compiled" and scene.marble is not None:
        fixtures, (x, y, _) = _fixtures(scene), scene.marble
        ended, path = native.roll(
            fixtures.addresses, fixtures.marble_addresses, x, y, arrangement, record
        )
        if ended == kernel.FAILED:
            raise EngineFailure("the marble lost its position")
        if ended != kernel.ODD:
            return Rolled(ended == kernel.REACHED, path)
    try:
        return World(scene, arrangement).roll(record)
    except AssertionError as error:
        raise EngineFailure(str(error)) from error
