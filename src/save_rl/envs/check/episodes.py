"""Random episodes: played once, and then again in harder and harder ways.

Whatever is done meanwhile (side steps, other episodes, steps from states long past), they have to
come out the same.
"""

import time
from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.check.witness import Place, Witness, Wrong, blame
from save_rl.envs.check.words import Seen, difference, listed
from save_rl.types import State

ROOM = 2**28  # bytes of observations that are remembered
_EPISODES = 16  # for every one asked for, at most, where episodes are short
_KEPT = 50  # states of an episode that are kept, to be stepped from again much later
_SHARE = 0.08  # of the time, for the first round; the others cost about eleven times that


class Episode(NamedTuple):
    """An episode as it was played first; `seen` has one entry more than `actions`.

    states: the first states; the action of the same number was taken there.
    """

    seed: int
    actions: list[int]
    seen: list[Seen]
    states: list[State]


def spread(length: int, most: int) -> list[int]:
    """Up to so many numbers below `length`, the first and the last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).astype(int)).tolist()


def play(witness: Witness, seeds: int, steps: int, seed: int, seconds: float) -> list[Episode]:
    """Play the episodes that all others are compared with; those have `seconds` from then on."""
    share = seconds * _SHARE / seeds
    # The first steps do not count: they compile, import and read files.
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
    """Random actions, the same for a seed every time, and nothing else meanwhile."""
    witness.end = time.monotonic() + seconds
    witness.rng = np.random.default_rng([seed, 1])  # not the one a simulator would take
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
    """A few steps past a truncation."""
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
    """Play the episodes again in harder and harder ways, until one comes out differently."""
    try:
        _again(witness, episodes)
        witness.found("reset", "ok", "the same seed gave the same start")
        witness.found("determinism", "ok", "the same seed and actions gave the same episode")
        _branches(witness, episodes)
        witness.found("state", "ok", "step left the states it was given as they were")
        witness.found("branches", "ok", "steps from one state did not change what others gave")
        _in_turns(witness, episodes)
        if len(episodes) > 1:
            witness.found("interleaving", "ok", "episodes played in turns came out as if alone")
    except Wrong as wrong:
        witness.wrong(wrong)
        later = ["determinism", "state", "branches", "interleaving"]
        later += [name for name in ("render", "sample_step") if witness.has(name)]
        later += ["saving"] * witness.has("save_state")
        for subject in set(later) - {subject for subject, _, _ in witness.findings}:
            witness.found(subject, "note", f"not checked until '{wrong.subject}' is right")
        return False
    return True


def replay(witness: Witness, episode: Episode) -> Iterator[tuple[Place, State, str]]:
    """Play an episode again; with every step comes the state before it and what differs."""
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
    """Play the episodes a second time, and nothing else meanwhile."""
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
                advice = "Nothing may come from chance or the clock: draw in reset, from the seed, "
                advice += "and keep in the state what step needs (a generator is copied there)."
                raise blame("determinism", text, "step", names, advice)


def _branches(witness: Witness, episodes: list[Episode]) -> None:
    """Play the episodes again with side steps; then step once more from states kept for long."""
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
    """Try actions in a state of an episode, twice each, then its own; returns where that leads.

    The same must give the same, and the state and what it showed must stay as they are.
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
            if action not in known:  # refused, though nothing has happened here before
                witness.wrong(wrong)
                continue
        if what:
            text = f"step(state, {action}) gives something else after other steps: at {there}, "
            raise _impure_step(witness, state, action, text + what, "branches")
        overwritten = [name for name in shown if not _same(handed_out[name], shown[name])]
        if what := difference(witness.look(state, here), episode.seen[number]):
            text = f"after step(state, {action}) at {here}, its {what}"
            raise _impure_step(witness, state, action, text, "state")
        for name in overwritten:
            subject = "masks" if name == "action_mask" else "observations"
            text = f"the array given as {name} at {here} was written to by later calls. Copy it."
            raise Wrong(subject, text)
    return child


def _same(one: Any, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def _impure_step(witness: Witness, state: State, action: int, text: str, subject: str) -> Wrong:
    """Tell a step that changes its state from one that looks elsewhere."""
    names = witness.changes(state, "step", state, action)
    if names:
        subject = "state" if any(name.startswith("state") for name in names) else "branches"
    if subject == "state":
        text = f"step changes the state it was given: {text}"
        advice = "Copy what you change (copy.deepcopy, array.copy(), _replace); return the copy."
    else:
        advice = "A step may depend on its state and action alone: keep all it needs in the state."
    return blame(subject, text, "step", names, advice)


def _in_turns(witness: Witness, episodes: list[Episode]) -> None:
    """Play the episodes two at a time, a step of one and a step of the other."""
    for pair in witness.in_time(zip(episodes[::2], episodes[1::2], strict=False), 1):
        turns = zip_longest(*(replay(witness, episode) for episode in pair))
        for turn in witness.in_time(turns):
            for played, other in zip(turn, reversed(pair), strict=True):
                if played is None or not played[2]:
                    continue
                place, state, what = played
                names = witness.changes(state, "reset", place.seed)
                text = f"an episode comes out differently in turns with seed {other.seed}: "
                advice = "Keep what belongs to an episode in its state, not on the simulator."
                raise blame("interleaving", f"{text}at {place}, {what}", "reset", names, advice)
