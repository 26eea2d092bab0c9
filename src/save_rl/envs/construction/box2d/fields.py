"""The memory layout of Box2D's objects, and functions with which kernels access their fields.

Objects are addresses (int64). `native` checks `LAYOUT` against Box2D's wrapper.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic

from save_rl.compiled import njit

intrinsic: Any = _intrinsic


class FieldLayout(NamedTuple):
    """The offsets of fields, in bytes from the start of their object."""

    world_contacts: int
    body_flags: int
    body_position: int
    body_rotation: int  # sine, cosine
    body_angle: int
    body_velocity: int
    body_spin: int
    body_force: int
    body_torque: int
    body_contacts: int
    body_sleep_time: int
    body_name: int  # the user data: a block's index, or FLOOR, OBSTACLES, MARBLE, GOAL
    fixture_body: int
    fixture_shape: int
    shape_radius: int
    contact_flags: int
    contact_next: int
    contact_first: int  # fixtures
    contact_second: int
    contact_manifold: int
    edge_body: int
    edge_contact: int
    edge_next: int
    manifold_normal: int  # impulses of the first point
    manifold_tangent: int
    manifold_stride: int  # from one point to the next
    manifold_count: int
    located_points: int
    weld_impulse: int
    body_plan_position: int
    body_plan_angle: int
    body_plan_name: int
    weld_plan_first: int
    weld_plan_second: int
    weld_plan_anchor: int
    weld_plan_angle: int


LAYOUT = FieldLayout(
    world_contacts=0x192F8,
    body_flags=4, body_position=12, body_rotation=20, body_angle=56, body_velocity=64,
    body_spin=72, body_force=76, body_torque=84, body_contacts=136, body_sleep_time=172,
    body_name=176,
    fixture_body=16, fixture_shape=24, shape_radius=12,
    contact_flags=8, contact_next=24, contact_first=96, contact_second=104, contact_manifold=120,
    edge_body=0, edge_contact=8, edge_next=24,
    manifold_normal=8, manifold_tangent=12, manifold_stride=20, manifold_count=60,
    located_points=8,
    weld_impulse=164,
    body_plan_position=4, body_plan_angle=12, body_plan_name=48,
    weld_plan_first=16, weld_plan_second=24, weld_plan_anchor=36, weld_plan_angle=52,
)  # fmt: skip
AWAKE, TOUCHING = 0x2, 0x2  # bits of a body's and of a contact's flags


@intrinsic
def call(typing, address, arguments):
    """Call a function with a tuple of arguments; return its result as an integer."""

    def generate(context, builder, signature, values):
        values, address = cgutils.unpack_tuple(builder, values[1]), values[0]
        function = ir.FunctionType(ir.IntType(64), [value.type for value in values])
        return builder.call(builder.inttoptr(address, function.as_pointer()), values)

    return types.int64(types.int64, arguments), generate


def _memory(kind: Any) -> tuple[Any, Any]:
    """Return functions that read and write a number of this type at an address."""

    @intrinsic
    def read(typing, address):
        def generate(context, builder, signature, values):
            place = context.get_value_type(kind).as_pointer()
            return builder.load(builder.inttoptr(values[0], place))

        return kind(types.int64), generate

    @intrinsic
    def write(typing, address, value):
        def generate(context, builder, signature, values):
            place = context.get_value_type(kind).as_pointer()
            builder.store(values[1], builder.inttoptr(values[0], place))
            return context.get_dummy_value()

        return types.void(types.int64, kind), generate

    return read, write


read_float, write_float = _memory(types.float32)
read_short, write_short = _memory(types.uint16)
read_int, _ = _memory(types.int32)
read_pointer, write_pointer = _memory(types.int64)


@njit
def name(body):
    return read_pointer(body + LAYOUT.body_name)


@njit
def awake(body):
    return read_short(body + LAYOUT.body_flags) & AWAKE != 0


@njit
def put_to_sleep(body):
    flags = read_short(body + LAYOUT.body_flags)
    write_short(body + LAYOUT.body_flags, np.uint16(flags & ~AWAKE))
    zero = np.float32(0.0)
    write_float(body + LAYOUT.body_sleep_time, zero)
    write_float(body + LAYOUT.body_velocity, zero)
    write_float(body + LAYOUT.body_velocity + 4, zero)
    write_float(body + LAYOUT.body_spin, zero)
    write_float(body + LAYOUT.body_force, zero)
    write_float(body + LAYOUT.body_force + 4, zero)
    write_float(body + LAYOUT.body_torque, zero)


@njit
def position(body):
    place = body + LAYOUT.body_position
    return read_float(place), read_float(place + 4)


@njit
def angle(body):
    return read_float(body + LAYOUT.body_angle)


@njit
def speed(body):
    """Return the velocity along x and y, and the angular velocity."""
    place = body + LAYOUT.body_velocity
    spin = np.float64(read_float(body + LAYOUT.body_spin))
    return np.float64(read_float(place)), np.float64(read_float(place + 4)), spin


@njit
def moves(body, limit):
    x, y, spin = speed(body)
    return x * x + y * y > limit * limit or abs(spin) > limit


@njit
def touching(contact):
    return read_int(contact + LAYOUT.contact_flags) & TOUCHING != 0


@njit
def touched(body):
    """Test whether anything touches a body."""
    edge = read_pointer(body + LAYOUT.body_contacts)
    while edge != 0:
        if touching(read_pointer(edge + LAYOUT.edge_contact)):
            return True
        edge = read_pointer(edge + LAYOUT.edge_next)
    return False


@njit
def pair(contact):
    """Return the names of the bodies in contact."""
    first = read_pointer(contact + LAYOUT.contact_first)
    second = read_pointer(contact + LAYOUT.contact_second)
    return (
        name(read_pointer(first + LAYOUT.fixture_body)),
        name(read_pointer(second + LAYOUT.fixture_body)),
    )


@njit
def skin(fixture):
    return read_float(read_pointer(fixture + LAYOUT.fixture_shape) + LAYOUT.shape_radius)


@njit
def local(body, x, y):
    """Transform a point from the world's frame to that of a body."""
    place = body + LAYOUT.body_rotation
    sine, cosine = read_float(place), read_float(place + 4)
    body_x, body_y = position(body)
    along, across = x - body_x, y - body_y
    return cosine * along + sine * across, cosine * across - sine * along


@njit
def lost(body):
    """Test whether a body's pose is no longer finite."""
    x, y = position(body)
    return not (math.isfinite(x) and math.isfinite(y) and math.isfinite(angle(body)))
