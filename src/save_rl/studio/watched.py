"""A simulator under observation: how often it steps, since when it is at work, what it raises."""

import time
import traceback
from collections.abc import Callable
from typing import Any

_CALLS = ("reset", "observe", "action_mask", "render")


class SimulatorFailed(BaseException):  # searches count an Exception as a fault, and go on
    """A simulator raised an error; the text has its traceback."""


class Watched:
    """A simulator that tells `tick` about every step, and reports errors as `SimulatorFailed`.

    `since` is when the call in progress began; None between calls. `luck` lists the luck of all
    steps, None without chance; clear it when you like. All else is the simulator's own.
    """

    def __init__(self, simulator: Any, tick: Callable[[], None]):
        self._simulator, self._tick = simulator, tick
        self.since: float | None = None
        self.luck: list[int | None] = []
        self._step = self._guarded("step")
        for name in _CALLS:
            if hasattr(simulator, name):
                setattr(self, name, self._guarded(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulator, name)

    def step(self, *arguments: Any) -> Any:
        self._tick()
        self.luck.append(int(arguments[2]) if len(arguments) > 2 else None)
        return self._step(*arguments)

    def _guarded(self, name: str) -> Callable[..., Any]:
        call = getattr(self._simulator, name)

        def guarded(*arguments: Any, **options: Any) -> Any:
            self.since = time.monotonic()
            try:
                return call(*arguments, **options)
            except (Exception, SystemExit) as error:
                text = traceback.format_exc().rstrip()
                raise SimulatorFailed(f"The simulator failed in {name} with:\n{text}") from error
            finally:
                self.since = None

        return guarded
