"""Loading Box2D, definitions of the tasks' bodies and fixtures, and welds that can be restored."""

import ctypes
import warnings
from typing import Any

from save_rl.errors import MissingExtra, RunError

try:
    with warnings.catch_warnings():
        # Its wrapper warns while it loads, and crashes if warnings are errors.
        warnings.simplefilter("ignore")
        import Box2D as b2
except ImportError as error:
    raise MissingExtra(
        "the Construction tasks need Box2D; install it with: pip install 'save-rl[construction]'."
    ) from error

# The head of a body's list of contacts; `body.contacts` copies the list, which takes longer than a
# step of a small world.
first_contact: Any = getattr(b2.b2Body, "_b2Body__GetContactList_internal")  # noqa: B009  # typed
library: Any = getattr(b2, "_Box2D")  # noqa: B009  # C++, with a wrapper around it
GRAVITY = (0.0, -9.8)
SOLID, GOAL_ONLY = 0b01, 0b10  # collision masks: bodies that share a bit collide


def new_world() -> Any:
    """Return an empty world after one step; otherwise its first warm start would scale by zero."""
    world = b2.b2World(gravity=GRAVITY)
    world.Step(0.02, 1, 1)
    return world


def fixture(shape: Any, mask: int = SOLID, friction: float = 0.4) -> Any:
    """Return a fixture definition, which all bodies of that shape share."""
    definition: Any = b2.b2FixtureDef()  # with arguments it would take twice as long
    definition.shape, definition.kept = shape, shape
    shape.thisown = True  # a definition claims its shape, but never frees it
    definition.density, definition.friction, definition.restitution = 1.0, friction, 0.0
    bits = definition.filter
    bits.categoryBits = bits.maskBits = mask
    return definition


def body(dynamic: bool, angular_damping: float = 0.05) -> Any:
    """Return a body definition. The bullet flag turns on continuous collision detection."""
    kind = b2.b2_dynamicBody if dynamic else b2.b2_staticBody
    return b2.b2BodyDef(type=kind, bullet=dynamic, angularDamping=angular_damping)


def polygon(corners: tuple[tuple[float, float], ...]) -> Any:
    return b2.b2PolygonShape(vertices=list(corners))


def rectangle(x: float, y: float, width: float, height: float) -> Any:
    shape = b2.b2PolygonShape()
    shape.SetAsBox(width / 2, height / 2, (x, y), 0.0)
    return shape


def disc(diameter: float, x: float = 0.0, y: float = 0.0) -> Any:
    return b2.b2CircleShape(radius=diameter / 2, pos=(x, y))


def weld_plan() -> Any:
    """Return a weld definition. Welded bodies don't collide."""
    return b2.b2WeldJointDef(collideConnected=False)


def weld(world: Any, first: Any, second: Any, anchor: tuple[float, float], angle: float) -> Any:
    """Weld two bodies at the second one's origin, which is `anchor` in the first one's frame."""
    definition = weld_plan()
    definition.bodyA, definition.bodyB = first, second
    definition.localAnchorA, definition.localAnchorB = anchor, (0.0, 0.0)
    definition.referenceAngle = angle
    return world.CreateJoint(definition)


def weld_impulse(joint: Any) -> tuple[float, float, float]:
    """Return a weld's impulse in the last step: two forces and a torque, times the time step."""
    force = joint.GetReactionForce(1.0)
    return force.x, force.y, joint.GetReactionTorque(1.0)


def set_weld_impulse(joint: Any, impulse: tuple[float, float, float]) -> None:
    """Restore a weld's impulse. Without it, a tower of glued blocks falls.

    Box2D has no function for this, so the three numbers are written into the joint's memory.
    """
    (ctypes.c_float * 3).from_address(int(joint.this) + _IMPULSE_OFFSET)[:] = impulse


def _find_impulse() -> int:
    """Return the offset of a weld's impulse: load one, and search its memory for the impulse."""
    world = new_world()
    wall, shelf = world.CreateBody(body(False)), world.CreateBody(body(True))
    shelf.position = (1.3, 0.4)
    shelf.CreateFixture(fixture(rectangle(0.0, 0.0, 1.0, 0.6)))
    joint = weld(world, wall, shelf, (1.3, 0.4), 0.0)
    shelf.linearVelocity, shelf.angularVelocity = (0.7, 0.0), 0.5
    world.Step(0.02, 8, 3)
    carried = weld_impulse(joint)
    memory = (ctypes.c_float * 80).from_address(int(joint.this))
    places = [i * 4 for i in range(78) if tuple(memory[i : i + 3]) == carried]
    if len(places) != 1 or 0.0 in carried:
        raise RunError("this build of Box2D lays out its welds differently; install box2d==2.3.10.")
    return places[0]


_IMPULSE_OFFSET = _find_impulse()
