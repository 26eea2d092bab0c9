"""An actor: its lanes, its searches and its copy of the network, on one core.

It makes a whole program and uses the part that acts. Its random numbers depend on the seed, its
number, and how often it was replaced.
"""

import os
import resource
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from save_rl.agents import get_agent
from save_rl.learning.exploration import epsilon_ladder
from save_rl.search.simulators import Evaluate
from save_rl.training import host, r2d2
from save_rl.training.run_directory import settings_from_json, versions
from save_rl.training.settings import TrainSettings


class Order(NamedTuple):
    """A request for one step of all lanes, with the progress of the run."""

    episodes: int
    length: float
    level: int  # of new episodes, see `envs.worker.Arrays`
    version: int  # of the parameters to act with


class Report(NamedTuple):
    """The answer of an actor."""

    experience: host.Experience | r2d2.Experience
    faults: int  # of its simulators since the last report
    megabytes: int  # peak memory of its process


class Task(NamedTuple):
    """The description of an actor, in plain values."""

    settings: dict[str, Any]  # of the run
    number: int
    life: int  # how often it was replaced
    first: int  # of its lanes, among those of the run
    lanes: int
    level: int  # of its first episodes


class _Own:
    """Gives every actor its own random numbers; the first one has those of one machine.

    level: of new episodes.
    """

    def __init__(self, task: Task, *arguments: Any, **options: Any):
        self._who = (task.number, task.life) if task.number or task.life else ()
        self.level = task.level
        parent: Any = super()
        parent.__init__(*arguments, **options)

    def _random(self, index: int, stream: int, *number: int) -> np.random.Generator:
        parent: Any = super()
        return parent._random(index, stream, *number, *self._who)


class Lanes(_Own, host.Program):
    """The lanes of an actor."""

    def _wanted(self, seed: host.HostSeed) -> int:
        return self.level


class FrameLanes(_Own, r2d2.Program):
    """The lanes of an R2D2 actor, with the epsilons that these lanes have in the whole run."""

    def __init__(self, task: Task, settings: TrainSettings, *arguments: Any, **options: Any):
        everybody = settings.lanes
        own = replace(settings.r2d2.replay, capacity=1, minimum=1)  # sequences are not kept here
        settings = replace(
            settings, lanes=task.lanes, r2d2=replace(settings.r2d2, replay=own)
        )  # fmt: skip
        super().__init__(task, settings, *arguments, **options)
        self._epsilon = epsilon_ladder(everybody)[task.first : task.first + task.lanes]


class Actor:
    """Acts on request.

    fetch: gets parameters by their reference. ask: evaluates the network in another process, if
    given; see `Evaluate`.
    """

    def __init__(self, fetch: Callable[[Any], Any], ask: Evaluate | None = None):
        self._fetch, self._ask, self._version = fetch, ask, -1
        self._last: Any = None
        self._faults = self._steps = 0

    def start(self, task: Task) -> dict[str, Any]:
        """Make the lanes; return the host, the process number and the installed versions."""
        from save_rl.envs import make_all
        from save_rl.training.devices import select_device

        settings = settings_from_json(task.settings)
        select_device("cpu")  # sets the cache of compiled programs
        envs = make_all(settings.env, settings.seeds, **settings.env_options)
        if get_agent(settings.agent).recurrent:
            self._lanes: Any = FrameLanes(task, settings, envs)
        else:
            self._lanes = Lanes(task, replace(settings, lanes=task.lanes, replay=1), envs)
        (self._seed,) = self._lanes.begin()
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "versions": versions(),
        }

    def act(self, order: Order, parameters: list[Any]) -> Report:
        """Make a step with all lanes. parameters: a list with one reference, for `fetch`."""
        lanes, seed = self._lanes, self._seed
        if order.version != self._version:
            self._evaluate = self._ask or lanes.acting(self._fetch(parameters[0]))
            self._version = order.version
        lanes.level = order.level
        if self._last is not None:
            seed = lanes.renew(0, seed, self._last, order.level)
        seed = seed._replace(episodes=np.int64(order.episodes), length=np.float32(order.length))
        # An own count, since one round may ask for several steps.
        done = lanes.act(0, seed, self._evaluate, self._steps)
        self._steps += 1
        self._seed = seed._replace(
            episode_step=done.episode_step + done.moved,
            episode_return=done.episode_return + done.reward,
        )
        self._last = done
        faults = lanes.pool.faults[0]
        self._faults, new = faults, faults - self._faults
        return Report(done, new, peak_megabytes())


def peak_megabytes() -> int:
    """Return the peak memory of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used * (1 if sys.platform == "darwin" else 2**10) // 10**6
