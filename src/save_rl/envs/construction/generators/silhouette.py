"""Scenes of Silhouette, in generator units: a pile of blocks to copy, and obstacles around it.

The space above the floor is tessellated into rows of cells, each as wide as a block plus a margin.
Targets are cells drawn one by one, on the floor or on top of a target; obstacles are drawn the same
way from the remaining cells, with a looser definition of "on top".
"""

from bisect import bisect
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from save_rl.envs.construction.scene import Rectangle

# Numbers without a source are those of the released code, dm_construction 1.0.0.
WIDTH = 200  # of the scene
BLOCK_HEIGHT = 10
MARGIN = 5  # a cell is wider than its block by this
CELL_WIDTHS = np.array([10, 30, 50]) + MARGIN
CELLS = 14  # enough of the narrowest to fill a row
ROW_HEIGHT = 10.2  # there is a small gap between stacked blocks
THICKNESS = 5  # of obstacles
SUPPORT = 9  # a target overlaps the one below it by more than this
OBSTACLE_SUPPORT = -2  # an obstacle may hang off its target by less than 2
ATTEMPTS = 10
WEIGHTS = [((ROW_HEIGHT * (row + 0.5) + 5) / 10) ** 1.75 for row in range(6)]  # of a cell, by row

Cell = tuple[float, int, float]  # centre x, row, width


class Level(NamedTuple):
    """The numbers of targets, rows of cells and obstacles; an episode has one step per target."""

    targets: int
    rows: int
    fewest: int
    most: int

    @property
    def max_steps(self) -> int:
        return self.targets


# The table of the released code; levels 0-7, drawn uniformly, have the 1 to 8 targets of Bapst et
# al. (2019).
LEVELS: dict[int | str, Level] = {
    0: Level(1, 1, 0, 0),
    1: Level(2, 2, 0, 0),
    2: Level(3, 3, 1, 1),
    3: Level(4, 4, 1, 2),
    4: Level(5, 5, 1, 3),
    5: Level(6, 6, 1, 4),
    6: Level(7, 6, 1, 4),
    7: Level(8, 6, 1, 4),
    "double_the_targets": Level(16, 6, 1, 4),
}


def draw(
    level: Level, rng: np.random.RandomState
) -> tuple[list[Rectangle], list[Rectangle]] | None:
    """Draw the obstacles and the targets of a scene; None if every attempt fails.

    A cell on top of two targets counts twice, so the same obstacle may appear twice.
    """
    for _ in range(ATTEMPTS):
        cells = _tessellate(level.rows, rng)
        targets = _draw_targets(cells, level.targets, rng)
        if targets is not None:
            break
    else:
        return None
    candidates = cells[0] + [c for t in targets for c in _on_top(t, cells, OBSTACLE_SUPPORT)]
    count = min(int(rng.randint(level.fewest, level.most + 1)), len(candidates))
    obstacles = _draw_cells(candidates, count, rng)
    return (
        [(x, ROW_HEIGHT * (row + 0.5), w - MARGIN, THICKNESS) for x, row, w in obstacles],
        [(x, ROW_HEIGHT * (row + 0.5) + 0.1, w - MARGIN, BLOCK_HEIGHT) for x, row, w in targets],
    )


def _tessellate(rows: int, rng: np.random.RandomState) -> list[list[Cell]]:
    """Return each row's cells, left to right: a random start, then random widths to the edge."""
    cells = []
    for row in range(rows):
        left = rng.random_sample() * 55  # the widest cell
        cells.append([])
        for width in CELL_WIDTHS[rng.randint(len(CELL_WIDTHS), size=CELLS)].tolist():
            if left + width >= WIDTH:
                break
            cells[row].append((left + width / 2, row, width))
            left += width
    return cells


def _draw_targets(
    cells: list[list[Cell]], count: int, rng: np.random.RandomState
) -> list[Cell] | None:
    """Draw and remove cells one by one; None if no candidate is left."""
    targets, candidates = [], list(cells[0])
    for _ in range(count):
        if not candidates:
            return None
        target = _draw_cell(candidates, rng)
        targets.append(target)
        cells[target[1]].remove(target)
        candidates = [c for c in candidates if c != target] + _on_top(target, cells, SUPPORT)
    return targets


def _on_top(support: Cell, cells: list[list[Cell]], overlap: float) -> list[Cell]:
    """Return the cells one row up whose blocks overlap the support's by more than `overlap`."""
    x, row, width = support
    if row + 1 == len(cells):
        return []
    reach = width / 2 - MARGIN - overlap
    return [cell for cell in cells[row + 1] if abs(cell[0] - x) < cell[2] / 2 + reach]


def _draw_cells(candidates: list[Cell], count: int, rng: np.random.RandomState) -> list[Cell]:
    """Draw `count` of the candidates, without replacement."""
    if count == 0:
        return []
    weights = np.array([WEIGHTS[row] for _, row, _ in candidates])
    chosen = rng.choice(len(candidates), size=count, replace=False, p=weights / weights.sum())
    return [candidates[i] for i in chosen]


def _draw_cell(candidates: list[Cell], rng: np.random.RandomState) -> Cell:
    """Draw one cell, the same as `_draw_cells` with a count of 1, but several times faster."""
    sums = list(accumulate(WEIGHTS[row] for _, row, _ in candidates))
    return candidates[bisect(sums, rng.random_sample() * sums[-1], 0, len(sums) - 1)]
