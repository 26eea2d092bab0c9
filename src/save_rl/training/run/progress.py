"""Progress of long work: a live bar on a terminal, plain lines every few seconds elsewhere."""

import contextlib
import sys
import time
from types import TracebackType
from typing import Any

_PLAIN_SECONDS = 10.0


def _print(text: str) -> None:
    """Print a line; ignore errors (a closed terminal, a full disk)."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Print a warning."""
    _print(f"warning: {message}")


def announce(text: str) -> None:
    """Print a line of information."""
    _print(text)


def _bar() -> Any:
    """Return a progress bar for a terminal, with an optional table `below` it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    class Bar(RichProgress):
        below: Any = None

        def get_renderables(self) -> Any:
            yield from super().get_renderables()
            if self.below is not None:
                yield self.below

    return Bar(
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"), TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(), TextColumn("left"), console=Console(stderr=True),
    )  # fmt: skip


class Progress:
    """Shows progress, speed and remaining time.

    Calling `update` often is cheap.
    """

    def __init__(self, label: str, total: float, unit: str, enabled: bool = True):
        self.label, self.total, self.unit, self.enabled = label, total, unit, enabled
        self._live: Any = None
        self._task: Any = None
        self._started = self._printed = time.monotonic()
        self._first: float | None = None

    def __enter__(self) -> "Progress":
        if self.enabled and sys.stderr.isatty():
            self._live = _bar()
            self._live.start()
            self._task = self._live.add_task(
                self.label, total=int(self.total), unit=self.unit, note=""
            )
        return self

    def update(self, done: float, note: str = "", rows: dict[str, str] | None = None) -> None:
        """Report `done` of `total` units, with a short note; rows: a table below it."""
        if not self.enabled:
            return
        done = min(done, self.total)
        if self._live is not None:
            if rows:
                from rich.table import Table

                self._live.below = Table.grid(padding=(0, 2))
                for row in rows.items():
                    self._live.below.add_row(*row)
            self._live.update(self._task, completed=int(done), note=note)
            return
        if rows:
            note += "  " + "; ".join(f"{name} {text}" for name, text in rows.items())
        now = time.monotonic()
        if self._first is None:
            self._first, self._started = done, now
        if now - self._printed >= _PLAIN_SECONDS or done >= self.total:
            self._printed = now
            rate = (done - self._first) / max(now - self._started, 1e-9)
            left = f", {(self.total - done) / rate:.0f} s left" if rate > 0 else ""
            text = f"{self.label}: {done:,.0f} of {self.total:,.0f} {self.unit}"
            _print(f"{text}  {note}{left}" if note else text + left)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.console.print(text, markup=False, highlight=False)
        else:
            _print(text)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
