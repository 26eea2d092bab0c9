"""A worker process as the pool sees it: starting, asking, waiting, and what it said in the end."""

import contextlib
import json
import os
import select
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable
from typing import Any

from save_rl.envs.watchdog import EARLY, WATCHDOG, ask_where, place_in
from save_rl.envs.worker import COMPILED, MADE, REPLY
from save_rl.errors import RunError
from save_rl.processes import ONE_THREAD, end_group, ending, start_python

IS_WORKER = "SAVE_RL_WORKER"  # set in the environment of workers, which start no workers
GRACE = 2.0  # seconds for a worker to exit by itself
_START = (
    EARLY.format(4)
    + "from save_rl.envs.worker import main; main(*map(int, sys.argv[1:6]), sys.argv[6])"
)


def refuse_in_a_worker() -> None:
    """Refuse to start processes from a file that a worker imports: each would start more."""
    if IS_WORKER in os.environ:
        raise RunError(
            "ENV: the file of this simulator starts worker processes when it is imported; put "
            'what it does under if __name__ == "__main__":.'
        )


class WorkerProcess:
    """A worker process and the pipes to it.

    calls: returns how many calls of simulators it has made so far.
    """

    def __init__(self, memory: int, task: dict[str, Any], calls: Callable[[], int]):
        self._calls = calls
        self._asked: deque[int] = deque()  # groups it has not answered yet
        self._answers: dict[int, list[tuple[int, str]]] = {}  # answers that were not taken yet
        self.gone = False
        self._stopped = False
        self.crash = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the worker
        theirs, self._requests = os.pipe()
        self._replies, answers = os.pipe()
        handed = (theirs, answers, memory, self.crash.fileno())
        numbers = [str(number) for number in (*handed, os.getpid())]
        try:
            self.process = start_python(
                _START, *numbers, json.dumps(task), stdout=2, pass_fds=handed,
                env={**os.environ, **ONE_THREAD, IS_WORKER: "1"},
            )  # fmt: skip
        except BaseException:
            self.dismiss()
            self.crash.close()
            raise
        finally:
            os.close(theirs)
            os.close(answers)
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)

    def ask(self, request: bytes, group: int) -> None:
        """Send a request; raises BrokenPipeError if the process is gone."""
        os.write(self._requests, request)
        self._asked.append(group)

    def was_asked(self, group: int) -> bool:
        """Test whether an answer for a group is due; none is if the process is a replacement."""
        return group in self._asked or group in self._answers

    def answer(self, timeout: float, group: int = MADE) -> list[tuple[int, str]] | None:
        """Return the faults of the request of a group; None if the process died, or a call of a
        simulator takes longer than `timeout`.

        Without a group, wait for the first word of a new process. While the process compiles, the
        time does not count.
        """
        seen = self._calls()
        while group not in self._answers and not self.gone:
            if timeout == 0 or (group >= 0 and COMPILED not in self._answers):
                WATCHDOG.waiting(self._poll.poll, self._trace, self._calls)
            elif not self._poll.poll(timeout * 1000):
                if seen == (seen := self._calls()):
                    return None
                continue
            self.read()
        return self._answers.pop(group, None)

    def has_answered(self, group: int) -> bool:
        """Test whether the answer for a group was read, or will never come."""
        return self.gone or group not in self._asked

    def fileno(self) -> int:
        """Return the descriptor that has something to read when `read` need not wait."""
        return self._replies

    def read(self) -> None:
        """Read an answer, unless the process died: then it is `gone`."""
        head = self._read(REPLY.size)
        group, size = REPLY.unpack(head) if head else (0, 0)
        text = self._read(size)
        if head is None or text is None:
            self.gone = True
            return
        if group >= 0:
            asked = self._asked.popleft()
            assert group == asked, "workers answer in the order they were asked"
        self._answers[group] = [(lane, why) for lane, why in json.loads(text)] if text else []

    def _read(self, size: int) -> bytes | None:
        """Read this many bytes; None if the process died before it wrote them."""
        data = b""
        while len(data) < size:
            part = os.read(self._replies, size - len(data))
            if not part:
                return None
            data += part
        return data

    def last_words(self) -> str:
        """Return why the process died, with its traceback; a hanging process is asked for one."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.2)
        hangs = self.process.poll() is None
        trace = self._trace() if hangs else self._written()
        why = "it did not answer in time" if hangs else ending(self.process.poll())
        where = place_in(trace)
        inside = f", in {where}" if where else ""
        return f"A worker process died: {why}{inside}.\n{trace}".rstrip() + "\n"

    def _trace(self) -> str:
        """Ask the process where it is; return its traceback."""
        return ask_where(self.process, self.crash.fileno())

    def _written(self) -> str:
        """Return the tracebacks in the file of the process."""
        size = os.fstat(self.crash.fileno()).st_size
        return os.pread(self.crash.fileno(), size, 0).decode(errors="replace").strip()

    def dismiss(self) -> None:
        """Close the pipes: the process reads an end of file and exits."""
        if not self._stopped:
            self._stopped = True
            os.close(self._requests)
            os.close(self._replies)

    def stop(self, grace: float = GRACE) -> None:
        """End the process and its children."""
        if self.crash.closed:  # stopped already; another process may have its number now
            return
        self.dismiss()
        end_group(self.process, grace)
        self.crash.close()


class Replies:
    """The replies of several worker processes, which one call waits for."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._workers: dict[int, WorkerProcess] = {}

    def add(self, worker: WorkerProcess) -> None:
        """Listen to a process, too."""
        self._workers[worker.fileno()] = worker
        self._poll.register(worker.fileno(), select.POLLIN)

    def remove(self, worker: WorkerProcess) -> None:
        """Do not listen to a process any more."""
        if self._workers.pop(worker.fileno(), None) is not None:
            self._poll.unregister(worker.fileno())

    def read(self, wait: float) -> bool:
        """Read what has arrived, after at most `wait` seconds; false if that is nothing.

        Of processes that died nothing arrives any more.
        """
        ready = self._poll.poll(max(0.0, wait) * 1000)
        for number, _ in ready:
            worker = self._workers[number]
            worker.read()
            if worker.gone:
                self.remove(worker)
        return bool(ready)
