"""Figures 3 and C.1 to C.4: agents with graph networks on Construction, tested at many budgets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from save_rl.agents import get_agent
from save_rl.errors import require, unknown_name
from save_rl.experiments.cells import Cell, Metrics, Table, Tests
from save_rl.experiments.construction_claims import (
    ablation_claims,
    construction_claims,
    efficiency_claims,
    exploration_claims,
)  # fmt: skip
from save_rl.experiments.experiment import Experiment
from save_rl.experiments.runs import (
    build,
    check_agents,
    check_choices,
    run_options,
    run_settings,
    thin,
    training_budget,
    training_runs,
)
from save_rl.report.claims import Claim
from save_rl.report.results import Row

TASKS = ("silhouette", "connecting", "covering", "covering-hard")
CURVES = {"train_reward": "return_mean", "level_reward": "level_return"}
"""Metrics of a learning curve, and their columns in `metrics.csv`."""
EXPLORING = {"epsilon": "epsilon"}
OWN, LAST, UCT = "evaluation.csv", "evaluation-last.csv", "evaluation-uct.csv"
"""Tests of a run with its best and with its last parameters, and of UCT over its network."""
STRUCTURES, BARS, INTERACTIONS = "structures", "bars", "interactions"
"""Kinds of main figures, see `figures`."""
ANIMATED, REST_FRAMES, SECONDS_PER_FRAME = 3, 4, 0.4
"""Episodes per animation, extra frames at the end of each episode, and seconds per frame."""
UCT_BUDGET = 1000  # paper, Fig. 3
"""Simulations of UCT at the scales small and paper."""
# Medians at the hardest level: Q-learning without search, and training and testing with 10
# simulations but without amortization (Bapst et al. 2019, Figs. 4 and 5; see
# docs/experiments/construction.md#published-numbers).
PUBLISHED = {
    "silhouette": {"q-learning": 6.85, "save-no-amortization": 6.67},
    "connecting": {"q-learning": 2.17, "save-no-amortization": 1.90},
    "covering": {"q-learning": 5.03, "save-no-amortization": 5.28},
    "covering-hard": {"q-learning": 3.60, "save-no-amortization": 4.61},
}


@dataclass(frozen=True)
class ConstructionAxes:
    """Every agent on every task; each is one training run with seeds `0 … seeds-1` together."""

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
    # The paper's "replay ratio of 4" may mean 4 updates of 16 per step, as in Bapst et al. 2019;
    # 16 was better than 4 at equal real steps (results/construction-study).
    replay_ratio: int = 16
    masked: bool = False  # the papers' agents have to learn which edges are valid
    uct_budget: int = 0
    uct_episodes: int = 100
    # Agents that train without search play budget + 1 times as many episodes (Fig. C.4).
    equal_interactions: bool = False

    def check(self) -> None:
        for task in self.tasks:
            if task not in TASKS:
                raise unknown_name("task", task, TASKS, "--tasks")
        check_agents(self.agents, " ('uct' is --uct-budget)")
        for budget in self.budgets:
            require(budget >= 0, "--budgets", budget, "0 or more")
        check_choices(self, ("tasks", "agents", "budgets"))
        require(self.seeds >= 1, "--seeds", self.seeds, "at least 1")
        require(self.test_episodes >= 1, "--test-episodes", self.test_episodes, "at least 1")
        require(self.uct_budget >= 0, "--uct-budget", self.uct_budget, "0 (no UCT) or more")
        require(self.uct_episodes >= 1, "--uct-episodes", self.uct_episodes, "at least 1")
        require(
            self.uct_budget == 0 or "q-learning" in self.agents, "--uct-budget", self.uct_budget,
            "0 without 'q-learning' among --agents, whose network UCT needs",
        )  # fmt: skip
        for agent in self.agents:
            settings(self, self.tasks[0], agent).check()


def settings(axes: ConstructionAxes, task: str, agent: str) -> Any:
    """Return the training settings of one run."""
    searches = training_budget(agent, axes.budget) > 0
    times = 1 if searches or not axes.equal_interactions else axes.budget + 1
    return run_settings(
        axes, task, agent, env_options={"masked": axes.masked}, episodes=times * axes.episodes,
        epsilon_episodes=axes.epsilon_episodes, beta_episodes=axes.beta_episodes,
        replay_ratio=axes.replay_ratio,
    )  # fmt: skip


def run_rows(
    conditions: Row, budget: int, metrics: Metrics, tests: Tests, last: Tests,
    interactions: bool = False,
) -> list[Row]:  # fmt: skip
    """Return long-form rows of one run: its curves, and its mean test reward at every budget.

    conditions: experiment, agent, seed and task. budget: of its searches in training. last: tests
    of its last parameters. interactions: add the number of simulator steps, searches included, and
    the curve of ε.
    """

    def row(budget: int, line: dict[str, float], metric: str, value: float) -> Row:
        shared: Row = {**conditions, "budget": budget, "episodes": int(line["episodes"])}
        if interactions:
            shared["interactions"] = int(line["env_steps"] + line["simulator_steps"])
        return {**shared, "metric": metric, "value": value}

    rows = []
    for metric, column in (CURVES | EXPLORING if interactions else CURVES).items():
        curve = [(int(line["episodes"]), line) for line in metrics if column in line]
        rows += [row(budget, line, metric, line[column]) for _, line in thin(curve)]
    for metric, found in (("last_test_reward", last), ("test_reward", tests)):
        for tested, returns in found.items():
            rows.append(row(tested, metrics[-1], metric, float(returns.mean())))
    return rows


def make_cells(axes: ConstructionAxes, out: Path) -> list[Cell]:
    """Return all runs and their tests.

    UCT bootstraps from the network of a Q-learning run, so its table is in that run's folder.
    """
    own = Table(OWN, axes.budgets, axes.test_episodes)
    last = Table(LAST, axes.budgets, axes.test_episodes, last=True)
    uct = Table(UCT, (axes.uct_budget,), axes.uct_episodes, agent="uct")
    return [
        Cell(
            f"{task}, {agent}",
            run_folder(out, task, agent),
            settings(axes, task, agent),
            (own, last, *[uct] * (axes.uct_budget > 0 and agent == "q-learning")),
        )
        for task, agent in product(axes.tasks, axes.agents)
    ]


def run_folder(out: Path, task: str, agent: str) -> Path:
    """Return the folder of a run."""
    return out / "runs" / task / agent


def pictures(axes: ConstructionAxes, out: Path, device: str) -> None:
    """Draw what seed 0 of the runs builds on the hardest level, with the budget of training.

    `gallery.png` has a row per task and agent, with the same scenes for all agents of a task;
    `TASK.gif` animates SAVE's episodes. Agents whose prior is not Qθ are left out.
    """
    from save_rl.envs.construction import Construction
    from save_rl.report.palette import label
    from save_rl.report.pictures import caption, contact_sheet, save_gif
    from save_rl.watch import small_picture

    rows = []
    agents = [agent for agent in axes.agents if get_agent(agent).prior == "q"]
    for task, agent in product(axes.tasks, agents):
        sim = Construction(task, curriculum_sample=False, masked=axes.masked)
        episodes = build(run_folder(out, task, agent), sim, axes.budget, device)
        row = []
        for episode in episodes:
            end = episode.states[-1]
            text = f"reward {episode.total:.2f}   blocks {len(end.block_array)}   {end.ending}"
            row.append(caption(small_picture(end), text))
        rows.append((f"{task}\n{label(agent)}", row))
        if agent == "save":
            save_gif(_animation(sim, episodes[:ANIMATED]), out / f"{task}.gif", SECONDS_PER_FRAME)
    if rows:
        contact_sheet(rows, out / "gallery.png")


def _animation(sim: Any, episodes: Sequence[Any]) -> list[np.ndarray]:
    """Return the frames of several episodes, block by block, with a pause after each."""
    from save_rl.watch import SKY, all_frames

    shown = []
    for episode in episodes:
        frames = [frame[round(SKY * frame.shape[1]) :] for frame in all_frames(sim, episode)]
        shown += [*frames, *frames[-1:] * REST_FRAMES]
    return shown


def rows_of(
    name: str,
    interactions: bool,
    axes: ConstructionAxes,
    cell: Cell,
    metrics: Metrics,
    tests: dict[str, Tests],
) -> list[Row]:
    """Return the rows of a cell of the experiment `name`, those of UCT last."""
    made = cell.settings
    conditions: Row = {
        "experiment": name, "agent": made.agent, "seed": made.seeds[0], "task": made.env
    }  # fmt: skip
    budget = training_budget(made.agent, axes.budget)
    found = run_rows(conditions, budget, metrics, tests[OWN], tests[LAST], interactions)
    for tested, returns in tests.get(UCT, {}).items():
        last = {"budget": tested, "metric": "test_reward", "value": float(returns.mean())}
        found.append({**found[-1], "agent": "uct", **last})
    return found


def figures(
    kind: str,
    rows: Sequence[Row],
    axes: ConstructionAxes,
    out: Path,
    device: str,
) -> None:
    """Draw the main figure of this kind, and learning curves.

    kind: 'budgets', rewards over test budgets; 'structures', the same and what is built; 'bars',
    rewards at the budget of training, and the others in budgets.png; 'interactions', curves over
    all simulator steps.
    """
    from save_rl.report.panels import bar_figure, budget_figure, curve_panels

    reward = {"metric": "train_reward", "y_label": "Reward in training"}
    if kind == INTERACTIONS:
        x = {"over": "interactions", "x_label": "Steps of simulators, search included"}
        curve_panels(rows, out / "figure.png", **reward, **x)
    elif kind == BARS:
        bar_figure(rows, out / "figure.png", axes.budget)
        budget_figure(rows, out / "budgets.png", published=PUBLISHED)
    else:
        budget_figure(rows, out / "figure.png", published=PUBLISHED)
    curve_panels(rows, out / "curves.png", **reward)
    if kind == STRUCTURES:
        pictures(axes, out, device)


def without_uct(axes: ConstructionAxes, given: Mapping[str, Any]) -> ConstructionAxes:
    """Return the axes without UCT where Q-learning, whose network it needs, is left out."""
    needless = "q-learning" not in axes.agents and "uct_budget" not in given
    return replace(axes, uct_budget=0) if needless else axes


def _scales(
    tasks: tuple[str, ...], agents: tuple[str, ...], tests: int, uct: int = 0, **all_scales: Any
) -> dict[str, ConstructionAxes]:
    """Return the axes of the three scales.

    tests: test episodes at 'paper'. uct: simulations of UCT at 'small' and 'paper'.
    """
    return {
        "smoke": ConstructionAxes(
            ("covering",), agents, seeds=1, episodes=40, test_episodes=4, budget=3, budgets=(0, 3),
            lanes=8, epsilon_episodes=20, beta_episodes=40, **all_scales,
        ),
        "small": ConstructionAxes(
            tasks, agents, seeds=3, episodes=10_000, test_episodes=200, lanes=128,
            epsilon_episodes=2e3, uct_budget=uct, uct_episodes=50, **all_scales,
        ),  # β as in the paper: SAVE learns more slowly if it changes faster
        "paper": ConstructionAxes(  # paper C.2
            tasks, agents, seeds=10, episodes=1_000_000, test_episodes=tests, uct_budget=uct,
            **all_scales,
        ),
    }  # fmt: skip


def _study(
    name: str,
    description: str,
    scales: dict[str, ConstructionAxes],
    claims: Callable[[Sequence[Row], int], list[Claim]],
    kind: str = "budgets",
) -> Experiment[ConstructionAxes]:
    """Return an experiment of this family.

    claims: from rows and a budget. kind: see `figures`.
    """
    return Experiment(
        name,
        description,
        scales,
        options=OPTIONS,
        work=training_runs(make_cells, partial(rows_of, name, kind == INTERACTIONS)),
        claims=lambda rows, axes: claims(rows, axes.budget),
        figures=partial(figures, kind),
        settle=without_uct,
    )


OPTIONS = {
    **run_options(
        "smoke (a minute), small (3 seeds, 10,000 episodes), paper (10 seeds, 1e6 episodes)."
    ),
    "tasks": "silhouette, connecting, covering, covering-hard.",
    "agents": "Agents that learn.",
    "seeds": "Number of seeds.",
    "episodes": "Training episodes.",
    "budget": "Simulations per decision while training.",
    "budgets": "Simulations per decision in tests.",
    "test_episodes": "Test episodes per budget, on the hardest level.",
    "lanes": "Episodes played in parallel while training.",
    "epsilon_episodes": "Episodes over which ε falls.",
    "beta_episodes": "Episodes over which the weights of the losses change.",
    "replay_ratio": "Average number of times each transition is replayed.",
    "masked": "Allow valid edges only; otherwise an invalid one ends the episode, as in the paper.",
    "uct_budget": "Simulations of UCT, with the network of Q-learning; 0 leaves it out.",
    "uct_episodes": "Test episodes of UCT.",
    "equal_interactions": "Agents without search train for budget + 1 times as many episodes.",
}
CONSTRUCTION = _study(
    "construction",
    "Figure 3a-c: rewards of SAVE, SAVE without amortization and Q-learning over test budgets.",
    _scales(
        ("connecting", "covering", "covering-hard"),
        ("save", "save-no-amortization", "q-learning"),
        10_000,
        UCT_BUDGET,
    ),
    construction_claims,
    STRUCTURES,
)
ABLATIONS = _study(
    "construction-ablations",
    "Figures 3d, C.1 and C.2: variants of SAVE on covering, their curves and rewards.",
    _scales(
        ("covering",),
        ("save", "save-no-amortization", "save-l2", "save-no-q-learning", "save-puct"),
        1000,
    ),
    ablation_claims,
    BARS,
)
EXPLORATION = _study(
    "construction-exploration",
    "Figure C.3: four exploration strategies of SAVE in training, on covering.",
    _scales(("covering",), ("save", "save-ucb", "save-softmax", "save-counts"), 1000),
    exploration_claims,
)
EFFICIENCY = _study(
    "construction-efficiency",
    "Figure C.4: SAVE and Q-learning on covering, over all simulator steps.",
    _scales(("covering",), ("save", "q-learning"), 1000, equal_interactions=True),
    efficiency_claims,
    INTERACTIONS,
)
