"""Whether a simulator keeps its promises, in words that its author can act on.

A simulator is a pure function of its state. `check` plays random episodes and plays them again: as
they were, with side steps everywhere, from states long past, and in turns with one another. Each
time they have to come out the same.
"""

import itertools
import os
import random
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from save_rl.errors import require
from save_rl.types import State

if TYPE_CHECKING:
    from rich.console import Console

_EPISODES = 16  # for every one asked for, at most, where episodes are short
_KEPT = 50  # states of an episode that are kept, to be stepped from again much later
_TRIED = 32  # actions tried in one state
_SAMPLES = 20  # seeds of sample_step tried in one state
_SHARE = 0.08  # of the time, for the first round; the others cost about eleven times that
_ROOM = 2**28  # bytes of observations that are remembered
_LARGE = 1e3  # numbers beyond this are worth a note
_SUBJECTS = (
    "interface", "reset", "step", "observations", "masks", "determinism", "state", "branches",
    "interleaving", "endings", "seeds", "render", "sample_step", "speed",
)  # fmt: skip
_REQUIRED, _OPTIONAL = ("reset", "step", "observe"), ("action_mask", "render", "sample_step")

# What can be seen of a state, and of the step that led there: arrays by name.
_Seen = dict[str, np.ndarray]


class Finding(NamedTuple):
    """What was found about a subject; the verdict is 'ok', 'note' or 'wrong'."""

    subject: str
    verdict: str
    text: str


