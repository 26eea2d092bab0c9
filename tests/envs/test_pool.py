"""Lanes of simulators come out the same wherever they live, and outlive what simulators do."""

import contextlib
import gc
import itertools
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.envs import make
from save_rl.envs.chance import lucky_step
from save_rl.envs.pool import Pool, Source
from save_rl.envs.watchdog import Watchdog
from save_rl.envs.worker import Request, _leave
from save_rl.envs.worker_process import WorkerProcess
from save_rl.errors import InputError, RunError
from tests.envs import pool_simulators
from tests.envs.pool_simulators import (
    END,
    GO,
    RAISING_SEED,
    Counting,
    Place,
    flawed,
    has_ended,
    have_ended,
    wait_until,
    wait_until_idle,
    workers,
)  # fmt: skip

# One worker of xdist runs them all, so that the pools they share are started once.
pytestmark = pytest.mark.xdist_group("pool")

SIZES = (3, 1, 2)  # lanes of each group, of each of two simulators
OWNERS = (0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1, 1)  # the simulators of these lanes
LANES = 12


def open_pool(
    name: str, sizes: Any = (4, 4), workers: int = 2, warn: Any = None, timeout: float = 0.0,
    simulators: int = 1, more: Any = None, **options: Any,
) -> Pool:  # fmt: skip
    env, seeds = f"tests.envs.pool_simulators:{name}", range(simulators)
    return Pool(
        [make(env, seed, **options) for seed in seeds], sizes, workers=workers,
        sources=[Source(env, seed, options) for seed in seeds], timeout=timeout, warn=warn,
        **(more or {}),
    )  # fmt: skip


def begin(pool: Pool, seeds: np.ndarray | None = None) -> None:
    """Begin an episode in every lane; lane i with seed i unless told otherwise."""
    seeds = np.arange(len(pool.lost)) if seeds is None else seeds
    for group, (low, high) in enumerate(pool.groups):
        pool.reset(group, np.arange(low, high), seeds[low:high])


def try_out(pool: Pool, group: int, actions: Any, node: int = 0, **more: Any) -> None:
    """A step of the search from one node in all lanes of a group."""
    pool.step(group, np.full(len(actions), node), np.array(actions), node + 1, **more)
    pool.receive(group)


def move(pool: Pool, group: int, actions: Any) -> None:
    pool.advance(group, np.array(actions))
    pool.receive(group)


def all_arrays(pool: Pool) -> dict[str, np.ndarray]:
    names = ("reward", "terminated", "truncated", "mask")
    return {**{n: getattr(pool.arrays, n) for n in names}, **pool.arrays.observation}


# The same lanes with any number of workers


class Book:
    """What lanes should answer: states by lane and node, over simulators that nobody hides."""

    def __init__(self, pool: Pool, simulators: list[Any]):
        self.simulators = [simulators[owner] for owner in OWNERS]
        self.states: list[dict[int, Any]] = [{} for _ in self.simulators]
        self.ended = [False] * len(self.simulators)
        self.pool = pool

    def reset(self, lane: int, seed: int) -> None:
        self.states[lane], self.ended[lane] = {0: self.simulators[lane].reset(seed)}, False
        self.expect(lane, (self.states[lane][0], 0.0, False, False))

    def step(self, lane: int, node: int, action: int, new: int, seed: int) -> None:
        simulator, state = self.simulators[lane], self.states[lane][node]
        result = lucky_step(simulator)(state, action, seed)
        if not result[2]:
            self.states[lane][new] = result[0]
        self.expect(lane, result)

    def advance(self, lane: int, action: int, seed: int) -> None:
        result = lucky_step(self.simulators[lane])(self.states[lane][0], action, seed)
        self.states[lane], self.ended[lane] = {0: result[0]}, bool(result[2] or result[3])
        self.expect(lane, result, shown=True)

    def expect(self, lane: int, result: Any, shown: bool = False) -> None:
        state, reward, terminated, truncated = result
        arrays, simulator = self.pool.arrays, self.simulators[lane]
        assert arrays.reward[lane] == reward
        assert arrays.terminated[lane] == terminated
        assert arrays.truncated[lane] == truncated
        if not terminated and hasattr(simulator, "action_mask"):
            np.testing.assert_array_equal(arrays.mask[lane], simulator.action_mask(state))
        if shown or not terminated:
            seen = simulator.observe(state)
            for name, x in (seen if isinstance(seen, dict) else {"": seen}).items():
                found = arrays.observation[name][lane]
                np.testing.assert_array_equal(found, np.asarray(x).astype(found.dtype))


