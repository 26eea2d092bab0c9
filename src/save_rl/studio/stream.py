"""Changes of the list of runs as server-sent events. However many pages listen, the folder is read
once a second, and not at all while none does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

from save_rl.studio.answers import to_json
from save_rl.studio.runs import Library

_ALIVE = 15  # seconds between signs of life


class _Listener:
    """A page. What it has not received yet is kept once per run, so a slow page costs little."""

    def __init__(self) -> None:
        self.waiting: dict[str, dict[str, Any] | None] = {}
        self.woken = asyncio.Event()


class Stream:
    """All listeners, and the task that looks for changes."""

    def __init__(self, library: Library, seconds: float = 1.0):
        self._library, self._seconds = library, seconds
        self._listeners: set[_Listener] = set()
        self._last: dict[str, dict[str, Any]] = {}
        self._task: asyncio.Task[None] | None = None
        self.stopping: Callable[[], bool] = lambda: False

    async def events(self) -> AsyncIterator[str]:
        """Yield the whole list, then changes."""
        listener = _Listener()
        self._listeners.add(listener)
        try:
            now = await run_in_threadpool(self._library.overview)
            yield _event("all", now)
            if self._task is None or self._task.done():
                self._last = {line["name"]: line for line in now["runs"]}
                self._task = asyncio.create_task(self._watch())
            quiet = 0.0
            while not self.stopping():
                try:
                    await asyncio.wait_for(listener.woken.wait(), self._seconds)
                except TimeoutError:
                    quiet += self._seconds
                    if quiet >= _ALIVE:
                        quiet = 0.0
                        yield ": alive\n\n"
                    continue
                listener.woken.clear()
                waiting, listener.waiting = listener.waiting, {}
                quiet = 0.0
                yield _event("change", {
                    "runs": [line for line in waiting.values() if line is not None],
                    "gone": [name for name, line in waiting.items() if line is None],
                })  # fmt: skip
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            lines = await run_in_threadpool(self._library.lines)
            now = {line["name"]: line for line in lines}
            changed: dict[str, dict[str, Any] | None] = {
                name: line for name, line in now.items() if self._last.get(name) != line
            }
            changed |= dict.fromkeys(self._last.keys() - now.keys())
            self._last = now
            if changed:
                for listener in self._listeners:
                    listener.waiting |= changed
                    listener.woken.set()


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {to_json(data)}\n\n"