class Report(NamedTuple):
    """All that was found, ordered by subject."""

    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; notes are for the author to judge."""
        return not any(finding.verdict == "wrong" for finding in self.findings)

    def print(self, console: "Console") -> None:
        """Print every finding, and what it comes to."""
        from rich.table import Table
        from rich.text import Text

        styles = {"ok": "green", "note": "yellow", "wrong": "bold red"}
        table = Table.grid(padding=(0, 2, 0, 0))
        for subject, verdict, text in self.findings:
            table.add_row(Text(verdict, styles[verdict]), Text(subject), Text(text))
        console.print(table)
        wrong = sum(finding.verdict == "wrong" for finding in self.findings)
        things = {0: "Nothing is", 1: "One thing is"}.get(wrong, f"{wrong} things are")
        style = styles["wrong" if wrong else "ok"]
        console.print(Text(f"{things} wrong with this simulator.", style))


def check(
    simulator: Any, *, seeds: int = 4, steps: int = 200, seed: int = 0, seconds: float = 20.0
) -> Report:
    """Play random episodes of a simulator or a JAX environment, and report what it does wrong.

    seeds: episodes to play; where they are short, more are played.
    steps: of an episode, at most.
    seed: of the first episode and its actions; the next episode has the next seed.
    seconds: about how long this may take; of a slow simulator fewer steps are looked at.
    """
    for name, value in (("seeds", seeds), ("steps", steps)):
        require(value >= 1, name, value, "at least 1")
    require(seed >= 0, "seed", seed, "at least 0")
    require(seconds > 0, "seconds", seconds, "more than 0")
    witness = _Witness(seconds)
    try:
        _interface(witness, simulator, seed)
        _warm_up(witness, seeds, steps, seed)
        episodes = _play_all(witness, seeds, steps, seed)
    except _Wrong as wrong:
        witness.wrong(wrong)
        return witness.report()
    _endings(witness, episodes)
    if _is_pure(witness, episodes):
        for look_at in (_seeds, _all_actions, _samples, _render):
            try:
                look_at(witness, episodes)
            except _Wrong as wrong:
                witness.wrong(wrong)
    _masks(witness)
    _speed(witness, episodes, seconds)
    return witness.report()


class _Wrong(Exception):
    """Something is wrong that what is being looked at can't go on after.

    method: which of the simulator's raised an exception, if one did.
    """

    def __init__(self, subject: str, text: str, method: str = ""):
        super().__init__(text)
        self.subject, self.text, self.method = subject, text, method


class _Place(NamedTuple):
    """A state: so many steps into an episode."""

    seed: int
    step: int

    def __str__(self) -> str:
        step = f"step {self.step}" if self.step else "the start"
        return f"{step} of seed {self.seed}"


class _Episode(NamedTuple):
    """An episode as it was played first; `seen` has one entry more than `actions`.

    states: the first states; the action of the same number was taken there.
    """

    seed: int
    actions: list[int]
    seen: list[_Seen]
    states: list[State]


class _Witness:
    """Calls a simulator, looks at everything that comes back, and takes notes."""

    def __init__(self, seconds: float):
        self.simulator: Any = None
        self.rng = np.random.default_rng(0)
        self.seconds = seconds
        self.end = time.monotonic() + seconds
        self.cut_short = False
        self.findings: dict[tuple[str, str, str], Finding] = {}
        self.kinds: dict[str, str] = {}
        self.room = _ROOM
        self.handed_out: dict[str, Any] = {}
        self.rewards: tuple[float, float] = (np.inf, -np.inf)
        self.allowed: tuple[float, float] = (np.inf, -np.inf)
        self.times: dict[str, list[float]] = {"step": [], "observe": []}

    def found(self, subject: str, verdict: str, problem: str, detail: str = "") -> None:
        """Take a note; of one problem the first occurrence is enough."""
        finding = Finding(subject, verdict, problem + detail)
        self.findings.setdefault((subject, verdict, problem), finding)

    def wrong(self, wrong: _Wrong) -> None:
        self.found(wrong.subject, "wrong", wrong.text)

    def report(self) -> Report:
        wrong = {subject for subject, verdict, _ in self.findings if verdict == "wrong"}
        kept = [f for f in self.findings.values() if f.verdict != "ok" or f.subject not in wrong]
        return Report(sorted(kept, key=lambda finding: _SUBJECTS.index(finding.subject)))

    def has(self, method: str) -> bool:
        return getattr(self.simulator, method, None) is not None

    def in_time(self, items: Iterable[Any], at_least: int = 3) -> Iterator[Any]:
        """The items, until time is up."""
        for number, item in enumerate(items):
            if number >= at_least and time.monotonic() > self.end:
                self.cut_short = True
                return
            yield item

    def call(self, method: str, place: _Place, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            result = getattr(self.simulator, method)(*arguments)
        except Exception as error:
            subject = {"observe": "observations", "action_mask": "masks"}.get(method, method)
            given = arguments if method == "reset" else ("state", *arguments[1:])
            at = "" if method == "reset" else f", at {place}"
            text = f"{method}({', '.join(map(str, given))}) raised {_words(error)}{at}"
            raise _Wrong(subject, text, method) from error
        if method in self.times:
            self.times[method].append(time.perf_counter() - start)
        return result

    def reset(self, seed: int) -> tuple[State, _Seen]:
        place = _Place(seed, 0)
        state = self.call("reset", place, seed)
        return state, self.look(state, place)

    def step(self, state: State, action: int, place: _Place, *sample: int) -> tuple[State, _Seen]:
        """A step that leads to `place`; with a sample's seed a `sample_step`."""
        method = "sample_step" if sample else "step"
        result = self.call(method, place, state, action, *sample)
        if not isinstance(result, tuple | list) or len(result) != 4:
            raise _Wrong(method, _not_four(method, result, place))
        after, reward, terminated, truncated = result
        seen = {
            "reward": self._reward(reward, method, place),
            "terminated": self._flag("terminated", terminated, method, place),
            "truncated": self._flag("truncated", truncated, method, place),
        }
        return after, seen | self.look(after, place, bool(seen["terminated"]))

    def look(self, state: State, place: _Place, terminated: bool = False) -> _Seen:
        """What a state shows; nobody asks for the mask of a state that has terminated."""
        observation = self.call("observe", place, state)
        self.handed_out = {"observation": observation}
        if isinstance(observation, Mapping):
            self.handed_out = {f"observation[{key!r}]": x for key, x in observation.items()}
        seen = {name: self._numbers(name, x, place) for name, x in self.handed_out.items()}
        kinds = {name: _kind(array) for name, array in seen.items()}
        self.kinds = self.kinds or kinds
        if kinds != self.kinds:
            text = "observations must always have the same entries, shapes and types"
            detail = f": {_listed(kinds)} at {place}, but {_listed(self.kinds)} before. Pad them."
            self.found("observations", "wrong", text, detail)
        if self.has("action_mask") and not terminated:
            mask = self.handed_out["action_mask"] = self.call("action_mask", place, state)
            seen["action_mask"] = self._mask(mask, place)
        return seen

    def choose(self, seen: _Seen, most: int = 1, without: int = -1) -> list[int]:
        """Up to so many of the actions that are allowed in a state, at random."""
        allowed = seen.get("action_mask", np.ones(int(self.simulator.num_actions), bool)).copy()
        if without >= 0:
            allowed[without] = False
        actions = np.flatnonzero(allowed)
        return self.rng.choice(actions, min(most, len(actions)), replace=False).tolist()

    def changes(self, state: State, method: str, *arguments: Any) -> list[str]:
        """Names of what a call changes: parts of a state, of the simulator, global generators."""
        before = _snapshot(state, self.simulator)
        with suppress(Exception):
            getattr(self.simulator, method)(*arguments)
        after = _snapshot(state, self.simulator)
        return [name for name in before | after if before.get(name) != after.get(name)]

    def _reward(self, value: Any, method: str, place: _Place) -> np.ndarray:
        reward = _array(value)
        if reward is None or reward.shape or reward.dtype.kind not in "biuf":
            text = f"{method} must give one number as the reward, but gave {_shown(value)}"
            raise _Wrong(method, f"{text}, at {place}. Return float(reward).")
        if not np.isfinite(reward):
            text = f"{method} gave a reward that is not finite"
            self.found(method, "wrong", text, f": {reward}, at {place}. No value can be learnt.")
        self.rewards = min(self.rewards[0], float(reward)), max(self.rewards[1], float(reward))
        return reward

    def _flag(self, name: str, value: Any, method: str, place: _Place) -> np.ndarray:
        flag = _array(value)
        if flag is None or flag.shape or flag.dtype.kind not in "biu" or int(flag) not in (0, 1):
            text = f"{name} must be True or False, but {method} gave {_shown(value)}, at {place}"
            raise _Wrong(method, f"{text}. The order is (state, reward, terminated, truncated).")
        if flag.dtype.kind != "b":
            self.found(method, "note", f"{name} is a number", f", {flag}: return bool({name}).")
        return flag.astype(bool)

    def _numbers(self, name: str, value: Any, place: _Place) -> np.ndarray:
        array = _array(value)
        if array is None or array.dtype.kind not in "biuf":
            text = "observe must give an array of numbers, or a dict of such arrays"
            raise _Wrong("observations", f"{text}, but {name} is {_shown(value)}, at {place}.")
        size = np.abs(array.astype(float))
        highest = size.max(initial=0.0)
        if not np.isfinite(highest):
            index = tuple(np.argwhere(~np.isfinite(size))[0].tolist())
            text = f": {name}{_index(index)} is {array[index]}, at {place}. No network can take it."
            self.found("observations", "wrong", "observe gave a number that is not finite", text)
        elif highest > np.finfo(np.float32).max:
            text = f": {name} has {highest:.3g}, at {place}; it becomes infinite."
            self.found("observations", "note", "float32 can't hold some numbers", text)
        elif highest > _LARGE:
            text = f": {name} has {highest:.5g}, at {place}; scale it, networks like order 1."
            self.found("observations", "note", "some numbers are large", text)
        return array

    def _mask(self, value: Any, place: _Place) -> np.ndarray:
        mask, size = _array(value), int(self.simulator.num_actions)
        if mask is None or mask.shape != (size,) or mask.dtype.kind not in "biu":
            text = f"action_mask must give {size} truth values, one for every action"
            raise _Wrong("masks", f"{text}, but gave {_shown(value)}, at {place}.")
        if mask.dtype.kind != "b":
            text = f": {mask.dtype}. Return mask.astype(bool)."
            self.found("masks", "wrong", "action_mask must give truth values, not numbers", text)
        if not mask.any():
            text = "action_mask allows nothing in a state that has not terminated"
            hint = "Report terminated there, or allow an action that does nothing."
            self.found("masks", "wrong", text, f": {place}. {hint}")
        count = int(np.count_nonzero(mask))
        self.allowed = min(self.allowed[0], count), max(self.allowed[1], count)
        return mask.astype(bool)


