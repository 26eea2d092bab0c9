"""Box2D as the tasks use it, against the published numbers of
docs/construction/index.md#checked-against-published-numbers."""

import subprocess
import sys

import numpy as np
import pytest

from save_rl.envs.construction import Construction, Placement, Scene
from save_rl.envs.construction.box2d import engine, physics
from save_rl.envs.construction.scene import BLOCKS
from save_rl.envs.construction.state import FLOOR, State

EMPTY = Scene("covering", "paper", 0, 28, ())
SMALL, MEDIUM, LARGE = 0, 3, 6


def build(placements, scene=EMPTY):
    """Drop blocks one after the other; return the last state."""
    sim = Construction(scene.task)
    state = sim.start(scene)
    for placement in placements:
        state, _, _, _ = sim.drop(state, Placement(*placement))
    return state


def stack(slot, count, sticky=False):
    """A tower, built block by block upon where the last one really lies."""
    sim = Construction("covering")
    state = sim.start(EMPTY)
    y = 0.4
    for _ in range(count):
        state, _, _, _ = sim.drop(state, Placement(slot, 0.0, y, sticky))
        y = float(state.block_array[-1][3]) + 0.74
    return state


def test_a_box_rests_where_the_official_test_says():
    """A 1 m box dropped from y = 10 on a static box of height 0.2 around y = 0."""
    world = engine.new_world()
    world.CreateBody(engine.body(False)).CreateFixture(
        engine.fixture(engine.rectangle(0, 0, 10, 0.2))
    )
    box = world.CreateBody(engine.body(True))
    box.CreateFixture(engine.fixture(engine.rectangle(0, 0, 1, 1)))
    box.position = (0, 10)
    for _ in range(physics.SETTLE_STEPS):
        world.Step(physics.SETTLE_STEP, physics.VELOCITY_ITERATIONS, physics.POSITION_ITERATIONS)
    assert box.position.y == pytest.approx(0.61499971, abs=1e-4)


def test_two_balls_collide_like_the_official_ones():
    """Positions of both after each of the first six collisions."""
    official = [
        (-0.489688, 0.089686), (-0.489688, 7.11094), (-0.57874, 0.0), (-7.12189, 0.0),
        (-0.489688, 0.067793), (-0.489688, 7.13284),
    ]  # fmt: skip
    world = engine.new_world()
    world.gravity = (0, 0)

    def bouncy(shape):
        fixture = engine.fixture(shape)
        fixture.restitution = 1.0
        return fixture

    for x in (-7.5, 7.5):
        wall = world.CreateBody(engine.body(False))
        wall.CreateFixture(bouncy(engine.rectangle(x, 5, 0.2, 10)))
    balls = []
    for x, speed in ((-4, 5), (0, 0)):
        ball = world.CreateBody(engine.body(True, angular_damping=1000))
        ball.CreateFixture(bouncy(engine.disc(0.5)))
        ball.position, ball.linearVelocity, ball.userData = (x, 5.5), (speed, 0), len(balls)
        balls.append(ball)
    seen, touching = [], 0
    while len(seen) < len(official):
        world.Step(0.02, 8, 3)
        before, touching = touching, sum(contact.touching for contact in world.contacts)
        if touching > before:
            seen.append((balls[0].position.x, balls[1].position.x))
    np.testing.assert_allclose(seen, official, atol=2.4e-4)


def test_a_settled_box_floats_two_skins_less_one_slop_above_its_support():
    heights = [float(y) for y in stack(MEDIUM, 3).block_array[:, 3]]
    np.testing.assert_allclose(heights, [0.365, 1.08, 1.795], atol=3e-3)


@pytest.mark.parametrize("slot", [SMALL, MEDIUM])
@pytest.mark.parametrize("sticky", [False, True])
def test_a_tower_of_fifteen_stands(slot, sticky):
    """Rebuilt from its state before every placement, it must not fall, drift or turn."""
    state = stack(slot, 15, sticky)
    blocks = state.block_array
    assert len(blocks) == 15
    assert np.abs(blocks[:, 2]).max() < 1e-3
    assert np.abs(blocks[:, 4]).max() < 2e-3
    np.testing.assert_allclose(np.diff(blocks[:, 3]), 0.715, atol=8e-3)


