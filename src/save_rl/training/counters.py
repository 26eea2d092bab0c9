"""Counters of a run, shared by both loops: steps, episodes, returns, losses."""

from typing import Any, NamedTuple, TypeVar

import numpy as np

from save_rl.learning.exploration import typical_length
from save_rl.types import Array

SeedT = TypeVar("SeedT", bound=Any)


class Stats(NamedTuple):
    """Sums since the last line of metrics, per seed."""

    steps: Array
    episodes: Array
    return_sum: Array
    return_min: Array
    return_max: Array
    loss_q: Array
    loss_a: Array
    updates: Array
    level_episodes: Array  # of the level that a curriculum has reached
    level_return_sum: Array


class Health(NamedTuple):
    """Sums over agent steps since the last line of metrics that show the effect of the search."""

    steps: np.ndarray
    explored: np.ndarray  # distinct actions tried at the root
    changed: np.ndarray  # steps whose action is not the network's greedy one


class Counters(NamedTuple):
    """The contents of a line of metrics; arrays `[seeds]`.

    restarts: simulator faults, after which new episodes were started. level: of the curriculum; -1
    without one. health: None if it is not counted.
    """

    episodes: np.ndarray
    env_steps: np.ndarray
    simulator_steps: np.ndarray
    updates: np.ndarray
    length: np.ndarray
    restarts: np.ndarray
    level: np.ndarray
    stats: Stats
    health: Health | None = None


def no_stats(xp: Any, shape: tuple[int, ...] = ()) -> Stats:
    """Return empty statistics; `xp` is NumPy or jax.numpy, `shape` that of the seeds."""
    none, zero = xp.zeros(shape, xp.int32), xp.zeros(shape, xp.float32)
    return Stats(none, none, zero, zero + xp.inf, zero - xp.inf, zero, zero, none, none, zero)


def no_health(shape: tuple[int, ...]) -> Health:
    """Return empty sums; `shape` is that of the seeds."""
    return Health(*(np.zeros(shape, np.int64) for _ in Health._fields))


def count_step(
    state: SeedT, reward: Array, over: Array, moved: Any, xp: Any, running: Any = 1
) -> SeedT:
    """Return the state of a seed, or of several `[seeds, ...]`, after a real step of its lanes.

    xp: NumPy or jax.numpy. reward, over: `[..., lanes]`. moved: true (or 1) for lanes that made a
    step. running: `[seeds]`, false (or 0) for those that stand still.
    """
    returns = state.episode_return + reward
    step = state.episode_step + moved
    finished = xp.sum(over, -1, dtype=xp.int32)
    mean_length = xp.sum(xp.where(over, step, 0), -1) / xp.maximum(finished, 1)
    stats = state.stats
    stats = stats._replace(
        steps=stats.steps + running,
        episodes=stats.episodes + finished,
        return_sum=stats.return_sum + xp.sum(xp.where(over, returns, 0.0), -1),
        return_min=xp.minimum(stats.return_min, xp.min(xp.where(over, returns, xp.inf), -1)),
        return_max=xp.maximum(stats.return_max, xp.max(xp.where(over, returns, -xp.inf), -1)),
    )
    length = typical_length(state.length, finished, mean_length)
    return state._replace(
        episode_step=xp.where(over, 0, step),
        episode_return=xp.where(over, 0.0, returns),
        length=xp.asarray(length, xp.float32),
        episodes=state.episodes + finished,
        steps=state.steps + running,
        stats=stats,
    )


def count_updates(state: SeedT, updates: Any, loss_q: Any, loss_a: Any) -> SeedT:
    """Return the state of a seed after some updates with these sums of losses."""
    stats = state.stats
    return state._replace(
        updates=state.updates + updates,
        stats=stats._replace(
            loss_q=stats.loss_q + loss_q,
            loss_a=stats.loss_a + loss_a,
            updates=stats.updates + updates,
        ),
    )


class AnyLength:
    """A placeholder for an array of any length in a template."""

    shape = (-1,)

    def __init__(self, dtype: Any):
        self.dtype = np.dtype(dtype)
