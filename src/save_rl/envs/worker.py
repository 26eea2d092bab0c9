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
import math
import mmap
import os
import signal
import struct
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.chance import MOST_LUCK, is_stochastic
from save_rl.errors import InputError, require
from save_rl.processes import die_with
from save_rl.types import Simulator, State

RESET, STEP, ADVANCE, SAVE, LOAD = 0, 1, 2, 3, 4
REPLY = struct.Struct("<ii")  # group, bytes of JSON that follow: faults as [[lane, text], ...]
_REQUEST = struct.Struct("<iiidiiiid")
ANY_LEVEL = -1  # requests an episode of the level that the simulator draws
ROLLOUT_LIMIT = 1000  # steps of a random rollout in an environment that never ends
MOST_ACTIONS = 10**7
_INT32, _FLOAT32 = np.iinfo(np.int32), np.finfo(np.float32)
_ALONE = ""  # name of an observation that is a single array


def exactly(level: int) -> int:
    """Return the request for an episode of exactly this level; `level` requests one up to it."""
    return ANY_LEVEL - 1 - level


class Request(NamedTuple):
    """A request for the lanes of a group; what else it needs is in `Arrays`.

    new: node number of the states that STEP makes. discount, rollout: STEP also returns the
    discounted return of a random rollout. budget, rule, space, c: of a search.
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


Field = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape per lane of an array."""


class Layout(NamedTuple):
    """The layout of a simulator's data: names, types and shapes of its observations, and masks.

    `masked`: there is an `action_mask`. `stochastic`: `step` takes a seed, see `envs.chance`.
    `saved`: with a `save_state`, its number of bytes, plus one that is 1 where there is a state;
    else 0.
    """

    num_actions: int
    observation: tuple[tuple[str, str, tuple[int, ...]], ...]
    masked: bool
    stochastic: bool
    saved: int = 0

    @classmethod
    def of(cls, simulator: Simulator) -> "Layout":
        """Return the layout of a simulator; refuse observations that no agent can learn from."""
        actions = number_of_actions(simulator)
        state, save = simulator.reset(0), getattr(simulator, "save_state", None)
        seen = named(simulator.observe(state))
        if not seen:
            raise InputError("ENV: observe returned a dictionary without entries.")
        for name, x in seen.items():
            _check_numbers(f"observe returned {name or 'an array'}", x)
        layout = cls(
            actions,
            tuple((name, _plain(x).str, x.shape) for name, x in seen.items()),
            hasattr(simulator, "action_mask"),
            is_stochastic(simulator),
            1 + len(_bytes(save(state))) if save else 0,
        )
        try:
            if layout.masked:
                allowed_actions(simulator, state, actions)
        except ValueError as error:
            raise InputError(f"ENV: {error}") from error
        return layout

    def example(self) -> Any:
        """Return an observation of zeros."""
        return self.observation_of(
            {name: np.zeros(shape, kind) for name, kind, shape in self.observation}
        )

    def observation_of(self, arrays: dict[str, np.ndarray]) -> Any:
        """Return an observation as the simulator does: a single array or a dictionary."""
        return arrays[_ALONE] if set(arrays) == {_ALONE} else arrays


def number_of_actions(simulator: Any) -> int:
    """Return `num_actions`; refuse a value that is not a sensible number of actions."""
    number = simulator.num_actions
    whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    require(
        whole and 1 <= int(number) <= MOST_ACTIONS, "ENV", f"num_actions of {str(number)[:40]}",
        f"a whole number between 1 and {MOST_ACTIONS}",
    )  # fmt: skip
    return int(number)


def allowed_actions(simulator: Any, state: State, actions: int) -> np.ndarray:
    """Return the mask of a non-terminal state, `[A]`; raises ValueError for an invalid mask."""
    mask = np.asarray(simulator.action_mask(state))
    if mask.shape != (actions,):
        raise ValueError(f"action_mask returned shape {mask.shape}, not ({actions},).")
    if mask.dtype.kind not in "biu":
        raise ValueError(f"action_mask returned {mask.dtype}, not truth values.")
    if not mask.any():
        raise ValueError("action_mask allows nothing in a state that is not terminal.")
    return mask


