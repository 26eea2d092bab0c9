"""Atari games: exactly the pictures and rewards of ale-py's own preprocessing, from any state."""

import importlib
import itertools
import sys
import threading
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from ale_py import ALEInterface, roms
from ale_py.vector_env import AtariVectorEnv

from save_rl.envs import make, make_simulator, runs_on_host
from save_rl.envs.atari import PAPER_GAMES, Atari, emulator, frames
from save_rl.envs.check import check_named
from save_rl.envs.layout import Layout
from save_rl.envs.pool import Pool, Source
from save_rl.errors import InputError, MissingExtra

# One worker of xdist runs them all, so that what they share is made once.
pytestmark = pytest.mark.xdist_group("atari")

QUICK_GAMES = ("ms_pacman", "beam_rider", "space_invaders")
TWO_PLAYERS = ("combat", "joust", "maze_craze", "warlords")
PLAYABLE = sorted({*roms.get_all_rom_ids()} - {*TWO_PLAYERS, *emulator.NOT_RESTORABLE})


def actions_of(seed, steps):
    """Random actions, each held for a while: an agent that flickers gets nowhere."""
    rng = np.random.default_rng(seed)
    held = np.cumsum(rng.random(steps) < 0.4)
    return rng.integers(18, size=steps + 1)[held].tolist()


def straight(sim, state, actions):
    """Every result of an episode, played from a state to the last action or the end."""
    results = []
    for action in actions:
        results.append(sim.step(state, action))
        state, _, terminated, _ = results[-1]
        if terminated:
            break
    return results


def same_state(one, two):
    return one.core == two.core and one[2:] == two[2:] and np.array_equal(one.stack, two.stack)


def same(one, two):
    return one[1:] == two[1:] and same_state(one[0], two[0])


# ---- the same as AtariVectorEnv


def oracle(game):
    return AtariVectorEnv(
        game, 1, full_action_space=True, reward_clipping=False, use_fire_reset=False, noop_max=0,
        repeat_action_probability=0.0, num_threads=1,
    )  # fmt: skip


def agrees_with_the_oracle(game, seed, steps):
    """Play to the end of the game or so many steps; returns the last state."""
    sim, vector = Atari(game), oracle(game)
    state, (seen, _) = sim.start(0), vector.reset(seed=seed + 1)
    assert not seen[0, :3].any()
    for action in actions_of(seed, steps):
        assert np.array_equal(np.moveaxis(seen[0], 0, -1), sim.observe(state)["frames"])
        state, reward, terminated, truncated = sim.step(state, action)
        seen, rewards, ends, cuts, info = vector.step(np.array([action]))
        assert (reward, terminated, truncated) == (rewards[0], ends[0], cuts[0])
        assert sim.lives(state) == info["lives"][0]
        if terminated:  # its last picture mixes screens of two steps
            break
    vector.close()
    return state


@pytest.mark.parametrize("game", QUICK_GAMES)
def test_pictures_and_rewards_are_those_of_ale_py(game):
    state = agrees_with_the_oracle(game, 0, 60)
    assert state.frames == 240
    assert len({state.stack[..., i].tobytes() for i in range(4)}) > 1


@pytest.mark.parametrize("game", ["carnival", "pooyan", "journey_escape", "air_raid"])
def test_screens_of_any_height(game):
    agrees_with_the_oracle(game, 1, 10)


@pytest.mark.slow
@pytest.mark.parametrize("game", PAPER_GAMES)
def test_whole_games_are_those_of_ale_py(game):
    for seed in range(2):
        agrees_with_the_oracle(game, seed, 1500)


# ---- shrinking


def exact_mean(screen):
    """`[84, 84]`: the mean of the area that a pixel covers, in fractions."""

    def shares(length):
        scale = Fraction(length, 84)
        return [
            [
                (pixel, (min((i + 1) * scale, pixel + 1) - max(i * scale, pixel)) / scale)
                for pixel in range(int(i * scale), length)
                if pixel < (i + 1) * scale
            ]
            for i in range(84)
        ]

    columns, rows = shares(screen.shape[0]), shares(screen.shape[1])
    narrow = [[sum(int(line[x]) * w for x, w in row) for row in rows] for line in screen]
    return [[sum(narrow[y][i] * w for y, w in column) for i in range(84)] for column in columns]


