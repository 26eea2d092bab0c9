"""Levels through the pool: what is wanted, what came, and the same with any number of workers."""

import os
import signal
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.envs import make
from save_rl.envs.construction.generators import scene_bin
from save_rl.envs.pool import Pool, Source
from save_rl.envs.worker import ANY_LEVEL, exactly
from tests.envs.pool_simulators import Walk, have_ended

# One worker of xdist runs them all, so that the pools they share are started once.
pytestmark = pytest.mark.xdist_group("levels")

LANES = 30
EPISODES = 300  # to see the shares of levels
HARDEST = {"covering": 2, "marble-run": 6}
TASKS = list(HARDEST)


def open_pool(env: str, workers: int, lanes: int = LANES, **options: Any) -> Pool:
    """Lanes of one environment in two groups."""
    sizes = [lanes - lanes // 3, lanes // 3]
    return Pool(
        [make(env, 0, **options)], sizes, workers=workers, sources=[Source(env, 0, options)]
    )


@pytest.fixture(scope="module")
def shared():
    """Opens the pool of an environment with a number of workers when it is first asked for."""
    pools: dict[tuple[str, int], Pool] = {}

    def find(env: str, workers: int) -> Pool:
        if (env, workers) not in pools:
            pools[env, workers] = open_pool(env, workers)
        return pools[env, workers]

    yield find
    for pool in pools.values():
        pool.close()


# Workers take seconds to load these simulators, so that the long checks alone have all four.
WHERE = [
    pytest.param("covering", 0, id="covering-here"),
    pytest.param("marble-run", 2, id="marble-run-two workers"),
    pytest.param("covering", 2, id="covering-two workers", marks=pytest.mark.slow),
    pytest.param("marble-run", 0, id="marble-run-here", marks=pytest.mark.slow),
]


@pytest.fixture
def pool(shared, env, workers) -> Pool:
    found = shared(env, workers)
    assert found.workers == workers
    return found


everywhere = pytest.mark.parametrize(("env", "workers"), WHERE)
each_task = pytest.mark.parametrize("env", TASKS)


def begin(pool: Pool, seeds: Any, *wanted: Any) -> None:
    """Begin an episode in every lane."""
    seeds = np.asarray(seeds)
    for group, (low, high) in enumerate(pool.groups):
        here = [x[low:high] if isinstance(x, np.ndarray) else x for x in wanted]
        pool.reset(group, np.arange(low, high), seeds[low:high], *here)
    assert not pool.lost.any()


def levels_of(pool: Pool, first: int, count: int, *wanted: Any) -> np.ndarray:
    """Levels of `count` episodes, with seeds from `first` on."""
    found = []
    for start in range(first, first + count, LANES):
        begin(pool, np.arange(start, start + LANES), *wanted)
        found.append(pool.arrays.level.copy())
    return np.concatenate(found)[:count]


def assert_shows(pool: Pool, lane: int, simulator: Any, state: Any) -> None:
    """A lane stands at the beginning of this episode, and tells what it is like."""
    arrays = pool.arrays
    assert arrays.level[lane] == state.scene.level
    assert arrays.kind[lane] == scene_bin(state.scene)
    for name, x in simulator.observe(state).items():
        np.testing.assert_array_equal(arrays.observation[name][lane], x)
    np.testing.assert_array_equal(arrays.mask[lane], simulator.action_mask(state))


# What is wanted


def test_requests_can_be_told_apart():
    """A level up to which to draw, just a level, or none: all have numbers of their own."""
    requests = [ANY_LEVEL, *range(50), *(exactly(level) for level in range(50))]
    assert len(set(requests)) == 101
    assert all(exactly(level) < 0 for level in range(50))


@everywhere
def test_exactly_gives_just_that_level(pool, env):
    for level in range(HARDEST[env] + 1):
        begin(pool, np.arange(LANES) + 100 * level, exactly(level))
        assert pool.arrays.level.tolist() == [level] * LANES
        assert (pool.arrays.kind == level).all() == (env == "covering")


# docs/construction/index.md#difficulty-and-curriculum
SHARES = {
    "covering": {0: [1], 1: [1 / 2] * 2, 2: [1 / 3] * 3},
    "marble-run": {
        0: [1],
        1: [1 / 3, 2 / 3],
        2: [1 / 7, 2 / 7, 4 / 7],
        6: [2**k / 127 for k in range(7)],
    },
}


@everywhere
def test_a_level_gives_episodes_up_to_it_in_their_shares(pool, env):
    for level, shares in SHARES[env].items():
        found = levels_of(pool, 1000 * level, EPISODES, level)
        counted = np.bincount(found, minlength=len(shares))
        assert len(counted) == len(shares)
        if len(shares) > 1:
            # Rare levels are counted as one.
            rare = max(1, sum(share * EPISODES < 8 for share in shares))
            seen = [counted[:rare].sum(), *counted[rare:]]
            expected = [
                EPISODES * sum(shares[:rare]),
                *(EPISODES * share for share in shares[rare:]),
            ]
            assert scipy.stats.chisquare(seen, expected).pvalue > 1e-3


@everywhere
@pytest.mark.parametrize("wanted", [(), (ANY_LEVEL,)], ids=["default", "any"])
def test_by_default_the_simulator_draws_as_it_does(pool, env, wanted):
    simulator = make(env)
    begin(pool, np.arange(LANES) + 7, *wanted)
    assert len(set(pool.arrays.level.tolist())) > 1
    for lane in range(LANES):
        assert_shows(pool, lane, simulator, simulator.reset(lane + 7))


@each_task
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"difficulty": 1}, {0, 1}),
        ({"difficulty": 1, "curriculum_sample": False}, {1}),
    ],
)
def test_options_of_the_simulator_hold_where_nothing_is_wanted(env, options, expected):
    with open_pool(env, 0, **options) as pool:
        begin(pool, np.arange(LANES))
        assert set(pool.arrays.level.tolist()) == expected
        begin(pool, np.arange(LANES), 2)
        assert set(pool.arrays.level.tolist()) == {0, 1, 2}
        begin(pool, np.arange(LANES), exactly(HARDEST[env]))
        assert set(pool.arrays.level.tolist()) == {HARDEST[env]}
        begin(pool, np.arange(LANES))
        assert set(pool.arrays.level.tolist()) == expected


