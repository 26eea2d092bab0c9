"""A figure of agents over a suite of tasks: interquartile means, profiles, improvement."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from save_rl.report.aggregates import (
    estimate,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)
from save_rl.report.canvas import LARGE, clean, empty_figure, legend_below, save_png
from save_rl.report.palette import Look, label, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_THRESHOLDS = np.linspace(0.0, 1.5, 151)


def suite_figure(scores: Mapping[str, np.ndarray], path: str | Path, *, first: str) -> None:
    """Draw normalised scores `[seeds, tasks]` by agent, with 95 % stratified bootstrap intervals.

    Left the interquartile mean, in the middle the share of runs above a score, right the
    probability that a run of agent `first` beats one of another agent.
    """
    agents = looks(scores)
    figure = empty_figure(12.0, 4.2)
    means, profiles, improvement = figure.subplots(1, 3)
    _means(means, scores, agents)
    for agent, look in agents.items():
        found = estimate(lambda x: performance_profile(x, _THRESHOLDS), scores[agent])
        profiles.plot(_THRESHOLDS, found.value, color=look.colour, label=look.label)
        band = {"color": look.colour, "alpha": 0.2, "linewidth": 0}
        profiles.fill_between(_THRESHOLDS, found.low, found.high, **band)
    profiles.set(xlabel="Normalised score", ylabel="Share of runs above it", ylim=(0, 1.02))
    _improvement(improvement, scores, agents, first)
    for axes in (means, profiles, improvement):
        axes.xaxis.label.set_size(LARGE)
        axes.yaxis.label.set_size(LARGE)
        clean(axes)
    legend_below(figure, agents.values())
    save_png(figure, path)


def _means(axes: "Axes", scores: Mapping[str, np.ndarray], agents: dict[str, Look]) -> None:
    for y, (agent, look) in enumerate(reversed(agents.items())):
        found = estimate(interquartile_mean, scores[agent])
        axes.plot([found.low, found.high], [y, y], color=look.colour, linewidth=6, alpha=0.4)
        axes.plot(found.value, y, look.marker, color=look.colour)
    _name(axes, [look.label for look in reversed(agents.values())])
    axes.set_xlabel("Interquartile mean")


def _improvement(
    axes: "Axes", scores: Mapping[str, np.ndarray], agents: dict[str, Look], first: str
) -> None:
    others = [agent for agent in reversed(agents) if agent != first and first in scores]
    for y, agent in enumerate(others):
        found = estimate(probability_of_improvement, scores[first], scores[agent])
        colour = agents[agent].colour
        axes.plot([found.low, found.high], [y, y], color=colour, linewidth=6, alpha=0.4)
        axes.plot(found.value, y, agents[agent].marker, color=colour)
    axes.axvline(0.5, color="0.3", linewidth=1)
    axes.set_xlim(-0.02, 1.02)
    _name(axes, [agents[agent].label for agent in others])
    axes.set_xlabel(f"P({label(first)} is better)")


def _name(axes: "Axes", names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
