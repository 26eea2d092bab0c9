"""A ring buffer of transitions in NumPy arrays, for simulators on the host.

It holds exactly the newest `capacity` transitions. Q_MCTS and masks have one entry per action of
the simulator; for an action that a state does not allow, Q_MCTS is -inf and the mask false.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from save_rl.learning.replay import Transition


class HostReplay(NamedTuple):
    """Transitions `[capacity, ...]` and the returns of their episodes.

    lane: the lane of a transition, -1 if its episode was abandoned. returns: discounted rewards
    from the transition to the end of its episode, so far. weight: γ^k for the next reward.
    unfinished: the episode is still running. added: `[]` transitions so far.
    """

    data: Transition
    lane: np.ndarray
    returns: np.ndarray
    weight: np.ndarray
    unfinished: np.ndarray
    added: np.ndarray


def empty(example: Transition, capacity: int) -> HostReplay:
    """Allocate room for `capacity` transitions like those of `example` `[lanes, ...]`."""
    data = jax.tree.map(lambda x: np.zeros((capacity, *x.shape[1:]), x.dtype), example)
    zeros = np.zeros(capacity, np.float32)
    return HostReplay(
        data,
        np.full(capacity, -1, np.int32),
        zeros,
        zeros.copy(),
        np.zeros(capacity, np.bool_),
        np.zeros((), np.int64),
    )


def add(
    replay: HostReplay,
    transitions: Transition,
    moved: np.ndarray,
    over: np.ndarray,
    gamma: float,
    track: bool,
    first: int = 0,
) -> None:
    """Write the transitions of a lock-step, `[lanes, ...]`.

    moved: `[lanes]`, true for lanes that stepped; the episodes of the others are abandoned. over:
    the episode ends with this transition. track: update returns. first: index of the first of
    these lanes, if the replay serves others too.
    """
    lanes = np.flatnonzero(moved)
    capacity = len(replay.lane)
    start = int(replay.added) % capacity
    slots = (start + np.arange(len(lanes))) % capacity
    everything = len(lanes) == len(moved) and start + len(lanes) <= capacity

    def write(ring: np.ndarray, new: np.ndarray) -> None:
        if everything:  # one copy instead of two
            ring[start : start + len(lanes)] = new
        else:
            ring[slots] = new[lanes]

    jax.tree.map(write, replay.data, transitions)
    replay.added[...] += len(lanes)
    if not track:
        return
    replay.lane[slots], replay.unfinished[slots] = first + lanes, True
    replay.returns[slots], replay.weight[slots] = 0.0, 1.0
    own = np.flatnonzero((replay.lane >= first) & (replay.lane < first + len(moved)))
    replay.lane[own[~moved[replay.lane[own] - first]]] = -1
    going = own[replay.unfinished[own] & (replay.lane[own] >= 0)]
    lane = replay.lane[going] - first
    replay.returns[going] += replay.weight[going] * transitions.reward[lane]
    replay.weight[going] *= gamma
    replay.unfinished[going] = ~over[lane]


def draw(replay: HostReplay, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Sample slots `[*shape]` of transitions, uniformly."""
    capacity = len(replay.lane)
    age = rng.integers(min(int(replay.added), capacity), size=shape)
    return (int(replay.added) - 1 - age) % capacity


def take(replay: HostReplay, slots: np.ndarray) -> tuple[Transition, Any, Any]:
    """Return transitions `[*slots, ...]`, their returns, and flags of finished episodes."""
    data = jax.tree.map(lambda ring: ring[slots], replay.data)
    return data, replay.returns[slots], ~replay.unfinished[slots]
