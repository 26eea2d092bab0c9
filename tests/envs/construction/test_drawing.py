"""Pictures of hand-built states, against colours and places worked out by hand from
docs/construction/index.md#pictures and #geometry.

The view is x from -8 to 8 and y from -3 to 13, so at 480 pixels a metre is 30 pixels, and the
point (x, y) lies in column (x + 8)·30, row (13 - y)·30.
"""

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from save_rl.envs.construction.drawing import draw, image_observation
from save_rl.envs.construction.scene import Scene
from save_rl.envs.construction.state import BOND_FIELDS, State

WHITE, BLACK, RED = (255, 255, 255), (0, 0, 0), (255, 0, 0)
BLUE, LIGHT_BLUE, GREEN = (0, 0, 255), (0, 204, 255), (0, 255, 0)
GREY = (127.5, 127.5, 127.5)
WALLS = (7.84, 4.667, 0.28, 9.333), (-7.84, 4.667, 0.28, 9.333)
SMALL, MEDIUM, LARGE = 0, 3, 6  # slots of the block tasks
PLANK, MIRRORED_RAMP, RAMP = 4, 5, 6  # slots of Marble Run

SCENES = {
    "silhouette": Scene(
        "silhouette", "paper", 3, 4, ((0.38, 1.785, 2.1, 0.35),),
        ((-0.16, 0.364, 2.1, 0.7), (-1.14, 1.078, 2.1, 0.7), (2.29, 0.364, 2.1, 0.7)),
    ),
    "connecting": Scene(
        "connecting", "paper", 4, 7, ((-3.99, 0.35, 1.54, 0.35), (4.06, 0.35, 2.17, 0.35)),
        ((-6.23, 1.05, 0.35, 0.35), (0.84, 1.05, 0.35, 0.35), (2.5, 1.05, 0.35, 0.35)),
    ),
    "covering": Scene("covering", "paper", 0, 28, ((-1.75, 0.35, 2.17, 0.35),)),
    "covering-hard": Scene("covering-hard", "paper", 0, 14, ((0.28, 0.35, 0.7, 0.35),)),
    "marble-run": Scene(
        "marble-run", "paper", 4, 20, (*WALLS, (1.6, 0.28, 0.56, 0.28)),
        ((-5.69, 0.28, 0.28, 0.28),), (6.0, 2.52, 0.56),
    ),
}  # fmt: skip


def bond(**fields):
    """A row of the bond table; what is not named is 0."""
    return [fields.get(name, 0.0) for name in BOND_FIELDS]


def build(task, *blocks, bonds=()):
    """A state with blocks (slot, sticky, x, y, angle)."""
    tables = (np.array(table, np.float32).tobytes() for table in (blocks, bonds))
    return State(SCENES[task], blocks=next(tables), bonds=next(tables))


STATES = [
    build("silhouette", (MEDIUM, 0, -0.16, 0.365, 0), (MEDIUM, 1, -1.14, 1.08, 0)),
    build("connecting", (SMALL, 1, -6.2, 0.365, 0), (LARGE, 0, -5.5, 1.08, 0)),
    build("covering", (LARGE, 1, -1.75, 4.0, 0.3), bonds=[bond(first=-1, contact_x=2.0)]),
    build("covering-hard", (SMALL, 0, 2.0, 0.365, 0), (LARGE, 0, 2.0, 1.08, 0)),
    build("marble-run", (RAMP, 0, 4.0, 0.295, 0), (PLANK, 1, 0.0, 3.0, -0.2)),
]


def at(picture, x, y):
    """The colour at a point of the world."""
    metre = len(picture) / 16
    return picture[int((13 - y) * metre), int((x + 8) * metre)]


def same(colour, expected):
    """Equal but for rounding."""
    return np.abs(np.subtract(colour, expected, dtype=float)).max() <= 1.5


def holds(picture, colour):
    """`[size, size]`: the pixels that have a colour."""
    return (np.abs(picture - np.array(colour, float)) <= 1.5).all(-1)


@pytest.mark.parametrize("size", [128, 200, 480])
@pytest.mark.parametrize("state", STATES, ids=SCENES)
def test_a_picture_is_square_and_of_bytes(state, size):
    picture = draw(state, size)
    assert picture.shape == (size, size, 3)
    assert picture.dtype == np.uint8


