"""Figures with a panel per task are valid, repeatable, and show every number they are given."""

from functools import cache, partial

import pytest

from save_rl.report import panels
from save_rl.report.panels import (
    _median_rises,
    bar_figure,
    budget_figure,
    curve_panels,
    level_figure,
    progress_figure,
)

pytestmark = pytest.mark.xdist_group("panels")  # each figure is drawn once for all of them
PUBLISHED = {"covering": {"save": 1.7, "q-learning": 1.2}, "connecting": {"puct": 9.0}}


def row(agent, seed, value, task="covering", budget=10, episodes=100, metric="test_reward"):
    conditions = {"task": task, "budget": budget, "episodes": episodes}
    return {"agent": agent, "seed": seed, **conditions, "metric": metric, "value": value}


TESTS = [
    row(agent, seed, 1 + seed / 5 + budget / 50, task, budget)
    for agent in ("save", "q-learning")
    for seed in range(3)
    for task in ("covering", "connecting")
    for budget in (0, 10, 50)
]
UCT = [row("uct", seed, seed / 10, budget=1000) for seed in range(3)]
CURVES = [
    row(agent, seed, episodes / 100, task, episodes=episodes, metric="train_reward")
    for agent in ("save", "my-own")
    for seed in range(3)
    for task in ("covering", "connecting")
    for episodes in (10 + seed, 50, 90 + seed)
]
OVER_STEPS = [r | {"interactions": 11 * r["episodes"]} for r in CURVES]


def marble(agent, seed, cost, level, episodes, metric, value):
    conditions = {"sticky_cost": cost, "level": level, "budget": 10, "episodes": episodes}
    return {"agent": agent, "seed": seed, **conditions, "metric": metric, "value": value}


MARBLE = [
    made
    for agent in ("save", "q-learning")
    for seed in range(3)
    for cost in (0.0, 0.04)
    for made in (
        *(marble(agent, seed, cost, n, 900, "test_reward", (seed + n) / 10) for n in range(4)),
        *(marble(agent, seed, cost, n, at, "episodes_to_level", at)
          for n, at in enumerate((90 + seed, 200, 300 + seed)[: seed + 1], 1)),
        marble(agent, seed, cost, None, 900, "final_level", seed + 1),
        *(marble(agent, seed, cost, 0, at, "level_reward", at / 900) for at in (9, 90, 900)),
    )
]  # fmt: skip
curves = partial(curve_panels, metric="train_reward", y_label="Reward")
FIGURES = {
    "budgets": partial(budget_figure, TESTS),
    "uct": partial(budget_figure, TESTS + UCT, published=PUBLISHED),
    "one number": partial(budget_figure, TESTS[:1]),
    "bars": partial(bar_figure, TESTS + UCT, budget=10),
    "no bars": partial(bar_figure, TESTS, budget=7),
    "no tests": partial(budget_figure, CURVES, published=PUBLISHED),
    "curves": partial(curves, CURVES),
    "no curves": partial(curves, TESTS),
    "over steps": partial(curves, OVER_STEPS, over="interactions", x_label="Steps"),
    "curves by cost": partial(
        curve_panels, MARBLE, metric="level_reward", y_label="Reward", by="sticky_cost"
    ),
    "levels": partial(level_figure, MARBLE),
    "no levels": partial(level_figure, []),
    "progress": partial(progress_figure, MARBLE),
    "no progress": partial(
        progress_figure, [r for r in MARBLE if r["metric"] != "episodes_to_level"]
    ),
    "nobody": partial(progress_figure, []),
}


AGAIN = ("uct", "over steps", "levels", "progress")  # each way to draw once


def picture(draw, folder):
    draw(folder / "figure.png")
    return (folder / "figure.png").read_bytes()


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """The figures, by their names; each is drawn when it is first asked for."""
    folder = tmp_path_factory.mktemp("panels")
    return cache(lambda name: picture(FIGURES[name], folder))


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_a_png(name, before):
    assert before(name).startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("name", AGAIN)
