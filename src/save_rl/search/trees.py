"""Search trees on the host: flat NumPy arrays for many lanes, and Numba kernels.

Each node stores the statistics of the edge that leads to it: `visits`, `total_return`, `reward`. A
simulation adds at most one node, so simulation `k` creates node `k + 1`; 0 is the root.

Only the prior has an entry per *slot*. A slot is an action: every action has one, or only those
with the highest priors. A search with a budget tries at most that many actions at a node, and
untried ones differ in nothing but their prior, so the best `budget + 1` are enough
(`slots.best_actions`). A prior of -inf marks slots that cannot be expanded: masked, or already
tried (their prior moves to `edge_prior` of the child). The best untried action is the one with the
highest prior. The first selection at a node finds its few best untried slots and caches them in
`ranked` until they run out: a selection then scores the tried actions and two of these (all slots
only where untried ones tie), and a leaf that is never revisited costs one copy.

With chance, an action has several outcomes, all of them nodes. The first is its *head*: it alone is
in the list of children, and has the visits and returns of the action, those of all outcomes. The
others hang on it in a list of their own. Every node has a seed, from which its outcomes are drawn.
"""

from typing import NamedTuple

import numpy as np

from save_rl.compiled import njit
from save_rl.rescaling import rescale
from save_rl.search import rules
from save_rl.search.outcomes import DRAWN, HEAD, add_outcome, choose_outcome, has_chance
from save_rl.search.rules import TIE_TOLERANCE, Rule, Space

_value = njit(rules.action_value)
_exploration = njit(rules.exploration)
_priority = njit(rules.tie_priority)
_rescale = njit(rescale)
_prior_visits = njit(rules.prior_visits)
_SAVE, _PUCT = int(Rule.SAVE), int(Rule.PUCT)
_TRANSFORMED, _MIXED = int(Space.TRANSFORMED), int(Space.MIXED)
_RANKED = 4
_NOBODY = 2**30 - 1  # no action has this number


class Trees(NamedTuple):
    """`B` trees of up to `N` = budget + 1 nodes with `W` slots each."""

    parent: np.ndarray  # [B, N] int32
    action: np.ndarray  # [B, N] int32, the action that leads from the parent here
    slot: np.ndarray  # [B, N] int32, its slot at the parent
    first_child: np.ndarray  # [B, N] int32, 0 for none
    sibling: np.ndarray  # [B, N] int32, the next child of the same parent, 0 for none
    num_valid: np.ndarray  # [B, N] int32, number of unmasked actions; -1 before the count
    more: np.ndarray  # [B, N] int32, actions without a slot that tie with the last one that has one
    num_tried: np.ndarray  # [B, N] int32, children
    chosen: np.ndarray  # [B, N] int32, simulations that selected an action here
    visits: np.ndarray  # [B, N] int32, simulations through the edge that leads here
    first: np.ndarray  # [B, N] int32, start of the untried actions in `ranked`
    last: np.ndarray  # [B, N] int32, their end; if below 4, `ranked` holds all untried slots
    terminal: np.ndarray  # [B, N] bool
    reward: np.ndarray  # [B, N] float64, of the edge that leads here
    total_return: np.ndarray  # [B, N] float64, sum of returns backed up through the edge
    edge_prior: np.ndarray  # [B, N] float64, prior of the action that leads here
    ranked: np.ndarray  # [B, N, 4] int32, untried slots with the highest priors, best first
    prior: np.ndarray  # [B, N, W] float32 or float64, -inf where masked or tried
    choice: np.ndarray  # [B, N, W] int32, the action of a slot; [B, N, 0] if it is the slot's index
    chance: np.ndarray  # [B, N, 5] int32, see `search.outcomes`; [B, 0, 5] without chance


def allocate(
    lanes: int,
    budget: int,
    slots: int,
    dtype: type = np.float32,
    chosen: bool = False,
    stochastic: bool = False,
) -> Trees:
    """Allocate `lanes` trees; `plant` initialises one.

    chosen: slots are a choice of actions. stochastic: actions have several outcomes.
    """
    shape = (lanes, budget + 1)
    types = [np.int32] * 12 + [np.bool_] + [np.float64] * 3
    wide = [
        np.zeros((*shape, _RANKED), np.int32),
        np.zeros((*shape, slots), dtype),
        np.zeros((*shape, slots if chosen else 0), np.int32),
    ]
    chance = np.zeros((lanes, budget + 1 if stochastic else 0, 5), np.int32)
    return Trees._make([np.zeros(shape, t) for t in types] + wide + [chance])


@njit
def action_of(trees, lane, node, slot):
    return trees.choice[lane, node, slot] if trees.choice.shape[2] > 0 else slot