@pytest.mark.parametrize("height", [210, 250])
def test_a_pixel_is_the_mean_of_the_area_it_covers(height):
    rng = np.random.default_rng(height)
    screens = rng.integers(256, size=(2, height, 160), dtype=np.uint8)
    stack = frames.pushed(frames.NOTHING, *screens, frames.shrinking(height))
    assert not stack[..., :3].any()
    exact = exact_mean(screens.max(0))
    clear = 0
    for got, want in zip(stack[..., 3].ravel(), itertools.chain(*exact), strict=True):
        # Where the mean is not just at a half, single precision can't round it the other way.
        if abs(want % 1 - Fraction(1, 2)) > Fraction(1, 1000):
            clear += 1
            assert got == round(want)
    assert clear > 6900


@pytest.mark.parametrize(("dark", "mean"), [(2, 2), (3, 4)])
def test_a_half_is_rounded_to_even(dark, mean):
    """The 11th pixel of a line is made of one half each of two pixels."""
    screen = np.zeros((210, 160), np.uint8)
    screen[:, 19], screen[:, 20] = dark, dark + 1
    stack = frames.pushed(frames.NOTHING, screen, screen, frames.shrinking(210))
    assert (stack[:, 10, 3] == mean).all()


def test_white_stays_white():
    screen = np.full((210, 160), 255, np.uint8)
    stack = frames.pushed(frames.NOTHING, screen, 0 * screen, frames.shrinking(210))
    assert (stack[..., 3] == 255).all()


def test_the_newest_picture_comes_last():
    stack, columns = frames.NOTHING, frames.shrinking(210)
    for brightness in range(1, 7):
        screen = np.full((210, 160), brightness, np.uint8)
        stack = frames.pushed(stack, screen, screen, columns)
        want = [max(0, brightness - 3 + i) for i in range(4)]
        assert (stack == np.array(want, np.uint8)).all()
    assert (frames.repeated(stack) == np.array([4, 5, 6, 6], np.uint8)).all()
    assert not frames.NOTHING.any()


# ---- a pure function of the state


def restores_exactly(games, steps):
    """Steps from kept states, in any order and in turns with other games, come out the same."""
    sims = {game: Atari(game) for game in games}
    known = {}
    for number, (game, sim) in enumerate(sims.items()):
        before, actions = sim.reset(number), actions_of(number, steps)
        for result, action in zip(straight(sim, before, actions), actions, strict=False):
            known[game, len(known)] = (before, action, result)
            before = result[0]
    order = np.random.default_rng(0).permutation(len(known))
    keys = list(known)
    for i in order:
        state, action, result = known[keys[i]]
        assert same(sims[keys[i][0]].step(state, action), result)
    return len(known)


def bare_emulator(game):
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path(game))
    ale.reset_game()
    return ale


def plays_like_a_bare_emulator(game, steps):
    """Our episode, restored before every step, is that of an emulator that is never restored."""
    ale, reader = bare_emulator(game), bare_emulator(game)
    sim, columns = Atari(game), frames.shrinking(ale.getScreenDims()[0])
    state, before = sim.start(0), ale.getEpisodeFrameNumber()
    for action in actions_of(7, steps):
        gained, screens, stack = 0, [], state.stack
        while len(screens) < 4 and not ale.game_over():
            gained += ale.act(action)
            screens.append(ale.getScreenGrayscale())
        sim.step(sim.start(5), (action + 1) % 18)  # the shared emulator is elsewhere meanwhile
        state, reward, terminated, _ = sim.step(state, action)
        assert (reward, terminated) == (gained, ale.game_over())
        assert state.frames == ale.getEpisodeFrameNumber() - before
        reader.restoreState(state.core)
        assert np.array_equal(reader.getRAM(), ale.getRAM())
        if terminated:
            break
        assert np.array_equal(state.stack, frames.pushed(stack, *screens[2:], columns))
    return state


def test_steps_from_kept_states_come_out_the_same():
    assert restores_exactly(QUICK_GAMES, 50) == 150


@pytest.mark.slow
def test_steps_from_kept_states_come_out_the_same_everywhere():
    assert restores_exactly(PAPER_GAMES, 1000) > 5000


@pytest.mark.parametrize("game", QUICK_GAMES[:2])
def test_an_episode_is_that_of_an_emulator_that_is_never_restored(game):
    plays_like_a_bare_emulator(game, 60)


@pytest.mark.slow
@pytest.mark.parametrize("game", PAPER_GAMES)
def test_a_whole_game_is_that_of_an_emulator_that_is_never_restored(game):
    plays_like_a_bare_emulator(game, 2000)


