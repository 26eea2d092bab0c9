"""Scenes of Marble Run, in generator units: a marble, a goal, obstacles and two walls (paper D.1).

Obstacles are cells of a tessellation, drawn one by one, preferably in the way and never near the
marble, the goal or each other.
"""

from typing import NamedTuple

import numpy as np

from save_rl.envs.construction.scene import Rectangle

# Numbers without a source are those of the released code, dm_construction 1.0.0.
WIDTH = 250  # of the scene
UNIT = 10  # side of the small block, height of a row
MARBLE, GOAL = 10, 5  # diameters
THICKNESS = 5  # of obstacles
CLEARANCE_ROWS, CLEARANCE = 2, 20  # paper D.1: two rows, two units
ATTEMPTS = 100
WALLS: list[Rectangle] = [  # right, left
    (265.0, WIDTH / 3, 5.0, 2 * WIDTH / 3),
    (-15.0, WIDTH / 3, 5.0, 2 * WIDTH / 3),
]
MARBLE_ROWS = {"paper": 2, "released": 4}  # from the goal up to the marble


class Level(NamedTuple):
    """The goal's row, the range of the horizontal distance to it, obstacles without walls, steps.

    Distances are fractions of the width of the scene.
    """

    goal_row: int
    nearest: float
    farthest: float
    obstacles: int
    max_steps: int


LEVELS: dict[str, dict[int | str, Level]] = {
    "paper": {  # paper D.2
        0: Level(0, 0.03, 0.30, 1, 20),
        1: Level(0, 0.36, 0.49, 1, 20),
        2: Level(0, 0.50, 0.63, 2, 20),
        3: Level(0, 0.69, 0.82, 2, 20),
        4: Level(0, 0.83, 1.00, 3, 20),
        5: Level(1, 0.83, 1.00, 3, 25),
        6: Level(2, 0.83, 1.00, 4, 30),
    },
    "released": {  # the released code
        0: Level(0, 0.03, 0.30, 1, 15),
        1: Level(0, 0.36, 0.49, 1, 15),
        2: Level(0, 0.50, 0.63, 2, 15),
        3: Level(0, 0.69, 0.82, 2, 15),
        4: Level(0, 0.83, 1.00, 3, 15),
        5: Level(1, 0.83, 1.00, 3, 15),
        6: Level(2, 0.83, 1.00, 4, 15),
        7: Level(3, 0.83, 1.00, 4, 20),
        8: Level(4, 0.83, 1.00, 5, 25),
    },
}


class Cells(NamedTuple):
    """Candidate cells for obstacles, `[n]` each; the row is a whole number."""

    x: np.ndarray
    row: np.ndarray
    width: np.ndarray


def draw(
    level: Level, preset: str, rng: np.random.RandomState
) -> tuple[list[Rectangle], list[Rectangle], Rectangle] | None:
    """Draw the obstacles (walls first), `[goal]` and the marble; None if every attempt fails."""
    goal_row = level.goal_row
    marble_row = goal_row + MARBLE_ROWS[preset]
    for _ in range(ATTEMPTS):
        marble_x, goal_x = _draw_ends(level, preset, rng)
        cells = _tessellate(marble_row + 1, rng)
        cells = _without_near(cells, marble_x, marble_row, MARBLE)
        cells = _without_near(cells, goal_x, goal_row, GOAL)
        obstacles = _draw_obstacles(cells, level.obstacles, marble_x, goal_x, rng)
        if obstacles is not None:
            goal = (goal_x, _height(goal_row), GOAL, GOAL)
            marble = (marble_x, _height(marble_row), MARBLE, MARBLE)
            return WALLS + obstacles, [goal], marble
    return None


def _height(row: int) -> float:
    return UNIT * (row + 0.5)


def _draw_ends(level: Level, preset: str, rng: np.random.RandomState) -> tuple[float, float]:
    """Draw the x of the marble and of the goal, and which of them is on the left."""
    nearest, farthest = level.nearest * WIDTH, level.farthest * WIDTH
    if preset == "paper":  # paper D.1: the distance is uniform
        distance = rng.uniform(nearest, farthest)
        left = rng.uniform(0, WIDTH - distance)
        right = left + distance
    else:  # the released code: one position after the other, which favours short distances
        left = rng.uniform(0, WIDTH - nearest)
        right = rng.uniform(max(MARBLE + GOAL, left + nearest), min(WIDTH, left + farthest))
    return (right, left) if rng.randint(2) else (left, right)


def _tessellate(rows: int, rng: np.random.RandomState) -> Cells:
    """Draw rows of cells one or two units wide, from a start in the first unit to the edge."""
    cells = []
    for row in range(rows):
        left = rng.uniform(0, UNIT)
        while left <= WIDTH:
            # One number is drawn per cell, up to the first cell beyond the edge. At least `needed`
            # are drawn in any case, so drawing them together leaves the random stream unchanged.
            needed = int((WIDTH - left) // (2 * UNIT)) + 1
            for units in rng.randint(1, 3, size=needed).tolist():
                width = units * UNIT
                cells.append((left + width / 2, row, width))
                left += width
        cells.pop()
    return Cells(*np.array(cells).T)


def _without_near(cells: Cells, x: float, row: int, width: float) -> Cells:
    """Return the cells that are not both within two rows and within two units of an object.

    Obstacles in a row are whole units apart, so a gap of exactly two units is common. It counts as
    near; the tolerance makes this independent of rounding.
    """
    gap = np.abs(cells.x - x) - (cells.width + width) / 2
    far = (np.abs(cells.row - row) > CLEARANCE_ROWS) | (gap > CLEARANCE + 1e-6)
    return Cells(cells.x[far], cells.row[far], cells.width[far])


def _draw_obstacles(
    cells: Cells, count: int, marble_x: float, goal_x: float, rng: np.random.RandomState
) -> list[Rectangle] | None:
    """Draw cells one by one; None if none is left that is clear of the others."""
    obstacles = []
    for _ in range(count):
        if not len(cells.x):
            return None
        chosen = rng.choice(len(cells.x), p=_probabilities(cells, marble_x, goal_x))
        x, row, width = float(cells.x[chosen]), int(cells.row[chosen]), float(cells.width[chosen])
        obstacles.append((x, _height(row), width, THICKNESS))
        cells = _without_near(cells, x, row, width)
    return obstacles


def _probabilities(cells: Cells, marble_x: float, goal_x: float) -> np.ndarray:
    """Return the probability `[n]` that each cell is the next obstacle: a mixture (paper D.1)."""
    left, right = min(marble_x, goal_x), max(marble_x, goal_x)
    in_the_way = (cells.row == 0) & (cells.x > left) & (cells.x < right)
    criteria = [
        (1, np.ones(len(cells.x))),
        (1, _closeness(cells.x, marble_x, 0.1)),
        (1, _closeness(cells.x, goal_x, 0.1)),
        (1, _closeness(cells.x, (left + right) / 2, 0.2)),
    ]
    if in_the_way.any():
        criteria.append((4, in_the_way))
    mixture = np.zeros(len(cells.x))
    for weight, criterion in criteria:
        mixture += weight * criterion / criterion.sum()
    return mixture / mixture.sum()


def _closeness(x: np.ndarray, to: float, temperature: float) -> np.ndarray:
    """Return unnormalised weights `[n]` that decrease with the distance."""
    return 1 / (((x - to) / (temperature * WIDTH)) ** 2 + 0.1)
