"""n-step transitions of both rings against a loop over recorded episodes, step by step."""

import functools
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.learning import host_replay, replay
from tests.learning.test_host_replay import empty_like, take
from tests.learning.test_replay import GAMMA, transitions

LANES, STEPS, CAPACITY = 3, 9, 16  # the rings forget the first transitions
DRAWS = 300  # of 16 transitions: one is missed with probability 16 x (15/16)^300

_add = jax.jit(replay.add, static_argnames=("gamma", "track"))
_sample = jax.jit(replay.sample, static_argnames=("capacity", "shape", "n_step"))


class History(NamedTuple):
    """What happened, `[steps, lanes]`; a lane that does not move has lost its episode."""

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    moved: np.ndarray


@st.composite
def histories(draw, moved=1.0):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape, ends = (STEPS, LANES), draw(st.sampled_from([0.0, 0.15, 0.4]))
    moves = rng.random(shape) < moved
    terminated = (rng.random(shape) < ends) & moves
    truncated = (rng.random(shape) < ends) & moves
    return History(rng.choice([-1.0, 0.5, 2.0], shape), terminated, truncated, moves)


def recorded(history):
    """The episodes: lists of (number of the transition, reward, terminated), lane by lane."""
    episodes = []
    for lane in range(LANES):
        episode = []
        for t in range(STEPS):
            if not history.moved[t, lane]:
                episodes, episode = [*episodes, episode], []
                continue
            number = t * LANES + lane
            episode.append((number, history.reward[t, lane], history.terminated[t, lane]))
            if history.terminated[t, lane] or history.truncated[t, lane]:
                episodes, episode = [*episodes, episode], []
        episodes.append(episode)
    return episodes


def by_hand(history, n):
    """By number: the sum of rewards, the discount, and the number of the last transition."""
    found = {}
    for episode in recorded(history):
        for begin, (number, _, _) in enumerate(episode):
            total, weight = 0.0, 1.0
            steps = episode[begin : begin + n]
            for _, reward, terminated in steps:
                total += weight * reward
                weight *= 0.0 if terminated else GAMMA
            found[number] = total, weight, steps[-1][0]
    return found


def at(history, t):
    """The transitions of lock-step `t`."""
    made = transitions(t, LANES, history.reward[t])
    discount = np.where(history.terminated[t], 0.0, GAMMA).astype(np.float32)
    return made._replace(discount=discount)


def check(drawn, history, n, newest):
    """All of the newest transitions were drawn, and each is what the episodes say."""
    expected = by_hand(history, n)
    assert set(drawn.action.tolist()) == set(newest)
    for i, number in enumerate(drawn.action.tolist()):
        total, weight, last = expected[number]
        assert drawn.reward[i] == pytest.approx(total, abs=1e-5)
        assert drawn.discount[i] == pytest.approx(weight, abs=1e-6)
        np.testing.assert_array_equal(drawn.observation[i], [number, -number])
        np.testing.assert_array_equal(drawn.next_observation[i], [last + 1, -last - 1])