@pytest.mark.slow
@pytest.mark.parametrize("game", PLAYABLE)
def test_all_that_can_be_played_is_restored_exactly(game):
    plays_like_a_bare_emulator(game, 500)


def test_games_that_are_not_restored_exactly_are_noticed(monkeypatch):
    monkeypatch.setattr(emulator, "NOT_RESTORABLE", ())
    with pytest.raises(AssertionError, match="assert"):
        plays_like_a_bare_emulator("tic_tac_toe_3d", 500)


def test_a_fresh_emulator_goes_on_from_anybodys_state():
    sim = Atari("ms_pacman")
    state = straight(sim, sim.reset(3), actions_of(3, 10))[-1][0]
    fresh = emulator.Emulator("ms_pacman")
    for action in range(4):
        core, stack, reward, played, over = fresh.play(state.core, state.stack, action)
        after, gained, terminated, _ = sim.step(state, action)
        assert after.core == core
        assert np.array_equal(after.stack, stack)
        assert (gained, terminated, after.frames) == (reward, over, state.frames + played)


def test_states_can_not_be_changed():
    sim = Atari("ms_pacman")
    for state in (sim.start(0), sim.reset(0), sim.step(sim.reset(0), 1)[0]):
        with pytest.raises(ValueError, match="read-only"):
            sim.observe(state)["frames"][0, 0, 0] = 1