@pytest.mark.parametrize("task", SCENES)
def test_the_sky_is_white_and_the_floor_black_from_side_to_side(task):
    picture = draw(build(task))
    thickness = 0.28 if task == "marble-run" else 0.35
    assert (picture[30] == WHITE).all()  # 1 m below the top
    assert (picture[390 : 390 + int(thickness * 30)] == BLACK).all()  # y = 0 is row 390
    assert same(at(picture, 7.5, -thickness - 0.05), WHITE)


def test_the_line_around_a_block_spares_the_floor():
    picture = draw(build("covering", (LARGE, 1, 4.0, 0.365, 0)))
    assert (picture[390:400] == BLACK).all()


@pytest.mark.parametrize("state", STATES, ids=SCENES)
def test_obstacles_are_red(state):
    picture = draw(state)
    for x, y, width, height in state.scene.obstacles:
        for dx, dy in ((0, 0), (0.45, 0.4), (-0.45, 0.4), (0.45, -0.4), (-0.45, -0.4)):
            inside = x + dx * width, min(y + dy * height, 12.9)
            assert same(at(picture, *inside), RED)
    rest = picture[:390]  # above the floor
    area = sum(width * height for _, _, width, height in state.scene.obstacles)
    assert holds(rest, RED).sum() == pytest.approx(area * 900, rel=0.2)


def test_blocks_are_blue_and_sticky_ones_light_blue():
    picture = draw(build("covering", (LARGE, 0, 4.0, 0.365, 0), (SMALL, 1, 4.0, 1.08, 0)))
    for x in (2.4, 4.0, 5.6):  # 3.5 m wide
        assert same(at(picture, x, 0.365), BLUE)
    assert same(at(picture, 2.1, 0.365), WHITE)
    assert same(at(picture, 4.2, 1.2), LIGHT_BLUE)
    assert same(at(picture, 4.5, 1.2), WHITE)


def test_a_block_covers_just_the_pixels_it_lies_in():
    # 10 pixels per metre: x from 0 to 0.7 are columns 80 to 86, y from 1 to 1.7 rows 113 to 119.
    picture = draw(build("covering", (SMALL, 0, 0.35, 1.35, 0)), 160)
    rows, columns = np.nonzero(holds(picture[:120], BLUE))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (113, 119, 80, 86)
    assert len(rows) == 49
    # Half a pixel to the right, the columns at both ends are covered by half.
    row = draw(build("covering", (SMALL, 0, 0.40, 1.35, 0)), 160)[116]
    half = (127.5, 127.5, 255)
    expected = [WHITE, half, *[BLUE] * 6, half, WHITE]
    assert all(same(*pair) for pair in zip(row[79:89], expected, strict=True))


DISPLAY = (-6.65, -5.60, -4.55, -2.80, -0.35, 2.10, 5.25)  # index.md#geometry
MARBLE_DISPLAY = (-6.720, -5.227, -3.733, -1.960, 0.933, 3.827, 6.160)


@pytest.mark.parametrize("task", ["silhouette", "connecting", "covering", "covering-hard"])
def test_the_row_of_blocks_lies_below_the_floor(task):
    picture = draw(build(task))
    assert all(same(at(picture, x, -2.1), BLUE) for x in DISPLAY)
    starts = np.diff(holds(picture[462], BLUE).astype(int)) == 1  # 2.4 m below the floor
    assert starts.sum() == 7
    assert same(at(picture, 0.0, -2.5), WHITE)  # 0.7 m high


def test_the_row_of_marble_run_shows_boxes_and_both_ramps():
    picture = draw(build("marble-run"))
    for x in MARBLE_DISPLAY[:5]:
        assert same(at(picture, x, -1.68), BLUE)
    assert same(at(picture, MARBLE_DISPLAY[2], -1.2), BLUE)  # 1.12 m high
    assert same(at(picture, MARBLE_DISPLAY[4] + 1.3, -1.68), BLUE)  # 2.8 m wide
    left, right = MARBLE_DISPLAY[5:]
    assert same(at(picture, left + 0.6, -1.6), BLUE)
    assert same(at(picture, left - 0.6, -1.6), WHITE)
    assert same(at(picture, right - 0.6, -1.6), BLUE)
    assert same(at(picture, right + 0.6, -1.6), WHITE)


