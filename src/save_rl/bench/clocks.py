"""Timing the methods of objects."""

import time
from collections.abc import Callable
from typing import Any


class Clocks:
    """Seconds spent in methods of objects, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, name: str, owner: Any, *methods: str) -> None:
        """Sum the time of these methods from now on; they must not call one another."""
        self.seconds.setdefault(name, 0.0)
        for method in methods:
            setattr(owner, method, self._timed(name, getattr(owner, method)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments, **options)
            self.seconds[name] += time.perf_counter() - started
            return result

        return timed
