"""Compiled worlds end in the same bits as those of `physics.World`, and are left out where Box2D is
not the build they know."""

import os
import platform
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest

from save_rl.envs.construction import Construction, Placement, Scene, graph
from save_rl.envs.construction.box2d import engine, kernel, native, physics
from save_rl.envs.construction.box2d.fields import LAYOUT
from save_rl.envs.construction.state import State
from save_rl.envs.construction.tasks import TASKS

EMPTY = Scene("covering", "paper", 0, 28, ())
NOTHING = physics.Arrangement(b"", b"", b"")
EPISODES = 25

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the kernels know one build"
)


class Drop(NamedTuple):
    """The arguments of `physics.settle`."""

    scene: Scene
    arrangement: physics.Arrangement
    slot: int
    sticky: bool
    x: float
    y: float


def table(*rows):
    return np.array(rows, np.float32).tobytes()


def outcome(function, *arguments):
    """What a call returns, with arrays as bytes, or how it fails."""
    try:
        result = function(*arguments)
    except physics.EngineFailure:
        return "failure"
    if isinstance(result, physics.Rolled):
        return result.reached, result.path.shape, result.path.dtype, result.path.tobytes()
    return result


def both(function, *arguments):
    """The outcome, once compiled and once in Python."""
    compiled = outcome(function, *arguments)
    with physics.in_python():
        return compiled, outcome(function, *arguments)


def drops(task, seed, glue):
    """The placements of an episode with random actions that get as far as the physics. One that
    hits an obstacle is taken back."""
    preset = ("paper", "released")[seed % 2]
    levels = [*range(TASKS[task].max_difficulty[preset] + 1), *TASKS[task].generalization]
    level = levels[seed % len(levels)]
    sim = Construction(task, preset=preset, difficulty=level, curriculum_sample=False)
    rng = np.random.default_rng(seed)
    state = sim.reset(seed)
    for _ in range(2 * state.scene.max_steps):
        valid = np.flatnonzero(sim.action_mask(state))
        if state.steps == state.scene.max_steps or not valid.size:
            break
        sender, receiver, offset, _ = sim.decode(int(rng.choice(valid)))
        placement = graph.place(state, sender, receiver, offset, int(rng.random() < glue))
        assert placement is not None
        if sim._overlaps(state, placement):
            continue
        slot, x, y, sticky = placement
        drop = Drop(state.scene, physics.Arrangement(*state[1:4]), slot, sticky, x, y)
        yield drop
        settled = physics.settle(*drop)
        if not settled.hit:
            state = State(state.scene, *settled.arrangement, state.steps + 1)


def test_the_installed_box2d_is_known():
    assert native.difference() == ""
    assert physics.engine_kind() == "compiled"
    with physics.in_python():
        assert physics.engine_kind() == "python"
    assert physics.engine_kind() == "compiled"


@pytest.mark.parametrize(
    "glue",
    [  # with 0.4 there are both kinds of blocks
        0.4,
        *(pytest.param(glue, marks=pytest.mark.slow) for glue in (0.0, 1.0)),
    ],
)
@pytest.mark.parametrize("task", TASKS)
def test_placements_end_in_the_same_bits(task, glue):
    endings = Counter()
    for seed in range(EPISODES):
        for drop in drops(task, seed, glue):
            compiled, python = both(physics.settle, *drop)
            assert compiled == python
            assert isinstance(compiled, physics.Settled)
            endings["hit" if compiled.hit else "quiet"] += 1
            endings["glued"] += compiled.arrangement.bonds != b""
    assert min(endings["hit"], endings["quiet"]) > 20
    assert (endings["glued"] > 20) == (glue > 0)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_hundred_thousand_placements_end_in_the_same_bits(task):
    count = 0
    for seed in range(10**6, 10**6 + 10**5):
        for drop in drops(task, seed, glue=(0.0, 0.4, 1.0)[seed % 3]):
            compiled, python = both(physics.settle, *drop)
            assert compiled == python
            count += 1
        if count > 20_000:
            break


def test_marbles_roll_the_same_way():
    reached = Counter()
    for seed in range(EPISODES):
        for number, drop in enumerate(drops("marble-run", seed, glue=seed % 3 / 2)):
            record = number % 2 > 0
            compiled, python = both(physics.roll, drop.scene, drop.arrangement, record)
            assert compiled == python
            reached[record, compiled[0]] += 1
    # A ramp under the marble, the goal beside it on the floor: this one arrives.
    scene = Scene("marble-run", "paper", 0, 20, (), ((6.0, 0.28, 0.28, 0.28),), (0.0, 1.4, 0.56))
    ramp = physics.settle(scene, NOTHING, 6, False, 0.4, 0.3).arrangement
    for record in (False, True):
        compiled, python = both(physics.roll, scene, ramp, record)
        assert compiled == python
        assert compiled[0]
        assert reached[record, False] > 30


def test_a_block_that_falls_off_the_floor_ends_in_the_same_bits():
    compiled, python = both(physics.settle, EMPTY, NOTHING, 0, False, 14.3, 0.5)
    assert compiled == python
    lost = compiled.arrangement
    assert np.frombuffer(lost.blocks, np.float32)[3] < kernel.FALLEN
    compiled, python = both(physics.settle, EMPTY, lost, 3, True, 0.0, 0.5)
    assert compiled == python


