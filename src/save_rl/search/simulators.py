"""Search over lanes of simulators: trees and states in `search.tree_lanes`, batches here.

Each simulation is one message to the processes that hold trees and states, which answer with new
states, and one call of the network for all of these. Lanes are split into groups: while the network
evaluates the new states of some, the processes work for others, and whichever is done first goes on
first. A group whose search is done need not wait for the others (`LaneSearch.run_by_group`). The
results do not depend on this overlap.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from save_rl.envs.layout import Arrays
from save_rl.envs.pool import Pool
from save_rl.envs.worker import Request
from save_rl.search.rules import Rule, Space
from save_rl.search.slots import best_actions
from save_rl.search.tree_lanes import RESULT, SIMULATE

_PAUSE = 1e-4  # seconds between looks at what is done, where nothing says so
_PATIENCE = 1.0  # seconds after which to wait for a group: the pool knows what to do if one hangs
# Maps observations `[n, ...]` and masks `[n, A]` (`[n, 0]` without action masks) to
# `(prior, value)` with at least n rows; masked actions are -inf. JAX arrays may still be under
# computation: the search blocks on them as late as possible.
Evaluate = Callable[[Any, np.ndarray], tuple[Any, Any]]


class Question(NamedTuple):
    """States to evaluate: those that some lanes of a group show, as node `node` of their trees."""

    pool: Pool
    group: int
    first: int  # the search's first lane
    lanes: np.ndarray  # [n] to evaluate, numbered as in the pool
    node: int  # 0 for roots; then the parents are in `Arrays.node`
    start: int  # see `slots.best_actions`


class Answer(Protocol):
    """An evaluation, perhaps still under computation."""

    def ready(self) -> bool:
        """Test whether `write` need not wait."""
        ...

    def write(self, arrays: Arrays) -> None:
        """Wait for it, and write slots and values of the lanes."""
        ...


class Evaluator(Protocol):
    """Evaluates states for a search."""

    def ask(self, question: Question) -> Answer:
        """Start an evaluation, without waiting for it."""
        ...


class Rows(NamedTuple):
    """An evaluation with the priors of all actions, at least one row per lane."""

    lanes: np.ndarray
    prior: Any
    value: Any
    start: int

    def ready(self) -> bool:
        return is_computed(self.prior)

    def write(self, arrays: Arrays) -> None:
        prior, lanes, count = np.asarray(self.prior), self.lanes, len(self.lanes)
        arrays.value[lanes] = np.asarray(self.value)[:count]
        if arrays["choice"].shape[1] == 0:
            arrays["prior"][lanes], arrays["valid"][lanes], arrays["more"][lanes] = (
                prior[:count], -1, 0
            )  # fmt: skip
            return
        shape = (count, arrays["prior"].shape[1])
        values, actions = np.empty(shape, np.float32), np.empty(shape, np.int32)
        valid, more = np.empty(count, np.int32), np.empty(count, np.int32)
        best_actions(prior[:count], self.start, values, actions, valid, more)
        arrays["prior"][lanes], arrays["choice"][lanes] = values, actions
        arrays["valid"][lanes], arrays["more"][lanes] = valid, more


def is_computed(x: Any) -> bool:
    """Test whether there is nothing better to do than to wait for an array: those of JAX may be
    under computation. On a CPU the computation needs the cores, so looking again is no help."""
    if not hasattr(x, "is_ready"):
        return True
    return x.is_ready() or all(device.platform == "cpu" for device in x.devices())


class Plain(NamedTuple):
    """A function of observations and masks as an `Evaluator`."""

    evaluate: Evaluate

    def ask(self, question: Question) -> Rows:
        lanes = question.lanes
        seen, mask = question.pool.observation(lanes), question.pool.arrays.mask[lanes]
        return Rows(lanes, *self.evaluate(seen, mask), question.start)


# Mixes noise into the priors `[n, A]` of roots in place; the second argument is their lanes `[n]`.
Noise = Callable[[np.ndarray, np.ndarray], None]


class Roots(NamedTuple):
    """The slots of the roots after a search, `[lanes, W]`; the next search overwrites them.

    q_values: Q_MCTS; untried actions keep the prior (0 for UCT and PUCT), masked ones are -inf.
    visits: simulations through each. actions: `[lanes, W]`, or `[lanes, 0]` if every action has a
    slot. tree: see `LaneSearch.run`.
    """

    q_values: np.ndarray
    visits: np.ndarray
    actions: np.ndarray
    tree: Any = None

    @property
    def explored(self) -> np.ndarray:
        return self.visits > 0

    def of_all_actions(self, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values and explored actions, `[lanes, A]` each; prior: of actions without a slot,
        in the units of the values."""
        if self.actions.shape[1] == 0:
            return self.q_values.copy(), self.explored
        values, explored = prior.copy(), np.zeros(prior.shape, np.bool_)
        used = np.nonzero(self.q_values > -np.inf)  # where few actions are allowed, slots are left
        at = used[0], self.actions[used]
        values[at], explored[at] = self.q_values[used], self.explored[used]
        return values, explored


