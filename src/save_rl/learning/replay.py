"""A ring buffer of transitions on the device (paper A.1: 4000 of them).

Every lock-step writes one row of `lanes` transitions, so a write is one contiguous copy. The number
of rows is rounded up; sampling draws from exactly the newest `capacity` transitions.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from save_rl.types import Array


class Transition(NamedTuple):
    """`(s, a, r, s', search result)` of any number of lanes.

    discount: γ, or 0 where the step was terminal.
    target: `[..., A]` Q_MCTS, or the search's policy (visit frequencies for PUCT); `[..., 0]`
    without an amortization loss. mask, next_mask: `[..., A]` allowed actions of s and s';
    `[..., 0]` without action masks.
    """

    observation: Array
    action: Array
    reward: Array
    discount: Array
    next_observation: Array
    target: Array
    mask: Array
    next_mask: Array


class Replay(NamedTuple):
    """Rows of transitions `[rows, lanes, ...]`, and the returns of their episodes.

    returns: `[rows, lanes]` discounted rewards from the transition to the end of its episode, so
        far. weight: γ^k for the next reward. unfinished: the episode is still running.
    """

    data: Transition
    returns: Array
    weight: Array
    unfinished: Array


def empty(example: Transition, capacity: int) -> Replay:
    """Allocate room for `capacity` transitions like `example` `[lanes, ...]`."""
    lanes = example.action.shape[0]
    rows = -(-capacity // lanes)
    data = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), example)
    zeros = jnp.zeros((rows, lanes))
    return Replay(data, zeros, zeros, jnp.zeros((rows, lanes), jnp.bool_))


def add(
    replay: Replay, step: Any, transitions: Transition, over: Array, gamma: float, track: bool
) -> Replay:
    """Write the transitions of lock-step `step` (0-based, the same number for all seeds).

    over: `[lanes]`, the episode ends with this transition. track: update returns.
    """
    rows = replay.returns.shape[0]
    row = step % rows

    def write(ring: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(ring, new, row, 0)

    data = jax.tree.map(write, replay.data, transitions)
    if not track:
        return replay._replace(data=data)
    lanes = transitions.action.shape
    returns = write(replay.returns, jnp.zeros(lanes))
    weight = write(replay.weight, jnp.ones(lanes))
    unfinished = write(replay.unfinished, jnp.ones(lanes, jnp.bool_))
    returns = returns + jnp.where(unfinished, weight * transitions.reward, 0.0)
    return Replay(data, returns, weight * gamma, unfinished & ~over)


def sample(
    replay: Replay, key: Array, step: Any, capacity: int, shape: tuple[int, ...]
) -> tuple[Transition, Array, Array]:
    """Sample from the newest `capacity` transitions, after lock-step `step` was written.

    Returns transitions `[*shape, ...]`, returns `[*shape]` and flags of finished episodes.
    """
    rows, lanes = replay.returns.shape
    size = jnp.minimum((step + 1) * lanes, capacity)
    age = jnp.floor(jax.random.uniform(key, shape) * size).astype(jnp.int32)
    newest = (step % rows) * lanes + lanes - 1
    slot = (newest - jnp.minimum(age, size - 1)) % (rows * lanes)

    def take(ring: Array) -> Array:
        return ring.reshape(rows * lanes, *ring.shape[2:])[slot]

    data = jax.tree.map(take, replay.data)
    return data, take(replay.returns), ~take(replay.unfinished)
