"""Prioritised replay of compressed sequences, first in, first out.

A sequence is one zlib stream: all small arrays, then each frame XOR the one before, which is
mostly zeros. Actors compress, so the replay itself only stores bytes. Sequences get serial numbers
in order of arrival: the replay holds those from `evicted` up to `inserted`, number `k` in slot
`k % capacity` of a sum tree over `priority^0.9`.

Nothing here blocks or locks. It is not thread-safe, except that `unpack` may run in another thread.
"""

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from save_rl.compiled import njit
from save_rl.errors import InputError, RunError, require
from save_rl.learning.r2d2_settings import ReplaySettings
from save_rl.learning.sequences import LEVEL, Sequence, changes

_RATIO = 14  # compression ratio of frames in the busiest game measured
_SMALLEST = 1e-6  # lowest priority, so that a sequence with zero error can still be sampled


class Packed(NamedTuple):
    """A compressed sequence, as actors send it."""

    data: bytes
    priority: float


def _record(sequence: Sequence) -> np.dtype[Any]:
    """Return the structured dtype of a sequence: all its arrays except the frames."""
    arrays = sequence._asdict()
    del arrays["frames"]
    return np.dtype([(name, x.dtype, x.shape) for name, x in arrays.items() if x is not None])


def pack(sequence: Sequence) -> Packed:
    """Compress a sequence."""
    record = np.zeros((), _record(sequence))
    for name in record.dtype.names or ():
        record[name] = getattr(sequence, name)
    data = zlib.compress(record.tobytes() + changes(sequence.frames).tobytes(), LEVEL)
    return Packed(data, float(sequence.priority))


@njit(refcounts=True)
def _frames(change: np.ndarray, frames: np.ndarray, column: int) -> None:
    """Undo the XOR of `change` `[T, F]` into one column of `frames` `[T, B, F]`."""
    frames[0, column] = change[0]
    for t in range(1, len(change)):
        before, here, new = frames[t - 1, column], change[t], frames[t, column]
        for i in range(len(here)):
            new[i] = here[i] ^ before[i]


@njit
def _set(tree: np.ndarray, leaves: np.ndarray, weights: np.ndarray) -> None:
    """Set leaves of a sum tree: node `i` is the sum of `2i` and `2i + 1`, the root is 1."""
    for leaf, weight in zip(leaves, weights):  # noqa: B905 (Numba knows no strict)
        node = len(tree) // 2 + leaf
        tree[node] = weight
        while node > 1:
            node //= 2
            tree[node] = tree[2 * node] + tree[2 * node + 1]


