"""Pictures are valid, repeatable and complete; the table of budgets says what it was given."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from rich.console import Console

from save_rl.agents import AGENTS
from save_rl.report.palette import LOOKS, label, looks
from save_rl.report.plots import (
    budget_table,
    common_curves,
    curve_figure,
    learning_curves,
    tabular_figure,
)


def row(agent, seed, value, **conditions):
    return {"agent": agent, "seed": seed, **conditions, "metric": "test_reward", "value": value}


TABULAR = [
    row(agent, seed, seed / 5, reward=reward, terminal=terminal, budget=budget)
    for agent in ("save", "uct")
    for seed in range(3)
    for reward in ("sparse", "dense")
    for terminal in (50, 95)
    for budget in (10, 50)
]
CURVES = [
    row(agent, seed, episodes / 100, episodes=episodes)
    for agent in ("save", "my-own")
    for seed in range(3)
    for episodes in (0, 10 + seed, 50, 90 + seed)
]
TITLES = {"title": "Title", "x_label": "Episodes", "y_label": "Reward"}
FIGURES = {
    "tabular": partial(tabular_figure, TABULAR),
    "a panel without rows": partial(tabular_figure, [*TABULAR[:-1], TABULAR[0] | {"budget": 100}]),
    "one agent in one panel": partial(tabular_figure, TABULAR[:1]),
    "curves": partial(learning_curves, CURVES, title="Title"),
    "seeds without a common range": partial(
        learning_curves, [row("save", i, 0.5, episodes=9 + i) for i in range(2)], title="Title"
    ),
    "no rows": partial(learning_curves, [], title="Title"),
    "lines": partial(curve_figure, {"save": ([0, 1, 9], [0, 1, 2]), "uct": ([1], [1])}, **TITLES),
    "a line on a linear axis": partial(
        curve_figure, {"save": ([-1, 0, 2], [0, 1, float("nan")])}, log_x=False, **TITLES
    ),
    "a first point": partial(curve_figure, {"save": ([10], [1])}, **TITLES),
    "nothing yet": partial(curve_figure, {"save": ([], [])}, **TITLES),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_a_png(name, tmp_path):
    from matplotlib.image import imread

    FIGURES[name](tmp_path / "a.png")
    first = (tmp_path / "a.png").read_bytes()
    assert first.startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(tmp_path / "a.png")
    assert pixels.shape[0] > 300
    assert 675 <= pixels.shape[1] <= 1350
    assert pixels[..., :3].std() > 0
    if name in ("tabular", "curves", "lines"):  # each way to draw once
        FIGURES[name](tmp_path / "b.png")
        assert first == (tmp_path / "b.png").read_bytes()


def test_a_figure_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(OSError, match="missing"):
        FIGURES["lines"](tmp_path / "missing" / "curve.png")
    assert list(tmp_path.iterdir()) == []


def test_every_line_of_the_tabular_figure_changes_it(tmp_path):
    tabular_figure(TABULAR, tmp_path / "all.png")
    whole = (tmp_path / "all.png").read_bytes()
    for i in (0, len(TABULAR) - 1):
        moved = [*TABULAR[:i], TABULAR[i] | {"value": 0.9}, *TABULAR[i + 1 :]]
        tabular_figure(moved, tmp_path / "moved.png")
        assert (tmp_path / "moved.png").read_bytes() != whole


def test_a_tabular_figure_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="test_reward"):
        tabular_figure([], tmp_path / "figure.png")


def test_curves_are_compared_where_all_seeds_have_been():
    # Straight over log episodes, so that the interpolation is exact: value = log10(episodes).
    points = {0: (0, 1, 10, 1000), 1: (10, 100, 10000), 2: (1000, 1)}
    rows = [
        row("save", seed, np.log10(episodes) if episodes else -9.0, episodes=episodes)
        for seed, at in points.items()
        for episodes in at
    ]
    episodes, curves = common_curves(rows)
    assert episodes[[0, -1]] == pytest.approx([10, 1000])
    np.testing.assert_allclose(np.diff(np.log(episodes)), np.log(100) / (episodes.size - 1))
    np.testing.assert_allclose(curves, np.tile(np.log10(episodes), (3, 1)), atol=1e-12)


def test_every_agent_has_its_own_colour_and_label():
    assert set(LOOKS) == set(AGENTS)
    for kind in ("colour", "label"):
        assert len({getattr(look, kind) for look in LOOKS.values()}) == len(LOOKS)
    assert [label(agent) for agent in ("save", "q-learning", "my-own")] == [
        "SAVE",
        "Q-learning",
        "my-own",
    ]


def test_an_agents_colour_does_not_depend_on_its_company():
    assert looks(["uct", "mine", "save"])["uct"] == looks(["uct"])["uct"]
    assert list(looks(["uct", "mine", "save"])) == ["save", "uct", "mine"]
    mine = looks(["mine", "yours"])
    assert mine["mine"].colour != mine["yours"].colour


def test_the_table_of_budgets_has_a_row_per_agent_and_a_column_per_budget():
    console = Console(width=100)
    table = {"uct": {1000: (0.2, 0.1)}, "save": {10: (0.984, 0.004), 0: (0.9, 0.05)}}
    with console.capture() as capture:
        console.print(budget_table(table, "Covering [hard]"))
    lines = [
        line.replace("│", " ").replace("┃", " ").split() for line in capture.get().splitlines()
    ]
    assert lines[0] == ["Covering", "[hard]"]
    assert ["Agent", "Budget", "0", "Budget", "10", "Budget", "1000"] in lines
    assert ["SAVE", "0.90", "±", "0.05", "0.98", "±", "0.00", "–"] in lines
    assert ["UCT", "–", "–", "0.20", "±", "0.10"] in lines


def test_importing_the_reports_loads_nothing_slow():
    code = (
        "import sys, save_rl.report.plots, save_rl.report.claims\n"
        "slow = {'matplotlib', 'scipy', 'rich', 'jax'} & set(sys.modules)\n"
        "sys.exit(str(slow) if slow else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
