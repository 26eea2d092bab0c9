"""The properties of a scene for an adaptive curriculum: its level, its bin, and its solution
(paper D.3; docs/construction/training.md#curricula).
"""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from save_rl.envs.construction import TASKS, Construction, Placement, Scene, State
from save_rl.envs.construction.generators import generate, scene_bin
from save_rl.envs.construction.marble_builder import build

# In metres; the scene is 14 wide
ROW = 0.56
WALLS = ((7.84, 4.667, 0.28, 9.333), (-7.84, 4.667, 0.28, 9.333))
# docs/construction/marble-run.md#levels: goal row, distance in hundredths of the width, obstacles
LEVELS = {
    0: (0, (3, 30), 1),
    1: (0, (36, 49), 1),
    2: (0, (50, 63), 2),
    3: (0, (69, 82), 2),
    4: (0, (83, 100), 3),
    5: (1, (83, 100), 3),
    6: (2, (83, 100), 4),
    7: (3, (83, 100), 4),
    8: (4, (83, 100), 5),
}
HARDEST = {"paper": 6, "released": 8}
ALL = [(preset, level) for preset, most in HARDEST.items() for level in range(most + 1)]
BLOCK_LEVELS = [
    (name, level)
    for name, task in TASKS.items()
    if name != "marble-run"
    for level in range(task.max_difficulty["paper"] + 1)
]
NAMED = [(name, level) for name, task in TASKS.items() for level in task.generalization]


def scene_of(goal_row, distance, rows, **more):
    """A scene by hand: rows of the goal and of obstacles, distance as a share of the width.

    left: x of the marble or the goal, whatever is on the left; then which of them.
    """
    left, marble_first = more.pop("left", -7.0), more.pop("marble_first", True)
    shift, wide = more.pop("shift", 0.0), more.pop("wide", False)
    ends = (left, left + 14 * distance)
    marble_x, goal_x = ends if marble_first else ends[::-1]
    obstacles = tuple(
        (shift + i, ROW * (row + 0.5), 1.12 if wide else 0.56, 0.28) for i, row in enumerate(rows)
    )
    scene = Scene(
        "marble-run", "paper", 0, 20, WALLS + obstacles,
        ((goal_x, ROW * (goal_row + 0.5), 0.28, 0.28),),
        (marble_x, ROW * (goal_row + 2.5), 0.56),
    )  # fmt: skip
    return replace(scene, **more)


def properties(scene):
    """Read the five properties of paper D.3 off a scene."""
    (goal_x, goal_y, _, _), (marble_x, _, _) = *scene.targets, scene.marble
    distance = abs(goal_x - marble_x) / 14
    third = 0 if distance < 1 / 3 else 1 if distance < 2 / 3 else 2
    rows = [math.floor(y / ROW) for x, y, _, _ in scene.obstacles if abs(x) < 7.5]
    return math.floor(goal_y / ROW), third, len(rows), max(rows), min(rows)


def drawn(preset, level, count, seed=3):
    rng = np.random.RandomState(seed)
    return [generate("marble-run", level, preset, rng) for _ in range(count)]


# Bins by hand

USUAL = {"goal_row": 1, "distance": 0.5, "rows": (0, 3)}


@pytest.mark.parametrize(
    "change",
    [
        {"goal_row": 0},
        {"goal_row": 2},
        {"distance": 0.33},
        {"distance": 0.67},
        {"rows": (0, 1, 3)},
        {"rows": (0, 2)},
        {"rows": (0, 4)},
        {"rows": (1, 3)},
        {"rows": (3, 3)},
        {"rows": (0,)},
        {"rows": (3,)},
    ],
)
def test_each_property_has_bins_of_its_own(change):
    assert scene_bin(scene_of(**{**USUAL, **change})) != scene_bin(scene_of(**USUAL))


@pytest.mark.parametrize(
    "change",
    [
        {"distance": 0.34},
        {"distance": 0.66},
        {"rows": (3, 0)},
        {"left": -3.0},
        {"left": -3.0, "marble_first": False},
        {"shift": 1.3},
        {"wide": True},
        {"level": 5},
        {"preset": "released", "max_steps": 15},
        {"marble": (-7.0, ROW * 5.5, 0.56)},
    ],
)
def test_nothing_else_makes_a_bin(change):
    assert scene_bin(scene_of(**{**USUAL, **change})) == scene_bin(scene_of(**USUAL))


def test_obstacles_between_the_highest_and_the_lowest_do_not_matter():
    bins = {scene_bin(scene_of(1, 0.5, (4, middle, 0))) for middle in range(5)}
    assert len(bins) == 1


def test_the_walls_do_not_count():
    """They are higher than any obstacle; a wall has no row."""
    scene = scene_of(**USUAL)
    taller = tuple((x, 2 * y, width, 2 * height) for x, y, width, height in WALLS)
    assert scene_bin(replace(scene, obstacles=taller + scene.obstacles[2:])) == scene_bin(scene)


