"""A ring buffer of transitions on the device (paper A.1: 4000 of them).

Every lock-step writes one row of `lanes` transitions, so a write is one contiguous copy. The number
of rows is rounded up; sampling draws from exactly the newest `capacity` transitions. n-step
transitions are made while sampling, from the rows that follow: those of the newest rows have fewer
steps, so that what is sampled does not depend on n.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from save_rl.types import Array


class Transition(NamedTuple):
    """`(s, a, r, s', search result)` of any number of lanes.

    discount: γ, or 0 where the step was terminal.
    target: what the amortization loss needs of the search, see `agents.target_rows`.
    mask, next_mask: `[..., A]` allowed actions of s and s'; `[..., 0]` without action masks.
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
    last: `[rows, lanes]` the episode ended with this transition; None without n-step transitions.
    """

    data: Transition
    returns: Array
    weight: Array
    unfinished: Array
    last: Array | None = None


def empty(example: Transition, capacity: int, n_step: int = 1) -> Replay:
    """Allocate room for `capacity` transitions like `example` `[lanes, ...]`."""
    lanes = example.action.shape[0]
    rows = -(-capacity // lanes)
    data = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), example)
    zeros = jnp.zeros((rows, lanes))
    none = jnp.zeros((rows, lanes), jnp.bool_)
    return Replay(data, zeros, zeros, none, none if n_step > 1 else None)


def add(
    replay: Replay, step: Any, transitions: Transition, over: Array, gamma: float, track: bool,
    running: Any = True,
) -> Replay:  # fmt: skip
    """Write the transitions of lock-step `step` (0-based, of those that this seed has made).

    over: `[lanes]`, the episode ends with this transition. track: update returns. running: if
    false, nothing changes; only the row is looked at, not the whole ring.
    """
    rows = replay.returns.shape[0]
    row = step % rows

    def write(ring: Array, new: Array) -> Array:
        old = jax.lax.dynamic_index_in_dim(ring, row, keepdims=False)
        chosen = jnp.where(running, new.astype(ring.dtype), old)
        return jax.lax.dynamic_update_index_in_dim(ring, chosen, row, 0)

    data = jax.tree.map(write, replay.data, transitions)
    last = None if replay.last is None else write(replay.last, over)
    replay = replay._replace(data=data, last=last)
    if not track:
        return replay
    lanes = transitions.action.shape
    returns = write(replay.returns, jnp.zeros(lanes))
    weight = write(replay.weight, jnp.ones(lanes))
    unfinished = write(replay.unfinished, jnp.ones(lanes, jnp.bool_))
    returns = returns + jnp.where(running & unfinished, weight * transitions.reward, 0.0)
    weight = jnp.where(running, weight * gamma, weight)
    return replay._replace(
        returns=returns, weight=weight, unfinished=unfinished & ~(running & over)
    )


def sample(
    replay: Replay, key: Array, step: Any, capacity: int, shape: tuple[int, ...], n_step: int = 1
) -> tuple[Transition, Array, Array]:
    """Sample from the newest `capacity` transitions, after lock-step `step` was written.

    Returns transitions `[*shape, ...]` of up to `n_step` steps, returns `[*shape]` and flags of
    finished episodes.
    """
    rows, lanes = replay.returns.shape
    size = jnp.minimum(jnp.minimum(step + 1, rows) * lanes, capacity)  # below 2^31
    age = jnp.floor(jax.random.uniform(key, shape) * size).astype(jnp.int32)
    newest = (step % rows) * lanes + lanes - 1
    slot = (newest - jnp.minimum(age, size - 1)) % (rows * lanes)

    def flat(ring: Array) -> Array:
        return ring.reshape(rows * lanes, *ring.shape[2:])

    def take(ring: Array) -> Array:
        return flat(ring)[slot]

    data = n_step_transitions(
        jax.tree.map(flat, replay.data), _chain(replay, slot, step % rows, n_step)
    )
    return data, take(replay.returns), ~take(replay.unfinished)


def _chain(replay: Replay, slot: Array, newest: Any, n_step: int) -> Array:
    """Return slots `[...]` and those of the steps that follow in their episodes, `[..., n_step]`;
    -1 after the last one. newest: row of the newest transitions."""
    if n_step == 1:
        return slot[..., None]
    assert replay.last is not None
    rows, lanes = replay.last.shape
    ahead = jnp.arange(n_step)
    chain = (slot[..., None] + lanes * ahead) % (rows * lanes)
    written = ahead <= ((newest - slot // lanes) % rows)[..., None]
    ends = jnp.cumsum(replay.last.reshape(-1)[chain], -1)
    ended = jnp.concatenate([jnp.zeros_like(ends[..., :1]), ends[..., :-1]], -1) > 0
    return jnp.where(written & ~ended, chain, -1)


def n_step_transitions(data: Transition, chain: Array) -> Transition:
    """Return n-step transitions `[...]` of a ring of transitions `[M, ...]`.

    Their reward is `r_0 + γ r_1 + …`, and their discount and next observation are those with which
    a target goes on after the last step. chain: `[..., n]` slots of consecutive steps of an
    episode, -1 after the last one.
    """
    first = chain[..., 0]
    taken = jax.tree.map(lambda ring: ring[first], data)
    if chain.shape[-1] == 1:
        return taken
    steps = chain >= 0
    weight = jnp.cumprod(jnp.where(steps, data.discount[chain], 1.0), -1)
    before = jnp.concatenate([jnp.ones_like(weight[..., :1]), weight[..., :-1]], -1)
    end = jnp.max(jnp.where(steps, jnp.arange(chain.shape[-1]), 0), -1, keepdims=True)
    last = jnp.take_along_axis(chain, end, -1)[..., 0]
    return taken._replace(
        reward=jnp.sum(jnp.where(steps, before * data.reward[chain], 0.0), -1),
        discount=weight[..., -1],
        next_observation=jax.tree.map(lambda ring: ring[last], data.next_observation),
        next_mask=data.next_mask[last],
    )
