"""Work for the processes that play: a queue, progress, cancelling.

A job is a request to `player.py`. Each of a few *seats* is a thread with at most one process, for
one run at a time; a job waits for the seat of its run, or takes the place of a run that nobody
plays any more. So there is one job at a time for a run, and memory for only a few of them.
"""

import itertools
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from save_rl.errors import RunError
from save_rl.studio.player_process import ACTING, PlayerProcess

SEATS = 2
PATIENCE = 60.0  # seconds for one call of a simulator
_GRACE = 2.0  # seconds to stop after a cancel
_IDLE = 300.0  # seconds until a process that nobody uses ends
_MOST_WAITING, _MOST_KEPT = 64, 100
_SILENCE = 60.0  # seconds beyond the patience without any sign of life
_LOOK = 0.05  # seconds between two looks at the queue

# Takes messages of a job, `(content, picture)`.
Listener = Callable[[dict[str, Any], bytes], None]


class Busy(RunError):
    """Too many jobs are waiting."""


class Job:
    """A request on its way; `state` is waiting, running, done, failed or cancelled.

    Every change raises `version`. done, total: progress, in steps of an episode for `play`, else in
    simulations. simulations: of the search in progress. why: of a failure. result, picture: of a
    job that is done.
    """

    def __init__(self, number: int, folder: Path, request: dict[str, Any], listener: Listener):
        self.number, self.folder, self.request, self._listener = number, folder, request, listener
        self.state, self.why, self.version = "waiting", "", 0
        self.done = self.simulations = 0
        self.result: dict[str, Any] = {}
        self.picture = b""
        self.wants_cancel = False

    @property
    def over(self) -> bool:
        """True if nothing more will happen."""
        return self.state in ("done", "failed", "cancelled")

    @property
    def quick(self) -> bool:
        """True if it can be answered between the steps of another."""
        return self.request["do"] == "look"

    def change(self, state: str, why: str = "") -> None:
        """Change the state, unless it is final."""
        if not self.over:
            self.state, self.why = state, why
            self.version += 1

    def hear(self, content: dict[str, Any], picture: bytes) -> None:
        """Take a message from the process."""
        kind = content.pop("kind")
        if kind == "alive":
            self.simulations = content["simulations"]
        elif kind in ("failed", "cancelled"):
            self.change(kind, content.get("why", ""))
            return
        else:
            try:
                self._listener(content, picture)
            except RunError as error:  # such as an episode that is too long to keep
                self.wants_cancel = True
                self.change("failed", str(error))
                return
            self.done, self.simulations = self.done + (kind == "step"), 0
            if kind == "done":
                self.result, self.picture = content, picture
                self.change("done")
                return
        self.version += 1


class Jobs:
    """The queue and its seats; `close` it.

    trust: see `save_rl.load`. patience: seconds for one call of a simulator. acting: see
    `player.main`.
    """

    def __init__(
        self, trust: bool = False, patience: float = PATIENCE, seats: int = SEATS,
        acting: str = ACTING,
    ):  # fmt: skip
        self.trust, self.patience, self.acting = trust, patience, acting
        self._numbers = itertools.count(1)
        self._change = threading.Condition()
        self._waiting: list[Job] = []
        self._kept: OrderedDict[int, Job] = OrderedDict()
        self._closed = False
        self._seats = [_Seat(self) for _ in range(seats)]

    def add(
        self, folder: Path, request: dict[str, Any], listener: Listener = lambda *_: None
    ) -> Job:
        """Queue a request; listener: gets its messages."""
        with self._change:
            if len(self._waiting) >= _MOST_WAITING:
                raise Busy("Too many searches and episodes are waiting; cancel some of them.")
            number = next(self._numbers)
            job = Job(number, folder, {**request, "number": number}, listener)
            self._waiting.append(job)
            self._kept[number] = job
            for old in [n for n, kept in self._kept.items() if kept.over][: -_MOST_KEPT or None]:
                del self._kept[old]
            for seat in self._seats:
                seat.start()
            self._change.notify_all()
        return job

    def get(self, number: int) -> Job | None:
        """Return a job by its number, if it is not long over."""
        return self._kept.get(number)

    def ahead_of(self, job: Job) -> int:
        """Return the number of jobs that wait before this one, for the same run."""
        with self._change:
            same = [other for other in self._waiting if other.folder == job.folder]
        return same.index(job) if job in same else 0

    def cancel(self, job: Job) -> None:
        """Cancel a job: at once if it waits, else as soon as its process listens, or by force."""
        with self._change:
            if job in self._waiting:
                self._waiting.remove(job)
                job.change("cancelled")
            job.wants_cancel = True
            self._change.notify_all()

    def close(self) -> None:
        """End all processes."""
        with self._change:
            self._closed = True
            for job in self._waiting:
                job.change("cancelled")
            self._waiting.clear()
            self._change.notify_all()
        for seat in self._seats:
            seat.join()

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    def next_for(self, seat: "_Seat", seconds: float) -> Job | None:
        """Return the oldest job for a seat; None if there is none in time, or after `close`."""
        end = time.monotonic() + seconds
        with self._change:
            while not self._closed:
                others = {other.folder for other in self._seats if other is not seat}
                job = next((job for job in self._waiting if job.folder not in others), None)
                if job is not None:
                    self._waiting.remove(job)
                    seat.folder = job.folder
                    return job
                if (left := end - time.monotonic()) <= 0:
                    seat.folder = None
                    return None
                self._change.wait(left)
        return None

    def quick_for(self, folder: Path | None) -> list[Job]:
        """Return, and no longer queue, the jobs of a run that can be answered in between."""
        with self._change:
            quick = [job for job in self._waiting if job.quick and job.folder == folder]
            self._waiting = [job for job in self._waiting if job not in quick]
        return quick

    def free(self, seat: "_Seat") -> None:
        """Say that a seat has no process, so that another may serve its run."""
        with self._change:
            seat.folder = None
            self._change.notify_all()


