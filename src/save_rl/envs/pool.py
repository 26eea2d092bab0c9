"""Many lanes of simulators, in this process or in worker processes.

Lanes form *groups*; every group is spread over all workers, and a lane's states stay in its worker.
`send` sends a group's requests and `receive` waits for the replies, one round trip per worker, so
that the caller can process one group while the workers simulate others; `answered` says which of
several groups is done. Requests and replies are in `Pool.arrays`, in shared memory;
`envs.worker.Lanes` defines the requests. Results do not depend on the number of workers.

If a simulator raises or returns invalid values, its lane loses the current episode. A worker that
dies, or is in one call for too long, is replaced, and all its lanes lose theirs. `Pool.lost` marks
these lanes until they are reset. After several such faults without a finished episode in between,
the run stops with the simulator's traceback.
"""

import itertools
import mmap
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.layout import Arrays, Field, Layout
from save_rl.envs.watchdog import WATCHDOG
from save_rl.envs.worker import ADVANCE, ANY_LEVEL, LOAD, RESET, SAVE, STEP, Lanes, Request
from save_rl.envs.worker_process import GRACE, Replies, WorkerProcess, refuse_in_a_worker
from save_rl.errors import RunError
from save_rl.types import Simulator, State

_FAULTS_IN_A_ROW = 5
_START_LIMIT = 60.0  # least seconds for a worker to start, if there is a timeout


class Source(NamedTuple):
    """The arguments of `envs.make` with which a worker makes a simulator."""

    env: str
    seed: int
    options: dict[str, Any]


class Group(NamedTuple):
    """Lanes `low` to `high` of a pool."""

    low: int
    high: int

    @property
    def lanes(self) -> np.ndarray:
        return np.arange(self.low, self.high)


