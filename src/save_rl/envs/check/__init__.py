"""Tests whether a simulator is a pure function of its state, and tells its author what to fix.

`check` plays random episodes and replays them: unchanged, with side steps everywhere, from older
states, and interleaved with one another; `check_named` replays them in another process too. Each
time the episodes must be the same.
"""

from itertools import zip_longest
from typing import Any

import numpy as np

from save_rl.envs import make, runs_on_host, simulator_name
from save_rl.envs.chance import OPTION
from save_rl.envs.check.episodes import CheckedEpisode, are_pure, play, replay, spread, step_aside
from save_rl.envs.check.interface import look_at_names
from save_rl.envs.check.messages import Finding, Report, difference, generators, shown
from save_rl.envs.check.probe import Place, Probe, Wrong, array_of, blame, luck_at, named
from save_rl.envs.pool import Pool, Source
from save_rl.envs.watchdog import WATCHDOG
from save_rl.errors import InputError, RunError, require

__all__ = ["check", "check_named", "Report", "Finding"]

_TRIED = 32  # actions tried in one state
_SAMPLES = 20  # seeds of a step tried in one state
_SAVED = 60  # steps from a loaded state
_LANES = 4  # episodes to play in another process
_PATIENCE = 60.0  # seconds for it to answer


def check(
    simulator: Any, *, seeds: int = 4, steps: int = 200, seed: int = 0, seconds: float = 20.0
) -> Report:
    """Play random episodes of a simulator or a JAX environment; return a report of its faults.

    seeds: episodes to play; more if they are short.
    steps: most steps of an episode.
    seed: of the first episode and its actions; the next episode has the next seed.
    seconds: approximate time limit; a slow simulator is checked on fewer steps.
    """
    probe, _ = _look(simulator, seeds, steps, seed, seconds)
    return probe.report()


def check_named(
    env: str, env_options: dict[str, Any], *, seeds: int = 4, steps: int = 200, seed: int = 0,
    seconds: float = 20.0, apart: bool = True,
) -> Report:  # fmt: skip
    """`check` an environment by name or `package.module:factory`; `seed` also makes it.

    apart: if nothing is wrong, play it in a worker process too, unless it is a JAX environment.
    """
    WATCHDOG.name = f"the simulator '{env}'"
    with WATCHDOG:
        simulator = make(simulator_name(env), seed, **env_options)
    probe, episodes = _look(simulator, seeds, steps, seed, seconds)
    if probe.report().ok:
        try:
            runs_on_host(simulator, env)
        except InputError as refused:
            text = f"training refuses it: {str(refused).removeprefix('ENV: ')}"
            probe.found("interface", "wrong", text)
    if apart and probe.report().ok and probe.simulator is simulator:
        _processes(probe, episodes[:_LANES], Source(env, seed, env_options))
    return probe.report()


def _look(
    simulator: Any, seeds: int, steps: int, seed: int, seconds: float
) -> tuple[Probe, list[CheckedEpisode]]:
    """Run all checks that need one process."""
    for name, value, least in (("seeds", seeds, 1), ("steps", steps, 1), ("seed", seed, 0)):
        require(value >= least, name, value, f"at least {least}")
    require(seconds > 0, "seconds", seconds, "more than 0")
    probe = Probe(simulator)
    try:
        look_at_names(probe, seed)
        episodes = play(probe, seeds, steps, seed, seconds)
    except Wrong as wrong:
        probe.wrong(wrong)
        return probe, []
    if are_pure(probe, episodes):
        for look_at in (_all_actions, _seeds, _render, _chance, _saving):
            try:
                look_at(probe, episodes)
            except Wrong as wrong:
                probe.wrong(wrong)
    _masks(probe, episodes)
    _endings(probe, episodes)
    _speed(probe, episodes, seconds)
    return probe, episodes


def _all_actions(probe: Probe, episodes: list[CheckedEpisode]) -> None:
    """Try many of the allowed actions in some states."""
    for episode in probe.in_time(episodes[:8], 1):
        for number in spread(len(episode.states), 2):
            actions = probe.choose(episode.seen[number], _TRIED)
            step_aside(probe, episode, number, episode.states[number], actions)