@njit(refcounts=True)
def _find(tree: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Return the leaf where the cumulative sum passes each mass; never one of weight 0."""
    leaves = np.empty(len(masses), np.int64)
    for k, mass in enumerate(masses):
        node = 1
        while node < len(tree) // 2:
            node *= 2
            if mass >= tree[node] and tree[node + 1] > 0:
                mass -= tree[node]
                node += 1
        leaves[k] = node - len(tree) // 2
    return leaves


class Drawn(NamedTuple):
    """A batch of `B` compressed sequences."""

    data: list[bytes]
    serial: np.ndarray  # [B] int64, for `SequenceReplay.update`
    probability: np.ndarray  # [B] float64, of sampling that sequence


class SequenceSample(NamedTuple):
    """A batch of `B` sequences."""

    sequences: Sequence  # [T, B, ...], or [B, ...] for arrays without a time axis
    serial: np.ndarray  # [B], of `Drawn`
    probability: np.ndarray  # [B], of `Drawn`


def machine_memory() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class SequenceReplay:
    """Replay of the newest sequences, bounded in number and in bytes.

    example: a sequence with the shapes of all that will be added.
    """

    def __init__(self, settings: ReplaySettings, example: Sequence):
        settings.check()
        self._record = _record(example)
        self._shape = example.frames.shape
        self._bytes = self._record.itemsize + example.frames.nbytes
        self.typical_bytes = self._record.itemsize + example.frames.nbytes // _RATIO
        least = settings.minimum * self.typical_bytes
        room = settings.capacity_bytes
        allowed = f"at least {least}, the room of the minimum of {settings.minimum} sequences"
        require(room >= least, "--r2d2.replay.capacity-bytes", room, allowed)
        needed = min(room, settings.capacity * (self._bytes // _RATIO))
        memory = machine_memory()
        if needed > memory:
            raise InputError(
                f"--r2d2.replay.capacity: {settings.capacity} sequences need about "
                f"{needed / 2**30:.1f} GiB, and this machine has {memory / 2**30:.1f}; give a "
                "smaller one, or smaller --r2d2.replay.capacity-bytes."
            )
        self.settings = settings
        assert settings.samples_per_insert is not None, "the caller fills in the agent's default"
        self._ratio = settings.samples_per_insert
        self.inserted = 0
        self.sampled = 0
        self.evicted = 0
        self.updated = 0
        self.stale = 0
        self.held_bytes = 0
        self._data: list[bytes] = [b""] * settings.capacity
        self._tree = np.zeros(2 << (settings.capacity - 1).bit_length(), np.float64)
        self._pool = ThreadPoolExecutor(settings.threads, "unpack")

    def __len__(self) -> int:
        return self.inserted - self.evicted

    @property
    def owed(self) -> float:
        """Samples by which the learner is behind (ahead, if negative), so that on average each
        sequence is sampled `samples_per_insert` times. Those of the minimum do not count."""
        return self._ratio * (self.inserted - self.settings.minimum) - self.sampled

    def counters(self) -> dict[str, int]:
        """Return exact counts since the start, and the current contents."""
        return {
            "inserted": self.inserted,
            "evicted": self.evicted,
            "sampled": self.sampled,
            "updated": self.updated,
            "stale": self.stale,
            "held": len(self),
            "held_bytes": self.held_bytes,
        }

    def add(self, packed: Packed) -> None:
        """Add a sequence; evict the oldest ones as needed."""
        size, room = len(packed.data), self.settings.capacity_bytes
        learning = self.inserted >= self.settings.minimum
        if size > room or (not learning and self.held_bytes + size > room):
            raise RunError(
                f"--r2d2.replay.capacity-bytes: {room} is full with {len(self)} sequences of this "
                f"game, before the minimum of {self.settings.minimum}; it must be more."
            )
        while len(self) == self.settings.capacity or self.held_bytes + size > room:
            self._evict()
        slot = self.inserted % self.settings.capacity
        self._data[slot] = packed.data
        self._weigh(np.array([slot]), np.array([packed.priority]))
        self.held_bytes += size
        self.inserted += 1

    def draw(self, rng: np.random.Generator) -> Drawn:
        """Sample a batch, one sequence from each of `B` equal shares of the total weight.

        As in Schaul et al. (2016): the expected counts are those of independent draws, with less
        variance and fewer repetitions.
        """
        total, batch = self._tree[1], self.settings.batch
        if not len(self):
            raise ValueError("the replay is empty; there is nothing to draw")
        slots = _find(self._tree, (np.arange(batch) + rng.random(batch)) * (total / batch))
        probability = self._tree[len(self._tree) // 2 + slots] / total
        serial = self.evicted + (slots - self.evicted) % self.settings.capacity
        self.sampled += batch
        return Drawn([self._data[k] for k in slots], serial, probability)

    def update(self, serial: np.ndarray, priority: np.ndarray) -> None:
        """Set priorities `[B]`; ignore those of sequences that were evicted meanwhile."""
        here = serial >= self.evicted
        self._weigh(serial[here] % self.settings.capacity, priority[here])
        self.updated += int(here.sum())
        self.stale += int((~here).sum())

    def state(self) -> dict[str, np.ndarray]:
        """Return everything as arrays: the concatenated streams, and the end of each."""
        slots = self._slots()
        data = [self._data[k] for k in slots]
        return {
            "data": np.frombuffer(b"".join(data), np.uint8),
            "ends": np.cumsum([len(x) for x in data], dtype=np.int64),
            "weights": self._tree[len(self._tree) // 2 + slots],
            "counters": np.array(
                [self.inserted, self.sampled, self.evicted, self.updated, self.stale],
                np.int64,
            ),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from `state`, with the same settings and shapes."""
        inserted, sampled, evicted, updated, stale = (int(x) for x in state["counters"])
        ends = state["ends"].tolist()
        held_bytes = ends[-1] if ends else 0
        settings = self.settings
        if inserted - evicted > settings.capacity or held_bytes > settings.capacity_bytes:
            raise InputError(
                "--r2d2.replay.capacity: the replay of this checkpoint does not fit into it."
            )
        data = [state["data"][a:b].tobytes() for a, b in zip([0, *ends], ends, strict=False)]
        if data and len(zlib.decompress(data[0])) != self._bytes:
            raise InputError("The replay of this checkpoint holds sequences of another shape.")
        self.inserted, self.sampled = inserted, sampled
        self.evicted, self.updated, self.stale = evicted, updated, stale
        self.held_bytes = held_bytes
        self._data = [b""] * settings.capacity
        for slot, x in zip(self._slots(), data, strict=True):
            self._data[slot] = x
        self._tree[:] = 0.0
        _set(self._tree, self._slots(), state["weights"])

    def _slots(self) -> np.ndarray:
        """Return the slots in use, oldest sequence first."""
        return np.arange(self.evicted, self.inserted) % self.settings.capacity

    def _weigh(self, slots: np.ndarray, priority: np.ndarray) -> None:
        if not np.all(np.isfinite(priority) & (priority >= 0)):
            raise RunError(
                "A priority is negative or not finite: the TD errors of loss_q are too large. The "
                "last good checkpoint is kept; a smaller --r2d2.network.learning-rate often helps."
            )
        weights = np.maximum(priority, _SMALLEST).astype(np.float64) ** self.settings.exponent
        _set(self._tree, slots, weights)

    def _evict(self) -> None:
        slot = self.evicted % self.settings.capacity
        self.held_bytes -= len(self._data[slot])
        self._data[slot] = b""
        _set(self._tree, np.array([slot]), np.zeros(1))
        self.evicted += 1

    def unpack(self, drawn: Drawn) -> SequenceSample:
        """Decompress a batch and stack its sequences."""
        data = drawn.data
        time, *frame = self._shape
        frames = np.empty((time, len(data), int(np.prod(frame))), np.uint8)
        records = np.empty(len(data), self._record)

        def one(column: int) -> None:
            # zlib and the kernel release the GIL.
            plain = zlib.decompress(data[column], bufsize=self._bytes)
            records[column] = np.frombuffer(plain, self._record, 1)[0]
            change = np.frombuffer(plain, np.uint8, offset=self._record.itemsize)
            _frames(change.reshape(time, -1), frames, column)

        for _ in self._pool.map(one, range(len(data))):
            pass
        timeless = ("state", "priority")
        arrays: dict[str, Any] = {"q_mcts": None}
        for name in self._record.names or ():
            array = records[name] if name in timeless else records[name].swapaxes(0, 1)
            arrays[name] = np.ascontiguousarray(array)
        sequences = Sequence(frames=frames.reshape(time, len(data), *frame), **arrays)
        return SequenceSample(sequences, drawn.serial, drawn.probability)
