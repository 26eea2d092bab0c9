"""Runs side by side: a table, curves in one picture, and a rank test over seeds.

    print(save_rl.compare("runs/save", "runs/q-learning", out="compare.png"))

Runs with the same settings but for their seeds are one row. A row's number is the mean over its
seeds, and ± its standard error over them: episodes of one seed are not independent of each other.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from save_rl.errors import InputError, require, unknown_name
from save_rl.report.canvas import LARGE, WIDTH, empty_figure, legend_below, save_png
from save_rl.report.palette import label, looks
from save_rl.report.plots import draw_curves
from save_rl.report.results import Row
from save_rl.report.statistics import two_sided_p
from save_rl.training.options import named_options
from save_rl.training.run.run_directory import RunDirectory, read_settings
from save_rl.training.settings import TrainSettings

if TYPE_CHECKING:
    from rich.table import Table

AXES = {
    "episodes": "Episodes",
    "steps": "Real steps",
    "simulations": "Simulator steps, real and searched",
    "time": "Seconds",
}
"""Axes of the curves, with their labels."""
_NOT_COMPARED = ("--seed", "--episodes", "--steps")  # runs that differ only here are one row


class Group(NamedTuple):
    """Runs with the same settings but for their seeds.

    name: the agent's, with the settings that differ from other groups of that agent. scores: by
    seed, see `Comparison.of`. rows: points of the seeds' curves, for `report.plots`.
    """

    name: str
    agent: str
    folders: tuple[Path, ...]
    scores: dict[int, float]
    rows: tuple[Row, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return float(np.mean(list(self.scores.values())))

    @property
    def error(self) -> float | None:
        """The standard error over seeds; None of a single seed."""
        count = len(self.scores)
        if count < 2:
            return None
        return float(np.std(list(self.scores.values()), ddof=1) / math.sqrt(count))


class RankTest(NamedTuple):
    """Two groups by their places in `Comparison.groups`, and the two-sided p-value."""

    first: int
    second: int
    p_value: float
    lowest: float  # p-value that this many seeds can reach at best


@dataclass(frozen=True)
class Comparison:
    """Groups of runs of one environment; `print` shows the table.

    metric: 'test_return' if all runs have tests, else 'return_mean'. steps: the real steps over
    which scores are means, the last share of those that all seeds have made.
    """

    env: str
    metric: str
    steps: tuple[int, int]
    groups: tuple[Group, ...]
    tests: tuple[RankTest, ...]

    def table(self) -> "Table":
        """Return a table for `rich`: a row per group."""
        from rich.table import Table
        from rich.text import Text

        low, high = self.steps
        what = "test return" if self.metric == "test_return" else "return while training"
        title = f"{self.env}: {what}, real steps {low:,} to {high:,}"
        printed = Table("Run", title=Text(title), title_justify="left")
        for head in ("Seeds", "Mean", "± over seeds", "Lowest", "Highest"):
            printed.add_column(head, justify="right", no_wrap=True)
        for group in self.groups:
            scores = list(group.scores.values())
            error = "–" if group.error is None else f"{group.error:.3f}"
            numbers = (f"{x:.3f}" for x in (min(scores), max(scores)))
            printed.add_row(
                Text(group.name), str(len(scores)), f"{group.mean:.3f}", error, *numbers
            )  # fmt: skip
        return printed

    def sentences(self) -> list[str]:
        """Return the rank tests in words."""
        said = []
        for first, second, p, lowest in self.tests:
            one, other = self.groups[first], self.groups[second]
            if one.mean < other.mean:
                one, other = other, one
            line = f"{one.name} above {other.name}: p = {p:.3g} (Mann-Whitney over seeds)"
            if lowest > 0.05:
                seeds = f"{len(one.scores)} against {len(other.scores)} seeds"
                line += f"; {seeds} can't show more than p = {lowest:.3g}"
            said.append(line)
        return said

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100)
        with console.capture() as captured:
            console.print(self.table())
        return "\n".join([captured.get().rstrip(), *self.sentences()])

    def save(self, path: str | Path, over: Sequence[str] = tuple(AXES)) -> None:
        """Draw the curves, a panel for each axis of `over`, as PNG: means over seeds, and bands
        from the worst to the best seed."""
        from matplotlib.ticker import EngFormatter

        path = Path(path)
        require(path.suffix.lower() == ".png", "--out", f"'{path}'", "a file that ends in .png")
        _check_axes(over)
        shown = looks(group.name for group in self.groups)
        rows = [row for group in self.groups for row in group.rows]
        columns = min(len(over), 2)
        lines = -(-len(over) // columns)
        figure = empty_figure(WIDTH, 3.2 * lines + 1.0)
        figure.suptitle(self.env, fontsize=LARGE + 1)
        panels = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for i, panel in enumerate(panels.flat):
            if i >= len(over):
                panel.remove()
                continue
            draw_curves(panel, rows, shown, over[i], middle=np.mean, log_x=False)
            panel.set_xlabel(AXES[over[i]], fontsize=LARGE)
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            if i % columns == 0:
                tests = self.metric == "test_return"
                panel.set_ylabel("Test return" if tests else "Return", fontsize=LARGE)
        legend_below(figure, shown.values())
        path.parent.mkdir(parents=True, exist_ok=True)
        save_png(figure, path)


class _Run(NamedTuple):
    folder: Path
    settings: TrainSettings
    metrics: list[dict[str, float]]


def compare(
    *runs: str | Path, out: str | Path | None = None, over: Sequence[str] = tuple(AXES),
    share: float = 0.1,
) -> Comparison:  # fmt: skip
    """Compare runs of one environment; see `Comparison`.

    runs: folders of runs, or folders of such folders. out: where to draw the curves, a PNG. over:
    their axes, of 'episodes', 'steps', 'simulations' and 'time'. share: of the real steps that all
    seeds have made, the last of which give the scores.
    """
    require(0 < share <= 1, "--share", share, "above 0 and at most 1")
    _check_axes(over)
    if out is not None:
        require(str(out).lower().endswith(".png"), "--out", f"'{out}'", "a file that ends in .png")
    found = [_read(folder) for folder in _folders(runs)]
    _require_same_environment(found)
    by_settings: dict[str, list[_Run]] = {}
    for run in found:
        by_settings.setdefault(repr(_compared(run.settings)), []).append(run)
    tested = all(run.settings.test_episodes > 0 for run in found)
    metric = "test_return" if tested else "return_mean"
    parts = [_points(members, metric) for members in by_settings.values()]
    last = min(max(_number(row, "steps") for row in rows) for part in parts for rows in part)
    first = int(last * (1 - share))
    names = _names([members[0].settings for members in by_settings.values()])
    groups = tuple(
        Group(
            name, members[0].settings.agent, tuple(run.folder for run in members),
            {int(_number(rows[0], "seed")): _score(rows, first, last) for rows in part},
            tuple({**row, "agent": name} for rows in part for row in rows),
        )
        for name, members, part in zip(names, by_settings.values(), parts, strict=True)
    )  # fmt: skip
    pairs = itertools.combinations(range(len(groups)), 2)
    result = Comparison(
        found[0].settings.env, metric, (first, int(last)), groups,
        tuple(_rank_test(groups, *pair) for pair in pairs),
    )  # fmt: skip
    if out is not None:
        result.save(out, over)
    return result


def _check_axes(over: Sequence[str]) -> None:
    require(len(over) > 0, "--over", "()", "at least one axis")
    for axis in over:
        if axis not in AXES:
            raise unknown_name("axis", axis, AXES, "--over")


def _folders(given: Sequence[str | Path]) -> list[Path]:
    """Return the folders of runs: those given, or the runs in a folder of runs."""
    require(len(given) > 0, "DIR", "nothing", "folders of runs")
    found: list[Path] = []
    for folder in map(Path, given):
        inside = [folder]
        if folder.is_dir() and not (folder / "config.json").exists():
            inside = sorted(path.parent for path in folder.glob("*/config.json")) or [folder]
        found += [path for path in inside if path.resolve() not in {x.resolve() for x in found}]
    return found


def _read(folder: Path) -> _Run:
    settings = read_settings(folder, "DIR")
    metrics = RunDirectory(folder).read_metrics()
    if not metrics:
        raise InputError(f"DIR: '{folder}' has no metrics yet.")
    return _Run(folder, settings, metrics)


def _require_same_environment(runs: Sequence[_Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        if run.settings.env != first.settings.env:
            raise InputError(
                f"DIR: '{first.folder}' is of '{first.settings.env}' and '{run.folder}' of "
                f"'{run.settings.env}'; returns of different environments can't be compared."
            )
        one, other = first.settings.env_options, run.settings.env_options
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                raise InputError(
                    f"DIR: '{first.folder}' has {name}={one.get(name, 'default')} and "
                    f"'{run.folder}' {name}={other.get(name, 'default')} as options of "
                    f"'{run.settings.env}'; their returns can't be compared."
                )


def _compared(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings that make runs different."""
    return {name: x for name, x in named_options(settings) if name not in _NOT_COMPARED}