@pytest.fixture(scope="module", params=["rich", "chance"])
def crowd(request):
    """The same lanes with 0 to 2 workers, and the simulators themselves."""
    with contextlib.ExitStack() as stack:
        counts = range(3) if request.param == "rich" else (0, 2)
        pools = [open_pool(request.param, SIZES, workers, simulators=2) for workers in counts]
        for pool in pools:
            stack.enter_context(pool)
            begin(pool)
        yield pools, [getattr(pool_simulators, request.param)(seed) for seed in (0, 1)]
        assert not any(pool.faults.any() for pool in pools)


def play_script(pools: list[Pool], book: Book, rng: random.Random, requests: int) -> None:
    """Random requests to all pools, in groups that overlap; all answers are compared."""
    draw = np.random.default_rng(rng.getrandbits(32))
    for number in range(1, requests + 1):
        groups = rng.sample(range(len(SIZES)), rng.randint(1, len(SIZES)))
        command = rng.choice(["step", "step", "step", "advance", "reset"])
        asked: dict[int, tuple[int, int, int]] = {}
        for group in groups:
            lanes = pools[0].groups[group].lanes
            nodes, actions = np.zeros(len(lanes), int), np.full(len(lanes), -1)
            seeds = draw.integers(2**63, size=len(lanes), dtype=np.uint64)
            for i, lane in enumerate(lanes.tolist()):
                if rng.random() < 0.8 and (command == "reset" or not book.ended[lane]):
                    nodes[i], actions[i] = rng.choice(list(book.states[lane])), rng.randrange(5)
                    asked[lane] = (int(nodes[i]), int(actions[i]), int(seeds[i]))
            for pool in pools:
                if command == "reset":
                    pool.reset(group, lanes[actions >= 0], seeds[actions >= 0])
                elif command == "step":
                    pool.step(group, nodes, actions, number, seeds)
                else:
                    pool.advance(group, actions, seeds)
        if command != "reset":
            for pool in pools:
                for group in groups:
                    pool.receive(group)
        for lane, (node, action, seed) in asked.items():
            if command == "reset":
                book.reset(lane, seed)
            elif command == "step":
                book.step(lane, node, action, number, seed)
            else:
                book.advance(lane, action, seed)
        for pool in pools[1:]:
            for name, array in all_arrays(pools[0]).items():
                assert array.tobytes() == all_arrays(pool)[name].tobytes(), (name, pool.workers)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), requests=st.integers(1, 40))
def test_any_number_of_workers_answers_like_the_simulators_themselves(crowd, seed, requests):
    pools, simulators = crowd
    book = Book(pools[0], simulators)
    for pool in pools:
        begin(pool)
    for lane in range(LANES):
        book.reset(lane, lane)
    play_script(pools, book, random.Random(seed), requests)


def test_observations_travel_in_single_precision_and_small_integers(crowd):
    for pool in crowd[0]:
        begin(pool)
        seen = pool.observation(np.array([11, 2]))
        if isinstance(seen, dict):
            kinds = {name: (x.dtype, x.shape) for name, x in seen.items()}
            assert kinds == {
                "place": (np.float32, (2, 2)), "count": (np.int32, (2,)),
                "picture": (np.uint8, (2, 2, 3)), "near": (np.bool_, (2, 4)),
            }  # fmt: skip
            seen = seen["place"]
        assert seen.dtype == np.float32
        np.testing.assert_array_equal(seen[:, 0], np.float32([11 / 3, 2 / 3]))
        before = seen.copy()
        begin(pool, np.full(LANES, 50))
        np.testing.assert_array_equal(seen, before)  # a copy


# What the search tried


@pytest.mark.parametrize("workers", [0, 1])
def test_a_real_step_that_the_search_has_tried_is_not_simulated_again(tmp_path, workers):
    diary = tmp_path / "diary"
    with open_pool("written", [2], workers, diary=str(diary), luck=False) as pool:
        begin(pool, np.array([10, 20]))
        try_out(pool, 0, [2, 3])  # leads to cells 16 and 0, which is an end
        assert pool.arrays.terminated.tolist() == [False, True]
        try_out(pool, 0, [4, -1], node=1)  # action 4, but not from the root
        assert len(diary.read_text().splitlines()) == 3
        move(pool, 0, [2, 3])
        assert len(diary.read_text().splitlines()) == 3
        assert pool.arrays.reward.tolist() == [16 / 7 - 6, 0 / 7 - 6]
        assert pool.arrays.terminated.tolist() == [False, True]
        np.testing.assert_array_equal(
            pool.observation(np.arange(2)), np.float32([[16 / 3, 1 / 7], [0, 1 / 7]])
        )
        move(pool, 0, [4, -1])
        move(pool, 0, [4, -1])  # nothing has been tried since
        lines = diary.read_text().splitlines()
        assert lines == ["step 10 2", "step 20 3", "step 16 4", "step 16 4", "step 11 4"]


