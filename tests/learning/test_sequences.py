"""Episodes cut into sequences, against windows cut from whole episodes one by one."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from save_rl.errors import InputError
from save_rl.learning import r2d2, sequences
from save_rl.learning.r2d2_settings import SequenceSettings
from save_rl.learning.sequences import (
    LEAD,
    Shapes,
    Step,
    Writer,
    priority,
    td_errors,
)

SHAPES = Shapes(frame=(3, 2), state=(2, 4), actions=5, searched=True)
PAPER = SequenceSettings()
SMALL = SequenceSettings(burn_in=10, train=20, period=10)
LENGTHS = (1, 2, 39, 40, 41, 80, 81, 119, 120, 121, 122, 160, 161)
# No burn-in; a burn-in that begins between two windows; windows side by side; one step at a time.
ODD = [
    SequenceSettings(burn_in=0, train=6, period=3),
    SequenceSettings(burn_in=7, train=9, period=4),
    SequenceSettings(burn_in=3, train=5, period=5),
    SequenceSettings(burn_in=2, train=1, period=1),
]


class Episode(NamedTuple):
    """What a lane did, `[length, ...]`; `last` is the picture after it."""

    frame: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    q_theta: np.ndarray
    state: np.ndarray
    q_mcts: np.ndarray
    last: np.ndarray
    capped: bool

    @property
    def previous_action(self):
        return np.append(0, self.action)[:-1]

    @property
    def previous_reward(self):
        return np.append(0, self.reward)[:-1]


def episode(rng, length, capped, tag):
    """A random episode. Rewards count up from the tag, so that each tells which step it was."""
    values = (length, SHAPES.actions)
    state = rng.normal(size=(length, *SHAPES.state)).astype(np.float32)
    state[0] = 0
    discount = np.ones(length, np.float32)
    discount[-1] = capped
    return Episode(
        frame=rng.integers(1, 256, (length, *SHAPES.frame), np.uint8),
        action=rng.integers(SHAPES.actions, size=length),
        reward=np.arange(tag, tag + length).astype(np.float32),
        discount=discount,
        q_theta=rng.normal(size=values).astype(np.float32),
        state=state,
        q_mcts=rng.normal(size=values).astype(np.float32),
        last=rng.integers(1, 256, SHAPES.frame, np.uint8),
        capped=capped,
    )


def episodes(seed, lanes):
    """Random episodes of each lane, from lists of (length, capped)."""
    rng = np.random.default_rng(seed)
    tag, result = 1, []
    for plan in lanes:
        result.append([])
        for length, capped in plan:
            result[-1].append(episode(rng, length, capped, tag))
            tag += length
    return result


STEP = [name for name in Step._fields if hasattr(Episode, name)]


def run(writer, lanes):
    """Feed the lanes in lock-step. Lanes that are through go on with an episode without end."""
    longest = max(sum(len(e.reward) for e in lane) for lane in lanes)
    endless = episode(np.random.default_rng(9), longest + 1, True, 10**6)
    clocks = [[(e, t) for e in lane for t in range(len(e.reward))] for lane in lanes]
    clocks = [c + [(endless, t) for t in range(longest - len(c))] for c in clocks]
    finished = []
    for now in zip(*clocks, strict=True):
        arrays = {name: np.stack([getattr(e, name)[t] for e, t in now]) for name in STEP}
        over = np.array([t + 1 == len(e.reward) for e, t in now])
        last = np.stack([e.last for e, t in now])
        finished += writer.add(Step(**arrays), over, last)
    return [s for s in finished if s.reward[s.valid][0] < 10**6]


def starts(length, cut):
    """Starts of the windows of an episode, by the rule in words."""
    found = [0]
    while set(range(found[-1] + cut.period, length)) - set(range(found[-1] + cut.train)):
        found.append(found[-1] + cut.period)
    return found


def expected(e, start, cut):
    """The arrays of one window, cut from the whole episode with padding on both sides."""
    length, first = len(e.reward), start - cut.burn_in

    def window(array, after=None, lead=0):
        zero = np.zeros((1, *array.shape[1:]), array.dtype)
        tail = zero if after is None or not e.capped else np.asarray(after)[None]
        tail = np.concatenate([tail, np.repeat(zero, cut.steps, 0)])
        head = np.repeat(zero, cut.burn_in + LEAD, 0)
        padded = np.concatenate([head, array, tail])
        begin = len(head) + first - lead
        return padded[begin : begin + lead + cut.steps]

    return {
        "frames": window(e.frame, e.last, LEAD),
        "previous_action": window(e.previous_action, e.action[-1]),
        "previous_reward": window(e.previous_reward, e.reward[-1]),
        "action": window(e.action),
        "reward": window(e.reward),
        "discount": window(e.discount),
        "valid": window(np.ones(length, bool)),
        "q_mcts": window(e.q_mcts),
        "state": e.state[first] if first >= 0 else np.zeros(SHAPES.state),
    }


def check(finished, lanes, cut):
    """Every window of every episode came out, once and as expected; nothing else did."""
    by_first = {float(s.reward[cut.burn_in]): s for s in finished}
    assert len(by_first) == len(finished)
    for e in (e for lane in lanes for e in lane):
        for start in starts(len(e.reward), cut):
            sequence = by_first.pop(float(e.reward[start]))
            for name, array in expected(e, start, cut).items():
                np.testing.assert_array_equal(getattr(sequence, name), array, name)
    assert not by_first


lengths = st.one_of(st.sampled_from(LENGTHS), st.integers(1, 300))
plans = st.lists(
    st.lists(st.tuples(lengths, st.booleans()), min_size=1, max_size=4), min_size=1, max_size=3
)


@given(lanes=plans, cut=st.sampled_from([PAPER, SMALL, *ODD]), seed=st.integers(0, 99))
@example([[(1000, True), (1, False)], [(1, True), (1, True), (999, False)]], PAPER, 0)
@settings(max_examples=15)
def test_sequences_are_windows_of_the_true_episodes(lanes, cut, seed):
    lanes = episodes(seed, lanes)
    check(run(Writer(cut, SHAPES, len(lanes)), lanes), lanes, cut)


@pytest.mark.parametrize("cut", [PAPER, SMALL])
@pytest.mark.parametrize("length", [*LENGTHS, 1000])
@pytest.mark.parametrize("capped", [False, True])
def test_how_often_each_step_is_trained(cut, length, capped):
    lanes = episodes(0, [[(length, capped)]])
    times = np.zeros(length, int)
    for s in run(Writer(cut, SHAPES, 1), lanes):
        trained = s.reward[cut.burn_in : -1][s.valid[cut.burn_in : -1]]
        times[trained.astype(int) - 1] += 1
    # In blocks of a period: the first and the last once, all between them twice. An episode that
    # fits into one window is trained once.
    blocks = -(-length // cut.period)
    twice = np.arange(length) // cut.period
    twice = (twice > 0) & (twice < blocks - 1)
    np.testing.assert_array_equal(times, 1 + twice)


def test_the_bootstrap_step_at_both_ends_of_an_episode():
    cut = SequenceSettings(burn_in=2, train=4, period=2)
    (cap,), (game_over,) = episodes(3, [[(4, True)], [(4, False)]])
    at_cap, at_end = run(Writer(cut, SHAPES, 2), [[cap], [game_over]])
    for s in (at_cap, at_end):
        np.testing.assert_array_equal(s.valid, [0, 0, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(at_cap.frames[-1], cap.last)
    np.testing.assert_array_equal(at_cap.frames[-4:-1], cap.frame[1:])
    assert at_cap.previous_action[-1] == cap.action[3]
    assert at_cap.previous_reward[-1] == cap.reward[3]
    np.testing.assert_array_equal(at_cap.discount[2:6], [1, 1, 1, 1])
    np.testing.assert_array_equal(at_end.discount[2:6], [1, 1, 1, 0])
    assert not at_end.frames[-1].any()


def h(x):
    return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x


def h_inverse(y):
    """By bisection, so that nothing is shared with the formula."""
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < y else (low, middle)
    return low


def slow_errors(q, action, reward, discount, n, gamma):
    result = []
    for t in range(len(action)):
        total, factor, k = 0.0, 1.0, t
        while k < min(t + n, len(action)):
            total += factor * reward[k]
            factor *= gamma * discount[k]
            k += 1
        result.append(h(total + factor * h_inverse(max(q[k]))) - q[t][action[t]])
    return result


def test_td_errors_of_a_hand_worked_example():
    cut = SequenceSettings(burn_in=0, train=3, period=1, n=2, gamma=0.5)
    q = np.array([[0.0, 0.1], [0.2, 0.0], [h(8.0), h(-2.0)], [h(4.0), h(16.0)]])
    action, reward = np.array([1, 0, 1]), np.array([1.0, 3.0, -2.0])
    # 1 + 3/2 + 8/4;  3 - 2/2 + 16/4;  -2 + 16/2, one step short
    by_hand = [h(4.5) - 0.1, h(6.0) - 0.2, h(6.0) - h(-2.0)]
    np.testing.assert_allclose(td_errors(q, action, reward, np.ones(3), cut), by_hand, rtol=1e-9)
    # The game ends with the second step: 1 + 3/2;  3.
    ended = td_errors(q[:3], action[:2], reward[:2], np.array([1.0, 0.0]), cut)
    np.testing.assert_allclose(ended, [h(2.5) - 0.1, h(3.0) - 0.2], rtol=1e-9)


def test_priority_mixes_the_largest_error_and_the_mean():
    assert priority(np.array([1.0, -4.0, 1.0])) == pytest.approx(0.9 * 4 + 0.1 * 2)


@given(st.sampled_from([1, 3, 4, 9, 19, 20, 21, 25, 47]), st.booleans(), st.integers(0, 99))
@settings(max_examples=30)
def test_first_priorities_come_from_the_actors_own_values(length, capped, seed):
    cut = SequenceSettings(burn_in=5, train=10, period=5)
    lanes = episodes(seed, [[(length, capped)]])
    e = lanes[0][0]
    finished = run(Writer(cut, SHAPES, 1), lanes)
    # Nobody has valued the picture at the cap: the values before stand in for it.
    q = np.concatenate([e.q_theta, e.q_theta[-1:]]).astype(float)
    for start, s in zip(starts(length, cut), finished, strict=True):
        end = min(start + cut.train, length)
        errors = slow_errors(
            q[start : end + 1],
            *(x[start:end] for x in (e.action, e.reward, e.discount)),
            cut.n,
            cut.gamma,
        )
        size = np.abs(errors)
        assert s.priority == pytest.approx(0.9 * size.max() + 0.1 * size.mean(), rel=1e-5)


def feed(writer, e, steps, names=STEP):
    """Feed steps of one episode, all arrays or those named."""
    for t in steps:
        arrays = {name: getattr(e, name)[t][None] for name in names}
        over = np.array([t + 1 == len(e.reward)])
        yield from writer.add(Step(**arrays), over, e.last[None])


def test_agents_without_search_store_no_search():
    (e,) = episodes(0, [[(30, False)]])[0]
    plain = [name for name in STEP if name != "q_mcts"]
    writer = Writer(SMALL, SHAPES._replace(searched=False), 1)
    finished = list(feed(writer, e, range(30), plain))
    assert len(finished) == 2
    for s in finished:
        assert s.q_mcts is None


def test_a_sequence_stays_as_it_was_handed_out():
    writer = Writer(SMALL, SHAPES, 1)
    lanes = episodes(0, [[(60, False), (60, False)]])
    finished = run(writer, lanes)
    run(writer, episodes(1, [[(200, True)]]))
    check(finished, lanes, SMALL)


@pytest.mark.parametrize("after", [1, 29, 30, 31, 55])
def test_a_restored_writer_goes_on(after):
    (e,) = episodes(0, [[(90, True)]])[0]
    whole = list(feed(Writer(SMALL, SHAPES, 1), e, range(90)))
    first, second = Writer(SMALL, SHAPES, 1), Writer(SMALL, SHAPES, 1)
    halves = list(feed(first, e, range(after)))
    state = first.state()
    list(feed(first, e, range(after, 90)))  # does not reach the saved arrays
    second.restore(state)
    halves += feed(second, e, range(after, 90))
    for a, b in zip(whole, halves, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_saved_windows_are_small_where_pictures_hardly_change():
    shapes, lanes = SHAPES._replace(frame=(84, 84)), 3
    rng, writer = np.random.default_rng(0), Writer(SMALL, shapes, lanes)
    frame = rng.integers(256, size=(lanes, *shapes.frame), dtype=np.uint8)
    zero = np.zeros(lanes, np.float32)
    values, state = np.zeros((lanes, SHAPES.actions), np.float32), np.zeros((lanes, *SHAPES.state))
    for t in range(25):
        frame[:, t, t] += 1  # one pixel
        step = Step(frame, zero, zero, zero, zero, zero + 1, values, state, values)
        writer.add(step, np.zeros(lanes, bool))
    saved = writer.state()
    assert saved["frame"].nbytes < 1.2 * frame.nbytes  # noise: it can't shrink; the rest does
    other = Writer(SMALL, shapes, lanes)
    other.restore(saved)
    np.testing.assert_array_equal(other._rows["frame"], writer._rows["frame"])


def test_contradictions_are_refused():
    (e,) = episodes(0, [[(2, True)]])[0]
    step = Step(**{name: getattr(e, name)[0][None] for name in STEP})
    writer = Writer(SMALL, SHAPES, 1)
    with pytest.raises(ValueError, match="a discount of 0 in an episode that goes on"):
        writer.add(step._replace(discount=np.zeros(1)), np.array([False]))
    with pytest.raises(ValueError, match="there is no last_frame"):
        writer.add(step, np.array([True]))
    with pytest.raises(InputError, match=r"sequences.period: 81 is not possible; it must be bet"):
        Writer(SequenceSettings(period=81), SHAPES, 1)


@jax.jit
def learner_says(q, action, reward, discount, valid):
    """`(errors, priority)` of the learner."""
    n = SequenceSettings().n
    targets = r2d2.n_step_targets(reward, discount, q, q, valid, n=n)
    errors = r2d2.td_errors(q[:-1], action, targets, valid)
    return errors, r2d2.sequence_priorities(errors, valid)


@pytest.mark.parametrize("length", [1, 4, 5, 6, 30])
@pytest.mark.parametrize("ends", [False, True])
def test_first_priorities_are_those_of_the_learner(length, ends):
    """Actors have no device: NumPy must say what `learning.r2d2` says, for one network."""
    rng = np.random.default_rng(length)
    q = rng.normal(size=(length + 1, 4), scale=3).astype(np.float32)
    action = rng.integers(4, size=length)
    reward = rng.normal(size=length, scale=20).astype(np.float32)
    discount = np.ones(length, np.float32)
    discount[-1] = not ends
    chosen = SequenceSettings()
    errors = sequences.td_errors(q, action, reward, discount, chosen)
    valid = np.ones(length, bool)
    expected, first = learner_says(q, action, reward, chosen.gamma * discount, valid)
    np.testing.assert_allclose(errors, expected, rtol=1e-4, atol=1e-4)
    assert sequences.priority(errors) == pytest.approx(float(first), rel=1e-4)
