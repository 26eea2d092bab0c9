"""Search trees beside the simulators: each process walks the trees of its own lanes.

A search goes in rounds, each of them a message. The request brings the evaluations of the states
that the last round simulated; the process makes all simulations that it can with them, and
simulates the states that the search wants next (`search.foresight`); the reply brings what these
show. With random rollouts instead of a network, the process fills in the evaluations itself.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.layout import Arrays, Field, Layout
from save_rl.envs.pool import Pool
from save_rl.envs.worker import REWARD, Lanes, Request, Window, nonsense
from save_rl.search import host
from save_rl.search.foresight import LANE, LUCK, SEAT, Seats
from save_rl.search.rollouts import rollout
from save_rl.search.rules import Rule, Space
from save_rl.search.slots import Slots
from save_rl.search.trees import Trees
from save_rl.types import Simulator, State

SEARCH = 5  # a command, after those of `envs.worker`
BEGIN, CONTINUE = 1, 2  # `Request.new` of the first round, and of the others
SEATS = 16  # most states per lane and round
SHALLOW = 1.0  # simulations per slot up to which most searches stay at the children of the root


def fields(layout: Layout, slots: int, seats: int) -> tuple[Field, ...]:
    """Return the arrays of a search with this many slots per node (see `search.host`), and seats
    for new states per lane.

    searched: the lane takes part. searching: it is not done. steps: states that its search used.
    ties: seeds its tie-breaking. scale: divides its rewards. allowed, prior, choice, valid, more,
    value: mask as bits, slots and value of the current state. q_values, visits, root: slots of the
    root after the search. The others are of the seats: asked: the state is to be evaluated. serial,
    parent: numbers of the state and of the one before it.
    """
    chosen = slots if slots < layout.num_actions else 0
    bits = -(-layout.num_actions // 8) if layout.masked else 0
    evaluated = (
        ("allowed", "|u1", (bits,)), ("prior", "<f4", (slots,)), ("choice", "<i4", (chosen,)),
        ("valid", "<i4", ()), ("more", "<i4", ()), ("value", "<f8", ()),
    )  # fmt: skip
    of_seats = (
        ("asked", "|b1", ()), ("serial", "<i4", ()), ("parent", "<i4", ()), ("reward", "<f8", ()),
        ("terminated", "|b1", ()), *evaluated,
        *((f"see {name}", kind, shape) for name, kind, shape in layout.observation),
    )  # fmt: skip
    return (
        ("searched", "|b1", ()), ("searching", "|b1", ()), ("steps", "<i4", ()),
        ("ties", "<u4", ()), ("scale", "<f4", ()), *evaluated,
        ("q_values", "<f4", (slots,)), ("visits", "<i4", (slots,)), ("root", "<i4", (chosen,)),
        *((f"seat {name}", kind, (seats, *shape)) for name, kind, shape in of_seats),
    )  # fmt: skip


class Shown(NamedTuple):
    """States of lanes, and where their evaluations are written; rows `[n, ...]`.

    All are shared with the processes. See `fields`.
    """

    observation: dict[str, np.ndarray]
    allowed: np.ndarray
    prior: np.ndarray
    choice: np.ndarray
    valid: np.ndarray
    more: np.ndarray
    value: np.ndarray

    @classmethod
    def of_lanes(cls, arrays: Arrays) -> "Shown":
        """Return the current states of all lanes, a row each."""
        return cls(arrays.observation, *(arrays[name] for name in cls._fields[1:]))

    @classmethod
    def of_seats(cls, arrays: Arrays) -> "Shown":
        """Return the states in the seats of all lanes, those of a lane one after the other."""

        seen = {name: of_seats(arrays, f"see {name}") for name in arrays.observation}
        return cls(seen, *(of_seats(arrays, name) for name in cls._fields[1:]))

    def mask(self, rows: np.ndarray, num_actions: int) -> np.ndarray:
        """Return the masks of some rows as truth values, `[n, A]`, or `[n, 0]` without masks."""
        if self.allowed.shape[1] == 0:
            return np.zeros((len(rows), 0), np.bool_)
        return np.unpackbits(self.allowed[rows], 1, num_actions).view(np.bool_)


def of_seats(arrays: Arrays, name: str) -> np.ndarray:
    """Return an array of the seats of all lanes, those of a lane one after the other."""
    x = arrays[f"seat {name}"]
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def slots_for(budget: int, num_actions: int) -> int:
    """Return the slots per node that a search with a budget needs, if untried actions are tried in
    the order of their priors. Few actions all get one."""
    slots = -(-(budget + 1) // 16) * 16
    return slots if 4 * slots < num_actions else num_actions


def is_shallow(budget: int, slots: int) -> bool:
    """Test whether it can be foretold what a search with a budget needs. With few actions searches
    go deeper, and what they find there can't be."""
    return budget < SHALLOW * slots


