"""The actors of a run for the learner: sends requests, collects answers, replaces dead actors.

Every actor owes at most `ahead` answers, so the number of waiting answers is bounded at any speed.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from save_rl.errors import MissingExtra, RunError
from save_rl.processes import ONE_THREAD
from save_rl.training.cluster.actor import ActorProcess, ActorTask, StepReply, StepRequest
from save_rl.training.cluster.inference import Inference
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.run.run_directory import versions
from save_rl.training.settings import TrainSettings

try:
    import ray
    from ray import exceptions
    from ray.experimental import get_object_locations
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise MissingExtra(
        "--cluster needs Ray; install it with: pip install 'save-rl[cluster]'."
    ) from error

_DEATHS_IN_A_ROW = 8  # in one place, without a step of any actor in between
_INFERENCE = -1  # its number among the places
_PATIENCE = 120.0  # seconds without any actor, at the start and later
_SILENCE = 5.0  # seconds that an actor may wait for a core before the run says so
_GONE = (
    exceptions.RayActorError, exceptions.ObjectLostError, exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
)  # fmt: skip
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu"}  # an actor never sees a GPU
SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""For processes that share a GPU: each allocates what it needs."""
# An actor has one core, so more threads gain nothing. A synchronous actor keeps the threads of one
# machine, since their number changes the order of sums.
ONE_CORE = {
    **_ENVIRONMENT,
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    **ONE_THREAD,
}
"""For an actor process."""


class _Place:
    """One place of the group, and the actor that fills it."""

    def __init__(self, number: int, lanes: int, first: int):
        self.number, self.lanes, self.first = number, lanes, first
        self.life = -1
        self.actor: Any = None
        self.starting: Any = None  # a reference, until the actor is ready
        self.owed: deque[tuple[Any, StepRequest]] = deque()
        self.where = ""
        self.steps = 0
        self.version = -1
        self.megabytes = 0
        self.since = 0.0  # when its actor was requested

    @property
    def ready(self) -> bool:
        return self.actor is not None and self.starting is None


