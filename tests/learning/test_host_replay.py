"""The ring on the host against plain Python lists of transitions and episodes."""

from collections import deque

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.learning import host_replay
from tests.learning.test_replay import GAMMA, transitions

# (lanes, capacity): rows that do and do not fill the capacity exactly, one lane, one row.
sizes = pytest.mark.parametrize(("lanes", "capacity"), [(4, 10), (3, 9), (1, 5), (3, 3)])


class Reference:
    """The newest transitions, each with the rewards of its episode from there on."""

    def __init__(self, capacity):
        self.newest = deque(maxlen=capacity)
        self.going = {}  # by lane: the transitions of its episode

    def add(self, step, lanes, rewards, moved, over):
        for lane in range(lanes):
            if not moved[lane]:
                self.going[lane] = []  # abandoned: no reward will follow, and no end
                continue
            entry = {"number": step * lanes + lane, "rewards": [], "ended": False}
            self.newest.append(entry)
            self.going.setdefault(lane, []).append(entry)
            for other in self.going[lane]:
                other["rewards"].append(rewards[lane])
                other["ended"] = over[lane]
            if over[lane]:
                self.going[lane] = []


def total(rewards):
    return sum(GAMMA**k * reward for k, reward in enumerate(rewards))


def sample(ring, rng, shape):
    return host_replay.take(ring, host_replay.draw(ring, rng, shape))


def everything(ring):
    """All that can be sampled, by the number of the transition."""
    rng = np.random.default_rng(0)
    held = min(int(ring.added), len(ring.lane))
    if held == 0:
        return {}
    data, returns, finished = sample(ring, rng, (60 * held,))
    return {int(number): (data, i, returns[i], finished[i]) for i, number in enumerate(data.action)}


@st.composite
def histories(draw, lanes):
    """Rewards, whether lanes moved, and whether their episodes ended; by lock-step."""
    steps = draw(st.integers(1, 12))

    def table(values):
        row = st.lists(st.sampled_from(values), min_size=lanes, max_size=lanes)
        return np.array(draw(st.lists(row, min_size=steps, max_size=steps)))

    moved = table([True, True, True, False])
    return table([-1.0, 0.0, 0.25, 1.0]), moved, table([False, False, True]) & moved


@sizes
@given(data=st.data())
@settings(max_examples=15)
def test_it_holds_the_newest_transitions_and_their_returns(lanes, capacity, data):
    rewards, moved, over = data.draw(histories(lanes))
    ring = host_replay.empty(transitions(0, lanes, rewards[0]), capacity)
    reference = Reference(capacity)
    for step in range(len(rewards)):
        new = transitions(step, lanes, np.where(moved[step], rewards[step], 99.0))
        host_replay.add(ring, new, moved[step], over[step], GAMMA, True)
        reference.add(step, lanes, rewards[step], moved[step], over[step])
        held = everything(ring)
        assert set(held) == {entry["number"] for entry in reference.newest}
        for entry in reference.newest:
            stored, i, returns, finished = held[entry["number"]]
            t, lane = divmod(entry["number"], lanes)
            for field, expected in zip(stored, transitions(t, lanes, rewards[t]), strict=True):
                np.testing.assert_array_equal(field[i], expected[lane])
            assert finished == entry["ended"]
            assert returns == pytest.approx(total(entry["rewards"]), abs=1e-5)
    assert ring.added == moved.sum()


def test_a_hand_worked_episode():
    # One lane; rewards 1, 2, 4 and then a new episode with 8, which is abandoned; γ = ½.
    # After three steps: 1 + 2/2 + 4/4 = 3, 2 + 4/2 = 4, 4. Nothing later changes them.
    ring = host_replay.empty(transitions(0, 1, [0.0]), 5)
    yes, no = np.array([True]), np.array([False])
    for step, (reward, moved, over) in enumerate(
        [(1.0, yes, no), (2.0, yes, no), (4.0, yes, yes), (8.0, yes, no), (0.0, no, no),
         (16.0, yes, yes)]
    ):  # fmt: skip
        host_replay.add(ring, transitions(step, 1, [reward]), moved, over, 0.5, True)
    np.testing.assert_allclose(ring.returns, [3.0, 4.0, 4.0, 8.0, 16.0])
    np.testing.assert_array_equal(ring.unfinished, [False, False, False, True, False])
    assert ring.added == 5


def test_without_tracking_samples_are_whole_transitions_all_the_same():
    lanes = 3
    ring = host_replay.empty(transitions(0, lanes, [0.0] * 3), 7)
    never = np.zeros(3, bool)
    for step in range(5):
        new = transitions(step, lanes, [step, -step, 0.5])
        host_replay.add(ring, new, ~never, never, GAMMA, False)
    held = everything(ring)
    assert set(held) == set(range(8, 15))
    for number, (stored, i, _, _) in held.items():
        t, lane = divmod(number, lanes)
        for field, expected in zip(stored, transitions(t, lanes, [t, -t, 0.5]), strict=True):
            np.testing.assert_array_equal(field[i], expected[lane])


@pytest.mark.parametrize("steps", [2, 9])
def test_samples_are_uniform_and_of_the_shape_asked_for(steps):
    lanes, capacity = 3, 10
    ring = host_replay.empty(transitions(0, lanes, [0.0] * 3), capacity)
    never = np.zeros(3, bool)
    for step in range(steps):
        host_replay.add(ring, transitions(step, lanes, [0.0] * 3), ~never, never, GAMMA, False)
    drawn, returns, finished = sample(ring, np.random.default_rng(1), (20, 150))
    assert drawn.target.shape == (20, 150, 3)
    assert drawn.next_mask.shape == (20, 150, 0)
    assert returns.shape == finished.shape == (20, 150)
    counts = np.bincount(drawn.action.ravel(), minlength=steps * lanes)
    held = min(capacity, steps * lanes)
    assert not counts[:-held].any()
    assert scipy.stats.chisquare(counts[-held:]).pvalue > 1e-3


def test_samples_are_copies():
    """What is learned from may still be looked at when the ring is written next."""
    ring = host_replay.empty(transitions(0, 1, [0.0]), 2)
    yes = np.array([True])
    host_replay.add(ring, transitions(0, 1, [1.0]), yes, yes, GAMMA, True)
    drawn, returns, _ = sample(ring, np.random.default_rng(0), (4,))
    for step in (1, 2):
        host_replay.add(ring, transitions(step, 1, [5.0]), yes, yes, GAMMA, True)
    assert set(drawn.action) == {0}
    assert set(drawn.reward) == set(returns) == {1.0}
