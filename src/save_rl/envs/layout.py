"""The layout of a simulator's data, and the arrays in which lanes exchange it with their users.

Requests and replies of all lanes are in one block of memory (`Arrays`), which a pool shares with
its worker processes.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.chance import is_stochastic
from save_rl.errors import InputError, require
from save_rl.types import Simulator, State

MOST_ACTIONS = 10**7
ALONE = ""  # name of an observation that is a single array
_INT32 = np.iinfo(np.int32)

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
        shown = simulator.observe(state)
        seen = named(shown)
        if not seen:
            raise InputError("ENV: observe returned a dictionary without entries.")
        for name in shown if isinstance(shown, dict) else ():
            if not isinstance(name, str) or name == ALONE:
                raise InputError(
                    f"ENV: observe returned a dictionary with the key {name!r}; keys must be text."
                )
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

    @classmethod
    def of_all(cls, simulators: Sequence[Simulator]) -> "Layout":
        """Return the layout of the simulators of several seeds; refuse two that differ in it."""
        first = cls.of(simulators[0])
        others = {id(one): one for one in simulators if one is not simulators[0]}
        for layout in map(cls.of, others.values()):
            for name, one, other in zip(cls._fields, first, layout, strict=True):
                if one != other:
                    raise InputError(
                        f"ENV: its simulators of two seeds differ: {name} is {one} and {other}; "
                        "seeds that train together share the shapes of a network."
                    )
        return first

    def example(self) -> Any:
        """Return an observation of zeros."""
        return self.observation_of(
            {name: np.zeros(shape, kind) for name, kind, shape in self.observation}
        )

    def observation_of(self, arrays: dict[str, np.ndarray]) -> Any:
        """Return an observation as the simulator does: a single array or a dictionary."""
        return arrays[ALONE] if set(arrays) == {ALONE} else arrays


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
    if not finite or is_beyond(x):
        raise InputError(f"ENV: {what} with a number that 32 bits can't hold; scale it.")


def is_beyond(x: np.ndarray) -> bool:
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
    return {ALONE: np.asarray(observation)}


def _plain(x: np.ndarray) -> np.dtype:
    """Return the type in which an observation is sent: single precision, 32-bit integers."""
    return np.dtype({"f": np.float32, "i": np.int32, "u": np.int32}.get(
        x.dtype.kind if x.dtype.itemsize > 2 else "", x.dtype
    ))  # fmt: skip


class Arrays:
    """Requests and replies of all lanes, in one block of memory.

    node, action, seed: a request for a step from a node, the seed for chance; action -1 requests
    nothing. calls: steps and resets that a lane has made so far, which shows that its process does
    not hang. wanted: the level of a new episode, see `exactly`. reward, terminated, truncated,
    observation, mask: the reply. level, kind, solved: the kind of episode and whether its
    task is solved, for simulators that report it. saved: states as bytes, to save or to load.
    `arrays["name"]` is one of the further fields `extra`.
    """

    def __init__(self, layout: Layout, lanes: int, memory: Any = None, extra: Sequence[Field] = ()):
        fields = [
            ("calls", "<i8", ()),
            ("node", "<i4", ()), ("action", "<i4", ()), ("seed", "<u8", ()), ("wanted", "<i4", ()),
            ("level", "<i4", ()), ("kind", "<i8", ()), ("reward", "<f8", ()),
            ("terminated", "|b1", ()), ("truncated", "|b1", ()), ("solved", "|b1", ()),
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
        self.calls = self._by_name["calls"]
        self.node, self.action, self.seed = (self._by_name[n] for n in ("node", "action", "seed"))
        self.wanted, self.level, self.kind = (self._by_name[n] for n in ("wanted", "level", "kind"))
        self.reward, self.terminated = self._by_name["reward"], self._by_name["terminated"]
        self.truncated, self.solved = self._by_name["truncated"], self._by_name["solved"]
        self.mask, self.saved = self._by_name["mask"], self._by_name["saved"]
        self.observation = {name: self._by_name[f"see {name}"] for name, _, _ in layout.observation}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._by_name[name]