class ActorGroup:
    """Actors that share the lanes of a run.

    said: called with a line when an actor is replaced. device: of the network if the learner's
    machine evaluates it.
    """

    def __init__(
        self, settings: TrainSettings, cluster: ClusterSettings, said: Callable[[str], None],
        device: str = "cpu",
    ):  # fmt: skip
        self._settings, self._cluster, self._said = settings, cluster, said
        self._device, self._inference = device, None
        sizes = [len(part) for part in np.array_split(np.arange(settings.lanes), cluster.actors)]
        firsts = np.cumsum([0, *sizes])
        self.places = [
            _Place(number, lanes, int(firsts[number])) for number, lanes in enumerate(sizes)
        ]
        self.deaths = 0
        # By the place, since an actor last made a step; a node takes all its actors with it.
        self._in_a_row: Counter[int] = Counter()
        self._told, self._looked = (
            False,
            0.0,
        )  # whether waiting actors were reported; the last check
        self._level = 0
        self._parameters: Any = None
        self._actor: Any = ray.remote(ActorProcess)
        self._server: Any = ray.remote(Inference)

    def begin(self, level: int, after: int = -1) -> None:
        """Start all actors; their first episodes have this level.

        after: rounds made before, so that actors don't repeat the random numbers of those.
        """
        self._level = level
        for place in self.places:
            place.life = max(place.life, after)
        if self._cluster.inference == "learner":
            self._start_inference()
        for place in self.places:
            self._fill(place)

    def close(self) -> None:
        """End all actors."""
        for place in self.places:
            if place.actor is not None:
                ray.kill(place.actor)
            place.actor, place.starting = None, None
            place.owed.clear()
        if self._inference is not None:
            ray.kill(self._inference)
            self._inference = None

    def publish(self, leaves: list[Any]) -> None:
        """Put parameters into the object store, for all nodes."""
        self._parameters = ray.put([np.asarray(x) for x in leaves])
        if self._inference is not None:
            self._tell_inference()

    def _start_inference(self) -> None:
        """Start a process on this node that evaluates the network for all actors."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        gpus = 0.5 if self._device == "gpu" else 0  # the learner has the rest
        environment = SHARED_GPU if self._device == "gpu" else _ENVIRONMENT
        self._inference = self._server.options(
            num_cpus=0, num_gpus=gpus, max_concurrency=1000, scheduling_strategy=here,
            runtime_env={"env_vars": environment},
        ).remote(asdict(self._settings), self._device)  # fmt: skip
        if self._parameters is not None:
            self._tell_inference()

    def _tell_inference(self) -> None:
        assert self._inference is not None
        try:
            ray.get(self._inference.use.remote(self._parameters))
        except exceptions.RayActorError as error:
            self._restart_inference(error)

    def _restart_inference(self, error: Exception) -> None:
        """Replace the inference process and all actors; episodes in progress are lost."""
        self._count_death(_INFERENCE, error)
        self._said("the inference process is gone; all actors are restarted")
        self.close()
        self.begin(self._level)

    def together(self, request: StepRequest) -> list[tuple[int, StepReply]]:
        """Make one step with all actors; return the first lane and the reply of each, in order."""
        replies: dict[int, StepReply] = {}
        asked: set[tuple[int, int]] = set()
        while len(replies) < len(self.places):
            for place in self.places:
                who = (place.number, place.life)
                if place.ready and place.number not in replies and who not in asked:
                    self._ask(place, request)
                    asked.add(who)
            place, reply = self._wait()
            if reply is not None:
                replies[place.number] = reply
        return [(place.first, replies[place.number]) for place in self.places]

    def next(self, request: StepRequest) -> tuple[int, StepReply]:
        """Send up to `ahead` requests per actor; return the next reply and its first lane."""
        while True:
            for place in self.places:
                while place.ready and len(place.owed) < self._cluster.ahead:
                    self._ask(place, request)
            place, reply = self._wait()
            if reply is not None:
                return place.first, reply

    @property
    def alive(self) -> int:
        """The number of actors that are ready."""
        return sum(place.ready for place in self.places)

    def stored_bytes(self) -> int:
        """Return the bytes of parameters and waiting answers in object stores."""
        owed = [reference for place in self.places for reference, _ in place.owed]
        held = [*owed, *([self._parameters] if self._parameters is not None else [])]
        found = get_object_locations(held) if held else {}
        return sum(where["object_size"] or 0 for where in found.values())

    def _fill(self, place: _Place) -> None:
        place.life += 1
        place.where = ""
        place.since = time.monotonic()
        place.owed.clear()
        # Ray waits for a free core, and for nodes to come, by itself.
        runtime = {"env_vars": _ENVIRONMENT if self._cluster.synchronous else ONE_CORE}
        options = {"num_cpus": 1, "max_restarts": 0, "runtime_env": runtime}
        server = self._inference
        ask = None if server is None else _Asking(server)
        place.actor = self._actor.options(**options).remote(ray.get, ask)
        task = ActorTask(
            asdict(self._settings), place.number, place.life, place.first, place.lanes,
            self._level,
        )  # fmt: skip
        place.starting = place.actor.start.remote(task)

    def _ask(self, place: _Place, request: StepRequest) -> None:
        # Ray does not resolve a reference inside a list: actors fetch it when the version is new.
        place.owed.append((place.actor.act.remote(request, [self._parameters]), request))
        self._level = request.level

    def _wait(self) -> tuple[_Place, StepReply | None]:
        """Wait for the next event; return its place, and the reply if it is one."""
        began = time.monotonic()
        while True:
            waiting = {}
            for place in self.places:
                if place.starting is not None:
                    waiting[place.starting] = place
                elif place.owed:
                    waiting[place.owed[0][0]] = place
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
            self._say_who_waits()
            if done:
                break
            if not self.alive and time.monotonic() - began > _PATIENCE:
                raise RunError(
                    f"--cluster: no actor has started within {_PATIENCE:.0f} s; the cluster has "
                    f"{json.dumps(ray.available_resources())} left, and an actor needs a CPU."
                )
        place = waiting[done[0]]
        try:
            found = ray.get(done[0])
        except _GONE as error:
            self._replace(place, error)
            return place, None
        except exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None) or error
            if self._inference is not None and isinstance(cause, exceptions.RayActorError):
                self._restart_inference(cause)
                return place, None
            where = f" on {place.where}" if place.where else ""
            raise RunError(f"--cluster: actor {place.number}{where}: {cause}") from error
        if place.starting is not None:
            self._welcome(place, found)
            return place, None
        self._in_a_row.clear()
        _, request = place.owed.popleft()
        place.steps += 1
        place.version = request.version
        place.megabytes = found.megabytes
        return place, found

    def _say_who_waits(self) -> None:
        """Report once that actors find no core."""
        now = time.monotonic()
        late = [p for p in self.places if p.starting is not None and now - p.since > _SILENCE]
        if self._told or not late or now - self._looked < _SILENCE:
            return
        self._looked = now
        waiting = sum(not _has_core(place.actor) for place in late)
        if waiting:
            self._told = True
            then = "they begin when one is free"
            if self._cluster.synchronous:
                then = "with --cluster.synchronous the run waits for them"
            self._said(
                f"{waiting} of {len(self.places)} actors find no free core, of the "
                f"{ray.cluster_resources().get('CPU', 0):.0f} that the cluster has; {then}"
            )

    def _welcome(self, place: _Place, who: dict[str, Any]) -> None:
        place.starting = None
        place.where = f"{who['host']} (process {who['pid']})"
        other = other_version(who["versions"])
        if other:
            raise RunError(f"--cluster: {place.where}: {other}")

    def _replace(self, place: _Place, error: Exception) -> None:
        """Start a new actor for a place; the answers that the old one owed are lost."""
        self._count_death(place.number, error)
        where = place.where or "before it was ready"
        self._said(f"actor {place.number} is gone, {where}; another one takes its place")
        self._fill(place)

    def _count_death(self, number: int, error: Exception) -> None:
        self.deaths += 1
        self._in_a_row[number] += 1
        if self._in_a_row[number] >= _DEATHS_IN_A_ROW:
            reason = str(error).strip().splitlines()[0]
            raise RunError(f"--cluster: processes keep dying; the last one: {reason}")


def other_version(theirs: dict[str, Any]) -> str:
    """Return a sentence on the first package whose version differs here; '' if all agree."""
    mine = versions()
    for package in ("save-rl", "jax", "numpy", "python"):
        if theirs[package] != mine[package]:
            return (
                f"it has {package} {theirs[package]}, and the learner {mine[package]}; install the "
                "same on all nodes."
            )
    return ""


def _has_core(actor: Any) -> bool:
    """Test whether an actor has a process: it has no address before."""
    from ray._private.state import actors

    return bool(actors(actor._actor_id.hex())["Address"]["IPAddress"])


class _Asking:
    """Evaluates the network in another process, for an actor."""

    def __init__(self, server: Any):
        self._server = server

    def __call__(self, observation: Any, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return ray.get(self._server.evaluate.remote(observation, mask))