def _interface(witness: _Witness, simulator: Any, seed: int) -> None:
    """Look at the names, and hand the simulator to the witness."""
    if isinstance(simulator, type):
        name = simulator.__name__
        raise _Wrong("interface", f"This is the class {name}; check one that is made: {name}().")
    missing = [name for name in ("num_actions", *_REQUIRED) if not hasattr(simulator, name)]
    if missing:
        hint = " It is a function: check what it returns." if callable(simulator) else ""
        text = f"There is no {' and no '.join(missing)} in this {type(simulator).__name__}.{hint}"
        raise _Wrong("interface", text)
    present = [name for name in _OPTIONAL if getattr(simulator, name, None) is not None]
    for name in (*_REQUIRED, *present):
        if not callable(value := getattr(simulator, name)):
            raise _Wrong("interface", f"{name} must be a method, not {_shown(value)}.")
    number = simulator.num_actions
    if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 1:
        hint = " Make it an attribute or a @property." if callable(number) else ""
        text = f"num_actions must be a whole number, at least 1, not {_shown(number)}.{hint}"
        raise _Wrong("interface", text)
    witness.simulator = _for_python(witness, simulator, seed)
    kind = "simulator" if witness.simulator is simulator else "JAX environment"
    text = f"a {kind} of {number} actions, with {', '.join([*_REQUIRED, *present])}"
    absent = [name for name in _OPTIONAL if name not in present]
    without = f", without {', '.join(absent)} (optional)" if absent else ""
    witness.found("interface", "ok", text + without)


class _Jitted:
    """A JAX environment as a simulator for Python programs."""

    def __init__(self, environment: Any):
        import jax

        def numpy(tree: Any) -> Any:
            return jax.tree.map(np.asarray, tree)

        def outcome(result: Any) -> Any:
            return (result[0], *numpy(result[1:])) if isinstance(result, tuple) else result

        def jit(name: str) -> Any:
            method = getattr(environment, name, None)
            return None if method is None else jax.jit(method)

        def key(seed: int) -> Any:
            return jax.random.PRNGKey(seed)

        reset, step, observe = map(jit, _REQUIRED)
        mask, sample = jit("action_mask"), jit("sample_step")
        self.num_actions = int(environment.num_actions)
        self.reset = lambda seed: reset(key(seed))
        self.step = lambda state, action: outcome(step(state, np.int32(action)))
        self.observe = lambda state: numpy(observe(state))
        self.action_mask = mask and (lambda state: numpy(mask(state)))
        self.sample_step = sample and (
            lambda state, action, seed: outcome(sample(state, np.int32(action), key(seed)))
        )
        self.render = getattr(environment, "render", None)


