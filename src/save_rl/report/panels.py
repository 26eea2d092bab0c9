"""Figures with a panel per task: reward against test budgets, and learning curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from save_rl.report.canvas import LARGE, WIDTH, empty_figure, legend_below, save_png
from save_rl.report.palette import Look, label, looks
from save_rl.report.plots import draw_curves, draw_intervals
from save_rl.report.results import Row, select, values
from save_rl.report.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT, _LEGEND = 3.3, 0.7  # inches, of a panel and of what is below
_DOTTED: Any = {"linestyle": ":", "linewidth": 1.5}
_PUBLISHED = Look("Bapst et al. 2019", "0.4", "")


def budget_figure(
    rows: Sequence[Row],
    path: str | Path,
    *,
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Reward against test budget: per agent the median over seeds, bars from worst to best seed.

    `rows` have the conditions `task` and `budget` and the metric 'test_reward'. UCT, which has a
    budget of its own, is a dashed line across. published: numbers by task and agent, dotted lines
    in the colours of those agents that the rows have.
    """
    rows = select(rows, metric="test_reward")
    agents = looks(str(row["agent"]) for row in rows)
    searching = [row for row in rows if row["agent"] != "uct"]
    budgets: list[Any] = sorted({row["budget"] for row in searching})  # type: ignore[type-var]
    figure, panels = _panels(rows, "Reward, hardest level", "Test budget")
    for task, axes in panels.items():
        inside, spread = select(searching, task=task), 0.04 * (len(agents) - 1)
        draw_intervals(axes, inside, agents, ("budget", budgets), _whole_range, spread)
        for agent, value in (published or {}).get(task, {}).items():
            if agent in agents:
                axes.axhline(value, color=agents[agent].colour, zorder=1, **_DOTTED)
                axes.plot([], [], color=_PUBLISHED.colour, label=_PUBLISHED.label, **_DOTTED)
        uct = select(rows, task=task, agent="uct")
        if uct:
            name = f"{label('uct')}, {uct[0]['budget']}"
            agents["uct"] = agents["uct"]._replace(label=name)
            reward = float(np.median(values(uct)))
            axes.axhline(reward, color=agents["uct"].colour, linestyle="--", label=name)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    legend_below(figure, [*agents.values(), _PUBLISHED])
    save_png(figure, path)


def curve_panels(rows: Sequence[Row], path: str | Path, *, metric: str, y_label: str) -> None:
    """Learning curves of a metric over log episodes, as in `plots.learning_curves`."""
    rows = select(rows, metric=metric)
    agents = looks(str(row["agent"]) for row in rows)
    figure, panels = _panels(rows, y_label, "Episodes")
    for task, axes in panels.items():
        draw_curves(axes, select(rows, task=task), agents)
    legend_below(figure, agents.values())
    save_png(figure, path)


def _panels(rows: Sequence[Row], y_label: str, x_label: str) -> "tuple[Figure, dict[str, Axes]]":
    """A panel for every task of the rows, in their order; one without a name if there is none."""
    tasks = list(dict.fromkeys(str(row["task"]) for row in rows)) or [""]
    width = WIDTH if len(tasks) <= 3 else 3.0 * len(tasks)
    height = _HEIGHT if len(tasks) > 1 else 4.0
    figure = empty_figure(width, height + _LEGEND)
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for task, axes in zip(tasks, panels, strict=True):
        axes.set_title(task.replace("-", " ").capitalize(), fontsize=LARGE)
        axes.set_xlabel(x_label, fontsize=LARGE)
    panels[0].set_ylabel(y_label, fontsize=LARGE)
    return figure, dict(zip(tasks, panels, strict=True))


def _whole_range(sample: np.ndarray) -> Interval:
    return Interval(float(np.median(sample)), float(sample.min()), float(sample.max()))
