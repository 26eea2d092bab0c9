"""Box2D without its Python wrapper: addresses of its functions, layout checks, kernel calls.

Every offset in `fields.LAYOUT` is checked against the wrapper's value for the same object. If a
function is missing or an offset differs, `difference` says so, and `physics` runs without the
kernels.
"""

import ctypes
import platform
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from save_rl.envs.construction.box2d import engine, kernel
from save_rl.envs.construction.box2d.fields import AWAKE, LAYOUT, TOUCHING, FieldLayout

SYMBOLS = {
    "create_world": "_ZN7b2WorldC1ERK6b2Vec2",
    "destroy_world": "_ZN7b2WorldD1Ev",
    "step": "_ZN7b2World4StepEfii",
    "create_body": "_ZN7b2World10CreateBodyEPK9b2BodyDef",
    "create_fixture": "_ZN6b2Body13CreateFixtureEPK12b2FixtureDef",
    "create_joint": "_ZN7b2World11CreateJointEPK10b2JointDef",
    "locate_contact": "_ZN15b2WorldManifold10InitializeEPK10b2ManifoldRK11b2TransformfS5_f",
}
WORLD_BYTES, PLAN_BYTES, OTHER_BYTES = 1 << 17, 64, 64
OUT_FLOATS = 1 << 14
ENABLED = 0x4  # a bit of a contact's flags, which can be changed from Python

Tables = tuple[bytes, bytes, bytes]  # blocks, contacts, bonds


class UnknownBuild(Exception):
    """The kernels do not know this build of Box2D; the message says what differs."""