def _for_python(witness: _Witness, simulator: Any, seed: int) -> Any:
    """The simulator itself, or a JAX environment behind `_Jitted`.

    What can be traced is a JAX environment, unless a plain seed gives a state without JAX arrays.
    """
    try:
        state, takes_seeds = simulator.reset(seed), True
    except Exception:
        state, takes_seeds = None, False
    if "jax" not in sys.modules:
        return simulator
    import jax

    if takes_seeds and not any(isinstance(x, jax.Array) for x in jax.tree.leaves(state)):
        return simulator
    try:
        state = jax.eval_shape(simulator.reset, jax.random.PRNGKey(seed))
    except Exception:
        return simulator
    action = jax.ShapeDtypeStruct((), np.int32)
    arguments = {"step": (state, action), "observe": (state,), "action_mask": (state,)}
    shapes = {}
    for name, given in arguments.items():
        if getattr(simulator, name, None) is None:
            continue
        try:
            shapes[name] = jax.eval_shape(getattr(simulator, name), *given)
        except Exception as error:
            if takes_seeds:
                return simulator
            text = f"reset takes a JAX key, but jax.jit can't compile {name}: {_words(error)}."
            hint = f"Write {name} in jax.numpy, or let reset take a whole number."
            raise _Wrong("interface", f"{text} {hint}") from error
    result, before = shapes["step"], jax.tree.map(_kind, state)
    after = jax.tree.map(_kind, result[0]) if isinstance(result, tuple) else before
    if after != before:
        text = "step must keep the structure, shapes and types of the state, or JAX can't loop"
        witness.found("step", "wrong", text, f": it makes {after} of {before}.")
    return _Jitted(simulator)


def _warm_up(witness: _Witness, seeds: int, steps: int, seed: int) -> None:
    """Play a little without counting it: first steps compile, import and read files."""
    deadline = time.monotonic() + witness.seconds * _SHARE
    for number in range(seeds):
        _play(witness, seed + number, min(steps, 10), deadline)
    witness.end = time.monotonic() + witness.seconds
    witness.cut_short, witness.room = False, _ROOM
    for times in witness.times.values():
        times.clear()


def _play_all(witness: _Witness, seeds: int, steps: int, seed: int) -> list[_Episode]:
    """Play the episodes that all others are compared with."""
    episodes, total = [], 0
    deadline = time.monotonic() + witness.seconds * _SHARE
    while len(episodes) < seeds or (total < steps and len(episodes) < _EPISODES * seeds):
        left = max(deadline - time.monotonic(), 0.0)
        if len(episodes) >= seeds and (not left or witness.room < 0):
            witness.cut_short = True
            break
        share = left / max(seeds - len(episodes), 1)
        episodes.append(_play(witness, seed + len(episodes), steps, time.monotonic() + share))
        total += len(episodes[-1].actions)
    if not total:
        raise _Wrong("step", "Not a single step could be made.")
    low, high = witness.rewards
    witness.found("step", "ok", f"{total} steps, with rewards from {low:.4g} to {high:.4g}")
    witness.found("observations", "ok", f"always {_listed(witness.kinds)}")
    shown = [{name: seen[name] for name in witness.kinds if name in seen}
             for episode in episodes for seen in episode.seen]  # fmt: skip
    if not any(_difference(seen, shown[0]) for seen in shown):
        witness.found("observations", "note", "all states look the same: what is there to learn?")
    return episodes


def _play(witness: _Witness, seed: int, steps: int, deadline: float) -> _Episode:
    """Random actions, the same for a seed every time, and nothing else meanwhile."""
    witness.rng = np.random.default_rng([seed, 1])  # not the one a simulator would take
    state, seen = witness.reset(seed)
    episode = _Episode(seed, [], [seen], [])
    while len(episode.actions) < steps and not _over(seen):
        if episode.actions and (time.monotonic() > deadline or witness.room < 0):
            witness.cut_short = True
            break
        allowed = witness.choose(seen)
        if not allowed:
            break
        action, handed_out = allowed[0], witness.handed_out
        try:
            after, seen = witness.step(state, action, _Place(seed, len(episode.actions) + 1))
        except _Wrong as wrong:
            raise _not_taken(witness, episode, action, wrong) from wrong
        _look_for_overwriting(witness, handed_out, state, episode)
        episode.states.extend([state] if len(episode.states) < _KEPT else [])
        episode.actions.append(action)
        episode.seen.append(seen)
        witness.room -= sum(array.nbytes for array in seen.values())
        state = after
    if _over(seen) and not seen["terminated"]:
        _step_on(witness, state, episode)
    return episode


def _over(seen: _Seen) -> bool:
    return any(bool(seen.get(name)) for name in ("terminated", "truncated"))


def _outcome(witness: _Witness, seed: int, actions: list[int]) -> _Seen:
    """What is seen after these actions when nothing else happens."""
    state, seen = witness.reset(seed)
    for number, action in enumerate(actions, 1):
        state, seen = witness.step(state, action, _Place(seed, number))
    return seen


