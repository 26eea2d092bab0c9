"""Tree search on the host: the trees of many lanes in lock-step, for any simulator.

`search.trees` has the trees and their kernels.
"""

from collections.abc import Callable

import numpy as np

from save_rl.compiled import njit
from save_rl.search.foresight import Game, SearchProgress, Seats, go_on_all
from save_rl.search.outcomes import SEED, has_chance, next_luck
from save_rl.search.rules import Rule, Space
from save_rl.search.slots import Slots, every_action
from save_rl.search.trees import (
    Trees,
    action_of,
    allocate,
    backup,
    expand,
    plant,
    root_result,
    select,
)
from save_rl.types import SearchResult


@njit
def _plant_all(trees, lanes, seeds, rows, priors, choices, valid, more):
    for lane in lanes:
        row = rows[lane]
        plant(trees, lane, priors[row], choices[row], valid[row], more[row])
        if has_chance(trees):
            trees.chance[lane, 0, SEED] = seeds[lane] & 0x7FFFFFFF  # all that luck depends on


@njit
def _select_all(trees, lanes, simulation, rule, space, c, seeds, nodes, slots, actions, luck):
    for lane in lanes:
        node, slot = select(trees, lane, simulation, rule, space, c, seeds[lane])
        nodes[lane], slots[lane] = node, slot
        actions[lane] = action_of(trees, lane, node, slot) if slot >= 0 else -1
        if slot >= 0 and has_chance(trees):
            luck[lane] = next_luck(trees, lane, node, slot)


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


def compile_ahead(slots: int, chosen: bool) -> None:
    """Compile, or load, the kernels of a `Search` with seats."""
    search, row, one = Search(1, 1, slots, chosen=chosen, seats=1), (1, slots), (1, 1)
    choice, number = np.zeros((1, slots if chosen else 0), np.int32), np.zeros(one, np.int32)
    search.begin(
        np.zeros(row, np.float32), rule=Rule.SAVE, c=1.0, discount=1.0,
        seeds=np.zeros(1, np.uint32), slots=Slots(choice, number[0], number[0]),
    )  # fmt: skip
    known = search.known(
        np.zeros(one), np.zeros(one, np.bool_), np.zeros((1, *row), np.float32), choice[None],
        number, number, np.zeros(one), np.ones(1, np.float32),
    )  # fmt: skip
    search.go_on(known, 1)
    search.result(np.zeros(row, np.float32), np.zeros(row, np.int32))


class Search:
    """The trees of `B` lanes; every search reuses the same memory.

    Call `begin`, then `select` and `expand` for every simulation, then `result`: between `select`
    and `expand` the caller steps its simulators and evaluates the new states. Or call `go_on`
    instead of both until all lanes have made their simulations, and between two calls simulate and
    evaluate the states that it returns, which may be several per lane. Lanes that are left out cost
    nothing.

    slots: per node; the number of actions, unless `chosen`: then they are a choice of actions.
    stochastic: actions have several outcomes; `luck` `[B]` has the seed of each lane's next step.
    seats: states per lane that `go_on` may want at a time.
    """

    def __init__(
        self,
        lanes: int,
        budget: int,
        slots: int,
        dtype: type = np.float32,
        chosen: bool = False,
        stochastic: bool = False,
        seats: int = 0,
    ):
        self.budget, shape = budget, (lanes, seats)
        self.progress = SearchProgress(
            np.zeros(lanes, np.int64), np.zeros(lanes, np.int32),
            np.zeros((lanes, budget + 1), np.int64), np.zeros(lanes, np.int64),
            np.zeros((lanes * seats, 6), np.int64),
        )  # fmt: skip
        self._seats = [np.zeros(shape, np.int64) for _ in range(3)]
        foresees = int(seats > 1)  # on a tree of its own
        self._trees = allocate(lanes + foresees, budget, slots, dtype, chosen, stochastic)
        self._lanes = lanes
        self.luck = np.zeros(lanes, np.int64)
        self.nodes = np.zeros(lanes, np.int64)
        self.actions = np.full(lanes, -1, np.int64)
        self._slots = np.full(lanes, -1, np.int64)
        self._own = np.arange(lanes)
        self._every = every_action(lanes)

    @property
    def trees(self) -> Trees:
        """The trees of the lanes."""
        return Trees(*(x[: self._lanes] for x in self._trees))

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
        self.progress.simulations[:] = self.progress.steps[:] = self.progress.given[:] = 0
        self._seats[1][:] = -1  # free
        self.actions[:] = self._slots[:] = -1
        rows = self._own if rows is None else rows
        _plant_all(self._trees, self.lanes, self._seeds, rows, priors, *(slots or self._every))

    def select(self) -> tuple[np.ndarray, np.ndarray]:
        """Return `(nodes [B], actions [B])` to expand; action -1 where no step is needed."""
        _select_all(
            self._trees, self.lanes, self._simulation, self._rule, self._space, self._c,
            self._seeds, self.nodes, self._slots, self.actions, self.luck,
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
            self._trees, self.lanes, self._simulation, self.nodes, self._slots, rewards, terminals,
            self._own if rows is None else rows, priors, *(slots or self._every), values,
            self._discount, self._space,
        )  # fmt: skip
        self._simulation += 1

    def known(self, *simulated: np.ndarray) -> Seats:
        """Return the states in the seats; simulated: the arrays of `Seats` from `reward` on."""
        return Seats(*self._seats, *simulated)

    def go_on(self, known: Seats, most: int) -> np.ndarray:
        """Make all simulations whose states are known; return which others are wanted `[n, 6]`, see
        `SearchProgress`, at most this many per lane.

        most: more than one only for SAVE's rule, in plain units and without chance.
        """
        game = Game(self.budget, self._rule, self._space, self._c, self._discount, most)
        count = go_on_all(self._trees, self.lanes, self._seeds, game, known, self.progress)
        return self.progress.wanted[:count]

    def result(
        self, q_values: np.ndarray, visits: np.ndarray, lanes: np.ndarray | None = None
    ) -> None:
        """Write Q_K and visits `[B, W]` of the roots, of some lanes or of all that are searched;
        the rows of others keep their contents."""
        which = self.lanes if lanes is None else lanes
        _results(self._trees, which, self._rule, q_values, visits)


# Steps the simulators: maps `nodes [B]`, `actions [B]` (-1 where no step is needed) and the number
# of the new node to `(reward [B], terminal [B], prior [B, A], value [B])`; the prior is -inf where
# masked. With chance it also takes the seeds `[B]` of the steps.
Step = Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]


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
    stochastic: bool = False,
    return_tree: bool = False,
) -> SearchResult:
    """Search `B` lanes with one function that steps and evaluates all of them.

    prior: `[B, A]` of the roots, -inf where masked. seeds: `[B]` unsigned, for tie-breaking.
    space: see `Search.begin`. stochastic: see `Search`.
    """
    lanes, num_actions = prior.shape
    trees = Search(lanes, budget, num_actions, prior.dtype.type, stochastic=stochastic)
    trees.begin(prior, rule=rule, c=c, discount=discount, seeds=seeds, space=space)
    for simulation in range(budget):
        nodes, actions = trees.select()
        luck = (trees.luck,) if stochastic else ()
        rewards, terminals, priors, values = step(nodes, actions, simulation + 1, *luck)
        trees.expand(rewards, terminals, priors, values)
    q_values, visits = np.zeros(prior.shape, prior.dtype), np.zeros(prior.shape, np.int32)
    trees.result(q_values, visits)
    return SearchResult(q_values, visits, visits > 0, trees.trees if return_tree else None)
