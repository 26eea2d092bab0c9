"""Box2D worlds in compiled code: built, run and read without Python in between.

These kernels do what `physics.World` does through Box2D's Python wrapper, but with the C++ library
beneath it: they call its functions by address, and access the fields of its objects at the offsets
of `fields.LAYOUT`. `native` finds the addresses and checks the layout. The results equal those of
`physics.World` bit for bit, so the order of bodies, joints and contacts matters, and the precision
of every sum.

Addresses are arguments, never constants; otherwise compiled code could not be cached on disk.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from save_rl.compiled import njit
from save_rl.envs.construction.box2d import fields
from save_rl.envs.construction.box2d.fields import LAYOUT
from save_rl.envs.construction.state import FLOOR

SETTLE_STEP, SETTLE_STEPS = 0.02, 1000
ROLL_STEP, ROLL_STEPS, BOUNCES = 0.01, 1000, 8
LOOK_STEPS = 5  # while the marble rolls, contacts between blocks are checked every 0.05 s
VELOCITY_ITERATIONS, POSITION_ITERATIONS = 8, 3
# m/s and rad/s, consecutive steps (docs/construction/index.md#settling)
QUIET_SPEED, QUIET_STEPS = 0.01, 10
MARBLE_REST = 1e-4  # dm_construction 1.0.0 (docs/construction/marble-run.md#the-marble)
FALLEN = -5.0  # metres: below the floor
LOST = 1000.0  # metres: a body this far away is a failure of the engine

OBSTACLES, MARBLE, GOAL = -2, -3, -4  # names of bodies, beside FLOOR = -1; blocks count from 0
SLOTS = 7  # shapes of a task's blocks

# Status of a kernel: normal end; obstacle touched or goal reached; body lost; or not run at all,
# because no settled world has such an arrangement.
QUIET, REACHED, FAILED, ODD = 0, 1, 2, 3


class Box(NamedTuple):
    """Addresses: functions of Box2D, then the memory of a thread (`native.Memory`).

    A plan is a Box2D definition of a body or a joint.
    """

    create_world: int
    destroy_world: int
    step: int
    create_body: int
    create_fixture: int
    create_joint: int
    locate_contact: int
    world: int
    gravity: int
    static_plan: int
    block_plan: int
    marble_plan: int
    weld_plan: int
    located: int


class Structure(NamedTuple):
    """The bodies of a world. Arrays start with the floor, so block i has index i + 1.

    bodies: `[1 + blocks]` addresses.
    slots, sticky: `[1 + blocks]`.
    glued: `[1 + blocks, 1 + blocks]` pairs that have a bond, the older one first.
    bonds: `[pairs, 7]`, the first columns of the table of bonds.
    welds: `[pairs]` addresses of their joints.
    """

    bodies: Any
    slots: Any
    sticky: Any
    glued: Any
    bonds: Any
    welds: Any


@njit
def _named(addresses):
    a = addresses
    return Box(
        a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13]
    )


@njit
def _step(box, seconds, velocity_iterations, position_iterations):
    velocity, position = np.int32(velocity_iterations), np.int32(position_iterations)
    fields.call(box.step, (box.world, np.float32(seconds), velocity, position))


@njit
def _create(box, plan, name, x, y, angle):
    """Create a body at rest, awake."""
    fields.write_float(plan + LAYOUT.body_plan_position, np.float32(x))
    fields.write_float(plan + LAYOUT.body_plan_position + 4, np.float32(y))
    fields.write_float(plan + LAYOUT.body_plan_angle, np.float32(angle))
    fields.write_pointer(plan + LAYOUT.body_plan_name, name)
    return fields.call(box.create_body, (box.world, plan))


@njit
def _sound(blocks, contacts, bonds):
    """Test whether a settled world can have these tables. With others an assertion of Box2D could
    fail, which ends the process, as there is no wrapper here to catch it."""
    if len(blocks) % 5 or len(contacts) % 6 or len(bonds) % 10:
        return False
    count = len(blocks) // 5
    for row in range(0, len(blocks), 5):
        slot = blocks[row]
        if not (slot == math.floor(slot) and 0 <= slot < SLOTS):
            return False
        for j in range(2, 5):
            if not math.isfinite(blocks[row + j]):
                return False
    for row in range(0, len(bonds), 10):
        first, second = bonds[row], bonds[row + 1]
        if not (first == math.floor(first) and second == math.floor(second)):
            return False
        if not FLOOR <= first < second < count:
            return False
        for before in range(0, row, 10):
            if bonds[before] == first and bonds[before + 1] == second:
                return False
    return True


@njit
def _pulls(contacts):
    """Test whether a normal impulse is negative or not a number, which fails a Box2D assertion."""
    for row in range(0, len(contacts), 6):
        if not (contacts[row + 2] >= 0 and contacts[row + 4] >= 0):
            return True
    return False


@njit
def _weld(box, structure, made, pair, anchor, angle, seen):
    """Weld a pair and record the bond; return the new number of bonds."""
    first, second = pair
    plan = box.weld_plan
    fields.write_pointer(plan + LAYOUT.weld_plan_first, structure.bodies[first + 1])
    fields.write_pointer(plan + LAYOUT.weld_plan_second, structure.bodies[second + 1])
    fields.write_float(plan + LAYOUT.weld_plan_anchor, anchor[0])
    fields.write_float(plan + LAYOUT.weld_plan_anchor + 4, anchor[1])
    fields.write_float(plan + LAYOUT.weld_plan_angle, angle)
    structure.welds[made] = fields.call(box.create_joint, (box.world, plan))
    structure.glued[first + 1, second + 1] = 1
    bonds = structure.bonds
    bonds[made, 0], bonds[made, 1] = first, second
    bonds[made, 2], bonds[made, 3], bonds[made, 4] = anchor[0], anchor[1], angle
    bonds[made, 5], bonds[made, 6] = seen
    return made + 1


@njit
def _bond(box, structure, made, pair, contact):
    """Weld a touching pair, as in `physics.World._bond`."""
    first, second = structure.bodies[pair[0] + 1], structure.bodies[pair[1] + 1]
    manifold = contact + LAYOUT.contact_manifold
    one = fields.read_pointer(contact + LAYOUT.contact_first)
    two = fields.read_pointer(contact + LAYOUT.contact_second)
    one_at = fields.read_pointer(one + LAYOUT.fixture_body) + LAYOUT.body_position
    two_at = fields.read_pointer(two + LAYOUT.fixture_body) + LAYOUT.body_position
    skins = fields.skin(one), fields.skin(two)
    fields.call(box.locate_contact, (box.located, manifold, one_at, skins[0], two_at, skins[1]))
    x = y = 0.0
    points = fields.read_int(manifold + LAYOUT.manifold_count)
    for i in range(points):
        place = box.located + LAYOUT.located_points + 8 * i
        x += fields.read_float(place)
        y += fields.read_float(place + 4)
    seen = fields.local(first, np.float32(x / points), np.float32(y / points))
    second_x, second_y = fields.position(second)
    anchor = fields.local(first, second_x, second_y)
    angle = np.float32(np.float64(fields.angle(second)) - np.float64(fields.angle(first)))
    return _weld(box, structure, made, pair, anchor, angle, seen)


@njit
def _glue(box, structure, made):
    """Weld every new touching pair in which one block is sticky; return the number of bonds."""
    for number in range(1, len(structure.bodies)):
        body = structure.bodies[number]
        if not structure.sticky[number] or not fields.awake(body):
            continue
        edge = fields.read_pointer(body + LAYOUT.body_contacts)
        while edge != 0:
            other = fields.name(fields.read_pointer(edge + LAYOUT.edge_body))
            contact = fields.read_pointer(edge + LAYOUT.edge_contact)
            if other >= FLOOR and fields.touching(contact):
                pair = (min(other, number - 1), max(other, number - 1))
                if not structure.glued[pair[0] + 1, pair[1] + 1]:
                    made = _bond(box, structure, made, pair, contact)
            edge = fields.read_pointer(edge + LAYOUT.edge_next)
    return made


@njit
def _restore_impulses(box, contacts):
    contact = fields.read_pointer(box.world + LAYOUT.world_contacts)
    while contact != 0:
        first, second = fields.pair(contact)
        for row in range(len(contacts) - 6, -1, -6):
            if contacts[row] == first and contacts[row + 1] == second:
                manifold = contact + LAYOUT.contact_manifold
                for i in range(fields.read_int(manifold + LAYOUT.manifold_count)):
                    point = manifold + i * LAYOUT.manifold_stride
                    fields.write_float(point + LAYOUT.manifold_normal, contacts[row + 2 + 2 * i])
                    fields.write_float(point + LAYOUT.manifold_tangent, contacts[row + 3 + 2 * i])
                break
        contact = fields.read_pointer(contact + LAYOUT.contact_next)


@njit
def _add(box, fixtures, structure, number, slot, sticky, x, y, angle):
    """Create a block at rest, awake."""
    body = _create(box, box.block_plan, number - 1, x, y, angle)
    fields.call(box.create_fixture, (body, fixtures[1 + slot]))
    structure.bodies[number] = body
    structure.slots[number], structure.sticky[number] = slot, sticky
    return body


@njit(refcounts=True)
def _build(box, fixtures, blocks, contacts, bonds, spare):
    """Build a world with an arrangement, asleep; return its structure, with room for `spare` more
    blocks, the body of the obstacles, and the number of bonds."""
    count = len(blocks) // 5
    most = 1 + count + spare
    pairs = most * (most - 1) // 2
    structure = Structure(
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.bool_),
        np.zeros((most, most), np.uint8),
        np.empty((pairs, 7), np.float32),
        np.empty(pairs, np.int64),
    )
    fields.call(box.create_world, (box.world, box.gravity))
    _step(box, SETTLE_STEP, 1, 1)  # otherwise the first warm start would scale by zero
    floor = _create(box, box.static_plan, FLOOR, 0.0, 0.0, 0.0)
    fields.call(box.create_fixture, (floor, fixtures[0]))
    structure.bodies[0] = floor
    obstacles = _create(box, box.static_plan, OBSTACLES, 0.0, 0.0, 0.0)
    for i in range(1 + SLOTS, len(fixtures)):
        fields.call(box.create_fixture, (obstacles, fixtures[i]))
    for i in range(count):
        slot, sticky = int(blocks[5 * i]), blocks[5 * i + 1] != 0
        x, y, angle = blocks[5 * i + 2], blocks[5 * i + 3], blocks[5 * i + 4]
        _add(box, fixtures, structure, i + 1, slot, sticky, x, y, angle)
    made = 0
    for row in range(0, len(bonds), 10):
        pair = (int(bonds[row]), int(bonds[row + 1]))
        anchor, seen = (bonds[row + 2], bonds[row + 3]), (bonds[row + 5], bonds[row + 6])
        made = _weld(box, structure, made, pair, anchor, bonds[row + 4], seen)
        for i in range(3):
            place = structure.welds[made - 1] + LAYOUT.weld_impulse + 4 * i
            fields.write_float(place, bonds[row + 7 + i])
    if count > 0:
        _step(box, 0.0, 0, 0)  # finds the contacts and moves nothing
        _restore_impulses(box, contacts)
        for number in range(1, 1 + count):
            fields.put_to_sleep(structure.bodies[number])
    return structure, obstacles, made


@njit
def _run(box, structure, obstacles, made):
    """Simulate until nothing moves, an obstacle is touched or a body is lost, as in
    `physics.World.settle`; return the status and the number of bonds."""
    bodies = structure.bodies
    glue = False
    for number in range(1, len(bodies)):
        glue |= structure.sticky[number]
    limit = QUIET_SPEED / 2 if glue else QUIET_SPEED
    quiet, probe = 0, bodies[-1]
    for tick in range(SETTLE_STEPS):
        _step(box, SETTLE_STEP, VELOCITY_ITERATIONS, POSITION_ITERATIONS)
        for number in range(1, len(bodies)):
            if fields.lost(bodies[number]):  # it never recovers, and may affect other bodies
                return FAILED, made
        if fields.touched(obstacles):
            return REACHED, made
        if glue:
            made = _glue(box, structure, made)
        if fields.moves(probe, limit):
            quiet = 0
            if tick % 50 == 49:
                for number in range(1, len(bodies)):
                    if fields.position(bodies[number])[1] < FALLEN:
                        fields.put_to_sleep(bodies[number])
            continue
        quiet += 1
        for number in range(1, len(bodies)):
            if fields.moves(bodies[number], limit):
                probe, quiet = bodies[number], 0
                break
        if quiet == QUIET_STEPS:
            break
    return QUIET, made


@njit
def _read(box, structure, made, out):
    """Write the tables of the arrangement one after the other; return the number of contacts, or -1
    if a body left the world, or -2 if `out` is too small."""
    touching = 0
    contact = fields.read_pointer(box.world + LAYOUT.world_contacts)
    while contact != 0:
        touching += fields.touching(contact)
        contact = fields.read_pointer(contact + LAYOUT.contact_next)
    end = 5 * (len(structure.bodies) - 1) + 6 * touching  # of the contacts
    if end + 10 * made > len(out):
        return -2
    place = 0
    for number in range(1, len(structure.bodies)):
        body = structure.bodies[number]
        x, y = fields.position(body)
        if not (abs(x) < LOST and abs(y) < LOST and abs(fields.angle(body)) < math.inf):
            return -1
        out[place], out[place + 1] = structure.slots[number], structure.sticky[number]
        out[place + 2], out[place + 3], out[place + 4] = x, y, fields.angle(body)
        place += 5
    row = end
    contact = fields.read_pointer(box.world + LAYOUT.world_contacts)
    while contact != 0:  # newest first; Python's list of contacts has the oldest first
        if fields.touching(contact):
            row -= 6
            out[row], out[row + 1] = fields.pair(contact)
            out[row + 4] = out[row + 5] = 0.0  # unless there is a second point
            manifold = contact + LAYOUT.contact_manifold
            for i in range(fields.read_int(manifold + LAYOUT.manifold_count)):
                point = manifold + i * LAYOUT.manifold_stride
                out[row + 2 + 2 * i] = fields.read_float(point + LAYOUT.manifold_normal)
                out[row + 3 + 2 * i] = fields.read_float(point + LAYOUT.manifold_tangent)
        contact = fields.read_pointer(contact + LAYOUT.contact_next)
    place = end
    for i in range(made):
        for j in range(7):
            out[place + j] = structure.bonds[i, j]
        for j in range(3):
            out[place + 7 + j] = fields.read_float(structure.welds[i] + LAYOUT.weld_impulse + 4 * j)
        place += 10
    return touching


@njit(refcounts=True)
def settle(addresses, fixtures, blocks, contacts, bonds, slot, sticky, x, y, out):
    """Add a block to an arrangement and simulate until it is at rest.

    addresses: `[14]`, a `Box`.
    fixtures: addresses of fixture definitions: the floor, a block of each slot, the obstacles.
    blocks, contacts, bonds: the tables of the arrangement, flat.
    out: float32, receives the tables of the new arrangement.

    Returns the status (QUIET, REACHED for an obstacle, FAILED, ODD), and the numbers of contacts
    and bonds.
    """
    if not (_sound(blocks, contacts, bonds) and 0 <= slot < SLOTS):
        return ODD, 0, 0
    if not (math.isfinite(np.float32(x)) and math.isfinite(np.float32(y))):
        return ODD, 0, 0
    if _pulls(contacts):
        return FAILED, 0, 0
    box = _named(addresses)
    structure, obstacles, made = _build(box, fixtures, blocks, contacts, bonds, 1)
    number = len(structure.bodies) - 1
    _add(box, fixtures, structure, number, slot, sticky, x, y, 0.0)
    ended, made = _run(box, structure, obstacles, made)
    touching = _read(box, structure, made, out)
    fields.call(box.destroy_world, (box.world,))
    if touching < 0:
        return FAILED if touching == -1 else ODD, 0, 0
    return ended, touching, made


@njit
def _partners(body, partners):
    """Mark the bodies that touch a body in `partners` `[4 + blocks]`, which starts with GOAL."""
    for i in range(len(partners)):
        partners[i] = False
    edge = fields.read_pointer(body + LAYOUT.body_contacts)
    while edge != 0:
        if fields.touching(fields.read_pointer(edge + LAYOUT.edge_contact)):
            partners[fields.name(fields.read_pointer(edge + LAYOUT.edge_body)) - GOAL] = True
        edge = fields.read_pointer(edge + LAYOUT.edge_next)


@njit
def _someone_new(touching, before):
    new = False
    for i in range(len(touching)):
        new |= touching[i] and not before[i]
    return new


@njit
def _all_asleep(structure, marble):
    awake = fields.awake(marble)
    for number in range(1, len(structure.bodies)):
        awake |= fields.awake(structure.bodies[number])
    return not awake


@njit(refcounts=True)
def _roll(box, structure, obstacles, made, marble, path):
    """Let the marble roll, as in `physics.World.roll`; return true if it reached the goal, and the
    length of its path."""
    before = np.zeros(len(structure.bodies) - 1 - GOAL, np.bool_)
    touching = np.zeros(len(structure.bodies) - 1 - GOAL, np.bool_)
    stopped, steps = False, 0
    for _ in range(BOUNCES):
        for tick in range(ROLL_STEPS):
            _step(box, ROLL_STEP, VELOCITY_ITERATIONS, POSITION_ITERATIONS)
            x, y = fields.position(marble)
            if not (math.isfinite(x) and math.isfinite(y)):
                return False, steps
            if steps < len(path):
                path[steps, 0], path[steps, 1] = x, y
            steps += 1
            if tick % LOOK_STEPS == 0:
                made = _glue(box, structure, made)
                stopped = fields.touched(obstacles) or _all_asleep(structure, marble)
            before, touching = touching, before
            _partners(marble, touching)
            stopped |= touching[OBSTACLES - GOAL]
            if stopped or _someone_new(touching, before):
                break
        speed_x, speed_y, spin = fields.speed(marble)
        still = max(abs(speed_x), abs(speed_y), abs(spin)) < MARBLE_REST
        if stopped or still or touching[0]:
            break
    return touching[0], steps


@njit(refcounts=True)
def roll(addresses, fixtures, marble_fixtures, x, y, blocks, contacts, bonds, record, path):
    """Release the marble at (x, y) over an arrangement.

    fixtures, blocks, contacts, bonds: as in `settle`.
    marble_fixtures: addresses of the fixture definitions of the goal and the marble.
    path: float32 `[BOUNCES * ROLL_STEPS, 2]`, receives the positions of the marble; without
        `record`, only the last.

    Returns the status (QUIET, REACHED for the goal, FAILED, ODD), and the length of the path.
    """
    if not _sound(blocks, contacts, bonds):
        return ODD, 0
    if _pulls(contacts):
        return FAILED, 0
    box = _named(addresses)
    structure, obstacles, made = _build(box, fixtures, blocks, contacts, bonds, 0)
    goal = _create(box, box.static_plan, GOAL, 0.0, 0.0, 0.0)
    fields.call(box.create_fixture, (goal, marble_fixtures[0]))
    marble = _create(box, box.marble_plan, MARBLE, x, y, 0.0)
    fields.call(box.create_fixture, (marble, marble_fixtures[1]))
    length = len(path) if record else 0
    reached, steps = _roll(box, structure, obstacles, made, marble, path[:length])
    end_x, end_y = fields.position(marble)
    fields.call(box.destroy_world, (box.world,))
    if not (math.isfinite(end_x) and math.isfinite(end_y)):
        return FAILED, 0
    if not record:
        path[0, 0], path[0, 1] = end_x, end_y
        steps = 1
    return REACHED if reached else QUIET, steps
