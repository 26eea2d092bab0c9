"""Ctrl-C, SIGTERM and SIGHUP as a request to save and stop."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from save_rl.envs.watchdog import WATCHDOG

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopOnSignal:
    """While entered, the first signal sets `code` (128 + its number); a second acts as usual.

    While a simulator hangs, the first one stops the work at once; the last checkpoint is kept.
    A SIGHUP that is ignored, as under nohup, stays ignored.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.getsignal(number)
                ignored = number == signal.SIGHUP and before is signal.SIG_IGN
                if not ignored and before != self._handle:  # equal if entered twice
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.code = 128 + number
        self._restore()
        if WATCHDOG.hanging:  # nobody would look at `code`
            raise KeyboardInterrupt

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()