class Pool:
    """Lanes of simulators; use it as a context manager, or `close` it.

    simulators: one object each; they must have the same layout.
    sizes: of the groups: lanes per simulator. A group has the lanes of the first simulator, then
    those of the next.
    kind, extra: what carries out the requests, and the fields of `Arrays` that it needs.
    workers: processes; 0 simulates in this one.
    sources: for workers to make the simulators; needed unless `workers` is 0.
    timeout: seconds for a call of a simulator in a worker, or a little more; 0 for no limit.
    """

    def __init__(
        self,
        simulators: Sequence[Simulator],
        sizes: Sequence[int],
        *,
        kind: type[Lanes] = Lanes,
        extra: Sequence[Field] = (),
        workers: int = 0,
        sources: Sequence[Source] = (),
        timeout: float = 0.0,
        warn: Callable[[str], None] | None = None,
    ):
        self.layout = Layout.of_all(simulators)
        many = len(simulators)
        ends = np.cumsum([0, *(many * size for size in sizes)]).tolist()
        self.groups = [Group(low, high) for low, high in itertools.pairwise(ends)]
        self.lost = np.zeros(ends[-1], np.bool_)
        self.faults = np.zeros(len(simulators), np.int64)  # by simulator
        each = [np.repeat(np.arange(many), size) for size in sizes]
        self._simulator_of = np.concatenate(each)
        self._in_a_row = 0
        self.last_fault = ""  # traceback of the last failure of a simulator
        self._commands: list[deque[int]] = [deque() for _ in sizes]  # sent, not yet received
        self._timeout, self._warn, self._sources = timeout, warn, sources
        if sources:
            WATCHDOG.name = f"the simulator '{sources[0].env}'"
        self._workers: list[WorkerProcess] = []
        self._replies = Replies()
        self._memory: int | None = None
        self._local: Lanes | None = None
        self._answers: list[deque[list[tuple[int, str]]]] = [deque() for _ in sizes]
        self._kind, self._extra = kind, tuple(extra)
        if workers == 0:
            self.arrays = Arrays(self.layout, ends[-1], extra=extra)
            self.arrays.wanted[:] = ANY_LEVEL
            owner = {i: simulators[which] for i, which in enumerate(self._simulator_of)}
            self._local = kind(self.layout, self.arrays, owner)
            return
        self._start(workers, ends[-1])

    def _start(self, workers: int, lanes: int) -> None:
        refuse_in_a_worker()
        size = Arrays(self.layout, lanes, extra=self._extra).size
        if hasattr(os, "memfd_create"):
            self._memory = os.memfd_create("save_rl")
        else:
            with tempfile.TemporaryFile() as file:
                self._memory = os.dup(file.fileno())
        # The memory has no name, so it is freed when the last process exits.
        os.ftruncate(self._memory, size)
        self._ranges = [
            [
                Group(int(cuts[w]), int(cuts[w + 1]))
                for group in self.groups
                for cuts in [np.linspace(group.low, group.high, workers + 1).astype(int)]
            ]
            for w in range(workers)
        ]
        self.arrays = Arrays(self.layout, lanes, mmap.mmap(self._memory, size), self._extra)
        self.arrays.wanted[:] = ANY_LEVEL
        try:
            for w in range(workers):
                self._workers.append(self._hire(w))
            for worker in self._workers:
                self._welcome(worker)
        except BaseException:
            self.close()
            raise

    def _hire(self, number: int) -> WorkerProcess:
        assert self._memory is not None
        task = {
            **self.layout._asdict(), "ranges": self._ranges[number], "sources": self._sources,
            "simulator_of": self._simulator_of.tolist(), "extra": self._extra, "number": number,
            "kind": f"{self._kind.__module__}:{self._kind.__qualname__}",
        }  # fmt: skip
        lanes = np.concatenate([np.arange(*group) for group in self._ranges[number]])
        return WorkerProcess(self._memory, task, lambda: int(self.arrays.calls[lanes].sum()))

    def _welcome(self, worker: WorkerProcess) -> None:
        """Wait until a new worker has made its simulators, and listen to it."""
        said = worker.answer(max(self._timeout, _START_LIMIT) if self._timeout else 0.0)
        if said is None or said:
            why = worker.last_words() if said is None else said[0][1]
            raise RunError(f"ENV: a worker process could not make the simulator.\n{why}")
        self._replies.add(worker)

    @property
    def workers(self) -> int:
        return len(self._workers)

    def send(self, request: Request) -> None:
        """Send the requests of a group; see `Lanes.run`."""
        group = request.group
        self._commands[group].append(request.command)
        low, high = self.groups[group]
        if request.command != RESET:
            self.arrays.action[low:high][self.lost[low:high]] = -1
        if self._local is not None:
            with WATCHDOG.counting(lambda: int(self.arrays.calls.sum())):
                self._answers[group].append(self._local.run(request, low, high))
            return
        packed = request.pack()
        for number, worker in enumerate(self._workers):
            try:
                worker.ask(packed, group)
            except BrokenPipeError:
                self._replace(number)

    def receive(self, group: int) -> None:
        """Wait for replies to the oldest request of a group; mark lanes that failed in `lost`."""
        command = self._commands[group].popleft()
        faults = []
        if self._local is not None:
            faults = self._answers[group].popleft()
        for number, worker in enumerate(self._workers):
            if worker.was_asked(group):  # else it was replaced in the meantime
                said = worker.answer(self._timeout, group)
                if said is None:
                    self._replace(number)
                else:
                    faults += said
        self.lost[[lane for lane, _ in faults]] = True
        if command == ADVANCE:
            low, high = self.groups[group]
            asked = (self.arrays.action[low:high] >= 0) & ~self.lost[low:high]
            ended = self.arrays.terminated[low:high] | self.arrays.truncated[low:high]
            if np.any(asked & ended):
                self._in_a_row = 0
        for which in sorted({int(self._simulator_of[lane]) for lane, _ in faults}):
            of_it = [(lane, why) for lane, why in faults if self._simulator_of[lane] == which]
            self.faults[which] += len(of_it)
            self._fault([lane for lane, _ in of_it], of_it[-1][1])

    def answered(self, groups: Sequence[int], wait: float = 0.0) -> int | None:
        """Return the first of these groups, which have requests, that `receive` need not wait for;
        None if there is none within `wait` seconds."""
        end = time.monotonic() + wait
        while True:
            while self._replies.read(0.0):
                pass
            for group in groups:
                if all(worker.has_answered(group) for worker in self._workers):
                    return group
            if not self._replies.read(end - time.monotonic()):
                return None

    def _replace(self, number: int) -> None:
        """Replace a worker that died or hangs."""
        worker = self._workers[number]
        why = worker.last_words()
        self._replies.remove(worker)
        worker.stop(0.0)
        lanes = [i for low, high in self._ranges[number] for i in range(low, high)]
        self.faults[np.unique(self._simulator_of[lanes])] += 1
        self._fault(lanes, why)
        self._workers[number] = self._hire(number)
        self._welcome(self._workers[number])

    def _fault(self, lanes: list[int], why: str) -> None:
        """Mark lanes that failed together, and warn; raise RunError after too many faults."""
        self.lost[lanes] = True
        self.last_fault = why.rstrip()
        self._in_a_row += 1
        if self._in_a_row >= _FAULTS_IN_A_ROW:
            raise RunError(
                f"ENV: the simulator failed {self._in_a_row} times without finishing an episode; "
                f"the last time with:\n{why.rstrip()}"
            )
        if self._warn is not None:
            lines = [line.strip() for line in why.splitlines() if line.strip()]
            reason = lines[0] if lines[0].startswith("A worker") else lines[-1]
            episodes = "an episode is" if len(lanes) == 1 else f"{len(lanes)} episodes are"
            name = f" '{self._sources[0].env}'" if self._sources else ""
            self._warn(f"the simulator{name} failed ({reason.rstrip('.')}); {episodes} restarted.")

    def ask(self, group: int, command: int) -> None:
        """`send` and `receive`."""
        self.send(Request(command, group))
        self.receive(group)

    def reset(
        self, group: int, lanes: np.ndarray, seeds: np.ndarray, wanted: Any = ANY_LEVEL,
        wait: bool = True,
    ) -> None:  # fmt: skip
        """Start episodes in some lanes of a group; `wanted` is a level, see `Arrays`.

        Without `wait`, the caller must call `receive`.
        """
        low, high = self.groups[group]
        self.arrays.action[low:high] = -1
        self.arrays.action[lanes] = 0
        self.arrays.seed[lanes] = seeds
        self.arrays.wanted[lanes] = wanted
        self.lost[lanes] = False
        self.send(Request(RESET, group))
        if wait:
            self.receive(group)

    def save(self, group: int) -> np.ndarray:
        """Return the states of a group's lanes, `[lanes of the group, bytes]`; zeros where lost."""
        low, high = self.groups[group]
        self.arrays.action[low:high], self.arrays.saved[low:high] = 0, 0
        self.ask(group, SAVE)
        return self.arrays.saved[low:high].copy()

    def load(self, group: int, saved: np.ndarray) -> None:
        """Restore the states that `save` returned."""
        low, high = self.groups[group]
        self.arrays.action[low:high], self.arrays.saved[low:high] = 0, saved
        self.lost[low:high] = saved[:, 0] == 0
        self.ask(group, LOAD)

    def step(
        self, group: int, nodes: np.ndarray, actions: np.ndarray, new: int,
        seeds: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Send steps from nodes, `[lanes of the group]` each."""
        low, high = self.groups[group]
        self.arrays.node[low:high] = nodes
        self.arrays.action[low:high] = actions
        if seeds is not None:
            self.arrays.seed[low:high] = seeds
        self.send(Request(STEP, group, new))

    def advance(self, group: int, actions: np.ndarray, luck: np.ndarray | None = None) -> None:
        """Send real steps `[lanes of the group]`; -1 leaves a lane where it is.

        luck: their seeds, which simulators with chance need.
        """
        low, high = self.groups[group]
        self.arrays.action[low:high] = actions
        if self.layout.stochastic:
            assert luck is not None, "a step with chance needs a seed"
            self.arrays.seed[low:high] = luck
        self.send(Request(ADVANCE, group))

    @property
    def local(self) -> Any:
        """The `Lanes` of this process, which carry out requests; None with worker processes."""
        return self._local

    def place(self, lane: int, state: State) -> None:
        """Start a lane at a state; needs `workers=0`: states live in the workers."""
        assert self._local is not None
        self._local.place(lane, state)

    def observation(self, lanes: np.ndarray) -> Any:
        """Return a copy of the observations of lanes, `[n, ...]`: an array or a dictionary."""
        arrays = self.arrays.observation
        return self.layout.observation_of({name: x[lanes] for name, x in arrays.items()})

    def close(self) -> None:
        """End all workers."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.dismiss()
        end = time.monotonic() + GRACE
        for worker in workers:
            worker.stop(max(0.0, end - time.monotonic()))
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
