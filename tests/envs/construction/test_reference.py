"""The reference of the Construction rules against numbers worked out by hand from
docs/construction/index.md, and against the published episodes of
docs/construction/index.md#checked-against-published-numbers.
"""

import math
import random
from array import array

import pytest

from save_rl.envs.construction.scene import BALL, BOX, RAMP, Scene
from save_rl.envs.construction.state import State
from tests.envs.construction import reference
from tests.envs.construction.reference import Block

MARBLE = (-3.0, 1.4, 0.56)  # row 2
GOAL = (3.0, 0.28, 0.28, 0.28)  # row 0
ROW_0 = (-1.75, 0.35, 2.17, 0.35)  # the obstacle of the published episodes


def state_of(task, blocks=(), obstacles=(), targets=(), marble=None):
    """A state whose blocks are rows (slot, sticky, x, y, angle)."""
    scene = Scene(task, "paper", 0, 20, tuple(obstacles), tuple(targets), marble)
    table = array("f", [value for row in blocks for value in row])
    return State(scene, table.tobytes(), steps=len(blocks))


def small(x, y, angle=0.0):
    return Block(0, False, x, y, angle, 0.7, 0.7, BOX)


def medium(x, y, angle=0.0):
    return Block(3, False, x, y, angle, 2.1, 0.7, BOX)


def box(x, y, width, height, angle=0.0):
    return reference.corners(width, height, BOX, x, y, angle)


# Geometry


def test_blocks_take_their_size_from_the_supply():
    state = state_of("covering", [(6, 1, 0.5, 0.25, 0), (0, 0, -1, 2, 0.5)])
    large, little = reference.blocks_of(state)
    assert large[:5] == (6, True, 0.5, 0.25, 0.0)
    assert large[5:] == pytest.approx((3.5, 0.7, BOX))
    assert little[:5] == (0, False, -1.0, 2.0, 0.5)
    assert little[5:] == pytest.approx((0.7, 0.7, BOX))
    (ramp,) = reference.blocks_of(state_of("marble_run", [(5, 0, 0, 0, 0)], marble=MARBLE))
    assert ramp[5:] == pytest.approx((-1.68, 0.56, RAMP))


def test_a_box_turned_by_a_right_angle_stands():
    # 2 x 1 around (3, 4): now 1 wide and 2 high; the lower left corner comes to lie lower right.
    expected = [(3.5, 3.0), (3.5, 5.0), (2.5, 5.0), (2.5, 3.0)]
    for corner, wanted in zip(box(3, 4, 2, 1, math.pi / 2), expected, strict=True):
        assert corner == pytest.approx(wanted)


def test_ramps_have_their_right_angle_at_the_lower_left_or_mirrored():
    assert set(reference.corners(2, 1, RAMP, 0, 0)) == {(-1, -0.5), (-1, 0.5), (1, -0.5)}
    assert set(reference.corners(-2, 1, RAMP, 0, 0)) == {(1, -0.5), (1, 0.5), (-1, -0.5)}
    for width in (2, -2):
        assert reference.signed_area(reference.corners(width, 1, RAMP, 5, 6, 0.3)) == (
            pytest.approx(1.0)
        )


def test_a_ball_has_no_corners():
    with pytest.raises(ValueError, match="no corners"):
        reference.corners(1, 1, BALL, 0, 0)


def test_overlap_areas():
    square = box(0, 0, 1, 1)
    assert reference.overlap_area(square, box(0.5, 0.5, 1, 1)) == pytest.approx(0.25)
    assert reference.overlap_area(square, box(2, 0, 1, 1)) == 0
    assert reference.overlap_area(square, box(1, 0, 1, 1)) == 0  # only touching
    assert reference.overlap_area(square, box(0, 0, 0.2, 3)) == pytest.approx(0.2)  # a cross
    # A square and itself turned by 45 degrees share a regular octagon: 2 (√2 - 1).
    assert reference.overlap_area(square, box(0, 0, 1, 1, math.pi / 4)) == pytest.approx(
        2 * (math.sqrt(2) - 1)
    )