def _seeds(probe: Probe, episodes: list[CheckedEpisode]) -> None:
    """Test whether seeds make a difference, at the start or later."""
    longest = max(episodes, key=lambda episode: len(episode.actions))
    others = (longest._replace(seed=episode.seed) for episode in episodes)
    if len(episodes) < 2:
        return
    if any(difference(episode.seen[0], longest.seen[0]) for episode in episodes):
        probe.found("seeds", "ok", "different seeds gave different starts")
    elif any(what for other in probe.in_time(others) for _, _, what in replay(probe, other)):
        probe.found("seeds", "ok", "different seeds gave different episodes")
    else:
        text = "every seed gave the same episode: right for a puzzle with one start; otherwise draw"
        probe.found("seeds", "note", f"{text} the start from the seed, in reset")


def _render(probe: Probe, episodes: list[CheckedEpisode]) -> None:
    shapes = set()
    for episode in probe.in_time(episodes[:4] if probe.has("render") else [], 1):
        for number in spread(len(episode.states), 3):
            place = Place(episode.seed, number)
            value = probe.call("render", place, episode.states[number])
            image = array_of(value)
            if image is None or image.shape[2:] != (3,) or image.dtype != np.uint8:
                text = "render must give an image, uint8 [height, width, 3]"
                raise Wrong("render", f"{text}, but gave {shown(value)}, at {place}.")
            if what := _changed(probe, episode, number):
                raise Wrong("render", f"render changes the state: {what}.")
            shapes.add(image.shape)
    if shapes:
        several = "; animations need one size" if len(shapes) > 1 else ""
        text = f"uint8 {', '.join(str(list(shape)) for shape in sorted(shapes))}{several}"
        probe.found("render", "note" if several else "ok", text)


def _chance(probe: Probe, episodes: list[CheckedEpisode]) -> None:
    """Test that steps with chance are pure, given their seed; look for chance in others."""
    starts = [(e, number) for e in episodes for number in spread(len(e.states), 3)][:12]
    if not probe.stochastic:
        _hidden_chance(probe, starts)
        return
    varied = False
    for episode, number in probe.in_time(starts, 1):
        state, action = episode.states[number], episode.actions[number]
        place, known = Place(episode.seed, number + 1), {}
        for luck in (*range(_SAMPLES), *range(5)):
            _, seen = probe.step(state, action, place, luck)
            if what := difference(seen, known.setdefault(luck, seen)):
                text = f"step(state, {action}, {luck}) gives two results: at {place}"
                advice = "Draw only from the seed: np.random.default_rng(seed)."
                raise Wrong("chance", f"{text}, {what}. {advice}")
            varied |= bool(difference(seen, known[0]))
        if what := _changed(probe, episode, number):
            names = probe.changes(state, "step", state, action)
            text = f"step changes the state it was given: {what}"
            raise blame("chance", text, "step", names, "Copy what you change.")
    if varied:
        text = "the same state and action had other outcomes with other seeds, the same with the "
        probe.found("chance", "ok", text + "same seed; searches average over outcomes")
    else:
        text = f"{_SAMPLES} seeds never made a difference: draw from the seed that step gets, or "
        probe.found("chance", "note", text + "leave stochastic out")


def _hidden_chance(probe: Probe, starts: list[tuple[CheckedEpisode, int]]) -> None:
    """Look for random generators in the states of a simulator that says nothing about chance."""
    if getattr(probe.simulator, OPTION, None) is not None:
        return
    for episode, number in probe.in_time(starts, 1):
        state, action = episode.states[number], episode.actions[number]
        after, _ = probe.step(state, action, Place(episode.seed, number + 1))
        before, now = (dict(generators("state", x)) for x in (state, after))
        if drawn := [name for name in before if before[name] != now.get(name)]:
            text = f"the state holds a random generator, {drawn[0]}, that step draws from, so "
            text += "searches know the luck that the episode will have. If they must not: "
            text += "stochastic = True, and draw from the seed of step(state, action, seed)"
            probe.found("chance", "note", text)
            return


