"""Scene generators of the five tasks.

They use NumPy's legacy generator in the order of the released code (dm_construction 1.0.0), so that
the same seeds give the same scenes. Draws with a single possibility consume no random numbers and
are left out. The preset `paper` differs only in Marble Run.
"""

from typing import NamedTuple

import numpy as np

from save_rl.envs.construction.generators import lines, marble_run, silhouette
from save_rl.envs.construction.scene import HALF_WIDTH, Rectangle, Scene
from save_rl.envs.construction.tasks import TASKS, check_difficulty
from save_rl.errors import RunError

_LINES = {
    "connecting": lines.CONNECTING,
    "covering": lines.COVERING,
    "covering-hard": lines.COVERING_HARD,
}


class Limits(NamedTuple):
    """The largest sizes of a scene of a level; no easier level exceeds them.

    obstacles: in Marble Run including the two walls.
    """

    obstacles: int
    targets: int
    max_steps: int


def generate(task: str, level: int | str, preset: str, rng: np.random.RandomState) -> Scene:
    """Draw a scene of a level, in metres."""
    check_difficulty(task, preset, level, curriculum_sample=False)
    row = _row(task, preset, level)
    if isinstance(row, marble_run.Level):
        drawn = marble_run.draw(row, preset, rng)
    elif isinstance(row, silhouette.Level):
        drawn = silhouette.draw(row, rng)
    else:
        drawn = lines.draw(row, rng)
    if drawn is None:
        raise RunError(f"{task}: drawing a scene of level {level} failed in every attempt.")
    obstacles, targets, *marble = drawn
    scale = TASKS[task].supply.scale
    return Scene(
        task,
        preset,
        str(level) if isinstance(level, str) else int(level),
        row.max_steps,
        tuple(_in_metres(obstacle, scale) for obstacle in obstacles),
        tuple(_in_metres(target, scale) for target in targets),
        _in_metres(marble[0], scale)[:3] if marble else None,
    )


def limits(task: str, preset: str, level: int | str) -> Limits:
    """Return the sizes to pad the scenes of a level to."""
    check_difficulty(task, preset, level, curriculum_sample=False)
    row = _row(task, preset, level)
    if isinstance(row, marble_run.Level):
        return Limits(len(marble_run.WALLS) + row.obstacles, 1, row.max_steps)
    if isinstance(row, silhouette.Level):
        return Limits(row.most, row.targets, row.max_steps)
    return Limits(len(row.rows) * row.most, len(row.target_rows) * row.targets, row.max_steps)


def scene_bin(scene: Scene) -> int:
    """Return the number of a scene's bin in an adaptive curriculum (paper D.3).

    In Marble Run it encodes the goal's row, thirds of the distance to it, the number of obstacles
    without walls, and the rows of the highest and the lowest one. Elsewhere it is the level.
    """
    if scene.marble is None:
        return scene.level if isinstance(scene.level, int) else -1
    unit = TASKS[scene.task].supply.scale * marble_run.UNIT
    obstacles = scene.obstacles[len(marble_run.WALLS) :]
    rows = [round(y / unit - 0.5) for _, y, _, _ in (*scene.targets, *obstacles)]
    distance = abs(scene.marble[0] - scene.targets[0][0]) / (2 * HALF_WIDTH)
    parts = (rows[0], min(int(distance * 3), 2), len(obstacles), max(rows[1:]), min(rows[1:]))
    return sum(part * 16**place for place, part in enumerate(reversed(parts)))


def _row(
    task: str, preset: str, level: int | str
) -> lines.Level | silhouette.Level | marble_run.Level:
    if task == "marble-run":
        return marble_run.LEVELS[preset][level]
    return silhouette.LEVELS[level] if task == "silhouette" else _LINES[task][level]


def _in_metres(rectangle: Rectangle, scale: float) -> Rectangle:
    x, y, width, height = rectangle
    return x * scale - HALF_WIDTH, y * scale, width * scale, height * scale