def test_the_empty_half_of_a_ramp_is_empty():
    little = box(0.8, 0.3, 0.2, 0.2)  # x 0.7-0.9, y 0.2-0.4
    # The slope of the ramp is y = -x/2: far below the box.
    assert reference.overlap_area(little, reference.corners(2, 1, RAMP, 0, 0)) == 0
    # Mirrored it is y = x/2: 0.35 at x = 0.7, and 0.4, the top of the box, at x = 0.8. Above it
    # stays a triangle of 0.1 · 0.05 / 2 = 0.0025 out of 0.04.
    ramp = reference.corners(-2, 1, RAMP, 0, 0)
    assert reference.overlap_area(little, ramp) == pytest.approx(0.0375)
    assert reference.overlap_area(ramp, little) == pytest.approx(0.0375)


def test_disc_areas():
    disc = 2.0, 3.0, 1.0

    def area(polygon):
        return reference.disc_overlap_area(disc, polygon)

    assert area(box(2, 3, 9, 9)) == pytest.approx(math.pi)
    assert area(box(2, 3, 1, 1)) == pytest.approx(1.0)  # inside the disc
    assert area(box(2, -1, 9, 8)) == pytest.approx(math.pi / 2)  # its top is y = 3
    assert area(box(4, 5, 4, 4)) == pytest.approx(math.pi / 4)  # its corner is the centre
    assert area(box(9, 3, 1, 1)) == pytest.approx(0)
    assert area(box(4, 5, 2.4, 2.4)) == pytest.approx(0)  # boxes overlap, corner outside the disc
    # Below y = 2.5 lies a segment of height 1/2: arccos(1/2) - 1/2 · √3/2.
    assert area(box(2, 0, 9, 5)) == pytest.approx(math.pi / 3 - math.sqrt(3) / 4)
    # A strip 1 high across the middle: the disc without two such segments.
    assert area(box(2, 3, 9, 1)) == pytest.approx(math.pi / 3 + math.sqrt(3) / 2)
    # Legs of length 1 from the centre: the triangle lies in the disc, two corners on the circle.
    assert area([(2.0, 3.0), (3.0, 3.0), (2.0, 4.0)]) == pytest.approx(0.5)


def test_disc_areas_agree_with_counting_squares():
    generator = random.Random(0)
    partial = 0
    for case in range(30):
        kind, sign = (BOX, 1) if case % 3 else (RAMP, generator.choice([-1, 1]))
        polygon = reference.corners(
            sign * generator.uniform(0.2, 3),
            generator.uniform(0.2, 1.5),
            kind,
            *[generator.uniform(-1, 1) for _ in range(2)],
            generator.uniform(-4, 4),
        )
        disc = 0.1, -0.2, 0.7
        exact = reference.disc_overlap_area(disc, polygon)
        assert exact == pytest.approx(
            reference.disc_overlap_area_by_grid(disc, polygon, 125), abs=4e-3
        )
        partial += 0.01 < exact < min(0.49 * math.pi, reference.signed_area(polygon)) - 0.01
    assert partial > 10


# Scores


def test_a_target_counts_if_nine_tenths_are_covered():
    targets = [(0.0, 0.364, 2.1, 0.7)]
    assert reference.silhouette_score([], targets) == 0
    assert reference.silhouette_score([medium(0, 0.365)], targets) == 1
    # (2.1 - 0.2) / 2.1 · 0.699 / 0.7 = 0.9035; with 0.22 it is 0.8940.
    assert reference.silhouette_score([medium(-0.2, 0.365)], targets) == 1
    assert reference.silhouette_score([medium(0.22, 0.365)], targets) == 0
    # 2.0 / 2.1 · 0.66 / 0.7 = 0.898 although each side alone agrees by more than 0.9.
    assert reference.silhouette_score([medium(0.1, 0.404)], targets) == 0


