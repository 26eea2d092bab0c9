"""Agents on suites of JAX environments: MinAtar, and a mixed suite of other small problems.

Not in the paper: the same comparison on problems that many people know, at equal real steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from save_rl.errors import require
from save_rl.experiments.cells import Cell, Metrics, Table, Tests
from save_rl.experiments.experiment import Experiment, Resources, Work
from save_rl.experiments.runs import (
    check_agents,
    check_choices,
    run_options,
    run_settings,
    thin,
    training_budget,
    training_runs,
)
from save_rl.experiments.suite_claims import SAVE, normalised, suite_claims
from save_rl.report.results import Row

if TYPE_CHECKING:
    from save_rl.envs.check.look import Look

MINATAR = tuple(
    f"gymnax/{game}-MinAtar"
    for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
)
OTHERS = (
    "gymnax/CartPole-v1", "gymnax/Acrobot-v1", "gymnax/MountainCar-v0", "gymnax/Catch-bsuite",
    "gymnax/DeepSea-bsuite", "gymnax/FourRooms-misc", "jumanji/Game2048-v1",
    "jumanji/Minesweeper-v0", "jumanji/SlidingTilePuzzle-v0", "jumanji/Snake-v1",
    "jumanji/Maze-v0", "pgx/2048",
)  # fmt: skip
AGENTS = (SAVE, "save-no-amortization", "q-learning", "puct", "gumbel")
# Steps after which an episode is cut off, where Jumanji allows many more.
ENV_OPTIONS = {
    "jumanji/SlidingTilePuzzle-v0": {"time_limit": 200},  # a start is 200 moves from the solution
    "jumanji/Snake-v1": {"time_limit": 1000},  # a snake that runs in circles never ends
}
FITTED = ("discount", "reward_scale", "n_step")
ANY_NUMBER = 2**31 - 1  # episodes: no limit, the number of steps ends a run
RANDOM_EPISODES = 100


@dataclass(frozen=True)
class SuiteAxes:
    """Every agent on every environment, over seeds `0 … seeds-1`; a run holds all seeds.

    epsilon_steps: real steps over which ε falls. replay, batch, lanes: see `TrainSettings`. fitted:
    discount, reward scale and n-step are chosen for each environment, as in `save-rl train`, the
    same for all agents; else they are the paper's, for rewards of 1.
    """

    envs: tuple[str, ...]
    steps: int
    seeds: int = 5
    agents: tuple[str, ...] = AGENTS
    budget: int = 10
    budgets: tuple[int, ...] = (0, 5, 10, 20, 50)
    test_episodes: int = 128
    lanes: int = 64
    batch: int = 64
    replay: int = 100_000
    learning_rate: float = 3e-4
    epsilon_steps: int = 100_000
    fitted: bool = False

    def check(self) -> None:
        check_agents(self.agents)
        check_choices(self, ("envs", "agents", "budgets"))
        require(self.seeds >= 1, "--seeds", self.seeds, "at least 1")
        require(self.steps >= 1, "--steps", self.steps, "at least 1")
        require(self.test_episodes >= 1, "--test-episodes", self.test_episodes, "at least 1")
        require(min(self.budgets) >= 0, "--budgets", min(self.budgets), "0 or more")
        for env, agent in product(self.envs, self.agents):
            settings(self, env, agent).check()


def settings(axes: SuiteAxes, env: str, agent: str, seen: "Look | None" = None) -> Any:
    """Return the training settings of one run; seen: of random play, to fit them to."""
    from save_rl.training.automatic import choose

    made = run_settings(
        axes, env, agent, env_options=ENV_OPTIONS.get(env, {}), episodes=ANY_NUMBER,
        steps=axes.steps, batch=axes.batch, replay=axes.replay,
        min_replay=min(axes.replay, max(1000, axes.batch)), learning_rate=axes.learning_rate,
        epsilon_steps=axes.epsilon_steps,
    )  # fmt: skip
    if seen is None:
        return made
    given = {one.name for one in fields(made)} - {*FITTED, "epsilon_episodes"}
    return choose(made, given, seen)


def make_cells(axes: SuiteAxes, out: Path) -> list[Cell]:
    """Return all runs and their tests."""
    from save_rl.envs.check.look import look

    table = Table("evaluation.csv", axes.budgets, axes.test_episodes)
    seen = {
        env: look(env, ENV_OPTIONS.get(env, {}), check=False) if axes.fitted else None
        for env in axes.envs
    }
    return [
        Cell(
            f"{env}, {agent}", run_folder(out, env, agent), settings(axes, env, agent, seen[env]),
            (table,),
        )
        for env, agent in product(axes.envs, axes.agents)
    ]  # fmt: skip


def run_folder(out: Path, env: str, agent: str) -> Path:
    """Return the folder of a run."""
    return out / "runs" / env.replace("/", "-") / agent


def rows_of(name: str, axes: SuiteAxes, cell: Cell, metrics: Metrics, tests: Any) -> list[Row]:
    """Return the rows of a cell: its learning curve over real and all simulator steps, its tests,
    its score and its speed."""
    made = cell.settings
    shared: Row = {"experiment": name, "agent": made.agent, "seed": made.seeds[0], "game": made.env}

    def row(line: dict[str, float], metric: str, value: float, budget: int | None = None) -> Row:
        steps, simulated = int(line["env_steps"]), int(line["simulator_steps"])
        at = {"steps": steps, "all_steps": steps + simulated, "budget": budget}
        kept = {key: given for key, given in at.items() if given is not None}
        return {**shared, **kept, "metric": metric, "value": value}

    curve = [(int(line["env_steps"]), line) for line in metrics if "return_mean" in line]
    rows = [row(at, "train_reward", at["return_mean"]) for _, at in thin(curve)]
    last, by_budget = metrics[-1], tests["evaluation.csv"]
    rows += [row(last, "test_reward", float(x.mean()), k) for k, x in by_budget.items()]
    own = training_budget(made.agent, axes.budget)
    nearest = min(by_budget, key=lambda k: abs(k - own))
    rows.append(row(last, "score", float(by_budget[nearest].mean()), nearest))
    if last["time_s"] > metrics[0]["time_s"]:
        speed = (last["env_steps"] - metrics[0]["env_steps"]) / (
            last["time_s"] - metrics[0]["time_s"]
        )
        rows.append(row(last, "steps_per_second", speed))
    return rows


def random_rows(name: str, env: str) -> list[Row]:
    """Return the mean return of random play, with which scores are normalised."""
    from save_rl.envs import make_simulator
    from save_rl.players import make_player, play

    sim = make_simulator(env, **ENV_OPTIONS.get(env, {}))
    player = make_player("random", sim, 0)
    returns = [play(sim, player, seed).total for seed in range(RANDOM_EPISODES)]
    shared: Row = {"experiment": name, "agent": "random", "seed": 0, "game": env}
    return [{**shared, "metric": "score", "value": float(np.mean(returns))}]


def work_of(name: str) -> Any:
    """Return the work of a suite: the training runs, and random play."""

    def rows(axes: SuiteAxes, cell: Cell, metrics: Metrics, tests: dict[str, Tests]) -> list[Row]:
        return rows_of(name, axes, cell, metrics, tests)

    runs = training_runs(make_cells, rows)

    def work(axes: SuiteAxes, out: Path, resources: Resources) -> Work:
        device, make = runs(axes, out, resources)
        return Work(
            device, lambda: [*make(), *(row for env in axes.envs for row in random_rows(name, env))]
        )

    return work


def figures(rows: Sequence[Row], axes: SuiteAxes, out: Path, _: str) -> None:
    """Draw scores over all environments, and learning curves over real and all steps."""
    from save_rl.report.games import game_curves
    from save_rl.report.suites import suite_figure

    titles = {env: env.partition("/")[2].removesuffix("-MinAtar") for env in axes.envs}
    suite_figure(normalised(rows, axes.envs, axes.agents), out / "figure.png", first=SAVE)
    game_curves(rows, out / "curves.png", titles, over="steps", x_label="Real steps")
    game_curves(
        rows, out / "curves-all-steps.png", titles, over="all_steps",
        x_label="Real and simulated steps",
    )  # fmt: skip


def _experiment(name: str, title: str, scales: dict[str, SuiteAxes], help: str) -> Any:
    return Experiment(
        name,
        f"{title}. The scale sets the axes; options override it.",
        scales,
        options={
            **run_options(help),
            "envs": "Environments, as in save-rl train.",
            "agents": "Agents that learn.",
            "seeds": "Number of seeds; they share a run.",
            "steps": "Real steps of every seed.",
            "budget": "Simulations per decision while training, and of the score.",
            "budgets": "Budgets of the tests.",
            "test_episodes": "Test episodes per budget.",
            "lanes": "Episodes played in parallel while training.",
            "batch": "Transitions per update.",
            "replay": "Transitions kept.",
            "learning_rate": "Adam's learning rate.",
            "epsilon_steps": "Real steps over which ε falls.",
            "fitted": "Fit γ, scale of rewards and n-step to each environment, as save-rl train.",
        },
        work=work_of(name),
        claims=lambda rows, axes: suite_claims(rows, axes.envs, axes.agents, axes.steps),
        figures=figures,
    )


_TINY: dict[str, Any] = {
    "seeds": 2, "steps": 2_048, "budget": 3, "budgets": (0, 3), "test_episodes": 4, "lanes": 16,
    "batch": 16, "replay": 2_000, "epsilon_steps": 1_000,
}  # fmt: skip
MINATAR_SUITE = _experiment(
    "minatar",
    "SAVE, its ablation, Q-learning, PUCT and Gumbel AlphaZero on MinAtar",
    {
        "smoke": SuiteAxes(MINATAR[1:2], agents=(SAVE, "q-learning"), **_TINY),
        "small": SuiteAxes(MINATAR, steps=500_000),
        "paper": SuiteAxes(MINATAR, steps=2_000_000),
    },
    "smoke (two minutes), small (5e5 steps), paper (5 seeds, 2e6 steps).",
)
JAX_SUITE = _experiment(
    "jax-suite",
    "The agents of minatar on twelve other JAX environments",
    {
        "smoke": SuiteAxes(
            ("gymnax/Catch-bsuite",), agents=(SAVE, "q-learning"), fitted=True, **_TINY
        ),
        "small": SuiteAxes(OTHERS, steps=100_000, epsilon_steps=20_000, replay=20_000, fitted=True),
        "paper": SuiteAxes(OTHERS, steps=500_000, epsilon_steps=50_000, fitted=True),
    },
    "smoke (two minutes), small (1e5 steps), paper (5 seeds, 5e5 steps).",
)
