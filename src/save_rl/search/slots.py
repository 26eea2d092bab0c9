"""Slots of the host's trees: the actions of a node that may be tried (see `search.host`)."""

from typing import NamedTuple

import numpy as np

from save_rl.compiled import njit
from save_rl.search.rules import TIE_TOLERANCE


class Slots(NamedTuple):
    """The slots of new nodes, by row.

    choices: `[n, W]` their actions, or `[n, 0]` if every action has a slot. valid: `[n]`, number of
    unmasked actions, -1 to count the slots. more: `[n]`, see `Trees`.
    """

    choices: np.ndarray
    valid: np.ndarray
    more: np.ndarray


def every_action(rows: int) -> Slots:
    """Return the slots of nodes where every action has one."""
    return Slots(
        np.zeros((rows, 0), np.int32), np.full(rows, -1, np.int32), np.zeros(rows, np.int32)
    )


@njit
def best_actions(priors, start, values, actions, valid, more):
    """Write the actions with the highest priors of every row `[n, A]`, best first.

    start: the action to begin with; among equal priors at the end of the list it decides who is
    in. values, actions: `[n, W]`, filled up with -inf and 0. valid: `[n]`, number of priors above
    -inf. more: `[n]`, actions left out that tie with the last of the list.
    """
    slots, count = values.shape[1], priors.shape[1]
    for i in range(priors.shape[0]):
        row, best, who = priors[i], values[i], actions[i]
        best[:], who[:] = -np.inf, 0
        found, lowest = 0, -np.inf
        for k in range(count):
            a = start + k if start + k < count else start + k - count
            if row[a] == -np.inf:
                continue
            found += 1
            if row[a] > lowest:
                at = min(found, slots) - 1
                while at > 0 and row[a] > best[at - 1]:
                    best[at], who[at] = best[at - 1], who[at - 1]
                    at -= 1
                best[at], who[at] = row[a], a
                if found >= slots:
                    lowest = best[slots - 1]
        valid[i], more[i] = found, 0
        if found > slots:
            for a in range(count):
                more[i] += row[a] >= lowest - TIE_TOLERANCE
            for w in range(slots):
                more[i] -= best[w] >= lowest - TIE_TOLERANCE