class Memory(threading.local):
    """A thread's memory for the kernels: a world, definitions of bodies and joints, results."""

    def __init__(self) -> None:
        sizes = (WORLD_BYTES, OTHER_BYTES, *[PLAN_BYTES] * 4, OTHER_BYTES)
        self._room = np.zeros(sum(sizes) + 64, np.uint8)
        start = -(-self._room.ctypes.data // 64) * 64
        places = [start + sum(sizes[:i]) for i in range(len(sizes))]
        box = kernel.Box(*find_functions(), *places)
        (ctypes.c_float * 2).from_address(box.gravity)[:] = engine.GRAVITY
        plans = (
            engine.body(False), engine.body(True), engine.body(True, angular_damping=0.0),
            engine.weld_plan(),
        )  # fmt: skip
        for place, plan in zip(places[2:6], plans, strict=True):
            ctypes.memmove(place, int(plan.this), PLAN_BYTES)
        self.addresses = np.array(box, np.int64)
        self.out = np.empty(OUT_FLOATS, np.float32)
        self.out_bytes = self.out.data.cast("B")
        self.path = np.empty((kernel.BOUNCES * kernel.ROLL_STEPS, 2), np.float32)


@cache
def _memory() -> Memory:
    return Memory()


def addresses(definitions: Sequence[Any]) -> np.ndarray:
    """Return the addresses of Box2D's objects, which must stay alive while these are used."""
    return np.array([int(definition.this) for definition in definitions], np.int64)


def settle(
    fixtures: np.ndarray, tables: Tables, slot: int, sticky: bool, x: float, y: float
) -> tuple[int, Tables]:
    """Run `kernel.settle`; return its status and the tables of the new arrangement."""
    memory = _memory()
    blocks, contacts, bonds = tables
    ended, touching, glued = kernel.settle(
        memory.addresses, fixtures, _floats(blocks), _floats(contacts), _floats(bonds),
        int(slot), int(sticky), float(x), float(y), memory.out,
    )  # fmt: skip
    first = len(blocks) + 4 * 5
    second = first + 4 * 6 * touching
    end = second + 4 * 10 * glued
    out = memory.out_bytes
    return ended, (out[:first].tobytes(), out[first:second].tobytes(), out[second:end].tobytes())


def roll(
    fixtures: np.ndarray, marble_fixtures: np.ndarray, x: float, y: float, tables: Tables,
    record: bool,
) -> tuple[int, np.ndarray]:  # fmt: skip
    """Run `kernel.roll`; return its status and the path `[steps, 2]`."""
    memory = _memory()
    ended, steps = kernel.roll(
        memory.addresses, fixtures, marble_fixtures, float(x), float(y), *map(_floats, tables),
        bool(record), memory.path,
    )  # fmt: skip
    return ended, memory.path[:steps].copy()


_NOTHING = np.frombuffer(b"", np.float32)


def _floats(table: bytes) -> np.ndarray:
    return np.frombuffer(table, np.float32) if table else _NOTHING


@cache
def difference() -> str:
    """Return the reason why the kernels can't be used, or ''."""
    try:
        check(LAYOUT)
    except UnknownBuild as error:
        return str(error)
    return ""


def find_functions() -> list[int]:
    """Return the addresses of the functions that kernels call, in the order of `kernel.Box`."""
    library = ctypes.CDLL(engine.library.__file__)
    for name, symbol in SYMBOLS.items():
        if not hasattr(library, symbol):
            raise UnknownBuild(f"there is no function {name}")
    return [ctypes.cast(library[symbol], ctypes.c_void_p).value or 0 for symbol in SYMBOLS.values()]


def check(layout: FieldLayout) -> None:
    """Raise `UnknownBuild` unless the kernels know this build of Box2D."""
    if platform.machine() != "x86_64":
        raise UnknownBuild("only x86_64 is known to round sums in the same way")
    find_functions()
    for thing, least, most in (
        (engine.new_world(), 0, WORLD_BYTES),
        (engine.body(True), PLAN_BYTES, 2 * PLAN_BYTES),
        (engine.weld_plan(), PLAN_BYTES, 2 * PLAN_BYTES),
    ):
        if not least <= _size(thing) <= most:
            raise UnknownBuild(f"the size of {type(thing).__name__} differs")
    for name, place, expected in _fields(layout):
        if bytes(type(expected).from_address(place)) != bytes(expected):
            raise UnknownBuild(f"{name} is not where it was")


def _size(thing: Any) -> int:
    """Return the bytes allocated for an object of Box2D, which may be a few more than its size."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_usable_size"):
        raise UnknownBuild("the sizes of objects are unknown here")
    library.malloc_usable_size.argtypes = [ctypes.c_void_p]
    library.malloc_usable_size.restype = ctypes.c_size_t
    return library.malloc_usable_size(int(thing.this))


def _numbers(*values: float) -> Any:
    return (ctypes.c_float * len(values))(*values)


def _this(thing: Any) -> Any:
    return ctypes.c_int64(int(thing.this))


def _fields(at: FieldLayout) -> Iterator[tuple[str, int, Any]]:
    """Yield fields: the name in `FieldLayout`, the expected address and the expected value.

    Check each field before asking for the next, because the world is stepped in between.
    """
    world = engine.new_world()
    floor = world.CreateBody(engine.body(False))
    floor.CreateFixture(engine.fixture(engine.rectangle(0.0, -0.5, 20.0, 1.0)))
    bodies = []
    for x, y, angle in ((0.25, 0.359, 0.003), (0.5, 1.07, 0.004), (-3.0, 0.36, 0.1)):
        plan = engine.body(True)
        plan.position, plan.angle, plan.userData = (x, y), angle, object()
        yield "body_plan_position", int(plan.this) + at.body_plan_position, _numbers(x, y)
        yield "body_plan_angle", int(plan.this) + at.body_plan_angle, _numbers(angle)
        user_data = ctypes.c_int64(id(plan.userData))
        yield "body_plan_name", int(plan.this) + at.body_plan_name, user_data
        bodies.append(world.CreateBody(plan))
    lower, upper, ball = bodies
    lower.CreateFixture(engine.fixture(engine.rectangle(0.0, 0.0, 2.0, 0.7)))
    upper.CreateFixture(engine.fixture(engine.rectangle(0.0, 0.0, 1.0, 0.7)))
    ball.CreateFixture(engine.fixture(engine.disc(0.75)))
    upper.linearVelocity, ball.linearVelocity = (0.3, 0.0), (1.1, 0.0)
    for _ in range(4):
        world.Step(kernel.SETTLE_STEP, 8, 3)
    for body in bodies:
        yield from _body_fields(at, body)
    yield from _contact_fields(at, world, lower)
    yield from _sleep_fields(at)

    plan = engine.weld_plan()
    plan.bodyA, plan.bodyB = lower, upper
    plan.localAnchorA, plan.referenceAngle = (0.7, 0.3), 0.2
    yield "weld_plan_first", int(plan.this) + at.weld_plan_first, _this(lower)
    yield "weld_plan_second", int(plan.this) + at.weld_plan_second, _this(upper)
    yield "weld_plan_anchor", int(plan.this) + at.weld_plan_anchor, _numbers(0.7, 0.3, 0.0, 0.0)
    yield "weld_plan_angle", int(plan.this) + at.weld_plan_angle, _numbers(0.2)
    joint = engine.weld(world, lower, upper, (0.25, 0.7), 0.0)
    world.Step(kernel.SETTLE_STEP, 8, 3)
    carried = _numbers(*engine.weld_impulse(joint))
    yield "weld_impulse", int(joint.this) + at.weld_impulse, carried


def _body_fields(at: FieldLayout, body: Any) -> Iterator[tuple[str, int, Any]]:
    place, rotation = int(body.this), body.transform.R
    yield "body_position", place + at.body_position, _numbers(*body.position)
    yield "body_rotation", place + at.body_rotation, _numbers(rotation.s, rotation.c)
    yield "body_angle", place + at.body_angle, _numbers(body.angle)
    yield "body_velocity", place + at.body_velocity, _numbers(*body.linearVelocity)
    yield "body_spin", place + at.body_spin, _numbers(body.angularVelocity)
    yield "body_contacts", place + at.body_contacts, _this(engine.first_contact(body))
    yield "body_name", place + at.body_name, ctypes.c_int64(id(body.userData))
    body.ApplyForce((0.5, 0.25), body.worldCenter, True)
    body.ApplyTorque(0.125, True)
    yield "body_force", place + at.body_force, _numbers(0.5, 0.25)
    yield "body_torque", place + at.body_torque, _numbers(0.125)
    fixture = body.fixtures[0]
    yield "fixture_body", int(fixture.this) + at.fixture_body, _this(body)
    yield "fixture_shape", int(fixture.this) + at.fixture_shape, _this(fixture.shape)
    radius = _numbers(fixture.shape.radius)
    yield "shape_radius", int(fixture.shape.this) + at.shape_radius, radius


def _sleep_fields(at: FieldLayout) -> Iterator[tuple[str, int, Any]]:
    """Yield the fields of a floating body at rest, before and after it is put to sleep."""
    world = engine.new_world()
    world.gravity = (0.0, 0.0)
    body = world.CreateBody(engine.body(True))
    body.CreateFixture(engine.fixture(engine.disc(0.5)))
    world.Step(0.25, 8, 3)
    place, flags = int(body.this), int(body.this) + at.body_flags
    yield "body_sleep_time", place + at.body_sleep_time, _numbers(0.25)
    before = ctypes.c_uint16.from_address(flags).value
    yield "body_flags", flags, ctypes.c_uint16(before | AWAKE)
    body.awake = False
    yield "body_flags", flags, ctypes.c_uint16(before & ~AWAKE)
    yield "body_sleep_time", place + at.body_sleep_time, _numbers(0.0)


def _contact_fields(at: FieldLayout, world: Any, body: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield the fields of the contacts of a world and of a body, newest first."""
    contacts, edges = world.contacts[::-1], body.contacts[::-1]
    yield "world_contacts", int(world.this) + at.world_contacts, _this(contacts[0])
    for contact, following in pairwise(contacts):
        yield "contact_next", int(contact.this) + at.contact_next, _this(following)
    for contact in contacts:
        place = int(contact.this)
        yield "contact_first", place + at.contact_first, _this(contact.fixtureA)
        yield "contact_second", place + at.contact_second, _this(contact.fixtureB)
        flags = place + at.contact_flags
        enabled = ctypes.c_uint32.from_address(flags).value
        contact.enabled = False
        yield "contact_flags", flags, ctypes.c_uint32(enabled & ~ENABLED)
        contact.enabled = True
        yield "contact_flags", flags, ctypes.c_uint32(enabled | ENABLED)
        touching = ctypes.c_uint32(enabled & ~TOUCHING | TOUCHING * contact.touching)
        yield "contact_flags", flags, touching
        yield from _manifold_fields(at, contact)
    for edge, following in pairwise(edges):
        place = int(edge.this)
        yield "edge_body", place + at.edge_body, _this(edge.other)
        yield "edge_contact", place + at.edge_contact, _this(edge.contact)
        yield "edge_next", place + at.edge_next, _this(following)


def _manifold_fields(at: FieldLayout, contact: Any) -> Iterator[tuple[str, int, Any]]:
    place = int(contact.this) + at.contact_manifold
    count = contact.manifold.pointCount
    yield "manifold_count", place + at.manifold_count, ctypes.c_int32(count)
    for i, point in enumerate(contact.manifold.points):
        start = place + i * at.manifold_stride
        yield "manifold_normal", start + at.manifold_normal, _numbers(point.normalImpulse)
        yield "manifold_tangent", start + at.manifold_tangent, _numbers(point.tangentImpulse)
    pointer, number = ctypes.c_void_p, ctypes.c_float
    kind = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, number, pointer, number)
    locate = kind(find_functions()[list(SYMBOLS).index("locate_contact")])
    located = ctypes.create_string_buffer(OTHER_BYTES)
    one, two = contact.fixtureA, contact.fixtureB
    locate(
        located, place, int(one.body.this) + at.body_position, one.shape.radius,
        int(two.body.this) + at.body_position, two.shape.radius,
    )  # fmt: skip
    points = [x for point in contact.worldManifold.points[:count] for x in point]
    yield "located_points", ctypes.addressof(located) + at.located_points, _numbers(*points)
