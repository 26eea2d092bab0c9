"""Calls a simulator, checks everything it returns, and records findings."""

import itertools
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.chance import MOST_LUCK, is_stochastic
from save_rl.envs.check.messages import (
    Finding,
    Report,
    Seen,
    cause,
    entry,
    kind,
    listed,
    parts,
    shown,
)
from save_rl.envs.watchdog import WATCHDOG
from save_rl.types import State

_LARGE = 1e3  # numbers beyond this are worth a note
_SUBJECTS = (
    "interface", "reset", "step", "observations", "masks", "determinism", "state", "branches",
    "interleaving", "processes", "endings", "seeds", "render", "chance", "saving", "speed",
)  # fmt: skip
_SUBJECT_OF = {
    "observe": "observations", "action_mask": "masks", "save_state": "saving",
    "load_state": "saving",
}  # fmt: skip
_HINTS = {
    3: " Where nothing is ever truncated, the fourth is False.",
    5: " Unlike in Gymnasium, the state comes first and there is no info.",
}


class Wrong(Exception):
    """A fault after which the current check can't continue."""

    def __init__(self, subject: str, text: str):
        super().__init__(text)
        self.subject, self.text = subject, text


def blame(subject: str, text: str, method: str, changed: list[str], advice: str) -> Wrong:
    """Return `Wrong`, with the names of the values that a call of a method changes."""
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    names = f" Changed by {method}: {', '.join(changed[:3])}{more}." if changed else ""
    return Wrong(subject, f"{text}.{names} {advice}")


class Place(NamedTuple):
    """A state of an episode, by its seed and step."""

    seed: int
    step: int

    def __str__(self) -> str:
        step = f"step {self.step}" if self.step else "the start"
        return f"{step} of seed {self.seed}"


def luck_at(place: Place) -> int:
    """Return the seed of the step that leads to a place, in simulators with chance."""
    return (place.seed * 1_000_003 + place.step * 7_919) % MOST_LUCK