@pytest.mark.parametrize("workers", [0, 2])
def test_lanes_go_on_from_what_another_pool_has_saved(workers):
    """Those that were lost stay lost; a state whose bytes are all zero is a state."""
    with open_pool("Saved", [4], 0) as before:
        begin(before)
        move(before, 0, [-1, 1, 2, 3])
        before.lost[2] = True  # as after a fault
        saved = before.save(0)
        move(before, 0, [4, 3, 2, 1])
        with open_pool("Saved", [4], workers) as after:
            after.load(0, saved)
            assert after.lost.tolist() == [False, False, True, False]
            move(after, 0, [4, 3, 2, 1])
            for name, array in all_arrays(before).items():
                kept = [0, 1, 3]
                np.testing.assert_array_equal(all_arrays(after)[name][kept], array[kept], name)


@pytest.mark.parametrize("workers", [0, 1])
def test_where_luck_counts_a_real_step_is_never_what_the_search_saw(tmp_path, workers):
    diary = tmp_path / "diary"
    with open_pool("written", [1], workers, diary=str(diary), luck=True) as pool:
        begin(pool, np.array([10]))
        try_out(pool, 0, [2], seeds=np.array([77], np.uint64))
        pool.advance(0, np.array([2]), np.array([78]))
        pool.receive(0)
        assert diary.read_text().splitlines() == ["step 10 2 77", "step 10 2 78"]


# Faults of one lane


class Watched(NamedTuple):
    pool: Pool
    said: list[str]


FAULTY = "the simulator 'tests.envs.pool_simulators:faulty'"


def watch_pool(name: str = "faulty", **more: Any) -> Watched:
    said: list[str] = []
    return Watched(open_pool(name, warn=said.append, **more), said)


@pytest.fixture(scope="module")
def diary(tmp_path_factory) -> Path:
    """Where the shared pools write what they are about to do."""
    return tmp_path_factory.mktemp("pools") / "diary"


@pytest.fixture(scope="module")
def shared_pools(diary):
    pools = {workers: watch_pool(workers=workers, diary=str(diary)) for workers in (0, 2)}
    yield pools
    for pool, _ in pools.values():
        pool.close()


@pytest.fixture(params=[0, 2])
def watched(request, shared_pools) -> Watched:
    """Eight lanes in two groups that all stand at their own number; no fault yet."""
    pool, said = shared_pools[request.param]
    begin(pool)
    move(pool, 0, [END] * 4)  # a finished episode: whatever went wrong before is forgiven
    begin(pool)
    said.clear()
    pool.faults[:] = 0
    return Watched(pool, said)


def assert_lane(pool: Pool, lane: int, start: int, steps: int) -> None:
    """A lane has made so many steps from where it started, the last of them just now."""
    assert not pool.lost[lane]
    assert pool.arrays.reward[lane] == (start + steps - 1) / 3
    place = pool.arrays.observation["place"][lane]
    np.testing.assert_array_equal(place, np.float32([(start + steps) / 3, steps]))
    assert pool.arrays.mask[lane].all()


SOFT = {
    "nan reward": "ValueError: step returned a reward that is not finite",
    "nan seen": "ValueError: observe returned place that is not finite",
    "infinite seen": "ValueError: observe returned place that is not finite",
    "other shape": "ValueError: observe returned place of shape (1,), and of shape (2,) before",
    "other names": "KeyError: 'place'",
    "fractions": "float64",
    "long mask": "ValueError: action_mask returned shape (20,), not (19,)",
    "empty mask": "ValueError: action_mask allows nothing in a state that is not terminal",
    "three": "ValueError: not enough values to unpack (expected 4, got 3)",
    "nothing": "TypeError: cannot unpack non-iterable NoneType object",
    "no number": "TypeError: float() argument must be",
    "raise": "ArithmeticError: the engine is on fire",
}


@pytest.mark.parametrize("command", [try_out, move], ids=["search", "episode"])
@pytest.mark.parametrize("flaw", SOFT)
def test_a_fault_costs_its_lane_the_episode_and_nobody_else(watched, flaw, command):
    pool, said = watched
    command(pool, 0, [GO, flawed(flaw), GO, GO])
    assert np.flatnonzero(pool.lost).tolist() == [1]
    for lane in (0, 2, 3):
        assert_lane(pool, lane, lane, 1)
    assert len(said) == 1
    assert SOFT[flaw] in said[0]
    assert "; an episode is restarted." in said[0]
    assert pool.faults.tolist() == [1]
    pool.reset(0, np.array([1]), np.array([30]))
    assert not pool.lost.any()
    if command is try_out:
        move(pool, 0, [GO] * 4)
    else:
        move(pool, 0, [-1, GO, -1, -1])
    assert_lane(pool, 1, 30, 1)
    move(pool, 0, [GO] * 4)
    for lane, start in enumerate([0, 30, 2, 3]):
        assert_lane(pool, lane, start, 2)
    move(pool, 1, [GO] * 4)
    assert_lane(pool, 6, 6, 1)


