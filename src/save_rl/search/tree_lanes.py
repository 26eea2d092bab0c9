"""Search trees beside the simulators: each process walks the trees of its own lanes.

A simulation is one message. The request brings the evaluation of the states that the last
simulation reached (`prior`, `choice`, `valid`, `more`, `value` of `fields`); the process expands,
backs up, selects, and steps its simulators; the reply brings the new observations. With random
rollouts instead of a network, the process fills in the evaluation itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from save_rl.envs.layout import Arrays, Field, Layout
from save_rl.envs.pool import Pool
from save_rl.envs.worker import STEP, Lanes, Request
from save_rl.search import host
from save_rl.search.rules import Rule, Space
from save_rl.search.slots import Slots
from save_rl.search.trees import Trees
from save_rl.types import Simulator, State

SIMULATE, RESULT = 5, 6  # commands, after those of `envs.worker`


def fields(layout: Layout, slots: int) -> tuple[Field, ...]:
    """Return the arrays of a search with this many slots per node (see `search.host`).

    searched: the lane takes part. ties: seeds its tie-breaking. scale: divides its rewards.
    allowed: the mask as bits. prior, choice, valid, more: slots of the state that the lane shows.
    q_values, visits, root: slots of the root after the search.
    """
    chosen = slots if slots < layout.num_actions else 0
    bits = -(-layout.num_actions // 8) if layout.masked else 0
    return (
        ("searched", "|b1", ()), ("ties", "<u4", ()), ("scale", "<f4", ()),
        ("allowed", "|u1", (bits,)), ("prior", "<f4", (slots,)), ("choice", "<i4", (chosen,)),
        ("valid", "<i4", ()), ("more", "<i4", ()),
        ("q_values", "<f4", (slots,)), ("visits", "<i4", (slots,)), ("root", "<i4", (chosen,)),
    )  # fmt: skip


def slots_for(budget: int, num_actions: int) -> int:
    """Return the slots per node that a search with a budget needs, if untried actions are tried in
    the order of their priors. Few actions all get one."""
    slots = -(-(budget + 1) // 16) * 16
    return slots if 4 * slots < num_actions else num_actions


def tree_pool(
    simulators: Sequence[Simulator], sizes: Sequence[int], slots: int = 0, **options: Any
) -> Pool:
    """Return a pool whose processes search; slots: per node, default one for every action."""
    layout = Layout.of(simulators[0])
    slots = slots or layout.num_actions
    return Pool(simulators, sizes, kind=TreeLanes, extra=fields(layout, slots), **options)


class TreeLanes(Lanes):
    """Lanes with search trees."""

    def __init__(self, layout: Layout, arrays: Arrays, simulators: dict[int, Simulator]):
        super().__init__(layout, arrays, simulators)
        self._of_group: dict[int, host.Search] = {}

    def compile_ahead(self) -> list[Callable[[], None]]:
        slots, chosen = self._arrays["prior"].shape[1], self._arrays["choice"].shape[1] > 0
        return [*super().compile_ahead(), lambda: host.compile_ahead(slots, chosen)]

    def trees(self, group: int) -> Trees:
        """Return the trees of the last search of a group."""
        return self._of_group[group].trees

    def run(self, request: Request, low: int, high: int) -> list[tuple[int, str]]:
        if request.command not in (SIMULATE, RESULT):
            return self._run_and_pack(request, low, high)
        if request.new == 1:
            self._begin(request, low, high)
        elif request.group in self._of_group:
            self._expand(request, low, high)
        else:  # this process has replaced another in the middle of a search
            self._arrays.action[low:high] = -1
            return []
        search = self._of_group[request.group]
        if request.command == RESULT:
            self._finish(search, low, high)
            return []
        arrays = self._arrays
        arrays.node[low:high], arrays.action[low:high] = search.select()
        if self._layout.stochastic:
            arrays.seed[low:high] = search.luck
        else:  # for rollouts
            arrays.seed[low:high] = arrays["ties"][low:high] * np.uint64(2**20) + np.uint64(
                request.new - 1
            )
        faults = self._run_and_pack(request._replace(command=STEP), low, high)
        if faults:
            search.drop(np.array([lane - low for lane, _ in faults]))
        if request.rollout:
            self._fill_in(np.flatnonzero(arrays.action[low:high] >= 0) + low)
        return faults

    def place(self, lane: int, state: State) -> None:
        super().place(lane, state)
        self._pack(lane, lane + 1)

    def _run_and_pack(self, request: Request, low: int, high: int) -> list[tuple[int, str]]:
        faults = super().run(request, low, high)
        self._pack(low, high)
        return faults

    def _pack(self, low: int, high: int) -> None:
        """Write the masks of lanes as bits, together: a call costs more than a mask."""
        if self._layout.masked:
            self._arrays["allowed"][low:high] = np.packbits(self._arrays.mask[low:high], 1)

    def _begin(self, request: Request, low: int, high: int) -> None:
        arrays, wanted = self._arrays, (high - low, request.budget)
        search = self._of_group.get(request.group)
        slots, chosen = arrays["prior"].shape[1], arrays["choice"].shape[1] > 0
        if search is None or (len(search.nodes), search.budget) != wanted:
            search = self._of_group[request.group] = host.Search(
                *wanted, slots, chosen=chosen, stochastic=self._layout.stochastic
            )
        lanes = np.flatnonzero(arrays["searched"][low:high])
        if request.rollout:
            self._fill_in(lanes + low)
        arrays["root"][low:high] = arrays["choice"][low:high]
        search.begin(
            arrays["prior"][low:high], rule=Rule(request.rule), c=request.c,
            discount=request.discount, seeds=arrays["ties"][low:high], lanes=lanes,
            slots=self._slots(low, high), space=Space(request.space),
        )  # fmt: skip

    def _slots(self, low: int, high: int) -> Slots:
        arrays = self._arrays
        return Slots(
            arrays["choice"][low:high], arrays["valid"][low:high], arrays["more"][low:high]
        )

    def _expand(self, request: Request, low: int, high: int) -> None:
        arrays = self._arrays
        scale, value = arrays["scale"][low:high], arrays.value[low:high]
        self._of_group[request.group].expand(
            arrays.reward[low:high] / scale, arrays.terminated[low:high],
            arrays["prior"][low:high], value / scale if request.rollout else value,
            slots=self._slots(low, high),
        )  # fmt: skip

    def _finish(self, search: host.Search, low: int, high: int) -> None:
        search.result(self._arrays["q_values"][low:high], self._arrays["visits"][low:high])

    def _fill_in(self, lanes: np.ndarray) -> None:
        """Give all allowed actions the same prior."""
        arrays = self._arrays
        arrays["prior"][lanes], arrays["valid"][lanes], arrays["more"][lanes] = 0.0, -1, 0
        if self._layout.masked:
            arrays["prior"][lanes] = np.where(arrays.mask[lanes], 0.0, -np.inf)
