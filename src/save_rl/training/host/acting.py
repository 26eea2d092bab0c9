"""Numba kernels that choose the final action, for agents whose search runs on the host.

`training.acting` has the same rules for JAX. Random numbers come from Numba's generator, which the
caller seeds.
"""

import numpy as np

from save_rl.agents import ACTS
from save_rl.compiled import njit

_VISITS, _THRESHOLD = ACTS.index("visits"), ACTS.index("threshold")
_UCB, _SOFTMAX, _COUNTS = (ACTS.index(name) for name in ("ucb", "softmax", "counts"))


@njit(refcounts=True)
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


@njit(refcounts=True)
def _sample(weights):
    """Draw an index with probability proportional to weights `[A]`; -1 if none is above 0."""
    total = weights.sum()
    if not total > 0:
        return -1
    left = np.random.random() * total
    for a in range(weights.shape[0]):
        left -= weights[a]
        if left < 0:
            return a
    return weights.argmax()


@njit(refcounts=True)
def _upper_bounds(q_values, visits, valid, c):
    """Return Q_MCTS + U of the root `[A]`, with SAVE's pseudo-count of 1 per action."""
    total = visits.sum() + valid.sum()
    return q_values + c * np.sqrt(np.log(total) / (visits + 1))


@njit(refcounts=True)
def _random(allowed, num_actions):
    """Return a random action of those that the packed bits allow, or of all if there are none."""
    if allowed.shape[0] == 0:
        return np.random.randint(num_actions)
    count = 0
    for a in range(num_actions):
        count += (allowed[a >> 3] >> (7 - (a & 7))) & 1
    left = np.random.randint(count)
    for a in range(num_actions):
        if (allowed[a >> 3] >> (7 - (a & 7))) & 1:
            if left == 0:
                return a
            left -= 1
    return -1


@njit(refcounts=True)
def act(search, how, c, epsilon, q_values, visits, root, allowed, num_actions):
    """Return the final action of one lane; `epsilon` < 0 means test.

    how: `Agent.act`, as its index in `agents.ACTS`. search: false if there was no search. c:
    exploration constant of the upper bounds. q_values, visits: `[W]` of the root's slots, root:
    their actions (empty if every action has a slot, see `search.host`). Only these may be chosen
    for their values: the kinds 'threshold', 'ucb' and 'softmax' need a slot for every action.
    allowed: the mask as bits, or nothing. Where no value is a number, the action is random.
    """
    valid = q_values > -np.inf
    trains = epsilon >= 0
    slot = -1
    if search and how == _VISITS and not trains:
        slot = _highest(visits, visits > 0)
    elif search and trains and how in (_VISITS, _COUNTS):
        slot = _sample(visits)
    elif trains and how == _SOFTMAX:
        slot = _sample(np.exp(q_values - q_values.max()))
    elif trains and how == _UCB:
        slot = _highest(_upper_bounds(q_values, visits, valid, c), valid)
    elif np.random.random() < epsilon:
        return _random(allowed, num_actions)
    else:
        explored = visits > 0
        slot = _highest(q_values, explored if explored.any() else valid)
        unexplored = valid & ~explored
        if how == _THRESHOLD and explored.any() and q_values[slot] <= 0 and unexplored.any():
            slot = _highest(np.zeros_like(q_values), unexplored)
    if slot < 0:  # no value is a number
        return _random(allowed, num_actions)
    return root[slot] if root.shape[0] > 0 else slot


def compile_ahead() -> None:
    """Compile, or load, `act_all`."""
    value, number, none = np.zeros((1, 1), np.float32), np.ones((1, 1), np.int32), (1, 0)
    act_all(
        np.arange(1), np.zeros(1, np.uint32), True, 0, 1.0, np.zeros(1), value, number,
        np.zeros(none, np.int32), np.zeros(none, np.uint8), 1, np.zeros(1, np.int64),
    )  # fmt: skip


@njit(refcounts=True)
def act_all(
    lanes, seeds, search, how, c, epsilon, q_values, visits, roots, allowed, num_actions, actions
):
    """Apply `act` to some lanes, each with its own random seed; write `actions [B]`."""
    for lane in lanes:
        np.random.seed(seeds[lane])
        actions[lane] = act(
            search,
            how,
            c,
            epsilon[lane],
            q_values[lane],
            visits[lane],
            roots[lane],
            allowed[lane],
            num_actions,
        )