def _not_taken(witness: _Witness, episode: _Episode, action: int, wrong: _Wrong) -> _Wrong:
    """Tell an action that step refuses from a state in which it refuses all."""
    if wrong.method != "step":
        return wrong
    for other in witness.choose(episode.seen[-1], 8, without=action):
        with suppress(_Wrong):
            _outcome(witness, episode.seed, [*episode.actions, other])
            return _refused(witness, action, wrong)
    return _Wrong(
        "step", f"{wrong.text}. Steps must work from every state that has not terminated."
    )


def _refused(witness: _Witness, action: int, wrong: _Wrong) -> _Wrong:
    if wrong.method != "step":
        return wrong
    if witness.has("action_mask"):
        text = (
            f"action_mask allows action {action}, but {wrong.text}. Mask it, or let step take it."
        )
        return _Wrong("masks", text)
    hint = f"If action {action} is not possible there, say so in action_mask(state)."
    return _Wrong("step", f"{wrong.text}. Other actions are taken. {hint}")


def _look_for_overwriting(
    witness: _Witness, handed_out: dict[str, Any], state: State, episode: _Episode
) -> None:
    """Whether arrays that were handed out are written to, though their state is still the same."""
    before, place = episode.seen[-1], _Place(episode.seed, len(episode.actions))
    for name, array in handed_out.items():
        if not isinstance(array, np.ndarray) or _same(
            array.astype(before[name].dtype), before[name]
        ):
            continue
        now = witness.handed_out
        if not _difference(witness.look(state, place), before):
            subject = "masks" if name == "action_mask" else "observations"
            text = f"the array given as {name} at {place} was written to by later calls"
            witness.found(subject, "wrong", "arrays must not change later: ", f"{text}. Copy it.")
        witness.handed_out = now
        return


def _step_on(witness: _Witness, state: State, episode: _Episode) -> None:
    """A few steps past a truncation."""
    seen, number = episode.seen[-1], len(episode.actions)
    for place in (_Place(episode.seed, number + 1 + i) for i in range(3)):
        for action in [] if seen.get("terminated") else witness.choose(seen):
            try:
                state, seen = witness.step(state, action, place)
            except _Wrong as wrong:
                text = "steps after a truncation must work: searches look past time limits. "
                detail = f"{wrong.text}; truncated was True at step {number}. Where nothing can "
                detail += "follow, report terminated."
                witness.found("endings", "wrong", text, detail)
                return


def _is_pure(witness: _Witness, episodes: list[_Episode]) -> bool:
    """Play the episodes again in harder and harder ways, until one comes out differently."""
    try:
        _again(witness, episodes, "the second time")
        witness.found("reset", "ok", "the same seed gave the same start")
        witness.found("determinism", "ok", "the same seed and actions gave the same episode")
        _branches(witness, episodes)
        witness.found("state", "ok", "step left the states it was given as they were")
        witness.found("branches", "ok", "steps from one state did not change what others gave")
        _in_turns(witness, episodes)
        if len(episodes) > 1:
            witness.found("interleaving", "ok", "episodes played in turns came out as if alone")
        _again(witness, episodes[:1], "at the end of this check")
    except _Wrong as wrong:
        witness.wrong(wrong)
        done = {subject for subject, _, _ in witness.findings}
        later = ["determinism", "state", "branches", "interleaving"]
        later += [name for name in ("render", "sample_step") if witness.has(name)]
        for subject in (subject for subject in later if subject not in done):
            witness.found(subject, "note", f"not looked at before '{wrong.subject}' is right")
        return False
    return True


def _replay(witness: _Witness, episode: _Episode) -> Iterator[tuple[_Place, State, str]]:
    """Play an episode again; with every step comes the state before it and what differs."""
    place, before = _Place(episode.seed, 0), None
    try:
        state, seen = witness.reset(episode.seed)
        yield place, before, _difference(seen, episode.seen[0])
        for number, action in enumerate(episode.actions, 1):
            place, before = _Place(episode.seed, number), state
            state, seen = witness.step(state, action, place)
            yield place, before, _difference(seen, episode.seen[number])
    except _Wrong as wrong:
        yield place, before, wrong.text


def _again(witness: _Witness, episodes: list[_Episode], when: str) -> None:
    for episode in witness.in_time(episodes, 1):
        for place, state, difference in witness.in_time(_replay(witness, episode)):
            if difference and place.step == 0:
                names = witness.changes(None, "reset", episode.seed)
                text = f"reset({episode.seed}) gives another start {when}: {difference}."
                advice = "Draw everything from the seed: rng = np.random.default_rng(seed)."
                raise _Wrong("reset", f"{text}{_changed('reset', names)} {advice}")
            if difference:
                names = witness.changes(state, "step", state, episode.actions[place.step - 1])
                text = f"the same seed and actions give another episode {when}: at {place}, "
                advice = "Nothing may come from chance or the clock: draw in reset, from the seed, "
                advice += "and keep in the state what step needs (a generator is copied there)."
                text += f"{difference}.{_changed('step', names)} {advice}"
                raise _Wrong("determinism", text)


