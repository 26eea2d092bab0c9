"""The tree searches of the SAVE paper, written out literally: slow, float64, the tests' oracle.

Equations are those of Hamrick et al. (2020), "Standard MCTS", "Incorporating a prior during
search" and the appendix on PUCT; where the paper is silent, docs/algorithm.md decides.
Every Q_k is recomputed from the full list of backed up returns, and nothing is cached.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

Rule = Literal["save", "uct", "puct"]
Prefer = Callable[[int, int, list[int]], int]


class Mdp(NamedTuple):
    """A finite deterministic MDP as tables, with S states and A actions."""

    next_state: np.ndarray  # [S, A] int
    reward: np.ndarray  # [S, A] float
    terminal: np.ndarray  # [S, A] bool: taking this action ends the episode
    mask: np.ndarray  # [S, A] bool: True where the action may be taken (at least one per state)
    prior: np.ndarray  # [S, A] float: Q_theta for SAVE, the policy pi for PUCT, unused by UCT
    value: np.ndarray  # [S] float: V(s) of a new leaf for UCT and PUCT, unused by SAVE


class Outcome(NamedTuple):
    """What a search returns about its root."""

    q_values: np.ndarray  # [A] Q_K; untried: the prior (SAVE) or 0 (UCT, PUCT); masked: -inf
    visits: np.ndarray  # [A] int, without pseudo-counts
    explored: np.ndarray  # [A] bool
    ambiguous: bool  # some selection was too close to call in lower precision
    simulator_calls: int  # a path ending in a known terminal node calls no simulator


@dataclass
class Node:
    """One expansion; a state reached along two paths is two nodes. The root has name 0."""

    name: int
    state: int
    terminal: bool
    returns: dict[int, list[float]] = field(default_factory=dict)  # a -> [R_1(s,a), R_2(s,a), ...]
    children: dict[int, "Node"] = field(default_factory=dict)


def actions_of(mdp: Mdp, state: int) -> list[int]:
    """The unmasked actions of a state: every sum and maximum below runs over these only."""
    return [a for a in range(mdp.mask.shape[1]) if mdp.mask[state, a]]


def count(node: Node, a: int, rule: Rule) -> int:
    """N_k(s, a). SAVE initializes N(s, a) = 1 for all states and actions; the others 0."""
    pseudo_count = 1 if rule == "save" else 0
    return pseudo_count + len(node.returns.get(a, []))


def q_value(mdp: Mdp, node: Node, a: int, rule: Rule) -> float:
    """Q_k(s, a): (Q_theta + sum_{i=1}^{N-1} R_i) / N for SAVE (Equation mcts-q); for UCT and
    PUCT sum_{i=1}^{N} R_i / N (Standard MCTS; Equation puct-search-policy), 0 if untried."""
    n = count(node, a, rule)
    total = sum(node.returns.get(a, []))
    if rule == "save":
        return (float(mdp.prior[node.state, a]) + total) / n
    return total / n if n > 0 else 0.0


def exploration(mdp: Mdp, node: Node, a: int, rule: Rule, c: float) -> float:
    """U_k(s, a): c sqrt(log(sum_a N) / N) for SAVE, the same with max(N, 1) in place of every N
    for UCT (Standard MCTS), c pi(s, a) sqrt(sum_a N) / (N + 1) for PUCT (appendix)."""
    n = {b: count(node, b, rule) for b in actions_of(mdp, node.state)}
    if rule == "puct":
        return c * float(mdp.prior[node.state, a]) * math.sqrt(sum(n.values())) / (n[a] + 1)
    if rule == "uct":
        n = {b: max(n[b], 1) for b in n}
    return c * math.sqrt(math.log(sum(n.values())) / n[a])


def leaf_value(mdp: Mdp, leaf: Node, rule: Rule) -> float:
    """V(s_T): 0 if terminal, max_a Q_theta(s_T, a) for SAVE, the given V(s_T) for UCT and PUCT."""
    if leaf.terminal:
        return 0.0
    if rule == "save":
        return max(float(mdp.prior[leaf.state, a]) for a in actions_of(mdp, leaf.state))
    return float(mdp.value[leaf.state])


def search(
    mdp: Mdp,
    root: int,
    rule: Rule,
    budget: int,
    c: float,
    discount: float,
    prefer: Prefer,
    tolerance: float,
) -> Outcome:
    """Procedure MCTS of the SAVE pseudocode, K = budget. `prefer(simulation, node, actions)`
    chooses among the actions whose score is within `tolerance` of the best, if several are."""
    if rule not in ("save", "uct", "puct"):
        raise ValueError(f"unknown rule {rule!r}")
    top = Node(name=0, state=root, terminal=False)
    ambiguous, simulator_calls = False, 0
    for k in range(budget):
        # Selection: pi_k(s) = argmax_a (Q_k(s, a) + U_k(s, a)), Equation search-policy.
        node, path, expanded = top, [], False
        while not (node.terminal or expanded):
            score = {
                a: q_value(mdp, node, a, rule) + exploration(mdp, node, a, rule, c)
                for a in actions_of(mdp, node.state)
            }
            best = max(score.values())
            ambiguous |= any(tolerance / 10 < best - x < tolerance * 10 for x in score.values())
            tied = sorted(a for a in score if score[a] >= best - tolerance)
            action = tied[0] if len(tied) == 1 else int(prefer(k, node.name, tied))
            assert action in tied, "prefer chose an action that is not tied"
            path.append((node, action))
            # Expansion: an action that this node has not tried is executed in the simulator.
            if action not in node.children:
                at = (node.state, action)
                leaf = Node(k + 1, int(mdp.next_state[at]), bool(mdp.terminal[at]))
                node.children[action] = leaf
                simulator_calls += 1
                expanded = True
            node = node.children[action]
        # Backup: R_i = gamma^(T-t) V(s_T) + sum_{j=t}^{T-1} gamma^(j-t) r_j, Equation backup.
        r = [float(mdp.reward[s.state, a]) for s, a in path]
        T, v = len(path), leaf_value(mdp, node, rule)
        for t, (s, a) in enumerate(path):
            R = discount ** (T - t) * v + sum(discount ** (j - t) * r[j] for j in range(t, T))
            s.returns.setdefault(a, []).append(R)
    # Q_MCTS(s_0, .) = Q_K(s_0, .)
    q_values = np.full(mdp.mask.shape[1], -np.inf)
    for a in actions_of(mdp, root):
        q_values[a] = q_value(mdp, top, a, rule)
    visits = np.array([len(top.returns.get(a, [])) for a in range(len(q_values))], dtype=int)
    return Outcome(q_values, visits, visits > 0, ambiguous, simulator_calls)
