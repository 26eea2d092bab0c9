"""Chance in the host's trees: kernels for the outcomes of an action (see `search.trees`).

`Trees.chance` has five numbers of a node: the first outcome of the action that leads here (HEAD);
if this is it, the number of outcomes (OUTCOMES); another outcome of the same action, 0 for none
(NEXT); simulations through this outcome (DRAWN); the node's seed (SEED). They are one array,
because every array costs time where kernels call kernels.
"""

import numpy as np

from save_rl.compiled import njit
from save_rl.search import rules

_widens, _luck = njit(rules.widens), njit(rules.luck)
_OUTCOME, _NODE = rules.OUTCOME, rules.NODE
HEAD, OUTCOMES, NEXT, DRAWN, SEED = range(5)


@njit
def has_chance(trees):
    """Test whether actions have several outcomes."""
    return trees.chance.shape[1] > 0


@njit
def choose_outcome(trees, lane, head):
    """Return the least visited outcome of an action, the oldest of several; 0 to draw another."""
    if _widens(trees.chance[lane, head, OUTCOMES], trees.visits[lane, head]):
        return np.int32(0)
    chosen, outcome = np.int32(head), trees.chance[lane, head, NEXT]
    while outcome != 0:
        fewer = trees.chance[lane, outcome, DRAWN] - trees.chance[lane, chosen, DRAWN]
        if fewer < 0 or (fewer == 0 and outcome < chosen):
            chosen = outcome
        outcome = trees.chance[lane, outcome, NEXT]
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
    number = np.int64(trees.chance[lane, head, OUTCOMES]) if head != 0 else np.int64(0)
    return _luck(np.int64(trees.chance[lane, node, SEED]), number, _OUTCOME)


@njit
def add_outcome(trees, lane, node):
    """Enter a new node as an outcome; return true if its action has others."""
    parent, slot = trees.parent[lane, node], trees.slot[lane, node]
    drawn = next_luck(trees, lane, parent, slot)
    trees.chance[lane, node, SEED] = _luck(drawn, np.int64(trees.action[lane, node]), _NODE)
    head = _head_of(trees, lane, parent, slot)
    trees.chance[lane, node, DRAWN] = 0
    if head == 0:
        trees.chance[lane, node, HEAD], trees.chance[lane, node, OUTCOMES] = node, 1
        trees.chance[lane, node, NEXT] = 0
        return False
    trees.chance[lane, node, HEAD] = head
    trees.chance[lane, head, OUTCOMES] += 1
    trees.chance[lane, node, NEXT] = trees.chance[lane, head, NEXT]
    trees.chance[lane, head, NEXT] = node
    return True