def test_in_covering_hard_a_block_that_was_taken_is_missing():
    placed = (1, 0, 3.0, 0.365, 0), (LARGE, 0, 3.0, 1.08, 0)
    picture = draw(build("covering-hard", *placed))
    colours = [at(picture, x, -2.1) for x in DISPLAY]
    expected = [BLUE, WHITE, BLUE, BLUE, BLUE, BLUE, WHITE]
    assert all(same(*pair) for pair in zip(colours, expected, strict=True))
    picture = draw(build("covering", *placed))
    assert all(same(at(picture, x, -2.1), BLUE) for x in DISPLAY)


def test_targets_are_translucent():
    # 0.5·(0, 0, 1) + 0.5·(1, 1, 1)
    assert same(at(draw(build("connecting")), 0.84, 1.05), (127.5, 127.5, 255))
    # 0.3·(0, 1, 0) + 0.7·(1, 1, 1)
    assert same(at(draw(build("silhouette")), 2.29, 0.364), (178.5, 255, 178.5))


def test_blocks_hide_targets_but_for_a_line():
    picture = draw(build("connecting", (SMALL, 0, 0.84, 1.05, 0)))
    assert same(at(picture, 0.84, 1.05), BLUE)
    # The line lies on the target's edge: 0.175 m = 5.25 pixels above its centre.
    column = picture[:, int((0.84 + 8) * 30)]
    line = int((13 - 1.05) * 30 - 5.25)
    assert column[line - 1 : line + 2, 0].max() > 100
    assert same(column[line + 3], BLUE)
    assert same(column[line - 3], BLUE)


def test_the_goal_is_a_disc():
    picture = draw(build("marble-run"), 960)
    x, y, step = -5.69, 0.28, 0.1  # its radius is 0.14
    goal = (127.5, 127.5, 255)
    for dx, dy in ((0, 0), (step, 0), (-step, 0), (0, step), (0, -step)):
        assert same(at(picture, x + dx, y + dy), goal)
    for dx, dy in ((step, step), (step, -step), (-step, step), (-step, -step)):
        assert same(at(picture, x + dx, y + dy), WHITE)


def test_the_marble_at_its_start_is_translucent_over_anything():
    # Half of (0, 1, 0), half of what lies behind.
    assert same(at(draw(build("marble-run")), 6.0, 2.52), (127.5, 255, 127.5))
    covered = build("marble-run", (2, 0, 6.0, 2.52, 0))
    assert same(at(draw(covered), 6.0, 2.52), (0, 127.5, 127.5))
    covered = build("marble-run", (2, 1, 6.0, 2.52, 0))
    assert same(at(draw(covered), 6.0, 2.52), (0, 229.5, 127.5))
    scene = Scene("marble-run", "paper", 0, 20, WALLS, ((0, 3, 0.28, 0.28),), (0.1, 3, 0.56))
    # Over the goal, which is (0.5, 0.5, 1): (0.25, 0.75, 0.5).
    assert same(at(draw(State(scene)), 0.0, 3.0), (63.75, 191.25, 127.5))


def test_the_marble_is_drawn_solid_where_its_path_ends():
    path = np.array([(6.0, 2.52), (2.0, 2.52), (-2.0, 4.52)])
    picture = draw(build("marble-run"), path=path)
    assert same(at(picture, -2.0, 4.52), GREEN)
    assert same(at(picture, -2.2, 4.52), GREEN)
    assert same(at(picture, -2.35, 4.52), WHITE)  # a radius of 0.28
    assert same(at(picture, 6.15, 2.52), (127.5, 255, 127.5))  # the start, beside the line
    for x, y in ((4.0, 2.52), (0.0, 3.52)):  # halfway along both pieces
        row, column = int((13 - y) * 30), int((x + 8) * 30)
        near = picture[row - 1 : row + 2, column - 1 : column + 2].astype(int)
        assert (near[..., 1] - near[..., 0] > 40).any()  # green
        assert same(at(picture, x, y + 0.15), WHITE)  # and thin


