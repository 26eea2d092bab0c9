"""Figures with a panel per task or per glue cost: rewards and learning curves."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from save_rl.report.canvas import (
    LARGE,
    SMALL,
    WIDTH,
    clean,
    empty_figure,
    legend_below,
    log_x_axis,
    save_png,
    say_empty,
)
from save_rl.report.palette import Look, label, looks
from save_rl.report.plots import draw_curves, draw_intervals
from save_rl.report.results import Row, column, seed_curves, select, values
from save_rl.report.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT, _LEGEND = 3.3, 0.7  # inches, of a panel and of the legend below
_EQUAL = 1.05  # longest over shortest training: parallel lanes never end at the same episode
_DOTTED: Any = {"linestyle": ":", "linewidth": 1.5}
_PUBLISHED = Look("Bapst et al. 2019", "0.4", "")


def budget_figure(
    rows: Sequence[Row],
    path: str | Path,
    *,
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Draw reward against test budget: the median over seeds, bars from worst to best seed.

    `rows` have the conditions `task` and `budget` and the metric 'test_reward'. UCT, which has its
    own budget, is a dashed horizontal line. published: numbers by task and agent, drawn as dotted
    lines in the agents' colours, for the agents in `rows`. A panel whose agents were trained for
    different numbers of episodes says so.
    """
    rows = select(rows, metric="test_reward")
    agents = looks(str(row["agent"]) for row in rows)
    searching = [row for row in rows if row["agent"] != "uct"]
    budgets: list[Any] = sorted({row["budget"] for row in searching})  # type: ignore[type-var]
    figure, panels = _panels(rows, "Reward, hardest level", "Test budget")
    _say_lengths(panels, searching, "task")
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


def bar_figure(rows: Sequence[Row], path: str | Path, budget: int) -> None:
    """Draw rewards at one test budget: a bar per agent up to the median over seeds, a line from
    the worst to the best seed.

    `rows` have the conditions `task` and `budget` and the metric 'test_reward'.
    """
    rows = select(rows, metric="test_reward", budget=budget)
    agents = looks(str(row["agent"]) for row in rows)
    figure, panels = _panels(rows, "Reward, hardest level", f"Test budget {budget}")
    _say_lengths(panels, rows, "task")
    for task, axes in panels.items():
        for at, (agent, look) in enumerate(agents.items()):
            sample = values(rows, task=task, agent=agent)
            if sample.size:
                middle, low, high = _whole_range(sample)
                axes.bar(at, middle, color=look.colour, label=look.label)
                axes.vlines(at, low, high, color="0.2", linewidth=1.2)
        if not rows:
            say_empty(axes)
        axes.set_xticks([])
        clean(axes)
    legend_below(figure, agents.values())
    save_png(figure, path)


def curve_panels(
    rows: Sequence[Row],
    path: str | Path,
    *,
    metric: str,
    y_label: str,
    over: str = "episodes",
    x_label: str = "Episodes",
    by: str = "task",
) -> None:
    """Draw learning curves of a metric over log episodes, as in `plots.learning_curves`.

    over: another condition for the x axis. by: the condition whose values get a panel each.
    """
    rows = select(rows, metric=metric)
    agents = looks(str(row["agent"]) for row in rows)
    figure, panels = _panels(rows, y_label, x_label, by)
    for value, axes in panels.items():
        draw_curves(axes, select(rows, **{by: value}), agents, over)
    legend_below(figure, agents.values())
    save_png(figure, path)


def level_figure(rows: Sequence[Row], path: str | Path) -> None:
    """Draw reward per level, a panel per glue cost: medians over seeds, bars from worst to best.

    `rows` have the conditions `sticky_cost` and `level` and the metric 'test_reward', each agent at
    one budget.
    """
    rows = select(rows, metric="test_reward")
    agents = looks(str(row["agent"]) for row in rows)
    levels: list[Any] = sorted({row["level"] for row in rows})  # type: ignore[type-var]
    figure, panels = _panels(rows, "Reward", "Level", "sticky_cost")
    _say_lengths(panels, rows, "sticky_cost")
    for cost, axes in panels.items():
        inside, spread = select(rows, sticky_cost=cost), 0.04 * (len(agents) - 1)
        draw_intervals(axes, inside, agents, ("level", levels), _whole_range, spread)
    legend_below(figure, agents.values())
    save_png(figure, path)