def _check_numbers(what: str, x: np.ndarray) -> None:
    """Refuse an entry of an observation that does not fit into 32-bit numbers."""
    if x.dtype.kind not in "biuf":
        raise InputError(f"ENV: {what} of type {x.dtype}; it must be an array of numbers.")
    if x.size == 0:
        raise InputError(f"ENV: {what} of shape {x.shape}, with nothing in it.")
    with np.errstate(over="ignore"):
        finite = x.dtype.kind != "f" or np.isfinite(x.astype(_plain(x))).all()
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise InputError(f"ENV: {what} with a number that is not finite.")
    if not finite or _is_beyond(x):
        raise InputError(f"ENV: {what} with a number that 32 bits can't hold; scale it.")


def _is_beyond(x: np.ndarray) -> bool:
    """Test whether an array has integers that do not fit into 32 bits."""
    if x.dtype.kind not in "iu" or x.dtype.itemsize < 4 or x.dtype == np.int32:
        return False
    return bool(x.max() > _INT32.max or x.min() < _INT32.min)


def _bytes(saved: Any) -> np.ndarray:
    if not isinstance(saved, np.ndarray) or saved.dtype != np.uint8 or saved.ndim != 1:
        kind = f"{saved.dtype} {saved.shape}" if isinstance(saved, np.ndarray) else type(saved)
        raise InputError(f"ENV: save_state returned {kind}; it must be an array uint8 [length].")
    return saved


def named(observation: Any) -> dict[str, np.ndarray]:
    """Return an observation as a dictionary of arrays."""
    if isinstance(observation, dict):
        return {str(name): np.asarray(x) for name, x in observation.items()}
    return {_ALONE: np.asarray(observation)}


def _plain(x: np.ndarray) -> np.dtype:
    """Return the type in which an observation is sent: single precision, 32-bit integers."""
    return np.dtype({"f": np.float32, "i": np.int32, "u": np.int32}.get(
        x.dtype.kind if x.dtype.itemsize > 2 else "", x.dtype
    ))  # fmt: skip