@njit
def _rank_untried(trees, lane, node):
    """Find the untried slots with the highest priors."""
    row, ranked = trees.prior[lane, node], trees.ranked[lane, node]
    if trees.num_valid[lane, node] < 0:  # first selection at this node
        valid = 0
        for a in range(row.shape[0]):
            valid += row[a] > -np.inf
        trees.num_valid[lane, node] = valid
    count, lowest = 0, -np.inf  # actions found; the prior that another must exceed
    for a in range(row.shape[0]):
        if row[a] > lowest:
            at = min(count, _RANKED - 1)
            while at > 0 and row[a] > row[ranked[at - 1]]:
                ranked[at] = ranked[at - 1]
                at -= 1
            ranked[at] = a
            count = min(count + 1, _RANKED)
            if count == _RANKED:
                lowest = row[ranked[_RANKED - 1]]
    trees.first[lane, node] = 0
    trees.last[lane, node] = count


@njit
def _forget_ranks(trees, lane, node):
    trees.first[lane, node] = trees.last[lane, node] = _RANKED


@njit
def _make_node(trees, lane, node, prior, choice, valid, more, terminal):
    """Initialise a node without children; see `Search.expand` for the arguments."""
    if not terminal:  # nothing is ever selected at a terminal node
        row, own = trees.prior[lane, node], trees.choice[lane, node]
        for w in range(row.shape[0]):
            row[w] = prior[w]
        for w in range(own.shape[0]):
            own[w] = choice[w]
    trees.num_valid[lane, node] = valid
    trees.more[lane, node] = more
    _forget_ranks(trees, lane, node)
    trees.num_tried[lane, node] = 0
    trees.first_child[lane, node] = 0
    trees.chosen[lane, node] = 0
    trees.terminal[lane, node] = terminal


@njit
def plant(trees, lane, prior, choice, valid, more):
    """Initialise a lane's tree: a root with this prior `[W]`."""
    _make_node(trees, lane, np.int64(0), prior, choice, valid, more, np.bool_(False))
    trees.parent[lane, 0] = -1


@njit
def _score(rule, space, prior, total_return, visits, spread, c, before):
    value = _value(rule, prior, total_return, visits, before)
    if space == _MIXED:
        value = _rescale(value)
    return value + _exploration(rule, prior, visits, spread, c, before)


@njit
def choose(trees, lane, node, simulation, rule, space, c, seed):
    """Return the slot that the rule selects at a node, and its child (0 if untried)."""
    first, last = trees.first[lane, node], trees.last[lane, node]
    if first + 2 > last and last == _RANKED:
        _rank_untried(trees, lane, node)
        first, last = 0, trees.last[lane, node]
    count = trees.chosen[lane, node]
    if rule == _PUCT:
        spread = np.sqrt(count)
    elif rule == _SAVE:
        before = _prior_visits(has_chance(trees))
        spread = np.sqrt(np.log(count + before * trees.num_valid[lane, node]))
    else:  # an action tried n times counts max(n, 1)
        spread = np.sqrt(np.log(count + trees.num_valid[lane, node] - trees.num_tried[lane, node]))
    slot, chosen_child = -1, 0
    best, runner_up = -np.inf, -np.inf
    row, ranked = trees.prior[lane, node], trees.ranked[lane, node]
    if first < last:
        slot = ranked[first]
        best = _score_untried(trees, rule, space, row[slot], spread, c)
    if first + 1 < last:
        runner_up = _score_untried(trees, rule, space, row[ranked[first + 1]], spread, c)
    child = trees.first_child[lane, node]
    while child != 0:
        score = _score_child(trees, lane, child, rule, space, spread, c)
        if score > best:
            best, runner_up = score, best
            slot, chosen_child = trees.slot[lane, child], child
        elif score > runner_up:
            runner_up = score
        child = trees.sibling[lane, child]
    if runner_up >= best - TIE_TOLERANCE:
        return _break_tie(trees, lane, node, simulation, rule, space, c, seed, spread, best)
    return slot, chosen_child


@njit
def _score_untried(trees, rule, space, prior, spread, c):
    before = _prior_visits(has_chance(trees))
    return _score(rule, space, np.float64(prior), 0.0, np.int32(0), spread, c, before)


@njit
def _score_child(trees, lane, child, rule, space, spread, c):
    return _score(
        rule,
        space,
        trees.edge_prior[lane, child],
        trees.total_return[lane, child],
        trees.visits[lane, child],
        spread,
        c,
        _prior_visits(has_chance(trees)),
    )


