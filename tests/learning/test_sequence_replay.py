"""Prioritised replay of packed sequences: what goes in comes out, as often as it should."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.errors import InputError, RunError
from save_rl.learning import sequence_replay
from save_rl.learning.r2d2_settings import ReplaySettings, SequenceSettings
from save_rl.learning.sequence_replay import Packed, SequenceReplay, pack
from save_rl.learning.sequences import LEAD, Shapes, Writer, blank
from tests.learning.test_sequences import PAPER, SHAPES, SMALL, episodes, expected, run, starts

REAL = Shapes(frame=(84, 84), state=(2, 512), actions=18, searched=True)
TINY = SequenceSettings(burn_in=1, train=2, period=1)
EXAMPLE = blank(TINY, SHAPES)
LENGTHS = (1, 39, 40, 41, 80, 81, 120, 121, 1000)


def replay(**options):
    """A small replay of tiny sequences."""
    usual = {"capacity": 8, "minimum": 1, "samples_per_insert": 0.77}
    return SequenceReplay(ReplaySettings(**{**usual, **options}), EXAMPLE)


def numbered(number, priority=1.0):
    """A tiny sequence whose rewards are a number."""
    sequence = EXAMPLE._replace(reward=np.full_like(EXAMPLE.reward, number))
    return pack(sequence._replace(priority=np.asarray(priority, np.float32)))


def sample(ring, rng):
    """A batch, decompressed."""
    return ring.unpack(ring.draw(rng))


def numbers(batch):
    """The numbers of `numbered` in a batch."""
    return batch.sequences.reward[0]


def held(ring):
    """What a replay holds, by the numbers of `numbered`, the oldest first."""
    serial, number = [], []
    rng = np.random.default_rng(0)
    for _ in range(20):
        batch = sample(ring, rng)
        serial.append(batch.serial)
        number.append(numbers(batch))
    order, first = np.unique(np.concatenate(serial), return_index=True)
    assert order.tolist() == list(range(ring.evicted, ring.inserted))
    return np.concatenate(number)[first].tolist()


@pytest.mark.parametrize(("cut", "searched"), [(PAPER, True), (SMALL, True), (SMALL, False)])
def test_batches_equal_the_raw_episodes(cut, searched):
    lanes = [[(n, i % 2 == 0) for i, n in enumerate(order)] for order in (LENGTHS, LENGTHS[::-1])]
    lanes = episodes(1, lanes)
    shapes = SHAPES._replace(searched=searched)
    finished = run(Writer(cut, shapes, 2), lanes)
    raw = {
        float(e.reward[start]): expected(e, start, cut)
        for lane in lanes
        for e in lane
        for start in starts(len(e.reward), cut)
    }
    first_priority = {float(s.reward[cut.burn_in]): float(s.priority) for s in finished}
    options = ReplaySettings(
        capacity=len(finished), minimum=1, batch=len(finished), threads=2, samples_per_insert=1.0
    )
    ring = SequenceReplay(options, blank(cut, shapes))
    for sequence in finished:
        packed = pack(sequence)
        assert packed.priority == sequence.priority
        ring.add(packed._replace(priority=1.0))  # equal shares: a batch is everything, once
    assert len(finished) == len(raw)
    batch = sample(ring, np.random.default_rng(0)).sequences
    assert batch.frames.shape == (LEAD + cut.steps, len(raw), *SHAPES.frame)
    assert (batch.q_mcts is not None) == searched
    for column in range(len(raw)):
        key = float(batch.reward[cut.burn_in, column])
        assert batch.priority[column] == np.float32(first_priority.pop(key))
        for name, array in raw.pop(key).items():
            if name == "state":
                np.testing.assert_array_equal(batch.state[column], array)
            elif searched or name != "q_mcts":
                stored = getattr(batch, name)
                assert stored.flags.c_contiguous
                assert stored.dtype == getattr(finished[0], name).dtype
                np.testing.assert_array_equal(stored[:, column], array)
    assert not raw


def test_frames_of_the_real_size_come_back():
    rng = np.random.default_rng(0)
    sequence = blank(SMALL, REAL)
    sequence.frames[:] = rng.integers(256, size=sequence.frames.shape)
    ring = SequenceReplay(
        ReplaySettings(capacity=4, minimum=1, batch=3, samples_per_insert=1.0), sequence
    )
    ring.add(pack(sequence))
    frames = sample(ring, rng).sequences.frames
    np.testing.assert_array_equal(frames, np.stack([sequence.frames] * 3, 1))


weights = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.integers(1, 9).map(float)),
    min_size=1,
    max_size=40,
)


@given(weights, st.data())
def test_the_sum_tree_against_a_cumulative_sum(weights, data):
    weights = np.array(weights)
    tree = np.zeros(2 << (len(weights) - 1).bit_length())
    sequence_replay._set(tree, np.arange(len(weights)), np.ones(len(weights)))
    sequence_replay._set(tree, np.arange(len(weights)), weights)
    again = data.draw(st.lists(st.integers(0, len(weights) - 1), max_size=5))
    for leaf in again:
        weights[leaf] = data.draw(st.floats(0.5, 50.0))
        sequence_replay._set(tree, np.array([leaf]), weights[leaf : leaf + 1])
    total = weights.sum()
    assert tree[1] == pytest.approx(total, rel=1e-12)
    if total == 0:
        return
    masses = np.array(data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=20))) * tree[1]
    found = sequence_replay._find(tree, masses)
    assert (weights[found] > 0).all()
    ends, near = np.cumsum(weights), 1e-9 * total
    assert (masses <= ends[found] + near).all()
    assert (masses >= ends[found] - weights[found] - near).all()


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([1.0, 2.0, 0.0, 4.0], [0, 0, 1, 1, 3, 3, 3]), ([1.0, 2.0, 4.0, 0.0], [0, 0, 1, 1, 2, 2, 2])],
)
def test_exact_boundaries_belong_to_the_next_leaf_that_has_weight(weights, expected):
    tree = np.zeros(8)
    sequence_replay._set(tree, np.arange(4), np.array(weights))
    found = sequence_replay._find(tree, np.array([0.0, 0.5, 1.0, 2.5, 3.0, 6.5, 7.0]))
    np.testing.assert_array_equal(found, expected)


def test_sequences_are_drawn_with_their_priority_to_the_power_of_0_9():
    # Slots wrap around, priorities are first ones for some and later ones for others.
    ring = replay(batch=16)
    for number in range(13):
        ring.add(numbered(number, priority=1.0 + number))
    changed = {6: 0.3, 11: 40.0, 9: 2.5}
    ring.update(np.array(list(changed)), np.array(list(changed.values())))
    priorities = [changed.get(serial, 1.0 + serial) for serial in range(5, 13)]
    share = np.array(priorities) ** 0.9
    share /= share.sum()
    rng, draws = np.random.default_rng(0), 600
    counts = np.zeros(8)
    for _ in range(draws):
        batch = sample(ring, rng)
        np.testing.assert_array_equal(numbers(batch), batch.serial)
        np.testing.assert_allclose(batch.probability, share[batch.serial - 5], rtol=1e-12)
        counts += np.bincount(batch.serial - 5, minlength=8)
        assert (np.abs(np.bincount(batch.serial - 5, minlength=8) - 16 * share) < 2).all()
    # Strata make counts less spread than independent draws, so this bound is on the safe side.
    assert scipy.stats.chisquare(counts, 16 * draws * share).pvalue > 0.01


def test_priorities_of_sequences_that_are_gone_are_ignored():
    ring = replay(batch=8)
    for number in range(8):
        ring.add(numbered(number))
    old = sample(ring, np.random.default_rng(0))
    for number in range(8, 11):  # in the slots of 0, 1 and 2
        ring.add(numbered(number))
    before = ring.state()["weights"].copy()
    ring.update(np.array([0, 1, 2]), np.full(3, 99.0))
    np.testing.assert_array_equal(ring.state()["weights"], before)
    ring.update(old.serial, np.full(8, 32.0))
    np.testing.assert_allclose(ring.state()["weights"], [32**0.9] * 5 + [1.0] * 3)
    counters = ring.counters()
    assert (counters["updated"], counters["stale"]) == (5, 6)


def test_a_priority_of_zero_can_still_be_drawn():
    ring = replay(batch=4)
    ring.add(numbered(0, priority=0.0))
    np.testing.assert_array_equal(sample(ring, np.random.default_rng(0)).serial, [0, 0, 0, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_impossible_priorities_stop_the_run(bad):
    ring = replay()
    ring.add(numbered(0))
    with pytest.raises(RunError, match=r"A priority is negative or not finite: .* of loss_q are"):
        ring.update(np.array([0]), np.array([bad]))


def test_capacity_in_sequences():
    ring = replay(capacity=5)
    for number in range(12):
        ring.add(numbered(number))
        assert len(ring) == min(number + 1, 5)
    assert held(ring) == [7, 8, 9, 10, 11]


@given(st.lists(st.integers(400, 1500), min_size=1, max_size=40), st.integers(1500, 5000))
@settings(max_examples=30)
def test_capacity_in_bytes(sizes, room):
    ring, held = replay(capacity_bytes=room, batch=64), []
    for number, size in enumerate(sizes):
        ring.add(Packed(bytes(size), 1.0))
        held.append((number, size))
        while len(held) > 8 or sum(size for _, size in held) > room:
            held.pop(0)
        assert list(range(ring.evicted, ring.inserted)) == [n for n, _ in held]
        assert ring.held_bytes == sum(size for _, size in held)
        assert np.count_nonzero(ring.state()["weights"]) == len(held) == len(ring)
        assert ring._tree[1] == len(held)


def test_too_few_bytes_are_refused_before_any_work():
    with pytest.raises(
        InputError,
        match=r"^--r2d2.replay.capacity-bytes: 1000000 is not possible; it must be at least \d+, "
        r"the room of the minimum of 50 sequences\.$",
    ):
        SequenceReplay(
            ReplaySettings(capacity=1000, minimum=50, capacity_bytes=10**6), blank(PAPER, REAL)
        )
    with pytest.raises(
        InputError, match=r"10000000 sequences need about \d+\.\d GiB, and this mac"
    ):
        SequenceReplay(ReplaySettings(capacity=10**7, capacity_bytes=2**50), blank(PAPER, REAL))
    with pytest.raises(InputError, match=r"--r2d2.replay.minimum: 9 is not possible"):
        replay(minimum=9)


def test_sequences_that_hardly_shrink_stop_the_run_before_it_waits_forever():
    ring = replay(minimum=4, capacity_bytes=3000)
    for _ in range(2):
        ring.add(Packed(bytes(1200), 1.0))
    with pytest.raises(RunError, match="is full with 2 sequences of this game, before the minimum"):
        ring.add(Packed(bytes(1200), 1.0))
    with pytest.raises(RunError, match=r"--r2d2.replay.capacity-bytes"):
        replay(minimum=1, capacity_bytes=1000).add(Packed(bytes(1001), 1.0))


def test_samples_owed_with_numbers_worked_by_hand():
    ring = replay(capacity=9, minimum=3, batch=4, samples_per_insert=2.0)
    owed = []
    for number in range(5):
        ring.add(numbered(number))
        owed.append(ring.owed)
    assert owed == [-4, -2, 0, 2, 4]  # two for each sequence beyond the minimum
    ring.draw(np.random.default_rng(0))
    assert ring.owed == 0
    ring.draw(np.random.default_rng(0))
    assert ring.owed == -4
    for number in range(20):  # what was evicted still counts
        ring.add(numbered(number))
    assert ring.owed == 36


def play(ring, rng, rounds):
    """Add, draw and update for a while; returns all that was drawn."""
    drawn = []
    for number in range(rounds):
        ring.add(numbered(ring.inserted, priority=1 + number % 5))
        batch = sample(ring, rng)
        ring.update(batch.serial - 2, rng.random(len(batch.serial)))
        drawn.append((batch.serial, batch.probability, numbers(batch)))
    return drawn


@pytest.mark.parametrize("rounds", [0, 3, 8, 21])
def test_a_restored_replay_draws_the_same(rounds, tmp_path):
    ring, rng = replay(batch=5), np.random.default_rng(4)
    play(ring, rng, rounds)
    np.savez(tmp_path / "replay.npz", allow_pickle=False, **ring.state())
    random_state = rng.bit_generator.state
    with np.load(tmp_path / "replay.npz", allow_pickle=False) as arrays:
        state = dict(arrays)
    assert not any(array.dtype.hasobject for array in state.values())
    other, other_rng = replay(batch=5), np.random.default_rng()
    play(other, other_rng, 3)  # what it held before is forgotten
    other.restore(state)
    other_rng.bit_generator.state = random_state
    assert other.counters() == ring.counters()
    np.testing.assert_array_equal(other._tree, ring._tree)
    for a, b in zip(play(ring, rng, 20), play(other, other_rng, 20), strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert other.counters() == ring.counters()


def test_a_checkpoint_of_another_replay_is_refused():
    ring = replay()
    play(ring, np.random.default_rng(0), 6)
    with pytest.raises(InputError, match="replay of this checkpoint does not fit"):
        replay(capacity=5).restore(ring.state())
    with pytest.raises(InputError, match="sequences of another shape"):
        SequenceReplay(
            ReplaySettings(capacity=9, minimum=1, samples_per_insert=1.0), blank(SMALL, SHAPES)
        ).restore(ring.state())


def test_nothing_can_be_drawn_from_nothing():
    with pytest.raises(ValueError, match="nothing to draw"):
        replay().draw(np.random.default_rng(0))