def _saving(probe: Probe, episodes: list[CheckedEpisode]) -> None:
    """Test whether a state saved as bytes continues like the state itself."""
    if not probe.has("save_state"):
        return
    size, count = None, 0
    starts = [(e, number) for e in episodes for number in spread(len(e.states), 3)][:12]
    for episode, number in probe.in_time(starts, 1):
        place = Place(episode.seed, number)
        data = probe.call("save_state", place, episode.states[number])
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 1:
            text = "save_state must give an array of bytes, uint8 [length]"
            raise Wrong("saving", f"{text}, but gave {shown(data)}, at {place}.")
        size = len(data) if size is None else size
        if len(data) != size:
            text = f"save_state must always give {size} bytes, as before, but gave {len(data)}"
            raise Wrong("saving", f"{text}, at {place}. Pad them.")
        if what := _changed(probe, episode, number):
            raise Wrong("saving", f"save_state changes the state it was given: {what}.")
        loaded = probe.call("load_state", place, data.copy())
        if what := _goes_on(probe, episode, number, loaded, _SAVED):
            text = f"a state saved at {place} differs after loading: {what}"
            advice = "The bytes must hold everything that observe and step use."
            raise Wrong("saving", f"{text}. {advice}")
        count += 1
    probe.found("saving", "ok", f"{count} states continued the same from {size} bytes each")


def _changed(probe: Probe, episode: CheckedEpisode, number: int) -> str:
    """Return the first difference from before in a kept state or its next step; '' if none."""
    return _goes_on(probe, episode, number, episode.states[number], 1)


def _goes_on(probe: Probe, episode: CheckedEpisode, number: int, state: Any, most: int) -> str:
    """Return the first difference from an episode, over up to `most` steps from a state."""
    place = Place(episode.seed, number)
    actions = episode.actions[number : number + most]
    try:
        what = difference(probe.look(state, place), episode.seen[number])
        for action in [] if what else probe.in_time(actions, 1):
            place = place._replace(step=place.step + 1)
            state, seen = probe.step(state, action, place)
            if what := difference(seen, episode.seen[place.step]):
                break
    except Wrong as wrong:
        return wrong.text
    return what and f"at {place}, {what}"


def _masks(probe: Probe, episodes: list[CheckedEpisode]) -> None:
    masks = [seen["action_mask"] for e in episodes for seen in e.seen if "action_mask" in seen]
    allowed, number = [int(mask.sum()) for mask in masks], probe.simulator.num_actions
    if not masks:
        probe.found("masks", "ok", "none, so every action must be possible everywhere")
    elif min(allowed) == number:
        probe.found("masks", "note", "all actions are allowed always: it can be left out")
    else:
        text = f"{min(allowed)} to {max(allowed)} of {number} actions are allowed"
        probe.found("masks", "ok", text)


def _endings(probe: Probe, episodes: list[CheckedEpisode]) -> None:
    last = [episode.seen[-1] for episode in episodes]
    terminated = sum(bool(seen.get("terminated")) for seen in last)
    truncated = sum(not seen.get("terminated") and bool(seen.get("truncated")) for seen in last)
    longest, going = max(len(e.actions) for e in episodes), len(last) - terminated - truncated
    if going == len(last):
        text = f"no episode ended within {longest} random steps. Searches work, but training"
        advice = "counts episodes: if there is no time limit, add one, reported as truncated."
        probe.found("endings", "note", f"{text} {advice}")
    else:
        more = f", {going} unfinished after up to {longest} steps" if going else ""
        text = f"{len(last)} episodes: {terminated} terminated, {truncated} truncated{more}"
        probe.found("endings", "ok", text)


def _speed(probe: Probe, episodes: list[CheckedEpisode], seconds: float) -> None:
    step, observe = (float(np.median(probe.times[name])) for name in ("step", "observe"))
    text = f"{1e6 * step:,.0f} µs a step and {1e6 * observe:,.0f} µs an observation here: "
    text += f"{1 / max(step + observe, 1e-9):,.0f} steps a second. Checked {len(episodes)} "
    text += f"episodes, with {len(probe.times['step']):,} calls of step in all."
    if probe.cut_short:
        text += f" More did not fit into {seconds:g} seconds."
    probe.found("speed", "note", text)