@pytest.mark.parametrize(
    "blocks",
    [
        table([0, 0, np.nan, 0.4, 0]),
        table([0, 0, 0.0, np.inf, 0]),
        table([0, 0, 2000.0, 0.4, 0]),
        table([0, 0, 0.0, 0.4, np.nan]),
    ],
)
def test_a_body_without_a_place_is_a_failure_either_way(blocks):
    arrangement = physics.Arrangement(blocks, b"", b"")
    assert both(physics.settle, EMPTY, arrangement, 0, False, 3.0, 0.5) == ("failure", "failure")


def test_a_bond_that_tears_everything_apart_is_a_failure_either_way():
    tower = physics.settle(EMPTY, NOTHING, 0, True, 0.0, 0.4).arrangement
    bond = np.frombuffer(tower.bonds, np.float32).copy()
    bond[7:] = np.nan
    torn = tower._replace(bonds=bond.tobytes())
    assert both(physics.settle, EMPTY, torn, 0, False, 0.0, 1.1) == ("failure", "failure")


@pytest.mark.parametrize("impulse", [np.nan, -1.0])
def test_impulses_that_would_fail_an_assertion_of_box2d_never_reach_it(impulse):
    """In Python this ends the process: the assertion is thrown out of a half-solved island."""
    plank = physics.settle(EMPTY, NOTHING, 3, False, 0.0, 0.4).arrangement
    contacts = np.frombuffer(plank.contacts, np.float32).copy()
    contacts[2] = impulse
    damaged = plank._replace(contacts=contacts.tobytes())
    with pytest.raises(physics.EngineFailure):
        physics.settle(EMPTY, damaged, 0, False, 0.0, 1.1)


@pytest.mark.parametrize(
    "odd",
    [
        physics.Arrangement(table([0.5, 0, 0.0, 0.4, 0]), b"", b""),
        physics.Arrangement(
            table([0, 1, 0.0, 0.4, 0]), b"", table(*[[-1, 0, 0, 0.4, 0, 0, 0, 0, 0, 0]] * 2)
        ),
    ],
    ids=["half a slot", "a bond twice"],
)
def test_what_no_settled_world_leaves_behind_is_left_to_python(odd, monkeypatch):
    called = []
    world = physics.World
    monkeypatch.setattr(physics, "World", lambda *args: called.append(args) or world(*args))
    compiled, python = both(physics.settle, EMPTY, odd, 0, False, 3.0, 0.5)
    assert compiled == python
    assert len(called) == 2


@pytest.fixture
def fresh():
    """Look at Box2D anew, and once more afterwards."""
    native.difference.cache_clear()
    yield
    native.difference.cache_clear()


@pytest.mark.parametrize("field", LAYOUT._fields)
def test_a_field_in_another_place_is_noticed(field, monkeypatch, fresh):
    for shift in (-8, -4, 4, 8):
        moved = LAYOUT._replace(**{field: getattr(LAYOUT, field) + shift})
        with pytest.raises(native.UnknownBuild, match="is not where it was"):
            native.check(moved)
    monkeypatch.setattr(native, "LAYOUT", moved)
    assert physics.engine_kind() == "python"


@pytest.mark.parametrize("name", native.SYMBOLS)
def test_without_a_function_python_does_it(name, monkeypatch, fresh):
    expected = physics.settle(EMPTY, NOTHING, 0, True, 0.0, 0.5)
    monkeypatch.setitem(native.SYMBOLS, name, "_ZN7nowhere")
    native.difference.cache_clear()
    assert native.difference() == f"there is no function {name}"
    assert physics.engine_kind() == "python"
    assert physics.settle(EMPTY, NOTHING, 0, True, 0.0, 0.5) == expected


def test_another_machine_does_it_in_python(monkeypatch, fresh):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert physics.engine_kind() == "python"


def test_results_depend_neither_on_the_order_nor_on_threads():
    cases = [drop for seed in range(6) for drop in drops("covering", seed, glue=0.5)]
    expected = [physics.settle(*drop) for drop in cases]
    assert [physics.settle(*drop) for drop in cases[::-1]] == expected[::-1]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda drop: physics.settle(*drop), cases)) == expected


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_worlds_leave_no_memory_behind():
    drop = list(drops("covering", 3, glue=0.5))[3]
    for _ in range(1000):
        physics.settle(*drop)
    before = resident_bytes()
    for _ in range(20_000):
        physics.settle(*drop)
    assert resident_bytes() - before < 2**20


def test_scenes_leave_no_memory_behind():
    """Every scene has obstacles of its own, and a worker meets many."""
    kept = [engine.fixture(engine.rectangle(0.7, 0.3, 1.4, 0.35)) for _ in range(1000)]
    assert {tuple(fixture.shape.vertices) for fixture in kept} == {tuple(kept[0].shape.vertices)}
    before = resident_bytes()
    for _ in range(20_000):
        engine.fixture(engine.rectangle(0.7, 0.3, 1.4, 0.35))
    assert resident_bytes() - before < 2**20


def test_another_process_finds_the_kernels_compiled_and_the_same_bits():
    sim = Construction("covering", difficulty=0)
    state, _, _, _ = sim.drop(sim.start(EMPTY), Placement(3, 0.0, 0.9, True))
    code = (
        "from save_rl.envs.construction import Construction, Placement, Scene\n"
        "from save_rl.envs.construction.box2d import kernel\n"
        "sim = Construction('covering', difficulty=0)\n"
        "state = sim.start(Scene('covering', 'paper', 0, 28, ()))\n"
        "print(sim.drop(state, Placement(3, 0.0, 0.9, True))[0].to_bytes().hex())\n"
        "assert not kernel.settle.stats.cache_misses\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert bytes.fromhex(result.stdout) == state.to_bytes()
