"""Ctrl-C and SIGTERM as a wish to stop at the next good moment."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopOnSignal:
    """While entered, the first signal sets `code` (130 or 143); a second one acts as usual."""

    def __init__(self) -> None:
        self.code: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.code = 128 + number
        self._restore()

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
