"""Programs compiled ahead, in threads, while the workers start and the first episodes are played.

Compiling for a GPU takes many seconds per program, and a run with graphs needs one for every size
of batch (`networks.graph.buckets`). All of them are known before training.
"""

import os
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any

import jax

from save_rl.training.devices import device_threads

_THREADS = max(2, (os.cpu_count() or 1) // 2)


class Ahead:
    """Compiled programs by name; the first that is added is ready first.

    Tracing is Python, so one thread traces all of them in turn; others compile what is traced.
    """

    def __init__(self) -> None:
        self._tracing = device_threads(1, "trace")
        self._threads = device_threads(_THREADS, "compile")
        self._programs: dict[Hashable, Future[Callable[..., Any]]] = {}

    def add(self, name: Hashable, program: Any, *arguments: Any) -> None:
        """Compile a jitted function for arguments of these shapes; static ones are values."""
        lowered = self._tracing.submit(program.lower, *arguments)
        self._programs[name] = self._threads.submit(lambda: lowered.result().compile())

    def get(self, name: Hashable) -> Callable[..., Any] | None:
        """Return a compiled program, without its static arguments; None if it was not added.

        Waits for it.
        """
        found = self._programs.get(name)
        return found.result() if found is not None else None

    def close(self) -> None:
        """Compile nothing more."""
        for threads in (self._tracing, self._threads):
            threads.shutdown(wait=True, cancel_futures=True)


def shapes(tree: Any) -> Any:
    """Return arrays as their shapes and dtypes."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
