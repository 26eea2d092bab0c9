"""Creating, styling and saving figures; no pyplot, no global state."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from save_rl.files import write_atomically
from save_rl.report.palette import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 9.0  # inches; a README shows this without shrinking the text
LARGE, SMALL = 12, 10  # points


def empty_figure(width: float, height: float) -> "Figure":
    """Return a figure of this size in inches, which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(figsize=(width, height), dpi=150, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def single_panel(title: str, x_label: str, y_label: str) -> "tuple[Figure, Axes]":
    """Return a figure with one panel, its title and labels."""
    figure = empty_figure(WIDTH, 4.5)
    axes = figure.subplots()
    axes.set_title(title, fontsize=LARGE + 1)
    axes.set_xlabel(x_label, fontsize=LARGE)
    axes.set_ylabel(y_label, fontsize=LARGE)
    return figure, axes


def clean(axes: "Axes") -> None:
    """Style a panel: a light grid, two spines, readable numbers."""
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)


def log_x_axis(axes: "Axes") -> None:
    """Make the x axis logarithmic with ticks like 100, 1k, 10k; call it after all drawing.

    Ticks are evenly spaced over less than a decade, and 1, 2, 5 over less than three decades, where
    powers of ten would leave too few.
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
    """Mark a panel as having no data, so that it does not look broken."""
    axes.text(0.5, 0.5, "no data", color="0.4", ha="center", transform=axes.transAxes)


def legend_below(figure: "Figure", agents: Iterable[Look]) -> None:
    """Add one legend below all panels, for the agents that any panel shows."""
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
