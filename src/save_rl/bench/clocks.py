"""Timing the methods of classes and objects."""

import threading
import time
from collections.abc import Callable
from typing import Any


class Clocks:
    """Seconds spent in methods, by thread and name; use it as a context manager.

    A method's time does not include that of watched methods that it calls.
    """

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = {}
        self._inner = threading.local()  # seconds of watched calls within those that run
        self._undo: list[Callable[[], None]] = []

    def watch(self, name: str, owner: Any, *methods: str) -> None:
        """Sum the time of these methods of a class or an object from now on."""
        for method in methods:
            own, function = method in vars(owner), getattr(owner, method)
            setattr(owner, method, self._timed(name, function))

            def undo(method: str = method, function: Any = function, own: bool = own) -> None:
                if own:
                    setattr(owner, method, function)
                else:
                    delattr(owner, method)

            self._undo.append(undo)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            stack = self._inner.__dict__.setdefault("stack", [])
            started = time.perf_counter()
            stack.append(0.0)
            try:
                return function(*arguments, **options)
            finally:
                spent, inner = time.perf_counter() - started, stack.pop()
                if stack:
                    stack[-1] += spent
                at = _thread(), name
                self.seconds[at] = self.seconds.get(at, 0.0) + spent - inner

        return timed

    def __enter__(self) -> "Clocks":
        return self

    def __exit__(self, *_: object) -> None:
        for undo in reversed(self._undo):
            undo()


def _thread() -> str:
    name = threading.current_thread().name
    return "main" if name == "MainThread" else name.rstrip("_0123456789")