def test_threads_take_turns(request):
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-5)
    sim = Atari("ms_pacman")
    first, actions = sim.reset(0), [actions_of(seed, 40) for seed in range(3)]
    alone = [straight(sim, first, each) for each in actions]
    found = {}

    def run(number):
        found[number] = straight(sim, first, actions[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, results in enumerate(alone):
        assert all(same(one, two) for one, two in zip(results, found[number], strict=True))


def test_the_real_step_is_the_child_that_the_search_expanded():
    """In the lanes of a pool: tried from the root, then taken; and another, taken untried."""
    sim = Atari("space_invaders")
    state = straight(sim, sim.reset(0), actions_of(0, 25))[-1][0]
    with Pool([sim], [2]) as pool:
        for lane in range(2):
            pool._local.place(lane, state)
        root = pool.arrays.observation["frames"].copy()
        pool.step(0, np.zeros(2, int), np.array([3, -1]), 1)
        pool.receive(0)
        child = {name: array[0].copy() for name, array in pool.arrays.observation.items()}
        pool.step(0, np.array([1, -1]), np.array([11, -1]), 2)
        pool.receive(0)
        pool.advance(0, np.array([3, 3]))
        pool.receive(0)
        for lane in range(2):
            for name, array in pool.arrays.observation.items():
                assert np.array_equal(array[lane], child[name])
        assert pool.arrays.reward[0] == pool.arrays.reward[1] == child["reward"]
        assert not np.array_equal(root[0], child["frames"])


# ---- episodes


def test_an_episode_begins_after_1_to_30_frames_without_a_press():
    sim = Atari("ms_pacman")
    starts = [sim.reset(seed) for seed in range(200)]
    assert {state.frames for state in starts} == set(range(1, 31))
    for state in starts[:20]:
        assert same_state(state, sim.start(state.frames))
        assert not state.stack[..., :3].any()
        assert state.stack[..., 3].any()
        assert state[2:] == (state.frames, 0, 0.0, False)


def test_a_start_depends_on_the_seed_alone():
    sim = Atari("beam_rider")  # one of those that a second reset_game does not put back exactly
    first = [sim.reset(seed) for seed in range(6)]
    straight(sim, first[0], actions_of(0, 40))
    Atari("ms_pacman").reset(1)
    assert all(same_state(sim.reset(seed), state) for seed, state in enumerate(first))
    assert not same_state(first[0], first[1])


def test_the_cap_is_a_truncation_that_a_search_can_look_past():
    sim = Atari("ms_pacman", max_frames=40)
    free = Atari("ms_pacman")
    assert (sim.max_steps, free.max_steps, free.max_frames) == (10, 27_000, 108_000)
    state = sim.start(4)
    results = straight(sim, state, [2] * 14)
    assert [r[0].frames for r in results] == list(range(8, 61, 4))
    assert [r[3] for r in results] == [r[0].frames >= 40 for r in results]
    assert not any(r[2] for r in results)
    others = straight(free, state, [2] * 14)
    assert all(same_state(one[0], two[0]) for one, two in zip(results, others, strict=True))


@pytest.fixture(scope="module")
def whole_game():
    """A game of Ms. Pac-Man that is played to its end: simulator and results."""
    sim = Atari("ms_pacman")
    results = straight(sim, sim.reset(0), actions_of(5, 3000))
    assert results[-1][2]
    return sim, results


def test_losing_a_life_is_nothing_special(whole_game):
    sim, results = whole_game
    lives = [sim.lives(state) for state, *_ in results]
    assert lives[0] == 3
    assert lives[-1] == 0
    assert sum(before > after for before, after in itertools.pairwise(lives)) >= 3
    assert [terminated for _, _, terminated, _ in results].count(True) == 1
    assert not any(truncated for *_, truncated in results)


def test_the_end_of_a_game(whole_game):
    sim, results = whole_game
    last, before = results[-1][0], results[-2][0]
    assert last.over
    assert not before.over
    assert 1 <= last.frames - before.frames <= 4
    with pytest.raises(InputError, match="this episode is over"):
        sim.step(last, 0)
    assert sim.observe(last)["frames"].shape == (84, 84, 4)
    assert np.array_equal(last.stack[..., :3], before.stack[..., 1:])
    # An end at the cap is an end.
    capped = Atari("ms_pacman", max_frames=last.frames)
    assert capped.step(before, results[-1][0].action)[2:] == (True, False)


@pytest.mark.parametrize("left", [1, 2, 3, 4])
def test_a_step_stops_where_the_game_is_over(whole_game, left):
    """And shows the picture before, but for an end on the very last of its frames."""
    sim, results = whole_game
    early, last = results[-3][0], results[-1][0]
    ale = bare_emulator("ms_pacman")
    ale.restoreState(early.core)
    for _ in range(last.frames - early.frames - left):
        ale.act(last.action)
    state = early._replace(core=ale.cloneState())
    screens = []
    for _ in range(left):
        assert not ale.game_over()
        ale.act(last.action)
        screens.append(ale.getScreenGrayscale())
    assert ale.game_over()
    after, _, terminated, _ = sim.step(state, last.action)
    assert terminated
    assert after.frames == state.frames + left
    if left == 4:
        shown = frames.pushed(state.stack, *screens[2:], frames.shrinking(210))
    else:
        shown = frames.repeated(state.stack)
    assert np.array_equal(after.stack, shown)
    assert (left < 4) == np.array_equal(after.stack[..., 3], state.stack[..., 3])


def test_the_reward_is_the_score_as_it_is(whole_game):
    sim, results = whole_game
    rewards = [reward for _, reward, *_ in results]
    assert {10.0, 200.0} & set(rewards)
    assert max(rewards) > 1
    seen = [sim.observe(state) for state, *_ in results]
    assert [float(s["reward"]) for s in seen] == rewards
    assert [int(s["action"]) for s in seen] == actions_of(5, 3000)[: len(results)]


# ---- by name, and where it is used


def test_pictures_travel_as_bytes():
    layout = Layout.of(make_simulator("atari/ms_pacman"))
    assert layout == (
        18, (("frames", "|u1", (84, 84, 4)), ("action", "<i4", ()), ("reward", "<f4", ())),
        False, False, 36442,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["ms_pacman", "MsPacman", "ms-pacman", "MSPACMAN"])
def test_a_game_has_one_emulator_by_any_of_its_names(name):
    sim = make(f"atari/{name}", max_frames=400)
    assert (sim.game, sim.max_frames, sim.num_actions) == ("ms_pacman", 400, 18)
    assert sim._emulator is Atari("ms_pacman")._emulator
    assert runs_on_host(sim, f"atari/{name}")


def test_the_games_of_the_paper_can_be_found():
    assert [emulator.find_game(game) for game in PAPER_GAMES] == sorted(PAPER_GAMES)
    assert len(PAPER_GAMES) == 14


def test_what_can_not_be_played_is_said_in_a_sentence(monkeypatch, tmp_path):
    with pytest.raises(InputError, match=r"no Atari game 'mspakman'; .* mean 'ms_pacman'\?$"):
        make("atari/mspakman")
    for game in ("qbert", "Tetris", "amidar", "koolaid", "YarsRevenge"):
        with pytest.raises(InputError, match="ale-py does not restore its states exactly"):
            make(f"atari/{game}")
    for game in TWO_PLAYERS:  # the emulator would end the process
        with pytest.raises(InputError, match=r"can't be loaded \(.* for one player\)\.$"):
            make(f"atari/{game}")
    with pytest.raises(InputError, match="max_frames: 0 is not possible"):
        make("atari/ms_pacman", max_frames=0)
    with pytest.raises(InputError, match="there is no option 'max_frame'; known: max_frames"):
        make("atari/ms_pacman", max_frame=3)
    Atari("pong")  # that it has been loaded before makes no difference
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    sentence = r"^ENV: the ROM of 'pong' can't be loaded \([^\n]*\)\.$"
    with pytest.raises(InputError, match=sentence):
        make("atari/pong")
    (tmp_path / "pong.bin").write_bytes(b"not this")
    with pytest.raises(InputError, match=r"\(The hash of pong.bin does not match [^\n]*\)\.$"):
        make("atari/pong")


def test_impossible_seeds_and_actions():
    sim = Atari("ms_pacman")
    with pytest.raises(InputError, match="seed: -1 is not possible"):
        sim.reset(-1)
    for action in (-1, 18):
        with pytest.raises(InputError, match=f"action: {action} is not possible; it must be from"):
            sim.step(sim.reset(0), action)


def test_without_ale_py_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("save_rl.envs.atari")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingExtra, match=r"ale-py; install it with: pip install 'save-rl\[atari"):
        importlib.import_module("save_rl.envs.atari")
    with pytest.raises(MissingExtra, match=r"save-rl\[atari\]"):
        make("atari/ms_pacman")


def test_a_picture_to_look_at(whole_game):
    sim, results = whole_game
    state = results[40][0]
    picture = sim.render(state)
    assert (picture.shape, picture.dtype) == ((336, 252, 3), np.uint8)
    assert np.array_equal(picture[::4, ::3, 1], state.stack[..., 3])
    assert np.array_equal(picture[3::4, 2::3, 0], state.stack[..., 3])


@pytest.mark.slow
def test_it_keeps_the_promises_of_a_simulator():
    report = check_named("atari/ms_pacman", {"max_frames": 200}, seeds=2, seconds=3)
    assert report.ok, report
    verdicts = {(finding.subject, finding.verdict) for finding in report.findings}
    subjects = ("processes", "render", "saving", "seeds")
    assert {(subject, "ok") for subject in subjects} <= verdicts


@pytest.mark.parametrize("game", QUICK_GAMES)
def test_a_state_that_was_saved_as_bytes_goes_on_the_same(game):
    sim, actions = Atari(game), actions_of(5, 40)
    state = straight(sim, sim.reset(2), actions)[-1][0]
    loaded = Atari(game).load_state(sim.save_state(state))
    assert same_state(state, loaded)
    results = (straight(sim, start, actions) for start in (state, loaded))
    assert all(same(one, two) for one, two in zip(*results, strict=True))


@pytest.fixture(scope="module")
def pools():
    """Three lanes with two workers, and the same without."""
    sim, source = Atari("ms_pacman"), Source("atari/MsPacman", 0, {})
    with (
        Pool([sim], [3], workers=2, sources=[source]) as workers,
        Pool([sim], [3], workers=0, sources=[source]) as here,
    ):
        yield workers, here


def test_two_workers_play_the_same(pools):
    shown = []
    for pool in pools:
        pool.reset(0, np.arange(3), np.arange(3))
        for action in (3, 5, 0):
            pool.step(0, np.zeros(3, int), np.full(3, action), 1)
            pool.receive(0)
            pool.advance(0, np.array([action, 1, 2]))
            pool.receive(0)
        assert not pool.lost.any()
        shown.append(pool.arrays.observation["frames"].copy())
    assert np.array_equal(*shown)


def test_lanes_go_on_in_another_pool_from_what_one_has_saved(pools):
    workers, here = pools
    workers.reset(0, np.arange(3), np.arange(3))
    workers.advance(0, np.array([3, 4, 5]))
    workers.receive(0)
    workers.lost[1] = True  # as after a fault
    here.load(0, workers.save(0))
    shown = []
    for pool in pools:
        assert pool.lost.tolist() == [False, True, False]
        pool.advance(0, np.array([2, 2, 2]))
        pool.receive(0)
        shown.append(pool.arrays.observation["frames"][[0, 2]].copy())
    assert np.array_equal(*shown)
