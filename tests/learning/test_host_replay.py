"""The rings of several seeds against plain Python lists of transitions and episodes."""

from collections import deque

import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.learning import host_replay
from save_rl.learning.replay import n_step_transitions
from tests.learning.test_replay import GAMMA, transitions

# (lanes, capacity): rows that do and do not fill the capacity exactly, one lane, one row.
sizes = pytest.mark.parametrize(
    ("lanes", "capacity"),
    [(4, 10), (3, 3), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((3, 9), (1, 5)))],
)


class Reference:
    """The newest transitions, each with the rewards of its episode from there on."""

    def __init__(self, capacity):
        self.newest = deque(maxlen=capacity)
        self.going = {}  # by lane: the transitions of its episode

    def add(self, numbers, rewards, moved, over, first=0):
        for lane, number in enumerate(numbers):
            at = first + lane
            if not moved[lane]:
                self.going[at] = []  # abandoned: no reward will follow, and no end
                continue
            entry = {"number": number, "rewards": [], "ended": False}
            self.newest.append(entry)
            self.going.setdefault(at, []).append(entry)
            for other in self.going[at]:
                other["rewards"].append(rewards[lane])
                other["ended"] = over[lane]
            if over[lane]:
                self.going[at] = []


def total(rewards):
    return sum(GAMMA**k * reward for k, reward in enumerate(rewards))


SEEDS = 2


def of_seeds(*each):
    """Transitions `[seeds, lanes, ...]`."""
    return jax.tree.map(lambda *x: np.stack(x), *each)


def new(step, lanes, rewards):
    """Lock-step `step`; the numbers of the second seed are those of a later one."""
    return of_seeds(*(transitions(step + 100 * i, lanes, rewards[i]) for i in range(SEEDS)))


def sizes_of(moment):
    """Sizes of both observations, made up from the numbers of transitions."""
    return np.stack([moment.action % 5, moment.action % 7], -1)


def empty_like(moment, capacity, linked=0):
    """A ring for transitions like these."""
    packed = moment._replace(target=host_replay.pack_target(moment.target))
    return host_replay.empty(packed, capacity, linked)


def add(ring, moment, moved, over, track=True, **more):
    return host_replay.add(ring, moment, sizes_of(moment), moved, over, GAMMA, track, **more)


_take = jax.jit(jax.vmap(n_step_transitions))


def take(ring, chains):
    """Transitions, with targets as they were added."""
    taken = _take(ring.data, chains)
    return jax.tree.map(np.asarray, taken._replace(target=host_replay.unpack_target(taken.target)))


DRAWS = 900  # of 14 transitions, one is missed with probability 14 x (13/14)^900


def sample(ring, rng, shape):
    """Transitions `[seeds, *shape, ...]`, returns, whether their episodes have ended, sizes."""
    slots = host_replay.draw(ring, rng.spawn(len(ring.lane)), shape)
    at = np.arange(len(slots)).reshape(-1, *[1] * len(shape)), slots
    data = take(ring, host_replay.chain(ring, slots, 1))
    return data, *host_replay.outcomes(ring, slots), ring.size[at]


def everything(ring):
    """All that can be sampled of each seed, by the number of the transition."""
    data, returns, finished, size = sample(ring, np.random.default_rng(0), (DRAWS,))
    return [
        {
            int(number): (jax.tree.map(lambda x: x[seed, i], data), *(  # noqa: B023
                x[seed, i] for x in (returns, finished, size)
            ))
            for i, number in enumerate(data.action[seed])
        }
        if added else {}
        for seed, added in enumerate(ring.added)
    ]  # fmt: skip


def check(ring, references, moments):
    """Whether a ring holds what the references do. moments: numbered transitions by seed."""
    for held, reference, known in zip(everything(ring), references, moments, strict=True):
        assert set(held) == {entry["number"] for entry in reference.newest}
        for entry in reference.newest:
            stored, returns, finished, size = held[entry["number"]]
            for field, expected in zip(stored, known[entry["number"]], strict=True):
                np.testing.assert_array_equal(field, expected)
            np.testing.assert_array_equal(size, [entry["number"] % 5, entry["number"] % 7])
            assert finished == entry["ended"]
            assert returns == pytest.approx(total(entry["rewards"]), abs=1e-5)


