"""Every environment of the suites is played as its own suite plays it."""

import subprocess
import sys

import pgx as pgx_suite
import pytest

from save_rl.envs.suites import gymnax, jumanji, pgx
from tests.envs.suites.oracles import side_by_side

CONTINUOUS = {
    "Pendulum-v1", "MountainCarContinuous-v0", "PointRobot-misc", "Reacher-misc", "Swimmer-misc",
}  # fmt: skip
SEVERAL = {
    "Cleaner-v0", "Connector-v3", "LevelBasedForaging-v0", "MMST-v0", "MultiCVRP-v0",
    "RobotWarehouse-v0", "SearchAndRescue-v0", "JobShop-v0",
}  # fmt: skip
LIMITED = (
    "Snake-v1", "Maze-v0", "PacMan-v1", "Tetris-v0", "SlidingTilePuzzle-v0", "RubiksCube-v0",
    "RubiksCube-partly-scrambled-v0",
)  # fmt: skip


def playable(suite, refused):
    return sorted(set(suite.known_ids()) - refused - set(suite.NEEDS_DOWNLOAD))


@pytest.mark.slow
@pytest.mark.parametrize("id", playable(gymnax, CONTINUOUS))
def test_gymnax(id):
    # Cars change their lanes only when the chicken arrives; two rods on a joint are chaotic.
    how = {"Freeway-MinAtar": {"favour": 1}, "Acrobot-v1": {"steps": 60}}
    side_by_side("gymnax", id, **{"steps": 1200, **how.get(id, {})})


@pytest.mark.slow
@pytest.mark.parametrize("id", playable(gymnax, CONTINUOUS))
def test_the_limit_of_gymnax_is_truncated(id):
    ends = side_by_side("gymnax", id, episodes=6, luck_shows=False, max_steps_in_episode=3)
    assert sum(ends.values()) == 6


# Jumanji 1.1.2 stores a float in an array of integers, in Bin Pack.
@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning")
@pytest.mark.slow
@pytest.mark.parametrize("id", playable(jumanji, SEVERAL))
def test_jumanji(id):
    side_by_side("jumanji", id, steps=1200)


@pytest.mark.slow
def test_sokoban_without_a_download():
    """In a process of its own: its viewer leaves files open, and warnings are errors here."""
    play = "print(side_by_side('jumanji', 'Sokoban-v0', generator='toy'))"
    program = f"from tests.envs.suites.oracles import side_by_side; {play}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "{'terminated': 0, 'truncated': 2}", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("id", sorted(pgx._PLAYERS))
def test_the_players_of_pgx(id):
    assert pgx_suite.make(id).num_players == pgx._PLAYERS[id]


@pytest.mark.slow
@pytest.mark.parametrize("id", LIMITED)
def test_the_limit_of_jumanji_is_truncated(id):
    ends = side_by_side("jumanji", id, episodes=6, luck_shows=False, time_limit=3)
    assert sum(ends.values()) == 6
    assert ends["truncated"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("id", playable(pgx, set(pgx._PLAYERS)))
def test_pgx(id):
    steps = 2600 if id == "minatar-freeway" else 1200
    ends = side_by_side("pgx", id, steps=steps)
    kind = "truncated" if id == "minatar-freeway" else "terminated"
    assert ends[kind] == 2