@pytest.mark.parametrize("env", ["covering", pytest.param("marble-run", marks=pytest.mark.slow)])
def test_workers_know_the_options_too(env):
    with open_pool(env, 1, 4, difficulty=1, curriculum_sample=False) as pool:
        begin(pool, np.arange(4))
        assert pool.arrays.level.tolist() == [1] * 4
        begin(pool, np.arange(4), exactly(2))
        assert pool.arrays.level.tolist() == [2] * 4


@everywhere
def test_a_wish_holds_for_one_episode(pool):
    begin(pool, np.arange(LANES))
    before = pool.arrays.level.copy(), pool.arrays.kind.copy()
    begin(pool, np.arange(LANES), exactly(0))
    assert not pool.arrays.level.any()
    begin(pool, np.arange(LANES))
    np.testing.assert_array_equal(pool.arrays.level, before[0])
    np.testing.assert_array_equal(pool.arrays.kind, before[1])


@everywhere
def test_lanes_that_go_on_keep_their_level_and_kind(pool):
    begin(pool, np.arange(LANES), exactly(2))
    kinds = pool.arrays.kind.copy()
    pool.reset(0, np.array([1, 17]), np.array([50, 51]), exactly(0))
    expected = np.full(LANES, 2)
    expected[[1, 17]] = 0
    np.testing.assert_array_equal(pool.arrays.level, expected)
    others = expected == 2
    np.testing.assert_array_equal(pool.arrays.kind[others], kinds[others])


