"""Pictures of observations and boards, and lists of suites."""

import numpy as np
import pytest

from save_rl.envs import make, make_simulator
from save_rl.envs.suites import gymnax, jumanji, listing, pgx
from save_rl.envs.suites.classic import draw_classic
from save_rl.envs.suites.pictures import (
    draw_bars,
    draw_channels,
    draw_maze,
    draw_observation,
    draw_powers,
    draw_table,
)
from tests.envs.suites.test_sweep import CONTINUOUS, SEVERAL, playable


def cell(picture, row, column, rows, columns):
    """The colour in the middle of a cell."""
    height, width, _ = picture.shape
    return tuple(
        picture[int((row + 0.5) * height / rows), int((column + 0.5) * width / columns)].tolist()
    )


def test_channels_have_colours_of_their_own_and_the_last_one_is_on_top():
    channels = np.zeros((4, 5, 3))
    channels[0, 0, 0] = channels[1, 1, 1] = channels[2, 2, 2] = 1
    channels[3, 4] = 1  # all three
    picture = draw_channels(channels)
    colours = [cell(picture, i, i, 4, 5) for i in range(3)]
    assert len({*colours, cell(picture, 0, 4, 4, 5)}) == 4
    assert cell(picture, 3, 4, 4, 5) == colours[2]
    assert cell(draw_channels(channels > 0), 3, 4, 4, 5) == colours[2]
    assert picture.dtype == np.uint8
    assert picture.shape == (4 * 64, 5 * 64, 3)


def test_numbers_of_a_table_have_colours_or_shades():
    whole = draw_table(np.array([[0, 1], [2, 1]]))
    assert cell(whole, 0, 1, 2, 2) == cell(whole, 1, 1, 2, 2) != cell(whole, 1, 0, 2, 2)
    shades = draw_table(np.array([[0.0, 0.5], [0.75, 1.0]]))
    brightness = [sum(cell(shades, row, column, 2, 2)) for row in (0, 1) for column in (0, 1)]
    assert brightness == sorted(brightness)
    assert len(set(brightness)) == 4


def test_a_maze_shows_walls_goal_and_place():
    picture = draw_maze(np.eye(3, dtype=bool), (0, 1), (2, 0))
    seen = [cell(picture, *at, 3, 3) for at in ((1, 1), (0, 1), (2, 0), (0, 2))]
    assert len(set(seen)) == 4


def test_bars_stay_inside_whatever_the_numbers_are():
    picture = draw_bars(np.array([0.0, 1e9, -1e9, 0.5]))
    rows = np.split(picture, 4)
    width = picture.shape[1]
    lit = [np.flatnonzero((row[5] != row[5, 0 if i != 2 else -1]).any(-1)) for i, row in
           enumerate(rows)]  # fmt: skip
    assert lit[1].max() >= width - 2
    assert lit[2].min() <= 2
    assert lit[3].max() < width * 0.75
    assert draw_observation(np.zeros(())).ndim == 3


def test_tiles_show_their_numbers():
    board = np.array([[0, 1], [2, 11]])
    picture, plain = draw_powers(board), draw_table(board)
    assert (picture[:160, :160] == plain[:160, :160]).all()  # nothing is written on an empty place
    for row, column in ((0, 1), (1, 0), (1, 1)):
        part = np.s_[row * 160 : (row + 1) * 160, column * 160 : (column + 1) * 160]
        assert (picture[part] != plain[part]).any()


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCar-v0", "Acrobot-v1"])
def test_classic_control_is_drawn_from_its_state(name):
    class Standing:
        x = theta = joint_angle1 = joint_angle2 = 0.0
        position = -0.5

    class Moved(Standing):
        x, theta, joint_angle1, position = 1.0, 0.1, 1.0, 0.2

    still, moved = draw_classic(name, Standing), draw_classic(name, Moved)
    assert still.shape == moved.shape == (240, 320, 3)
    assert (still != moved).any()
    assert draw_classic("Catch-bsuite", Standing) is None


def test_a_list_says_what_there_is_and_what_is_refused_and_why(monkeypatch):
    kept = {
        gymnax: ["Catch-bsuite", "Pendulum-v1", "MNISTBandit-bsuite", "FrozenLake-misc"],
        jumanji: ["Snake-v1", "Cleaner-v0"],
        pgx: ["2048", "chess"],
    }
    for suite, ids in kept.items():
        assert set(ids) <= set(suite.known_ids())
        monkeypatch.setattr(suite, "known_ids", lambda ids=ids: ids)
    lines = [line for suite in kept for line in listing.table(suite.SUITE)]
    assert [" ".join(line.split()) for line in lines] == [
        "gymnax/Catch-bsuite 3 actions; no chance; limit 1,000 steps; sees float32[10, 5]",
        "gymnax/MNISTBandit-bsuite downloads MNIST when it is made",
        "gymnax/FrozenLake-misc 4 actions; chance; limit 100 steps; sees int32",
        "gymnax/Pendulum-v1 refused: it has continuous actions, and a search needs a few to choose "
        "from",
        "jumanji/Snake-v1 4 actions (masked); chance; limit 4,000 steps; sees grid "
        "float32[12, 12, 5], step_count int32",
        "jumanji/Cleaner-v0 refused: it has 3 agents that act at once, and save_rl plays one",
        "pgx/2048 4 actions (masked); chance; limit 10,000 steps; sees bool[4, 4, 31]",
        "pgx/chess refused: it is a game for 2 players, and save_rl plays alone",
    ]


def test_actions_of_minatar_have_names():
    assert make("gymnax/Breakout-MinAtar").action_names == ["nothing", "left", "right"]
    assert make("pgx/minatar-freeway").action_names == ["nothing", "up", "down"]


# Jumanji 1.1.2 stores a float in an array of integers, in Bin Pack, and leaves a file open.
@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [f"gymnax/{id}" for id in playable(gymnax, CONTINUOUS)]
    + [f"jumanji/{id}" for id in playable(jumanji, SEVERAL)]
    + [f"pgx/{id}" for id in playable(pgx, set(pgx._PLAYERS))],
)
def test_everything_can_be_drawn(name):
    sim = make_simulator(name)
    state = sim.reset(0)
    allowed = np.flatnonzero(sim.action_mask(state)) if hasattr(sim, "action_mask") else [0]
    after, *_ = sim.step(state, int(allowed[0]))
    first, second = sim.render(state), sim.render(after)
    assert first.dtype == np.uint8
    assert first.shape == second.shape
    assert first.shape[2] == 3
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 1
