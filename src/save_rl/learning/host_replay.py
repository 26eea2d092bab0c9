"""A ring buffer of the transitions of all seeds, for simulators on the host.

It holds exactly the newest `capacity` transitions of each seed. The transitions are on the device
that learns, so an update needs only their slots; what decides which slots to use is in NumPy.
Q_MCTS and masks have one entry per action of the simulator; for an action that a state does not
allow, Q_MCTS is -inf and the mask false. Masks are packed bits, targets float16 (`pack_target`).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.learning.replay import Transition


class PackedTarget(NamedTuple):
    """A target of the amortization loss in half precision, see `pack_target`.

    best: float32 `[..., values]`, the highest entry of each row of Q_MCTS. high, low: both bytes
    `[..., rows, A]` of float16: differences from it, then visits or probabilities as they are. In
    separate arrays they take a fifth less of a compressed checkpoint.
    """

    best: Any
    high: Any
    low: Any


class HostReplay(NamedTuple):
    """Transitions `[seeds, capacity, ...]` and the returns of their episodes.

    data: with targets as `PackedTarget` and masks as packed bits. size: `[seeds, capacity, 2]`,
    nodes of both observations, if they are graphs; else 0. lane: the lane of a transition, -1 if
    its episode was abandoned. returns: discounted rewards from the transition to the end of its
    episode, so far. weight: γ^k for the next reward. unfinished: the episode is still running.
    added: `[seeds]` transitions so far.

    For n-step transitions, else None: following: slot of the next transition of the episode, -1 if
    there is none. latest: `[seeds, lanes]`, the newest transition of each lane, counted like
    `added`; -1 if there is none.
    """

    data: Transition
    size: np.ndarray
    lane: np.ndarray
    returns: np.ndarray
    weight: np.ndarray
    unfinished: np.ndarray
    added: np.ndarray
    following: np.ndarray | None = None
    latest: np.ndarray | None = None


def empty(example: Transition, capacity: int, linked: int = 0) -> HostReplay:
    """Allocate room for `capacity` transitions like those of `example` `[seeds, lanes, ...]`, whose
    target and masks are packed.

    linked: lanes, if n-step transitions are to be sampled.
    """
    small = nothing(len(example.action), capacity, linked)
    return small._replace(data=empty_data(example, capacity))


def empty_data(example: Transition, capacity: int) -> Transition:
    """Allocate the transitions alone."""

    def room(x: Any) -> Any:
        return jnp.zeros((len(x), capacity, *x.shape[2:]), x.dtype)

    return jax.tree.map(room, example)


def nothing(seeds: int, capacity: int, linked: int = 0) -> Any:
    """Return an empty replay without room for transitions."""
    shape = (seeds, capacity)
    return HostReplay(
        None,  # pyright: ignore[reportArgumentType]
        np.zeros((*shape, 2), np.int32),
        np.full(shape, -1, np.int32),
        np.zeros(shape, np.float32),
        np.zeros(shape, np.float32),
        np.zeros(shape, np.bool_),
        np.zeros(seeds, np.int64),
        np.full(shape, -1, np.int32) if linked else None,
        np.full((seeds, linked), -1, np.int64) if linked else None,
    )


@partial(jax.jit, donate_argnums=0)
def _write(data: Transition, transitions: Transition, slots: Any) -> Transition:
    seed = jnp.arange(len(slots))[:, None]
    best, high, _ = data.target
    packed = pack_target(transitions.target, best.shape[-1], high.shape[-2])

    def put(ring: Any, new: Any) -> Any:
        return ring.at[seed, slots].set(new, mode="drop", unique_indices=True)

    return jax.tree.map(put, data, transitions._replace(target=packed))


def add(
    replay: HostReplay,
    transitions: Transition,
    sizes: np.ndarray,
    moved: np.ndarray,
    over: np.ndarray,
    gamma: float,
    track: bool,
    first: int = 0,
    running: np.ndarray | None = None,
    begins: np.ndarray | None = None,
) -> HostReplay:
    """Write the transitions of a lock-step, `[seeds, lanes, ...]`; donates the old ones.

    transitions: with targets that are not packed. sizes: `[seeds, lanes, 2]`, see `HostReplay`.
    moved: `[seeds, lanes]`, true for lanes that stepped; the episodes of the others are abandoned.
    over: the episode ends with this transition. track: update returns. first: index of the first
    of these lanes, if the replay serves others, too. running: `[seeds]`; the others rest, and keep
    their episodes. Default all. begins: the episode begins with this transition, so the one before
    in its lane was finished or is abandoned; needed for n-step transitions.
    """
    seeds, capacity = replay.lane.shape
    count = moved.cumsum(1)
    # Lanes that did not move get slots behind the end, which are not written.
    behind = capacity + np.arange(moved.shape[1])
    slots = np.where(moved, (replay.added[:, None] + count - 1) % capacity, behind)
    data = _write(replay.data, transitions, slots)
    if replay.following is not None:
        assert begins is not None
        _link(replay, slots, replay.added[:, None] + count - 1, moved, begins, first)
    replay.added[...] += count[:, -1]
    for seed in range(seeds):
        lanes = np.flatnonzero(moved[seed])
        replay.size[seed, slots[seed, lanes]] = sizes[seed, lanes]
        if track and (running is None or running[seed]):
            own = HostReplay(None, *(x if x is None else x[seed] for x in replay[1:]))  # pyright: ignore[reportArgumentType]
            left = ~moved[seed] if begins is None else ~moved[seed] | begins[seed]
            _track(own, slots[seed, lanes], np.asarray(transitions.reward)[seed], moved[seed],
                   over[seed], left, gamma, first)  # fmt: skip
    return replay._replace(data=data)


def _link(
    replay: HostReplay, slots: np.ndarray, number: np.ndarray, moved: np.ndarray,
    begins: np.ndarray, first: int,
) -> None:  # fmt: skip
    """Note which transitions follow those before them, in place.

    number: of the transitions `[seeds, lanes]`, counted like `added`.
    """
    following, latest = replay.following, replay.latest
    assert following is not None
    assert latest is not None
    capacity, newest = following.shape[1], number.max(1, keepdims=True)
    own = latest[:, first : first + moved.shape[1]]
    seed, lane = np.nonzero(moved)
    following[seed, slots[seed, lane]] = -1
    goes_on = moved & ~begins & (own >= 0) & (newest - own < capacity)  # else overwritten
    seed, lane = np.nonzero(goes_on)
    following[seed, own[seed, lane] % capacity] = slots[seed, lane]
    own[moved] = number[moved]


def _track(
    replay: HostReplay, slots: np.ndarray, reward: np.ndarray, moved: np.ndarray, over: np.ndarray,
    left: np.ndarray, gamma: float, first: int,
) -> None:  # fmt: skip
    """Add the rewards of one seed's lanes to the returns of their episodes, in place.

    left: lanes whose episode so far was abandoned.
    """
    replay.lane[slots] = -1
    own = np.flatnonzero((replay.lane >= first) & (replay.lane < first + len(moved)))
    replay.lane[own[left[replay.lane[own] - first]]] = -1
    replay.lane[slots], replay.unfinished[slots] = first + np.flatnonzero(moved), True
    replay.returns[slots], replay.weight[slots] = 0.0, 1.0
    own = np.append(own, slots)
    going = own[replay.unfinished[own] & (replay.lane[own] >= 0)]
    lane = replay.lane[going] - first
    replay.returns[going] += replay.weight[going] * reward[lane]
    replay.weight[going] *= gamma
    replay.unfinished[going] = ~over[lane]


def draw(
    replay: HostReplay, random: list[np.random.Generator], shape: tuple[int, ...]
) -> np.ndarray:
    """Sample slots `[seeds, *shape]` of transitions, uniformly."""
    capacity = replay.lane.shape[1]
    slots = []
    for rng, added in zip(random, replay.added.tolist(), strict=True):
        age = rng.integers(max(min(added, capacity), 1), size=shape)
        slots.append(((added - 1 - age) % capacity).astype(np.int32))
    return np.stack(slots)


def unpack(packed: Any, actions: int) -> Any:
    """Return masks `[..., actions]` from packed bits; of width 0 without action masks."""
    return jnp.unpackbits(packed, axis=-1, count=actions).astype(bool) if actions else packed


def pack_target(target: Any, values: int = 1, rows: int = 1) -> PackedTarget:
    """Return a target `[..., rows * A]` in half precision.

    The first `values` rows are Q_MCTS, kept as gaps to the highest entry. That one is exact; the
    others have an error of at most 2^-11 of their gap, or 3e-8 if it is tiny, besides float32's
    own. Gaps end at -65504. The remaining rows are visits or probabilities, kept as they are: 0 is
    exact, and so are visits up to 2048; others have a relative error of at most 2^-11, or 3e-8.
    -inf stays -inf.
    """
    shape = (*target.shape[:-1], rows, target.shape[-1] // max(rows, 1))
    entries = jnp.asarray(target).reshape(shape)
    best = jnp.max(entries[..., :values, :], -1, initial=-jnp.inf)
    most = float(jnp.finfo(jnp.float16).max)
    gap = jnp.clip(entries - _origin(best, rows), -most, most)
    gap = jnp.where(entries == -jnp.inf, -jnp.inf, gap)  # also where best is -inf
    bits = jax.lax.bitcast_convert_type(gap.astype(jnp.float16), jnp.uint16)
    return PackedTarget(best, (bits >> 8).astype(jnp.uint8), bits.astype(jnp.uint8))


def unpack_target(packed: PackedTarget) -> Any:
    """Return a target `[..., rows * A]` in float32."""
    *shape, rows, actions = packed.high.shape
    bits = (packed.high.astype(jnp.uint16) << 8) | packed.low
    gap = jax.lax.bitcast_convert_type(bits, jnp.float16).astype(jnp.float32)
    entries = _origin(packed.best, rows) + gap
    return entries.reshape(*shape, rows * actions)


def _origin(best: Any, rows: int) -> Any:
    """Return what gaps count from, `[..., rows, 1]`: the best value, 0 in rows without values."""
    values = best.shape[-1]
    return jnp.pad(best, [(0, 0)] * (best.ndim - 1) + [(0, rows - values)])[..., None]


def chain(replay: HostReplay, slots: np.ndarray, n_step: int) -> np.ndarray:
    """Return the slots of transitions and of those that follow in their episodes, `[..., n_step]`;
    -1 after the last one."""
    links = [slots]
    at = np.arange(len(slots)).reshape(-1, *[1] * (slots.ndim - 1))
    for _ in range(n_step - 1):
        assert replay.following is not None
        links.append(np.where(links[-1] < 0, -1, replay.following[at, links[-1]]))
    return np.stack(links, -1)


def outcomes(replay: HostReplay, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return returns, and flags of finished episodes, `[seeds, ...]` like `slots`."""
    at = np.arange(len(slots)).reshape(-1, *[1] * (slots.ndim - 1)), slots
    return replay.returns[at], ~replay.unfinished[at]
