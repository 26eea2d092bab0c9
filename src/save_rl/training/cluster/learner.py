"""The learner process: the ordinary training loop over an actor group.

It is detached, so the driver may leave and come back. If it dies, Ray starts it again, and it
continues from the last checkpoint with new actors and new episodes. When the run is over, it waits
half a minute for a driver to ask how it ended.
"""

import json
import os
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from save_rl.errors import InputError, Interrupted, RunError
from save_rl.files import write_atomically
from save_rl.training.cluster import actor_group
from save_rl.training.cluster.actor import peak_megabytes
from save_rl.training.cluster.local_cluster import end_cluster
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.cluster.trainer import ClusterTrainer
from save_rl.training.counters import Counters
from save_rl.training.devices import compiler_options
from save_rl.training.run import checkpoint, loop
from save_rl.training.run.interrupt import StopOnSignal
from save_rl.training.run.progress import Progress
from save_rl.training.run.run_directory import settings_from_json
from save_rl.training.run.trainers import environments
from save_rl.training.settings import TrainSettings

ray = actor_group.ray
NAMESPACE = "save_rl"
NOTES = "cluster.json"  # in the folder of the run
_DEATHS_IN_A_ROW = 8  # without a new checkpoint in between
_STAYS = 30.0  # seconds after the end, or after the last question
_EVERY = 0.5  # seconds between two measurements of the actors


class Job(NamedTuple):
    """A run, in plain values."""

    settings: dict[str, Any]
    cluster: dict[str, Any]
    out: str  # an absolute path
    resume: bool
    device: str
    workers: int
    checkpoint_seconds: float
    light_checkpoints: bool
    started: int  # process of a cluster that was started for this run alone; 0 if it was not


class Outcome(NamedTuple):
    """The end of a run."""

    kind: str  # finished, stopped, refused or failed
    message: str = ""
    code: int = 0  # of a signal


class Status(NamedTuple):
    """The progress of a run."""

    job: Job
    process: int
    done: int
    note: str
    figures: dict[str, float]
    said: list[str]
    outcome: Outcome | None


def learner_name(out: Path) -> str:
    """Return the name of the learner of a folder."""
    return f"learner of {out.resolve()}"


class _Bar(Progress):
    """Keeps the last progress, and shows nothing."""

    def __init__(self) -> None:
        super().__init__("", 0, "", enabled=False)
        self.done, self.note = 0, ""

    def update(self, done: float, note: str = "", rows: dict[str, str] | None = None) -> None:
        self.done, self.note = int(done), note


class LearnerProcess:
    """Trains in its own thread as soon as it is made."""

    def __init__(self, job: Job):
        self._job, self._out = job, Path(job.out)
        self._settings = settings_from_json(job.settings)
        self._cluster = ClusterSettings(**job.cluster)
        self._stop, self._bar = StopOnSignal(), _Bar()
        self._said: list[str] = []
        self._outcome: Outcome | None = None
        self._watch: _Watch | None = None
        self._asked = time.monotonic()
        again = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        self._again = again and (self._out / "config.json").exists()
        threading.Thread(target=self._work, daemon=True).start()

    def status(self, heard: int = 0) -> Status:
        """Return the progress of the run; of its messages, those after the first `heard`."""
        self._asked = time.monotonic()
        watch, bar = self._watch, self._bar
        return Status(
            self._job, os.getpid(), bar.done, bar.note, watch.figures if watch else {},
            self._said[heard:], self._outcome,
        )  # fmt: skip

    def stop(self, code: int) -> None:
        """Save and end; code: the exit code of the signal."""
        self._stop.code = code

    def _work(self) -> None:
        outcome = self._train()
        self._asked, self._outcome = time.monotonic(), outcome
        while time.monotonic() - self._asked < _STAYS:
            time.sleep(1.0)
        if self._job.started:
            end_cluster(self._job.started)
        ray.kill(ray.get_actor(learner_name(self._out), NAMESPACE))

    def _train(self) -> Outcome:
        job = self._job
        try:
            restarts = self._count_restarts()
            overseer = loop.Overseer(
                make=lambda *given, **options: self._make(restarts, *given, **options),
                stop=self._stop,
                bar=self._bar,
                watch=lambda chunks, counted: self._look(chunks, counted),
                warn=self._said.append,
            )
            loop.train(
                self._settings, self._out, resume=job.resume or self._again, device=job.device,
                workers=max(job.workers, 0), checkpoint_seconds=job.checkpoint_seconds,
                light_checkpoints=job.light_checkpoints, overseer=overseer,
            )  # fmt: skip
        except Interrupted as stop:
            return Outcome("stopped", str(stop), stop.code)
        except InputError as error:
            return Outcome("refused", str(error))
        except RunError as error:
            return Outcome("failed", str(error))
        except OSError as error:
            where = f" '{error.filename}'" if error.filename else ""
            return Outcome("failed", f"can't read or write{where}: {error.strerror or error}.")
        except Exception as error:
            traceback.print_exc(file=sys.stderr)  # to Ray's log of this process
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return Outcome("failed", f"--cluster: the learner failed, {reason}")
        return Outcome("finished")

    def _make(
        self, restarts: int, settings: TrainSettings, target: Any, **options: Any
    ) -> ClusterTrainer:
        envs, _ = environments(settings)
        trainer = ClusterTrainer(
            settings, envs, self._cluster, [], workers=options["workers"],
            test_lanes=options["test_lanes"], warn=self._said.append,
            options=compiler_options(target),
        )  # fmt: skip
        check_stores(needed_bytes(trainer), ray.nodes(), ray.get_runtime_context().get_node_id())
        self._watch = _Watch(trainer, restarts)
        return trainer

    def _look(self, chunks: int, counted: Counters) -> dict[str, float]:
        assert self._watch is not None
        return self._watch.look(chunks, counted)

    def _count_restarts(self) -> int:
        """Return how often this learner was restarted; give up if it makes no progress."""
        if not self._again:
            return 0
        newest = max(checkpoint.numbers(self._out / "checkpoints"), default=-1)
        path = self._out / NOTES
        notes = {"restarts": 0, "in_a_row": 0, "checkpoint": -1}
        if path.exists():
            notes |= json.loads(path.read_bytes())
        in_a_row = notes["in_a_row"] + 1 if notes["checkpoint"] == newest else 1
        restarts = notes["restarts"] + 1
        notes = {"restarts": restarts, "in_a_row": in_a_row, "checkpoint": newest}
        write_atomically(path, json.dumps(notes, indent=2) + "\n")
        if in_a_row >= _DEATHS_IN_A_ROW:
            raise RunError(
                f"--cluster: the learner died {in_a_row} times without a new checkpoint; Ray's log "
                "of it may say why."
            )
        self._said.append(f"the learner died; it continues from checkpoint {newest}")
        return restarts


