"""Chance in the host's trees: kernels for the outcomes of an action (see `search.trees`)."""

import numpy as np

from save_rl.compiled import njit
from save_rl.search import rules

_widens, _luck = njit(rules.widens), njit(rules.luck)
_OUTCOME, _NODE = rules.OUTCOME, rules.NODE


@njit
def has_chance(trees):
    """Test whether actions have several outcomes."""
    return trees.head.shape[1] > 0


@njit
def choose_outcome(trees, lane, head):
    """Return the least visited outcome of an action, the oldest of several; 0 to draw another."""
    if _widens(trees.outcomes[lane, head], trees.visits[lane, head]):
        return np.int32(0)
    chosen, outcome = np.int32(head), trees.next_outcome[lane, head]
    while outcome != 0:
        fewer = trees.drawn[lane, outcome] - trees.drawn[lane, chosen]
        if fewer < 0 or (fewer == 0 and outcome < chosen):
            chosen = outcome
        outcome = trees.next_outcome[lane, outcome]
    return chosen


@njit
def _head_of(trees, lane, node, slot):
    """Return the first outcome of a slot; 0 if it is untried."""
    child = trees.first_child[lane, node]
    while child != 0 and trees.slot[lane, child] != slot:
        child = trees.sibling[lane, child]
    return child


@njit
def next_luck(trees, lane, node, slot):
    """Return the seed with which the simulator draws the next outcome of a slot."""
    head = _head_of(trees, lane, node, slot)
    number = np.int64(trees.outcomes[lane, head]) if head != 0 else np.int64(0)
    return _luck(trees.seed[lane, node], number, _OUTCOME)


@njit
def add_outcome(trees, lane, node):
    """Enter a new node as an outcome; return true if its action has others."""
    parent, slot = trees.parent[lane, node], trees.slot[lane, node]
    drawn = next_luck(trees, lane, parent, slot)
    trees.seed[lane, node] = _luck(drawn, np.int64(trees.action[lane, node]), _NODE)
    head = _head_of(trees, lane, parent, slot)
    trees.drawn[lane, node] = 0
    if head == 0:
        trees.head[lane, node], trees.outcomes[lane, node] = node, 1
        trees.next_outcome[lane, node] = 0
        return False
    trees.head[lane, node] = head
    trees.outcomes[lane, head] += 1
    trees.next_outcome[lane, node] = trees.next_outcome[lane, head]
    trees.next_outcome[lane, head] = node
    return True
