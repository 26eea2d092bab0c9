"""A run on a cluster as people see it: a table on a terminal, plain lines elsewhere."""

import sys
from types import TracebackType
from typing import Any

from save_rl.training.progress import Progress

_ROWS = {
    "actors": "{actors_alive:.0f} of {actors:.0f} alive",
    "steps": "{steps_per_second:,.0f} a second",
    "replay ratio": "{replay_ratio:.2f}",
    "parameters": "{parameter_age:.1f} rounds old",
    "answers": "{answers_waiting:.0f} waiting, {answers_owed:.0f} asked for",
    "restarts": "{actor_restarts:.0f} of actors, {learner_restarts:.0f} of the learner",
    "learner": "{learner_megabytes:,.0f} MB",
}


def rows(figures: dict[str, float]) -> dict[str, str]:
    """The figures of a learner in words."""
    return {name: text.format(**figures) for name, text in _ROWS.items()} if figures else {}


class Display:
    """Progress of a run and the state of its cluster."""

    def __init__(self, label: str, total: float, unit: str, enabled: bool = True):
        self._plain = Progress(label, total, unit, enabled)
        self._terminal = enabled and sys.stderr.isatty()
        self._label, self._total, self._unit = label, total, unit
        self._live: Any = None
        self._bar: Any = None

    def __enter__(self) -> "Display":
        if self._terminal:
            from rich.console import Console
            from rich.live import Live
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            console = Console(stderr=True)
            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"), TimeRemainingColumn(), TextColumn("left"),
                console=console,
            )  # fmt: skip
            self._task = self._bar.add_task(self._label, total=int(self._total), note="")
            self._live = Live(self._bar, console=console, refresh_per_second=4)
            self._live.start()
        return self

    def update(self, done: float, note: str, figures: dict[str, float]) -> None:
        """Show how far the run is."""
        shown = rows(figures)
        if self._live is None:
            words = "; ".join(f"{name} {text}" for name, text in shown.items())
            self._plain.update(done, f"{note}  {words}")
            return
        from rich.console import Group
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, text in shown.items():
            table.add_row(name, text)
        self._bar.update(self._task, completed=int(min(done, self._total)), note=note)
        self._live.update(Group(self._bar, table))

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live is not None:
            self._live.console.print(text, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
