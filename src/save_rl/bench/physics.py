"""Settled placements per second: compiled, in Python, and in a bare Box2D loop.

The bare loop does the same work in Python. It builds the world from prepared lists, restores
impulses, drops the block, steps until nothing moves and reads poses and impulses back: no actions,
no overlap test, no scores, no states. No case uses glue.
"""

import platform
import time
from typing import Any

import numpy as np

from save_rl.envs.construction import Construction, State, graph
from save_rl.envs.construction.box2d import engine, physics
from save_rl.envs.construction.drawing import draw
from save_rl.envs.construction.generators import generate
from save_rl.envs.construction.tasks import TASKS

BLOCKS = (0, 5, 10, 15, 25)


def _random_action(sim: Construction, state: State, rng: np.random.Generator) -> int:
    """Draw a valid action that is not sticky."""
    return int(rng.choice(np.flatnonzero(sim.action_mask(state)))) & ~1


def _structure(
    sim: Construction, blocks: int, rng: np.random.Generator, glue: float = 0.0
) -> State:
    """Place this many blocks at random, skipping placements that would end the episode."""
    state = sim.reset(int(rng.integers(2**31)))
    while state.steps < blocks:
        sticky = int(rng.random() < glue)
        after, _, terminated, _ = sim.step(state, _random_action(sim, state, rng) + sticky)
        state = state if terminated else after
    return state


def _settles(state: State) -> bool:
    """Test whether a placement came to rest, with no block beyond the end of the floor."""
    collided = state.ending in ("spawn_collision", "obstacle_hit")
    return not collided and bool((np.abs(state.block_array[:, 2]) < 14).all())


def _cases(sim: Construction, blocks: int, count: int) -> list[tuple[State, int]]:
    """Return structures and actions after which the next block settles."""
    rng = np.random.default_rng(blocks)
    cases: list[tuple[State, int]] = []
    while len(cases) < count:
        state = _structure(sim, blocks, rng)
        actions = [_random_action(sim, state, rng) for _ in range(40)]
        cases += [(state, a) for a in actions if _settles(sim.step(state, a)[0])]
    return cases[:count]


def _bare_case(sim: Construction, state: State, action: int) -> tuple[Any, ...]:
    """Return the inputs of the bare loop, as plain lists."""
    placement = graph.place(state, *sim.decode(action))
    assert placement is not None
    shapes = [engine.fixture(engine.polygon(s.corners)) for s in sim.task.supply.shapes]
    floor = engine.fixture(engine.rectangle(*sim.task.supply.floor))
    obstacles = [engine.fixture(engine.rectangle(*box)) for box in state.scene.obstacles]
    blocks = [(shapes[int(slot)], x, y, a) for slot, _, x, y, a in state.block_array.tolist()]
    contacts = {(a, b): impulses for a, b, *impulses in state.contact_array.tolist()}
    return floor, obstacles, blocks, contacts, shapes[placement.slot], placement.x, placement.y


def _bare(case: tuple[Any, ...], still: Any, free: Any) -> tuple[list[Any], list[Any]]:
    floor, obstacles, blocks, contacts, shape, x, y = case
    world = engine.new_world()
    still.userData = -1
    world.CreateBody(still).CreateFixture(floor)
    still.userData = -2
    walls = world.CreateBody(still)
    for fixture in obstacles:
        walls.CreateFixture(fixture)
    bodies = []
    for fixture, block_x, block_y, angle in blocks:
        free.position, free.angle, free.userData = (block_x, block_y), angle, len(bodies)
        body = world.CreateBody(free)
        body.CreateFixture(fixture)
        bodies.append(body)
    if bodies:
        world.Step(0.0, 0, 0)
        for contact in world.contacts:
            pair = contact.fixtureA.body.userData, contact.fixtureB.body.userData
            if pair in contacts:
                saved = contacts[pair]
                for i, point in enumerate(contact.manifold.points):
                    point.normalImpulse, point.tangentImpulse = saved[2 * i : 2 * i + 2]
        for body in bodies:
            body.awake = False
    free.position, free.angle, free.userData = (x, y), 0.0, len(bodies)
    body = world.CreateBody(free)
    body.CreateFixture(shape)
    bodies.append(body)
    quiet, watched = 0, body
    for _ in range(1000):
        world.Step(0.02, 8, 3)
        edge = engine.first_contact(walls)
        while edge is not None and not edge.contact.touching:
            edge = edge.next
        if edge is not None:
            break
        for body in (watched, *bodies):
            speed = body.linearVelocity
            if speed.x**2 + speed.y**2 > 1e-4 or abs(body.angularVelocity) > 0.01:
                watched, quiet = body, 0
                break
        else:
            quiet += 1
            if quiet == 10:
                break
    poses = []
    for body in bodies:
        position = body.position
        poses.append((position.x, position.y, body.angle))
    impulses = []
    for contact in world.contacts:
        if contact.touching:
            pair = contact.fixtureA.body.userData, contact.fixtureB.body.userData
            points = contact.manifold.points
            impulses.append((pair, [(p.normalImpulse, p.tangentImpulse) for p in points]))
    return poses, impulses