def _names(settings: Sequence[TrainSettings]) -> list[str]:
    """Return the agents' names, with the settings in which groups of one agent differ."""
    names = []
    for one in settings:
        mine = _compared(one)
        others = [_compared(other) for other in settings if other.agent == one.agent]
        differ = [name for name, x in mine.items() if any(o[name] != x for o in others)]
        told = ", ".join(f"{name.removeprefix('--')} {mine[name]}" for name in differ)
        names.append(f"{label(one.agent)}, {told}" if told else one.agent)
    return names


def _points(runs: Sequence[_Run], metric: str) -> list[list[Row]]:
    """Return the points of the curve of each seed of a group."""
    seeds: dict[int, list[Row]] = {}
    of: dict[int, Path] = {}
    for run in runs:
        for seed in run.settings.seeds:
            if seed in of:
                raise InputError(
                    f"DIR: '{of[seed]}' and '{run.folder}' have the same settings and the same "
                    f"seed {seed}; give one of them."
                )
            of[seed] = run.folder
            rows = [row for row in run.metrics if row.get("seed") == seed and metric in row]
            if not rows:
                raise InputError(f"DIR: no episode of seed {seed} in '{run.folder}' has ended yet.")
            seeds[seed] = [
                {
                    "seed": seed, "value": row[metric], "episodes": row["episodes"],
                    "steps": row["env_steps"], "time": row["time_s"],
                    "simulations": row["env_steps"] + row["simulator_steps"],
                }
                for row in rows
            ]  # fmt: skip
    return list(seeds.values())


def _number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return value


def _score(rows: Sequence[Row], first: float, last: float) -> float:
    """Return the mean of a seed's lines between two numbers of real steps, or of its last line
    before them."""
    before = [row for row in rows if _number(row, "steps") <= last] or list(rows[:1])
    chosen = [row for row in before if _number(row, "steps") > first] or before[-1:]
    return float(np.mean([_number(row, "value") for row in chosen]))


def _rank_test(groups: Sequence[Group], first: int, second: int) -> RankTest:
    one, other = (list(groups[i].scores.values()) for i in (first, second))
    lowest = min(1.0, 2 / math.comb(len(one) + len(other), len(one)))
    return RankTest(first, second, two_sided_p(one, other), lowest)