@pytest.mark.parametrize("slot", [SMALL, MEDIUM])
def test_a_restored_tower_stays_where_it_was(slot):
    state = stack(slot, 15)
    world = physics.World(state.scene, physics.Arrangement(*state[1:4]))
    for body in world.bodies:
        body.awake = True
    for _ in range(25):
        world.world.Step(0.02, 8, 3)
    after = np.frombuffer(world.read().blocks, np.float32).reshape(-1, 5)
    assert np.abs(after - state.block_array).max() < 1e-3


def test_a_tower_does_not_notice_25_placements_beside_it():
    state = stack(SMALL, 2)
    sim = Construction("covering")
    after = state
    for i in range(25):
        x, y = -7 + 0.75 * (i % 8), 0.4 + 0.8 * (i // 8)
        after, _, _, _ = sim.drop(after, Placement(SMALL, x, y, False))
        assert after.ending == ""
    np.testing.assert_array_equal(after.block_array[:2], state.block_array)


def test_without_its_impulses_a_tower_falls():
    """The reason why they are part of the state
    (docs/construction/index.md#what-a-state-has-to-keep)."""
    sim = Construction("covering")
    state, y = sim.start(EMPTY), 0.4
    while state.steps < 15 and not state.ending:
        forgetful = state._replace(contacts=b"")
        state, _, _, _ = sim.drop(forgetful, Placement(SMALL, 0.0, y, False))
        y = float(state.block_array[-1][3]) + 0.74
    assert np.abs(state.block_array[:, 2]).max() > 0.35


def test_glue_bonds_whatever_a_sticky_block_touches():
    """Block 1 is sticky: it bonds to block 0 below and to block 2 above, and 0 stays on the floor
    without a bond."""
    state = build([(MEDIUM, 0.0, 0.4, False), (SMALL, 0.0, 1.12, True), (MEDIUM, 0.0, 1.84, False)])
    assert [tuple(row[:2]) for row in state.bond_array.astype(int)] == [(0, 1), (1, 2)]


def test_a_sticky_block_bonds_to_the_floor_and_holds_what_would_tip():
    """A plank on the very edge of a block tips over unless one of them is sticky."""
    edge = 65 / 84 * (0.7 + 2.1) / 2
    loose = build([(SMALL, 0.0, 0.4, False), (MEDIUM, edge, 1.11, False)])
    glued = build([(SMALL, 0.0, 0.4, True), (MEDIUM, edge, 1.11, False)])
    assert abs(loose.block_array[1][4]) > 0.1
    assert abs(glued.block_array[1][4]) < 0.02
    assert [tuple(row[:2]) for row in glued.bond_array.astype(int)] == [(FLOOR, 0), (0, 1)]


def test_a_weld_gets_back_what_it_carried():
    state = stack(SMALL, 6, sticky=True)
    world = physics.World(state.scene, physics.Arrangement(*state[1:4]))
    assert world.read() == physics.Arrangement(*state[1:4])
    assert np.abs(state.bond_array[:, 7:]).max() > 0.05  # six blocks of 0.49 kg, 0.02 s, 9.8 m/s²


def test_reading_a_world_that_was_just_built_gives_what_it_was_built_from():
    state = build([(LARGE, 0.0, 0.4, False), (MEDIUM, -0.6, 1.12, False), (SMALL, 1.2, 1.12, True)])
    world = physics.World(state.scene, physics.Arrangement(*state[1:4]))
    assert world.read() == physics.Arrangement(*state[1:4])


def test_an_obstacle_stops_the_simulation():
    scene = Scene("covering", "paper", 0, 28, ((0.0, 0.35, 1.4, 0.35),))
    state = build([(SMALL, 0.0, 5.0, False)], scene)
    assert state.ending == "obstacle_hit"
    # stopped where they met: half a block above the obstacle's top at 0.525, skins included
    assert state.block_array[0][3] == pytest.approx(0.525 + 0.35, abs=0.03)


def marble_scene(goal_x, obstacles=()):
    return Scene(
        "marble-run", "paper", 0, 20, obstacles, ((goal_x, 0.28, 0.28, 0.28),), (0.0, 1.4, 0.56)
    )


def test_a_marble_falls_straight_down_and_stops():
    rolled = physics.roll(marble_scene(3.0), physics.Arrangement(b"", b"", b""))
    assert not rolled.reached
    assert np.abs(rolled.path[:, 0]).max() < 1e-6
    assert rolled.path[-1, 1] == pytest.approx(0.28, abs=0.02)  # its radius above the floor
    # free fall of 1.12 m takes sqrt(2 h / g) = 0.478 s: 48 steps of 0.01 s
    landed = np.flatnonzero(rolled.path[:, 1] < 0.29)[0]
    assert 46 <= landed <= 50


def test_a_marble_reaches_a_goal_below_it():
    assert physics.roll(marble_scene(0.2), physics.Arrangement(b"", b"", b"")).reached


def test_a_ramp_sends_the_marble_along_the_floor_without_friction():
    """A ramp that falls to the right under the marble, the goal 6 m away on the floor."""
    sim = Construction("marble-run")
    state, reward, terminated, _ = sim.drop(
        sim.start(marble_scene(6.0)), Placement(6, 0.4, 0.3, False)
    )
    assert (reward, terminated, state.ending) == (1.0, True, "complete")
    mirrored = marble_scene(-6.0)
    state, reward, _, _ = sim.drop(sim.start(mirrored), Placement(5, -0.4, 0.3, False))
    assert reward == 1.0


def test_an_obstacle_in_the_way_stops_the_marble_but_not_the_episode():
    scene = marble_scene(6.0, ((3.0, 0.28, 0.56, 0.28),))
    sim = Construction("marble-run")
    state, reward, terminated, _ = sim.drop(sim.start(scene), Placement(6, 0.4, 0.3, False))
    assert (reward, terminated, state.ending) == (0.0, False, "")
    path = sim.roll(state).path
    assert path[-1, 0] == pytest.approx(3.0 - 0.28 - 0.28, abs=0.05)


def test_the_marble_leaves_no_trace():
    """It knocks a loose block away, and yet the block lies where it had settled."""
    sim = Construction("marble-run")
    state, _, _, _ = sim.drop(sim.start(marble_scene(-6.9)), Placement(6, 0.4, 0.3, False))
    settled = physics.settle(
        state.scene, physics.Arrangement(*state[1:4]), 0, False, 3.0, 0.3
    ).arrangement
    after, _, _, _ = sim.drop(state, Placement(0, 3.0, 0.3, False))
    world = physics.World(after.scene, physics.Arrangement(*after[1:4]))
    world.roll(record=False)
    assert world.bodies[1].position.x > 3.1
    assert physics.Arrangement(*after[1:4]) == settled


def test_a_block_over_the_marble_counts_as_a_spawn_collision():
    """The second box comes to rest 1.15 m high, where the marble begins at 1.12 m."""
    sim = Construction("marble-run")
    state, _, _, _ = sim.drop(sim.start(marble_scene(6.0)), Placement(1, 0.3, 0.3, True))
    assert state.ending == ""
    state, reward, terminated, _ = sim.drop(state, Placement(0, 0.3, 0.9, False))
    assert (reward, terminated, state.ending) == (0.0, True, "spawn_collision")


def test_the_supply_is_what_the_physics_builds():
    """A block of every slot rests at half its height (plus skin) above the floor."""
    for slot, shape in enumerate(BLOCKS.shapes):
        state = build([(slot, 0.0, 0.45, False)])
        assert state.block_array[0][3] == pytest.approx(shape.height / 2 + 0.015, abs=4e-3)


def test_a_failing_engine_ends_the_episode_and_nothing_else(monkeypatch):
    sim = Construction("covering", difficulty=0)
    state = sim.start(EMPTY)

    def broken(*_):
        raise physics.EngineFailure("a body left the world")

    monkeypatch.setattr(physics, "settle", broken)
    after, reward, terminated, _ = sim.drop(state, Placement(SMALL, 0.0, 0.5, False))
    assert (after.ending, reward, terminated, after.steps) == ("bad_simulation", 0.0, True, 1)
    assert after.blocks == state.blocks


@pytest.mark.parametrize("position", [(float("nan"), 0.0), (2000.0, 0.0)])
def test_a_body_without_a_place_is_a_failure_of_the_engine(position, monkeypatch):
    def lose(world, placed):
        placed.position = position
        return False

    monkeypatch.setattr(physics.World, "settle", lose)
    with physics.in_python(), pytest.raises(physics.EngineFailure):
        physics.settle(EMPTY, physics.Arrangement(b"", b"", b""), SMALL, False, 0.0, 1.0)


def test_a_block_that_rolls_off_the_floor_is_lost_but_not_the_episode():
    state = build([(SMALL, 0.0, 0.4, False), (SMALL, 14.3, 0.5, False)])
    assert (state.ending, state.steps) == ("", 2)
    assert -60 < state.block_array[1][3] < -5
    again, _, _, _ = Construction("covering").drop(state, Placement(SMALL, 2.0, 0.4, False))
    np.testing.assert_array_equal(again.block_array[:2], state.block_array)


def test_states_are_small():
    columns = [(SMALL, -6.0 + 2.0 * (i // 5), 0.4 + 0.74 * (i % 5), i % 2 == 0) for i in range(25)]
    state = build(columns)
    assert isinstance(state, State)
    assert len(state.block_array) == 25
    assert len(state.to_bytes()) < 4096


def full_length(world, placed):
    """As `World.settle`, for all of the original's 20 seconds."""
    for _ in range(physics.SETTLE_STEPS):
        world.world.Step(physics.SETTLE_STEP, 8, 3)
        if any(edge.contact.touching for edge in world.obstacles.contacts):
            return True
        if world.sticky:
            world._glue()
    return False


def test_stopping_when_quiet_ends_where_20_seconds_end(monkeypatch):
    """In docs/construction/index.md#settling, 1 of 1000 drops ends more than 5 cm away, and no drop
    differs in whether it touches an obstacle."""
    sim = Construction("covering", curriculum_sample=False)
    rng = np.random.default_rng(0)
    cases = []
    state = sim.reset(0)
    while len(cases) < 250:
        action = int(rng.choice(np.flatnonzero(sim.action_mask(state))))
        after, _, terminated, _ = sim.step(state, action)
        if after.ending not in ("spawn_collision",):
            cases.append((state, action, after))
        if not terminated:
            state = after
        elif rng.random() < 0.05:
            state = sim.reset(len(cases))
    monkeypatch.setattr(physics.World, "settle", full_length)
    far = 0
    for state, action, after in cases:
        with physics.in_python():
            expected = sim.step(state, action)[0]
        assert (after.ending == "obstacle_hit") == (expected.ending == "obstacle_hit")
        if after.ending != "obstacle_hit":
            far += np.abs(after.block_array - expected.block_array)[:, 2:4].max() > 0.05
    assert far <= 2


def test_without_box2d_the_extra_is_named():
    code = (
        "import sys; sys.modules['Box2D'] = None\n"
        "from save_rl.cli import main\n"
        "main(['watch', 'covering', '--out', 'x.gif'])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "save-rl: the Construction tasks need Box2D; install it with: "
        "pip install 'save-rl[construction]'.\n"
    )


def test_box2d_loads_where_warnings_are_errors():
    code = "import save_rl.envs.construction"
    result = subprocess.run([sys.executable, "-W", "error::DeprecationWarning", "-c", code])
    assert result.returncode == 0