class _Seat:
    """A thread with at most one process that plays. folder: the run it serves."""

    def __init__(self, jobs: Jobs):
        self._jobs = jobs
        self.folder: Path | None = None
        self._process: PlayerProcess | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._jobs.closed:
                job = self._jobs.next_for(self, _IDLE)
                if job is None:
                    self._end()
                else:
                    self._serve(job)
        finally:
            self._end()

    def _end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _serve(self, job: Job) -> None:
        """Serve a job, and quick ones meanwhile."""
        if self._process is not None and self._process.folder != job.folder:
            self._end()
        try:
            process = self._process = self._process or PlayerProcess(
                job.folder, self._jobs.trust, self._jobs.acting
            )
        except OSError as error:
            job.change("failed", f"A process that plays can't be started: {error}.")
            return
        active: dict[int, Job] = {}
        self._hand(process, job, active)
        asked: dict[int, float] = {}  # when jobs were asked to stop
        try:
            while active:
                for quick in self._jobs.quick_for(job.folder):
                    self._hand(process, quick, active)
                self._cancel(process, active, asked)
                message = process.receive(_LOOK)
                if message is not None:
                    self._hear(message, active)
                silence = time.monotonic() - process.heard
                if silence > self._jobs.patience + _SILENCE:
                    raise _Stuck(f"There was no sign of life for {silence:.0f} seconds")
        except EOFError:
            why = f"The process that plays is gone: {process.last_words()}"
            self._fail(active, why)
        except _Stuck as stuck:
            self._fail(active, f"{stuck}, so its process was ended.", asked)
        except Exception:  # whatever it sent; other jobs go on
            self._fail(active, f"Its answer can't be used:\n{traceback.format_exc().rstrip()}")

    def _hand(self, process: PlayerProcess, job: Job, active: dict[int, Job]) -> None:
        process.heard = time.monotonic()
        active[job.number] = job
        job.change("running")
        process.send(job.request)  # if it is gone, the next receive says so

    def _hear(self, message: tuple[dict[str, Any], bytes], active: dict[int, Job]) -> None:
        content, picture = message
        number = content.pop("number")
        if content.get("inside", 0.0) > self._jobs.patience:
            raise _Stuck(f"The simulator has not answered for {content['inside']:.0f} seconds")
        job = active.get(number)
        if job is not None:
            job.hear(content, picture)
            if job.over:
                del active[number]
                if job.wants_cancel and self._process is not None:
                    self._process.send({"do": "cancel", "number": number})

    def _cancel(
        self, process: PlayerProcess, active: dict[int, Job], asked: dict[int, float]
    ) -> None:
        """Ask jobs to stop; after a while, or if the studio ends, by force."""
        now = time.monotonic()
        for number, job in active.items():
            if job.wants_cancel and number not in asked:
                asked[number] = now
                process.send({"do": "cancel", "number": number})
        late = any(now - asked[number] > _GRACE for number in active if number in asked)
        if late or self._jobs.closed:
            raise _Stuck("The simulator did not stop when asked")

    def _fail(
        self, active: dict[int, Job], why: str, cancelled: dict[int, float] | None = None
    ) -> None:
        """End the process and all its jobs."""
        self._end()
        self._jobs.free(self)
        for number, job in active.items():
            if self._jobs.closed or number in (cancelled or {}):
                job.change("cancelled")
            else:
                job.change("failed", why)


class _Stuck(Exception):
    """A process has to be ended by force."""