def test_a_path_of_one_point_is_a_marble_and_one_of_none_is_nothing():
    state = build("marble-run")
    assert same(at(draw(state, path=np.array([(1.0, 5.0)])), 1.0, 5.0), GREEN)
    np.testing.assert_array_equal(draw(state, path=np.zeros((0, 2))), draw(state))


def test_ramps_and_their_mirror_images():
    # 1.68 m by 0.56 m: 0.42 m from the centre towards the high end, the slope is 0.14 m above the
    # centre; as far towards the low end, it is 0.14 m below.
    for slot, high in ((RAMP, -1), (MIRRORED_RAMP, 1)):
        picture = draw(build("marble-run", (slot, 0, 0, 6, 0)))
        assert same(at(picture, 0.42 * high, 6.04), BLUE)
        assert same(at(picture, 0.42 * high, 6.24), WHITE)
        assert same(at(picture, -0.42 * high, 5.79), BLUE)
        assert same(at(picture, -0.42 * high, 5.96), WHITE)


def test_angles_turn_counter_clockwise():
    # At 45° the long axis points to (0.6, 0.6), which lies 0.85 m from the centre; half of 2.1 m
    # reaches so far and half of 0.7 m does not.
    picture = draw(build("covering", (MEDIUM, 0, 0, 6, np.pi / 4)))
    assert same(at(picture, 0.6, 6.6), BLUE)
    assert same(at(picture, -0.6, 5.4), BLUE)
    assert same(at(picture, 0.6, 5.4), WHITE)
    assert same(at(picture, -0.6, 6.6), WHITE)


@given(
    slot=st.sampled_from([2, PLANK, MIRRORED_RAMP, RAMP]),
    x=st.floats(-5, 5),
    y=st.floats(4, 9),
    angle=st.floats(-4, 4),
)
def test_pixels_are_covered_where_a_turned_block_is(slot, x, y, angle):
    width, height = {2: (0.56, 1.12), PLANK: (2.8, 0.168)}.get(slot, (1.68, 0.56))
    picture = draw(build("marble-run", (slot, 0, x, y, angle)), 128)[:90]  # above y = 1.75
    rows, columns = np.mgrid[:90, :128] + 0.5
    right, up = columns / 8 - 8 - x, 13 - rows / 8 - y
    along = right * np.cos(angle) + up * np.sin(angle)
    across = up * np.cos(angle) - right * np.sin(angle)
    inside = np.minimum(width / 2 - abs(along), height / 2 - abs(across))  # metres to the edge
    if slot in (MIRRORED_RAMP, RAMP):
        towards_low = along if slot == RAMP else -along
        slope = -across - towards_low * height / width  # 0 on the line from corner to corner
        inside = np.minimum(inside, slope * width / np.hypot(width, height))
    pixel = 1 / 8
    blue = holds(picture, BLUE)
    assert blue[inside > 0.71 * pixel].all()
    beside = (inside < -0.75 * pixel) & ~holds(draw(build("marble-run"), 128)[:90], RED)
    beside[:, :3] = beside[:, -3:] = False  # the walls
    beside &= np.hypot(columns / 8 - 14, 13 - rows / 8 - 2.52) > 0.5  # the marble
    assert (picture[beside] == 255).all()


def test_touching_blocks_are_parted_by_a_line_in_large_pictures_only():
    state = build("covering", (SMALL, 0, -0.35, 5, 0), (SMALL, 0, 0.35, 5, 0))
    # The blocks meet at x = 0, the border of columns 239 and 240. Each has a white line of one
    # pixel on its edge, so at least half of both columns is white.
    row = draw(state, 480)[240]
    assert row[239:241, 0].min() >= 127
    assert all(same(row[column], BLUE) for column in (237, 238, 241, 242))
    row = draw(state, 128)[64]
    assert all(same(row[column], BLUE) for column in range(60, 68))