def test_a_simulator_that_leaves_the_program_costs_episodes_and_not_the_run(watched):
    pool, said = watched
    try_out(pool, 0, [GO, flawed("leave"), GO, GO])
    assert pool.lost[1]
    assert len(said) == 1
    begin(pool)
    move(pool, 0, [GO] * 4)
    assert_lane(pool, 1, 1, 1)


def test_an_episode_that_can_not_begin_leaves_its_lane_lost(watched):
    pool, said = watched
    pool.reset(1, np.array([4, 6]), np.array([RAISING_SEED, 60]))
    assert np.flatnonzero(pool.lost).tolist() == [4]
    assert "ArithmeticError: the engine is on fire" in said[0]
    move(pool, 1, [-1, GO, GO, GO])
    assert_lane(pool, 5, 5, 1)
    assert_lane(pool, 6, 60, 1)
    pool.reset(1, np.array([4]), np.array([40]))
    move(pool, 1, [GO, -1, -1, -1])
    assert_lane(pool, 4, 40, 1)


def test_faults_of_a_group_are_counted_for_its_simulator():
    with open_pool("faulty", [1, 2], 1, simulators=2) as pool:
        begin(pool)
        try_out(pool, 1, [GO, GO, flawed("raise"), flawed("three")])
        assert pool.faults.tolist() == [0, 2]


def test_a_worker_that_ends_is_a_fault_of_every_simulator_it_held():
    with open_pool("faulty", [2], 2, simulators=2) as pool:
        begin(pool)
        try_out(pool, 0, [flawed("exit"), GO, GO, GO])
        assert pool.faults.tolist() == [1, 0]
        assert pool.lost.tolist() == [True, True, False, False]
    with open_pool("faulty", [2], 1, simulators=2) as pool:
        begin(pool)
        try_out(pool, 0, [flawed("exit"), GO, GO, GO])
        assert pool.faults.tolist() == [1, 1]
        assert pool.lost.all()


# Lanes that can do more


@pytest.mark.parametrize("workers", [0, 2])
def test_lanes_of_another_kind_know_other_requests_and_share_other_arrays(workers):
    said: list[str] = []
    more = {"kind": Counting, "extra": Counting.FIELDS}
    with open_pool("faulty", [4, 2], workers, said.append, more=more) as pool:
        begin(pool)
        counted = pool.arrays["counted"]
        assert counted.shape == (6, 2)
        for number in (3, 5):
            pool.send(Request(Counting.COUNT, 0, new=number, budget=7, c=0.25))
            pool.receive(0)
        np.testing.assert_array_equal(counted, [[2, 507]] * 4 + [[0, 0]] * 2)
        assert pool.arrays.reward.tolist() == [0.25] * 4 + [0.0] * 2
        move(pool, 0, [GO] * 4)
        for lane in range(4):
            assert_lane(pool, lane, lane, 1)
        pool.send(Request(Counting.COUNT, 1, rule=1))
        pool.receive(1)
        assert np.flatnonzero(pool.lost).tolist() == ([4, 5] if workers else [4])
        assert "ValueError: too many" in said[0]


# Faults in a row


@pytest.mark.parametrize("command", [try_out, move], ids=["search", "episode"])
def test_five_faults_without_a_finished_episode_stop_with_the_last_traceback(watched, command):
    pool, said = watched
    for fault in range(4):
        begin(pool)
        command(pool, fault % 2, [flawed("three"), GO, GO, GO])
    assert len(said) == 4
    begin(pool)
    with pytest.raises(RunError) as error:
        command(pool, 0, [flawed("raise"), GO, GO, GO])
    text = str(error.value)
    assert text.startswith(
        "ENV: the simulator failed 5 times without finishing an episode; the last time with:\n"
    )
    assert "Traceback (most recent call last):" in text
    assert "pool_simulators.py" in text
    assert "in raises_on_purpose" in text
    assert text.endswith("ArithmeticError: the engine is on fire")


def test_faults_between_finished_episodes_never_stop(watched):
    pool, said = watched
    for _ in range(4):
        for _ in range(3):
            begin(pool)
            try_out(pool, 0, [flawed("raise"), GO, GO, GO])
        move(pool, 1, [GO, END, GO, GO])
    assert pool.faults.tolist() == [12]
    assert len(said) == 12


def test_an_end_that_the_search_saw_is_no_finished_episode(watched):
    pool, _ = watched

    def fail_after_a_look_at_the_end() -> None:
        begin(pool)
        try_out(pool, 0, [END, GO, GO, GO])
        move(pool, 0, [flawed("raise"), GO, GO, GO])

    for _ in range(4):
        fail_after_a_look_at_the_end()
    with pytest.raises(RunError):
        fail_after_a_look_at_the_end()