@njit
def _break_tie(trees, lane, node, simulation, rule, space, c, seed, spread, best):
    """Return the slot of highest random priority among those that tie with `best`, and its child.

    Actions without a slot can tie, too. An untried one stands for them: all are alike.
    """
    slot, chosen_child, highest = -1, 0, np.int64(-1)
    untried, highest_untried, lowest = -1, np.int64(-1), np.inf
    tied = 0
    child = trees.first_child[lane, node]
    while child != 0:
        if _score_child(trees, lane, child, rule, space, spread, c) >= best - TIE_TOLERANCE:
            tied += 1
            priority = _priority(seed, simulation, node, trees.action[lane, child])
            if priority > highest:
                slot, chosen_child, highest = trees.slot[lane, child], child, priority
        child = trees.sibling[lane, child]
    row = trees.prior[lane, node]
    for w in range(row.shape[0]):
        if row[w] == -np.inf:
            continue
        lowest = min(lowest, row[w])
        if _score_untried(trees, rule, space, row[w], spread, c) >= best - TIE_TOLERANCE:
            tied += 1
            priority = _priority(seed, simulation, node, action_of(trees, lane, node, w))
            if priority > highest_untried:
                untried, highest_untried = w, priority
    if highest_untried > highest:
        return untried, 0
    more = trees.more[lane, node]
    if (
        more > 0
        and untried >= 0
        and _score_untried(trees, rule, space, lowest, spread, c) >= best - TIE_TOLERANCE
        and _priority(seed, simulation, node, np.int64(_NOBODY)) % (tied + more) >= tied
    ):
        return untried, 0
    return slot, chosen_child


@njit
def select(trees, lane, simulation, rule, space, c, seed):
    """Descend from the root to an untried action or a known terminal node.

    Returns `(node, slot)`: the node to expand and the slot to try there, or the terminal node and
    -1, which needs no simulator step. With chance, the slot may have been tried already: then the
    node gets another outcome of it.
    """
    node = np.int64(0)
    while True:
        slot, child = choose(trees, lane, node, simulation, rule, space, c, seed)
        if child != 0 and has_chance(trees):
            child = choose_outcome(trees, lane, child)
        if child == 0:
            return node, slot
        if trees.terminal[lane, child]:
            return child, -1
        node = child


@njit
def expand(trees, lane, simulation, parent, slot, reward, terminal, prior, choice, valid, more):
    """Add the node that simulation `simulation` reached.

    prior: `[W]` of the new state; ignored if terminal, as are choice, valid and more.
    """
    node = simulation + 1
    _make_node(trees, lane, node, prior, choice, valid, more, terminal)
    trees.parent[lane, node] = parent
    trees.action[lane, node] = action_of(trees, lane, parent, slot)
    trees.slot[lane, node] = slot
    trees.reward[lane, node] = reward
    if has_chance(trees) and add_outcome(trees, lane, node):
        return node
    trees.visits[lane, node] = 0
    trees.total_return[lane, node] = 0.0
    trees.edge_prior[lane, node] = trees.prior[lane, parent, slot]
    trees.prior[lane, parent, slot] = -np.inf
    trees.sibling[lane, node] = trees.first_child[lane, parent]
    trees.first_child[lane, parent] = node
    trees.num_tried[lane, parent] += 1
    first = trees.first[lane, parent]
    if first < trees.last[lane, parent] and trees.ranked[lane, parent, first] == slot:
        trees.first[lane, parent] = first + 1
    else:
        _forget_ranks(trees, lane, parent)
    return node


@njit
def backup(trees, lane, node, value, discount, space):
    """Add `R = r_t + γ r_{t+1} + … + γ^{T-t} V(s_T)` to every edge up to the root.

    Adds `h(R)` instead in `Space.TRANSFORMED`.
    """
    while node != 0:
        value = trees.reward[lane, node] + discount * value
        edge = node
        if has_chance(trees):
            trees.chance[lane, node, DRAWN] += 1
            edge = np.int64(trees.chance[lane, node, HEAD])
        trees.total_return[lane, edge] += _rescale(value) if space == _TRANSFORMED else value
        trees.visits[lane, edge] += 1
        node = trees.parent[lane, node]
        trees.chosen[lane, node] += 1


@njit
def root_result(trees, lane, rule, q_values, visits):
    """Write Q_K and the visits of the root's slots into `[W]` arrays."""
    row = trees.prior[lane, 0]
    for w in range(row.shape[0]):
        visits[w] = 0
        q_values[w] = row[w] if rule == _SAVE or row[w] == -np.inf else 0.0
    child = trees.first_child[lane, 0]
    while child != 0:
        w = trees.slot[lane, child]
        visits[w] = trees.visits[lane, child]
        q_values[w] = _value(
            rule,
            trees.edge_prior[lane, child],
            trees.total_return[lane, child],
            visits[w],
            _prior_visits(has_chance(trees)),
        )
        child = trees.sibling[lane, child]