def _branches(witness: _Witness, episodes: list[_Episode]) -> None:
    """Play the episodes again with side steps; then step once more from states kept for long."""
    for episode in witness.in_time(episodes, 1):
        side_steps = _with_side_steps(witness, episode)
        for number in _spread(len(side_steps), 3):
            place, action, seen = side_steps[number]
            alone = _outcome(witness, episode.seed, [*episode.actions[: place.step - 1], action])
            state = episode.states[0]
            text = f"action {action} gives something else as a second branch: at {place}, "
            _blame(witness, state, episode.actions[0], text, _difference(seen, alone))
        for number in _spread(len(episode.states), 5):
            state, action = episode.states[number], episode.actions[number]
            place = _Place(episode.seed, number + 1)
            _, difference = _repeat(witness, state, action, place, episode.seen[number + 1])
            text = f"a state that was kept gives something else after many steps: at {place}, "
            _blame(witness, state, action, text, difference)


def _with_side_steps(witness: _Witness, episode: _Episode) -> list[tuple[_Place, int, _Seen]]:
    """From every state: the episode's action, another one twice, and the first again.

    Return the others: where they led, the action, and what was seen.
    """
    side_steps = []
    state, seen = witness.reset(episode.seed)
    if difference := _difference(seen, episode.seen[0]):
        text = f"reset({episode.seed}) gives another start after other episodes: {difference}."
        raise _Wrong("reset", f"{text} Draw everything from the seed.")
    for number, action in witness.in_time(enumerate(episode.actions)):
        before, after = episode.seen[number : number + 2]
        here, there = _Place(episode.seed, number), _Place(episode.seed, number + 1)
        blame = partial(_blame, witness, state, action)
        child, difference = _repeat(witness, state, action, there, after)
        blame(f"an episode changes when there are steps beside its own: at {there}, ", difference)
        difference = _difference(witness.look(state, here), before)
        blame(f"after step(state, {action}) at {here}, its ", difference, "state")
        others = witness.choose(before, without=action)
        seen = _side_step(witness, episode, state, others[0], number) if others else None
        if seen is not None:
            side_steps.append((there, others[0], seen))
        _, difference = _repeat(witness, state, action, there, after)
        blame(f"step(state, {action}) changes after other steps: at {there}, ", difference)
        difference = _difference(witness.look(child, there, bool(after["terminated"])), after)
        blame(f"a state changes through steps made elsewhere: at {there}, ", difference)
        state = child
    return side_steps


def _side_step(
    witness: _Witness, episode: _Episode, state: State, action: int, number: int
) -> _Seen | None:
    """Another action than the episode's, twice; None if step does not take it."""
    place = _Place(episode.seed, number + 1)
    blame = partial(_blame, witness, state, action)
    try:
        _, seen = witness.step(state, action, place)
    except _Wrong as wrong:
        try:
            _outcome(witness, episode.seed, [*episode.actions[:number], action])
        except _Wrong:  # even when nothing else has happened
            witness.wrong(_refused(witness, action, wrong))
            return None
        blame("a second step from the same state fails: ", wrong.text)
        raise
    _, difference = _repeat(witness, state, action, place, seen)
    blame(f"step(state, {action}) twice gives two results: at {place}, ", difference)
    before = _Place(episode.seed, number)
    difference = _difference(witness.look(state, before), episode.seen[number])
    blame(f"after step(state, {action}) at {before}, its ", difference, "state")
    return seen


def _repeat(
    witness: _Witness, state: State, action: int, place: _Place, expected: _Seen
) -> tuple[State, str]:
    """A step, and how it differs from the same step before."""
    try:
        after, seen = witness.step(state, action, place)
    except _Wrong as wrong:
        return None, wrong.text
    return after, _difference(seen, expected)


def _blame(
    witness: _Witness, state: State, action: int, text: str, difference: str, otherwise: str = ""
) -> None:
    """If something differs, tell a step that changes its state from one that looks elsewhere."""
    if not difference:
        return
    names = witness.changes(state, "step", state, action)
    text = f"{text}{difference}.{_changed('step', names)}"
    if any(name.startswith("state") for name in names) or (otherwise and not names):
        advice = "Copy what you change (copy.deepcopy, array.copy(), _replace); return the copy."
        raise _Wrong("state", f"step changes the state it was given: {text} {advice}")
    advice = "A step may depend on its state and action alone: keep all it needs in the state."
    raise _Wrong("branches", f"{text} {advice}")


def _in_turns(witness: _Witness, episodes: list[_Episode]) -> None:
    """Play the episodes two at a time, a step of one and a step of the other."""
    for pair in witness.in_time(zip(episodes[::2], episodes[1::2], strict=False), 1):
        turns = itertools.zip_longest(*(_replay(witness, episode) for episode in pair))
        for turn in witness.in_time(turns):
            for played, other in zip(turn, reversed(pair), strict=True):
                if played is None or not played[2]:
                    continue
                place, state, difference = played
                with suppress(Exception):
                    witness.simulator.reset(place.seed)
                names = witness.changes(state, "reset", other.seed)
                text = f"an episode comes out differently in turns with seed {other.seed}: at "
                text += f"{place}, {difference}.{_changed('reset', names)}"
                advice = "Keep what belongs to an episode in its state, not on the simulator."
                raise _Wrong("interleaving", f"{text} {advice}")