# Faults of a worker


def pids(pool: Pool) -> list[int]:
    """The process of every lane."""
    found = pool.arrays.observation["worker"].tolist()
    assert min(found) > 1
    return found


def assert_replaced(pool: Pool, before: list[int]) -> None:
    """The first worker's lanes are lost, and can begin anew; the second's know of nothing."""
    mine, others = [0, 1, 4, 5], [2, 3, 6, 7]
    assert np.flatnonzero(pool.lost).tolist() == mine
    assert pool.faults.tolist() == [1]
    pool.reset(0, np.array([0, 1]), np.array([10, 11]))
    pool.reset(1, np.array([4, 5]), np.array([14, 15]))
    assert not pool.lost.any()
    after = pids(pool)
    assert [after[lane] for lane in others] == [before[lane] for lane in others]
    assert len({*after, before[0]}) == 3
    assert have_ended([before[0]])
    for group in (0, 1):
        move(pool, group, [GO] * 4)
    for lane in mine:
        assert_lane(pool, lane, 10 + lane, 1)


def move_others(pool: Pool) -> None:
    """A step in the lanes of the second worker."""
    move(pool, 0, [-1, -1, GO, GO])
    move(pool, 1, [-1, -1, GO, GO])


@pytest.fixture
def pair(shared_pools) -> Watched:
    """Lanes of two workers, a step into their episodes."""
    pool, said = shared_pools[2]
    begin(pool)
    move(pool, 0, [END] * 4)
    begin(pool)
    for group in (0, 1):
        move(pool, group, [GO] * 4)
    said.clear()
    pool.faults[:] = 0
    return Watched(pool, said)


@pytest.mark.parametrize(
    ("flaw", "why"),
    [
        ("exit", "it exited with code 7"),
        ("segfault", r"it was killed by SIGSEGV, in reads_at_zero \(pool_simulators.py:\d+\)"),
    ],
)
def test_a_worker_that_ends_is_replaced(pair, flaw, why):
    pool, said = pair
    before = pids(pool)
    pool.step(0, np.zeros(4, int), np.array([GO, flawed(flaw), GO, GO]), 1)
    pool.step(1, np.zeros(4, int), np.array([GO] * 4), 1)
    pool.receive(0)
    pool.receive(1)
    pattern = rf"{FAULTY} failed \(A worker process died: {why}\); 4 episodes are restarted."
    assert len(said) == 1
    assert re.fullmatch(pattern, said[0])
    for lane in (2, 3, 6, 7):
        assert_lane(pool, lane, lane, 2)
    assert_replaced(pool, before)


def test_groups_are_received_in_any_order(pair):
    """The faults of a group are those of its own request."""
    pool, said = pair
    pool.step(0, np.zeros(4, int), np.array([GO, flawed("nan reward"), GO, GO]), 1)
    pool.step(1, np.zeros(4, int), np.array([GO, GO, GO, GO]), 1)
    wait_until(lambda: pool.answered([1, 0]) == 1)
    pool.receive(1)
    assert not pool.lost.any()
    for lane in (4, 5, 6, 7):
        assert_lane(pool, lane, lane, 2)
    wait_until(lambda: pool.answered([0]) == 0)
    pool.receive(0)
    assert np.flatnonzero(pool.lost).tolist() == [1]
    assert len(said) == 1


def test_one_call_waits_for_the_answers_of_all_workers(pair):
    pool, _ = pair
    for group in (0, 1):
        pool.step(group, np.zeros(4, int), np.array([GO] * 4), 1)
    assert pool.answered([1], wait=600.0) == 1
    assert pool.answered([0]) == 0  # workers answer in order
    for group in (1, 0):
        pool.receive(group)
    for lane in range(8):
        assert_lane(pool, lane, lane, 2)


def test_answers_may_fill_the_pipe():
    """A pipe has sixteen pages. Of the second answer only three bytes find a place at first: Linux
    fills up the last page with what is more than whole pages."""
    said: list[str] = []
    more = {"kind": pool_simulators.Talkative}
    with open_pool("walk", [1, 1], 1, said.append, more=more) as pool:
        begin(pool)
        for group, length in enumerate((16 * 4096 - 3, 4096 + 3)):
            pool.send(Request(pool_simulators.Talkative.FAIL, group, budget=length))
        wait_until_idle(pool._workers[0].process.pid)
        pool.receive(0)
        pool.receive(1)
        assert pool.lost.tolist() == [True, True]
        assert not any("died" in line for line in said)