def remember(moments, moment):
    """Note the transitions of a moment by seed and number."""
    for seed, known in enumerate(moments):
        for lane, number in enumerate(moment.action[seed].tolist()):
            known[number] = jax.tree.map(lambda x: x[seed, lane], moment)  # noqa: B023


@st.composite
def histories(draw, lanes):
    """Rewards, whether lanes moved, and whether their episodes ended; `[steps, seeds, lanes]`."""
    shape = (draw(st.integers(1, 12)), SEEDS, lanes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    moved = rng.random(shape) < draw(st.sampled_from([1.0, 0.75]))
    over = (rng.random(shape) < 1 / 3) & moved
    return rng.choice([-1.0, 0.0, 0.25, 1.0], shape), moved, over


@sizes
@given(data=st.data())
@settings(max_examples=12)
def test_it_holds_the_newest_transitions_and_their_returns(lanes, capacity, data):
    rewards, moved, over = data.draw(histories(lanes))
    ring = empty_like(new(0, lanes, rewards[0]), capacity)
    references, moments = [Reference(capacity) for _ in range(SEEDS)], [{}, {}]
    for step in range(len(rewards)):
        moment = new(step, lanes, np.where(moved[step], rewards[step], 99.0))
        remember(moments, moment)
        ring = add(ring, moment, moved[step], over[step])
        for seed, reference in enumerate(references):
            what = rewards[step, seed], moved[step, seed], over[step, seed]
            reference.add(moment.action[seed].tolist(), *what)
        check(ring, references, moments)
    np.testing.assert_array_equal(ring.added, moved.sum((0, 2)))


@given(data=st.data())
@settings(max_examples=15)
def test_lanes_may_arrive_in_parts(data):
    """Two lanes at one moment and three at another: each part knows its own lanes alone."""
    capacity = 14
    rewards, moved, over = data.draw(histories(5))
    ring = empty_like(new(0, 5, rewards[0]), capacity)
    references, moments = [Reference(capacity) for _ in range(SEEDS)], [{}, {}]
    for step in range(len(rewards)):
        moment = new(step, 5, rewards[step])
        remember(moments, moment)
        first, end = data.draw(st.sampled_from([(0, 2), (2, 5)]))
        part = jax.tree.map(lambda x: x[:, first:end], moment)  # noqa: B023
        now = [x[step, :, first:end] for x in (rewards, moved, over)]
        ring = add(ring, part, now[1], now[2], first=first)
        for seed, reference in enumerate(references):
            numbers = part.action[seed].tolist()
            reference.add(numbers, *(x[seed] for x in now), first)
    check(ring, references, moments)


def test_a_hand_worked_episode():
    # One lane; rewards 1, 2, 4 and then a new episode with 8, which is abandoned; γ = ½.
    # After three steps: 1 + 2/2 + 4/4 = 3, 2 + 4/2 = 4, 4. Nothing later changes them.
    moment = of_seeds(transitions(0, 1, [0.0]))
    ring = empty_like(moment, 5)
    yes, no = np.array([[True]]), np.array([[False]])
    for step, (reward, moved, over) in enumerate(
        [(1.0, yes, no), (2.0, yes, no), (4.0, yes, yes), (8.0, yes, no), (0.0, no, no),
         (16.0, yes, yes)]
    ):  # fmt: skip
        moment = of_seeds(transitions(step, 1, [reward]))
        ring = host_replay.add(ring, moment, sizes_of(moment), moved, over, 0.5, True)
    np.testing.assert_allclose(ring.returns, [[3.0, 4.0, 4.0, 8.0, 16.0]])
    np.testing.assert_array_equal(ring.unfinished, [[False, False, False, True, False]])
    assert ring.added.tolist() == [5]


def test_an_episode_that_begins_ends_the_wait_for_the_rest_of_another():
    # An actor of a cluster is lost after rewards 1 and 2; its lane goes on elsewhere, with a new
    # episode of 16 and 32. Nobody knows how the first one went on; γ = ½.
    moment = of_seeds(transitions(0, 1, [0.0]))
    ring = empty_like(moment, 5)
    yes, no = np.array([[True]]), np.array([[False]])
    for step, (reward, begins, over) in enumerate(
        [(1.0, yes, no), (2.0, no, no), (16.0, yes, no), (32.0, no, yes)]
    ):
        moment = of_seeds(transitions(step, 1, [reward]))
        ring = host_replay.add(
            ring, moment, sizes_of(moment), yes, over, 0.5, True, begins=begins
        )  # fmt: skip
    np.testing.assert_allclose(ring.returns, [[2.0, 2.0, 32.0, 32.0, 0.0]])
    np.testing.assert_array_equal(ring.unfinished, [[True, True, False, False, False]])


def test_without_tracking_samples_are_whole_transitions_all_the_same():
    lanes = 3
    ring = empty_like(new(0, lanes, np.zeros((2, 3))), 7)
    never, moments = np.zeros((2, 3), bool), [{}, {}]
    for step in range(5):
        moment = new(step, lanes, np.array([[step, -step, 0.5], [1.0, step, 2.0]]))
        remember(moments, moment)
        ring = add(ring, moment, ~never, never, track=False)
    for seed, held in enumerate(everything(ring)):
        assert set(held) == set(range(300 * seed + 8, 300 * seed + 15))
        for number, (stored, *_) in held.items():
            for field, expected in zip(stored, moments[seed][number], strict=True):
                np.testing.assert_array_equal(field, expected)


@pytest.mark.parametrize("steps", [2, 9])
def test_samples_are_uniform_and_of_the_shape_asked_for(steps):
    lanes, capacity = 3, 10
    ring = empty_like(new(0, lanes, np.zeros((2, 3))), capacity)
    never = np.zeros((2, 3), bool)
    for step in range(steps):
        ring = add(ring, new(step, lanes, np.zeros((2, 3))), ~never, never, track=False)
    drawn, returns, finished, _ = sample(ring, np.random.default_rng(1), (20, 150))
    assert drawn.target.shape == (2, 20, 150, 3)
    assert drawn.next_mask.shape == (2, 20, 150, 0)
    assert returns.shape == finished.shape == (2, 20, 150)
    held = min(capacity, steps * lanes)
    for seed in range(SEEDS):
        numbers = drawn.action[seed].ravel() - 300 * seed
        counts = np.bincount(numbers, minlength=steps * lanes)
        assert not counts[:-held].any()
        assert scipy.stats.chisquare(counts[-held:]).pvalue > 1e-3
    assert not np.array_equal(drawn.action[0] + 300, drawn.action[1])


def test_a_seed_draws_with_its_own_numbers():
    """What it draws depends on its generator and its own transitions alone."""
    ring = empty_like(new(0, 3, np.zeros((2, 3))), 10)
    never = np.zeros((2, 3), bool)
    for step in range(4):
        moved = np.array([[True] * 3, [step < 2] * 3])
        ring = add(ring, new(step, 3, np.zeros((2, 3))), moved, never)
    slots = host_replay.draw(ring, [np.random.default_rng(n) for n in (5, 6)], (50,))
    for seed in range(SEEDS):
        one = ring._replace(lane=ring.lane[[seed]], added=ring.added[[seed]])
        alone = host_replay.draw(one, [np.random.default_rng((5, 6)[seed])], (50,))
        np.testing.assert_array_equal(alone[0], slots[seed])
    assert set(slots[0]) == set(range(10))
    assert set(slots[1]) == set(range(6))


def test_before_there_is_anything_a_draw_has_its_shape():
    ring = empty_like(new(0, 3, np.zeros((2, 3))), 10)
    assert host_replay.draw(ring, np.random.default_rng(0).spawn(2), (4, 3)).shape == (2, 4, 3)


def test_samples_are_copies():
    """What is learned from may still be looked at when the ring is written next."""
    yes = np.array([[True]])
    ring = empty_like(of_seeds(transitions(0, 1, [0.0])), 2)
    ring = add(ring, of_seeds(transitions(0, 1, [1.0])), yes, yes)
    drawn, returns, *_ = sample(ring, np.random.default_rng(0), (4,))
    for step in (1, 2):
        ring = add(ring, of_seeds(transitions(step, 1, [5.0])), yes, yes)
    assert set(drawn.action[0]) == {0}
    assert set(drawn.reward[0]) == set(returns[0]) == {1.0}


# Targets in half precision.

TINY, INF = 2.0**-25, np.inf  # float16 has multiples of 2^-24
_pack = jax.jit(host_replay.pack_target, static_argnums=(1, 2))
_unpack = jax.jit(host_replay.unpack_target)


def kept(target, values, rows):
    """Targets after they were in the replay."""
    packed = _pack(np.asarray(target, np.float32), values, rows)
    assert packed.high.dtype == packed.low.dtype == np.uint8
    return np.asarray(_unpack(packed)).astype(np.float64)


@st.composite
def q_values(draw, lanes=3, actions=6):
    """Q_MCTS of some lanes: values of all sizes, huge and tiny gaps, masked actions, or all."""
    size = draw(st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e4, 1e30]))
    gap = draw(st.sampled_from([1e-9, 1e-6, 1e-3, 1.0, 6e4, 1e5, 1e38]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = size * rng.normal(size=(lanes, 1)) - gap * rng.random((lanes, actions))
    masked = rng.random((lanes, actions)) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return np.where(masked, -INF, values).astype(np.float32)


def check_values(before, after):
    """The best value is exact, -inf stays, and the others are as near as the docstring says."""
    np.testing.assert_array_equal(after.max(-1), before.max(-1))
    np.testing.assert_array_equal(after == -INF, before == -INF)
    for row, found in zip(before.astype(np.float64), after, strict=True):
        row, found = row[row > -INF], found[row > -INF]
        best = row.max(initial=-INF)
        gap = np.minimum(best - row, 65504)
        rounding = 2.0**-24 * (gap + np.abs(found)) + 2.0**-149  # of a difference and a sum
        within = np.maximum(2.0**-11 * gap, TINY) + rounding
        assert np.all(np.abs(found - (best - gap)) <= within)


@given(before=q_values())
def test_values_are_kept_as_gaps_to_the_best(before):
    check_values(before, kept(before, 1, 1))


@given(before=q_values(), seed=st.integers(0, 2**32 - 1), most=st.sampled_from([1, 100, 2048]))
def test_visits_beside_values_are_exact(before, seed, most):
    visits = np.random.default_rng(seed).integers(most + 1, size=before.shape)
    after = kept(np.concatenate([before, visits], -1), 1, 2)
    check_values(before, after[:, :6])
    np.testing.assert_array_equal(after[:, 6:], visits)


@given(seed=st.integers(0, 2**32 - 1), most=st.sampled_from([1, 20, 5000]))
def test_of_probabilities_zero_is_exact(seed, most):
    """Else thousands of untried actions would together have a share in the loss."""
    rng = np.random.default_rng(seed)
    visits = rng.integers(most + 1, size=(4, 9)) * (rng.random((4, 9)) < 0.5)
    before = (visits / np.maximum(visits.sum(-1, keepdims=True), 1)).astype(np.float32)
    after = kept(before, 0, 1)
    np.testing.assert_array_equal(after == 0, before == 0)
    np.testing.assert_allclose(after, before, rtol=2**-11, atol=TINY)


def test_a_hand_worked_target():
    # Gaps 0, 2^-24, 1 + 2^-12, 2049 and 1e6: float16 has 11 bits, so 1 and 2048 remain of the
    # third and fourth, and the last is its lowest number.
    row = [0.0, -(2.0**-24), -1 - 2.0**-12, -2049.0, -1e6, -INF]
    expected = [0.0, -(2.0**-24), -1.0, -2048.0, -65504.0, -INF]
    np.testing.assert_array_equal(kept([row, [-INF] * 6], 1, 1), [expected, [-INF] * 6])


def test_without_an_amortization_loss_there_is_nothing_to_keep():
    assert kept(np.zeros((2, 3, 0)), 0, 0).shape == (2, 3, 0)


def test_a_value_that_is_not_finite_shows():
    """So that its seed stops."""
    for bad in (np.nan, INF):
        assert not np.isfinite(kept([[1.0, bad, 2.0]], 1, 1)).all()
