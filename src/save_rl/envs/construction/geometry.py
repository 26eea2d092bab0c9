"""Exact overlap of blocks with each other, with rectangles and with the marble.

Blocks are rows `slot, sticky, x, y, angle` (float32); shapes are rows `width, height, kind`;
rectangles are rows `x, y, width, height` without rotation.
"""

import math

import numpy as np

from save_rl.compiled import njit
from save_rl.envs.construction.scene import RAMP

TOUCHING = 1e-9  # square metres: scenes lie on a grid, where rounding would decide who touches


@njit(refcounts=True)
def polygon(width, height, kind, x, y, angle):
    """Return corners `[3 or 4, 2]`, counter-clockwise; a ramp of negative width is mirrored."""
    corners = np.empty((3 if kind == RAMP else 4, 2))
    half_x, half_y = width / 2, height / 2
    corners[0, 0], corners[0, 1] = -half_x, -half_y
    corners[1, 0], corners[1, 1] = half_x, -half_y
    if kind == RAMP:
        corners[2, 0], corners[2, 1] = -half_x, half_y
        if half_x < 0:
            corners[0, 0], corners[1, 0] = half_x, -half_x
    else:
        corners[2, 0], corners[2, 1] = half_x, half_y
        corners[3, 0], corners[3, 1] = -half_x, half_y
    cos, sin = math.cos(angle), math.sin(angle)
    for i in range(len(corners)):
        a, b = corners[i, 0], corners[i, 1]
        corners[i, 0], corners[i, 1] = x + cos * a - sin * b, y + sin * a + cos * b
    return corners


@njit
def _outside_an_edge(one, two):
    """Test whether all of `two` lies beyond one edge of `one`."""
    for i in range(len(one)):
        ax, ay = one[i]
        bx, by = one[(i + 1) % len(one)]
        nearest = np.inf
        for j in range(len(two)):
            nearest = min(nearest, (by - ay) * (two[j, 0] - ax) - (bx - ax) * (two[j, 1] - ay))
        if nearest >= -TOUCHING:
            return True
    return False


@njit
def overlap(one, two):
    """Test whether two convex polygons overlap: no edge of either separates them."""
    return not (_outside_an_edge(one, two) or _outside_an_edge(two, one))


@njit(refcounts=True)
def spawn_overlap(shapes, slot, x, y, blocks, obstacles, floor):
    """Test whether a new, upright block would overlap a block, an obstacle or the floor."""
    width, height, kind = shapes[slot]
    if y - height / 2 < floor[1] + floor[3] / 2:
        return True
    new = polygon(width, height, kind, x, y, 0.0)
    reach = math.hypot(width, height) / 2
    for i in range(len(obstacles)):
        ox, oy, ow, oh = obstacles[i]
        near = abs(x - ox) < (abs(width) + ow) / 2 and abs(y - oy) < (height + oh) / 2
        if near and overlap(new, polygon(ow, oh, 0.0, ox, oy, 0.0)):
            return True
    for i in range(len(blocks)):
        bw, bh, bkind = shapes[int(blocks[i, 0])]
        bx, by, angle = blocks[i, 2], blocks[i, 3], blocks[i, 4]
        if math.hypot(bx - x, by - y) < reach + math.hypot(bw, bh) / 2 and overlap(
            new, polygon(bw, bh, bkind, bx, by, angle)
        ):
            return True
    return False


@njit
def _wedge_area(ax, ay, bx, by, r):
    """Return the signed area shared by a disc at the origin and the triangle origin, a, b."""
    dx, dy = bx - ax, by - ay
    length = dx * dx + dy * dy
    area = 0.0
    if length == 0.0:
        return area
    along, inside = -(ax * dx + ay * dy) / length, r * r - (ax * by - ay * bx) ** 2 / length
    reach = math.sqrt(max(inside, 0.0) / length)
    enter, leave = min(max(along - reach, 0.0), 1.0), min(max(along + reach, 0.0), 1.0)
    if inside <= 0.0:
        enter = leave = 0.0
    px, py, qx, qy = ax + enter * dx, ay + enter * dy, ax + leave * dx, ay + leave * dy
    area += r * r / 2 * math.atan2(ax * py - ay * px, ax * px + ay * py)
    area += (px * qy - py * qx) / 2
    area += r * r / 2 * math.atan2(qx * by - qy * bx, qx * bx + qy * by)
    return area


@njit
def disc_area(corners, x, y, radius):
    """Return the area shared by a disc and a polygon."""
    area = 0.0
    for i in range(len(corners)):
        a, b = corners[i], corners[(i + 1) % len(corners)]
        area += _wedge_area(a[0] - x, a[1] - y, b[0] - x, b[1] - y, radius)
    return abs(area)


@njit(refcounts=True)
def marble_blocked(shapes, blocks, floor, x, y, diameter, tolerance):
    """Test whether a block or the floor covers more than `tolerance` of the marble's start."""
    fx, fy, fw, fh = floor
    if disc_area(polygon(fw, fh, 0.0, fx, fy, 0.0), x, y, diameter / 2) > tolerance:
        return True
    for i in range(len(blocks)):
        width, height, kind = shapes[int(blocks[i, 0])]
        corners = polygon(width, height, kind, blocks[i, 2], blocks[i, 3], blocks[i, 4])
        if disc_area(corners, x, y, diameter / 2) > tolerance:
            return True
    return False