def test_glue_is_a_grey_disc_where_the_older_body_carries_it():
    upright = (SMALL, 1, 2.0, 5.0, np.pi / 2)  # its x axis points up, its y axis to the left
    bonds = [
        bond(first=-1, second=0, anchor_x=3.0, contact_x=-4.0, contact_y=0.0075),
        bond(first=0, second=1, anchor_x=3.0, contact_x=0.3, contact_y=0.1),
    ]
    picture = draw(build("covering", upright, (SMALL, 0, 2.0, 5.715, 0), bonds=bonds))
    for x, y in ((-4.0, 0.0075), (1.9, 5.3)):
        for dx, dy in ((0, 0), (0.05, 0), (0, 0.05)):
            assert same(at(picture, x + dx, y + dy), GREY)
    assert same(at(picture, -4.0, 0.15), WHITE)
    assert same(at(picture, 1.9, 5.15), LIGHT_BLUE)
    area = 2 * np.pi * 0.1**2 * 900  # pixels, of two discs with a radius of 0.1 m
    assert 0.5 * area < holds(picture[:400], GREY).sum() < area


def test_no_bond_no_grey():
    picture = draw(build("covering", (SMALL, 1, 2.0, 0.365, 0)))
    assert not holds(picture[:400], GREY).any()  # the floor ends half-way through row 400


def test_cursors_mark_the_selector_and_the_place():
    state = build("covering")
    plain, marked = draw(state), draw(state, cursor=(5.25, -3.0, 6.0))
    for x, y in ((5.25, -1.0), (-3.0, 6.0)):
        assert not same(at(marked, x, y), WHITE)
        assert same(at(plain, x, y), WHITE)
    rows, columns = np.nonzero((plain != marked).any(-1))
    x, y = (columns + 0.5) / 30 - 8, 13 - (rows + 0.5) / 30
    near = np.minimum(np.hypot(x - 5.25, y + 1), np.hypot(x + 3, y - 6))
    assert near.max() < 0.5


@pytest.mark.parametrize("state", STATES, ids=SCENES)
@pytest.mark.parametrize("cursor", [None, (1.0, 2.0, 3.0)])
def test_what_an_agent_sees_averages_two_by_two_pixels(state, cursor):
    seen = image_observation(state, cursor)
    assert seen.shape == (64, 64, 3)
    assert seen.dtype == np.uint8
    large = draw(state, 128, cursor=cursor).astype(float)
    for row, column in np.ndindex(64, 64):
        patch = large[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].reshape(4, 3)
        assert np.abs(seen[row, column] - patch.mean(0)).max() <= 0.5


def test_what_an_agent_sees_by_hand():
    # 4 pixels per metre. A block of 0.7 m over x from 0.025 to 0.725: column 32 ends at 0.25, so
    # 0.9 of it is covered, column 34 begins at 0.5 and is covered by 0.9. Row 30 is y 5.25 to 5.5.
    seen = image_observation(build("covering", (SMALL, 0, 0.375, 5.375, 0)))
    expected = [WHITE, (25.5, 25.5, 255), BLUE, (25.5, 25.5, 255), WHITE]
    for colour, hand in zip(seen[30, 31:36], expected, strict=True):
        assert np.abs(colour - np.array(hand)).max() <= 2.5


@pytest.mark.parametrize("state", STATES, ids=SCENES)
def test_the_state_alone_decides_the_picture(state):
    first = draw(state)
    other = draw(STATES[0], 200, cursor=(0, 0, 0))
    assert other.shape == (200, 200, 3)
    assert first.tobytes() == draw(State.from_bytes(state.to_bytes())).tobytes()
    moved = state.block_array.copy()
    moved[0, 2] += 0.05
    assert first.tobytes() != draw(state._replace(blocks=moved.tobytes())).tobytes()


@pytest.mark.parametrize("on", [True, False])
def test_settings_of_plots_leave_pictures_alone(on):
    time = np.linspace(0, 30, 1000)
    path = np.stack([6 - time / 3, 4 + np.sin(7 * time)], 1)
    expected = draw(STATES[4], path=path)
    with matplotlib.rc_context({"path.snap": on, "path.simplify": on, "lines.linewidth": 9}):
        np.testing.assert_array_equal(draw(STATES[4], path=path), expected)


def test_a_block_without_a_position_is_left_out():
    block = (SMALL, 0, 1.0, 0.365, 0)
    lost = [(MEDIUM, 0, np.nan, 1, 0), (MEDIUM, 0, 0, 5, np.nan), (MEDIUM, 0, 1e6, 1, 0)]
    np.testing.assert_array_equal(
        draw(build("covering", *lost, block)), draw(build("covering", block))
    )
