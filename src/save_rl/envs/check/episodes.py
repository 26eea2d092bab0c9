"""Random episodes: played once, then replayed in harder and harder ways.

Side steps, other episodes or steps from older states must not change them.
"""

import time
from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.check.messages import Seen, difference, listed
from save_rl.envs.check.probe import Place, Probe, Wrong, blame
from save_rl.types import State

ROOM = 2**28  # bytes of observations to keep
_EPISODES = 16  # most episodes per requested one, if they are short
_KEPT = 50  # states of an episode to keep and step from again much later
_SHARE = 0.08  # of the time for the first round; the others take about eleven times as long


class CheckedEpisode(NamedTuple):
    """An episode as first played; `seen` has one entry more than `actions`.

    states: the first `_KEPT` states; `actions[i]` was taken in `states[i]`.
    """

    seed: int
    actions: list[int]
    seen: list[Seen]
    states: list[State]


def spread(length: int, most: int) -> list[int]:
    """Return up to `most` numbers below `length`, evenly spaced from the first to the last."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).astype(int)).tolist()


def play(probe: Probe, seeds: int, steps: int, seed: int, seconds: float) -> list[CheckedEpisode]:
    """Play the reference episodes; `seconds` for all other checks start when this returns."""
    share = seconds * _SHARE / seeds
    # The first steps are not timed: they compile, import and read files.
    first = _play(probe, seed, min(steps, 10), share).seen[0]
    size = 1 + sum(array.nbytes for array in first.values())
    steps = min(steps, max(1, ROOM // (seeds * size)))
    probe.times.clear()
    probe.cut_short = False
    episodes: list[CheckedEpisode] = []
    total = 0
    while len(episodes) < seeds or (
        total < steps and len(episodes) < _EPISODES * seeds and not probe.cut_short
    ):
        episodes.append(_play(probe, seed + len(episodes), steps, share))
        total += len(episodes[-1].actions)
    if not total:
        raise Wrong("step", "Not a single step could be made.")
    seen = [seen for episode in episodes for seen in episode.seen]
    rewards = [float(entry["reward"]) for entry in seen if "reward" in entry]
    text = f"{total} steps, with rewards from {min(rewards):.4g} to {max(rewards):.4g}"
    probe.found("step", "ok", text)
    probe.found("observations", "ok", f"always {listed(probe.kinds)}")
    first = {name: array for name, array in first.items() if name in probe.kinds}
    if not any(difference(entry, first) for entry in seen):
        probe.found("observations", "note", "all states look the same: what is there to learn?")
    probe.end = time.monotonic() + seconds
    return episodes


def _play(probe: Probe, seed: int, steps: int, seconds: float) -> CheckedEpisode:
    """Play an episode with random actions, which depend on the seed only."""
    probe.end = time.monotonic() + seconds
    probe.rng = np.random.default_rng([seed, 1])  # not the generator of the simulator
    state, seen = probe.reset(seed)
    episode = CheckedEpisode(seed, [], [seen], [])
    for number in probe.in_time(range(steps), 1):
        if not (chosen := probe.choose(seen)):
            break
        (action,) = chosen
        after, seen = probe.step(state, action, Place(seed, number + 1))
        episode.states.extend([state] if number < _KEPT else [])
        episode.actions.append(action)
        episode.seen.append(seen)
        state = after
        if seen["terminated"] or seen["truncated"]:
            _step_on(probe, state, seen, Place(seed, number + 1))
            break
    return episode


def _step_on(probe: Probe, state: State, seen: Seen, end: Place) -> None:
    """Make a few steps past a truncation."""
    for more in range(1, 4):
        for action in [] if seen["terminated"] else probe.choose(seen):
            try:
                state, seen = probe.step(state, action, Place(end.seed, end.step + more))
            except Wrong as wrong:
                text = "steps after a truncation must work: searches look past time limits. "
                detail = f"{wrong.text}; truncated was True at step {end.step}. Where nothing can "
                probe.found("endings", "wrong", text, detail + "follow, report terminated.")
                return


def are_pure(probe: Probe, episodes: list[CheckedEpisode]) -> bool:
    """Replay the episodes in harder and harder ways; return False once one differs."""
    try:
        _again(probe, episodes)
        probe.found("reset", "ok", "the same seed gave the same start")
        probe.found("determinism", "ok", "the same seed and actions gave the same episode")
        _branches(probe, episodes)
        probe.found("state", "ok", "step left the states it was given as they were")
        probe.found("branches", "ok", "steps from one state did not change the results of others")
        _in_turns(probe, episodes)
        if len(episodes) > 1:
            probe.found("interleaving", "ok", "interleaved episodes were the same as alone")
    except Wrong as wrong:
        probe.wrong(wrong)
        later = ["determinism", "state", "branches", "interleaving"]
        later += ["render"] * probe.has("render") + ["chance"] * probe.stochastic
        later += ["saving"] * probe.has("save_state")
        for subject in set(later) - {subject for subject, _, _ in probe.findings}:
            probe.found(subject, "note", f"not checked until '{wrong.subject}' is right")
        return False
    return True


def replay(probe: Probe, episode: CheckedEpisode) -> Iterator[tuple[Place, State, str]]:
    """Replay an episode; yield each place, the state before it and the difference there."""
    place, before = Place(episode.seed, 0), None
    try:
        state, seen = probe.reset(episode.seed)
        yield place, before, difference(seen, episode.seen[0])
        for number, action in enumerate(episode.actions, 1):
            place, before = Place(episode.seed, number), state
            state, seen = probe.step(state, action, place)
            yield place, before, difference(seen, episode.seen[number])
    except Wrong as wrong:
        yield place, before, wrong.text


def _again(probe: Probe, episodes: list[CheckedEpisode]) -> None:
    """Replay the episodes without other calls in between."""
    for episode in probe.in_time(episodes, 1):
        for place, state, what in probe.in_time(replay(probe, episode)):
            if what and place.step == 0:
                names = probe.changes(None, "reset", episode.seed)
                text = f"reset({episode.seed}) gives another start the second time: {what}"
                advice = "Draw everything from the seed: rng = np.random.default_rng(seed)."
                raise blame("reset", text, "reset", names, advice)
            if what:
                names = probe.changes(state, "step", state, episode.actions[place.step - 1])
                text = f"the same seed and actions give another episode: at {place}, {what}"
                advice = "Nothing may depend on chance or the clock: draw in reset, from the seed, "
                advice += (
                    "and keep in the state what step needs (a generator is copied there); or, "
                )
                advice += "for chance, say stochastic = True and draw from the seed that "
                advice += "step(state, action, seed) then gets."
                if probe.stochastic:
                    advice = "Draw only from the seed of the step: np.random.default_rng(seed)."
                raise blame("determinism", text, "step", names, advice)


def _branches(probe: Probe, episodes: list[CheckedEpisode]) -> None:
    """Replay the episodes with side steps; then step once more from their kept states."""
    for episode in probe.in_time(episodes, 1):
        state, _ = probe.reset(episode.seed)
        for number, action in probe.in_time(enumerate(episode.actions)):
            others = probe.choose(episode.seen[number], without=action)
            state = step_aside(probe, episode, number, state, others)
        for number in spread(len(episode.states), 5):
            step_aside(probe, episode, number, episode.states[number], [])


def step_aside(
    probe: Probe, episode: CheckedEpisode, number: int, state: State, actions: list[int]
) -> State:
    """Try actions in a state of an episode, twice each, then its own; return the next state.

    The same action must give the same result, and the state and its observation must not change.
    """
    own, child = episode.actions[number], None
    here, there = Place(episode.seed, number), Place(episode.seed, number + 1)
    known = {own: episode.seen[number + 1]}
    for action in chain(probe.in_time(actions * 2), [own]):
        shown = probe.look(state, here)
        handed_out = probe.handed_out
        try:
            child, seen = probe.step(state, action, there)
            what = difference(seen, known.setdefault(action, seen))
        except Wrong as wrong:
            what = wrong.text
            if action not in known:  # the first attempt failed, so nothing to compare
                probe.wrong(wrong)
                continue
        if what:
            text = f"step(state, {action}) gives another result after other steps: at {there}, "
            raise _impure_step(probe, state, action, text + what, "branches")
        overwritten = [name for name in shown if not _same(handed_out[name], shown[name])]
        if what := difference(probe.look(state, here), episode.seen[number]):
            text = f"after step(state, {action}) at {here}, its {what}"
            raise _impure_step(probe, state, action, text, "state")
        for name in overwritten:
            subject = "masks" if name == "action_mask" else "observations"
            text = f"the array returned as {name} at {here} was changed by later calls. Copy it."
            raise Wrong(subject, text)
    return child


def _same(one: Any, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def _impure_step(probe: Probe, state: State, action: int, text: str, subject: str) -> Wrong:
    """Return the fault of a step: it changes its state, or depends on something else."""
    names = probe.changes(state, "step", state, action)
    if names:
        subject = "state" if any(name.startswith("state") for name in names) else "branches"
    if subject == "state":
        text = f"step changes the state it was given: {text}"
        advice = "Copy what you change (copy.deepcopy, array.copy(), _replace); return the copy."
    else:
        advice = "A step may depend only on its state and action: keep all it needs in the state."
    return blame(subject, text, "step", names, advice)


def _in_turns(probe: Probe, episodes: list[CheckedEpisode]) -> None:
    """Replay the episodes in pairs, alternating their steps."""
    for pair in probe.in_time(zip(episodes[::2], episodes[1::2], strict=False), 1):
        turns = zip_longest(*(replay(probe, episode) for episode in pair))
        for turn in probe.in_time(turns):
            for played, other in zip(turn, reversed(pair), strict=True):
                if played is None or not played[2]:
                    continue
                place, state, what = played
                names = probe.changes(state, "reset", place.seed)
                text = f"an episode differs when interleaved with seed {other.seed}: "
                advice = "Keep what belongs to an episode in its state, not on the simulator."
                raise blame("interleaving", f"{text}at {place}, {what}", "reset", names, advice)