def test_only_the_nearest_upright_block_is_asked():
    targets = [(0.0, 0.364, 2.1, 0.7)]
    right = medium(0.1, 0.364)  # 2.0 / 2.1 = 0.952
    assert reference.silhouette_score([right, small(0.05, 0.364)], targets) == 0
    assert reference.silhouette_score([right, small(0.15, 0.364)], targets) == 1
    # sin(0.06) = 0.05996 is too much tilt to be asked, sin(0.04) = 0.03999 is not.
    assert reference.silhouette_score([right, small(0.05, 0.364, 0.06)], targets) == 1
    assert reference.silhouette_score([right, small(0.05, 0.364, 0.04)], targets) == 0
    assert reference.silhouette_score([medium(0, 0.364, -0.06)], targets) == 0
    assert reference.silhouette_score([medium(0, 0.364, math.pi)], targets) == 1  # upside down


def test_silhouette_sizes_agree_within_a_millimetre():
    block = [medium(0, 0.364)]
    assert reference.silhouette_score(block, [(0.0, 0.364, 2.1009, 0.6991)]) == 1
    assert reference.silhouette_score(block, [(0.0, 0.364, 2.1011, 0.7)]) == 0
    assert reference.silhouette_score(block, [(0.0, 0.364, 2.1, 0.6989)]) == 0


def test_a_stack_at_its_resting_heights_fills_a_column_of_targets():
    # Targets at 0.364 + 0.714 k, blocks at 0.365 + 0.715 k: 6 mm off in row 5, 0.991 covered.
    targets = [(1.0, 0.364 + 0.714 * k, 0.7, 0.7) for k in range(6)]
    stack = [(0, 0, 1.0, 0.365 + 0.715 * k, 0.0) for k in range(6)]
    assert reference.progress(state_of("silhouette", stack, targets=targets)) == 6.0
    assert reference.progress(state_of("silhouette", stack[:4], targets=targets)) == 4.0


def test_a_target_is_connected_where_a_block_covers_its_centre():
    target = [(1.0, 1.05, 0.35, 0.35)]
    assert reference.connecting_score([], target) == 0
    assert reference.connecting_score([medium(0, 1.05)], target) == 1  # reaches x = 1.05
    assert reference.connecting_score([medium(-0.06, 1.05)], target) == 0  # x = 0.99
    assert reference.connecting_score([medium(0, 1.05, math.pi / 2)], target) == 0  # x = 0.35
    assert reference.connecting_score([medium(1, 2.05, math.pi / 2)], target) == 1  # y = 1
    two = [*target, (-1.0, 1.05, 0.35, 0.35)]
    assert reference.connecting_score([medium(0, 1.05)], two) == 2
    assert reference.connecting_score([medium(0.5, 1.05), medium(0.5, 1.1)], two) == 1


def test_the_area_test_forgives_a_thousandth_of_the_side():
    # A point d beyond the right side of w x h: the triangles sum to wh + hd, so d <= 0.001 w.
    block = medium(0, 0)
    assert reference.covers(block, (1.05 + 0.0020, 0))
    assert not reference.covers(block, (1.05 + 0.0022, 0))
    assert reference.covers(block, (0, -0.35 - 0.00069))
    assert not reference.covers(block, (0, -0.35 - 0.00071))
    # Beyond a corner both add up: 0.0015 / 2.1 + 0.0003 / 0.7 = 0.00114.
    assert not reference.covers(block, (1.05 + 0.0015, 0.35 + 0.0003))
    # Turned by 30 degrees the far end of the long axis is at 1.05 (cos, sin).
    turned = medium(0, 0, math.pi / 6)
    assert reference.covers(turned, (1.04 * math.sqrt(3) / 2, 1.04 / 2))
    assert not reference.covers(turned, (1.06 * math.sqrt(3) / 2, 1.06 / 2))


