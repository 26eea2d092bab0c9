"""Actors on a Ray cluster: speed-up, traffic, and an extrapolation to many actors."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

import jax
import numpy as np

from save_rl.bench.clocks import Clocks
from save_rl.envs import simulator_name
from save_rl.errors import InputError, RunError
from save_rl.processes import usable_cores
from save_rl.training.cluster import actor_group
from save_rl.training.cluster.actor import ActorProcess, ActorTask, StepRequest, peak_megabytes
from save_rl.training.cluster.learner import tree_bytes
from save_rl.training.cluster.local_cluster import (
    end_cluster,
    module_path,
    same_port,
    start_cluster,
)
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.cluster.trainer import ClusterTrainer
from save_rl.training.devices import compiler_options
from save_rl.training.run.trainers import environments
from save_rl.training.settings import TrainSettings

ray = actor_group.ray
ACTORS = (64, 256, 1024)
_WARM_UP = 6  # rounds
_TURNS = 5
_LOOK = 0.5  # seconds between measurements of the object stores
_MB = 1e6


def bench_cluster(env: str, device: Any, lanes: int, seconds: float) -> dict[str, Any]:
    """Train SAVE with one actor and with two, on a cluster of only this machine.

    lanes: of each actor, as in the table for many actors. Both cases alternate, since other work
    may share the machine, and results are medians over the turns. One and two processes that act
    without a learner alternate with them: an upper bound for any cluster on this machine.
    """
    settings = TrainSettings(env=simulator_name(env), lanes=lanes, chunk=1)
    settings.check()
    envs, on_host = environments(settings)
    if not on_host:
        raise InputError(f"--env: '{env}' is written in JAX, and actors need simulators.")
    with _cluster(), ExitStack() as stack:
        cases = [_Case(settings, envs, actors, device) for actors in (1, 2)]
        for case in cases:
            stack.callback(case.trainer.close)
        alone = [_Alone(cases[0], processes) for processes in (1, 2)]
        for case in cases:
            case.warm_up()
        for _ in range(_TURNS):
            for one in (*cases, *alone):
                one.turn(seconds / _TURNS)
        found = [case.report() for case in cases]
        bare = [float(np.median(one.speeds)) for one in alone]
    return {
        "device": device.device_kind,
        "env": env,
        "cores": usable_cores(),
        "cases": found,
        "gain_of_a_second_actor": _gain([case["env_steps_per_second"] for case in found]),
        "without_a_learner": {
            "env_steps_per_second": [round(speed, 1) for speed in bare],
            "gain_of_a_second_process": _gain(bare),
        },
        "computed_for_many_actors": [_many(found[1], settings, n) for n in ACTORS],
    }


def _gain(speeds: list[float]) -> float:
    one, two = speeds
    return round(two / one, 2)


@contextmanager
def _cluster() -> Iterator[None]:
    address, process = start_cluster("--num-cpus=6")  # the actors alternate
    try:
        context: Any = ray.init(
            address="auto", log_to_driver=False, logging_level=40,
            runtime_env={"env_vars": module_path()},
        )  # fmt: skip
        if not same_port(context.address_info["gcs_address"], address):
            raise RunError("--cluster: another cluster runs on this machine; end it to measure.")
        yield
    finally:
        ray.shutdown()
        end_cluster(process)


class _Case:
    """A run with this many actors, in turns."""

    def __init__(self, settings: TrainSettings, envs: Any, actors: int, device: Any):
        self.settings = replace(settings, lanes=actors * settings.lanes)
        self.trainer = ClusterTrainer(
            self.settings, envs, ClusterSettings(actors=actors), options=compiler_options(device)
        )
        self._clocks = Clocks()
        self._clocks.watch("waiting", self.trainer.group, "_wait")
        self._step, self.state = 0, self.trainer.begin()
        self._turns: list[dict[str, float]] = []
        self._experience: Any = None  # the last one received
        record = self.trainer.learning.record

        def recording(state: Any, experience: Any, first: int) -> Any:
            self._experience = experience
            return record(state, experience, first)

        self.trainer.learning.record = recording

    def _advance(self) -> None:
        self.state = self.trainer.advance(self.state, self._step, np.ones(1, np.bool_))
        self._step += 1

    def _waited(self) -> float:
        return self._clocks.seconds.get(("main", "waiting"), 0.0)

    def warm_up(self) -> None:
        """Train until everything is compiled."""
        while self._step < self.settings.min_replay // self.settings.lanes + _WARM_UP:
            self._advance()

    def turn(self, seconds: float) -> None:
        """Train for this long."""
        trainer, places = self.trainer, self.trainer.group.places
        before, waited = trainer.counters(self.state), self._waited()
        asked, first = sum(place.steps for place in places), self._step
        ages, stored, looked = [], 0, -_LOOK
        used, started = time.process_time(), time.perf_counter()
        while (total := time.perf_counter() - started) < seconds:
            self._advance()
            ages += [self._step - 1 - place.version for place in places]
            if total - looked > _LOOK:
                looked, stored = total, max(stored, trainer.group.stored_bytes())
        jax.block_until_ready(jax.tree.leaves(trainer.params(self.state)))
        total, used = time.perf_counter() - started, time.process_time() - used
        after = trainer.counters(self.state)
        steps = int((after.env_steps - before.env_steps)[0])
        updates = int((after.updates - before.updates)[0])
        messages = 2 * (sum(place.steps for place in places) - asked)
        messages += (self._step - first) // (trainer.cluster.refresh or 1) * len(places)
        self._turns.append(
            {
                "env_steps_per_second": steps / total,
                "updates_per_second": updates / total,
                "replay_ratio": updates * self.settings.batch / steps,
                "learner_idle_share": (self._waited() - waited) / total,
                "learner_cores": used / total,
                "parameter_age_rounds": float(np.mean(ages)),
                "messages_per_step": messages / steps,
                "megabytes_in_object_stores": stored / _MB,
            }
        )
        while any(place.owed for place in places):  # no actor may work in another case's turn
            trainer.group._wait()

    def report(self) -> dict[str, Any]:
        """Return medians over the turns, and sizes."""
        trainer, places = self.trainer, self.trainer.group.places
        packed: Any = import_module("ray.cloudpickle")
        lanes = self._experience.moved.shape[1]
        parameters = jax.tree.map(np.asarray, trainer.params(self.state))
        return {
            "actors": len(places),
            "lanes": self.settings.lanes,
            **{
                name: round(float(np.median([turn[name] for turn in self._turns])), 3)
                for name in self._turns[0]
            },
            "bytes_per_transition": round(len(packed.dumps(self._experience)) / lanes),
            "bytes_of_parameters": tree_bytes(parameters),
            "megabytes_of_an_actor": max(place.megabytes for place in places),
            "megabytes_of_the_learner": peak_megabytes(),
        }


class _Alone:
    """Processes that act like the actor of a case, in turns, and send nothing."""

    def __init__(self, case: _Case, processes: int):
        settings, lanes = case.settings, case.settings.lanes
        level = case.trainer.learning.level(case.state)
        request = StepRequest(episodes=0, env_steps=0, length=1.0, level=level, version=0)
        leaves = [np.asarray(x) for x in jax.tree.leaves(case.trainer.params(case.state))]
        make: Any = ray.remote(_Acting).options(runtime_env={"env_vars": actor_group.ONE_CORE})
        tasks = [
            ActorTask(asdict(settings), number, 0, number * lanes, lanes, level)
            for number in range(processes)
        ]
        self._processes = [make.remote(task, request, leaves) for task in tasks]
        ray.get([process.act.remote(0.0) for process in self._processes])  # compiles
        self.speeds: list[float] = []

    def turn(self, seconds: float) -> None:
        """Act for this long."""
        self.speeds.append(sum(ray.get([p.act.remote(seconds) for p in self._processes])))


class _Acting:
    """A process of `_Alone`."""

    def __init__(self, task: ActorTask, request: StepRequest, leaves: list[Any]):
        self._request, self._leaves = request, leaves
        self._actor = ActorProcess(lambda given: given)
        self._actor.start(task)

    def act(self, seconds: float) -> float:
        """Act for this long; return real steps per second."""
        steps, started = 0, time.perf_counter()
        while steps == 0 or time.perf_counter() - started < seconds:
            made = self._actor.act(self._request, [self._leaves])
            steps += made.experience.moved.shape[1]
        return steps / (time.perf_counter() - started)


def _many(case: dict[str, Any], settings: TrainSettings, actors: int) -> dict[str, Any]:
    """Extrapolate a case to this many actors, each as fast as the measured ones.

    Every actor has as many lanes as in the case, and its own node. That is the worst case: actors
    on the same node share what is sent to it.
    """
    lanes, speed = case["lanes"] // case["actors"], case["env_steps_per_second"] / case["actors"]
    steps, rounds, ahead = actors * speed, speed / lanes, ClusterSettings().ahead
    parameters = case["bytes_of_parameters"]
    slow = max(1, round(rounds))  # a refresh a second
    waiting = actors * ahead * lanes * case["bytes_per_transition"]
    return {
        "actors": actors,
        "lanes": actors * lanes,
        "env_steps_per_second": round(steps),
        "updates_per_second": round(steps * settings.replay_ratio / settings.batch),
        "megabytes_per_second": {
            "to_learner": round(steps * case["bytes_per_transition"] / _MB, 2),
            "parameters_every_round": round(actors * parameters * rounds / _MB, 2),
            "parameters_every_second": round(actors * parameters * rounds / slow / _MB, 2),
        },
        "megabytes": {
            "object_store_of_the_learner": round((waiting + 2 * parameters) / _MB, 2),
            "object_store_of_another_node": round(2 * parameters / _MB, 2),
            "the_learner": case["megabytes_of_the_learner"],
            "all_actors": actors * case["megabytes_of_an_actor"],
        },
    }
