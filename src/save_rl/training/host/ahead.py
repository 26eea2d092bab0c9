"""Programs compiled ahead, in threads, while the workers start and the first episodes are played.

Compiling for a GPU takes many seconds per program, and a run with graphs needs one for every size
of batch (`networks.graph.buckets`). All of them are known before training.
"""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax


class Ahead:
    """Compiled programs by name: first those that training begins with, then the others."""

    def __init__(self) -> None:
        self._first = ThreadPoolExecutor(2, "compile")
        self._later = ThreadPoolExecutor(1, "compile later")
        self._programs: dict[Hashable, Future[Callable[..., Any]]] = {}
        self._device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]

    def add(self, name: Hashable, first: bool, program: Any, *arguments: Any) -> None:
        """Compile a jitted function for arguments of these shapes; static ones are values."""
        if first:
            job = self._first.submit(self._compile, [], program, arguments)
        else:
            before = list(self._programs.values())
            job = self._later.submit(self._compile, before, program, arguments)
        self._programs[name] = job

    def _compile(
        self, before: list[Future[Any]], program: Any, arguments: tuple[Any, ...]
    ) -> Callable[..., Any]:
        wait(before)
        with jax.default_device(self._device):
            return program.lower(*arguments).compile()

    def get(self, name: Hashable) -> Callable[..., Any] | None:
        """Return a compiled program, without its static arguments; None if it was not added.

        Waits for it.
        """
        found = self._programs.get(name)
        return found.result() if found is not None else None

    def close(self) -> None:
        """Compile nothing more."""
        for threads in (self._later, self._first):
            threads.shutdown(wait=True, cancel_futures=True)


def shapes(tree: Any) -> Any:
    """Return arrays as their shapes and dtypes."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
