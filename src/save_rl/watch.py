"""Pictures of environments: an episode as a GIF, sampled scenes as a sheet."""

import itertools
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from save_rl.agents import get_agent, usual_budget
from save_rl.envs import ENVIRONMENTS, GYM, make_simulator
from save_rl.errors import InputError, RunError, require, require_numbers, unknown_name
from save_rl.players import Episode, Move, Player, RootValues, make_player, play
from save_rl.report.pictures import Bar, beside, caption, contact_sheet, enlarge, save_gif
from save_rl.training.run.progress import Progress
from save_rl.types import Simulator, State

_BUDGET = 50  # simulations per decision of an untrained search
MOST_STEPS = 1000
CUT = "stopped here"  # remark of the last move of an episode that was cut off
_MARBLE_FRAMES = 24  # most frames of one release
_WIDTH, _NARROW = 240, 480  # least width of a picture; below the second, captions have two lines
_MOST_BARS = 24  # actions whose values are shown
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
    steps: int = MOST_STEPS,
    env_options: dict[str, Any] | None = None,
    trust: bool = False,
) -> Episode:
    """Play one episode and write it as a GIF; return it.

    env: an environment, played by `agent` (default 'random'); or the folder of a run, played by its
    trained agent (default: with its training budget).
    steps: the most to play; an episode that is longer is cut off.
    trust: allow a run to import and run the `package.module:factory` that its folder names.
    """
    require_numbers({"--seed": seed, "--budget": budget, "--steps": steps}.items())
    require(out.suffix.lower() == ".gif", "--out", f"'{out}'", "a file that ends in .gif")
    require(seed >= 0, "--seed", seed, "0 or more")
    require(steps >= 1, "--steps", steps, "at least 1")
    options = {**_level_options(difficulty), **(env_options or {})}
    if Path(env).is_dir():
        sim, player = _run_player(env, agent, budget, options, trust)
    else:
        sim = make_simulator(env, seed, **_with_pictures(env, options))
        player = make_player(agent or "random", sim, _BUDGET if budget is None else budget)
    if not hasattr(sim, "render"):
        raise InputError(f"ENV: '{env}' has no render(state), so there is nothing to watch.")
    _require_pictures(env, sim, seed)
    episode = _play(env, sim, player, seed, steps)
    frames = []
    try:
        with Progress("drawing", len(episode.states), "pictures") as progress:
            for frame in all_frames(sim, episode):
                frames.append(frame)
                progress.update(len(frames))
    except Exception as error:
        raise RunError(
            f"ENV: render failed, which must return an image, uint8 [height, width, 3], with:\n"
            f"{traceback.format_exc().rstrip()}"
        ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    save_gif(frames, out, 0.5 if len(frames) < 60 else 0.08)
    return episode


def _require_pictures(env: str, sim: Simulator, seed: int) -> None:
    """Refuse an environment of Gymnasium whose pictures need a package that is not installed."""
    from gymnasium.error import DependencyNotInstalled

    try:
        _picture(sim, sim.reset(seed))
    except DependencyNotInstalled as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"ENV: '{env}' can't be drawn: {why}.") from error
    except Exception:
        return  # playing or drawing the episode reports it, with a traceback


def _play(env: str, sim: Simulator, player: Player, seed: int, steps: int) -> Episode:
    """Play an episode of at most this many steps, with progress."""
    most, total = min(steps, getattr(sim, "max_steps", steps)), 0.0
    with Progress(f"playing {env}, at most", most, "steps") as progress:
        count = itertools.count(1)

        def move(state: State, rng: np.random.Generator) -> Move:
            nonlocal total
            made, number = player(state, rng), next(count)
            total += made.reward
            progress.update(number, f"reward {total:.2f}")
            cut = number >= steps and not made.over
            return made._replace(over=True, remark=CUT) if cut else made

        return play(sim, move, seed)


def _with_pictures(env: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options; an environment of Gymnasium draws only if it is made to."""
    return {"render_mode": "rgb_array", **options} if env.startswith(GYM) else options


def _run_player(
    run: str, agent: str | None, budget: int | None, options: dict[str, Any], trust: bool
) -> tuple[Simulator, Player]:
    """Return the simulator of a run, and the run's first seed as its player."""
    from save_rl.evaluation import settings_of_run, trained_player

    settings = settings_of_run(Path(run), "ENV", trust)
    if agent is not None:
        raise InputError(f"--agent: '{run}' is a run and plays itself; leave --agent out.")
    options = _with_pictures(settings.env, {**settings.all_env_options, **options})
    sim = make_simulator(settings.env, settings.seeds[0], **options)
    usual = usual_budget(get_agent(settings.agent), settings.budget)
    chosen = usual if budget is None else budget
    return sim, trained_player(run, sim, chosen, trust=trust)


def _level_options(difficulty: int | str | None) -> dict[str, Any]:
    """Return options for exactly this level."""
    return {} if difficulty is None else {"difficulty": difficulty, "curriculum_sample": False}


def all_frames(sim: Simulator, episode: Episode) -> Iterator[np.ndarray]:
    """Yield the frames of an episode, all of one size."""
    scene = getattr(episode.states[0], "scene", None)
    title = f"{scene.task}, level {scene.level}" if scene is not None else "start"
    values = [move.values for move in episode.moves]
    valued = bool(values) and all(v is not None and len(v.prior) <= _MOST_BARS for v in values)
    if not valued:  # else the first picture, with values beside it, is the first step's
        yield _captioned(_picture(sim, episode.states[0]), [title])
    total = 0.0
    for number, move in enumerate(episode.moves, 1):
        total += move.reward
        ending = getattr(move.state, "ending", "")
        if not ending and move.over and move.remark != CUT:
            ending = "the end"
        says = [f"step {number}   reward {move.reward:+.2f}   total {total:.2f}"]
        says += [part for part in (move.remark, ending) if part]
        for frame in _rolling(sim, move.state):
            yield _captioned(frame, says)
        frame = _picture(sim, move.state)
        if valued and move.values is not None:
            frame = beside(frame, _bars(sim, move.values), "Qθ grey, after search orange")
        yield _captioned(frame, says)


def _picture(sim: Simulator, state: Any) -> np.ndarray:
    return enlarge(sim.render(state), _WIDTH)  # pyright: ignore[reportAttributeAccessIssue]


def _captioned(frame: np.ndarray, says: list[str]) -> np.ndarray:
    """Return a frame with a caption; below a narrow one, the first part has its own line."""
    if frame.shape[1] >= _NARROW:
        return caption(frame, "   ".join(says))
    return caption(frame, f"{says[0]}\n{'   '.join(says[1:])}")


def _bars(sim: Simulator, values: RootValues) -> list[Bar]:
    """Return a bar per action: its value before and, if it was tried, after the search."""
    names = getattr(sim, "action_names", range(len(values.prior)))
    return [
        Bar(
            str(name), float(prior) if prior > -np.inf else None, float(found) if tried else None,
            number == values.action,
        )
        for number, (name, prior, found, tried) in enumerate(
            zip(names, values.prior, values.searched, values.explored, strict=True)
        )
    ]  # fmt: skip


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
