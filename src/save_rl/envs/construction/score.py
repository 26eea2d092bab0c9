"""The score P of the four building tasks (docs/construction/index.md#score).

Rows as in `geometry`. In Marble Run only the goal scores.
"""

import math

import numpy as np

from save_rl.compiled import njit


@njit
def silhouette_score(shapes, blocks, targets):
    """Count the targets whose nearest upright block has their size and covers more than 90 %."""
    score = 0.0
    for t in range(len(targets)):
        x, y, width, height = targets[t]
        nearest, best = -1, np.inf
        for i in range(len(blocks)):
            distance = math.hypot(blocks[i, 2] - x, blocks[i, 3] - y)
            if abs(math.sin(blocks[i, 4])) < 0.05 and distance < best:
                nearest, best = i, distance
        if nearest < 0:
            continue
        w, h, _ = shapes[int(blocks[nearest, 0])]
        if abs(w - width) > 1e-3 or abs(h - height) > 1e-3:
            continue
        shared_x = max(width - abs(blocks[nearest, 2] - x), 0.0)
        shared_y = max(height - abs(blocks[nearest, 3] - y), 0.0)
        if shared_x * shared_y / (width * height) > 0.9:
            score += 1.0
    return score


@njit
def connecting_score(shapes, blocks, targets):
    """Count the targets whose centre lies in a block, with 0.1 % of the block's area as tolerance.

    The four triangles from a point to the sides of the block have its area if the point is inside;
    outside their area is larger, by twice the triangle beyond each side.
    """
    score = 0.0
    for t in range(len(targets)):
        for i in range(len(blocks)):
            w, h, _ = shapes[int(blocks[i, 0])]
            dx, dy = targets[t, 0] - blocks[i, 2], targets[t, 1] - blocks[i, 3]
            cos, sin = math.cos(blocks[i, 4]), math.sin(blocks[i, 4])
            u, v = abs(cos * dx + sin * dy), abs(cos * dy - sin * dx)
            triangles = max(w / 2, u) * h + max(h / 2, v) * w
            if triangles <= w * h * 1.001:
                score += 1.0
                break
    return score


@njit(refcounts=True)
def covering_score(shapes, blocks, obstacles):
    """Return the metres of obstacles that have a block anywhere above them."""
    score = 0.0
    starts, ends = np.empty(len(blocks)), np.empty(len(blocks))
    for o in range(len(obstacles)):
        x, y, width, _ = obstacles[o]
        left, right = x - width / 2, x + width / 2
        count = 0
        for i in range(len(blocks)):
            if blocks[i, 3] < y:
                continue
            w, h, _ = shapes[int(blocks[i, 0])]
            angle = blocks[i, 4]
            half = (w * abs(math.cos(angle)) + h * abs(math.sin(angle))) / 2
            start, end = max(left, blocks[i, 2] - half), min(right, blocks[i, 2] + half)
            if start >= end:
                continue
            place = count  # keep intervals sorted by their start
            while place > 0 and starts[place - 1] > start:
                starts[place], ends[place] = starts[place - 1], ends[place - 1]
                place -= 1
            starts[place], ends[place] = start, end
            count += 1
        reached = left
        for i in range(count):
            if ends[i] > reached:
                score += ends[i] - max(starts[i], reached)
                reached = ends[i]
    return score
