"""Random episodes: played once, then replayed in harder and harder ways.

Side steps, other episodes or steps from older states must not change them.
"""

import time
from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.check.witness import Place, Witness, Wrong, blame
from save_rl.envs.check.words import Seen, difference, listed
from save_rl.types import State

ROOM = 2**28  # bytes of observations to keep
_EPISODES = 16  # most episodes per requested one, if they are short
_KEPT = 50  # states of an episode to keep and step from again much later
_SHARE = 0.08  # of the time for the first round; the others take about eleven times as long


class Episode(NamedTuple):
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


def play(witness: Witness, seeds: int, steps: int, seed: int, seconds: float) -> list[Episode]:
    """Play the reference episodes; `seconds` for all other checks start when this returns."""
    share = seconds * _SHARE / seeds
    # The first steps are not timed: they compile, import and read files.
    first = _play(witness, seed, min(steps, 10), share).seen[0]
    size = 1 + sum(array.nbytes for array in first.values())
    steps = min(steps, max(1, ROOM // (seeds * size)))
    witness.times.clear()
    witness.cut_short = False
    episodes: list[Episode] = []
    total = 0
    while len(episodes) < seeds or (
        total < steps and len(episodes) < _EPISODES * seeds and not witness.cut_short
    ):
        episodes.append(_play(witness, seed + len(episodes), steps, share))
        total += len(episodes[-1].actions)
    if not total:
        raise Wrong("step", "Not a single step could be made.")
    seen = [seen for episode in episodes for seen in episode.seen]
    rewards = [float(entry["reward"]) for entry in seen if "reward" in entry]
    text = f"{total} steps, with rewards from {min(rewards):.4g} to {max(rewards):.4g}"
    witness.found("step", "ok", text)
    witness.found("observations", "ok", f"always {listed(witness.kinds)}")
    first = {name: array for name, array in first.items() if name in witness.kinds}
    if not any(difference(entry, first) for entry in seen):
        witness.found("observations", "note", "all states look the same: what is there to learn?")
    witness.end = time.monotonic() + seconds
    return episodes


def _play(witness: Witness, seed: int, steps: int, seconds: float) -> Episode:
    """Play an episode with random actions, which depend on the seed only."""
    witness.end = time.monotonic() + seconds
    witness.rng = np.random.default_rng([seed, 1])  # not the generator of the simulator
    state, seen = witness.reset(seed)
    episode = Episode(seed, [], [seen], [])
    for number in witness.in_time(range(steps), 1):
        if not (chosen := witness.choose(seen)):
            break
        (action,) = chosen
        after, seen = witness.step(state, action, Place(seed, number + 1))
        episode.states.extend([state] if number < _KEPT else [])
        episode.actions.append(action)
        episode.seen.append(seen)
        state = after
        if seen["terminated"] or seen["truncated"]:
            _step_on(witness, state, seen, Place(seed, number + 1))
            break
    return episode


def _step_on(witness: Witness, state: State, seen: Seen, end: Place) -> None:
    """Make a few steps past a truncation."""
    for more in range(1, 4):
        for action in [] if seen["terminated"] else witness.choose(seen):
            try:
                state, seen = witness.step(state, action, Place(end.seed, end.step + more))
            except Wrong as wrong:
                text = "steps after a truncation must work: searches look past time limits. "
                detail = f"{wrong.text}; truncated was True at step {end.step}. Where nothing can "
                witness.found("endings", "wrong", text, detail + "follow, report terminated.")
                return


def are_pure(witness: Witness, episodes: list[Episode]) -> bool:
    """Replay the episodes in harder and harder ways; return False once one differs."""
    try:
        _again(witness, episodes)
        witness.found("reset", "ok", "the same seed gave the same start")
        witness.found("determinism", "ok", "the same seed and actions gave the same episode")
        _branches(witness, episodes)
        witness.found("state", "ok", "step left the states it was given as they were")
        witness.found("branches", "ok", "steps from one state did not change the results of others")
        _in_turns(witness, episodes)
        if len(episodes) > 1:
            witness.found("interleaving", "ok", "interleaved episodes were the same as alone")
    except Wrong as wrong:
        witness.wrong(wrong)
        later = ["determinism", "state", "branches", "interleaving"]
        later += ["render"] * witness.has("render") + ["chance"] * witness.stochastic
        later += ["saving"] * witness.has("save_state")
        for subject in set(later) - {subject for subject, _, _ in witness.findings}:
            witness.found(subject, "note", f"not checked until '{wrong.subject}' is right")
        return False
    return True


def replay(witness: Witness, episode: Episode) -> Iterator[tuple[Place, State, str]]:
    """Replay an episode; yield each place, the state before it and the difference there."""
    place, before = Place(episode.seed, 0), None
    try:
        state, seen = witness.reset(episode.seed)
        yield place, before, difference(seen, episode.seen[0])
        for number, action in enumerate(episode.actions, 1):
            place, before = Place(episode.seed, number), state
            state, seen = witness.step(state, action, place)
            yield place, before, difference(seen, episode.seen[number])
    except Wrong as wrong:
        yield place, before, wrong.text


def _again(witness: Witness, episodes: list[Episode]) -> None:
    """Replay the episodes without other calls in between."""
    for episode in witness.in_time(episodes, 1):
        for place, state, what in witness.in_time(replay(witness, episode)):
            if what and place.step == 0:
                names = witness.changes(None, "reset", episode.seed)
                text = f"reset({episode.seed}) gives another start the second time: {what}"
                advice = "Draw everything from the seed: rng = np.random.default_rng(seed)."
                raise blame("reset", text, "reset", names, advice)
            if what:
                names = witness.changes(state, "step", state, episode.actions[place.step - 1])
                text = f"the same seed and actions give another episode: at {place}, {what}"
                advice = "Nothing may depend on chance or the clock: draw in reset, from the seed, "
                advice += (
                    "and keep in the state what step needs (a generator is copied there); or, "
                )
                advice += "for chance, say stochastic = True and draw from the seed that "
                advice += "step(state, action, seed) then gets."
                if witness.stochastic:
                    advice = "Draw only from the seed of the step: np.random.default_rng(seed)."
                raise blame("determinism", text, "step", names, advice)


def _branches(witness: Witness, episodes: list[Episode]) -> None:
    """Replay the episodes with side steps; then step once more from their kept states."""
    for episode in witness.in_time(episodes, 1):
        state, _ = witness.reset(episode.seed)
        for number, action in witness.in_time(enumerate(episode.actions)):
            others = witness.choose(episode.seen[number], without=action)
            state = step_aside(witness, episode, number, state, others)
        for number in spread(len(episode.states), 5):
            step_aside(witness, episode, number, episode.states[number], [])


def step_aside(
    witness: Witness, episode: Episode, number: int, state: State, actions: list[int]
) -> State:
    """Try actions in a state of an episode, twice each, then its own; return the next state.

    The same action must give the same result, and the state and its observation must not change.
    """
    own, child = episode.actions[number], None
    here, there = Place(episode.seed, number), Place(episode.seed, number + 1)
    known = {own: episode.seen[number + 1]}
    for action in chain(witness.in_time(actions * 2), [own]):
        shown = witness.look(state, here)
        handed_out = witness.handed_out
        try:
            child, seen = witness.step(state, action, there)
            what = difference(seen, known.setdefault(action, seen))
        except Wrong as wrong:
            what = wrong.text
            if action not in known:  # the first attempt failed, so nothing to compare
                witness.wrong(wrong)
                continue
        if what:
            text = f"step(state, {action}) gives another result after other steps: at {there}, "
            raise _impure_step(witness, state, action, text + what, "branches")
        overwritten = [name for name in shown if not _same(handed_out[name], shown[name])]
        if what := difference(witness.look(state, here), episode.seen[number]):
            text = f"after step(state, {action}) at {here}, its {what}"
            raise _impure_step(witness, state, action, text, "state")
        for name in overwritten:
            subject = "masks" if name == "action_mask" else "observations"
            text = f"the array returned as {name} at {here} was changed by later calls. Copy it."
            raise Wrong(subject, text)
    return child


def _same(one: Any, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def _impure_step(witness: Witness, state: State, action: int, text: str, subject: str) -> Wrong:
    """Return the fault of a step: it changes its state, or depends on something else."""
    names = witness.changes(state, "step", state, action)
    if names:
        subject = "state" if any(name.startswith("state") for name in names) else "branches"
    if subject == "state":
        text = f"step changes the state it was given: {text}"
        advice = "Copy what you change (copy.deepcopy, array.copy(), _replace); return the copy."
    else:
        advice = "A step may depend only on its state and action: keep all it needs in the state."
    return blame(subject, text, "step", names, advice)


def _in_turns(witness: Witness, episodes: list[Episode]) -> None:
    """Replay the episodes in pairs, alternating their steps."""
    for pair in witness.in_time(zip(episodes[::2], episodes[1::2], strict=False), 1):
        turns = zip_longest(*(replay(witness, episode) for episode in pair))
        for turn in witness.in_time(turns):
            for played, other in zip(turn, reversed(pair), strict=True):
                if played is None or not played[2]:
                    continue
                place, state, what = played
                names = witness.changes(state, "reset", place.seed)
                text = f"an episode differs when interleaved with seed {other.seed}: "
                advice = "Keep what belongs to an episode in its state, not on the simulator."
                raise blame("interleaving", f"{text}at {place}, {what}", "reset", names, advice)