class Arrays:
    """Requests and replies of all lanes, in one block of memory.

    node, action, seed: a request for a step from a node, the seed for chance; action -1 requests
    nothing. wanted: the
    level of a new episode, see `exactly`. reward, terminated, truncated, value, observation, mask:
    the reply. level, kind, solved: the kind of episode and whether its task is solved, for
    simulators that report it. saved: states as bytes, to save or to load. `arrays["name"]` is one
    of the further fields `extra`.
    """

    def __init__(self, layout: Layout, lanes: int, memory: Any = None, extra: Sequence[Field] = ()):
        fields = [
            ("node", "<i4", ()), ("action", "<i4", ()), ("seed", "<u8", ()), ("wanted", "<i4", ()),
            ("level", "<i4", ()), ("kind", "<i8", ()), ("reward", "<f8", ()),
            ("value", "<f8", ()), ("terminated", "|b1", ()), ("truncated", "|b1", ()),
            ("solved", "|b1", ()),
            ("mask", "|b1", (layout.num_actions if layout.masked else 0,)),
            ("saved", "|u1", (layout.saved,)),
            *((f"see {name}", kind, shape) for name, kind, shape in layout.observation),
            *extra,
        ]  # fmt: skip
        ends, self.size = [], 0
        for _, kind, shape in fields:
            ends.append(self.size)
            size = np.dtype(kind).itemsize * math.prod(shape) * lanes
            self.size += -(-size // 64) * 64
        if memory is None:
            memory = np.zeros(self.size, np.uint8)
        self._by_name = {
            name: np.ndarray((lanes, *shape), kind, memory, start)
            for (name, kind, shape), start in zip(fields, ends, strict=True)
        }
        self.node, self.action, self.seed = (self._by_name[n] for n in ("node", "action", "seed"))
        self.wanted, self.level, self.kind = (self._by_name[n] for n in ("wanted", "level", "kind"))
        self.reward, self.value = self._by_name["reward"], self._by_name["value"]
        self.terminated = self._by_name["terminated"]
        self.truncated, self.solved = self._by_name["truncated"], self._by_name["solved"]
        self.mask, self.saved = self._by_name["mask"], self._by_name["saved"]
        self.observation = {name: self._by_name[f"see {name}"] for name, _, _ in layout.observation}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._by_name[name]


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
        self._observation = [
            (name, arrays.observation[name], shape) for name, _, shape in layout.observation
        ]

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
            self._find_nonsense(lanes, faults)
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
        """Make a step for the search."""
        simulator, states = self._simulators[lane], self._states[lane]
        if self._layout.stochastic:
            result = simulator.step(states[node], action, int(self._arrays.seed[lane]))
        else:
            result = simulator.step(states[node], action)
            if node == 0:
                self._tried[lane][action] = result
        state, reward, terminated, truncated = result
        states[request.new] = state
        if not terminated:
            self._show(lane, state)
            if request.rollout:
                rng = np.random.default_rng((int(self._arrays.seed[lane]), 1))  # not the step's
                value = rollout(simulator, state, truncated, request.discount, rng)
                if not abs(value) <= _FLOAT32.max:
                    raise ValueError("step returned a reward that is not finite in a rollout.")
                self._arrays.value[lane] = value
        return reward, terminated, truncated

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
        simulator = self._simulators[lane]
        seen = simulator.observe(state)
        for name, array, shape in self._observation:
            part = np.asarray(seen if name == _ALONE else seen[name])
            if part.shape != shape:
                raise ValueError(
                    f"observe returned {name or 'an array'} of shape {part.shape}, and of shape "
                    f"{shape} before."
                )
            if part.dtype == array.dtype:
                array[lane] = part
                continue
            if _is_beyond(part):
                raise ValueError(f"observe returned {name or 'a number'} beyond 32 bits.")
            with np.errstate(over="ignore"):  # infinite results are faults
                np.copyto(array[lane : lane + 1], part, casting="same_kind")
        if self._layout.masked and mask:
            self._arrays.mask[lane] = allowed_actions(simulator, state, self._layout.num_actions)

    def _find_nonsense(self, lanes: list[int], faults: list[tuple[int, str]]) -> None:
        """Add the lanes with a number in their reply that is not finite."""
        low, high = lanes[0], lanes[-1] + 1
        seen = [(f"observe returned {name or 'a number'}", x) for name, x, _ in self._observation]
        for what, array in [("step returned a reward", self._arrays.reward), *seen]:
            part = array[low:high]
            # Rewards arrive in double precision; learning uses single precision.
            if part.dtype.kind == "f" and not (np.abs(part) <= _FLOAT32.max).all():
                wrong = ~(np.abs(part.reshape(high - low, -1)) <= _FLOAT32.max).all(1)
                part[wrong] = 0
                failed = set(lanes) - {lane for lane, _ in faults}
                failed &= set((low + np.flatnonzero(wrong)).tolist())
                text = f"ValueError: {what} that is not finite in float32.\n"
                faults += [(lane, text) for lane in sorted(failed)]


def rollout(
    simulator: Any, state: State, over: bool, discount: float, rng: np.random.Generator
) -> float:
    """Return the discounted return of random actions from a state to the end of its episode."""
    total, weight, mask = 0.0, 1.0, getattr(simulator, "action_mask", None)
    stochastic = is_stochastic(simulator)
    for _ in range(ROLLOUT_LIMIT):
        if over:
            break
        if mask is None:
            action = int(rng.integers(simulator.num_actions))
        else:
            action = int(rng.choice(np.flatnonzero(mask(state))))
        luck = (int(rng.integers(MOST_LUCK)),) if stochastic else ()
        state, reward, terminated, truncated = simulator.step(state, action, *luck)
        total += weight * reward
        weight *= discount
        over = terminated or truncated
    return total


def main(requests: int, replies: int, memory: int, crash: int, parent: int, task: str) -> None:
    """Serve requests until the other end of the pipe is closed.

    requests, replies, memory, crash: file descriptors: pipes, shared memory, a file for the
    traceback of a crash. task: JSON, what to simulate.
    """
    die_with(parent)
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
        _answer(replies, -1, [(-1, "".join(traceback.format_exception(own)))])
        return
    _answer(replies, -1, [])
    jobs = lanes.compile_ahead()
    for i in range(len(jobs)):  # others compile others first
        jobs[(i + what["number"]) % len(jobs)]()
    with contextlib.suppress(BrokenPipeError):
        while data := os.read(requests, _REQUEST.size):
            request = Request(*_REQUEST.unpack(data))
            _answer(replies, request.group, lanes.run(request, *ranges[request.group]))


def _answer(replies: int, group: int, faults: list[tuple[int, str]]) -> None:
    text = json.dumps(faults).encode() if faults else b""
    data = REPLY.pack(group, len(text)) + text
    while data:
        data = data[os.write(replies, data) :]
