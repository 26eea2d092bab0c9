"""The ring on the device against a plain queue of transitions."""

import functools
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.learning import replay
from save_rl.learning.replay import Transition

GAMMA = 0.9
STEPS = 11
DRAWS = 1500  # of 10 transitions, one is missed in 1500 draws with probability 10 x 0.9^1500
# (lanes, capacity): rows that do and do not fill the capacity exactly, one lane, one row.
SIZES = [(4, 10), (3, 9), pytest.param(1, 5, marks=pytest.mark.slow), (7, 3)]
sizes = pytest.mark.parametrize(("lanes", "capacity"), SIZES)

add = jax.jit(replay.add, static_argnames=("gamma", "track"))
sample = jax.jit(replay.sample, static_argnames=("capacity", "shape"))


def transitions(step, lanes, rewards):
    """Lock-step `step`; every field can be recognized by the number of the transition."""
    number = step * lanes + np.arange(lanes)
    return Transition(
        observation=np.stack([number, -number], 1).astype(np.float32),
        action=number.astype(np.int32),
        reward=np.asarray(rewards, np.float32),
        discount=(number % 2 * GAMMA).astype(np.float32),
        next_observation=np.stack([number + 1, -number - 1], 1).astype(np.float32),
        target=np.repeat(number[:, None], 3, 1).astype(np.float32),
        mask=np.arange(3) <= number[:, None] % 3,
        next_mask=np.zeros((lanes, 0), bool),
    )


def discounted_return(rewards, over, step, lane, last):
    """Σ γ^k r from `step` to the end of its episode or `last`, and whether the episode ended."""
    total = 0.0
    for k, t in enumerate(range(step, last + 1)):
        total += GAMMA**k * rewards[t][lane]
        if over[t][lane]:
            return total, True
    return total, False


def histories(lanes):
    rewards = st.lists(
        st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0]), min_size=lanes, max_size=lanes),
        min_size=STEPS,
        max_size=STEPS,
    )
    over = st.lists(
        st.lists(st.sampled_from([False, False, True]), min_size=lanes, max_size=lanes),
        min_size=STEPS,
        max_size=STEPS,
    )
    return st.tuples(rewards, over)


def filled(lanes, capacity, rewards, over, track=True):
    """The ring after each lock-step."""
    ring = replay.empty(transitions(0, lanes, rewards[0]), capacity)
    for step in range(STEPS):
        ring = add(
            ring, step, transitions(step, lanes, rewards[step]), np.array(over[step]),
            gamma=GAMMA, track=track,
        )  # fmt: skip
        yield step, ring


@sizes
def test_samples_are_exactly_the_newest_transitions(lanes, capacity):
    rewards = over = np.zeros((STEPS, lanes))
    newest = deque(maxlen=capacity)
    for step, ring in filled(lanes, capacity, rewards, over > 0):
        newest.extend(step * lanes + lane for lane in range(lanes))
        drawn, _, _ = sample(ring, jax.random.key(step), step, capacity, (DRAWS,))
        assert set(np.asarray(drawn.action).tolist()) == set(newest)


@pytest.mark.parametrize("track", [True, False])
def test_samples_are_whole_transitions(track):
    lanes, capacity = 4, 10
    rewards = np.arange(STEPS * lanes, dtype=float).reshape(STEPS, lanes) / 8
    for step, ring in filled(lanes, capacity, rewards, rewards < 0, track):
        drawn, _, _ = sample(ring, jax.random.key(step), step, capacity, (5, 8))
        assert drawn.action.shape == (5, 8)
        assert drawn.next_mask.shape == (5, 8, 0)
        drawn = Transition(*(np.asarray(x).reshape(40, *x.shape[2:]) for x in drawn))
        for i, number in enumerate(drawn.action):
            t, lane = divmod(int(number), lanes)
            for field, stored in zip(drawn, transitions(t, lanes, rewards[t]), strict=True):
                np.testing.assert_array_equal(field[i], stored[lane])


@sizes
@settings(max_examples=15)
@given(data=st.data())
def test_returns_are_those_of_the_episodes(lanes, capacity, data):
    rewards, over = data.draw(histories(lanes))
    for step, ring in filled(lanes, capacity, rewards, over):
        drawn, returns, finished = sample(ring, jax.random.key(step), step, capacity, (20,))
        returns, finished = np.asarray(returns), np.asarray(finished)
        for i, number in enumerate(np.asarray(drawn.action)):
            t, lane = divmod(int(number), lanes)
            total, ended = discounted_return(rewards, over, t, lane, step)
            assert returns[i] == pytest.approx(total, abs=1e-5)
            assert finished[i] == ended


def test_a_hand_worked_episode():
    # One lane; rewards 1, 2, 4 and then a new episode with 8; γ = ½.
    # After three steps: 1 + 2/2 + 4/4 = 3, 2 + 4/2 = 4, 4. The next reward changes none of them.
    ring = replay.empty(transitions(0, 1, [0.0]), 4)
    step_add = functools.partial(add, gamma=0.5, track=True)
    for step, (reward, over) in enumerate([(1.0, False), (2.0, False), (4.0, True)]):
        ring = step_add(ring, step, transitions(step, 1, [reward]), jnp.array([over]))
    np.testing.assert_allclose(np.asarray(ring.returns)[:3, 0], [3.0, 4.0, 4.0])
    assert not np.asarray(ring.unfinished)[:3].any()
    ring = step_add(ring, 3, transitions(3, 1, [8.0]), jnp.array([False]))
    np.testing.assert_allclose(np.asarray(ring.returns)[:, 0], [3.0, 4.0, 4.0, 8.0])
    np.testing.assert_array_equal(np.asarray(ring.unfinished)[:, 0], [False, False, False, True])


@sizes
def test_the_room_is_that_of_whole_rows(lanes, capacity):
    ring = replay.empty(transitions(0, lanes, np.zeros(lanes)), capacity)
    rows = ring.returns.shape[0]
    assert (rows - 1) * lanes < capacity <= rows * lanes
    assert ring.data.target.shape == (rows, lanes, 3)


def test_transitions_after_the_first_2_to_the_31_are_sampled_like_others():
    lanes, capacity = 4, 10
    rewards, first = np.zeros(lanes), 2**31 // lanes - 2
    ring = replay.empty(transitions(0, lanes, rewards), capacity)
    for step in range(5):
        made = transitions(step, lanes, rewards)
        ring = add(ring, first + step, made, rewards > 0, gamma=GAMMA, track=False)
        if step >= 2:
            drawn, _, _ = sample(ring, jax.random.key(0), first + step, capacity, (DRAWS,))
            newest = range((step + 1) * lanes - capacity, (step + 1) * lanes)
            assert set(np.asarray(drawn.action).tolist()) == set(newest)