def test_covered_length_is_that_of_the_union():
    obstacle = [(0.0, 0.35, 2.0, 0.35)]  # x from -1 to 1
    assert reference.covering_score([], obstacle) == 0
    block = medium(0.5, 1.0)  # from -0.55 to 1.55
    assert reference.covering_score([block], obstacle) == pytest.approx(1.55)
    assert reference.covering_score([block, block], obstacle) == pytest.approx(1.55)
    # The second from -0.85 to -0.15, the third from -0.1 to 0.6, inside the first.
    blocks = [block, small(-0.5, 2.0), small(0.25, 3.0)]
    assert reference.covering_score(blocks, obstacle) == pytest.approx(1.85)
    # With a hole: -0.95 to -0.25 and 0.05 to 0.75.
    assert reference.covering_score([small(-0.6, 1), small(0.4, 1)], obstacle) == pytest.approx(1.4)
    assert reference.covering_score([medium(2.2, 1.0)], obstacle) == 0  # begins at 1.15


def test_blocks_cover_what_their_centre_is_not_below():
    obstacle = [(0.0, 0.35, 2.0, 0.35)]
    assert reference.covering_score([small(0, 0.35)], obstacle) == pytest.approx(0.7)
    assert reference.covering_score([small(0, 0.349)], obstacle) == 0
    # Between two obstacles a block covers the lower one alone; above both it counts twice.
    both = [*obstacle, (0.0, 1.75, 1.0, 0.35)]
    assert reference.covering_score([medium(0.5, 1.0)], both) == pytest.approx(1.55)
    assert reference.covering_score([medium(0.5, 2.3)], both) == pytest.approx(1.55 + 1.0)


def test_a_tilted_block_covers_its_shadow():
    wide = [(0.0, 0.35, 9.0, 0.35)]
    assert reference.covering_score([medium(0, 3, math.pi / 2)], wide) == pytest.approx(0.7)
    assert reference.covering_score([medium(0, 3, math.pi / 4)], wide) == pytest.approx(
        2.8 / math.sqrt(2)
    )
    for angle in (-3.0, -1.2, -0.1, 0.0, 0.3, 1.0, 2.0, 2.9):
        xs = [x for x, _ in reference.block_corners(medium(0, 3, angle))]
        shadow = 2.1 * abs(math.cos(angle)) + 0.7 * abs(math.sin(angle))
        assert reference.projected_width(medium(0, 3, angle)) == pytest.approx(shadow)
        assert max(xs) - min(xs) == pytest.approx(shadow)


@pytest.mark.parametrize("task", ["covering", "covering_hard", "covering-hard"])
def test_covering_progress_is_in_metres(task):
    # The published episode: small at -3.304583, medium above at -2.22125, so up to -1.17125; the
    # obstacle begins at -2.835. 2.835 - 1.17125 = 1.66375.
    blocks = [(0, 1, -3.304583, 0.365, 0), (3, 0, -2.22125, 1.08, 0)]
    state = state_of(task, blocks, [ROW_0, (3.0, 0.35, 1.0, 0.35)])
    assert reference.progress(state) == pytest.approx(1.66375, abs=1e-6)
    assert reference.best_progress(state.scene) == pytest.approx(3.17)


def test_other_tasks_count():
    targets = [(x, 1.05, 0.35, 0.35) for x in (-3.0, 0.0, 0.9)]
    connecting = state_of("connecting", [(3, 1, 0, 1.08, 0)], [ROW_0], targets)
    assert reference.progress(connecting) == 2.0
    assert reference.best_progress(connecting.scene) == 3.0
    silhouette = state_of("silhouette", targets=[(0.0, 0.364, 0.7, 0.7)] * 2)
    assert reference.progress(silhouette) == 0.0
    assert reference.best_progress(silhouette.scene) == 2.0
    marble = state_of("marble_run", targets=[GOAL], marble=MARBLE)
    assert reference.progress(marble) == 0.0
    assert reference.progress(marble._replace(ending="max_steps")) == 0.0
    assert reference.progress(marble._replace(ending="complete")) == 1.0
    assert reference.best_progress(marble.scene) == 1.0


