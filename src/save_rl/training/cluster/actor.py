"""An actor process: a share of the lanes, its searches and its copy of the network, on one core.

Its parts are those of a run on one machine. Its random numbers depend on the seed, its number, and
how often it was replaced.
"""

import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from save_rl.agents import get_agent
from save_rl.envs.layout import Layout
from save_rl.learning.exploration import epsilon_ladder
from save_rl.networks import is_graph
from save_rl.search.simulators import Evaluate
from save_rl.training.cluster.inference import RemoteEvaluator
from save_rl.training.host import collector as host
from save_rl.training.host.actor import RESET, Actor, slots_of
from save_rl.training.host.evaluator import Network
from save_rl.training.host.learner import make_learning
from save_rl.training.r2d2 import collector as r2d2
from save_rl.training.r2d2.setup import Setup
from save_rl.training.run.run_directory import settings_from_json, versions
from save_rl.training.settings import TrainSettings
from save_rl.types import Simulator

_ALL = np.ones(1, np.bool_)  # the one seed runs


class StepRequest(NamedTuple):
    """A request for one step of all lanes, with the progress of the run."""

    episodes: int
    env_steps: int
    length: float
    level: int  # of new episodes, see `envs.layout.Arrays`
    version: int  # of the parameters to act with


class StepReply(NamedTuple):
    """The reply of an actor."""

    experience: Any  # `host.Experience` or `r2d2.SequenceExperience`, of NumPy arrays
    faults: int  # of its simulators since the last reply
    megabytes: int  # peak memory of its process


class ActorTask(NamedTuple):
    """The description of an actor, in plain values."""

    settings: dict[str, Any]  # of the run
    number: int
    life: int  # how often it was replaced
    first: int  # of its lanes, among those of the run
    lanes: int
    level: int  # of its first episodes

    @property
    def own(self) -> tuple[int, ...]:
        """Part of its random seeds; nothing for the first actor, as on one machine."""
        return (self.number, self.life) if self.number or self.life else ()


class ActorEpisodes(NamedTuple):
    """The current episodes, and the progress of the run: what `host.Collector` needs."""

    episode_seed: np.ndarray  # [1, lanes]
    episode_wanted: np.ndarray  # [1, lanes]
    episode_step: np.ndarray  # [1, lanes]
    episode_return: np.ndarray  # [1, lanes]
    episodes: np.ndarray  # [1]
    env_steps: np.ndarray  # [1]
    length: np.ndarray  # [1]


class TransitionLanes:
    """Lanes that collect transitions.

    ask: evaluates the network in another process, if given; see `RemoteEvaluator`.
    """

    def __init__(
        self, task: ActorTask, settings: TrainSettings, simulator: Simulator, ask: Evaluate | None
    ):
        agent, layout = get_agent(settings.agent), Layout.of(simulator)
        slots = slots_of(agent, max(settings.budget, settings.test_budget), layout)
        self.actor = Actor(
            settings, [simulator], plays=agent, lanes=task.lanes, slots=slots, own=task.own
        )
        self._collector = host.Collector(self.actor, agent, is_graph(layout.example()))
        learning = make_learning(settings, simulator)
        self._network = Network(agent, learning, layout, slots, task.lanes, {})
        self._evaluator: Any = RemoteEvaluator(ask) if ask is not None else None
        self._last: host.Experience | None = None
        self._state = self._begin(task.level)

    def _begin(self, level: int) -> ActorEpisodes:
        shape = self.actor.places.lanes.shape
        seeds = self.actor.random(0, RESET, 0).integers(2**31, size=shape)
        wanted = np.full(shape, level, np.int32)
        self.actor.reset(np.ones(shape, np.bool_), seeds, wanted)
        return ActorEpisodes(
            episode_seed=seeds,
            episode_wanted=wanted,
            episode_step=np.zeros(shape, np.int32),
            episode_return=np.zeros(shape, np.float32),
            episodes=np.zeros(1, np.int64),
            env_steps=np.zeros(1, np.int64),
            length=np.ones(1, np.float32),
        )

    def use(self, leaves: list[Any]) -> None:
        """Act with these parameters `[1, ...]` from now on."""
        self._evaluator = self._network.with_params(leaves)

    def step(self, request: StepRequest, number: int) -> host.Experience:
        """Take step `number` in all lanes."""
        state, collector = self._state, self._collector
        if self._last is not None:
            state = collector.start_episodes(state, self._last, np.array([request.level]), _ALL)
        state = state._replace(
            episodes=np.array([request.episodes]),
            env_steps=np.array([request.env_steps]),
            length=np.array([request.length], np.float32),
        )
        found = collector.step(state, self._evaluator, number, _ALL)
        found = found._replace(transitions=jax.tree.map(np.asarray, found.transitions))
        self._state = state._replace(
            episode_step=found.episode_step + found.moved,
            episode_return=found.episode_return + found.reward,
        )
        self._last = found
        return found


