"""Figures and the table of budgets; the same numbers give the same bytes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from save_rl.report.canvas import (
    LARGE,
    WIDTH,
    clean,
    empty_figure,
    legend_below,
    log_x_axis,
    save_png,
    say_empty,
    single_panel,
)
from save_rl.report.palette import Look, label, looks
from save_rl.report.results import Row, seed_curves, select, values
from save_rl.report.statistics import Interval, median_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

GRID_POINTS = 200  # of a learning curve


def tabular_figure(rows: Sequence[Row], path: str | Path) -> None:
    """Draw reward against % terminal actions: a row of panels per reward, a column per budget.

    `rows` have the conditions `reward`, `terminal` and `budget`. Lines are medians of the
    metric 'test_reward' over seeds, error bars 95 % bootstrap intervals.
    """
    rows = select(rows, metric="test_reward")
    if not rows:
        raise ValueError("there is no row with the metric 'test_reward' to draw")
    rewards, budgets = _present(rows, "reward"), _present(rows, "budget")
    terminals = _present(rows, "terminal")
    agents = looks(str(row["agent"]) for row in rows)

    width = max(WIDTH / 2, min(WIDTH, 3.0 * len(budgets)), 2.25 * len(budgets))
    figure = empty_figure(width, 2.5 * len(rewards) + 0.8)
    panels = figure.subplots(len(rewards), len(budgets), squeeze=False, sharex=True, sharey=True)
    for (i, reward), (j, budget) in product(enumerate(rewards), enumerate(budgets)):
        inside = select(rows, reward=reward, budget=budget)
        _tabular_panel(panels[i, j], inside, agents, terminals)
        panels[0, j].set_title(f"Budget {budget:g}", fontsize=LARGE)
        panels[-1, j].set_xlabel("Terminal actions (%)", fontsize=LARGE)
        panels[i, 0].set_ylabel(f"{str(reward).capitalize()} reward", fontsize=LARGE)
    legend_below(figure, agents.values())
    save_png(figure, path)


def learning_curves(
    rows: Sequence[Row],
    path: str | Path,
    *,
    title: str,
    x_label: str = "Episodes",
    y_label: str = "Test reward",
) -> None:
    """Draw each agent's median 'test_reward' over seeds, with a band from worst to best seed.

    `rows` have the condition `episodes`, whose values may differ between seeds.
    """
    rows = select(rows, metric="test_reward")
    figure, axes = single_panel(title, x_label, y_label)
    agents = looks(str(row["agent"]) for row in rows)
    draw_curves(axes, rows, agents)
    legend_below(figure, agents.values())
    save_png(figure, path)


def draw_curves(
    axes: "Axes",
    rows: Sequence[Row],
    agents: dict[str, Look],
    over: str = "episodes",
    *,
    middle: Callable[..., Any] = np.median,
    log_x: bool = True,
) -> None:
    """Draw learning curves in a panel: medians over seeds, bands from worst to best seed.

    middle: np.mean for means.
    """
    for agent, look in reversed(agents.items()):  # the first on top
        at, curves = common_curves(select(rows, agent=agent), over, log_x=log_x)
        if at.size == 0:
            continue
        _line(axes, at, middle(curves, axis=0), look, markers=at.size == 1)
        low, high = curves.min(axis=0), curves.max(axis=0)
        if at.size == 1:
            axes.vlines(at, low, high, color=look.colour, alpha=0.4, linewidth=3)
        else:
            axes.fill_between(at, low, high, color=look.colour, alpha=0.2, linewidth=0)
    if not axes.lines:
        say_empty(axes)
    if log_x:
        log_x_axis(axes)
    clean(axes)


def common_curves(
    rows: Sequence[Row], over: str = "episodes", *, log_x: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return the seeds' curves of one agent over the range of episodes that all of them cover.

    Returns log-spaced episodes (P,) and values (seeds, P), interpolated over log episodes as in the
    figure. Tests at episode 0 are left out.
    over: another condition in place of episodes.
    """
    to_axis, to_episodes = (np.log, np.exp) if log_x else (np.asarray, np.asarray)
    curves = [(to_axis(at), values) for at, values in seed_curves(rows, over)]
    if not curves:
        return np.empty(0), np.empty((0, 0))
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.linspace(first, last, GRID_POINTS) if first < last else np.array([first])
    return to_episodes(grid), np.stack([np.interp(grid, x, y) for x, y in curves])


