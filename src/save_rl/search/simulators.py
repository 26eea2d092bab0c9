"""Search over lanes of simulators: trees in `search.host`, states in `envs.pool`.

Each simulation selects in every tree, steps the simulators, evaluates all new states in one
network call, then expands and backs up. Lanes are split into groups: while the network evaluates
one group's new states, the workers step another group, and with three or more groups selection
runs in a third. The results do not depend on this overlap.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from save_rl.envs.pool import Pool
from save_rl.search import host
from save_rl.search.rules import Rule, Space
from save_rl.types import SearchResult

# Maps observations `[n, ...]` and masks `[n, A]` (`[n, 0]` without action masks) to
# `(prior, value)` with at least n rows; masked actions are -inf. JAX arrays may still be under
# computation: the search blocks on them as late as possible.
Evaluate = Callable[[Any, np.ndarray], tuple[Any, Any]]


class Recurrent(Protocol):
    """An `Evaluate` with a recurrent state per node; `at` announces the nodes of the next call."""

    def at(self, lanes: np.ndarray, parents: np.ndarray, node: int) -> None:
        """Announce that the next call evaluates node `node` of lanes `[n]`, children of nodes
        `parents [n]`; for a root, number 0, these are -1. Lanes count from the search's first."""
        ...


# Mixes noise into the priors `[n, A]` of roots in place; the second argument is their lanes `[n]`.
Noise = Callable[[np.ndarray, np.ndarray], None]