def _processes(probe: Probe, episodes: list[CheckedEpisode], source: Source) -> None:
    """Play episodes in a fresh worker process, where sets have another order."""

    def stop(warning: str) -> None:
        raise RunError(f"in a worker process {warning.rpartition('; ')[0]}")

    try:
        with Pool(
            [probe.simulator], [len(episodes)], workers=1, sources=[source],
            timeout=_PATIENCE, warn=stop,
        ) as pool:  # fmt: skip
            what = _played_by(pool, episodes)
            loaded = _saved_and_loaded(probe, pool, episodes) if pool.layout.saved else ""
    except RunError as error:
        first, *more = str(error).splitlines()
        died = [line for line in more if line.startswith("A worker process died")]
        text = ": ".join([first.removeprefix("ENV: ").rstrip("."), *(died or more[-1:])])
        probe.found("processes", "wrong", f"{text.rstrip('.')}.")
        return
    if what:
        text = f"an episode differs in a worker process: {what}"
        advice = "Nothing may depend on the order of a set, hash(), the clock or the machine; a "
        advice += "factory that draws random numbers must take a seed."
        probe.found("processes", "wrong", f"{text}. {advice}")
    elif loaded:
        text = f"a saved state differs when a worker process loads it: {loaded}"
        advice = "The bytes must hold all of it: another process has nothing else."
        probe.found("processes", "wrong", f"{text}. {advice}")
    else:
        text = f"{len(episodes)} episodes were the same in a worker process"
        probe.found("processes", "ok", text)


def _played_by(pool: Pool, episodes: list[CheckedEpisode]) -> str:
    """Return the first difference between episodes and the same ones played by a pool."""
    seeds = np.array([episode.seed for episode in episodes], np.uint64)
    pool.reset(0, np.arange(len(episodes)), seeds)
    return _plays_on(pool, episodes, [0] * len(episodes))


def _saved_and_loaded(probe: Probe, pool: Pool, episodes: list[CheckedEpisode]) -> str:
    """Return the same for episodes that are saved halfway and continue in the pool."""
    halfway = [len(episode.states) // 2 for episode in episodes]
    with Pool([probe.simulator], [len(episodes)]) as here:
        for lane, (episode, number) in enumerate(zip(episodes, halfway, strict=True)):
            here.place(lane, episode.states[number])
        pool.load(0, here.save(0))
    return _plays_on(pool, episodes, halfway)


def _plays_on(pool: Pool, episodes: list[CheckedEpisode], begun: list[int]) -> str:
    """Return the first difference between episodes and their lanes, from step `begun` on."""
    arrays = pool.arrays
    shown = {
        "action_mask": arrays.mask, **named(pool.layout.observation_of(arrays.observation))
    }  # fmt: skip
    of_a_step = {
        "reward": arrays.reward, "terminated": arrays.terminated, "truncated": arrays.truncated,
    }  # fmt: skip
    rest = [episode.actions[first:] for episode, first in zip(episodes, begun, strict=True)]
    for number, actions in enumerate([None, *zip_longest(*rest, fillvalue=-1)]):
        if actions is not None:
            places = [Place(e.seed, at + number) for e, at in zip(episodes, begun, strict=True)]
            pool.advance(0, np.array(actions), np.array([luck_at(place) for place in places]))
            pool.receive(0)
        lanes = shown if actions is None else {**of_a_step, **shown}
        for lane, (episode, first) in enumerate(zip(episodes, begun, strict=True)):
            if first + number > len(episode.actions):
                continue
            seen = episode.seen[first + number]
            now = {name: array[lane] for name, array in lanes.items() if name in seen}
            before = {name: seen[name].astype(array.dtype) for name, array in now.items()}
            if what := difference(now, before):
                return f"at {Place(episode.seed, first + number)}, {what}"
    return ""
