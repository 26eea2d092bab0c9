"""What actors on a Ray cluster gain, what they send, and what that comes to for many of them."""

import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any

import jax
import numpy as np

from save_rl.bench.clocks import Clocks
from save_rl.envs.pool import usable_cores
from save_rl.errors import InputError, RunError
from save_rl.training import loop
from save_rl.training.cluster import crew
from save_rl.training.cluster.here import end_cluster, same_port, start_cluster
from save_rl.training.cluster.learner import tree_bytes
from save_rl.training.cluster.program import Program
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.devices import compiler_options
from save_rl.training.settings import TrainSettings

ray = crew.ray
ACTORS = (64, 256, 1024)
_WARM_UP = 6  # rounds
_MB = 1e6


def bench_cluster(env: str, device: Any, lanes: int, seconds: float) -> dict[str, Any]:
    """Train SAVE with one actor and with two, on a cluster of this machine alone.

    Both have the same lanes in all, so that a round is the same work.
    """
    settings = TrainSettings(env=env, lanes=lanes, chunk=1)
    settings.check()
    envs, on_host = loop.environments(settings)
    if not on_host:
        raise InputError(f"--env: '{env}' is written in JAX, and actors need simulators.")
    with _cluster():
        cases = []
        for actors in (1, 2):
            chosen = ClusterSettings(actors=actors)
            made = Program(settings, envs, chosen, options=compiler_options(device))
            with closing(made) as program:
                cases.append(_case(program, seconds))
    one, two = (case["env_steps_per_second"] for case in cases)
    return {
        "device": device.device_kind,
        "env": env,
        "cores": usable_cores(),
        "cases": cases,
        "gain_of_a_second_actor": round(two / one, 2),
        "computed_for_many_actors": [_many(cases[1], settings, n) for n in ACTORS],
    }


@contextmanager
def _cluster() -> Iterator[None]:
    address, process = start_cluster()
    path = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    try:
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        context: Any = ray.init(
            address="auto", log_to_driver=False, logging_level=40,
            runtime_env={"env_vars": variables},
        )  # fmt: skip
        if not same_port(context.address_info["gcs_address"], address):
            raise RunError("--cluster: another cluster runs on this machine; end it to measure.")
        yield
    finally:
        ray.shutdown()
        end_cluster(process)


def _case(program: Program, seconds: float) -> dict[str, Any]:
    settings, actors = program.settings, program.crew
    clocks = Clocks()
    clocks.watch("waiting", actors, "_wait")
    reports = _last(program)
    state, step = program.begin(), 0
    while step < settings.min_replay // settings.lanes + _WARM_UP:
        state, step = program.advance(state, step), step + 1
    before, made = clocks.seconds["waiting"], program.counters(state)
    answers, first, ages = _answers(program), step, []
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        state, step = program.advance(state, step), step + 1
        ages += [step - 1 - place.version for place in actors.places]
    jax.block_until_ready(jax.tree.leaves(program.params(state)))
    total = time.perf_counter() - started
    done = program.counters(state)
    steps = int((done.env_steps - made.env_steps)[0])
    updates = int((done.updates - made.updates)[0])
    waited = clocks.seconds["waiting"] - before
    asked = _answers(program) - answers
    fetched = (step - first) // (program.cluster.refresh or 1) * len(actors.places)
    packed: Any = import_module("ray.cloudpickle")
    bytes_sent = len(packed.dumps(reports[-1])) / len(reports[-1].experience.moved)
    return {
        "actors": len(actors.places),
        "lanes": settings.lanes,
        "env_steps_per_second": round(steps / total, 1),
        "updates_per_second": round(updates / total, 1),
        "replay_ratio": round(updates * settings.batch / steps, 3),
        "learner_idle_share": round(waited / total, 3),
        "parameter_age_rounds": round(float(np.mean(ages)), 2),
        "messages_per_step": round((2 * asked + fetched) / steps, 4),
        "bytes_per_transition": round(bytes_sent),
        "bytes_of_parameters": tree_bytes(jax.tree.map(np.asarray, program.params(state))),
        "megabytes_of_an_actor": round(np.mean([_resident(p) for p in actors.places]) / _MB),
        "megabytes_of_the_learner": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _last(program: Program) -> list[Any]:
    """Keeps the last report that the learner took in."""
    kept: list[Any] = []
    take = program._take

    def taking(seed: Any, first: int, report: Any) -> Any:
        kept[:] = [report]
        return take(seed, first, report)

    program._take = taking
    return kept


def _answers(program: Program) -> int:
    return sum(place.steps for place in program.crew.places)


def _resident(place: Any) -> int:
    """Bytes of memory of an actor on this machine."""
    process = place.where.split()[-1].rstrip(")")
    asked = ["ps", "-p", process, "-o", "rss="]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout) * 1024


def _many(case: dict[str, Any], settings: TrainSettings, actors: int) -> dict[str, Any]:
    """What so many actors come to, if all go on as the measured ones did.

    Every actor has as many lanes as in the case, and a node of its own, the worst case: actors of
    a node share what is sent to it.
    """
    lanes, speed = case["lanes"] // case["actors"], case["env_steps_per_second"] / case["actors"]
    steps, rounds, ahead = actors * speed, speed / lanes, ClusterSettings().ahead
    parameters = case["bytes_of_parameters"]
    slow = max(1, round(rounds))  # a refresh a second
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
            "answers_waiting": round(
                actors * ahead * lanes * case["bytes_per_transition"] / _MB, 2
            ),
            "all_actors": actors * case["megabytes_of_an_actor"],
        },
    }
