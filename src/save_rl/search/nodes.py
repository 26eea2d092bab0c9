"""Search trees of either back end as lists of nodes."""

import math
from typing import Any, NamedTuple

import numpy as np

from save_rl.search import rules
from save_rl.search.outcomes import DRAWN, NEXT
from save_rl.search.rules import Rule


class Node(NamedTuple):
    """A node of either back end, with the statistics of the action that leads to it.

    With chance, an action leads to several nodes, its outcomes: they share its value, but each has
    its own visits and reward.
    """

    number: int  # simulation k creates node k + 1
    parent: int  # -1 for the root, which has no action, value or prior
    action: int
    visits: int
    value: float  # Q_k
    reward: float
    prior: float
    terminal: bool


def tree_nodes(tree: Any, lane: int = 0, rule: Rule = Rule.SAVE) -> list[Node]:
    """Return the nodes of one lane's tree of either back end, parents first; a root without one."""
    if tree is None:
        return [_root(0)]
    return read_tree(tree, lane, rule)[0]


def read_tree(tree: Any, lane: int, rule: Rule) -> tuple[list[Node], np.ndarray]:
    """Return a lane's nodes, parents first, and the root's prior `[A]`, -inf unless untried."""
    read = _read_mctx if hasattr(tree, "children_index") else _read_host
    return read(tree, lane, rule)


def _root(visits: Any) -> Node:
    return Node(0, -1, -1, int(visits), math.nan, 0.0, math.nan, False)


def _read_host(tree: Any, lane: int, rule: Rule) -> tuple[list[Node], np.ndarray]:
    nodes, stochastic = [_root(tree.chosen[lane, 0])], tree.chance.shape[1] > 0
    for parent in nodes:  # the loop appends to it
        child = int(tree.first_child[lane, parent.number])
        while child != 0:
            at = (lane, child)
            prior, visits = float(tree.edge_prior[at]), int(tree.visits[at])
            total, before = float(tree.total_return[at]), rules.prior_visits(stochastic)
            value = rules.action_value(rule, prior, total, visits, before)
            outcome = child
            while outcome != 0:
                here = (lane, outcome)
                drawn = int(tree.chance[(*here, DRAWN)]) if stochastic else visits
                numbers = (drawn, value, float(tree.reward[here]), prior)
                ends = bool(tree.terminal[here])
                nodes.append(Node(outcome, parent.number, int(tree.action[at]), *numbers, ends))
                outcome = int(tree.chance[(*here, NEXT)]) if stochastic else 0
            child = int(tree.sibling[at])
    return nodes, np.array(tree.prior[lane, 0])


def _read_mctx(tree: Any, lane: int, rule: Rule) -> tuple[list[Node], np.ndarray]:
    """Return the same of an mctx tree, without the nodes that it expands below terminal ones."""
    children, counts, priors, rewards, discounts, values, over = (
        np.asarray(x)[lane]
        for x in (
            tree.children_index,
            tree.children_visits,
            tree.children_prior_logits,
            tree.children_rewards,
            tree.children_discounts,
            tree.children_values,
            tree.embeddings.over,
        )
    )
    seeds = tree.extra_data  # with chance, `search.device.Extra`
    stochastic = hasattr(seeds, "outcomes")
    width = seeds.outcomes.shape[-1] if stochastic else 1
    before = rules.prior_visits(stochastic)
    nodes = [_root(counts[0].sum())]
    for parent in nodes:  # the loop appends to it
        if parent.terminal:
            continue
        totals = counts[parent.number] * (
            rewards[parent.number] + discounts[parent.number] * values[parent.number]
        )
        of_action = (
            totals.reshape(-1, width).sum(1),
            counts[parent.number].reshape(-1, width).sum(1),
        )
        for number in np.flatnonzero(children[parent.number] >= 0):
            at, action = (parent.number, number), int(number) // width
            child, prior, visits = int(children[at]), float(priors[at]), int(counts[at])
            total, tried = (x[action] for x in of_action)
            value = rules.action_value(rule, prior, float(total), int(tried), before)
            numbers = (visits, value, float(rewards[at]), prior, bool(over[child]))
            nodes.append(Node(child, parent.number, action, *numbers))
    return nodes, np.where(children[0] >= 0, -np.inf, priors[0])[::width]
