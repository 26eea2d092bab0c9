"""Says which call of a simulator does not return, and lets one Ctrl-C end it.

    with WATCHDOG:
        simulator.reset(0)

A thread looks at the stack of the thread inside once the call has taken `patience` seconds. While a
call hangs, `WATCHDOG.hanging` is true: a run that saves on Ctrl-C then stops at once instead. Pools
with worker processes wait for replies with `waiting`, which does the same.
"""

import itertools
import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE = 20.0
"""Seconds after which a call is said to hang; a slow simulator goes on."""
_OURS = str(Path(__file__).parents[1])
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
EARLY = "import faulthandler, signal; faulthandler.register(signal.SIGUSR1, int(sys.argv[{}])); "
"""Code of a process that can be asked where it is, from its start; with the number of the argument
that is the file descriptor to write to."""
_ANSWER = 10.0  # most seconds for such a process to write where it is
# A line of `faulthandler`.
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')

Frame = tuple[str, int, str]
"""File, line and function."""


def place(frames: Iterable[Frame]) -> str:
    """Return the innermost function that the simulator's author wrote, of frames from the inside.

    Where there is none before a frame of save_rl, the innermost one; '' if there is nothing.
    """
    inside = itertools.takewhile(lambda frame: not frame[0].startswith(_OURS), frames)
    outside = [frame for frame in inside if not frame[0].startswith("<")]
    own = [frame for frame in outside if not frame[0].startswith(_LIBRARIES)]
    for file, line, function in [*own[:1], *outside[:1]]:
        return f"{function} ({Path(file).name}:{line})"
    return ""


def place_in(trace: str) -> str:
    """Return `place` of the thread that was interrupted, in a traceback of `faulthandler`."""
    _, _, current = trace.partition("Current thread")
    own = current.partition("\n\n")[0]
    return place((m["file"], int(m["line"]), m["function"]) for m in _FRAME.finditer(own))


def ask_where(process: subprocess.Popen[bytes], file: int) -> str:
    """Ask a process that was started with `EARLY` where it is; return its traceback.

    file: the descriptor that it writes to. Returns '' while the process is still starting, when the
    signal would end it.
    """
    if not _catches(process.pid, signal.SIGUSR1):
        return ""
    before = size = os.fstat(file).st_size
    end = time.monotonic() + _ANSWER
    process.send_signal(signal.SIGUSR1)
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
        seen, size = size, os.fstat(file).st_size
        if before < seen == size:
            break
    return os.pread(file, size - before, before).decode(errors="replace").strip()


def _catches(pid: int, number: int) -> bool:
    """Test whether a process has a handler for a signal; true where there is no /proc to ask."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return caught is None or bool(int(caught[1], 16) >> (number - 1) & 1)


def _frames(ident: int) -> Iterable[Frame]:
    """Yield the frames of a thread, from the inside."""
    frame = sys._current_frames().get(ident)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back


def hangs(what: str, seconds: float, where: str) -> str:
    """Return the sentence about a call that does not return."""
    inside = f"; it is in {where}" if where else ""
    return f"{what} has not answered for {seconds:.0f} s{inside}. Ctrl-C ends this."


def _print(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)


class Watchdog:
    """A context that is entered around calls of simulators; inner ones count as part of the outer.

    name: the simulator, in messages. hanging: true while a call takes longer than `patience`.
    calls: returns a number that changes between the calls inside, see `counting`.
    """

    def __init__(self, patience: float = PATIENCE, say: Callable[[str], None] = _print):
        self.patience, self.hanging, self.name = patience, False, "the simulator"
        self._say, self._depth, self._since, self._ident = say, 0, 0.0, 0
        self._calls = _none
        self._called = threading.Event()  # set while a call runs
        self._thread: threading.Thread | None = None
        self._said: set[str] = set()

    def counting(self, calls: Callable[[], int]) -> "Watchdog":
        """Return this context for many calls; `calls` returns how many there were so far."""
        if self._depth == 0:
            self._calls = calls
        return self

    def __enter__(self) -> "Watchdog":
        self._depth += 1
        if self._depth == 1:
            self._since, self._ident = time.monotonic(), threading.get_ident()
            self._called.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, daemon=True)
                self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._called.clear()
            self.hanging, self._calls = False, _none

    def _watch(self) -> None:
        seen, since = (0.0, 0), 0.0
        while True:
            self._called.wait()
            now, ident = (self._since, self._calls()), self._ident
            if now != seen:
                seen, since = now, time.monotonic()
            time.sleep(max(0.01, min(1.0, self.patience / 4)))
            late = time.monotonic() - since >= self.patience
            if late and self._called.is_set() and (self._since, self._calls()) == seen:
                self.report(self.patience, place(_frames(ident)))

    def report(self, seconds: float, where: str) -> None:
        """Say, once for every place, that the simulator hangs."""
        self.hanging = True
        if where not in self._said:
            self._said.add(where)
            self._say(hangs(self.name, seconds, where))

    def waiting(
        self, poll: Callable[[float], Any], trace: Callable[[], str],
        calls: Callable[[], int] | None = None,
    ) -> None:  # fmt: skip
        """Wait until `poll(milliseconds)` is true; after `patience` seconds, say what hangs.

        trace: returns a traceback of the process that is waited for. calls: returns how many calls
        it has made so far.
        """
        seconds, calls = 0.0, calls or _none
        seen = calls()
        while not poll(self.patience * 1000):
            seconds += self.patience
            if seen != (seen := calls()):
                seconds, self.hanging = 0.0, False
                continue
            self.report(seconds, place_in(trace()))
        self.hanging = False


def _none() -> int:
    return 0


WATCHDOG = Watchdog()
"""The watchdog of this process: simulators are called by one thread."""
