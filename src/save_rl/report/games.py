"""Figures of many games: the gain of one agent over another, and a grid of learning curves."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from save_rl.report.canvas import (
    LARGE,
    SMALL,
    WIDTH,
    clean,
    empty_figure,
    legend_below,
    save_png,
    say_empty,
)
from save_rl.report.palette import LOOKS, Look, looks
from save_rl.report.plots import draw_curves
from save_rl.report.results import Row, select

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ABREAST = 4  # panels
_TICKS = (-1000, -500, -200, -100, -50, 0, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)  # per cent
_LINEAR = 100  # per cent; a symlog axis is linear up to here
_HERE = Look("measured", LOOKS["r2d2-save"].colour, "")
_PUBLISHED = Look("in the paper", "0.25", "D")


def change_figure(
    changes: Mapping[str, float], path: str | Path, *, x_label: str, published: Mapping[str, float]
) -> None:
    """Draw a bar per game with its change in per cent, largest on top, and the paper's numbers."""
    names = sorted(changes, key=lambda name: changes[name])
    figure = empty_figure(WIDTH, 1.6 + 0.3 * max(len(names), 3))
    axes = figure.subplots()
    axes.barh(range(len(names)), [changes[name] for name in names], color=_HERE.colour, height=0.65)
    axes.plot([], [], color=_HERE.colour, linewidth=8, label=_HERE.label)
    known = {y: published[name] for y, name in enumerate(names) if name in published}
    axes.plot(
        list(known.values()), list(known), _PUBLISHED.marker, color=_PUBLISHED.colour,
        markerfacecolor="white", label=_PUBLISHED.label,
    )  # fmt: skip
    for y, name in enumerate(names):
        axes.text(
            1.01, y, f"{changes[name]:+.1f} %", color="0.3", fontsize=SMALL, va="center",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    if names:
        axes.axvline(0, color="0.3", linewidth=1)
    else:
        say_empty(axes)
    axes.set_yticks(range(len(names)), names)
    room = 0.6 + max(0, 3 - len(names)) / 2  # a figure has room for at least three bars
    axes.set_ylim(-room, len(names) - 1 + room)
    axes.set_xlabel(x_label, fontsize=LARGE)
    _scale_to([*changes.values(), *known.values()], axes)
    clean(axes)
    axes.grid(visible=False, axis="y")
    legend_below(figure, (_HERE, _PUBLISHED))
    save_png(figure, path)


def _scale_to(shown: Iterable[float], axes: "Axes") -> None:
    """Make the x axis symlog if values differ widely."""
    low, high = (bound({0.0, *shown}) for bound in (min, max))
    if max(-low, high) <= 5 * _LINEAR:
        return
    axes.set_xscale("symlog", linthresh=_LINEAR)
    axes.set_xlim(1.4 * low, 1.4 * high)
    ticks = [tick for tick in _TICKS if 1.4 * low <= tick <= 1.4 * high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def game_curves(
    rows: Sequence[Row],
    path: str | Path,
    titles: Mapping[str, str],
    *,
    over: str = "frames",
    x_label: str = "Frames",
) -> None:
    """Draw rewards over frames, a panel per game: means over seeds, bands from worst to best.

    `rows` have the conditions `game` and `frames` and the metric 'train_reward'. titles: by game,
    one per panel. over: another condition for the x axis.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator

    rows = select(rows, metric="train_reward")
    agents = looks(str(row["agent"]) for row in rows)
    across = min(_ABREAST, len(titles))
    down = -(-len(titles) // across)
    width = WIDTH if across < _ABREAST else 3.0 * across
    figure = empty_figure(width, (2.5 if down > 1 else 3.5) * down + 0.7)
    panels = figure.subplots(down, across, squeeze=False)
    for number, axes in enumerate(panels.flat):
        axes.set_visible(number < len(titles))
        if number % across == 0:
            axes.set_ylabel("Reward", fontsize=LARGE)
        if number + across >= len(titles):
            axes.set_xlabel(x_label, fontsize=LARGE)
    for (game, title), axes in zip(titles.items(), panels.flat, strict=False):
        inside = select(rows, game=game)
        draw_curves(axes, inside, agents, over, middle=np.mean, log_x=False)
        axes.set_title(title, fontsize=LARGE)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if max(map(abs, axes.get_ylim())) >= 1000:  # else 0.5 would be 500m
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        if inside:
            axes.set_xlim(left=0)
    legend_below(figure, agents.values())
    save_png(figure, path)