def test_sticky_blocks_cost():
    blocks = [(0, 1, 0, 1, 0), (1, 0, 0, 2, 0), (2, 1, 0, 3, 0), (6, 1, 0, 4, 0)]
    assert reference.sticky_cost(state_of("covering", blocks), 2.0) == 6.0
    assert reference.sticky_cost(state_of("covering", blocks[1:2]), 2.0) == 0.0
    assert reference.sticky_cost(state_of("marble_run", blocks), 0.04) == pytest.approx(0.12)


# Collisions


def test_new_blocks_overlap_floor_obstacles_and_blocks_but_not_targets():
    target = (-4.0, 0.364, 2.1, 0.7)
    state = state_of("silhouette", [(3, 0, 4, 0.365, 0)], [(0.0, 0.357, 2.1, 0.35)], [target])
    others = reference.solids(state)
    assert len(others) == 3

    def overlaps(x, y):
        return reference.spawn_overlap(box(x, y, 0.7, 0.7), others)

    assert overlaps(-4, 0.349)  # the floor
    assert not overlaps(-4, 0.351)  # in the target
    assert not overlaps(-1.401, 0.39)  # the obstacle begins at -1.05
    assert overlaps(-1.399, 0.39)
    assert not overlaps(0, 0.883)  # the obstacle ends at 0.357 + 0.175 = 0.532
    assert overlaps(0, 0.881)
    assert not overlaps(4, 1.066)  # the block ends at 0.715
    assert overlaps(4, 1.064)


def test_a_tilted_block_leaves_room_beside_its_corner():
    # Turned by 45 degrees the small block is a diamond of half diagonal 0.7/√2 = 0.495. Above its
    # right half a square with its lower left corner at (0.25, 0.25) just clears it, as 0.5 > 0.495;
    # with the corner at (0.247, 0.247) the two overlap.
    state = state_of("covering", [(0, 0, 0, 2, math.pi / 4)])
    others = reference.solids(state)
    assert not reference.spawn_overlap(box(0.6, 2.6, 0.7, 0.7), others)
    assert reference.spawn_overlap(box(0.597, 2.597, 0.7, 0.7), others)


@pytest.mark.parametrize(("depth", "blocked"), [(-0.1, False), (0.0020, False), (0.0022, True)])
def test_the_marble_needs_its_place(depth, blocked):
    # A flat top reaching h into a disc of radius r cuts off about 4/3 · √(2r) · h^1.5:
    # with r = 0.28 that is 8.9e-5 for h = 0.0020, and 1.03e-4 for h = 0.0022.
    x, y, diameter = MARBLE
    blocks = [(0, 0, x, y - diameter / 2 + depth - 0.28, 0)]
    assert reference.marble_blocked(state_of("marble_run", blocks, marble=MARBLE)) is blocked


def test_the_floor_blocks_the_marble_and_obstacles_do_not():
    assert reference.marble_blocked(state_of("marble_run", marble=(0.0, 0.2, 0.56)))
    obstacle = (-3.0, 1.4, 1.0, 1.0)
    assert not reference.marble_blocked(state_of("marble_run", (), [obstacle], marble=MARBLE))


# Graph


def test_nodes_come_in_the_order_of_their_ids():
    wall = (7.84, 14 / 3, 0.28, 28 / 3)
    state = state_of(
        "marble_run", [(5, 1, 1, 0.5, 0.3), (4, 0, 2, 3, 0)], [wall], [GOAL], MARBLE
    )  # fmt: skip
    table = reference.nodes(state)
    assert [len(row) for row in table] == [19] * 13
    types = [reference.TYPES[row[14:].index(1.0)] for row in table]
    assert types == ["available"] * 7 + ["obstacle", "target", "marble"] + ["block"] * 3
    assert all(sum(row[14:]) == 1 for row in table)
    box_flags, ball_flags, ramp_flags = [1, 0, 0], [0, 1, 0], [0, 0, 1]
    shapes = [box_flags] * 5 + [ramp_flags] * 2 + [box_flags, ball_flags, ball_flags, box_flags]
    assert [row[11:14] for row in table] == [*shapes, ramp_flags, box_flags]
    # x, y, cos, sin, width, height, three velocities, free, sticky
    still = [0.0] * 3
    assert table[7][:11] == pytest.approx([*wall[:2], 1, 0, *wall[2:], *still, 0, 0])
    assert table[8][:11] == pytest.approx([3, 0.28, 1, 0, 0.28, 0.28, *still, 0, 0])
    assert table[9][:11] == pytest.approx([-3, 1.4, 1, 0, 0.56, 0.56, *still, 0, 0])
    assert table[10][:11] == pytest.approx([0, -0.14, 1, 0, 28, 0.28, *still, 0, 0])
    assert table[11][:11] == pytest.approx(
        [1, 0.5, math.cos(0.3), math.sin(0.3), -1.68, 0.56, *still, 1, 1]
    )
    assert table[12][:11] == pytest.approx([2, 3, 1, 0, 2.8, 0.168, *still, 1, 0])