class _Watch:
    """Measures a run's actors now and then."""

    def __init__(self, trainer: ClusterTrainer, restarts: int):
        self._trainer, self._restarts = trainer, restarts
        self._looked, self._steps = time.monotonic(), -1
        self._first: tuple[int, int] | None = None  # steps and updates when learning had begun
        mine = ray.get_runtime_context().get_node_id()
        (node,) = (node for node in ray.nodes() if node["NodeID"] == mine)
        self._store = store_bytes(node) // 10**6
        self.figures: dict[str, float] = {}

    def look(self, chunks: int, counted: Counters) -> dict[str, float]:
        """Return the figures by their names in TensorBoard."""
        now = time.monotonic()
        if now - self._looked >= _EVERY or not self.figures:
            steps, updates = int(counted.env_steps[0]), int(counted.updates[0])
            seconds = now - self._looked
            speed = (steps - self._steps) / seconds if self._steps >= 0 else 0.0
            self._looked, self._steps = now, steps
            if self._first is None and updates:
                self._first = steps, updates
            self.figures = self._figures(chunks, steps, updates, speed)
        return {f"cluster_{name}": value for name, value in self.figures.items()}

    def _figures(self, chunks: int, steps: int, updates: int, speed: float) -> dict[str, float]:
        trainer, places = self._trainer, self._trainer.group.places
        owed = [reference for place in places for reference, _ in place.owed]
        ready, _ = ray.wait(owed, num_returns=len(owed), timeout=0) if owed else ([], [])
        rounds = chunks * trainer.settings.chunk
        ages = [rounds - 1 - place.version for place in places if place.version >= 0]
        steps_since, updates_since = np.subtract((steps, updates), self._first or (steps, updates))
        return {
            "actors_alive": trainer.group.alive,
            "actors": len(places),
            "steps_per_second": round(speed, 1),
            "replay_ratio": round(
                trainer.learning.replay_ratio(int(steps_since), int(updates_since)), 3
            ),
            "parameter_age": round(float(np.mean(ages)), 2) if ages else 0.0,
            "answers_owed": len(owed),
            "answers_waiting": len(ready),
            "actor_restarts": trainer.group.deaths,
            "learner_restarts": self._restarts,
            "learner_megabytes": peak_megabytes(),
            "actor_megabytes": max(place.megabytes for place in places),
            "stored_megabytes": round(trainer.group.stored_bytes() / 1e6, 2),
            "store_megabytes": self._store,
        }


def tree_bytes(shapes: Any) -> int:
    """Return the bytes of arrays of these shapes."""
    return sum(int(np.prod(x.shape)) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(shapes))


def needed_bytes(trainer: ClusterTrainer) -> tuple[int, int]:
    """Return the bytes that object stores need: on every node, and in addition at the learner.

    Every node holds the current parameters and the next ones; the learner's also holds the waiting
    answers of all actors.
    """
    parameters = tree_bytes(trainer.params(trainer.template()))
    waiting = trainer.settings.lanes * trainer.cluster.ahead
    return 2 * parameters, waiting * trainer.learning.bytes_of_a_step()


def store_bytes(node: dict[str, Any]) -> int:
    """Return the size of a node's object store."""
    return int(node["Resources"].get("object_store_memory", 0))


def check_stores(needed: tuple[int, int], nodes: list[dict[str, Any]], learner: str) -> None:
    """Refuse a cluster with a node whose object store is too small."""
    everywhere, here = needed
    for node in nodes:
        if not node["Alive"]:
            continue
        wanted = everywhere + (here if node["NodeID"] == learner else 0)
        given = store_bytes(node)
        if given < wanted:
            raise InputError(
                f"--cluster: the object store of node {node['NodeManagerAddress']} has {given:,} "
                f"bytes, and this run needs {wanted:,}; give that node more with "
                "ray start --object-store-memory."
            )


def make_job(
    settings: TrainSettings, cluster: ClusterSettings, out: Path, *, resume: bool, device: str,
    workers: int, checkpoint_seconds: float, light_checkpoints: bool, started: int,
) -> Job:  # fmt: skip
    """Return a run in plain values."""
    return Job(
        asdict(settings), asdict(cluster), str(out.resolve()), resume, device, workers,
        checkpoint_seconds, light_checkpoints, started,
    )  # fmt: skip