@everywhere
def test_steps_leave_level_and_kind_as_they_are(pool):
    begin(pool, np.arange(LANES), 2)
    level, kind = pool.arrays.level.copy(), pool.arrays.kind.copy()
    for group, (low, high) in enumerate(pool.groups):
        actions = pool.arrays.mask[low:high].argmax(1)
        pool.step(group, np.zeros(high - low, int), actions, 1)
        pool.receive(group)
        pool.advance(group, actions)
        pool.receive(group)
    np.testing.assert_array_equal(pool.arrays.level, level)
    np.testing.assert_array_equal(pool.arrays.kind, kind)


# The same with any number of workers


@pytest.mark.parametrize("env", ["marble-run", pytest.param("covering", marks=pytest.mark.slow)])
@settings(max_examples=10)
@given(data=st.data())
def test_every_lane_gets_what_it_wants_with_any_number_of_workers(shared, env, data):
    """Mixed wishes, against the simulator itself."""
    level = st.integers(0, HARDEST[env])
    wish = st.tuples(st.sampled_from(["any", "up to", "exactly"]), level)
    some = data.draw(st.lists(st.integers(0, LANES - 1), min_size=1, unique=True))
    wishes = data.draw(st.lists(wish, min_size=LANES, max_size=LANES))
    numbers = {"any": lambda level: ANY_LEVEL, "up to": int, "exactly": exactly}
    wanted = np.array([numbers[how](level) for how, level in wishes])
    first = data.draw(st.integers(0, 2**40))
    simulator, pools = make(env), [shared(env, workers) for workers in (0, 2)]
    for pool in pools:
        begin(pool, np.arange(LANES))
        for group, (low, high) in enumerate(pool.groups):
            lanes = np.array([lane for lane in some if low <= lane < high], int)
            pool.reset(group, lanes, first + lanes, wanted[lanes])
    for lane, (how, level) in enumerate(wishes):
        options = {"difficulty": level, "curriculum_sample": how == "up to"}
        if lane not in some:
            state = simulator.reset(lane)
        else:
            state = simulator.reset(first + lane, **({} if how == "any" else options))
        for pool in pools:
            assert_shows(pool, lane, simulator, state)


# What can go wrong


@pytest.mark.parametrize("workers", [0, 2])
def test_a_level_that_does_not_exist_is_a_fault_of_its_lane(shared, workers):
    pool = shared("marble-run", workers)
    begin(pool, np.arange(LANES))
    pool.reset(0, np.arange(4), np.arange(4), np.array([0, exactly(7), 7, exactly(2)]))
    assert np.flatnonzero(pool.lost).tolist() == [1, 2]
    assert pool.arrays.level[[0, 3]].tolist() == [0, 2]
    pool.reset(0, np.array([1, 2]), np.array([1, 2]), exactly(1))
    assert not pool.lost.any()
    assert pool.arrays.level[:4].tolist() == [0, 1, 1, 2]


def test_a_simulator_without_levels_says_nothing_about_them():
    with Pool([Walk()], [2]) as pool:
        pool.reset(0, np.arange(2), np.array([5, 6]))
        assert not pool.lost.any()
        assert pool.arrays.level.tolist() == [0, 0]
        assert pool.arrays.kind.tolist() == [0, 0]


def test_a_worker_that_is_replaced_does_not_change_what_other_lanes_want(shared):
    pool = shared("marble-run", 2)
    begin(pool, np.arange(LANES), exactly(3))
    gone = pool._workers[0].process.pid
    os.kill(gone, signal.SIGKILL)
    assert have_ended([gone])
    pool.reset(0, np.arange(20), np.arange(20), exactly(0))
    first, second = [True] * 10 + [False] * 10, [True] * 5 + [False] * 5  # the two groups
    assert pool.lost.tolist() == first + second
    assert pool.arrays.level[10:20].tolist() == [0] * 10
