"""Figures 3 and C.1 to C.3: agents with graph networks on Construction, tested at many budgets."""

import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from save_rl.agents import get_agent
from save_rl.errors import require, unknown_name
from save_rl.experiments.construction_claims import (
    ablation_claims,
    construction_claims,
    exploration_claims,
)  # fmt: skip
from save_rl.experiments.folder import check_scale, open_folder, write_provenance
from save_rl.report.results import Row

TASKS = ("silhouette", "connecting", "covering", "covering-hard")
CURVES = {"train_reward": "return_mean", "level_reward": "level_return"}
"""Metrics of a learning curve, and their columns in `metrics.csv`."""
CURVE_POINTS = 60
UCT_BUDGET = 0
"""Simulations of UCT at the scales small and paper; the paper has 1000, 0 leaves it out."""
# Medians at the hardest level: Q-learning without search, and training and testing with 10
# simulations but without amortization (construction.md 14.1 and 14.3, from Bapst et al. 2019).
PUBLISHED = {
    "silhouette": {"q-learning": 6.85, "save-no-amortization": 6.67},
    "connecting": {"q-learning": 2.17, "save-no-amortization": 1.90},
    "covering": {"q-learning": 5.03, "save-no-amortization": 5.28},
    "covering-hard": {"q-learning": 3.60, "save-no-amortization": 4.61},
}


@dataclass(frozen=True)
class Axes:
    """Every agent on every task, over seeds `0 … seeds-1`; each is a training run of its own."""

    tasks: tuple[str, ...]
    agents: tuple[str, ...]
    seeds: int
    episodes: int
    test_episodes: int
    budget: int = 10  # paper C.2
    budgets: tuple[int, ...] = (0, 5, 10, 20, 50)  # paper Fig. 3
    lanes: int = 64  # paper A, actors
    epsilon_episodes: float = 1e4  # paper A.1
    beta_episodes: float = 5e4  # paper C.1
    uct_budget: int = 0
    uct_episodes: int = 100

    def check(self) -> None:
        for task in self.tasks:
            if task not in TASKS:
                raise unknown_name("task", task, TASKS, "--tasks")
        for agent in self.agents:
            learns = get_agent(agent, "--agents").learns
            require(learns, "--agents", repr(agent), "agents that learn ('uct' is --uct-budget)")
        for budget in self.budgets:
            require(budget >= 0, "--budgets", budget, "0 or more")
        for option in ("tasks", "agents", "budgets"):
            given = getattr(self, option)
            require(len(given) > 0, f"--{option}", "()", "at least one value")
            require(len(set(given)) == len(given), f"--{option}", given, "different values")
        require(self.seeds >= 1, "--seeds", self.seeds, "at least 1")
        require(self.test_episodes >= 1, "--test-episodes", self.test_episodes, "at least 1")
        require(self.uct_budget >= 0, "--uct-budget", self.uct_budget, "0 (no UCT) or more")
        require(self.uct_episodes >= 1, "--uct-episodes", self.uct_episodes, "at least 1")
        require(
            self.uct_budget == 0 or "q-learning" in self.agents, "--uct-budget", self.uct_budget,
            "0 without 'q-learning' among --agents, whose network UCT needs",
        )  # fmt: skip
        for agent in self.agents:
            settings(self, self.tasks[0], agent, 0).check()


class Study(NamedTuple):
    """An experiment of this family: its axes by scale, and the claims of rows at a budget."""

    scales: dict[str, Axes]
    claims: Callable[[Sequence[Row], int], list[Any]]


def _scales(tasks: tuple[str, ...], agents: tuple[str, ...], tests: int, uct: int) -> Any:
    """The three scales; `tests` episodes at the paper's."""
    return {
        "smoke": Axes(
            ("covering",), agents, seeds=1, episodes=40, test_episodes=4, budget=3, budgets=(0, 3),
            lanes=8, epsilon_episodes=20, beta_episodes=40,
        ),
        "small": Axes(
            tasks, agents, seeds=3, episodes=10_000, test_episodes=200, lanes=128,
            epsilon_episodes=2e3, beta_episodes=5e3, uct_budget=uct,
        ),
        "paper": Axes(  # paper C.2
            tasks, agents, seeds=10, episodes=1_000_000, test_episodes=tests, uct_budget=uct
        ),
    }  # fmt: skip


STUDIES = {
    "construction": Study(
        _scales(
            ("connecting", "covering", "covering-hard"),
            ("save", "save-no-amortization", "q-learning"), 10_000, UCT_BUDGET,
        ),
        construction_claims,
    ),
    "construction-ablations": Study(
        _scales(
            ("covering",),
            ("save", "save-no-amortization", "save-l2", "save-no-q-learning", "save-puct"),
            1000, 0,
        ),
        ablation_claims,
    ),
    "construction-exploration": Study(
        _scales(("covering",), ("save", "save-ucb", "save-softmax", "save-counts"), 1000, 0),
        exploration_claims,
    ),
}  # fmt: skip


def settings(axes: Axes, task: str, agent: str, seed: int) -> Any:
    """The training settings of one run."""
    from save_rl.training.settings import TrainSettings

    return TrainSettings(
        env=task,
        agent=agent,
        episodes=axes.episodes,
        budget=axes.budget,
        seeds=(seed,),
        lanes=axes.lanes,
        epsilon_episodes=axes.epsilon_episodes,
        beta_episodes=axes.beta_episodes,
    )


def read_tests(path: Path, budgets: Sequence[int], episodes: int) -> dict[int, np.ndarray] | None:
    """Returns by budget from an `evaluation.csv`; None unless it is there with just these."""
    if not path.exists():
        return None
    found: dict[int, list[float]] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            found.setdefault(int(line["budget"]), []).append(float(line["return"]))
    counts = {budget: len(returns) for budget, returns in found.items()}
    if counts != dict.fromkeys(budgets, episodes):
        return None
    return {budget: np.array(found[budget]) for budget in budgets}


