"""A process that acts: its lanes, its searches and its copy of the network, on one core.

It has a whole `host.Program`, of which it uses the part that acts. What it does depends on the
seed, its number, how often it was replaced, and what it is told.
"""

import os
import platform
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from save_rl.training import host
from save_rl.training.run_directory import settings_from_json, versions


class Order(NamedTuple):
    """A step that an actor is asked for, and how far the run has come."""

    step: int
    episodes: int
    length: float
    level: int  # of new episodes, see `envs.worker.Arrays`
    version: int  # of the parameters to act with


class Report(NamedTuple):
    """What an actor did."""

    experience: host.Experience
    faults: int  # of its simulators, since the last report


class Task(NamedTuple):
    """What an actor is, in plain values."""

    settings: dict[str, Any]  # of the run
    number: int
    life: int  # how often it was replaced
    lanes: int
    level: int  # that its first episodes are asked for


class Lanes(host.Program):
    """The lanes of an actor."""

    def __init__(self, task: Task, *arguments: Any, **options: Any):
        self._who = (task.number, task.life) if task.number or task.life else ()
        self.level = task.level
        super().__init__(*arguments, **options)

    def _random(self, index: int, stream: int, *number: int) -> np.random.Generator:
        return super()._random(index, stream, *number, *self._who)

    def _wanted(self, seed: host.HostSeed) -> int:
        return self.level


class Actor:
    """Acts when it is told to. `fetch` gets parameters by what stands for them in an order."""

    def __init__(self, fetch: Callable[[Any], Any]):
        self._fetch, self._version = fetch, -1
        self._last: host.Experience | None = None
        self._faults = 0

    def start(self, task: Task) -> dict[str, Any]:
        """Make the lanes; returns who and where this is."""
        from save_rl.envs import make_all
        from save_rl.training.devices import select_device

        settings = settings_from_json(task.settings)
        select_device("cpu")  # finds compiled programs on disk
        envs = make_all(settings.env, settings.seeds, **settings.env_options)
        self._lanes = Lanes(task, replace(settings, lanes=task.lanes), envs)
        (self._seed,) = self._lanes.begin()
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "versions": {**versions(), "python": platform.python_version()},
        }

    def act(self, order: Order, parameters: list[Any]) -> Report:
        """A step of all lanes. parameters: one thing that `fetch` takes."""
        lanes, seed = self._lanes, self._seed
        if order.version != self._version:
            leaves = self._fetch(parameters[0])
            self._evaluate = lanes.network.with_params(leaves)
            self._version = order.version
        lanes.level = order.level
        if self._last is not None:
            seed = lanes.renew(0, seed, self._last, order.level)
        seed = seed._replace(episodes=np.int64(order.episodes), length=np.float32(order.length))
        done = lanes.act(0, seed, self._evaluate, order.step)
        self._seed = seed._replace(
            episode_step=done.episode_step + done.moved,
            episode_return=done.episode_return + done.transitions.reward,
        )
        self._last = done
        faults = lanes.pool.faults[0]
        self._faults, new = faults, faults - self._faults
        return Report(done, new)
