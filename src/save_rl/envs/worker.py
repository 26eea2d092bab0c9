"""Simulators, their states, and the worker process that holds them.

States never leave the process that made them. A lane's states are numbered like the nodes of its
search tree: 0 is the current state of the episode, the others are the states that the search has
reached from it. Requests and observations are in arrays that both sides share (`Arrays`). `Lanes`
carries out a request for a range of lanes; `main` does so in a worker process. What else a worker
can do is in classes derived from `Lanes`, such as `search.tree_lanes`.

A worker imports no JAX and uses one thread. It ends when its parent does.
"""

import contextlib
import faulthandler
import importlib
import json
import mmap
import os
import signal
import struct
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.layout import ALONE, Arrays, Layout, allowed_actions, is_beyond
from save_rl.errors import InputError
from save_rl.processes import die_with
from save_rl.types import Simulator, State

RESET, STEP, ADVANCE, SAVE, LOAD = 0, 1, 2, 3, 4
REWARD = "step returned a reward"  # what `nonsense` says of one
REPLY = struct.Struct("<ii")  # group, bytes of JSON that follow: faults as [[lane, text], ...]
MADE, COMPILED = -1, -2  # the first words of a new worker, in place of a group
_REQUEST = struct.Struct("<iiidiiiid")
ANY_LEVEL = -1  # requests an episode of the level that the simulator draws
_FLOAT32 = np.finfo(np.float32)


def exactly(level: int) -> int:
    """Return the request for an episode of exactly this level; `level` requests one up to it."""
    return ANY_LEVEL - 1 - level


class Request(NamedTuple):
    """A request for the lanes of a group; what else it needs is in `Arrays`.

    new: node number of the states that STEP makes. The others are of a search; rollout: whether
    random rollouts evaluate its states.
    """

    command: int
    group: int
    new: int = 0
    discount: float = 1.0
    rollout: int = 0
    budget: int = 0
    rule: int = 0
    space: int = 0
    c: float = 0.0

    def pack(self) -> bytes:
        return _REQUEST.pack(*self)