def _endings(witness: _Witness, episodes: list[_Episode]) -> None:
    last = [episode.seen[-1] for episode in episodes]
    terminated = sum(bool(seen.get("terminated")) for seen in last)
    truncated = sum(_over(seen) for seen in last) - terminated
    longest = max(len(episode.actions) for episode in episodes)
    if not terminated and not truncated:
        text = f"no episode ended within {longest} random steps. Searches don't mind, but training "
        advice = "counts episodes: give it a time limit, reported as truncated."
        witness.found("endings", "note", text + advice)
        return
    going = len(episodes) - terminated - truncated
    more = f", {going} went on for {longest} steps or less" if going else ""
    text = f"{len(episodes)} episodes: {terminated} terminated, {truncated} truncated{more}"
    witness.found("endings", "ok", text)


def _seeds(witness: _Witness, episodes: list[_Episode]) -> None:
    """Whether seeds make a difference, if not at the start then later."""
    if len(episodes) < 2:
        return
    if any(_difference(episode.seen[0], episodes[0].seen[0]) for episode in episodes):
        witness.found("seeds", "ok", "different seeds gave different starts")
        return
    longest = max(episodes, key=lambda episode: len(episode.actions))
    for seed in witness.in_time(episode.seed for episode in episodes if episode is not longest):
        state, seen = witness.reset(seed)
        for number, action in enumerate(longest.actions, 1):
            state, seen = witness.step(state, action, _Place(seed, number))
            if _difference(seen, longest.seen[number]):
                witness.found("seeds", "ok", "different seeds gave different episodes")
                return
    text = (
        "every seed gave the same episode: right for a puzzle with one start; otherwise draw the "
    )
    witness.found("seeds", "note", text + "start from the seed, in reset")


def _render(witness: _Witness, episodes: list[_Episode]) -> None:
    shapes = set()
    for episode in witness.in_time(episodes[:4] if witness.has("render") else [], 1):
        for number in _spread(len(episode.states), 3):
            place, state = _Place(episode.seed, number), episode.states[number]
            before = witness.look(state, place)
            value = witness.call("render", place, state)
            image = _array(value)
            if image is None or image.shape[2:] != (3,) or image.dtype != np.uint8:
                text = "render must give an image, uint8 [height, width, 3]"
                raise _Wrong("render", f"{text}, but gave {_shown(value)}, at {place}.")
            if difference := _difference(witness.look(state, place), before):
                raise _Wrong("render", f"render changes the state: at {place}, {difference}.")
            shapes.add(image.shape)
    if shapes:
        several = "; animations need one size" if len(shapes) > 1 else ""
        text = f"uint8 {', '.join(str(list(shape)) for shape in sorted(shapes))}{several}"
        witness.found("render", "note" if several else "ok", text)


def _all_actions(witness: _Witness, episodes: list[_Episode]) -> None:
    """Try many of the allowed actions in some states."""
    for episode in witness.in_time(episodes[:8], 1):
        for number in _spread(len(episode.states), 2):
            for action in witness.in_time(witness.choose(episode.seen[number], _TRIED)):
                _side_step(witness, episode, episode.states[number], action, number)


def _samples(witness: _Witness, episodes: list[_Episode]) -> None:
    """The same promises for `sample_step`, which draws from a seed of its own."""
    if not witness.has("sample_step"):
        return
    starts = [(e, number) for e in episodes for number in _spread(len(e.states), 3)][:12]
    varied = False
    for episode, number in witness.in_time(starts, 1):
        state, action = episode.states[number], episode.actions[number]
        here, there = _Place(episode.seed, number), _Place(episode.seed, number + 1)
        results = []
        for sample in (*range(_SAMPLES), *range(5)):
            _, seen = witness.step(state, action, there, sample)
            if len(results) < _SAMPLES:
                results.append(seen)
                varied |= bool(_difference(seen, results[0]))
            elif difference := _difference(seen, results[sample]):
                text = f"sample_step(state, {action}, {sample}) twice gives two results: at {there}"
                advice = "Draw from np.random.default_rng(seed) alone."
                raise _Wrong("sample_step", f"{text}, {difference}. {advice}")
        difference = _difference(witness.look(state, here), episode.seen[number])
        if not difference:
            _, difference = _repeat(witness, state, action, there, episode.seen[number + 1])
        if difference:
            names = witness.changes(state, "sample_step", state, action, 0)
            text = f"sample_step changes the state it was given: at {there}, {difference}."
            raise _Wrong("sample_step", f"{text}{_changed('it', names)} Copy what you change.")
    if varied:
        witness.found("sample_step", "ok", "the same seed gave the same, others something else")
    else:
        text = f"{_SAMPLES} seeds never made a difference: draw from the seed, or leave it out"
        witness.found("sample_step", "note", text)


def _masks(witness: _Witness) -> None:
    low, high = witness.allowed
    if not witness.has("action_mask"):
        witness.found("masks", "ok", "none, so every action must be possible everywhere")
    elif low < witness.simulator.num_actions:
        text = f"{low} to {high} of {witness.simulator.num_actions} actions are allowed"
        witness.found("masks", "ok", text)
    else:
        witness.found("masks", "note", "all actions are allowed always: it can be left out")