def test_the_row_of_available_blocks():
    table = reference.nodes(state_of("covering"))
    assert [len(row) for row in table] == [18] * 8
    xs, widths = [-6.65, -5.6, -4.55, -2.8, -0.35, 2.1, 5.25], [0.7] * 3 + [2.1] * 3 + [3.5]
    for row, x, width in zip(table[:7], xs, widths, strict=True):
        expected = [x, -2.1, 1, 0, width, 0.7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0]
        assert row == pytest.approx(expected)
    floor = [0, -0.175, 1, 0, 28, 0.35, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0]
    assert table[7] == pytest.approx(floor)
    table = reference.nodes(state_of("marble_run", targets=[GOAL], marble=MARBLE))
    xs = [-6.72, -5.227, -3.733, -1.96, 0.933, 3.827, 6.16]
    widths = [0.56, 1.12, 0.56, 1.68, 2.8, -1.68, 1.68]
    heights = [0.56, 0.56, 1.12, 0.3733, 0.168, 0.56, 0.56]
    for row, x, width, height in zip(table[:7], xs, widths, heights, strict=True):
        assert row[:6] == pytest.approx([x, -1.68, 1, 0, width, height], abs=5e-4)


def test_in_covering_hard_a_block_keeps_its_node():
    blocks = [(6, 1, 1, 0.365, 0), (2, 0, -3, 0.365, 0)]
    hard = reference.nodes(state_of("covering_hard", blocks, [ROW_0]))
    assert len(hard) == 9
    assert [row[14:].index(1.0) for row in hard] == [1, 1, 0, 1, 1, 1, 0, 2, 0]
    assert hard[6][:2] == pytest.approx([1, 0.365])
    assert hard[6][9:11] == [1, 1]
    assert hard[2][:2] == pytest.approx([-3, 0.365])
    assert hard[2][9:11] == [1, 0]
    easy = reference.nodes(state_of("covering", blocks, [ROW_0]))
    assert [row[14:].index(1.0) for row in easy] == [1] * 7 + [2, 0, 0, 0]
    assert easy[9][:2] == pytest.approx([1, 0.365])


def test_valid_edges_lead_from_what_is_available_to_what_is_not():
    edges = reference.valid_edges(state_of("covering", [(0, 0, 0, 1, 0)], [ROW_0]))
    assert edges == {(u, v) for u in range(7) for v in (7, 8, 9)}
    edges = reference.valid_edges(state_of("covering_hard", [(1, 0, 0, 1, 0)], [ROW_0]))
    assert edges == {(u, v) for u in (0, 2, 3, 4, 5, 6) for v in (1, 7, 8)}


