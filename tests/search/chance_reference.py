"""Search with chance, written out literally: slow, float64, the tests' oracle.

The equations are those of docs/algorithm.md#chance. Nodes are paths: tuples of pairs of an action
and the number of its outcome. Every value is computed anew from the list of returns.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

PRIOR_VISITS = 16  # that SAVE's prior counts as


class ChanceMdp(NamedTuple):
    """A finite MDP with S states, A actions and O equally likely outcomes of each."""

    next_state: np.ndarray  # [S, A, O] int
    reward: np.ndarray  # [S, A, O] float
    terminal: np.ndarray  # [S, A, O] bool
    mask: np.ndarray  # [S, A] bool
    prior: np.ndarray  # [S, A] float
    value: np.ndarray  # [S] float


class Outcome(NamedTuple):
    q_values: np.ndarray  # [A]
    visits: np.ndarray  # [A]
    outcomes: np.ndarray  # [A] number of outcomes of the root's actions
    ambiguous: bool


def search(
    mdp: ChanceMdp,
    root: int,
    rule: str,
    budget: int,
    c: float,
    discount: float,
    luck: Callable[[tuple], int],
    prefer: Callable[[int, int, list[int]], int],
    tolerance: float,
) -> Outcome:
    """luck: the seed of the step to a path. prefer: see `tests.search.reference`."""
    state, name, over = {(): root}, {(): 0}, {(): False}
    paid: dict[tuple, float] = {}
    returns = defaultdict(list)  # of (path, action)
    draws = defaultdict(int)  # of a path, simulations through it
    outcomes = defaultdict(int)  # of (path, action)
    ambiguous = False

    def actions(path):
        return [int(a) for a in np.flatnonzero(mdp.mask[state[path]])]

    def count(path, a):
        n = len(returns[path, a])
        return {"save": n + PRIOR_VISITS, "uct": max(n, 1), "puct": n}[rule]

    def q_value(path, a):
        total, n = sum(returns[path, a]), len(returns[path, a])
        if rule == "save":
            return (PRIOR_VISITS * mdp.prior[state[path], a] + total) / (PRIOR_VISITS + n)
        return total / n if n else 0.0

    def score(path, a):
        total = sum(count(path, b) for b in actions(path))
        if rule == "puct":
            bonus = c * mdp.prior[state[path], a] * math.sqrt(total) / (count(path, a) + 1)
        else:
            bonus = c * math.sqrt(math.log(total) / count(path, a))
        return q_value(path, a) + bonus

    for k in range(budget):
        path, steps, leaf = (), [], 0.0
        while not over[path]:
            scores = {a: score(path, a) for a in actions(path)}
            best = max(scores.values())
            ambiguous |= any(tolerance / 10 < best - x < tolerance * 10 for x in scores.values())
            tied = sorted(a for a in scores if scores[a] >= best - tolerance)
            a = tied[0] if len(tied) == 1 else prefer(k, name[path], tied)
            visits, known = len(returns[path, a]), outcomes[path, a]
            steps.append((path, a))
            if known == 0 or known < math.ceil(4 * math.sqrt(visits)):
                child = (*path, (a, known))
                at = (state[path], a, luck(child) % mdp.reward.shape[2])
                outcomes[path, a] += 1
                state[child], over[child] = int(mdp.next_state[at]), bool(mdp.terminal[at])
                paid[child], name[child] = float(mdp.reward[at]), k + 1
                if not over[child]:
                    of_state = mdp.prior[state[child]][mdp.mask[state[child]]]
                    leaf = max(of_state) if rule == "save" else mdp.value[state[child]]
                path = child
                break
            path = min(((*path, (a, w)) for w in range(known)), key=lambda one: draws[one])
        R = leaf
        for length in range(len(path), 0, -1):
            draws[path[:length]] += 1
            R = paid[path[:length]] + discount * R
            returns[steps[length - 1]].append(R)
    number = mdp.mask.shape[1]
    q_values = np.full(number, -np.inf)
    for a in actions(()):
        q_values[a] = q_value((), a) if returns[(), a] or rule != "save" else mdp.prior[root, a]
    return Outcome(
        q_values,
        np.array([len(returns[(), a]) for a in range(number)]),
        np.array([outcomes[(), a] for a in range(number)]),
        ambiguous,
    )


def expectimax(mdp: ChanceMdp, state: int, discount: float, depth: int) -> np.ndarray:
    """Exact values `[A]` of a state, -inf where masked; MDPs that end within `depth` steps."""
    values = np.full(mdp.mask.shape[1], -np.inf)
    for a in np.flatnonzero(mdp.mask[state]):
        total = 0.0
        for o in range(mdp.reward.shape[2]):
            total += mdp.reward[state, a, o]
            if not mdp.terminal[state, a, o]:
                assert depth > 0, "the MDP does not end"
                after = expectimax(mdp, int(mdp.next_state[state, a, o]), discount, depth - 1)
                total += discount * after.max()
        values[a] = total / mdp.reward.shape[2]
    return values