@pytest.mark.parametrize("goal_row", [0, 4])
def test_distances_fall_into_three_bins(goal_row):
    """Thirds of the width of the scene, 14 m."""
    shares = [0.03, 0.2, 0.333, 0.334, 0.5, 0.666, 0.667, 0.8, 0.999]
    bins = [scene_bin(scene_of(goal_row, share, (0, 2))) for share in shares]
    assert [a == b for a, b in pairwise(bins)] == [True, True, False] * 2 + [True, True]
    assert len(set(bins)) == 3


def test_the_whole_width_is_more_than_two_thirds():
    assert scene_bin(scene_of(1, 1.0, (0, 2))) == scene_bin(scene_of(1, 0.9, (0, 2)))


def test_wherever_they_stand_scenes_with_the_same_properties_share_a_bin():
    """Rounding in metres makes no difference."""
    for row in range(9):
        bins = {
            scene_bin(scene_of(4, 0.85, (row,), left=x, marble_first=first))
            for x in np.linspace(-7, -4.91, 40).tolist()
            for first in (True, False)
        }
        assert len(bins) == 1


# Bins of all scenes

rows = st.lists(st.integers(0, 8), min_size=1, max_size=5)
shares = st.one_of(st.floats(0.03, 0.333), st.floats(0.334, 0.666), st.floats(0.667, 0.999))


@st.composite
def scenes(draw):
    """A scene with any properties."""
    distance = draw(shares)
    left = draw(st.floats(-7, 7 - 14 * distance))
    return scene_of(
        draw(st.integers(0, 4)), distance, draw(rows), left=left,
        marble_first=draw(st.booleans()), shift=draw(st.floats(-3, 1)), wide=draw(st.booleans()),
        level=draw(st.integers(0, 8)), preset=draw(st.sampled_from(list(HARDEST))),
    )  # fmt: skip


@st.composite
def neighbours(draw):
    """Two scenes that differ in little, often in nothing that counts."""
    first, second = draw(scenes()), draw(scenes())
    parts = [part for part in ("obstacles", "targets", "marble") if draw(st.integers(0, 3)) == 0]
    mixed = replace(first, level=second.level, **{p: getattr(second, p) for p in parts})
    thirds = abs(mixed.marble[0] - mixed.targets[0][0]) / 14 * 3
    assume(abs(thirds - round(thirds)) > 1e-6 or thirds < 0.5)  # no bin is specified between bins
    return first, mixed


@given(neighbours())
def test_two_scenes_share_a_bin_where_their_properties_agree(pair):
    first, second = pair
    event(f"same properties: {properties(first) == properties(second)}")
    assert (scene_bin(first) == scene_bin(second)) == (properties(first) == properties(second))


@given(scenes(), scenes())
def test_two_scenes_at_random_share_a_bin_where_their_properties_agree(first, second):
    assert (scene_bin(first) == scene_bin(second)) == (properties(first) == properties(second))


def test_every_combination_has_a_bin_of_its_own():
    """As many obstacles and rows as any level has."""
    made = [
        scene_of(goal_row, distance, (high, *[low] * (count - 1)))
        for goal_row in range(5)
        for distance in (0.2, 0.5, 0.9)
        for count in range(1, 6)
        for high in range(9)
        for low in ([high] if count == 1 else range(high + 1))
    ]
    assert len({properties(scene) for scene in made}) == len(made)
    assert len({scene_bin(scene) for scene in made}) == len(made)


def test_bins_of_drawn_scenes_and_their_properties_belong_together_one_to_one():
    found = {
        (scene_bin(scene), properties(scene))
        for preset, level in ALL
        for scene in drawn(preset, level, 150)
    }
    assert len(found) > 60
    assert len(found) == len({number for number, _ in found}) == len({what for _, what in found})


@given(st.sampled_from(ALL), st.sampled_from(ALL), st.integers(0, 2**32 - 1))
def test_bins_of_any_two_drawn_scenes(one, other, seed):
    rng = np.random.RandomState(seed)
    first, second = (generate("marble-run", level, preset, rng) for preset, level in (one, other))
    assert (scene_bin(first) == scene_bin(second)) == (properties(first) == properties(second))