@pytest.mark.parametrize(
    ("task", "obstacles", "targets", "placed", "nodes", "valid"),
    [
        ("silhouette", 4, 8, 0, 20, 91),
        ("silhouette", 4, 8, 7, 27, 140),
        ("connecting", 9, 3, 0, 20, 91),
        ("connecting", 9, 3, 20, 40, 231),
        ("covering", 6, 0, 0, 14, 49),
        ("covering", 6, 0, 27, 41, 238),
        ("covering_hard", 4, 0, 0, 12, 35),
        ("covering_hard", 4, 0, 1, 12, 36),  # 6 available, 6 others
        ("covering_hard", 4, 0, 6, 12, 11),  # 1 available, 11 others
        ("covering_hard", 4, 0, 7, 12, 0),
        ("marble_run", 6, 1, 0, 16, 63),  # four obstacles, two walls
        ("marble_run", 6, 1, 29, 45, 266),
    ],
)
def test_sizes_of_the_action_set(task, obstacles, targets, placed, nodes, valid):
    # docs/construction/index.md#sizes
    marble = MARBLE if task == "marble_run" else None
    blocks = [(i % 7, 0, 0, 1 + i, 0) for i in range(placed)]
    state = state_of(task, blocks, [ROW_0] * obstacles, [GOAL] * targets, marble)
    assert len(reference.nodes(state)) == nodes
    assert len(reference.valid_edges(state)) == valid
    assert reference.blocks_left(state) == (7 - placed if task == "covering_hard" else 7)


# Placement


def test_the_offset_grid():
    # docs/construction/index.md#actions
    half = [0.154762, 0.309524, 0.464286, 0.619048, 0.773810, 0.928571, 1.083333]
    expected = [-value for value in half[::-1]] + [0.0] + half
    assert reference.offsets() == pytest.approx(expected, abs=6e-7)
    assert reference.offsets()[14] == pytest.approx(13 / 12)
    # With 43 points 1/40 gives way to 0.04.
    assert reference.offsets(43)[-1] == pytest.approx(1.04)


@pytest.mark.parametrize(
    ("sender", "distinct"),
    [
        (0, [2.221, 4.442, 6.662, 7.5]),
        (3, [2.329, 4.658, 6.988, 7.5]),
        (6, [2.438, 4.875, 7.312, 7.5]),
    ],
)
def test_placements_on_the_floor(sender, distinct):
    # y = -0.175 + 0.04 + (0.35 + 0.7) / 2 = 0.39
    state = state_of("covering")
    right = distinct + [7.5] * 3
    expected = [-x for x in right[::-1]] + [0.0] + right
    places = [reference.placement(state, sender, 7, index) for index in range(15)]
    assert [x for x, _ in places] == pytest.approx(expected, abs=6e-4)
    assert [y for _, y in places] == pytest.approx([0.39] * 15)
    assert places[0][0] == -7.5 + 1e-6
    assert places[14][0] == 7.5 - 1e-6


def test_published_placements():
    # Small on the obstacle, offset 0; then medium on that block at rest, offset 12:
    # -3.304583 + 0.773810 · (0.7 + 2.1) / 2 = -2.22125, 0.365 + 0.04 + 0.7 = 1.105.
    state = state_of("covering", [(0, 1, -3.304583, 0.365, 0)], [ROW_0])
    assert reference.placement(state, 0, 7, 0) == pytest.approx((-3.304583, 0.915), abs=1e-6)
    assert reference.placement(state, 3, 9, 12) == pytest.approx((-2.22125, 1.105), abs=1e-6)


def test_blocks_are_put_onto_targets_and_on_top_of_all_else():
    target = (1.0, 0.364, 2.1, 0.7)
    state = state_of("silhouette", targets=[target])
    assert reference.placement(state, 3, 7, 7) == pytest.approx((1.0, 0.404))
    # 1 + 0.154762 · (2.1 + 0.7) / 2
    assert reference.placement(state, 0, 7, 8) == pytest.approx((1.216667, 0.404))
    marble = state_of("marble_run", [(5, 0, 0, 0.3, 0)], [], [GOAL], MARBLE)
    assert reference.placement(marble, 2, 7, 7) == pytest.approx((3.0, 0.32))  # the goal
    # On the marble: 1.4 + 0.04 + (0.56 + 1.12) / 2; left of it: 13/12 · 0.56 = 0.606667.
    assert reference.placement(marble, 2, 8, 0) == pytest.approx((-3.606667, 2.28))
    # On the floor: -0.14 + 0.04 + (0.28 + 0.56) / 2.
    assert reference.placement(marble, 0, 9, 7) == pytest.approx((0.0, 0.32))