def curve_figure(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: str | Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = True,
) -> None:
    """Draw a line per agent through its points (xs, ys); a logarithmic axis omits xs ≤ 0."""
    figure, axes = single_panel(title, x_label, y_label)
    agents = looks(series)
    for agent, look in reversed(agents.items()):  # the first on top
        x, y = (np.asarray(points, np.float64) for points in series[agent])
        kept = (x > 0) | (not log_x)
        _line(axes, x[kept], y[kept], look, markers=kept.sum() <= 20)
    if not any(np.size(line.get_xdata()) for line in axes.lines):
        say_empty(axes)
    if log_x:
        log_x_axis(axes)
    clean(axes)
    if len(series) > 1:
        legend_below(figure, agents.values())
    save_png(figure, path)


def budget_table(table: Mapping[str, Mapping[int, tuple[float, float]]], title: str) -> "Table":
    """Return a table of agents by test budgets; cells of `table` are means and standard errors."""
    from rich.table import Table
    from rich.text import Text

    budgets = sorted({budget for cells in table.values() for budget in cells})
    printed = Table("Agent", title=Text(title), title_justify="left")
    for budget in budgets:
        printed.add_column(f"Budget {budget}", justify="right", no_wrap=True)
    for agent in looks(table):
        cells = [table[agent].get(budget) for budget in budgets]
        texts = [f"{cell[0]:.2f} ± {cell[1]:.2f}" if cell else "–" for cell in cells]
        printed.add_row(Text(label(agent)), *texts)
    return printed


def _tabular_panel(
    axes: "Axes", rows: Sequence[Row], agents: dict[str, Look], terminals: Sequence[float]
) -> None:
    """Draw a line per agent over equally spaced `terminals`."""
    spread = min(0.12, 0.02 * len(terminals)) if len(agents) > 1 else 0.0
    draw_intervals(axes, rows, agents, ("terminal", terminals), median_interval, spread)
    axes.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0])
    axes.set_ylim(-0.04, 1.04)


def draw_intervals(
    axes: "Axes",
    rows: Sequence[Row],
    agents: dict[str, Look],
    over: tuple[str, Sequence[float]],
    summary: Callable[[np.ndarray], Interval],
    spread: float,
) -> None:
    """Draw a line per agent with error bars over equally spaced values of a condition.

    over: the condition and its values. summary: of the seeds. spread: largest horizontal offset
    between lines, so that error bars do not overlap.
    """
    name, ticks = over
    offsets = np.linspace(spread, -spread, len(agents))
    for (agent, look), offset in zip(reversed(agents.items()), offsets, strict=True):
        samples = [values(rows, agent=agent, **{name: tick}) for tick in ticks]
        at = [x for x, sample in enumerate(samples) if sample.size]
        if at:
            intervals = [summary(samples[x]) for x in at]
            _interval_line(axes, np.array(at) + offset, intervals, look)
    if not rows:
        say_empty(axes)
    axes.set_xticks(range(len(ticks)), [f"{tick:g}" for tick in ticks])
    axes.set_xlim(-0.4, len(ticks) - 0.6)
    clean(axes)


def _line(axes: "Axes", x: np.ndarray, y: np.ndarray, look: Look, *, markers: bool) -> None:
    """Draw a line above any bands, with markers if wanted."""
    marker = look.marker if markers else ""
    axes.plot(x, y, color=look.colour, label=look.label, marker=marker, linewidth=1.8, zorder=3)


def _interval_line(axes: "Axes", x: np.ndarray, intervals: Sequence[Interval], look: Look) -> None:
    """Draw medians at `x` as a line, with their intervals as error bars."""
    middle, low, high = np.array(intervals).T
    axes.errorbar(
        x,
        middle,
        yerr=[np.maximum(middle - low, 0), np.maximum(high - middle, 0)],
        color=look.colour,
        label=look.label,
        marker=look.marker,
        markersize=4.5,
        linewidth=1.6,
        elinewidth=1.1,
        capsize=2.0,
        clip_on=False,
    )


def _present(rows: Iterable[Row], name: str) -> list[Any]:
    """Return the sorted distinct values of a column."""
    return sorted({cast(Any, row[name]) for row in rows})