class Lanes:
    """Carries out requests for lanes of this process.

    simulators: by lane; they may be the same object.
    """

    def __init__(self, layout: Layout, arrays: Arrays, simulators: dict[int, Simulator]):
        self._layout, self._arrays = layout, arrays
        self._simulators: dict[int, Any] = dict(simulators)
        self._states: dict[int, dict[int, State]] = {lane: {} for lane in simulators}
        self._tried: dict[int, dict[int, Any]] = {lane: {} for lane in simulators}
        self._says_solved = all(hasattr(s, "solved") for s in simulators.values())
        self._current = Window(layout, arrays.observation, arrays.mask)
        self._calls = arrays.calls.data  # faster than the array, number by number

    def compile_ahead(self) -> list[Callable[[], None]]:
        """Return functions that compile kernels before they are needed; each compiles others.

        A simulator may have kernels of its own and a method `compile_ahead`.
        """
        methods = (getattr(x, "compile_ahead", None) for x in self._simulators.values())
        return [method for method in methods if method is not None][:1]

    def place(self, lane: int, state: State) -> None:
        """Start a lane at a state."""
        self._states[lane], self._tried[lane] = {0: state}, {}
        self._show(lane, state)

    def run(self, request: Request, low: int, high: int) -> list[tuple[int, str]]:
        """Carry out the requests of lanes `low` to `high`; return the lanes that failed, and why.

        A lane whose action is negative requests nothing.
        """
        work = {
            RESET: self._reset, STEP: self._step, ADVANCE: self._advance, SAVE: self._save,
            LOAD: self._load,
        }[request.command]  # fmt: skip
        faults: list[tuple[int, str]] = []
        done: list[tuple[int, float, bool, bool]] = []
        nodes = self._arrays.node[low:high].tolist()
        actions = self._arrays.action[low:high].tolist()
        for lane, node, action in zip(range(low, high), nodes, actions, strict=True):
            if action >= 0:
                self._calls[lane] += 1
                try:
                    reward, terminated, truncated = work(lane, node, action, request)
                    done.append((lane, float(reward), bool(terminated), bool(truncated)))
                except (Exception, SystemExit):
                    faults.append((lane, traceback.format_exc()))
        if done:
            lanes, rewards, terminated, truncated = map(list, zip(*done, strict=True))
            at = slice(low, high) if len(done) == high - low else lanes
            self._arrays.reward[at] = rewards
            self._arrays.terminated[at] = terminated
            self._arrays.truncated[at] = truncated
            replies = [(REWARD, self._arrays.reward), *self._current.named()]
            faults += [(lanes[i], why) for i, why in nonsense(replies, at)]
        return faults

    def _reset(self, lane: int, node: int, action: int, request: Request) -> Any:
        simulator, wanted = self._simulators[lane], int(self._arrays.wanted[lane])
        options = {}
        if wanted != ANY_LEVEL:
            level = wanted if wanted > ANY_LEVEL else exactly(wanted)
            options = {"difficulty": level, "curriculum_sample": wanted > ANY_LEVEL}
        self.place(lane, simulator.reset(int(self._arrays.seed[lane]), **options))
        if hasattr(simulator, "kind"):
            state = self._states[lane][0]
            self._arrays.level[lane], self._arrays.kind[lane] = simulator.kind(state)
        return 0.0, False, False

    def _save(self, lane: int, node: int, action: int, request: Request) -> Any:
        self._arrays.saved[lane, 1:] = self._simulators[lane].save_state(self._states[lane][0])
        self._arrays.saved[lane, 0] = 1
        return 0.0, False, False

    def _load(self, lane: int, node: int, action: int, request: Request) -> Any:
        self.place(lane, self._simulators[lane].load_state(self._arrays.saved[lane, 1:].copy()))
        return 0.0, False, False

    def _step(self, lane: int, node: int, action: int, request: Request) -> Any:
        """Make a step from any state of a lane."""
        seed = int(self._arrays.seed[lane])
        state, reward, terminated, truncated = self._try(lane, node, action, request.new, seed)
        if not terminated:
            self._show(lane, state)
        return reward, terminated, truncated

    def _try(self, lane: int, node: int, action: int, new: int, seed: int) -> Any:
        """Make a step for a search from state `node` of a lane to its state `new`."""
        luck = (seed,) if self._layout.stochastic else ()
        result = self._simulators[lane].step(self._states[lane][node], action, *luck)
        state, reward, terminated, truncated = result
        self._states[lane][new] = state
        if node == 0 and not self._layout.stochastic:
            self._tried[lane][action] = result
        return state, reward, terminated, truncated

    def _advance(self, lane: int, node: int, action: int, request: Request) -> Any:
        """Make a real step; reuse the result if the search has made the same step.

        With chance it has its own seed, which no search knows.
        """
        result = self._tried[lane].get(action)
        if result is None:
            luck = (int(self._arrays.seed[lane]),) if self._layout.stochastic else ()
            result = self._simulators[lane].step(self._states[lane][0], action, *luck)
        state, reward, terminated, truncated = result
        self._states[lane], self._tried[lane] = {0: state}, {}
        if self._says_solved:
            self._arrays.solved[lane] = self._simulators[lane].solved(state)
        self._show(lane, state, not terminated)
        return reward, terminated, truncated

    def _show(self, lane: int, state: State, mask: bool = True) -> None:
        self._current.show(self._simulators[lane], state, lane, mask)


class Window:
    """Rows in which states show themselves: observations and masks `[n, ...]`."""

    def __init__(self, layout: Layout, observation: dict[str, np.ndarray], masks: np.ndarray):
        self._layout, self._masks = layout, masks
        self._observation = [
            (name, observation[name], shape) for name, _, shape in layout.observation
        ]

    def show(self, simulator: Any, state: State, row: int, mask: bool = True) -> None:
        """Write what a state shows; raises ValueError if that is not what the layout says."""
        seen = simulator.observe(state)
        for name, array, shape in self._observation:
            part = np.asarray(seen if name == ALONE else seen[name])
            if part.shape != shape:
                raise ValueError(
                    f"observe returned {name or 'an array'} of shape {part.shape}, and of shape "
                    f"{shape} before."
                )
            if part.dtype == array.dtype:
                array[row] = part
                continue
            if is_beyond(part):
                raise ValueError(f"observe returned {name or 'a number'} beyond 32 bits.")
            with np.errstate(over="ignore"):  # infinite results are faults
                np.copyto(array[row : row + 1], part, casting="same_kind")
        if self._layout.masked and mask:
            self._masks[row] = allowed_actions(simulator, state, self._layout.num_actions)

    def named(self) -> list[tuple[str, np.ndarray]]:
        """Return the observations, each with what to say of numbers in it that make no sense."""
        return [(f"observe returned {name or 'a number'}", x) for name, x, _ in self._observation]

    def pack(self, bits: np.ndarray, rows: Any) -> None:
        """Write the masks of some rows as bits, together: a call costs more than a mask."""
        if self._layout.masked:
            bits[rows] = np.packbits(self._masks[rows], 1)