def test_placement_takes_absolute_and_unrotated_sizes():
    # The mirrored ramp on itself: 13/12 · 1.68 = 1.82, whatever the sign; 0.3 + 0.04 + 0.56.
    marble = state_of("marble_run", [(5, 0, 0, 0.3, 0)], [], [GOAL], MARBLE)
    assert reference.placement(marble, 5, 10, 14) == pytest.approx((1.82, 0.9))
    upright = state_of("covering", [(3, 0, 0, 1.065, math.pi / 2)])
    # As if the base lay flat: 13/12 · 1.4, 1.065 + 0.04 + 0.7.
    assert reference.placement(upright, 0, 8, 14) == pytest.approx((1.516667, 1.805))


def test_the_outermost_offsets_clear_the_base():
    # By a 24th of both widths: 1.4 / 24 = 0.058, 7 / 24 = 0.292.
    state = state_of("covering", [(0, 0, 0, 0.365, 0), (6, 0, 0, 0.365, 0)])
    assert reference.placement(state, 0, 8, 14)[0] - 0.7 == pytest.approx(0.058, abs=5e-4)
    assert reference.placement(state, 6, 9, 14)[0] - 3.5 == pytest.approx(0.292, abs=5e-4)


# Episodes


def outcome(previous=(1.0, 2.0), new=(2.5, 4.0), **changes):
    """A step that gains 1.5 and spends 2, in the middle of an episode."""
    settings = {
        "spawn_collision": False, "obstacle_hit": False, "steps": 3, "max_steps": 14, "left": 4,
        "best": 5.0, "threshold": 0.99,
    }  # fmt: skip
    return reference.outcome(*previous, *new, **(settings | changes))


def test_reward_is_the_difference_of_progress_less_that_of_cost():
    assert outcome() == (-0.5, "")
    assert outcome(new=(0.25, 2.0)) == (-0.75, "")  # something was uncovered


def test_the_last_step_earns_its_reward():
    assert outcome(steps=14) == (-0.5, "max_steps")
    assert outcome(steps=13) == (-0.5, "")
    assert outcome(left=0) == (-0.5, "max_steps")


def test_completion_is_strict_and_outranks_the_step_limit():
    assert outcome(new=(3.0, 2.0), best=4.0, threshold=0.75) == (2.0, "")
    assert outcome(new=(3.25, 2.0), best=4.0, threshold=0.75) == (2.25, "complete")
    assert outcome(new=(4.0, 2.0), best=4.0, steps=14, left=0) == (3.0, "complete")


def test_collisions_earn_nothing_and_outrank_everything():
    full = {"new": (5.0, 4.0), "steps": 14, "left": 0}
    assert outcome(**full, obstacle_hit=True) == (0.0, "obstacle_hit")
    assert outcome(**full, spawn_collision=True) == (0.0, "spawn_collision")
    assert outcome(**full, spawn_collision=True, obstacle_hit=True) == (0.0, "spawn_collision")


@pytest.mark.parametrize(
    ("task", "best", "short", "enough"),
    [
        ("silhouette", 8.0, 7.0, 8.0),
        ("connecting", 3.0, 2.0, 3.0),
        ("covering", 2.0, 1.979, 1.981),
        ("covering_hard", 2.0, 1.979, 1.981),
        ("marble_run", 1.0, 0.0, 1.0),
    ],
)
def test_what_completes_each_task(task, best, short, enough):
    # 3.4: 0.98 · 8 = 7.84, 0.98 · 3 = 2.94, 0.99 · 2 = 1.98
    threshold = reference.THRESHOLD[task]
    assert outcome(new=(short, 2.0), best=best, threshold=threshold)[1] == ""
    assert outcome(new=(enough, 2.0), best=best, threshold=threshold)[1] == "complete"