def test_a_worker_that_died_need_not_be_waited_for(pair, diary):
    pool, said = pair
    before = pids(pool)
    pool.step(0, np.zeros(4, int), np.array([GO, flawed("sleep"), GO, GO]), 1)
    pool.step(1, np.zeros(4, int), np.array([GO] * 4), 1)
    wait_until(lambda: diary.exists() and diary.read_text().endswith(f"{before[1]} sleep\n"))
    assert pool.answered([0, 1]) is None
    os.kill(before[1], signal.SIGKILL)
    assert pool.answered([1, 0], wait=600.0) == 1
    assert not pool._replies.read(0.0)  # a wait for others does not end for it again
    pool.receive(1)
    pool.receive(0)
    assert len(said) == 1
    assert_replaced(pool, before)


@pytest.mark.parametrize("forks", [True, False], ids=["forked", "started"])
def test_a_process_of_a_simulator_does_not_hide_the_end_of_its_worker(tmp_path, forks):
    end, said = tmp_path / "end", []
    options = {"home": os.getpid(), "end": str(end), "forks": forks}
    with open_pool("forking", [2], 1, said.append, **options) as pool:
        begin(pool)
        pool.step(0, np.zeros(2, int), np.array([GO, flawed("exit")]), 1)
        assert have_ended(pids(pool))
        found = pool.answered([0], wait=60.0)
        end.touch()
        assert found == 0
        pool.receive(0)
        assert pool.lost.all()
        assert len(said) == 1


def test_a_process_leaves_the_pipes_of_its_worker_once():
    """Also if the worker has ended before; processes of this one may have other files there."""
    read, write = os.pipe()
    pipes = [write]
    _leave(pipes)
    assert os.read(read, 1) == b""  # nobody can write any more
    _leave(pipes)
    assert pipes == []
    os.close(read)


def test_a_worker_that_is_killed_at_work_is_replaced(pair, diary):
    pool, said = pair
    before = pids(pool)
    pool.step(0, np.zeros(4, int), np.array([GO, flawed("sleep"), GO, GO]), 1)
    pool.step(1, np.zeros(4, int), np.array([GO] * 4), 1)
    wait_until(lambda: diary.exists() and diary.read_text().endswith(f"{before[1]} sleep\n"))
    os.kill(before[1], signal.SIGKILL)
    pool.receive(0)
    pool.receive(1)
    why = "A worker process died: it was killed by SIGKILL"
    assert said == [f"{FAULTY} failed ({why}); 4 episodes are restarted."]
    for lane in (2, 3, 6, 7):
        assert_lane(pool, lane, lane, 2)
    assert_replaced(pool, before)


@pytest.mark.parametrize("command", ["search", "episode"])
def test_a_worker_that_is_killed_at_rest_is_one_fault(pair, command):
    """The first request that finds it gone is not the last that was on its way."""
    pool, said = pair
    before = pids(pool)
    os.kill(before[0], signal.SIGKILL)
    assert have_ended([before[0]])
    for group in (0, 1):
        if command == "search":
            pool.step(group, np.zeros(4, int), np.array([GO] * 4), 1)
        else:
            pool.advance(group, np.array([GO] * 4))
    for group in (0, 1):
        pool.receive(group)
    why = "A worker process died: it was killed by SIGKILL"
    assert said == [f"{FAULTY} failed ({why}); 4 episodes are restarted."]
    for lane in (2, 3, 6, 7):
        assert_lane(pool, lane, lane, 2)
    assert_replaced(pool, before)


class Late:
    """What waits for a worker, but first says some times that the time is over."""

    def __init__(self, poll, times):
        self._poll, self.left = poll, times

    def poll(self, limit):
        self.left -= 1
        return [] if self.left >= 0 else self._poll.poll()


@pytest.mark.parametrize("slow", [True, False])
def test_the_time_limit_is_for_a_call_and_not_for_all_that_a_worker_does(pair, monkeypatch, slow):
    pool, said = pair
    before = pids(pool)
    worker, numbers = pool._workers[0], itertools.count()
    monkeypatch.setattr(worker, "_calls", (lambda: next(numbers)) if slow else (lambda: 7))
    late = Late(worker._poll, 3)
    monkeypatch.setattr(worker, "_poll", late)
    try_out_briefly(pool, 0, [GO] * 4)
    assert late.left == (-1 if slow else 2)
    assert pool.lost.any() != slow
    assert len(said) == (0 if slow else 1)
    if not slow:
        assert_replaced(pool, before)


def test_calls_are_counted(pair):
    pool, _ = pair
    counted = pool.arrays.calls.copy()
    try_out(pool, 0, [GO, GO, -1, GO])
    move(pool, 1, [GO, -1, -1, -1])
    assert (pool.arrays.calls - counted).tolist() == [1, 1, 0, 1, 1, 0, 0, 0]


