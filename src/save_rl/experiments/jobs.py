"""Training and testing several cells of an experiment at a time, each in its own process."""

import csv
import json
import os
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from save_rl.errors import InputError, Interrupted, RunError
from save_rl.experiments.cells import (
    Cell,
    Found,
    Table,
    is_over,
    read_cell,
    train_and_test,
)
from save_rl.experiments.experiment import Resources
from save_rl.processes import die_with, end_group, ending, start_python, usable_cores

_JOB = "from save_rl.experiments.jobs import job; job(int(sys.argv[1]), sys.argv[2])"
_LOG, _OPEN_LOG = "job.log", "job.log.tmp"  # a new run accepts a folder with only .tmp files
_SAYS = "save-rl: "  # prefix of the log line that says why the job ended
_LOOK_SECONDS, _STATUS_SECONDS = 0.2, 30.0


def job(parent: int, task: str) -> None:
    """Train and test a cell: the main function of a job's process.

    task: JSON, the arguments of `train_and_test`.
    """
    die_with(parent)
    try:
        from save_rl.training.run.run_directory import settings_from_json

        (name, folder, settings, tables), *given = json.loads(task)
        made = tuple(Table(table, tuple(budgets), *rest) for table, budgets, *rest in tables)
        cell = Cell(name, Path(folder), settings_from_json(settings), made)
        train_and_test(cell, *given)
    except Interrupted as stop:
        print(f"{_SAYS}{stop}", file=sys.stderr)
        raise SystemExit(stop.code) from None
    except Exception as error:
        traceback.print_exc()
        kind = "" if isinstance(error, InputError | RunError) else f"{type(error).__name__}: "
        print(f"{_SAYS}{kind}{error}", file=sys.stderr)
        raise SystemExit(1) from None


def run_jobs(
    cells: Sequence[Cell],
    labels: Sequence[str],
    keep: Callable[[int, Found], None],
    out: Path,
    resources: Resources,
) -> None:
    """Train and test several cells at a time, each in its own process.

    keep: called with the index and the results of each finished cell. A job dies with the thread
    that started it, so this thread starts all jobs and waits for them.
    """
    from save_rl.training.run.interrupt import StopOnSignal

    waiting: deque[int] = deque()
    for number, cell in enumerate(cells):
        if (found := read_cell(cell)) is None:
            waiting.append(number)
        else:
            keep(number, found)
    jobs = max(1, min(resources.jobs, len(waiting)))
    workers = max(1, usable_cores() // jobs) if resources.workers < 0 else resources.workers
    running: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
    failed: dict[int, str] = {}
    stopping, looked = False, time.monotonic()
    with StopOnSignal() as stop:
        try:
            while waiting or running:
                if stop.code is not None and not stopping:
                    stopping = True
                    waiting.clear()
                    for process, _ in running.values():
                        process.terminate()  # training writes a checkpoint and ends
                while waiting and len(running) < jobs:
                    number = waiting.popleft()
                    _say(f"{labels[number]}: begins")
                    process = _start_job(
                        cells[number], labels[number], resources._replace(workers=workers)
                    )
                    running[number] = process, time.monotonic()
                time.sleep(_LOOK_SECONDS)
                for number, (process, started) in list(running.items()):
                    if process.poll() is None:
                        continue
                    del running[number]
                    cell, after = cells[number], f"after {time.monotonic() - started:.0f} s"
                    log, found = _close_log(cell), read_cell(cell)
                    if process.returncode == 0 and found is not None:
                        keep(number, found)
                        _say(f"{labels[number]}: done {after}")
                    elif stopping:
                        _say(f"{labels[number]}: stopped {after}")
                    else:
                        why = _why(process.returncode, log)
                        failed[number] = f"{labels[number]} ({why}; see '{log}')"
                        _say(f"{labels[number]}: failed {after}: {why}")
                if running and time.monotonic() - looked >= _STATUS_SECONDS:
                    looked = time.monotonic()
                    _say("; ".join(f"{labels[i]}: {_reached(cells[i])}" for i in running))
        finally:
            for process, _ in running.values():
                end_group(process)
    if stop.code is not None:
        raise Interrupted(f"stopped; '{out}' is saved, continue with --resume.", stop.code)
    if failed:
        which = ", ".join(failed[number] for number in sorted(failed))
        raise RunError(
            f"{len(failed)} of {len(cells)} runs failed: {which}; the others are done, continue "
            "with --resume."
        )


def _start_job(cell: Cell, label: str, resources: Resources) -> subprocess.Popen[bytes]:
    """Start the process of a cell."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    plain = cell._replace(folder=str(cell.folder), settings=asdict(cell.settings))
    task = json.dumps(
        (plain, label, resources.device, resources.workers, resources.light_checkpoints)
    )
    with (cell.folder / _OPEN_LOG).open("ab") as log:
        return start_python(_JOB, str(os.getpid()), task, stdout=log, stderr=log)


def _close_log(cell: Cell) -> Path:
    """Rename the log of an ended job to its final name, if the job created a run; return it."""
    log = cell.folder / _OPEN_LOG
    return log.replace(cell.folder / _LOG) if (cell.folder / "config.json").exists() else log


def _why(code: int, log: Path) -> str:
    """Return the reason why a job ended with this code."""
    if code < 0:
        return ending(code)
    said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(_SAYS)]
    return said[-1].removeprefix(_SAYS).rstrip(".") if said else ending(code)


def _reached(cell: Cell) -> str:
    """Return the progress of a cell from its metrics, which a job may be writing."""
    try:
        lines = (cell.folder / "metrics.csv").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return "starting"
    whole = list(csv.DictReader(line for line in lines if line.endswith("\n")))
    made, last = cell.settings, {}
    latest = {line.get("seed"): line for line in whole}
    if len(latest) == len(made.seeds):  # the seed that is farthest behind
        slowest = min(latest.values(), key=lambda line: float(line["episodes"]))
        last = {name: float(value) for name, value in slowest.items() if value}
    if last and is_over(made, last):
        return "testing" if cell.tables else "ending"
    if made.steps > 0:
        return f"{last.get('env_steps', 0):,.0f} of {made.steps:,} steps"
    return f"{last.get('episodes', 0):,.0f} of {made.episodes:,} episodes"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
