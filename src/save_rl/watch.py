"""Pictures of environments: an episode as a GIF, sampled scenes as a sheet."""

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from save_rl.envs import ENVIRONMENTS, imports, make_simulator, runs_on_host
from save_rl.errors import InputError, RunError, require, require_numbers, unknown_name
from save_rl.players import Episode, Player, RootValues, make_player, play
from save_rl.report.pictures import Bar, beside, caption, contact_sheet, save_gif
from save_rl.types import Simulator

_BUDGET = 50  # simulations per decision of an untrained search
_MOST_BARS = 24  # actions whose values are shown
_MARBLE_FRAMES = 24  # most frames of one release
_SHEET_SIZE, _SHEET_COLUMNS = 256, 6
SKY = 7 / 16  # of a picture: scenes are empty above 6 m


def watch(
    env: str,
    out: Path,
    *,
    agent: str | None = None,
    difficulty: int | str | None = None,
    seed: int = 0,
    budget: int | None = None,
    env_options: dict[str, Any] | None = None,
    trust: bool = False,
) -> Episode:
    """Play one episode and write it as a GIF; return it.

    env: an environment, played by `agent` (default 'random'); or the folder of a run, played by its
    trained agent (default: with its training budget).
    trust: allow a run to import and run the `package.module:factory` that its folder names.
    """
    require_numbers({"--seed": seed, "--budget": budget}.items())
    require(out.suffix.lower() == ".gif", "--out", f"'{out}'", "a file that ends in .gif")
    require(seed >= 0, "--seed", seed, "0 or more")
    options = {**_level_options(difficulty), **(env_options or {})}
    if Path(env).is_dir():
        sim, player = _run_player(env, agent, budget, options, trust)
    else:
        sim = make_simulator(env, seed, **options)
        if imports(env):
            runs_on_host(sim, env)  # refuses anything but a simulator
        player = make_player(agent or "random", sim, _BUDGET if budget is None else budget)
    if not hasattr(sim, "render"):
        raise InputError(f"ENV: '{env}' has no render(state), so there is nothing to watch.")
    episode = play(sim, player, seed)
    try:
        frames = list(all_frames(sim, episode))
    except Exception as error:
        raise RunError(
            f"ENV: render failed, which must return an image, uint8 [height, width, 3], with:\n"
            f"{traceback.format_exc().rstrip()}"
        ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    save_gif(frames, out, 0.5 if len(frames) < 60 else 0.08)
    return episode


def _run_player(
    run: str, agent: str | None, budget: int | None, options: dict[str, Any], trust: bool
) -> tuple[Simulator, Player]:
    """Return the simulator of a run, and the run's first seed as its player."""
    from save_rl.evaluation import settings_of_run, trained_player

    settings = settings_of_run(Path(run), "ENV", trust)
    if agent is not None:
        raise InputError(f"--agent: '{run}' is a run and plays itself; leave --agent out.")
    sim = make_simulator(settings.env, settings.seeds[0], **{**settings.env_options, **options})
    chosen = max(settings.budget, 1) if budget is None else budget
    return sim, trained_player(run, sim, chosen, trust=trust)


def _level_options(difficulty: int | str | None) -> dict[str, Any]:
    """Return options for exactly this level."""
    return {} if difficulty is None else {"difficulty": difficulty, "curriculum_sample": False}


def all_frames(sim: Simulator, episode: Episode) -> Iterator[np.ndarray]:
    draw: Any = sim.render  # pyright: ignore[reportAttributeAccessIssue]
    scene = getattr(episode.states[0], "scene", None)
    title = f"{scene.task}, level {scene.level}" if scene is not None else "start"
    values = [move.values for move in episode.moves]
    valued = bool(values) and all(v is not None and len(v.prior) <= _MOST_BARS for v in values)
    if not valued:  # else the first picture, with values beside it, is the first step's
        yield caption(draw(episode.states[0]), title)
    total = 0.0
    for number, move in enumerate(episode.moves, 1):
        total += move.reward
        ending = getattr(move.state, "ending", "") or ("the end" if move.over else "")
        text = f"step {number}   reward {move.reward:+.2f}   total {total:.2f}"
        text += "".join(f"   {part}" for part in (move.remark, ending) if part)
        for frame in _rolling(sim, move.state):
            yield caption(frame, text)
        frame = draw(move.state)
        if valued and move.values is not None:
            frame = beside(frame, _bars(sim, move.values), "Qθ grey, after search orange")
        yield caption(frame, text)


def _bars(sim: Simulator, values: RootValues) -> list[Bar]:
    """Return a bar per action: its value before and, if it was tried, after the search."""
    names = getattr(sim, "action_names", range(len(values.prior)))
    return [
        Bar(str(name), float(prior), float(found) if tried else None, number == values.action)
        for number, (name, prior, found, tried) in enumerate(
            zip(names, values.prior, values.searched, values.explored, strict=True)
        )
        if prior > -np.inf  # a forbidden action has no value
    ]


def _rolling(sim: Simulator, state: Any) -> Iterator[np.ndarray]:
    """Yield frames of the rolling marble, if it was released."""
    scene = getattr(state, "scene", None)
    if scene is None or scene.marble is None or state.ending in ("spawn_collision", "obstacle_hit"):
        return
    from save_rl.envs.construction.drawing import draw

    path = sim.roll(state).path  # pyright: ignore[reportAttributeAccessIssue]
    for end in np.unique(np.linspace(1, len(path), _MARBLE_FRAMES).astype(int)):
        yield draw(state, path=path[:end])


def small_picture(state: Any, path: np.ndarray | None = None) -> np.ndarray:
    """Draw a Construction state for sheets, without the empty sky; path: of the marble."""
    from save_rl.envs.construction.drawing import draw

    return draw(state, _SHEET_SIZE, path=path)[round(SKY * _SHEET_SIZE) :]


def scenes(env: str, out: Path, *, preset: str = "paper", seed: int = 0) -> None:
    """Write a sheet of sampled scenes: a row per level, as in the paper's curriculum figures."""
    require(out.suffix.lower() == ".png", "--scenes", f"'{out}'", "a file that ends in .png")
    if env not in ENVIRONMENTS:
        raise unknown_name("environment", env, ENVIRONMENTS, "ENV")
    if ENVIRONMENTS[env].simulator is not None:
        raise InputError(f"ENV: '{env}' has no levels to show; the Construction tasks have.")
    from save_rl.envs.construction import Construction
    from save_rl.envs.construction.tasks import TASKS, check_difficulty

    rows = []
    task = TASKS[env]
    check_difficulty(env, preset, 0, False)
    for level in [*range(task.max_difficulty[preset] + 1), *task.generalization]:
        sim = Construction(env, difficulty=level, curriculum_sample=False, preset=preset)
        states = [sim.reset(seed * _SHEET_COLUMNS + i) for i in range(_SHEET_COLUMNS)]
        label = f"level {level}" if isinstance(level, int) else level.replace("_", " ")
        rows.append((label, [small_picture(state) for state in states]))
    out.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(rows, out)
