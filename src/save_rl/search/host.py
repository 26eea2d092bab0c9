"""Tree search on the host: flat NumPy arrays for many lanes, Numba kernels, any simulator.

A node stands for the action that led to it, so all statistics of a tried action lie with its
child: `visits`, `total_return`, `reward`. At most one action is tried per simulation, so the node
that simulation `k` creates is number `k + 1` and 0 is the root. The only array as wide as the
number of actions is the prior. There, -inf marks actions that are not available to a first try:
masked, or tried already (their prior moves to `edge_prior` of the child). The best untried action
is the one with the highest prior; it is kept in `best_untried`, so that a selection looks at the
tried actions and at this one alone (at all of them only where untried actions tie).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from save_rl.compiled import njit
from save_rl.search import rules
from save_rl.search.rules import TIE_TOLERANCE, Rule
from save_rl.types import SearchResult

_value = njit(rules.action_value)
_exploration = njit(rules.exploration)
_priority = njit(rules.tie_priority)
_SAVE, _PUCT = int(Rule.SAVE), int(Rule.PUCT)


class Trees(NamedTuple):
    """`B` trees of up to `N` = budget + 1 nodes and `A` actions."""

    parent: np.ndarray  # [B, N] int32
    action: np.ndarray  # [B, N] int32, the action that leads from the parent here
    first_child: np.ndarray  # [B, N] int32, 0 for none
    sibling: np.ndarray  # [B, N] int32, the next child of the same parent, 0 for none
    num_valid: np.ndarray  # [B, N] int32, unmasked actions
    num_tried: np.ndarray  # [B, N] int32, children
    chosen: np.ndarray  # [B, N] int32, simulations that chose an action here
    visits: np.ndarray  # [B, N] int32, simulations through the edge that leads here
    best_untried: np.ndarray  # [B, N] int32, the untried action with the highest prior
    terminal: np.ndarray  # [B, N] bool
    reward: np.ndarray  # [B, N] float64, paid on the way here
    total_return: np.ndarray  # [B, N] float64, sum of returns backed up through the edge
    edge_prior: np.ndarray  # [B, N] float64, prior of the action that leads here
    best_prior: np.ndarray  # [B, N] float64, prior of `best_untried`, -inf for none
    second_prior: np.ndarray  # [B, N] float64, the next highest, -inf for none
    prior: np.ndarray  # [B, N, A] float32 or float64, -inf where masked or tried


def allocate(lanes: int, budget: int, num_actions: int, dtype: type = np.float32) -> Trees:
    """Room for `lanes` trees; `plant` starts one."""
    shape = (lanes, budget + 1)
    types = [np.int32] * 9 + [np.bool_] + [np.float64] * 5
    return Trees._make(
        [np.zeros(shape, t) for t in types] + [np.zeros((*shape, num_actions), dtype)]
    )


@njit
def _rank_untried(trees, lane, node):
    """Find the untried action with the highest prior, and the next highest prior."""
    row = trees.prior[lane, node]
    best, second, action = -np.inf, -np.inf, -1
    for a in range(row.shape[0]):
        if row[a] > second:
            if row[a] > best:
                best, second, action = row[a], best, a
            else:
                second = row[a]
    trees.best_untried[lane, node] = action
    trees.best_prior[lane, node] = best
    trees.second_prior[lane, node] = second


@njit
def _make_node(trees, lane, node, prior):
    """Set up a node without children; `prior` `[A]` is -inf where masked."""
    row = trees.prior[lane, node]
    valid = 0
    for a in range(row.shape[0]):
        row[a] = prior[a]
        valid += prior[a] > -np.inf
    trees.num_valid[lane, node] = valid
    trees.num_tried[lane, node] = 0
    trees.first_child[lane, node] = 0
    trees.chosen[lane, node] = 0
    trees.terminal[lane, node] = False
    _rank_untried(trees, lane, node)


@njit
def plant(trees, lane, prior):
    """Start the tree of a lane at a root with this prior `[A]`."""
    _make_node(trees, lane, 0, prior)
    trees.parent[lane, 0] = -1


@njit
def _score(rule, prior, total_return, visits, spread, c):
    return _value(rule, prior, total_return, visits) + _exploration(rule, prior, visits, spread, c)


@njit
def choose(trees, lane, node, simulation, rule, c, seed):
    """The action that the rule selects at a node, and the child behind it (0 if untried)."""
    count = trees.chosen[lane, node]
    if rule == _PUCT:
        spread = np.sqrt(count)
    elif rule == _SAVE:
        spread = np.sqrt(np.log(count + trees.num_valid[lane, node]))
    else:  # an action tried n times counts max(n, 1)
        spread = np.sqrt(np.log(count + trees.num_valid[lane, node] - trees.num_tried[lane, node]))
    action, chosen_child = trees.best_untried[lane, node], 0
    best, runner_up = -np.inf, -np.inf
    if action >= 0:
        best = _score(rule, trees.best_prior[lane, node], 0.0, 0, spread, c)
        if trees.second_prior[lane, node] > -np.inf:
            runner_up = _score(rule, trees.second_prior[lane, node], 0.0, 0, spread, c)
    child = trees.first_child[lane, node]
    while child != 0:
        score = _score(
            rule,
            trees.edge_prior[lane, child],
            trees.total_return[lane, child],
            trees.visits[lane, child],
            spread,
            c,
        )
        if score > best:
            best, runner_up = score, best
            action, chosen_child = trees.action[lane, child], child
        elif score > runner_up:
            runner_up = score
        child = trees.sibling[lane, child]
    if runner_up >= best - TIE_TOLERANCE:
        return _break_tie(trees, lane, node, simulation, rule, c, seed, spread, best)
    return action, chosen_child


@njit
def _break_tie(trees, lane, node, simulation, rule, c, seed, spread, best):
    """Of all actions whose score ties with `best`, the one with the highest random priority."""
    action, chosen_child, highest = -1, 0, np.int64(-1)
    child = trees.first_child[lane, node]
    while child != 0:
        score = _score(
            rule,
            trees.edge_prior[lane, child],
            trees.total_return[lane, child],
            trees.visits[lane, child],
            spread,
            c,
        )
        if score >= best - TIE_TOLERANCE:
            priority = _priority(seed, simulation, node, trees.action[lane, child])
            if priority > highest:
                action, chosen_child, highest = trees.action[lane, child], child, priority
        child = trees.sibling[lane, child]
    row = trees.prior[lane, node]
    for a in range(row.shape[0]):
        if row[a] > -np.inf and _score(rule, row[a], 0.0, 0, spread, c) >= best - TIE_TOLERANCE:
            priority = _priority(seed, simulation, node, a)
            if priority > highest:
                action, chosen_child, highest = a, 0, priority
    return action, chosen_child


@njit
def select(trees, lane, simulation, rule, c, seed):
    """Walk from the root to an untried action or a known terminal node.

    Returns `(node, action)`: the node to expand and the action to try there, or the terminal node
    and -1, where no simulator is needed.
    """
    node = 0
    while True:
        action, child = choose(trees, lane, node, simulation, rule, c, seed)
        if child == 0:
            return node, action
        if trees.terminal[lane, child]:
            return child, -1
        node = child


@njit
def expand(trees, lane, simulation, parent, action, reward, terminal, prior):
    """Add the node that simulation `simulation` reached; `prior` `[A]` is that of its state."""
    node = simulation + 1
    _make_node(trees, lane, node, prior)
    trees.parent[lane, node] = parent
    trees.action[lane, node] = action
    trees.reward[lane, node] = reward
    trees.terminal[lane, node] = terminal
    trees.visits[lane, node] = 0
    trees.total_return[lane, node] = 0.0
    trees.edge_prior[lane, node] = trees.prior[lane, parent, action]
    trees.prior[lane, parent, action] = -np.inf
    trees.sibling[lane, node] = trees.first_child[lane, parent]
    trees.first_child[lane, parent] = node
    trees.num_tried[lane, parent] += 1
    _rank_untried(trees, lane, parent)
    return node


@njit
def backup(trees, lane, node, value, discount):
    """Add `R = r_t + γ r_{t+1} + … + γ^{T-t} V(s_T)` to every edge on the way to the root."""
    while node != 0:
        value = trees.reward[lane, node] + discount * value
        trees.total_return[lane, node] += value
        trees.visits[lane, node] += 1
        node = trees.parent[lane, node]
        trees.chosen[lane, node] += 1


@njit
def root_result(trees, lane, rule, q_values, visits):
    """Write Q_K and the visits of the root into `[A]` arrays."""
    row = trees.prior[lane, 0]
    for a in range(row.shape[0]):
        visits[a] = 0
        q_values[a] = row[a] if rule == _SAVE or row[a] == -np.inf else 0.0
    child = trees.first_child[lane, 0]
    while child != 0:
        a = trees.action[lane, child]
        visits[a] = trees.visits[lane, child]
        q_values[a] = _value(
            rule, trees.edge_prior[lane, child], trees.total_return[lane, child], visits[a]
        )
        child = trees.sibling[lane, child]


@njit
def _plant_all(trees, prior):
    for lane in range(prior.shape[0]):
        plant(trees, lane, prior[lane])


@njit
def _select_all(trees, simulation, rule, c, seeds, nodes, actions):
    for lane in range(nodes.shape[0]):
        nodes[lane], actions[lane] = select(trees, lane, simulation, rule, c, seeds[lane])


@njit
def _expand_all(trees, simulation, nodes, actions, rewards, terminals, priors, values, discount):
    for lane in range(nodes.shape[0]):
        node = nodes[lane]
        if actions[lane] >= 0:
            node = expand(
                trees,
                lane,
                simulation,
                node,
                actions[lane],
                rewards[lane],
                terminals[lane],
                priors[lane],
            )
        backup(trees, lane, node, 0.0 if trees.terminal[lane, node] else values[lane], discount)


@njit
def _results(trees, rule, q_values, visits):
    for lane in range(q_values.shape[0]):
        root_result(trees, lane, rule, q_values[lane], visits[lane])


# Steps the simulators of the lanes that need it: given `nodes [B]`, `actions [B]` (-1 where nothing
# is to be done) and the number of the node that is being made, returns `(reward [B],
# terminal [B], prior [B, A], value [B])`; the prior is -inf where masked.
Step = Callable[
    [np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
]


def search(
    prior: np.ndarray,
    step: Step,
    *,
    rule: Rule,
    budget: int,
    c: float,
    discount: float,
    seeds: np.ndarray,
    return_tree: bool = False,
) -> SearchResult:
    """Search `B` lanes in lock-step: select, step the simulators, expand, back up.

    prior: `[B, A]` of the roots, -inf where masked. seeds: `[B]` unsigned, for ties.
    """
    lanes, num_actions = prior.shape
    trees = allocate(lanes, budget, num_actions, prior.dtype.type)
    _plant_all(trees, prior)
    nodes, actions = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    seeds = np.asarray(seeds, np.int64)
    for simulation in range(budget):
        _select_all(trees, simulation, int(rule), c, seeds, nodes, actions)
        rewards, terminals, priors, values = step(nodes, actions, simulation + 1)
        _expand_all(trees, simulation, nodes, actions, rewards, terminals, priors, values, discount)
    q_values, visits = np.zeros((lanes, num_actions)), np.zeros((lanes, num_actions), np.int64)
    _results(trees, int(rule), q_values, visits)
    return SearchResult(q_values, visits, visits > 0, trees if return_tree else None)
