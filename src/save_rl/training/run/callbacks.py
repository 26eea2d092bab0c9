"""Callbacks of a training run: any object with some of the methods of `Callback`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from save_rl.errors import InputError, StopTraining, unknown_name
from save_rl.training.settings import TrainSettings


class RunStart(NamedTuple):
    """A run that begins or goes on.

    chunks: of the checkpoint from which it goes on, 0 for a new run. Lines of metrics with a higher
    `chunk` that were written before will come again.
    """

    folder: Path
    run_id: str
    settings: TrainSettings
    chunks: int


class Test(NamedTuple):
    """Test episodes while training. returns: by seed, `[episodes]`."""

    chunk: int
    budget: int
    returns: dict[int, np.ndarray]


class Callback:
    """Told what happens in a run, between its chunks; every method may be left out.

    Any object with some of these methods will do. An error in one of them is shown once, the
    callback is told nothing more, and the run goes on. `save_rl.StopTraining` ends the run, saved
    and complete.
    """

    def on_start(self, run: RunStart) -> None:
        """Called once, before the first chunk."""

    def on_test(self, test: Test) -> None:
        """Called after test episodes (`--test-episodes`), before the lines of metrics they are
        in."""

    def on_metrics(self, row: dict[str, float]) -> None:
        """Called with every line of `metrics.csv`, one per seed: its columns without the empty
        ones, and `chunk`, the number of chunks so far."""

    def on_checkpoint(self, folder: Path) -> None:
        """Called with the folder of every checkpoint, after it was written."""

    def on_end(self) -> None:
        """Called once, at the end of the run, however it ends."""


EVENTS = ("on_start", "on_test", "on_metrics", "on_checkpoint", "on_end")


class Callbacks:
    """Tells several callbacks, in their order. A callback with a true `essential`, as those that
    write into the run folder have, stops the run if it fails."""

    def __init__(self, given: Sequence[Any], warn: Callable[[str], None]):
        self._given, self._warn = list(given), warn
        self.stop: str | None = None  # why a callback has ended the run
        for one in self._given:
            check_callback(one)

    def tell(self, event: str, *what: Any) -> None:
        """Call the method `event` of every callback that has it."""
        for one in list(self._given):
            method = getattr(one, event, None)
            if method is None:
                continue
            try:
                method(*what)
            except StopTraining as stop:
                self.stop = str(stop) or f"{_name(one)} has stopped it"
            except Exception as error:
                if getattr(one, "essential", False):
                    raise
                self._given.remove(one)
                said = (str(error).splitlines() or [""])[0].rstrip(".")
                self._warn(
                    f"callback {_name(one)} failed in {event} ({type(error).__name__}: {said}); "
                    "the run goes on without it."
                )


def _name(callback: Any) -> str:
    return type(callback).__name__


def check_callback(callback: Any) -> None:
    """Refuse an object that is told nothing, or whose method has a misspelt name."""
    named = [name for name in dir(callback) if name.startswith("on_")]
    for name in named:
        if name not in EVENTS and callable(getattr(callback, name)):
            raise unknown_name("method", name, EVENTS, f"callbacks: {_name(callback)}")
    if not named:
        raise InputError(f"callbacks: {_name(callback)} has none of {', '.join(EVENTS)}.")
