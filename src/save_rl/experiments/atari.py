"""Figures 5 and E.1, Table E.1: R2D2 with and without SAVE on Atari games."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.atari_protocol import MAX_FRAMES, REPEAT
from save_rl.errors import require, unknown_name
from save_rl.experiments.atari_claims import atari_claims, shortfall
from save_rl.experiments.atari_scores import (
    BASELINE,
    CONTROLLED,
    GAMES,
    PUBLISHED,
    SAVE,
    Scores,
    change,
    level,
)
from save_rl.experiments.atari_table import write_tables
from save_rl.experiments.cells import Cell, Metrics, Tests
from save_rl.experiments.experiment import Experiment
from save_rl.experiments.runs import (
    check_agents,
    check_choices,
    run_options,
    thin,
    training_runs,
)
from save_rl.learning.r2d2_settings import (
    NetworkSettings,
    R2D2Settings,
    ReplaySettings,
    SequenceSettings,
)
from save_rl.report.results import Row, select, values

NAME = "atari"
CURVE_POINTS = 200
ANY_NUMBER = 2**31 - 1  # episodes: no limit, the number of frames ends a run


class Profile(NamedTuple):
    """The size of training (docs/experiments/atari.md#profiles). lanes: the paper's actors."""

    lanes: int
    r2d2: R2D2Settings


PROFILES = {
    "two-cores": Profile(
        16,
        R2D2Settings(
            network=NetworkSettings(profile="small"),
            sequences=SequenceSettings(burn_in=10, train=20, period=10),
            replay=ReplaySettings(capacity=1_000, minimum=50, batch=8),
            refresh=40,
            target_period=100,
        ),
    ),
    # Eight times the paper's replay ratio: this is most of what makes learning visible in minutes.
    "minutes": Profile(
        128,
        R2D2Settings(
            replay=ReplaySettings(capacity=25_000, minimum=625, samples_per_insert=16.0),
            refresh=40,
            target_period=500,
        ),
    ),
    "accelerator": Profile(
        256, R2D2Settings(replay=ReplaySettings(capacity=25_000, minimum=1_250), refresh=40)
    ),
    "paper": Profile(1024, R2D2Settings(refresh=40)),
}
PAPER_BASELINE = Profile(256, R2D2Settings(refresh=400))  # R2D2 as published


@dataclass(frozen=True)
class AtariAxes:
    """Every agent on every game, over seeds `0 … seeds-1`; each combination is one training run.

    frames: of every run. lanes: None for the profile's. score_episodes: the score is the mean
    return of this many episodes at the end of training.
    """

    frames: float
    profile: str
    score_episodes: int
    games: tuple[str, ...] = tuple(GAMES)
    agents: tuple[str, ...] = (BASELINE, CONTROLLED, SAVE)
    seeds: int = 3  # paper E.2
    budget: int = 10  # paper E.1
    lanes: int | None = None
    max_frames: int = MAX_FRAMES
    discard_search: bool = False

    def check(self) -> None:
        check_agents(self.agents, frames=True)
        check_choices(self, ("games", "agents"))
        if self.profile not in PROFILES:
            raise unknown_name("profile", self.profile, PROFILES, "--profile")
        for name in ("seeds", "budget", "score_episodes", "max_frames"):
            value = getattr(self, name)
            require(value >= 1, f"--{name.replace('_', '-')}", value, "at least 1")
        allowed = f"false without '{CONTROLLED}' among --agents"
        fits = not self.discard_search or CONTROLLED in self.agents
        require(fits, "--discard-search", "true", allowed)
        require(float(self.frames).is_integer(), "--frames", self.frames, "a whole number")
        for agent in self.agents:
            made = settings(self, self.games[0], agent, 0)
            made.check()
            least = REPEAT * steps_to_learning(made)
            allowed = f"at least {least}, for '{agent}' to learn anything in this profile"
            require(self.frames >= least, "--frames", f"{self.frames:.0f}", allowed)


SCALES = {
    "smoke": AtariAxes(
        frames=2e4, profile="two-cores", score_episodes=16, games=("ms_pacman",), seeds=1, budget=3,
        max_frames=400,
    ),
    "small": AtariAxes(
        frames=4e6, profile="accelerator", score_episodes=256, agents=(CONTROLLED, SAVE)
    ),
    # The paper does not give the number of frames; R2D2's runs have about 1e10.
    "paper": AtariAxes(frames=1e10, profile="paper", score_episodes=20_000),
}  # fmt: skip


def settings(axes: AtariAxes, game: str, agent: str, seed: int) -> Any:
    """Return the training settings of one run."""
    from save_rl.training.settings import TrainSettings

    unchanged = axes.profile == "paper" and agent == BASELINE
    lanes, r2d2 = PAPER_BASELINE if unchanged else PROFILES[axes.profile]
    return TrainSettings(
        env=f"atari/{game}",
        env_options={"max_frames": axes.max_frames},
        agent=agent,
        episodes=ANY_NUMBER,
        steps=int(axes.frames) // REPEAT,
        budget=axes.budget,
        seeds=(seed,),
        lanes=lanes if axes.lanes is None else axes.lanes,
        r2d2=replace(r2d2, discard_search=axes.discard_search and agent == CONTROLLED),
    )


def steps_to_learning(made: Any) -> int:
    """Return the fewest agent steps after which the replay can hold enough sequences to learn.

    A lane completes its first sequence after `train` steps, and another every `period` steps until
    its episode ends.
    """
    cut, minimum = made.r2d2.sequences, made.r2d2.replay.minimum
    return cut.period * minimum + (cut.train - cut.period) * made.lanes


def last_episodes(metrics: Metrics, wanted: int) -> tuple[float, int]:
    """Return the mean return of the last `wanted` training episodes, and their number.

    Uses all episodes if there are fewer; nan if there are none. A line of metrics has the mean of
    the episodes that ended since the previous line; if only some of them are wanted, that mean
    stands for these.
    """
    total, count = 0.0, 0
    lines = [{"episodes": 0.0}, *metrics]
    for before, line in reversed(list(pairwise(lines))):
        ended = min(int(line["episodes"] - before["episodes"]), wanted - count)
        if ended > 0:
            total, count = total + ended * line["return_mean"], count + ended
    return total / count if count else float("nan"), count


def run_rows(conditions: Row, metrics: Metrics, wanted: int) -> list[Row]:
    """Return long-form rows of one run: its learning curve, score, episode counts and speed.

    conditions: experiment, agent, seed and game. wanted: episodes of a score.
    """

    def row(line: dict[str, float], metric: str, value: float) -> Row:
        frames = REPEAT * int(line["env_steps"])
        return {**conditions, "frames": frames, "metric": metric, "value": value}

    curve = [(int(line["env_steps"]), line) for line in metrics if "return_mean" in line]
    rows = [row(at, "train_reward", at["return_mean"]) for _, at in thin(curve, CURVE_POINTS)]
    first, last = metrics[0], metrics[-1]
    score, count = last_episodes(metrics, wanted)
    if count:
        rows.append(row(last, "score", score))
    rows += [row(last, "score_episodes", count), row(last, "episodes", int(last["episodes"]))]
    steps = np.diff([line["env_steps"] for line in metrics], prepend=0)
    for name in ("explored", "changed"):
        rows.append(row(last, name, float(np.average([at[name] for at in metrics], weights=steps))))
    if last["time_s"] > first["time_s"]:
        speed = (last["env_steps"] - first["env_steps"]) / (last["time_s"] - first["time_s"])
        rows.append(row(last, "steps_per_second", speed))
    return rows


def mean_scores(rows: Sequence[Row], games: Sequence[str]) -> Scores:
    """Return mean scores over seeds by game and agent, for those that have a score."""
    scores = select(rows, metric="score")
    return {
        game: {
            agent: float(found.mean())
            for agent in (BASELINE, CONTROLLED, SAVE)
            if (found := values(scores, game=game, agent=agent)).size
        }
        for game in games
    }


def _about(axes: AtariAxes) -> str:
    """Return a sentence that defines the scores."""
    seeds = f"{axes.seeds} seed{'s' * (axes.seeds > 1)}"
    cut = f" Episodes were cut after {axes.max_frames:,} frames." * (axes.max_frames < MAX_FRAMES)
    return (
        f"Means over {seeds}, of the last {axes.score_episodes:,} training episodes of each, after "
        f"{axes.frames:,.0f} frames.{cut}"
    )


def make_cells(axes: AtariAxes, out: Path) -> list[Cell]:
    """Return all runs, ordered by seed first, so that a reproduction stopped early can still
    compare all agents.

    There are no tests: the paper's scores are those of training.
    """
    return [
        Cell(
            f"{game}, {agent}, seed {seed}",
            out / "runs" / game / f"{agent}-{seed}",
            settings(axes, game, agent, seed),
            (),
        )
        for seed, game, agent in product(range(axes.seeds), axes.games, axes.agents)
    ]


def rows_of(axes: AtariAxes, cell: Cell, metrics: Metrics, _: dict[str, Tests]) -> list[Row]:
    """Return the rows of a cell."""
    made = cell.settings
    conditions: Row = {
        "experiment": NAME, "agent": made.agent, "seed": made.seeds[0],
        "game": made.env.removeprefix("atari/"),
    }  # fmt: skip
    return run_rows(conditions, metrics, axes.score_episodes)


def figures(rows: Sequence[Row], axes: AtariAxes, out: Path, _: str) -> None:
    """Draw changes of scores and learning curves, and write the tables of scores."""
    from save_rl.report.games import change_figure, game_curves

    scores = mean_scores(rows, axes.games)
    changes, published = (
        {level(game): found for game in table if (found := change(table[game])) is not None}
        for table in (scores, PUBLISHED)
    )
    label = "Change of score of SAVE over controlled R2D2 (%)"
    change_figure(changes, out / "figure.png", x_label=label, published=published)
    game_curves(rows, out / "curves.png", {game: level(game) for game in axes.games})
    write_tables(out, scores, f"{_about(axes)} {shortfall(rows, axes.score_episodes)}".strip())


def named_games(axes: AtariAxes, _: Mapping[str, Any]) -> AtariAxes:
    """Return the axes with games by the names of their ROMs."""
    from save_rl.envs.atari.emulator import find_game

    return replace(axes, games=tuple(find_game(game, "--games") for game in axes.games))


ATARI = Experiment(
    NAME,
    "Figures 5 and E.1, Table E.1: R2D2 and SAVE. The scale sets the axes; options override it.",
    SCALES,
    options={
        **run_options(
            "smoke (two minutes), small (4e6 frames, about 10 minutes per run on one accelerator), "
            "paper (1e10 frames).",
            simulators="emulators",
        ),
        "games": "Games by the names of their ROMs; default the paper's 14.",
        "agents": "r2d2 (the paper's baseline), r2d2-controlled, r2d2-save; default the last two "
        "at scale small, else all three.",
        "seeds": "Number of seeds.",
        "frames": "Game frames to train each run for; 4 per agent step.",
        "budget": "Simulations per decision while r2d2-save trains.",
        "profile": "Sizes of network, replay and batch: two-cores, minutes, accelerator or paper.",
        "lanes": "Episodes played in parallel (the paper's actors); default the profile's.",
        "score_episodes": "The score is the mean return of this many last training episodes.",
        "max_frames": "Frames after which an episode is truncated.",
        "discard_search": "Let r2d2-controlled search like r2d2-save but discard the result, as in "
        "the paper; it acts and learns the same.",
    },
    work=training_runs(make_cells, rows_of),
    claims=lambda rows, axes: atari_claims(rows, axes.budget, axes.score_episodes),
    figures=figures,
    settle=named_games,
)
