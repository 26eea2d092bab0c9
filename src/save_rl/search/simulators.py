"""Search over lanes of simulators: trees and states in `search.tree_lanes`, batches here.

A search goes in rounds. Each is one message to the processes that hold trees and states, which
answer with all new states that the search will need next as far as that can be foretold, and calls
of the network for these. Lanes are split into groups: while the network evaluates the new states of
some, the processes work for others, and whichever is done first goes on first. A group whose search
is done need not wait for the others (`LaneSearch.run_by_group`). The results do not depend on this
overlap, nor on what was foretold.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from save_rl.envs.pool import Pool
from save_rl.envs.worker import Request
from save_rl.search.rules import Rule, Space
from save_rl.search.slots import best_actions
from save_rl.search.tree_lanes import BEGIN, CONTINUE, SEARCH, Shown, of_seats

_PAUSE = 1e-4  # seconds between looks at what is done, where nothing says so
_PATIENCE = 1.0  # seconds after which to wait for a group: the pool knows what to do if one hangs
# Maps observations `[n, ...]` and masks `[n, A]` (`[n, 0]` without action masks) to
# `(prior, value)` with at least n rows; masked actions are -inf. JAX arrays may still be under
# computation: the search blocks on them as late as possible.
Evaluate = Callable[[Any, np.ndarray], tuple[Any, Any]]


class Question(NamedTuple):
    """States to evaluate: new ones of some lanes of a group, or their roots."""

    pool: Pool
    group: int
    shown: Shown
    low: int  # the group's first row in `shown`
    high: int  # the end of its rows; every lane has the same number of them
    rows: np.ndarray  # [n] to evaluate, numbered as in `shown`
    first: int  # the search's first lane
    lanes: np.ndarray  # [n] of these states, numbered as in the pool
    serials: np.ndarray  # [n] numbers of the states, counted from each lane's root, which is 0
    parents: np.ndarray  # [n] numbers of the states before them; 0 for roots
    start: int  # see `slots.best_actions`

    @property
    def of_roots(self) -> bool:
        return len(self.rows) > 0 and self.serials[0] == 0

    @property
    def observation(self) -> Any:
        """The observations to evaluate, `[n, ...]`."""
        return self.observations(self.rows)

    def observations(self, rows: Any) -> Any:
        """Return observations of `shown`: an array or a dictionary of arrays `[*rows, ...]`."""
        seen = {name: x[rows] for name, x in self.shown.observation.items()}
        return self.pool.layout.observation_of(seen)

    @property
    def mask(self) -> np.ndarray:
        """The masks of these states, `[n, A]`; `[n, 0]` without action masks."""
        return self.shown.mask(self.rows, self.pool.layout.num_actions)


class Answer(Protocol):
    """An evaluation, perhaps still under computation."""

    def ready(self) -> bool:
        """Test whether `write` need not wait."""
        ...

    def write(self, shown: Shown) -> None:
        """Wait for it, and write slots and values of the rows."""
        ...


class Evaluator(Protocol):
    """Evaluates states for a search."""

    def ask(self, question: Question) -> Answer:
        """Start an evaluation, without waiting for it."""
        ...


class Rows(NamedTuple):
    """An evaluation with the priors of all actions; `prior` and `value` may have more rows."""

    rows: np.ndarray
    prior: Any
    value: Any
    start: int

    def ready(self) -> bool:
        return is_computed(self.prior)

    def write(self, shown: Shown) -> None:
        prior, rows, count = np.asarray(self.prior), self.rows, len(self.rows)
        shown.value[rows] = np.asarray(self.value)[:count]
        if shown.choice.shape[1] == 0:
            shown.prior[rows], shown.valid[rows], shown.more[rows] = prior[:count], -1, 0
            return
        shape = (count, shown.prior.shape[1])
        values, actions = np.empty(shape, np.float32), np.empty(shape, np.int32)
        valid, more = np.empty(count, np.int32), np.empty(count, np.int32)
        best_actions(prior[:count], self.start, values, actions, valid, more)
        shown.prior[rows], shown.choice[rows] = values, actions
        shown.valid[rows], shown.more[rows] = valid, more


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
        found = self.evaluate(question.observation, question.mask)
        return Rows(question.rows, *found, question.start)


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

    After a search, `simulations [lanes]` is the number of simulator steps that it used in each
    lane. A few more may have been made ahead, for nothing.
    """

    def __init__(self, pool: Pool, groups: Sequence[int], budget: int):
        self.pool, self.groups, self.budget = pool, list(groups), budget
        self.low, self.high = pool.groups[groups[0]].low, pool.groups[groups[-1]].high
        self._roots, self._seats = Shown.of_lanes(pool.arrays), Shown.of_seats(pool.arrays)
        self._answers: dict[int, tuple[Answer, Shown]] = {}
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

        The lanes of a group that was yielded may be moved on; the search has nothing more to do
        with them.

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
            SEARCH, 0, BEGIN, discount, int(self._rollout), self.budget, int(rule), int(space), c
        )
        self._choose_lanes(lanes)
        arrays["ties"][mine], arrays["scale"][mine] = seeds, scale
        for group in self.groups:
            self._look_at_roots(group)
        # Groups whose states are evaluated, and those that simulate; and whether it is their first.
        evaluated, simulated = dict.fromkeys(self.groups, True), dict[int, bool]()
        while evaluated or simulated:
            group = self._next(evaluated, simulated)
            if group in evaluated:
                first = evaluated.pop(group)
                self._write(group)
                if noise is not None and first:
                    self._mix(noise, group)
                self._send(group, BEGIN if first else CONTINUE)
                simulated[group] = False
                continue
            del simulated[group]
            if self._receive(group):
                self._look_at_seats(group)
                evaluated[group] = False
                continue
            self._leave_out_lost(group)
            yield group
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
            self._look_at_roots(group)
        for group in self.groups:
            self._write(group)
            mine = slice(*self.pool.groups[group])
            arrays["q_values"][mine], arrays["visits"][mine] = arrays["prior"][mine], 0
            arrays["root"][mine] = arrays["choice"][mine]
            self._leave_out(mine.start + np.flatnonzero(~arrays["searched"][mine]))
            yield group

    def _next(self, evaluated: dict[int, bool], simulated: dict[int, bool]) -> int:
        """Return a group that can go on, of those that are evaluated and those that simulate."""
        began = time.monotonic()
        while True:
            for group in evaluated:
                if group not in self._answers or self._answers[group][0].ready():
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

    def _look_at_roots(self, group: int) -> None:
        """Start evaluating the current states of a group's lanes."""
        low, high = self.pool.groups[group]
        searched = self.pool.arrays["searched"][low:high] & ~self.pool.lost[low:high]
        rows = low + np.flatnonzero(searched)
        none = np.zeros(len(rows), np.int32)
        self._ask(group, self._roots, (low, high), rows, rows, none, none)

    def _look_at_seats(self, group: int) -> None:
        """Start evaluating the states that a group's lanes have simulated."""
        low, high = self.pool.groups[group]
        arrays, seats = self.pool.arrays, self.pool.arrays["seat asked"].shape[1]
        asked = arrays["seat asked"][low:high] & ~self.pool.lost[low:high, None]
        rows = low * seats + np.flatnonzero(asked)
        serials, parents = (of_seats(arrays, name)[rows] for name in ("serial", "parent"))
        mine = low * seats, high * seats
        self._ask(group, self._seats, mine, rows, rows // seats, serials, parents)

    def _ask(
        self, group: int, shown: Shown, mine: tuple[int, int], rows: np.ndarray,
        lanes: np.ndarray, serials: np.ndarray, parents: np.ndarray,
    ) -> None:  # fmt: skip
        self._answers.pop(group, None)
        if len(rows) and not self._rollout:
            question = Question(
                self.pool, group, shown, *mine, rows, self.low, lanes, serials, parents,
                self._start_at,
            )  # fmt: skip
            self._answers[group] = self._evaluator.ask(question), shown

    def _write(self, group: int) -> None:
        """Wait for the evaluation of a group's states, and write it into the shared arrays."""
        if group in self._answers:
            answer, shown = self._answers.pop(group)
            answer.write(shown)

    def _mix(self, noise: Noise, group: int) -> None:
        arrays, (low, high) = self.pool.arrays, self.pool.groups[group]
        assert arrays["choice"].shape[1] == 0, "noise needs the priors of all actions"
        lanes = low + np.flatnonzero(arrays["searched"][low:high])
        priors = arrays["prior"][lanes]
        noise(priors, lanes - self.low)
        arrays["prior"][lanes] = priors

    def _send(self, group: int, turn: int) -> None:
        """Request the next round of a search."""
        low, high = self.pool.groups[group]
        # A worker may have been replaced since the search began, and have no states.
        self.pool.arrays["searched"][low:high] &= ~self.pool.lost[low:high]
        self.pool.send(self._request._replace(group=group, new=turn))

    def _receive(self, group: int) -> bool:
        """Wait for the end of a round; return whether another one is needed."""
        self.pool.receive(group)
        (low, high), arrays = self.pool.groups[group], self.pool.arrays
        self.simulations[low - self.low : high - self.low] = arrays["steps"][low:high]
        return bool(np.any(arrays["searching"][low:high] & ~self.pool.lost[low:high]))


def _evaluator(evaluate: Evaluate | Evaluator | None) -> Any:
    if evaluate is None or hasattr(evaluate, "ask"):
        return evaluate
    return Plain(evaluate)  # pyright: ignore[reportArgumentType]