def _speed(witness: _Witness, episodes: list[_Episode], seconds: float) -> None:
    step, observe = (float(np.median(witness.times[name])) for name in ("step", "observe"))
    steps = sum(len(episode.actions) for episode in episodes)
    kept = sum(len(episode.states) for episode in episodes)
    text = f"{1e6 * step:,.0f} µs a step and {1e6 * observe:,.0f} µs an observation here: "
    text += f"{1 / max(step + observe, 1e-9):,.0f} steps a second. Looked at {len(episodes)} "
    text += f"episodes of {steps:,} steps in all, with {len(witness.times['step']):,} calls of "
    text += f"step; {kept} states were kept meanwhile."
    if witness.cut_short:
        text += f" More did not fit into {seconds:g} seconds."
    witness.found("speed", "note", text)


def _difference(now: _Seen, before: _Seen) -> str:
    """The first difference in words, or ''; what only one of them has does not count."""
    for name in before:
        if name in now and not _same(now[name], before[name]):
            return _words_of_difference(name, now[name], before[name])
    return ""


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _words_of_difference(name: str, now: np.ndarray, before: np.ndarray) -> str:
    if _kind(now) != _kind(before):
        return f"{name} is {_kind(now)} instead of {_kind(before)}"
    places = np.argwhere(~((now == before) | ((now != now) & (before != before))))
    index = tuple(places[0].tolist())
    more = f" ({len(places)} of {now.size} differ)" if now.size > 1 else ""
    return f"{name}{_index(index)} is {now[index]} instead of {before[index]}{more}"


def _index(index: tuple[int, ...]) -> str:
    return str(list(index)) if index else ""


def _spread(length: int, most: int) -> list[int]:
    """Up to so many numbers below `length`, the first and the last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).astype(int)).tolist()


def _array(value: Any) -> np.ndarray | None:
    """A copy as an array, if it can be one."""
    try:
        return np.array(value)
    except Exception:
        return None


def _kind(array: Any) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _listed(kinds: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items())


def _shown(value: Any) -> str:
    """A value in a few words."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array {_kind(value)}" if value.shape else f"{value.dtype} {value}"
    text = repr(value)
    return text if len(text) <= 40 else f"something of type {type(value).__name__}"


def _not_four(method: str, result: Any, place: _Place) -> str:
    text = f"{method} must return (state, reward, terminated, truncated), but returned "
    if not isinstance(result, tuple | list):
        return f"{text}{_shown(result)}, at {place}."
    hints = {
        3: " Where nothing is ever truncated, the fourth is False.",
        5: " Unlike in Gymnasium, the state comes first and there is no info.",
    }
    return f"{text}{len(result)} values, at {place}.{hints.get(len(result), '')}"


def _words(error: Exception) -> str:
    """An exception's type, first line, and the line of its author's code where it was raised."""
    first = next(iter(str(error).splitlines()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    own = [f for f in frames if not f.filename.startswith((*libraries, "<"))]
    for frame in [*own[-1:], *frames[:1]]:
        path = frame.filename.removeprefix(os.getcwd() + os.sep)
        return f"{text} ({path}:{frame.lineno})"
    return text


def _changed(method: str, names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" What {method} changes: {', '.join(names[:3])}{more}." if names else ""


def _snapshot(state: State, simulator: Any) -> dict[str, Any]:
    """Everything a call may change, as far as it can be seen, by name."""
    parts: dict[str, Any] = {}
    for name, value in (("state", state), ("simulator", simulator)):
        with suppress(Exception):
            parts.update(itertools.islice(_parts(name, value), 10_000))
    parts["the global generator of np.random"] = repr(np.random.get_state(legacy=False))  # noqa: NPY002
    parts["the global generator of random"] = random.getstate()
    return parts


def _parts(name: str, value: Any, depth: int = 6) -> Iterator[tuple[str, Any]]:
    """The plain values that an object is made of."""
    if isinstance(value, np.random.Generator):
        yield name, repr(value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        yield name, repr(value.get_state(legacy=False))
    elif isinstance(value, random.Random):
        yield name, value.getstate()
    elif hasattr(value, "__array__"):
        yield name, np.asarray(value).tobytes()
    elif value is None or isinstance(value, int | float | complex | str | bytes | bytearray | set):
        yield name, repr(value)
    elif depth and not isinstance(value, type | ModuleType):
        for inner, part in _inside(name, value):
            yield from _parts(inner, part, depth - 1)


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", part) for key, part in value.items())
    elif hasattr(value, "_fields"):
        yield from ((f"{name}.{field}", getattr(value, field)) for field in value._fields)
    elif isinstance(value, Iterable) and hasattr(value, "__len__"):
        yield from ((f"{name}[{index}]", part) for index, part in enumerate(value))
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
    attributes = {slot: getattr(value, slot, None) for slot in slots}
    attributes |= getattr(value, "__dict__", {})
    yield from ((f"{name}.{key}", part) for key, part in attributes.items() if not callable(part))