def nonsense(replies: list[tuple[str, np.ndarray]], rows: Any) -> list[tuple[int, str]]:
    """Return which of some rows have a number that is not finite, by their place among these, and
    what; set it to 0. Rewards arrive in double precision; learning uses single precision.
    """
    found: dict[int, str] = {}
    for what, array in replies:
        if array.dtype.kind != "f":
            continue
        part = array[rows]
        good = np.abs(part) <= _FLOAT32.max
        if good.all():
            continue
        wrong = ~good.reshape(len(part), -1).all(1)
        array[rows] = np.where(wrong.reshape(-1, *[1] * (part.ndim - 1)), 0, part)
        text = f"ValueError: {what} that is not finite in float32.\n"
        found = dict.fromkeys(np.flatnonzero(wrong).tolist(), text) | found
    return sorted(found.items())


def main(requests: int, replies: int, memory: int, crash: int, parent: int, task: str) -> None:
    """Serve requests until the other end of the pipe is closed.

    requests, replies, memory, crash: file descriptors: pipes, shared memory, a file for the
    traceback of a crash. task: JSON, what to simulate.
    """
    die_with(parent)
    for number in (requests, replies, memory, crash):
        os.set_inheritable(number, False)
    os.register_at_fork(after_in_child=partial(_leave, [requests, replies]))
    crash_file = os.fdopen(crash, "w")
    faulthandler.enable(crash_file)
    faulthandler.register(signal.SIGUSR1, crash_file)
    try:
        from save_rl.envs import make, simulator_name

        what = json.loads(task)
        observation = tuple((name, kind, tuple(shape)) for name, kind, shape in what["observation"])
        layout = Layout(
            what["num_actions"], observation, what["masked"], what["stochastic"], what["saved"]
        )
        sources = what["sources"]
        made = [make(simulator_name(env), seed, **options) for env, seed, options in sources]
        ranges = what["ranges"]  # by group: first lane, end
        owners = what["simulator_of"]
        simulators = {i: made[owners[i]] for low, high in ranges for i in range(low, high)}
        module, _, name = what["kind"].partition(":")
        kind = getattr(importlib.import_module(module), name)
        extra = [(name, kind, tuple(shape)) for name, kind, shape in what["extra"]]
        arrays = Arrays(layout, len(owners), mmap.mmap(memory, 0), extra)
        lanes = kind(layout, arrays, simulators)
    except Exception as error:
        own = error.__cause__ if isinstance(error, InputError) and error.__cause__ else error
        _answer(replies, MADE, [(-1, "".join(traceback.format_exception(own)))])
        return
    _answer(replies, MADE, [])
    jobs = lanes.compile_ahead()
    for i in range(len(jobs)):  # others compile others first
        jobs[(i + what["number"]) % len(jobs)]()
    with contextlib.suppress(BrokenPipeError):
        _answer(replies, COMPILED, [])
        while data := os.read(requests, _REQUEST.size):
            request = Request(*_REQUEST.unpack(data))
            _answer(replies, request.group, lanes.run(request, *ranges[request.group]))


def _leave(pipes: list[int]) -> None:
    """Close the pipes of a worker in a process that its simulator has forked, which may outlive it:
    the pipes end with the worker. Processes that this one forks have none left to close."""
    while pipes:
        os.close(pipes.pop())


def _answer(replies: int, group: int, faults: list[tuple[int, str]]) -> None:
    text = json.dumps(faults).encode() if faults else b""
    data = REPLY.pack(group, len(text)) + text
    while data:
        data = data[os.write(replies, data) :]