@pytest.mark.parametrize("n", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
@settings(max_examples=10)
@given(history=histories())
def test_the_ring_on_the_device(n, history):
    ring = replay.empty(at(history, 0), CAPACITY, n)
    for t in range(STEPS):
        over = history.terminated[t] | history.truncated[t]
        ring = _add(ring, t, at(history, t), over, gamma=GAMMA, track=False)
    drawn, _, _ = _sample(ring, jax.random.key(0), STEPS - 1, CAPACITY, (DRAWS,), n)
    newest = range(STEPS * LANES - CAPACITY, STEPS * LANES)
    check(jax.tree.map(np.asarray, drawn), history, n, newest)


def of_seeds(make):
    """One seed, and another that is the same: `[2, ...]`."""
    return jax.tree.map(lambda x: np.stack([x, x]), make)


def host_ring(history, n, parts=((0, LANES),), running=None):
    """The rings of two seeds, filled part by part of the lanes."""
    ring = empty_like(of_seeds(at(history, 0)), CAPACITY, LANES if n > 1 else 0)
    begins = np.ones(LANES, bool)
    for t in range(STEPS):
        moment, over = of_seeds(at(history, t)), history.terminated[t] | history.truncated[t]
        for first, end in parts:
            own = functools.partial(lambda x, a, b: of_seeds(x[a:b]), a=first, b=end)
            ring = host_replay.add(
                ring, jax.tree.map(lambda x: x[:, first:end], moment),  # noqa: B023
                np.zeros((2, end - first, 2), int), own(history.moved[t]), own(over), GAMMA, False,
                first, running, own(begins),
            )  # fmt: skip
        begins = over | ~history.moved[t]
    return ring


def host_samples(ring, n):
    slots = host_replay.draw(ring, np.random.default_rng(0).spawn(2), (DRAWS,))
    data = take(ring, host_replay.chain(ring, slots, n))
    return [jax.tree.map(lambda x: x[seed], data) for seed in range(2)]  # noqa: B023


@pytest.mark.parametrize("n", [2, pytest.param(5, marks=pytest.mark.slow)])
@settings(max_examples=10)
@given(history=histories(moved=0.8))
def test_the_rings_of_simulators(n, history):
    numbers = np.flatnonzero(history.moved.reshape(-1))[-CAPACITY:].tolist()
    for drawn in host_samples(host_ring(history, n), n):
        check(drawn, history, n, numbers)


@settings(max_examples=10)
@given(history=histories())
def test_lanes_may_arrive_in_parts(history):
    ring = host_ring(history, 3, parts=((0, 1), (1, LANES)))
    for drawn in host_samples(ring, 3):
        check(drawn, history, 3, range(STEPS * LANES - CAPACITY, STEPS * LANES))


@settings(max_examples=5)
@given(history=histories())
def test_device_and_host_agree(history):
    n, ring = 3, replay.empty(at(history, 0), CAPACITY, 3)
    for t in range(STEPS):
        over = history.terminated[t] | history.truncated[t]
        ring = _add(ring, t, at(history, t), over, gamma=GAMMA, track=False)
    on_device, _, _ = _sample(ring, jax.random.key(1), STEPS - 1, CAPACITY, (DRAWS,), n)
    on_host, _ = host_samples(host_ring(history, n), n)
    one, other = (
        {int(a): (r, d, o.tolist()) for a, r, d, o in zip(
            x.action, x.reward, x.discount, np.asarray(x.next_observation), strict=True
        )} for x in (jax.tree.map(np.asarray, on_device), on_host)
    )  # fmt: skip
    assert one == other


def test_a_hand_worked_episode():
    # One lane, γ = 0.9, n = 2: rewards 1, 2, 4, then the time is up; then 8, and it is over.
    # 1 + 0.9 x 2 = 2.8 and on with 0.81; 2 + 0.9 x 4 = 5.6 and on with 0.81; 4, on with 0.9; 8.
    ring = replay.empty(transitions(0, 1, [0.0]), 6, 2)
    for t, (reward, discount, over) in enumerate(
        [(1, 0.9, False), (2, 0.9, False), (4, 0.9, True), (8, 0.0, True), (16, 0.9, False)]
    ):
        made = transitions(t, 1, [reward])._replace(discount=np.float32([discount]))
        ring = _add(ring, t, made, np.array([over]), gamma=0.9, track=False)
    drawn, _, _ = _sample(ring, jax.random.key(0), 4, 6, (DRAWS,), 2)
    found = dict(zip(drawn.action.tolist(), zip(*map(np.asarray, (
        drawn.reward, drawn.discount, drawn.next_observation[:, 0]
    )), strict=True), strict=True))  # fmt: skip
    # The newest has one step so far, and goes on from there.
    expected = {0: (2.8, 0.81, 2), 1: (5.6, 0.81, 3), 2: (4, 0.9, 3), 3: (8, 0, 4), 4: (16, 0.9, 5)}
    assert found.keys() == expected.keys()
    for number, values in expected.items():
        np.testing.assert_allclose(found[number], values, rtol=1e-6)


def test_a_new_episode_after_a_break_is_not_linked_to_the_last_one():
    """As when an actor is replaced: nothing says that its lane has lost an episode."""
    ring = empty_like(of_seeds(transitions(0, 1, [0.0])), 6, 1)
    yes, no = np.ones((2, 1), bool), np.zeros((2, 1), bool)
    for t, begins in enumerate([True, False, True, False]):
        ring = host_replay.add(
            ring, of_seeds(transitions(t, 1, [1.0])), np.zeros((2, 1, 2), int), yes, no, GAMMA,
            False, begins=yes if begins else no,
        )  # fmt: skip
    chains = host_replay.chain(ring, np.tile(np.arange(4), (2, 1)), 3)
    assert chains[0].tolist() == [[0, 1, -1], [1, -1, -1], [2, 3, -1], [3, -1, -1]]


def test_a_lane_that_comes_back_late_is_not_linked_to_what_was_overwritten():
    """On a cluster, fast actors may fill the ring between two steps of a slow one."""
    ring = empty_like(of_seeds(transitions(0, 1, [0.0])), 3, 2)
    yes, no = np.ones((2, 1), bool), np.zeros((2, 1), bool)
    for t, lane in enumerate([0, 1, 1, 1, 0]):
        ring = host_replay.add(
            ring, of_seeds(transitions(t, 1, [1.0])), np.zeros((2, 1, 2), int), yes, no, GAMMA,
            False, first=lane, begins=yes if t < 2 else no,
        )  # fmt: skip
    # Slots 0 to 2 now hold transitions 3, 4 and 2; that of lane 0 before 4 is gone.
    chains = host_replay.chain(ring, np.tile(np.arange(3), (2, 1)), 2)
    assert chains[1].tolist() == [[0, -1], [1, -1], [2, 0]]