class SequenceLanes:
    """Lanes that collect sequences, with the epsilons that they have in the whole run."""

    def __init__(self, task: ActorTask, settings: TrainSettings, simulator: Simulator):
        setup = Setup(settings, Layout.of(simulator))
        s, agent = setup.settings, setup.agent
        slots = slots_of(agent, max(s.budget, s.test_budget), setup.layout)
        self.actor = Actor(
            s, [simulator], plays=agent, lanes=task.lanes, slots=slots, space=setup.space,
            own=task.own,
        )  # fmt: skip
        self.epsilon = epsilon_ladder(s.lanes)[task.first : task.first + task.lanes]
        self._collector = r2d2.SequenceCollector(setup, self.actor, self.epsilon)
        self._state = self._collector.begin()
        self._last: r2d2.SequenceExperience | None = None

    def use(self, leaves: list[Any]) -> None:
        """Act with these parameters `[1, ...]` from now on."""
        self._collector.use(leaves)

    def step(self, request: StepRequest, number: int) -> r2d2.SequenceExperience:
        """Take step `number` in all lanes."""
        if self._last is not None:
            self._state = self._collector.start_episodes(self._state, self._last)
        self._last = self._collector.step(self._state, number)
        return self._last


class ActorProcess:
    """Acts on request.

    fetch: gets parameters by their reference. ask: see `TransitionLanes`.
    """

    def __init__(self, fetch: Callable[[Any], Any], ask: Evaluate | None = None):
        self._fetch, self._ask, self._version = fetch, ask, -1
        self._faults = self._steps = 0

    def start(self, task: ActorTask) -> dict[str, Any]:
        """Make the lanes; return the host, the process number and the installed versions."""
        from save_rl.envs import make_all
        from save_rl.training.devices import select_device

        settings = settings_from_json(task.settings)
        select_device("cpu")  # sets the cache of compiled programs
        (simulator,) = make_all(settings.env, settings.seeds, **settings.all_env_options)
        if get_agent(settings.agent).recurrent:
            self._lanes: Any = SequenceLanes(task, settings, simulator)
        else:
            self._lanes = TransitionLanes(task, settings, simulator, self._ask)
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "versions": versions(),
        }

    def act(self, request: StepRequest, parameters: list[Any]) -> StepReply:
        """Make a step with all lanes. parameters: a list with one reference, for `fetch`."""
        if self._ask is None and request.version != self._version:
            self._lanes.use(self._fetch(parameters[0]))
            self._version = request.version
        # An own count, since one round may ask for several steps.
        experience = self._lanes.step(request, self._steps)
        self._steps += 1
        faults = int(self._lanes.actor.pool.faults[0])
        self._faults, new = faults, faults - self._faults
        return StepReply(experience, new, peak_megabytes())


def peak_megabytes() -> int:
    """Return the peak memory of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used * (1 if sys.platform == "darwin" else 2**10) // 10**6
