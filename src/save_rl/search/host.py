"""Tree search on the host: flat NumPy arrays for many lanes, Numba kernels, any simulator.

Each node stores the statistics of the edge that leads to it: `visits`, `total_return`, `reward`. A
simulation adds at most one node, so simulation `k` creates node `k + 1`; 0 is the root.

Only the prior has an entry per *slot*. A slot is an action: every action has one, or only those
with the highest priors. A search with a budget tries at most that many actions at a node, and
untried ones differ in nothing but their prior, so the best `budget + 1` are enough
(`best_actions`). A prior of -inf marks slots that cannot be expanded: masked, or already tried
(their prior moves to `edge_prior` of the child). The best untried action is the one with the
highest prior. The first selection at a node finds its few best untried slots and caches them in
`ranked` until they run out: a selection then scores the tried actions and two of these (all slots
only where untried ones tie), and a leaf that is never revisited costs one copy.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from save_rl.compiled import njit
from save_rl.rescaling import rescale
from save_rl.search import rules
from save_rl.search.rules import TIE_TOLERANCE, Rule, Space
from save_rl.types import SearchResult

_value = njit(rules.action_value)
_exploration = njit(rules.exploration)
_priority = njit(rules.tie_priority)
_rescale = njit(rescale)
_SAVE, _PUCT = int(Rule.SAVE), int(Rule.PUCT)
_TRANSFORMED, _MIXED = int(Space.TRANSFORMED), int(Space.MIXED)
_RANKED = 4
_STICKS = 64
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


def allocate(
    lanes: int, budget: int, slots: int, dtype: type = np.float32, chosen: bool = False
) -> Trees:
    """Allocate `lanes` trees; `plant` initialises one. chosen: slots are a choice of actions."""
    shape = (lanes, budget + 1)
    types = [np.int32] * 12 + [np.bool_] + [np.float64] * 3
    wide = [
        np.zeros((*shape, _RANKED), np.int32),
        np.zeros((*shape, slots), dtype),
        np.zeros((*shape, slots if chosen else 0), np.int32),
    ]
    return Trees._make([np.zeros(shape, t) for t in types] + wide)


@njit
def _action_of(trees, lane, node, slot):
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
def _score(rule, space, prior, total_return, visits, spread, c):
    value = _value(rule, prior, total_return, visits)
    if space == _MIXED:
        value = _rescale(value)
    return value + _exploration(rule, prior, visits, spread, c)


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
        spread = np.sqrt(np.log(count + trees.num_valid[lane, node]))
    else:  # an action tried n times counts max(n, 1)
        spread = np.sqrt(np.log(count + trees.num_valid[lane, node] - trees.num_tried[lane, node]))
    slot, chosen_child = -1, 0
    best, runner_up = -np.inf, -np.inf
    row, ranked = trees.prior[lane, node], trees.ranked[lane, node]
    if first < last:
        slot = ranked[first]
        best = _score_untried(rule, space, row[slot], spread, c)
    if first + 1 < last:
        runner_up = _score_untried(rule, space, row[ranked[first + 1]], spread, c)
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
def _score_untried(rule, space, prior, spread, c):
    return _score(rule, space, np.float64(prior), 0.0, np.int32(0), spread, c)


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
        if _score_untried(rule, space, row[w], spread, c) >= best - TIE_TOLERANCE:
            tied += 1
            priority = _priority(seed, simulation, node, _action_of(trees, lane, node, w))
            if priority > highest_untried:
                untried, highest_untried = w, priority
    if highest_untried > highest:
        return untried, 0
    more = trees.more[lane, node]
    if (
        more > 0
        and untried >= 0
        and _score_untried(rule, space, lowest, spread, c) >= best - TIE_TOLERANCE
        and _priority(seed, simulation, node, np.int64(_NOBODY)) % (tied + more) >= tied
    ):
        return untried, 0
    return slot, chosen_child


@njit
def select(trees, lane, simulation, rule, space, c, seed):
    """Descend from the root to an untried action or a known terminal node.

    Returns `(node, slot)`: the node to expand and the slot to try there, or the terminal node and
    -1, which needs no simulator step.
    """
    node = np.int64(0)
    while True:
        slot, child = choose(trees, lane, node, simulation, rule, space, c, seed)
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
    trees.action[lane, node] = _action_of(trees, lane, parent, slot)
    trees.slot[lane, node] = slot
    trees.reward[lane, node] = reward
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
        trees.total_return[lane, node] += _rescale(value) if space == _TRANSFORMED else value
        trees.visits[lane, node] += 1
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
            rule, trees.edge_prior[lane, child], trees.total_return[lane, child], visits[w]
        )
        child = trees.sibling[lane, child]


@njit
def nth(valid, n):
    """Return the index of the n-th true entry, from 0; -1 if there are fewer."""
    for a in range(valid.shape[0]):
        if valid[a]:
            if n == 0:
                return a
            n -= 1
    return -1


@njit
def mix_noise(policy, share, out):
    """Mix Dirichlet(1/n) noise over the n unmasked actions into a policy, -inf where masked.

    Uses the stick-breaking of `search.device.root_noise`.
    """
    valid = policy > -np.inf
    n = valid.sum()
    everything = n == policy.shape[0]
    for a in range(policy.shape[0]):
        out[a] = (1 - share) * policy[a]
    left = share
    for _ in range(_STICKS):
        cut = left * np.random.random()
        pick = np.random.randint(n)
        out[pick if everything else nth(valid, pick)] += cut
        left -= cut


@njit
def mix_noise_all(seeds, share, policies):
    """Apply `mix_noise` to every row `[B, A]`, in place."""
    for lane in range(policies.shape[0]):
        np.random.seed(seeds[lane])
        mix_noise(policies[lane], share, policies[lane])


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


@njit
def _plant_all(trees, lanes, rows, priors, choices, valid, more):
    for lane in lanes:
        row = rows[lane]
        plant(trees, lane, priors[row], choices[row], valid[row], more[row])


@njit
def _select_all(trees, lanes, simulation, rule, space, c, seeds, nodes, slots, actions):
    for lane in lanes:
        node, slot = select(trees, lane, simulation, rule, space, c, seeds[lane])
        nodes[lane], slots[lane] = node, slot
        actions[lane] = _action_of(trees, lane, node, slot) if slot >= 0 else -1


@njit
def _expand_all(
    trees,
    lanes,
    simulation,
    nodes,
    slots,
    rewards,
    terminals,
    rows,
    priors,
    choices,
    valid,
    more,
    values,
    discount,
    space,
):
    for lane in lanes:
        node, row = nodes[lane], max(rows[lane], 0)
        if slots[lane] >= 0:
            node = expand(
                trees,
                lane,
                simulation,
                node,
                slots[lane],
                rewards[lane],
                terminals[lane],
                priors[row],
                choices[row],
                valid[row],
                more[row],
            )
        value = 0.0 if trees.terminal[lane, node] else values[row]
        backup(trees, lane, node, value, discount, space)


@njit
def _results(trees, lanes, rule, q_values, visits):
    for lane in lanes:
        root_result(trees, lane, rule, q_values[lane], visits[lane])


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


def compile_ahead(slots: int, chosen: bool) -> None:
    """Compile, or load, the kernels of `Search`."""
    search, row, one = Search(1, 1, slots, chosen=chosen), np.zeros((1, slots), np.float32), (1,)
    listed = Slots(
        np.zeros((1, slots if chosen else 0), np.int32),
        np.zeros(one, np.int32), np.zeros(one, np.int32),
    )  # fmt: skip
    search.begin(
        row, rule=Rule.SAVE, c=1.0, discount=1.0, seeds=np.zeros(one, np.uint32), slots=listed
    )
    search.select()
    number = np.zeros(one)
    search.expand(number, np.zeros(one, np.bool_), row, number, slots=listed)
    search.result(row, np.zeros((1, slots), np.int32))


class Search:
    """The trees of `B` lanes, searched in lock-step; every search reuses the same memory.

    Call `begin`, then `select` and `expand` for every simulation, then `result`. Between `select`
    and `expand` the caller steps its simulators and evaluates the new states. Lanes that are left
    out cost nothing.

    slots: per node; the number of actions, unless `chosen`: then they are a choice of actions.
    """

    def __init__(
        self,
        lanes: int,
        budget: int,
        slots: int,
        dtype: type = np.float32,
        chosen: bool = False,
    ):
        self.budget = budget
        self.trees = allocate(lanes, budget, slots, dtype, chosen)
        self.nodes = np.zeros(lanes, np.int64)
        self.actions = np.full(lanes, -1, np.int64)
        self._slots = np.full(lanes, -1, np.int64)
        self._own = np.arange(lanes)
        self._every = every_action(lanes)

    def begin(
        self,
        priors: np.ndarray,
        *,
        rule: Rule,
        c: float,
        discount: float,
        seeds: np.ndarray,
        lanes: np.ndarray | None = None,
        rows: np.ndarray | None = None,
        slots: Slots | None = None,
        space: Space = Space.PLAIN,
    ) -> None:
        """Start a search: create the roots.

        priors: `[n, W]` of the roots, -inf where masked. seeds: `[B]` unsigned, for tie-breaking.
        lanes: indices of the lanes to search; default all. rows: `[B]`, each lane's row of
        `priors`; by default the lane's index. slots: needed if they are a choice of actions. space:
        the units of priors and results; rewards and the values of states are always in plain units.
        """
        self.lanes = self._own if lanes is None else np.asarray(lanes, np.int64)
        self._rule, self._c, self._discount = int(rule), float(c), float(discount)
        self._seeds, self._space = np.asarray(seeds, np.int64), int(space)
        self._simulation = 0
        self.actions[:] = self._slots[:] = -1
        rows = self._own if rows is None else rows
        _plant_all(self.trees, self.lanes, rows, priors, *(slots or self._every))

    def select(self) -> tuple[np.ndarray, np.ndarray]:
        """Return `(nodes [B], actions [B])` to expand; action -1 where no step is needed."""
        _select_all(
            self.trees, self.lanes, self._simulation, self._rule, self._space, self._c,
            self._seeds, self.nodes, self._slots, self.actions,
        )  # fmt: skip
        return self.nodes, self.actions

    def drop(self, lanes: np.ndarray) -> None:
        """Stop searching these lanes."""
        self.lanes = np.setdiff1d(self.lanes, lanes)
        self.actions[lanes] = self._slots[lanes] = -1

    def expand(
        self,
        rewards: np.ndarray,
        terminals: np.ndarray,
        priors: np.ndarray,
        values: np.ndarray,
        rows: np.ndarray | None = None,
        slots: Slots | None = None,
    ) -> None:
        """Add the new nodes, with rewards `[B]` and terminal flags `[B]`, and back up.

        priors: `[n, W]`, -inf where masked. values: `[n]`. rows: `[B]`, each lane's row of these
        and of `slots`, by default the lane's index; ignored where the new state is terminal or no
        action was tried.
        """
        _expand_all(
            self.trees, self.lanes, self._simulation, self.nodes, self._slots, rewards, terminals,
            self._own if rows is None else rows, priors, *(slots or self._every), values,
            self._discount, self._space,
        )  # fmt: skip
        self._simulation += 1

    def result(self, q_values: np.ndarray, visits: np.ndarray) -> None:
        """Write Q_K and visits `[B, W]` of the roots; the rows of other lanes keep their
        contents."""
        _results(self.trees, self.lanes, self._rule, q_values, visits)


# Steps the simulators: maps `nodes [B]`, `actions [B]` (-1 where no step is needed) and the number
# of the new node to `(reward [B], terminal [B], prior [B, A], value [B])`; the prior is -inf where
# masked.
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
    space: Space = Space.PLAIN,
    return_tree: bool = False,
) -> SearchResult:
    """Search `B` lanes with one function that steps and evaluates all of them.

    prior: `[B, A]` of the roots, -inf where masked. seeds: `[B]` unsigned, for tie-breaking.
    space: see `Search.begin`.
    """
    lanes, num_actions = prior.shape
    trees = Search(lanes, budget, num_actions, prior.dtype.type)
    trees.begin(prior, rule=rule, c=c, discount=discount, seeds=seeds, space=space)
    for simulation in range(budget):
        nodes, actions = trees.select()
        rewards, terminals, priors, values = step(nodes, actions, simulation + 1)
        trees.expand(rewards, terminals, priors, values)
    q_values, visits = np.zeros(prior.shape, prior.dtype), np.zeros(prior.shape, np.int32)
    trees.result(q_values, visits)
    return SearchResult(q_values, visits, visits > 0, trees.trees if return_tree else None)