class LaneSearch:
    """Searches the lanes of adjacent groups of a pool; every search reuses the same memory.

    After a search, `simulations` is the number of simulator steps it took.
    """

    def __init__(self, pool: Pool, groups: Sequence[int], budget: int, overlap: bool = True):
        self.pool, self.groups, self.budget, self.overlap = pool, list(groups), budget, overlap
        self.low, self.high = pool.groups[groups[0]].low, pool.groups[groups[-1]].high
        shape = (self.high - self.low, pool.layout.num_actions)
        self._q_values, self._visits = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
        self._nothing = np.zeros((1, shape[1]), np.float32)
        self._trees, self._rows = {}, {}
        self._looking: dict[int, tuple[np.ndarray, Any]] = {}  # per group: lanes, their evaluation
        self._asked = dict.fromkeys(groups, False)
        for group in groups:
            _, low, high = pool.groups[group]
            mine = slice(low - self.low, high - self.low)
            out = (self._q_values[mine], self._visits[mine])
            self._trees[group] = host.Search(high - low, budget, shape[1], out=out)
            self._rows[group] = np.zeros(high - low, np.int64)
        self.simulations = 0

    def run(
        self,
        evaluate: Evaluate | None,
        *,
        rule: Rule,
        c: float,
        discount: float,
        seeds: np.ndarray,
        lanes: np.ndarray | None = None,
        noise: Noise | None = None,
        space: Space = Space.PLAIN,
        return_tree: bool = False,
    ) -> SearchResult:
        """Search from the current states of the lanes; the next search overwrites the result.

        The pool's arrays must show the roots. A search leaves the last nodes it tried there, until
        a real step, a reset or `Pool.place`.

        evaluate: returns prior and value of states; None uses UCT's random rollouts. seeds:
        `[lanes]` uint32. lanes: `[lanes]` bool, the lanes to search; lost lanes never are. space:
        the units of priors and results, see `host.Search.begin`.
        """
        self._rule, self._c, self._discount, self._seeds = rule, c, discount, seeds
        self._space = space
        self._evaluate, self.simulations = evaluate, 0
        takes_part = ~self.pool.lost[self.low : self.high]
        if lanes is not None:
            takes_part &= lanes
        self._leave_out(~takes_part)
        for group in self.groups:
            self._look_at_roots(group, takes_part)
        for group in self.groups:
            self._plant(group, noise)
        behind: deque[tuple[int, int]] = deque()  # groups whose new states are being evaluated
        most = (len(self.groups) - 1) // 2 if self.overlap else 0
        for simulation in range(self.budget):
            for group in self.groups:
                self._take(group, simulation)
                behind.append((group, simulation))
                if len(behind) > most:
                    self._grow(*behind.popleft())
        while behind:
            self._grow(*behind.popleft())
        results = [self._trees[group].result(return_tree) for group in self.groups]
        self._leave_out(self.pool.lost[self.low : self.high])
        tree = results[0].tree if len(results) == 1 else [result.tree for result in results]
        return SearchResult(
            self._q_values, self._visits, self._visits > 0, tree if return_tree else None
        )

    def _leave_out(self, lanes: np.ndarray) -> None:
        """Blank the results of these lanes."""
        self._q_values[lanes], self._visits[lanes] = -np.inf, 0

    def priors(self, evaluate: Evaluate, lanes: np.ndarray) -> np.ndarray:
        """Return the priors `[lanes, A]` of the lanes' current states, without searching."""
        self._evaluate = evaluate
        self._q_values[:] = -np.inf
        for group in self.groups:
            self._look_at_roots(group, lanes)
        for group in self.groups:
            mine, found = self._looking[group]
            prior, _ = self.answer(found)
            self._q_values[self.pool.groups[group].low - self.low + mine] = prior[: len(mine)]
        return self._q_values

    def _look_at_roots(self, group: int, takes_part: np.ndarray) -> None:
        _, low, high = self.pool.groups[group]
        lanes = np.flatnonzero(takes_part[low - self.low : high - self.low])
        self._looking[group] = lanes, self._look(group, lanes, 0)

    def _plant(self, group: int, noise: Noise | None) -> None:
        """Create the roots of a group's trees, and start its first simulation."""
        _, low, high = self.pool.groups[group]
        mine = slice(low - self.low, high - self.low)
        lanes, found = self._looking[group]
        priors, _ = self.answer(found)
        if noise is not None:
            priors = np.array(priors)
            noise(priors[: len(lanes)], mine.start + lanes)
        rows = self._rows[group]
        rows[lanes] = np.arange(len(lanes))
        self._trees[group].begin(
            priors, rule=self._rule, c=self._c, discount=self._discount, seeds=self._seeds[mine],
            lanes=lanes, rows=rows, space=self._space,
        )  # fmt: skip
        if self.overlap and self.budget > 0:
            self._ask(group, 0)

    def _ask(self, group: int, simulation: int) -> None:
        """Select, and send the selected actions to the simulators."""
        _, low, high = self.pool.groups[group]
        nodes, actions = self._trees[group].select()
        asked = int(np.count_nonzero(actions >= 0))
        self.simulations += asked
        self._asked[group] = asked > 0
        if not asked:  # every lane selected a known terminal node
            return
        seeds = self._seeds[low - self.low : high - self.low].astype(np.uint64)
        rollout = self._discount if self._evaluate is None else -1.0
        self.pool.step(group, nodes, actions, simulation + 1, seeds * 2**20 + simulation, rollout)

    def _take(self, group: int, simulation: int) -> None:
        """Receive the new states from the simulators, and start their evaluation."""
        if not self.overlap:
            self._ask(group, simulation)
        if self._asked[group]:
            self.pool.receive(group)
        trees, rows = self._trees[group], self._rows[group]
        _, low, high = self.pool.groups[group]
        lost = np.flatnonzero(self.pool.lost[low:high])
        if len(lost):
            trees.drop(lost)
        new = np.flatnonzero((trees.actions >= 0) & ~self.pool.arrays.terminated[low:high])
        rows[new] = np.arange(len(new))
        self._looking[group] = new, self._look(group, new, simulation + 1)

    def _grow(self, group: int, simulation: int) -> None:
        """Expand and back up, then start the next simulation."""
        arrays, (_, low, high) = self.pool.arrays, self.pool.groups[group]
        priors, values = self.answer(self._looking[group][1])
        self._trees[group].expand(
            arrays.reward[low:high], arrays.terminated[low:high], self._rows[group], priors, values
        )
        if simulation + 1 < self.budget and self.overlap:
            self._ask(group, simulation + 1)

    def answer(self, found: Any) -> tuple[np.ndarray, np.ndarray]:
        """Wait for an evaluation; return priors and values."""
        prior, value = found
        return np.asarray(prior), np.asarray(value)

    def _look(self, group: int, lanes: np.ndarray, node: int) -> Any:
        """Start evaluating the states that these lanes of a group show, as node `node`; returns at
        least one row."""
        if len(lanes) == 0:
            return self._nothing, np.zeros(1)
        at = self.pool.groups[group].low + lanes
        mask = self.pool.arrays.mask[at]
        if self._evaluate is not None:
            tell = getattr(self._evaluate, "at", None)  # of a `Recurrent`
            if tell is not None:
                parents = self._trees[group].nodes[lanes] if node else np.full(len(lanes), -1)
                tell(at - self.low, parents, node)
            return self._evaluate(self.pool.observation(at), mask)
        prior = np.zeros((len(lanes), self.pool.layout.num_actions), np.float32)
        if mask.shape[1]:
            prior[~mask] = -np.inf
        return prior, self.pool.arrays.value[at]
