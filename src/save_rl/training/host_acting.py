"""Numba kernels that choose the final action, for agents whose search runs on the host.

`training.acting` has the same rules for JAX. Random numbers come from Numba's generator, which the
caller seeds.
"""

import numpy as np

from save_rl.agents import ACTS
from save_rl.compiled import njit
from save_rl.search.host import nth

_VISITS, _THRESHOLD = ACTS.index("visits"), ACTS.index("threshold")
_UCB, _SOFTMAX, _COUNTS = (ACTS.index(name) for name in ("ucb", "softmax", "counts"))


@njit
def _highest(values, eligible):
    """Return the index of the highest eligible value, ties at random; -1 if none is eligible."""
    best, count, index = -np.inf, 0, -1
    for a in range(values.shape[0]):
        if not eligible[a]:
            continue
        if values[a] > best:
            best, count, index = values[a], 1, a
        elif values[a] == best:
            count += 1
            if np.random.randint(count) == 0:
                index = a
    return index


@njit
def _sample(weights):
    """Draw an index with probability proportional to weights `[A]`."""
    left = np.random.random() * weights.sum()
    for a in range(weights.shape[0]):
        left -= weights[a]
        if left < 0:
            return a
    return weights.argmax()


@njit
def _upper_bounds(q_values, visits, valid, c):
    """Return Q_MCTS + U of the root `[A]`, with SAVE's pseudo-count of 1 per action."""
    total = visits.sum() + valid.sum()
    return q_values + c * np.sqrt(np.log(total) / (visits + 1))


@njit
def act(search, how, c, epsilon, q_values, visits):
    """Return the final action of one lane; `epsilon` < 0 means test, `q_values` -inf masked.

    how: `Agent.act`, as its index in `agents.ACTS`. search: false if there was no search. c:
    exploration constant of the upper bounds.
    """
    valid = q_values > -np.inf
    trains = epsilon >= 0
    if search and how == _VISITS and not trains:
        return _highest(visits, visits > 0)
    if search and trains and how in (_VISITS, _COUNTS):
        return _sample(visits)
    if trains and how == _SOFTMAX:
        return _sample(np.exp(q_values - q_values.max()))
    if trains and how == _UCB:
        return _highest(_upper_bounds(q_values, visits, valid, c), valid)
    if np.random.random() < epsilon:
        return nth(valid, np.random.randint(valid.sum()))
    explored = visits > 0
    if not explored.any():
        return _highest(q_values, valid)
    best = _highest(q_values, explored)
    unexplored = valid & ~explored
    if how == _THRESHOLD and q_values[best] <= 0 and unexplored.any():
        return _highest(np.zeros_like(q_values), unexplored)
    return best


@njit
def act_all(lanes, seeds, search, how, c, epsilon, q_values, visits, actions):
    """Apply `act` to some lanes, each with its own random seed; write `actions [B]`."""
    for lane in lanes:
        np.random.seed(seeds[lane])
        actions[lane] = act(search, how, c, epsilon[lane], q_values[lane], visits[lane])