def thin(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most so many of the points (episodes, value), evenly over log episodes; ends are kept."""
    points = [point for point in points if point[0] > 0]
    if len(points) <= most:
        return points
    at = np.log([episodes for episodes, _ in points])
    wanted = np.linspace(at[0], at[-1], most)
    nearest = np.abs(at[:, None] - wanted).argmin(0)
    return [points[i] for i in np.unique(nearest)]


def run_rows(
    conditions: Row, budget: int, metrics: list[dict[str, float]], tests: dict[int, np.ndarray]
) -> list[Row]:
    """Long-form rows of one run: its curves, and its mean test reward at every budget.

    conditions: experiment, agent, seed and task. budget: of its searches while training.
    """

    def row(budget: int, episodes: int, metric: str, value: float) -> Row:
        shared = {**conditions, "budget": budget, "episodes": episodes}
        return {**shared, "metric": metric, "value": value}

    rows = []
    for metric, column in CURVES.items():
        curve = [(int(line["episodes"]), line[column]) for line in metrics if column in line]
        rows += [row(budget, at, metric, value) for at, value in thin(curve, CURVE_POINTS)]
    trained = int(metrics[-1]["episodes"])
    for tested, returns in tests.items():
        rows.append(row(tested, trained, "test_reward", float(returns.mean())))
    return rows


def train_and_test(
    axes: Axes, chosen: Any, folder: Path, device: str, workers: int, label: str
) -> tuple[list[dict[str, float]], dict[int, np.ndarray]]:
    """The metrics of a run and its returns by test budget; what is done is only read."""
    from save_rl.evaluation import evaluate
    from save_rl.training.loop import train
    from save_rl.training.run_directory import RunDirectory

    table, run = folder / "evaluation.csv", RunDirectory(folder)
    tests = read_tests(table, axes.budgets, axes.test_episodes)
    if tests is not None:
        metrics = run.read_metrics()
        if metrics and metrics[-1]["episodes"] >= chosen.episodes:
            return metrics, tests
    table.unlink(missing_ok=True)  # of a run that had not ended
    resume = (folder / "config.json").exists()
    train(chosen, folder, resume=resume, device=device, workers=workers, label=label)
    results = evaluate(folder, axes.budgets, axes.test_episodes, device=device, workers=workers)
    return run.read_metrics(), {result.budget: result.returns[0] for result in results}


def uct_rows(
    axes: Axes, conditions: Row, folder: Path, rows: list[Row], device: str, workers: int
) -> list[Row]:
    """UCT that bootstraps from the network of the Q-learning run in `folder`, whose rows these are.

    The table is `evaluation-uct.csv`, beside the run's own.
    """
    from save_rl.evaluation import evaluate

    table, budgets, episodes = folder / "evaluation-uct.csv", (axes.uct_budget,), axes.uct_episodes
    if (tests := read_tests(table, budgets, episodes)) is None:
        options = {"out": table, "device": device, "workers": workers}
        (result,) = evaluate(folder, budgets, episodes, agent="uct", **options)
        tests = {axes.uct_budget: result.returns[0]}
    last = {
        "budget": axes.uct_budget, "episodes": rows[-1]["episodes"], "metric": "test_reward",
        "value": float(tests[axes.uct_budget].mean()),
    }  # fmt: skip
    return [{**conditions, "agent": "uct", **last}]


def run(
    name: str,
    scale: str,
    overrides: dict[str, Any],
    out: Path,
    resume: bool,
    command: str,
    device: str,
    workers: int = -1,
) -> list[Any]:
    """Train and test everything of the study `name`, write the files; returns the claims."""
    from save_rl.envs import make
    from save_rl.report.claims import write_claims
    from save_rl.report.panels import budget_figure, curve_panels
    from save_rl.report.results import write_results
    from save_rl.training.devices import select_device

    check_scale(scale)
    study = STUDIES[name]
    axes = replace(study.scales[scale], **overrides)
    axes.check()
    require(workers >= -1, "--workers", workers, "-1 (one per core), 0 (no processes) or more")
    for task in axes.tasks:
        make(task)  # refuses at once where the physics engine is not installed
    chosen = select_device(device)
    open_folder(out, name, axes, resume)
    started = time.monotonic()
    rows: list[Row] = []
    # Seeds outermost: what there is when a reproduction is stopped compares all agents.
    cells = list(product(range(axes.seeds), axes.tasks, axes.agents))
    for number, (seed, task, agent) in enumerate(cells, 1):
        folder = out / "runs" / task / f"{agent}-{seed}"
        of_run = settings(axes, task, agent, seed)
        label = f"{number}/{len(cells)} {task}, {agent}, seed {seed}"
        metrics, tests = train_and_test(axes, of_run, folder, device, workers, label)
        conditions: Row = {"experiment": name, "agent": agent, "seed": seed, "task": task}
        budget = axes.budget if get_agent(agent).search is not None else 0
        found = run_rows(conditions, budget, metrics, tests)
        if axes.uct_budget > 0 and agent == "q-learning":
            found += uct_rows(axes, conditions, folder, found, device, workers)
        rows += found
        write_results(out / "results.csv", rows)
    budget_figure(rows, out / "figure.png", published=PUBLISHED)
    curve_panels(rows, out / "curves.png", metric="train_reward", y_label="Reward in training")
    claims = study.claims(rows, axes.budget)
    write_claims(out / "claims.json", claims)
    write_provenance(out, command, chosen.device_kind, started)
    return claims
