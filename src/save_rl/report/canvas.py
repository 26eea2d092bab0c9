"""Empty figures, their common look, and writing them; no pyplot, no global state."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from save_rl.report.files import write_atomically
from save_rl.report.palette import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 9.0  # inches; what a README shows without shrinking the text
LARGE, SMALL = 12, 10  # points


def empty_figure(width: float, height: float) -> "Figure":
    """A figure of this size in inches, drawn without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(figsize=(width, height), dpi=150, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def single_panel(title: str, x_label: str, y_label: str) -> "tuple[Figure, Axes]":
    """A figure with one panel and its titles."""
    figure = empty_figure(WIDTH, 4.5)
    axes = figure.subplots()
    axes.set_title(title, fontsize=LARGE + 1)
    axes.set_xlabel(x_label, fontsize=LARGE)
    axes.set_ylabel(y_label, fontsize=LARGE)
    return figure, axes


def clean(axes: "Axes") -> None:
    """A light grid, two spines, readable numbers."""
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)


def log_x_axis(axes: "Axes") -> None:
    """A logarithmic x axis with ticks as 100, 1k, 10k; call it when all is drawn.

    Over less than a decade the ticks are evenly spaced, over less than three they are 1, 2, 5,
    as powers of ten alone would leave hardly any.
    """
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

    first, last = axes.dataLim.intervalx
    if first == last:  # one point gives no range to scale to
        axes.set_xlim(first / 2, last * 2)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 10 * low:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    elif high < 1000 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())


def say_empty(axes: "Axes") -> None:
    """Tell that a panel has nothing to show, so that it does not pass for a broken one."""
    axes.text(0.5, 0.5, "no data", color="0.4", ha="center", transform=axes.transAxes)


def legend_below(figure: "Figure", agents: Iterable[Look]) -> None:
    """One legend for all panels, under them, of those agents that any panel shows."""
    panels = [axes.get_legend_handles_labels() for axes in figure.axes]
    drawn = {label: handle for pair in panels for handle, label in zip(*pair, strict=True)}
    labels = [agent.label for agent in agents if agent.label in drawn]
    if labels:
        figure.legend(
            [drawn[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=min(len(labels), int(figure.get_figwidth() / 2.2)),
            frameon=False,
            fontsize=SMALL + 1,
        )


def save_png(figure: "Figure", path: str | Path) -> None:
    """Write the figure as PNG."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=150, metadata={"Software": "save_rl"})
    write_atomically(path, png.getvalue())
