"""The result of a training run, and its summary."""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from save_rl.errors import InputError
from save_rl.report.plots import curve_figure
from save_rl.training.run.run_directory import read_settings
from save_rl.training.settings import TrainSettings


@dataclass(frozen=True, repr=False)
class TrainResult:
    """A finished run: its folder, its trainer and the final state of all seeds; `print` shows a
    summary.

    After a run on a cluster, trainer and state are None: another process has learned. The folder
    has everything.
    """

    path: Path
    trainer: Any
    state: Any
    metrics: list[dict[str, float]] = field(default_factory=list)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        try:
            s = read_settings(self.path, "DIR")
        except InputError:  # a folder that was moved still has a summary
            return [f"{self.path}: a run whose folder is gone"]
        seeds = f"seed{'s' if len(s.seeds) > 1 else ''} {', '.join(map(str, s.seeds))}"
        lines = [f"{self.path}: {s.agent} on {s.env}, {seeds}"]
        last = {row["seed"]: row for row in self.metrics}  # the last line of each seed
        if not last:
            return [*lines, "no metrics yet"]
        made = [
            f"{sum(row[name] for row in last.values()):,.0f} {word}"
            for name, word in (
                ("episodes", "episodes"), ("env_steps", "real steps"),
                ("simulator_steps", "simulated steps"), ("updates", "updates"),
            )
        ]  # fmt: skip
        seconds = max(row["time_s"] for row in last.values())
        lines.append(f"{', '.join(made)} in {seconds:,.0f} s")
        for name, word in (("return_mean", "return"), ("test_return", "test return")):
            ends = {row["seed"]: row[name] for row in self.metrics if name in row}
            if ends:
                found = list(ends.values())
                spread = f" ± {np.std(found, ddof=1) / len(found) ** 0.5:.3g}" if found[1:] else ""
                lines.append(f"{word} at the end {np.mean(found):.3f}{spread}")
        return [*lines, f"save_rl.load({str(self.path)!r}) acts; curve.png shows how it learned"]

    def _repr_html_(self) -> str:
        return "<br>".join(map(escape, self._lines()))


def draw_curve(settings: TrainSettings, metrics: list[dict[str, float]], path: Path) -> None:
    """Draw the learning curve of every seed."""
    curves = {}
    name = "test_return" if settings.test_episodes else "return_mean"
    for seed in settings.seeds:
        rows = [row for row in metrics if row["seed"] == seed and name in row]
        label = settings.agent if len(settings.seeds) == 1 else f"seed {seed}"
        curves[label] = ([r["episodes"] for r in rows], [r[name] for r in rows])
    curve_figure(
        curves, path, x_label="Episodes", y_label="Reward",
        title=f"{settings.agent} on {settings.env}",
    )  # fmt: skip