def progress_figure(rows: Sequence[Row], path: str | Path) -> None:
    """Draw the level of the curriculum over log episodes: seeds as light lines, the median dark.

    `rows` have the condition `sticky_cost` and the metrics 'episodes_to_level' and 'final_level'.
    The median stops below the first level that no more than half of the seeds reach.
    """
    ends, rises = select(rows, metric="final_level"), select(rows, metric="episodes_to_level")
    agents = looks(str(row["agent"]) for row in ends)
    highest = int(column(ends, "value").max(initial=1))
    figure, panels = _panels(ends, "Level reached", "Episodes", "sticky_cost")
    for cost, axes in panels.items():
        inside = select(rises, sticky_cost=cost)
        begin = min((at[0] for at, _ in seed_curves(inside)), default=2.0)
        for agent, look in reversed(agents.items()):  # the first on top
            lines = []
            for end in select(ends, sticky_cost=cost, agent=agent):
                reached = select(inside, agent=agent, seed=end["seed"])
                levels = {int(row["level"]): float(row["value"]) for row in reached}  # type: ignore[arg-type]
                lines.append((levels, float(end["episodes"])))  # type: ignore[arg-type]
            for levels, last in lines:
                _stairs(axes, levels, begin, last, look, alpha=0.3, linewidth=1.0)
            if lines:
                last = float(np.median([last for _, last in lines]))
                _stairs(axes, _median_rises(lines), begin, last, look, label=look.label)
        if not axes.lines:
            say_empty(axes)
        log_x_axis(axes)
        axes.set_yticks(range(highest + 1))
        axes.set_ylim(-0.2, highest + 0.2)
        clean(axes)
    legend_below(figure, agents.values())
    save_png(figure, path)


def _median_rises(lines: Sequence[tuple[Mapping[int, float], float]]) -> dict[int, float]:
    """Return the median episodes to each level; seeds that never reach it count as ∞."""
    highest = max((level for levels, _ in lines for level in levels), default=0)
    found = {}
    for level in range(1, highest + 1):
        middle = float(np.median([levels.get(level, np.inf) for levels, _ in lines]))
        if np.isfinite(middle):
            found[level] = middle
    return found


def _stairs(
    axes: "Axes", levels: Mapping[int, float], begin: float, last: float, look: Look, **style: Any
) -> None:
    """Draw a line that rises where a level is reached, from half of `begin` to episode `last`."""
    reached = sorted(levels.items())
    at = [min(begin, last) / 2, *(episodes for _, episodes in reached), last]
    height = [0, *(level for level, _ in reached), reached[-1][0] if reached else 0]
    axes.step(at, height, where="post", color=look.colour, **style)


def _panels(
    rows: Sequence[Row], y_label: str, x_label: str, by: str = "task"
) -> "tuple[Figure, dict[Any, Axes]]":
    """Return a panel per task of the rows, in their order, or one untitled panel without rows.

    by: another, numeric condition whose values get a panel each.
    """
    names: list[Any] = list(dict.fromkeys(row[by] for row in rows)) or [""]
    width = WIDTH if len(names) <= 3 else 3.0 * len(names)
    height = _HEIGHT if len(names) > 1 else 4.0
    figure = empty_figure(width, height + _LEGEND)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for name, axes in zip(names, panels, strict=True):
        title = str(name)
        if name != "" and by != "task":
            title = f"{by.replace('_', ' ')} {name:g}"
        axes.set_title(title.replace("-", " ").capitalize(), fontsize=LARGE)
        axes.set_xlabel(x_label, fontsize=LARGE)
    panels[0].set_ylabel(y_label, fontsize=LARGE)
    return figure, dict(zip(names, panels, strict=True))


def _say_lengths(panels: "Mapping[Any, Axes]", rows: Sequence[Row], by: str) -> None:
    """Write the episodes of training below a panel whose agents had different numbers of them."""
    for value, axes in panels.items():
        inside = [row for row in select(rows, **{by: value}) if "episodes" in row]
        lengths = {
            agent: float(np.median(column(select(inside, agent=agent), "episodes")))
            for agent in dict.fromkeys(str(row["agent"]) for row in inside)
        }
        if lengths and max(lengths.values()) > _EQUAL * min(lengths.values()):
            parts = [f"{label(agent)} {count:,.0f}" for agent, count in lengths.items()]
            text = textwrap.fill(f"Training episodes: {'; '.join(parts)}", 40)
            axes.set_xlabel(f"{axes.get_xlabel()}\n{text}", fontsize=SMALL)


def _whole_range(sample: np.ndarray) -> Interval:
    return Interval(float(np.median(sample)), float(sample.min()), float(sample.max()))
