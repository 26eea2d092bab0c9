"""The states that a search will need next, so that they are simulated and evaluated together.

A search that waits for each of its simulations is slow: a message to a process and a call of a
network take long, however little they are about. But what comes next can be foretold. As long as
new states are worth what the priors of their actions promise, the search goes on as if they were
known: `foresee` plays it on under this assumption, on a copy of the tree. The states that it meets
are simulated and evaluated together, and `go_on` makes the real simulations in their order, for as
long as their states are known. So the result is exactly that of one simulation after the other; a
wrong guess costs a state that nobody asks for.
"""

from typing import NamedTuple

import numpy as np

from save_rl.compiled import njit
from save_rl.search.outcomes import has_chance, next_luck
from save_rl.search.trees import action_of, backup, expand, select

_FREE = -1
LANE, SEAT, PARENT, SERIAL, ACTION, LUCK = range(6)  # columns of `SearchProgress.wanted`


class Seats(NamedTuple):
    """States that were simulated ahead, in the seats of each lane.

    Their evaluations are `prior` to `value`, see `host.Search.expand`; those of terminal states
    have none.
    """

    node: np.ndarray  # [B, S] int64, the node from which a state was reached
    slot: np.ndarray  # [B, S] int64, the slot tried there; -1 for a free seat
    serial: np.ndarray  # [B, S] int64, number of the state; that of the lane's root is 0
    reward: np.ndarray  # [B, S] float64
    terminal: np.ndarray  # [B, S] bool
    prior: np.ndarray  # [B, S, W] float32
    choice: np.ndarray  # [B, S, W] int32, or [B, S, 0]
    valid: np.ndarray  # [B, S] int32
    more: np.ndarray  # [B, S] int32
    value: np.ndarray  # [B, S] float64
    scale: np.ndarray  # [B] float32, divides rewards


class SearchProgress(NamedTuple):
    """The simulations that each lane has made, and the states that it wants next."""

    simulations: np.ndarray  # [B] int64, made so far
    steps: np.ndarray  # [B] int32, states that they used
    serial: np.ndarray  # [B, N] int64, number of the state of each node
    given: np.ndarray  # [B] int64, the highest number of a state
    # [B S, 6] int64, a row for each state to simulate, see above: its lane, the one that the lane
    # needs first; its seat, counted over all lanes; numbers of the state before it and of itself;
    # the action that leads there; with chance, the seed of the step.
    wanted: np.ndarray


class Game(NamedTuple):
    """The rules of a search."""

    budget: int
    rule: int
    space: int
    c: float
    discount: float
    most: int  # states to want at a time


@njit
def _seat_of(known, lane, node, slot):
    """Return the seat of the state that a slot of a node leads to; -1 if it is not known."""
    for seat in range(known.slot.shape[1]):
        if known.slot[lane, seat] == slot and known.node[lane, seat] == node:
            return seat
    return -1


@njit
def _take_seat(known, lane, node, slot, serial):
    """Return a seat for a new state: a free one, or that of the oldest guess."""
    best = 0
    for seat in range(known.slot.shape[1]):
        if known.slot[lane, seat] == _FREE:
            best = seat
            break
        if known.serial[lane, seat] < known.serial[lane, best]:
            best = seat
    known.node[lane, best], known.slot[lane, best] = node, slot
    known.serial[lane, best] = serial
    return best


@njit
def _expand(trees, tree, simulation, node, slot, known, lane, seat):
    """Add the state in a lane's seat to a tree; return its node and its value."""
    terminal = known.terminal[lane, seat]
    node = expand(
        trees,
        tree,
        simulation,
        node,
        slot,
        known.reward[lane, seat] / known.scale[lane],
        terminal,
        known.prior[lane, seat],
        known.choice[lane, seat],
        known.valid[lane, seat],
        known.more[lane, seat],
    )
    return node, 0.0 if terminal else known.value[lane, seat]


@njit
def go_on(trees, lane, seed, game, known, progress):
    """Make the next simulations of a lane, for as long as their states are known.

    Returns the node and the slot from which it needs another state, or -1 and -1 at the end.
    """
    simulation = progress.simulations[lane]
    while simulation < game.budget:
        node, slot = select(trees, lane, simulation, game.rule, game.space, game.c, seed)
        value = 0.0
        if slot >= 0:
            seat = _seat_of(known, lane, node, slot)
            if seat < 0:
                progress.simulations[lane] = simulation
                return node, slot
            node, value = _expand(trees, lane, simulation, node, slot, known, lane, seat)
            progress.serial[lane, node] = known.serial[lane, seat]
            progress.steps[lane] += 1
            known.slot[lane, seat] = _FREE
        backup(trees, lane, node, value, game.discount, game.space)
        simulation += 1
    progress.simulations[lane] = simulation
    return np.int64(-1), -1