def test_a_worker_that_is_killed_at_rest_is_found_when_episodes_begin(pair):
    pool, said = pair
    before = pids(pool)
    os.kill(before[0], signal.SIGKILL)
    assert have_ended([before[0]])
    pool.reset(0, np.array([0, 3]), np.array([50, 53]))
    assert len(said) == 1
    assert_replaced(pool, before)
    move(pool, 0, [-1, -1, -1, GO])
    assert_lane(pool, 3, 53, 2)


def try_out_briefly(pool: Pool, group: int, actions: list[int]) -> None:
    """The same with a time limit, which a busy machine may not reach at any other moment."""
    pool._timeout = 1.0
    try_out(pool, group, actions)
    pool._timeout = 0.0


def test_a_worker_that_hangs_is_replaced():
    pool, said = watch_pool()
    with pool:
        begin(pool)
        before = pids(pool)
        try_out_briefly(pool, 0, [flawed("sleep"), GO, GO, GO])
        assert len(said) == 1
        why = r"it did not answer in time, in sleeps_for_ever \(pool_simulators.py:\d+\)"
        assert re.search(rf"^{FAULTY} failed \(A worker process died: {why}\); 4 ", said[0])
        assert_lane(pool, 2, 2, 1)
        move_others(pool)
        assert_replaced(pool, before)


def test_the_time_limit_is_for_simulators_and_not_for_compilers(tmp_path, monkeypatch):
    """The worker has compiled once it is waited for without a limit; the limit is a minute."""
    end, waiting = tmp_path / "end", Watchdog.waiting

    def let_it_compile(watchdog: Watchdog, *arguments: Any) -> None:
        end.touch()
        waiting(watchdog, *arguments)

    monkeypatch.setattr(Watchdog, "waiting", let_it_compile)
    with open_pool("compiling", [2], 1, timeout=60.0, end=str(end)) as pool:
        begin(pool)
        assert not pool.lost.any()
        assert end.exists()


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        pytest.param(  # test_a_worker_that_hangs_is_replaced has one that sleeps
            "sleep", ["it did not answer in time", "sleeps_for_ever"], marks=pytest.mark.slow
        ),
        pytest.param(
            "spin", ["it did not answer in time", "spins_for_ever"], marks=pytest.mark.slow
        ),
        ("segfault", ["it was killed by SIGSEGV", "Segmentation fault", "reads_at_zero"]),
    ],
)
def test_where_a_worker_was_when_it_ended_is_in_the_error(flaw, words):
    pool, _ = watch_pool(workers=1)
    with pool:
        begin(pool)
        mine = pids(pool)
        for _ in range(2):
            try_out(pool, 1, [GO, flawed("raise"), GO, flawed("raise")])
            try_out(pool, 0, [flawed("three"), GO, GO, flawed("three")])
            begin(pool)
        with pytest.raises(RunError) as error:
            try_out_briefly(pool, 0, [flawed(flaw), GO, GO, GO])
        for word in [*words, "pool_simulators.py"]:
            assert word in str(error.value)
    assert all(map(has_ended, mine))


def test_what_a_stopped_worker_gave_back_is_not_given_back_again():
    """Its file descriptors may be another's by the time the pool is closed."""
    pool, _ = watch_pool(workers=1)
    with pool:
        begin(pool)
        for _ in range(4):
            try_out(pool, 1, [flawed("raise")] * 4)
            begin(pool)
        with pytest.raises(RunError):
            try_out(pool, 0, [flawed("exit"), GO, GO, GO])
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(16)]
        pool.close()
        for other in others:
            os.close(other)


# Beginning and end


@pytest.mark.parametrize(
    ("how", "count", "words"),
    [
        ("raise", 2, ["Traceback", "in raises_on_purpose", "ArithmeticError: the engine is on"]),
        ("exit", 1, ["it exited with code 7"]),
        ("segfault", 1, ["it was killed by SIGSEGV", "reads_at_zero"]),
    ],
)
def test_a_simulator_that_workers_can_not_make_is_refused(how, count, words):
    files = open_files()
    with pytest.raises(RunError) as error:
        open_pool("not_here", workers=count, home=os.getpid(), how=how)
    assert str(error.value).startswith("ENV: a worker process could not make the simulator.\n")
    for word in words:
        assert word in str(error.value)
    assert workers(f'"home": {os.getpid()}') == []
    del error
    assert open_files() == files


def test_simulators_of_different_shapes_do_not_share_a_pool():
    alike = [pool_simulators.walk(), pool_simulators.walk(1)]
    for other, what in (
        (pool_simulators.countdown(), r"num_actions is 5 and 4; "),
        (pool_simulators.chance(), "stochastic is False and True; "),
        (pool_simulators.rich(), "observation is "),
    ):
        with pytest.raises(InputError, match=f"^ENV: its simulators of two seeds differ: {what}"):
            Pool([*alike, other], [2])


