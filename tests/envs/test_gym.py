"""Tightrope through Gymnasium, and environments by name."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import save_rl
import save_rl.envs.gym  # registers it
from save_rl.envs import runs_on_host
from save_rl.envs.tightrope import Tightrope, tightrope, tightrope_simulator
from save_rl.errors import InputError

ID = "save_rl/Tightrope-v0"
GREEN, ORANGE, GREY = (44, 160, 44), (255, 127, 14), (120, 120, 120)
rewards = pytest.mark.parametrize("reward", ["sparse", "dense"])
# Gymnasium wishes observations to be bounded. Those of Tightrope are standard normal (paper, B.1).
unbounded = pytest.mark.filterwarnings("ignore:.*Box observation space m..imum value is -?infinity")


def make(**options):
    return gymnasium.make(ID, **options)


@pytest.mark.parametrize(
    "lines",
    [
        f"import gymnasium; gymnasium.make('save_rl.envs.gym:{ID}')",
        f"import gymnasium, save_rl.envs.gym; gymnasium.make('{ID}')",
        f"import save_rl.envs.gym as g, gymnasium; g.register(); gymnasium.make('{ID}')",
    ],
)
def test_gymnasium_knows_it_by_name(lines):
    ran = subprocess.run([sys.executable, "-W", "error", "-c", lines], check=False)
    assert ran.returncode == 0


def safe_action(env):
    simulator, state = env.unwrapped.simulator, env.unwrapped._state
    return int(np.argmin(simulator.fatal[state.position]))


@unbounded
@rewards
def test_it_passes_gymnasiums_own_checks(reward):
    check_env(make(reward=reward, render_mode="rgb_array").unwrapped)


@unbounded
def test_its_spaces_are_those_of_the_paper():
    env = make()
    assert env.action_space == gymnasium.spaces.Discrete(100)
    assert env.observation_space.shape == (50,)
    assert env.observation_space.dtype == np.float32


@unbounded
@rewards
def test_steps_agree_with_the_tables(reward):
    env = make(reward=reward, layout=3, terminal=60)
    tables = tightrope_simulator(3, reward=reward, terminal=60)
    rng = np.random.default_rng(0)
    endings = set()
    for episode in range(200):
        observation, _ = env.reset(seed=episode)
        position, goal, over = 0, env.unwrapped._state.goal, False
        assert 1 <= goal <= 10 if reward == "sparse" else goal == 10
        np.testing.assert_array_equal(observation, tables.observations[0])
        while not over:
            # Fatal actions now and then, so that episodes get to the goal as well.
            action = int(rng.integers(100)) if rng.random() < 0.1 else safe_action(env)
            safe = not tables.fatal[position, action]
            position += safe
            arrived = safe and position == goal
            paid = {"sparse": 1.0 * arrived, "dense": 0.1 * safe}[reward]
            observation, got, over, truncated, info = env.step(action)
            np.testing.assert_array_equal(observation, tables.observations[position])
            assert got == pytest.approx(paid, rel=1e-6)
            assert over == (arrived or not safe)
            assert not truncated
            assert info == {}
        endings.add(arrived)
    assert endings == {True, False}


@unbounded
def test_a_seed_gives_the_same_episode_again():
    env = make(terminal=50)

    def goals(seed):
        env.reset(seed=seed)
        first = env.unwrapped._state.goal
        return [first, *(env.reset() and env.unwrapped._state.goal for _ in range(20))]

    assert goals(7) == goals(7)
    assert goals(7) != goals(8)
    assert len(set(goals(7))) > 1  # an episode is not the one before it


@unbounded
def test_the_layout_draws_the_fatal_actions():
    tables = [make(layout=layout).unwrapped.simulator.fatal for layout in (0, 0, 1)]
    np.testing.assert_array_equal(tables[0], tables[1])
    assert not np.array_equal(tables[0], tables[2])
    np.testing.assert_array_equal(tables[2], tightrope_simulator(1).fatal)


@unbounded
def test_impossible_options_are_refused():
    with pytest.raises(InputError, match="--terminal: 120 is not possible"):
        make(terminal=120)


def places(image, colour):
    """The states in whose square this colour is."""
    there = np.all(image == np.array(colour, np.uint8), axis=-1).any(axis=0)
    return sorted({int(x) // 24 for x in np.flatnonzero(there)})


@unbounded
def test_a_picture_shows_walker_and_goal():
    env = make(render_mode="rgb_array")
    env.reset(seed=0)
    while env.unwrapped._state.goal < 4:
        env.reset()
    goal = env.unwrapped._state.goal
    for position in range(3):
        image = env.render()
        assert image.dtype == np.uint8
        assert image.shape == (40, 11 * 24, 3)
        assert places(image, ORANGE) == [position]
        assert places(image, GREEN) == [goal]
        assert places(image, GREY) == list(range(11))  # the rope runs through
        env.step(safe_action(env))


@unbounded
def test_without_a_render_mode_there_is_no_picture():
    env = make().unwrapped
    env.reset(seed=0)
    assert env.render() is None


@rewards
def test_make_builds_tightrope_with_its_options(reward):
    env = save_rl.make("tightrope", 5, reward=reward, terminal=30)
    assert isinstance(env, Tightrope)
    for one, other in zip(env, tightrope(5, reward=reward, terminal=30), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(env.fatal.sum(1), np.full(11, 30))


def test_make_builds_anybodys_factory_with_or_without_a_seed():
    simulator = save_rl.make("save_rl.envs.tightrope:tightrope_simulator", 5, terminal=10)
    np.testing.assert_array_equal(simulator.fatal, tightrope_simulator(5, terminal=10).fatal)
    assert save_rl.make("collections:UserDict", 5, colour="red") == {"colour": "red"}


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("tightrop", {}, "Did you mean 'tightrope'"),
        ("tightrope", {"goal": 3}, "there is no option 'goal'; known: reward, terminal"),
        ("tightrope", {"terminal": 101}, "--terminal: 101 is not possible"),
        ("save_rl.envs.tightrope:missing", {}, "has no 'missing'"),
    ],
)
def test_make_refuses_what_it_does_not_know(env, options, said):
    with pytest.raises(InputError, match=said):
        save_rl.make(env, **options)


@rewards
def test_tightrope_is_a_jax_environment_and_its_simulator_is_not(reward):
    assert not runs_on_host(tightrope(0, reward=reward), "mine:tightrope")
    assert runs_on_host(tightrope_simulator(0, reward=reward), "mine:tightrope_simulator")


# ---- Atari


def test_an_atari_game_passes_gymnasiums_own_checks():
    env = gymnasium.make("save_rl/Atari-v0", game="MsPacman", render_mode="rgb_array")
    assert env.action_space == gymnasium.spaces.Discrete(18)
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    check_env(env.unwrapped)


def test_an_atari_game_is_played_as_the_simulator_plays_it():
    env = gymnasium.make("save_rl/Atari-v0", game="ms_pacman", max_frames=60)
    seen, _ = env.reset(seed=3)
    sim = save_rl.make("atari/ms_pacman", max_frames=60)
    state, over = env.unwrapped._state, False
    while not over:
        np.testing.assert_array_equal(seen, sim.observe(state)["frames"])
        state, reward, terminated, truncated = sim.step(state, 3)
        seen, *got, _ = env.step(3)
        assert got == [reward, terminated, truncated]
        over = terminated or truncated
    assert truncated


def test_a_game_that_there_is_not_is_refused():
    with pytest.raises(InputError, match="Did you mean 'ms_pacman'"):
        gymnasium.make("save_rl/Atari-v0", game="ms_packman")