def test_a_figure_has_the_same_bytes_when_drawn_again(name, before, tmp_path):
    assert picture(FIGURES[name], tmp_path) == before(name)


@pytest.mark.parametrize(
    "change",
    [
        {"agent": "save", "seed": 2, "task": "connecting", "budget": 50},
        {"agent": "q-learning", "seed": 0, "task": "covering", "budget": 0},
        {"agent": "uct", "seed": 1, "task": "covering", "budget": 1000},
    ],
    ids=str,
)
def test_every_number_changes_the_figure(change, before, tmp_path):
    rows = TESTS + UCT
    moved = [r | {"value": 1.9} if change.items() <= r.items() else r for r in rows]
    assert moved != rows
    drawn = picture(partial(budget_figure, moved, published=PUBLISHED), tmp_path)
    assert drawn != before("uct")


@pytest.mark.parametrize("seed", range(3))
def test_every_number_at_its_budget_changes_the_bars(seed, before, tmp_path):
    change = {"agent": "save", "seed": seed, "task": "connecting"}

    def drawn(budget):
        here = change | {"budget": budget}
        moved = [r | {"value": 3.0} if here.items() <= r.items() else r for r in TESTS + UCT]
        return picture(partial(bar_figure, moved, budget=10), tmp_path)

    assert drawn(10) != before("bars")
    assert drawn(50) == before("bars")


def test_published_numbers_of_other_agents_and_tasks_are_left_out(tmp_path):
    covering = [r for r in TESTS if r["task"] == "covering"]
    others = {"connecting": {"save": 1.0}, "covering": {"puct": 2.0}}
    assert picture(partial(budget_figure, covering, published=others), tmp_path) == picture(
        partial(budget_figure, covering), tmp_path
    )


@pytest.mark.parametrize(
    ("name", "metric"), [("levels", "test_reward"), ("progress", "episodes_to_level")]
)
@pytest.mark.parametrize("cost", [0.0, 0.04])
def test_every_number_changes_the_figures_of_marble_run(name, metric, cost, before, tmp_path):
    change = {"agent": "q-learning", "seed": 2, "sticky_cost": cost, "level": 2, "metric": metric}
    moved = [
        r | {"value": 0.99 * r["value"] + 1} if change.items() <= r.items() else r for r in MARBLE
    ]
    assert moved != MARBLE
    assert picture(partial(FIGURES[name].func, moved), tmp_path) != before(name)


def labels(monkeypatch, rows):
    """Return what stands below the panels of the figure of test budgets."""
    drawn = []
    monkeypatch.setattr(panels, "save_png", lambda figure, path: drawn.append(figure))
    budget_figure(rows, "nowhere")
    return [" ".join(axes.get_xlabel().split()) for axes in drawn[0].axes]


def test_a_panel_says_whose_training_was_longer(monkeypatch):
    longer = {"agent": "q-learning", "task": "covering"}
    rows = [r | {"episodes": 1100} if longer.items() <= r.items() else r for r in TESTS]
    told = "Test budget Training episodes: SAVE 100; Q-learning 1,100"
    assert labels(monkeypatch, rows) == [told, "Test budget"]


def test_a_few_episodes_more_are_no_longer_training(monkeypatch):
    rows = [r | {"episodes": 104} if r["agent"] == "save" else r for r in TESTS + UCT]
    assert labels(monkeypatch, rows) == ["Test budget", "Test budget"]


def test_the_axis_of_a_curve_can_be_another(before, tmp_path):
    steps = partial(curves, OVER_STEPS, x_label="Steps")
    assert picture(steps, tmp_path) != before("over steps")


def test_a_median_ends_where_half_of_the_seeds_do():
    lines = [({1: 10.0, 2: 20.0}, 99.0), ({1: 30.0, 2: 50.0}, 99.0), ({1: 20.0}, 99.0), ({}, 99.0)]
    assert _median_rises(lines) == {1: 25.0}
    assert _median_rises(lines[:3]) == {1: 20.0, 2: 50.0}
    assert _median_rises([({}, 99.0)]) == {}