@njit
def _copy(trees, lane, copy, nodes):
    """Copy the first nodes of a lane's tree to the tree `copy`."""
    for n in range(nodes):
        trees.parent[copy, n] = trees.parent[lane, n]
        trees.action[copy, n] = trees.action[lane, n]
        trees.slot[copy, n] = trees.slot[lane, n]
        trees.first_child[copy, n] = trees.first_child[lane, n]
        trees.sibling[copy, n] = trees.sibling[lane, n]
        trees.num_valid[copy, n] = trees.num_valid[lane, n]
        trees.more[copy, n] = trees.more[lane, n]
        trees.num_tried[copy, n] = trees.num_tried[lane, n]
        trees.chosen[copy, n] = trees.chosen[lane, n]
        trees.visits[copy, n] = trees.visits[lane, n]
        trees.first[copy, n] = trees.first[lane, n]
        trees.last[copy, n] = trees.last[lane, n]
        trees.terminal[copy, n] = trees.terminal[lane, n]
        trees.reward[copy, n] = trees.reward[lane, n]
        trees.total_return[copy, n] = trees.total_return[lane, n]
        trees.edge_prior[copy, n] = trees.edge_prior[lane, n]
        for i in range(trees.ranked.shape[2]):
            trees.ranked[copy, n, i] = trees.ranked[lane, n, i]
        if not trees.terminal[lane, n]:
            for w in range(trees.prior.shape[2]):
                trees.prior[copy, n, w] = trees.prior[lane, n, w]
            for w in range(trees.choice.shape[2]):
                trees.choice[copy, n, w] = trees.choice[lane, n, w]


@njit
def _guess(trees, copy, simulation, node, slot):
    """Add a state that is not known to the copy; return its node."""
    prior, choice = trees.prior[copy, node], trees.choice[copy, node]  # ends need neither
    worth, end, none = np.float64(prior[slot]), np.bool_(True), np.int32(0)
    return expand(trees, copy, simulation, node, slot, worth, end, prior, choice, none, none)


@njit
def _want(trees, lane, node, slot, known, progress, row):
    """Enter a state as wanted in a row, and give it a seat."""
    progress.given[lane] += 1
    seat = _take_seat(known, lane, node, slot, progress.given[lane])
    wanted = progress.wanted[row]
    wanted[LANE], wanted[SEAT] = lane, lane * known.slot.shape[1] + seat
    wanted[PARENT], wanted[SERIAL] = progress.serial[lane, node], progress.given[lane]
    wanted[ACTION] = action_of(trees, lane, node, slot)
    wanted[LUCK] = next_luck(trees, lane, node, slot) if has_chance(trees) else 0


@njit
def foresee(trees, lane, node, slot, seed, game, known, progress, row):
    """Enter the states that a lane wants next from a row on, at most `game.most`; return the row
    after them. node, slot: where the first of them is from.

    The others are guesses, on a copy of the tree in the last tree of `trees`. A new state is taken
    for an end that is worth the prior of its action. So guesses are about states that follow on
    those in the tree, and end where the search would go on from one that is not.
    """
    first, copy = progress.simulations[lane], len(trees.parent) - 1
    most = min(game.most, game.budget - first)
    last = row + most
    _want(trees, lane, node, slot, known, progress, row)
    row += 1
    if row == last:
        return row
    _copy(trees, lane, copy, first + 1)
    node = _guess(trees, copy, first, node, slot)
    backup(trees, copy, node, 0.0, game.discount, game.space)
    for simulation in range(first + 1, game.budget):
        node, slot = select(trees, copy, simulation, game.rule, game.space, game.c, seed)
        if node > first or row == last:
            break
        value = 0.0
        if slot >= 0:
            seat = _seat_of(known, lane, node, slot)
            if seat >= 0:
                node, value = _expand(trees, copy, simulation, node, slot, known, lane, seat)
            else:
                _want(trees, lane, node, slot, known, progress, row)
                row += 1
                node = _guess(trees, copy, simulation, node, slot)
        backup(trees, copy, node, value, game.discount, game.space)
    return row


@njit
def go_on_all(trees, lanes, seeds, game, known, progress):
    """`go_on`, then `foresee`, in some lanes; return the number of states that are wanted."""
    count = 0
    for lane in lanes:
        node, slot = go_on(trees, lane, seeds[lane], game, known, progress)
        if slot >= 0:
            count = foresee(trees, lane, node, slot, seeds[lane], game, known, progress, count)
    return count
