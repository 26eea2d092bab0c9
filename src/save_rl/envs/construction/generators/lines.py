"""Scenes of obstacles in rows: Covering, Covering Hard and Connecting, in generator units.

These three tasks fill a row in the same way: objects of random width, separated by random gaps. All
positions are whole units.
"""

from typing import NamedTuple

import numpy as np

from save_rl.envs.construction.scene import Rectangle

# Numbers without a source are those of the released code, dm_construction 1.0.0.
WIDTH = 200  # of the scene
ROW_HEIGHT = 10  # the height of a block
THICKNESS = 5  # of obstacles and targets
INNER_GAP = 20  # Connecting: two small blocks fit between neighbours


class Level(NamedTuple):
    """The contents of a scene; the centre of row r is at 10·(r + 1/2).

    rows: the rows of obstacles, bottom to top.
    fewest, most: obstacles per row.
    narrowest, widest: widths of obstacles.
    max_steps: of an episode.
    inner_gap: neighbouring obstacles are further apart than this, before gaps are rounded down.
    target_rows, targets: the rows of targets, and the number in each.
    """

    rows: tuple[int, ...]
    fewest: int
    most: int
    narrowest: int
    widest: int
    max_steps: int
    inner_gap: int = 0
    target_rows: tuple[int, ...] = ()
    targets: int = 0


# The tables of the released code. Bapst et al. (2019) print the widths as intervals up to 40 and
# 50; the code draws whole numbers below these.
COVERING: dict[int | str, Level] = {
    0: Level((0,), 1, 2, 10, 39, 28),
    1: Level((0, 2), 1, 2, 10, 39, 28),
    2: Level((0, 2, 4), 1, 2, 10, 39, 28),
}
COVERING_HARD: dict[int | str, Level] = {
    0: Level((0,), 1, 2, 10, 49, 14),
    1: Level((0, 1), 1, 2, 10, 49, 14),
}
CONNECTING: dict[int | str, Level] = {
    0: Level((0,), 0, 0, 10, 39, 7, INNER_GAP, (0,), 3),
    1: Level((0,), 0, 0, 10, 39, 7, INNER_GAP, (1,), 3),
    2: Level((0,), 1, 1, 10, 39, 7, INNER_GAP, (1,), 3),
    3: Level((0,), 1, 2, 10, 39, 7, INNER_GAP, (1,), 3),
    4: Level((0,), 2, 3, 10, 39, 7, INNER_GAP, (1,), 3),
    5: Level((0,), 2, 3, 10, 39, 14, INNER_GAP, (2,), 3),
    6: Level((0,), 3, 3, 10, 39, 21, INNER_GAP, (3,), 3),
    7: Level((0, 2), 3, 3, 10, 39, 21, INNER_GAP, (3,), 3),
    8: Level((0, 2), 3, 3, 10, 39, 21, INNER_GAP, (4,), 3),
    9: Level((0, 2, 4), 3, 3, 10, 39, 21, INNER_GAP, (5,), 3),
    "mixed_height_targets": Level((0, 2, 4), 3, 3, 10, 39, 26, INNER_GAP, (1, 3, 5), 1),
    "additional_layer": Level((0, 2, 4, 6), 3, 3, 10, 39, 26, INNER_GAP, (7,), 3),
}


def draw(level: Level, rng: np.random.RandomState) -> tuple[list[Rectangle], list[Rectangle]]:
    """Draw the obstacles and the targets of a scene."""
    obstacles, targets = [], []
    for row in level.rows:
        count = int(rng.randint(level.fewest, level.most + 1))
        widths = rng.randint(level.narrowest, level.widest + 1, size=count).tolist()
        obstacles += _place(row, widths, level.inner_gap, rng)
    for row in level.target_rows:
        targets += _place(row, [THICKNESS] * level.targets, 0, rng)
    return obstacles, targets


def _place(
    row: int, widths: list[int], inner_gap: int, rng: np.random.RandomState
) -> list[Rectangle]:
    """Place objects of these widths in a row, left to right, with random gaps.

    Every level leaves at least 83 units free, so the released code's minimum of 11 always holds.
    """
    if not widths:
        return []
    free = WIDTH - sum(widths)
    while True:
        shares = rng.uniform(size=len(widths) + 1)
        shares /= shares.sum()
        if (shares[1:-1] > inner_gap / free).all():
            break
    gaps = np.floor(shares * free).astype(int).tolist()
    placed, begin = [], 0
    for width, gap in zip(widths, gaps[:-1], strict=True):
        begin += gap
        middle = (2 * begin + width) // 2  # objects of odd width shift half a unit to the left
        placed.append((middle, ROW_HEIGHT * (row + 0.5), width, THICKNESS))
        begin += width
    return placed