def tree_pool(
    simulators: Sequence[Simulator], sizes: Sequence[int], slots: int = 0, seats: int = SEATS,
    **options: Any,
) -> Pool:  # fmt: skip
    """Return a pool whose processes search; slots: per node, default one for every action. seats:
    the most states per lane that a round simulates."""
    layout = Layout.of(simulators[0])
    slots, seats = slots or layout.num_actions, 1 if layout.stochastic else seats
    extra = fields(layout, slots, seats)
    return Pool(simulators, sizes, kind=TreeLanes, extra=extra, **options)


class TreeLanes(Lanes):
    """Lanes with search trees."""

    def __init__(self, layout: Layout, arrays: Arrays, simulators: dict[int, Simulator]):
        super().__init__(layout, arrays, simulators)
        self._of_group: dict[int, tuple[host.Search, Seats]] = {}
        self._shown, self._ahead = Shown.of_lanes(arrays), Shown.of_seats(arrays)
        self._seats = arrays["seat asked"].shape[1]
        names = "asked", "parent", "serial", "reward", "terminated", "value"
        self._of_seats = {name: of_seats(arrays, name) for name in names}
        rows = len(self._ahead.allowed)
        masks = np.zeros((rows, layout.num_actions if layout.masked else 0), np.bool_)
        self._window = Window(layout, self._ahead.observation, masks)

    def compile_ahead(self) -> list[Callable[[], None]]:
        slots, chosen = self._arrays["prior"].shape[1], self._arrays["choice"].shape[1] > 0
        return [*super().compile_ahead(), lambda: host.compile_ahead(slots, chosen)]

    def trees(self, group: int) -> Trees:
        """Return the trees of the last search of a group."""
        return self._of_group[group][0].trees

    def run(self, request: Request, low: int, high: int) -> list[tuple[int, str]]:
        if request.command != SEARCH:
            faults = super().run(request, low, high)
            self._pack(low, high)
            return faults
        arrays = self._arrays
        arrays["seat asked"][low:high] = False
        if request.new == BEGIN:
            self._begin(request, low, high)
        elif request.group not in self._of_group:
            # This process has replaced another in the middle of a search.
            arrays["searching"][low:high] = False
            return []
        search, known = self._of_group[request.group]
        wanted = search.go_on(known, self._most(request))
        arrays["steps"][low:high] = search.progress.steps
        self._finish(search, low, high)
        return self._simulate(search, known, request, low, wanted)

    def _most(self, request: Request) -> int:
        """Return how many states a lane may simulate in a round."""
        plain = request.rule == Rule.SAVE and request.space == Space.PLAIN
        shallow = is_shallow(request.budget, self._arrays["prior"].shape[1])
        return self._seats if plain and shallow else 1

    def place(self, lane: int, state: State) -> None:
        super().place(lane, state)
        self._pack(lane, lane + 1)

    def _pack(self, low: int, high: int) -> None:
        """Write the masks of lanes as bits, together: a call costs more than a mask."""
        self._current.pack(self._arrays["allowed"], slice(low, high))

    def _begin(self, request: Request, low: int, high: int) -> None:
        arrays, wanted = self._arrays, (high - low, request.budget)
        search, known = self._of_group.get(request.group, (None, None))
        slots, chosen = arrays["prior"].shape[1], arrays["choice"].shape[1] > 0
        if search is None or (len(search.nodes), search.budget) != wanted:
            search = host.Search(
                *wanted, slots, chosen=chosen, stochastic=self._layout.stochastic,
                seats=self._seats,
            )  # fmt: skip
            names = "reward", "terminated", "prior", "choice", "valid", "more", "value"
            known = search.known(
                *(arrays[f"seat {name}"][low:high] for name in names), arrays["scale"][low:high]
            )
            self._of_group[request.group] = search, known
        lanes = np.flatnonzero(arrays["searched"][low:high])
        if request.rollout:
            self._fill_in(self._shown, lanes + low)
        arrays["root"][low:high] = arrays["choice"][low:high]
        arrays["searching"][low:high] = arrays["searched"][low:high]
        for lane in (lanes + low).tolist():
            self._states[lane] = {0: self._states[lane][0]}
        search.begin(
            arrays["prior"][low:high], rule=Rule(request.rule), c=request.c,
            discount=request.discount, seeds=arrays["ties"][low:high], lanes=lanes,
            slots=Slots(*(arrays[name][low:high] for name in ("choice", "valid", "more"))),
            space=Space(request.space),
        )  # fmt: skip

    def _finish(self, search: host.Search, low: int, high: int) -> None:
        """Write the results of the lanes that have just made their last simulation."""
        arrays = self._arrays
        over = search.progress.simulations == search.budget
        done = np.flatnonzero(arrays["searching"][low:high] & over)
        if len(done):
            search.result(arrays["q_values"][low:high], arrays["visits"][low:high], done)
            arrays["searching"][done + low] = False

    def _simulate(
        self, search: host.Search, known: Seats, request: Request, low: int, wanted: np.ndarray
    ) -> list[tuple[int, str]]:
        """Simulate the states that the lanes want; return the lanes that failed, and why."""
        arrays, seats, window = self._arrays, self._of_seats, self._window
        wanted[:, LANE] += low
        wanted[:, SEAT] += low * self._seats
        if request.rollout and not self._layout.stochastic:
            ties = arrays["ties"][wanted[:, LANE]].astype(np.int64)
            wanted[:, LUCK] = ties * 2**20 + search.progress.simulations[wanted[:, LANE] - low]
        failed: dict[int, str] = {}  # why, by row of `wanted`
        made: list[int] = []  # the others, and what came of them
        rewards: list[float] = []
        ends: list[bool] = []
        values: list[float] = []  # of random rollouts
        for i, (lane, row, parent, serial, action, seed) in enumerate(wanted.tolist()):
            self._calls[lane] += 1
            try:
                state, reward, over, truncated = self._try(lane, parent, action, serial, seed)
                reward, over, value = float(reward), bool(over), 0.0
                if not over:
                    window.show(self._simulators[lane], state, row)
                    if request.rollout:
                        value = rollout(
                            self._simulators[lane], state, truncated, request.discount, seed
                        )
            except (Exception, SystemExit):
                failed[i] = traceback.format_exc()
                continue
            made.append(i)
            rewards.append(reward)
            ends.append(over)
            values.append(value)
        if made:
            lanes, rows, parents, serials, _, _ = (wanted[made] if failed else wanted).T
            live = ~np.array(ends)
            seats["parent"][rows], seats["serial"][rows] = parents, serials
            seats["reward"][rows], seats["terminated"][rows] = rewards, ends
            if request.rollout:
                seats["value"][rows] = values / arrays["scale"][lanes]
            for i, why in nonsense([(REWARD, seats["reward"]), *window.named()], rows):
                failed[made[i]], live[i] = why, False
            shown = rows[live]
            window.pack(self._ahead.allowed, shown)
            if request.rollout:
                self._fill_in(self._ahead, shown)
            seats["asked"][shown] = True
        return self._forget(search, known, low, wanted, failed) if failed else []

    def _forget(
        self,
        search: host.Search,
        known: Seats,
        low: int,
        wanted: np.ndarray,
        failed: dict[int, str],
    ) -> list[tuple[int, str]]:
        """Free the seats of what failed, and drop the lanes that needed it; return these.

        A lane needs only the first of its states: the failure of another is forgotten with it.
        """
        faults = []
        for i, why in sorted(failed.items()):
            lane, row = wanted[i, :2].tolist()
            known.slot[lane - low, row % self._seats] = -1
            if i == 0 or wanted[i - 1, LANE] != lane:
                faults.append((lane, why))
        if faults:
            lost = np.array([lane for lane, _ in faults])
            search.drop(lost - low)
            self._arrays["searching"][lost] = self._arrays["seat asked"][lost] = False
        return faults

    def _fill_in(self, shown: Shown, rows: np.ndarray) -> None:
        """Give all allowed actions the same prior."""
        shown.prior[rows], shown.valid[rows], shown.more[rows] = 0.0, -1, 0
        if self._layout.masked:
            allowed = shown.mask(rows, self._layout.num_actions)
            shown.prior[rows] = np.where(allowed, 0.0, -np.inf)