@pytest.mark.parametrize("preset", HARDEST)
def test_a_curriculum_has_room_for_all_bins_and_can_hold_them(preset):
    """Whole numbers from 0 that fit 64 bits, and fewer than 512 of them in all levels together."""
    combinations = set()
    for goal_row, (nearest, farthest), count in [LEVELS[n] for n in range(HARDEST[preset] + 1)]:
        top = goal_row + (2 if preset == "paper" else 4)  # the marble's row
        combinations |= {
            (goal_row, share * 3 // 100, count, high, low)
            for share in range(nearest, farthest)
            for high in range(top + 1)
            for low in ([high] if count == 1 else range(high + 1))
        }
    seen = [scene for p, level in ALL if p == preset for scene in drawn(preset, level, 50)]
    assert {properties(scene) for scene in seen} <= combinations
    assert len(combinations) < (100 if preset == "paper" else 512)
    for scene in seen:
        assert type(scene_bin(scene)) is int
        assert 0 <= scene_bin(scene) < 2**63


# Levels


@pytest.mark.parametrize(("preset", "level"), ALL)
def test_kind_tells_the_level_that_was_drawn_and_the_bin(preset, level):
    sim = Construction("marble-run", difficulty=level, preset=preset)
    levels = set()
    for seed in range(60):
        state = sim.reset(seed)
        drawn_level, number = sim.kind(state)
        assert drawn_level == level_of(state.scene)
        assert number == scene_bin(state.scene)
        levels.add(drawn_level)
        exact = sim.reset(seed, difficulty=level, curriculum_sample=False)
        assert sim.kind(exact) == (level, scene_bin(exact.scene))
        assert level_of(exact.scene) == level
    assert level in levels
    assert max(levels) == level
    assert len(levels) > 1 or level == 0


def level_of(scene):
    """The level whose row of the table (7.4) a scene agrees with."""
    distance = abs(scene.marble[0] - scene.targets[0][0]) / 0.14
    goal_row, _, count, _, _ = properties(scene)
    [level] = [
        level
        for level, (row, (nearest, farthest), obstacles) in LEVELS.items()
        if (row, obstacles) == (goal_row, count) and nearest - 1e-6 <= distance <= farthest + 1e-6
    ]
    return level


@pytest.mark.parametrize(("task", "level"), BLOCK_LEVELS)
def test_without_a_marble_the_bin_is_the_level(task, level):
    sim = Construction(task)
    for seed in range(3):
        state = sim.reset(seed, difficulty=level, curriculum_sample=False)
        assert sim.kind(state) == (level, level)
    sampled = [sim.reset(seed, difficulty=level) for seed in range(40)]
    assert {sim.kind(state) for state in sampled} <= {(n, n) for n in range(level + 1)}
    assert all(sim.kind(state)[0] == state.scene.level for state in sampled)
    assert len({sim.kind(state) for state in sampled}) > (level > 0)


@pytest.mark.parametrize(("task", "level"), NAMED)
def test_levels_with_names_are_outside(task, level):
    sim = Construction(task, difficulty=level, curriculum_sample=False)
    assert sim.kind(sim.reset(0)) == (-1, -1)


def test_an_episode_keeps_its_kind():
    sim = Construction("marble-run", difficulty=6, curriculum_sample=False)
    state = sim.reset(0)
    after, *_ = sim.drop(state, Placement(0, 0.0, 0.3, 0))
    assert after.steps == 1
    assert sim.kind(after) == sim.kind(state)
    assert sim.kind(State.from_bytes(after.to_bytes())) == sim.kind(state)


# Solved or not


@pytest.mark.parametrize("cost", [0.0, 0.04])
def test_a_marble_that_arrives_solves_the_task(cost):
    """Glue costs nothing or 0.04 (7.5); the last step pays for it."""
    sim = Construction("marble-run", difficulty=0, curriculum_sample=False, sticky_penalty=cost)
    endings = set()
    for seed in range(4):
        state = sim.reset(seed)
        for placement in build(sim, state) or []:
            state, reward, _, _ = sim.drop(state, placement)
            assert sim.solved(state) == (reward > 0.5)
            endings.add(state.ending)
    assert "complete" in endings


@pytest.mark.parametrize("cost", [0.0, 0.04])
def test_an_episode_that_ends_otherwise_does_not_solve_the_task(cost):
    sim = Construction("marble-run", sticky_penalty=cost)
    state = sim.reset(0)
    rng = np.random.default_rng(0)
    endings = set()
    for _ in range(150):
        action = rng.choice(np.flatnonzero(sim.action_mask(state)))
        after, reward, terminated, _ = sim.step(state, int(action))
        assert sim.solved(after) == (reward > 0.5)
        endings.add(after.ending)
        state = sim.reset(int(rng.integers(1000))) if terminated else after
    assert {"spawn_collision", "obstacle_hit"} <= endings


def test_glue_that_costs_a_lot_does_not_hide_that_the_marble_arrived():
    sim = Construction("marble-run", difficulty=0, curriculum_sample=False, sticky_penalty=0.6)
    state = sim.reset(0)
    *_, last = build(sim, state) or []
    state, *_ = sim.drop(state, last)
    assert sim.roll(state).reached
    assert sim.solved(state)