class LaneSearch:
    """Searches the lanes of adjacent groups of a `tree_lanes.tree_pool`.

    After a search, `simulations [lanes]` is the number of simulator steps that each lane took.
    """

    def __init__(self, pool: Pool, groups: Sequence[int], budget: int):
        self.pool, self.groups, self.budget = pool, list(groups), budget
        self.low, self.high = pool.groups[groups[0]].low, pool.groups[groups[-1]].high
        self._answers: dict[int, Answer] = {}
        self.simulations = np.zeros(self.high - self.low, np.int64)

    def run(
        self, evaluate: Evaluate | Evaluator | None, *, return_tree: bool = False, **options: Any
    ) -> Roots:
        """Search from the current states of the lanes; options: see `run_by_group`.

        return_tree: needs `workers=0`.
        """
        for _ in self.run_by_group(evaluate, **options):
            pass
        trees = [self.pool.local.trees(group) for group in self.groups] if return_tree else None
        return self.roots._replace(tree=trees[0] if trees and len(trees) == 1 else trees)

    def run_by_group(
        self,
        evaluate: Evaluate | Evaluator | None,
        *,
        rule: Rule,
        c: float,
        discount: float,
        seeds: np.ndarray,
        lanes: np.ndarray | None = None,
        noise: Noise | None = None,
        space: Space = Space.PLAIN,
        start: int = 0,
        scale: Any = 1.0,
    ) -> Iterator[int]:
        """Search from the current states of the lanes; yield each group as soon as `roots` has its
        result, while others are searched.

        The pool's arrays must show the roots. A search leaves the last nodes it tried there, until
        a real step, a reset or `Pool.place`. The lanes of a group that was yielded may be moved on;
        the search has nothing more to do with them.

        evaluate: returns prior and value of states; None uses UCT's random rollouts. seeds:
        `[lanes]` uint32. lanes: `[lanes]` bool, the lanes to search; lost lanes never are. space:
        the units of priors and results, see `host.Search.begin`. start: see `slots.best_actions`.
        scale: divides the simulators' rewards, one number or `[lanes]`; the evaluation and the
        result are in these units.
        """
        arrays, mine = self.pool.arrays, slice(self.low, self.high)
        self._start_at, self._rollout = start, evaluate is None
        self._evaluator = _evaluator(evaluate)
        self._request = Request(
            SIMULATE, 0, 1, discount, int(self._rollout), self.budget, int(rule), int(space), c
        )
        self._choose_lanes(lanes)
        arrays["ties"][mine], arrays["scale"][mine] = seeds, scale
        for group in self.groups:
            self._look(group, 0)
        # Groups whose states of a simulation are evaluated, and those that simulate one.
        evaluated, simulated = dict.fromkeys(self.groups, 0), dict[int, int]()
        while evaluated or simulated:
            group = self._next(evaluated, simulated)
            if group in evaluated:
                simulation = evaluated.pop(group)
                self._write(group)
                if noise is not None and simulation == 0:
                    self._mix(noise, group)
                self._send(group, simulation)
                simulated[group] = simulation + 1
                continue
            simulation = simulated.pop(group)
            if simulation > self.budget:
                self.pool.receive(group)
                self._leave_out_lost(group)
                yield group
                continue
            self._receive(group)
            self._look(group, simulation)
            evaluated[group] = simulation
        for group in self.groups:  # workers may have been replaced since
            self._leave_out_lost(group)

    def priors(
        self, evaluate: Evaluate | Evaluator, lanes: np.ndarray | None = None, start: int = 0
    ) -> Roots:
        """Return the priors of the lanes' current states as their values, without searching."""
        for _ in self.priors_by_group(evaluate, lanes, start):
            pass
        return self.roots

    def priors_by_group(
        self, evaluate: Evaluate | Evaluator, lanes: np.ndarray | None = None, start: int = 0
    ) -> Iterator[int]:
        """`priors`, and yield each group as soon as `roots` has its own."""
        arrays = self.pool.arrays
        self._start_at, self._rollout, self._evaluator = start, False, _evaluator(evaluate)
        self._choose_lanes(lanes)
        for group in self.groups:
            self._look(group, 0)
        for group in self.groups:
            self._write(group)
            mine = slice(*self.pool.groups[group])
            arrays["q_values"][mine], arrays["visits"][mine] = arrays["prior"][mine], 0
            arrays["root"][mine] = arrays["choice"][mine]
            self._leave_out(mine.start + np.flatnonzero(~arrays["searched"][mine]))
            yield group

    def _next(self, evaluated: dict[int, int], simulated: dict[int, int]) -> int:
        """Return a group that can go on, of those that are evaluated and those that simulate."""
        began = time.monotonic()
        while True:
            for group in evaluated:
                if group not in self._answers or self._answers[group].ready():
                    return group
            patience = began + _PATIENCE - time.monotonic()
            if not simulated:  # evaluations end in the order in which they were asked for
                return next(iter(evaluated))
            if len(evaluated) + len(simulated) == 1 or patience < 0:
                return next(iter(simulated))
            found = self.pool.answered(list(simulated), wait=0.0 if evaluated else patience)
            if found is not None:
                return found
            if evaluated:
                time.sleep(_PAUSE)

    def _choose_lanes(self, lanes: np.ndarray | None) -> None:
        takes_part = ~self.pool.lost[self.low : self.high]
        if lanes is not None:
            takes_part &= lanes
        self.pool.arrays["searched"][self.low : self.high] = takes_part
        self._leave_out(self.low + np.flatnonzero(~takes_part))
        self.simulations[:] = 0

    def _leave_out_lost(self, group: int) -> None:
        low, high = self.pool.groups[group]
        self._leave_out(low + np.flatnonzero(self.pool.lost[low:high]))

    def _leave_out(self, lanes: np.ndarray) -> None:
        """Blank the results of these lanes, numbered as in the pool."""
        self.pool.arrays["q_values"][lanes], self.pool.arrays["visits"][lanes] = -np.inf, 0

    @property
    def roots(self) -> Roots:
        """The result of the last search."""
        arrays, mine = self.pool.arrays, slice(self.low, self.high)
        return Roots(arrays["q_values"][mine], arrays["visits"][mine], arrays["root"][mine])

    def _look(self, group: int, node: int) -> None:
        """Start evaluating the states that a group shows as node `node`."""
        self._answers.pop(group, None)
        low, high = self.pool.groups[group]
        arrays = self.pool.arrays
        new = arrays["searched"][low:high] & ~self.pool.lost[low:high]
        if node > 0:
            new &= (arrays.action[low:high] >= 0) & ~arrays.terminated[low:high]
        lanes = low + np.flatnonzero(new)
        if len(lanes) and not self._rollout:
            question = Question(self.pool, group, self.low, lanes, node, self._start_at)
            self._answers[group] = self._evaluator.ask(question)

    def _write(self, group: int) -> None:
        """Wait for the evaluation of a group's states, and write it into the shared arrays."""
        if group in self._answers:
            self._answers.pop(group).write(self.pool.arrays)

    def _mix(self, noise: Noise, group: int) -> None:
        arrays, (low, high) = self.pool.arrays, self.pool.groups[group]
        assert arrays["choice"].shape[1] == 0, "noise needs the priors of all actions"
        lanes = low + np.flatnonzero(arrays["searched"][low:high])
        priors = arrays["prior"][lanes]
        noise(priors, lanes - self.low)
        arrays["prior"][lanes] = priors

    def _send(self, group: int, simulation: int) -> None:
        """Request the next simulation, or the result after the last one."""
        low, high = self.pool.groups[group]
        # A worker may have been replaced since the search began, and have no states.
        self.pool.arrays["searched"][low:high] &= ~self.pool.lost[low:high]
        command = SIMULATE if simulation < self.budget else RESULT
        request = self._request._replace(command=command, group=group, new=simulation + 1)
        self.pool.send(request)

    def _receive(self, group: int) -> None:
        self.pool.receive(group)
        low, high = self.pool.groups[group]
        asked = self.pool.arrays.action[low:high] >= 0
        self.simulations[low - self.low : high - self.low] += asked


def _evaluator(evaluate: Evaluate | Evaluator | None) -> Any:
    if evaluate is None or hasattr(evaluate, "ask"):
        return evaluate
    return Plain(evaluate)  # pyright: ignore[reportArgumentType]