def test_a_worker_that_would_start_workers_is_told_how_to_avoid_it():
    with pytest.raises(RunError, match='if __name__ == "__main__"'):
        open_pool("starts_workers", workers=1, home=os.getpid())


def test_a_worker_that_can_not_be_started_leaves_nothing(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    files = open_files()
    with pytest.raises(FileNotFoundError) as error:
        open_pool("faulty", workers=2)
    del error
    assert open_files() == files


def open_files() -> int:
    gc.collect()  # tracebacks of earlier errors hold pools
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_left_of_pools_that_were_closed():
    counts = []
    for cycle in range(3):
        with open_pool("faulty", [2], 1 + (cycle == 0)) as pool:
            begin(pool)
            if cycle == 1:  # its worker is replaced
                try_out(pool, 0, [flawed("exit"), GO])
                begin(pool)
            mine = pids(pool)
            maps = [Path(f"/proc/{pid}/maps").read_text() for pid in (os.getpid(), *mine)]
            assert not any("/dev/shm" in text for text in maps)
        assert all(map(has_ended, mine))
        if cycle in (0, 2):
            counts.append(open_files())
    assert counts[0] == counts[1]
    pool.close()  # again does no harm


def test_an_exception_ends_the_workers(monkeypatch):
    """Workers that are busy get a moment of grace, all of them the same one."""
    mine, graces, stop = [], [], WorkerProcess.stop

    def stop_and_tell(worker: WorkerProcess, grace: float) -> None:
        graces.append(grace)
        stop(worker, grace)

    monkeypatch.setattr("save_rl.envs.pool.GRACE", 0.5)
    monkeypatch.setattr(WorkerProcess, "stop", stop_and_tell)
    with contextlib.suppress(ZeroDivisionError), open_pool("faulty", [2], 2) as pool:
        begin(pool)
        mine += pids(pool)
        pool.step(0, np.zeros(2, int), np.full(2, flawed("sleep")), 1)
        1 / 0  # noqa: B018
    assert 0 < graces[0] <= 0.5
    assert graces[1] == 0  # the first has used it up
    assert len(set(mine)) == 2
    assert all(map(has_ended, mine))


def test_what_a_worker_has_started_ends_with_it():
    with open_pool("helped", [1], 1) as pool:
        begin(pool)
        move(pool, 0, [GO])
        helper = int(pool.arrays.reward[0])
        assert not has_ended(helper)
    assert have_ended([helper])


PARENT = """
import sys
import numpy as np
from save_rl.envs.pool import Pool, Source
from tests.envs import pool_simulators as simulators

source = Source("tests.envs.pool_simulators:faulty", 0, {})
with Pool([simulators.faulty()], [4], workers=2, sources=[source]) as pool:
    pool.reset(0, np.arange(4), np.arange(4))
    print(*set(pool.arrays.observation["worker"].tolist()), flush=True)
    pool.advance(0, np.array([-1, int(sys.argv[1]), -1, 0]))
    pool.receive(0)
    print("rests", flush=True)
    sys.stdin.read()
"""


def start_parent(action: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, str(action)], text=True, cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("busy", [True, False], ids=["at work", "at rest"])
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(pytest.param(x, marks=pytest.mark.slow) for x in (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_workers_end_with_their_parent(number, busy):
    with start_parent(flawed("spin") if busy else GO) as parent:
        assert parent.stdout is not None
        mine = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(mine) == 2
        assert not any(map(has_ended, mine))
        if not busy:
            assert parent.stdout.readline() == "rests\n"
            for pid in mine:
                wait_until_idle(pid)
        parent.send_signal(number)
        assert parent.wait(1200) != 0
        assert have_ended(mine)


# The world of a worker


def test_a_worker_knows_no_jax_and_has_one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with open_pool("looking", [1], 1) as pool:
        begin(pool)
        seen = pool.observation(np.arange(1))
    assert seen["jax"].tolist() == [False]
    assert seen["threads"].tolist() == [1]
    assert seen["libraries"].tolist() == [1]
    assert os.getpid() not in seen["worker"]


def test_a_simulator_may_print(capfd):
    with open_pool("chatty", [4], 1) as pool:
        begin(pool)
        for _ in range(3):
            move(pool, 0, [GO] * 4)
        quiet = pool_simulators.walk()
        states = [Place(lane) for lane in range(4)]
        for _ in range(3):
            states = [quiet.step(state, GO)[0] for state in states]
        expected = [quiet.observe(state) for state in states]
        np.testing.assert_array_equal(pool.observation(np.arange(4)), np.float32(expected))
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("blah") == 3 * 4 * 20_000