class Probe:
    """Holds the simulator, the time limit and the findings.

    handed_out: the objects that the simulator returned to the last `look`, by name.
    """

    def __init__(self, simulator: Any):
        self.simulator = simulator
        self.rng = np.random.default_rng(0)
        self.end, self.cut_short = 0.0, False
        self.times: dict[str, list[float]] = defaultdict(list)
        self.findings: dict[tuple[str, str, str], Finding] = {}
        self.kinds: dict[str, str] = {}
        self.handed_out: dict[str, Any] = {}

    def found(self, subject: str, verdict: str, problem: str, detail: str = "") -> None:
        """Record a finding; only the first occurrence of a problem."""
        finding = Finding(subject, verdict, problem + detail)
        self.findings.setdefault((subject, verdict, problem), finding)

    def wrong(self, wrong: Wrong) -> None:
        self.found(wrong.subject, "wrong", wrong.text)

    def report(self) -> Report:
        wrong = {subject for subject, verdict, _ in self.findings if verdict == "wrong"}
        kept = [f for f in self.findings.values() if f.verdict != "ok" or f.subject not in wrong]
        return Report(sorted(kept, key=lambda finding: _SUBJECTS.index(finding.subject)))

    def has(self, method: str) -> bool:
        return getattr(self.simulator, method, None) is not None

    def in_time(self, items: Iterable[Any], at_least: int = 3) -> Iterator[Any]:
        """Yield items until time is up, but at least this many."""
        for number, item in enumerate(items):
            if number >= at_least and time.monotonic() > self.end:
                self.cut_short = True
                return
            yield item

    def call(self, method: str, place: Place, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            with WATCHDOG:
                result = getattr(self.simulator, method)(*arguments)
        except (Exception, SystemExit) as error:
            subject = _SUBJECT_OF.get(method, method)
            first = {"reset": arguments[0], "load_state": "save_state(state)"}.get(method, "state")
            given = (first, *arguments[1:])
            at = "" if method == "reset" else f", at {place}"
            text = f"{method}({', '.join(map(str, given))}) raised {cause(error)}{at}"
            if method == "step" and self.has("action_mask"):
                subject, text = "masks", f"action_mask allows action {arguments[1]}, but {text}"
            elif method == "step":
                text += f". If action {arguments[1]} is not possible there, say so in "
                text += "action_mask(state)"
            raise Wrong(subject, text) from error
        self.times[method].append(time.perf_counter() - start)
        return result

    def reset(self, seed: int) -> tuple[State, Seen]:
        place = Place(seed, 0)
        state = self.call("reset", place, seed)
        return state, self.look(state, place)

    @property
    def stochastic(self) -> bool:
        return is_stochastic(self.simulator)

    def step(self, state: State, action: int, place: Place, *luck: int) -> tuple[State, Seen]:
        """Make the step that leads to `place`; with chance, with this luck or that of the place."""
        if self.stochastic and not luck:
            luck = (luck_at(place),)
        method = "step"
        result = self.call(method, place, state, action, *luck)
        number = len(result) if isinstance(result, tuple | list) else 0
        if number != 4:
            text = f"{method} must return (state, reward, terminated, truncated), but returned "
            text += f"{number} values" if number else shown(result)
            raise Wrong(method, f"{text}, at {place}.{_HINTS.get(number, '')}")
        after, reward, terminated, truncated = result
        seen = {
            "reward": self._reward(reward, method, place),
            "terminated": self._flag("terminated", terminated, method, place),
            "truncated": self._flag("truncated", truncated, method, place),
        }
        return after, seen | self.look(after, place, bool(seen["terminated"]))

    def look(self, state: State, place: Place, terminated: bool = False) -> Seen:
        """Return the observation of a state and, unless it is terminal, its mask."""
        self.handed_out = named(self.call("observe", place, state))
        seen = {name: self._numbers(name, x, place) for name, x in self.handed_out.items()}
        kinds = {name: kind(array) for name, array in seen.items()}
        self.kinds = self.kinds or kinds
        if kinds != self.kinds:
            text = "observations must always have the same entries, shapes and types"
            detail = f": {listed(kinds)} at {place}, but {listed(self.kinds)} before. Pad them."
            self.found("observations", "wrong", text, detail)
        if self.has("action_mask") and not terminated:
            mask = self.handed_out["action_mask"] = self.call("action_mask", place, state)
            seen["action_mask"] = self._mask(mask, place)
        return seen

    def choose(self, seen: Seen, most: int = 1, without: int = -1) -> list[int]:
        """Return up to `most` random actions that are allowed in a state."""
        allowed = seen.get("action_mask", np.ones(int(self.simulator.num_actions), bool))
        actions = np.setdiff1d(np.flatnonzero(allowed), without)
        return self.rng.choice(actions, min(most, len(actions)), replace=False).tolist()

    def changes(self, state: State, method: str, *arguments: Any) -> list[str]:
        """Return names of what a call changes: parts of a state or simulator, global generators."""
        before = self._everything(state)
        if method == "step" and self.stochastic:
            arguments = (*arguments[:2], 0)
        with suppress(Exception, SystemExit):
            getattr(self.simulator, method)(*arguments)
        after = self._everything(state)
        return [name for name in before | after if before.get(name) != after.get(name)]

    def _everything(self, state: State) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in (("state", state), ("simulator", self.simulator)):
            with suppress(Exception):
                found.update(itertools.islice(parts(name, value), 10_000))
        found["the global generator of np.random"] = repr(np.random.get_state(legacy=False))  # noqa: NPY002
        found["the global generator of random"] = random.getstate()
        return found

    def _reward(self, value: Any, method: str, place: Place) -> np.ndarray:
        reward = array_of(value)
        if reward is None or reward.shape or reward.dtype.kind not in "biuf":
            text = f"{method} must give one number as the reward, but gave {shown(value)}"
            raise Wrong(method, f"{text}, at {place}. Return float(reward).")
        if not np.isfinite(reward):
            text = f"{method} gave a reward that is not finite"
            self.found(method, "wrong", text, f": {reward}, at {place}. No value can be learnt.")
        return reward

    def _flag(self, name: str, value: Any, method: str, place: Place) -> np.ndarray:
        flag = array_of(value)
        if flag is None or flag.shape or flag.dtype.kind not in "biu" or int(flag) not in (0, 1):
            text = f"{name} must be True or False, but {method} gave {shown(value)}, at {place}"
            raise Wrong(method, f"{text}. The order is (state, reward, terminated, truncated).")
        if flag.dtype.kind != "b":
            self.found(method, "note", f"{name} is a number", f", {flag}: return bool({name}).")
        return flag.astype(bool)

    def _numbers(self, name: str, value: Any, place: Place) -> np.ndarray:
        array = array_of(value)
        if array is None or array.dtype.kind not in "biuf":
            text = "observe must give an array of numbers, or a dict of such arrays"
            raise Wrong("observations", f"{text}, but {name} is {shown(value)}, at {place}.")
        size = np.abs(array.astype(float))
        highest = size.max(initial=0.0)
        if not np.isfinite(highest):
            index = np.argwhere(~np.isfinite(size))[0].tolist()
            text = f": {entry(name, index)} is {array[tuple(index)]}, at {place}."
            self.found("observations", "wrong", "observe gave a number that is not finite", text)
        elif highest > np.finfo(np.float32).max:
            text = f": {name} has {highest:.3g}, at {place}. Networks use float32: scale it."
            self.found("observations", "wrong", "float32 can't hold some numbers", text)
        elif highest > _LARGE:
            text = f": {name} has {highest:.5g}, at {place}; scale it to about 1 for the network."
            self.found("observations", "note", "some numbers are large", text)
        return array

    def _mask(self, value: Any, place: Place) -> np.ndarray:
        mask, size = array_of(value), int(self.simulator.num_actions)
        if mask is None or mask.shape != (size,) or mask.dtype.kind not in "biu":
            text = f"action_mask must give {size} truth values, one for every action"
            raise Wrong("masks", f"{text}, but gave {shown(value)}, at {place}.")
        if mask.dtype.kind != "b":
            text = f": {mask.dtype}. Return mask.astype(bool)."
            self.found("masks", "wrong", "action_mask must give truth values, not numbers", text)
        if not mask.any():
            text = "action_mask allows nothing in a state that has not terminated"
            hint = "Report terminated there, or allow an action that does nothing."
            self.found("masks", "wrong", text, f": {place}. {hint}")
        return mask.astype(bool)


def named(observation: Any) -> dict[str, Any]:
    """Return the entries of an observation, nested ones too, by their names in findings."""

    def entries(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            return {name: value}
        inside = [entries(f"{name}[{key!r}]", one) for key, one in value.items()]
        return {key: one for part in inside for key, one in part.items()}

    return entries("observation", observation)


def array_of(value: Any) -> np.ndarray | None:
    """Return a copy as an array; None if that is impossible."""
    try:
        return np.array(value)
    except Exception:
        return None