def _placements(blocks: int, count: int, repeats: int) -> dict[str, Any]:
    sim = Construction("covering", difficulty=2, curriculum_sample=False)
    still, free = engine.body(False), engine.body(True)

    def in_python(state: State, action: int) -> Any:
        with physics.in_python():
            return sim.step(state, action)

    cases = _cases(sim, blocks, count)
    bare_cases = [_bare_case(sim, state, action) for state, action in cases]
    for (state, action), case in zip(cases, bare_cases, strict=True):  # check for equal results
        after = sim.step(state, action)[0]
        poses = [tuple(row[2:]) for row in after.block_array.tolist()]
        if poses != _bare(case, still, free)[0] or after != in_python(state, action)[0]:
            raise AssertionError("the loops end in different places")

    seconds = np.zeros((repeats, 3))  # the three alternate case by case
    clock = time.perf_counter
    for repeat in range(repeats):
        for (state, action), case in zip(cases, bare_cases, strict=True):
            start = clock()
            sim.step(state, action)
            second = clock()
            in_python(state, action)
            third = clock()
            _bare(case, still, free)
            seconds[repeat] += second - start, third - second, clock() - third
    ours, python, bare = (count / np.median(seconds, 0)).round().astype(int).tolist()
    added = float(np.median(seconds[:, 1] / seconds[:, 2])) - 1
    return {
        "blocks": blocks,
        "placements_per_second": {"save_rl": ours, "in Python": python, "bare Box2D": bare},
        "speedup": round(float(np.median(seconds[:, 1] / seconds[:, 0])), 2),
        "added_by_our_layer": f"{added:.1%}",
    }


def _milliseconds(function: Any, arguments: list[Any]) -> dict[str, float]:
    """Return the median and the worst time of single calls."""
    function(arguments[0])
    times = []
    for argument in arguments:
        start = time.perf_counter()
        function(argument)
        times.append(1e3 * (time.perf_counter() - start))
    return {"median": round(float(np.median(times)), 3), "worst": round(max(times), 3)}


def _scenes() -> dict[str, dict[str, float]]:
    rng = np.random.RandomState(0)
    return {
        name: _milliseconds(
            lambda _, name=name, level=task.max_difficulty["paper"]: generate(
                name, level, "paper", rng
            ),
            list(range(300)),
        )
        for name, task in TASKS.items()
    }


def _rolls() -> dict[str, dict[str, float]]:
    """Time the marble over random structures of up to 20 blocks: none, half or all sticky."""
    sim = Construction("marble-run", difficulty=6, curriculum_sample=False)
    rng = np.random.default_rng(0)
    states = [_structure(sim, i % 21, rng, glue=i % 3 / 2) for i in range(126)]
    compiled = _milliseconds(sim.progress, states)
    with physics.in_python():
        return {"marble": compiled, "marble, in Python": _milliseconds(sim.progress, states)}


def _frames() -> dict[str, float]:
    sim = Construction("covering", difficulty=2, curriculum_sample=False)
    rng = np.random.default_rng(0)
    return _milliseconds(draw, [_structure(sim, 25, rng) for _ in range(8)] * 5)


def bench_physics(count: int = 200, repeats: int = 15) -> dict[str, Any]:
    """Measure placements, scene generation, the marble and drawing on one core."""
    return {
        "device": f"{platform.machine()}, one core, Box2D {engine.b2.__version__}",
        "engine": physics.engine_kind(),
        "cases": [_placements(blocks, count, repeats) for blocks in BLOCKS],
        "milliseconds": {
            **{f"scene {name}": value for name, value in _scenes().items()},
            **_rolls(),
            "frame": _frames(),
        },
    }
