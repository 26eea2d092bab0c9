"""The trainer on a cluster: that of one machine, with remote actors in place of its own.

A *round* is as many steps as there are lanes, and has the same updates as a lock-step of one
machine. So the replay ratio is exact at any speed of the actors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import get_agent
from save_rl.envs.pool import Source
from save_rl.envs.worker import ANY_LEVEL
from save_rl.errors import require
from save_rl.learning.host_replay import unpack_target
from save_rl.training.cluster.actor import StepReply, StepRequest
from save_rl.training.cluster.actor_group import ActorGroup
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.counters import Counters
from save_rl.training.host import trainer as host
from save_rl.training.host.actor import LEARN, RESET, Actor
from save_rl.training.host.collector import Experience
from save_rl.training.r2d2.collector import blank_lanes, no_episodes
from save_rl.training.r2d2.learner import SequenceState
from save_rl.training.r2d2.trainer import R2D2Trainer, Saved
from save_rl.training.settings import TrainSettings
from save_rl.types import Simulator

_ALL = np.ones(1, np.bool_)  # the one seed runs


class ClusterTrainer:
    """Trains one seed with an actor group; its own lanes only run tests.

    simulators, sources, places: see `HostTrainer`. warn: shows what happens to actors.
    """

    refills_replay = True
    test_batch: int | None = None  # test lanes take episodes until all are played

    def __init__(
        self,
        settings: TrainSettings,
        simulators: Sequence[Simulator],
        cluster: ClusterSettings,
        sources: Sequence[Source] = (),
        *,
        test_lanes: int = 0,
        warn: Callable[[str], None] | None = None,
        **places: Any,
    ):
        agent = get_agent(settings.agent)
        require(len(settings.seeds) == 1, "--seed", settings.seeds, "one number with --cluster")
        cluster.check(settings.lanes, agent, settings.reward_scale)
        kind = SequenceLearning if agent.recurrent else TransitionLearning
        self.learning = kind(
            settings, simulators, sources, train=False, test_lanes=max(test_lanes, 1), warn=warn,
            **places,
        )  # fmt: skip
        self._local = self.learning.trainer
        self.settings, self.agent = self._local.settings, self._local.agent
        self.curriculum, self.cluster = self._local.curriculum, cluster
        (device,) = jnp.zeros(()).devices()
        where = "gpu" if device.platform == "gpu" else "cpu"
        self.group = ActorGroup(settings, cluster, warn or (lambda text: None), where)
        self._refresh = cluster.refresh or self.learning.refresh
        self._left = 0  # steps of lanes that the current round still lacks
        self.version = -1
        """The round of the actors' parameters."""

    def close(self) -> None:
        """End actors, workers and threads."""
        self.group.close()
        self._local.close()

    def begin(self) -> Any:
        """Return the state before the first round."""
        state = self.learning.begin()
        self._hire(state)
        return state

    def snapshot(self, state: Any) -> Any:
        """Return the arrays to write to a checkpoint, without the current episodes."""
        return self.learning.snapshot(state)

    def restore(self, state: Any) -> Any:
        """Return the state of a checkpoint; the actors begin new episodes."""
        restored = self.learning.restore(state)
        self._hire(restored, after=int(restored.steps[0]))
        return restored

    def _hire(self, state: Any, after: int = -1) -> None:
        """Start new actors; after: rounds that the run has made."""
        self.group.close()
        self._left, self.version = 0, -1
        self.group.begin(self.learning.level(state), after)

    def advance(self, state: Any, step: int, running: np.ndarray) -> Any:
        """Run a chunk of rounds after the first `step`; `state` must not be used again.

        running: `[1]`; false leaves everything as it is.
        """
        if not running[0]:
            return state
        for number in range(step, step + self.settings.chunk):
            if number % self._refresh == 0 or self.version < 0:
                self.version = number
                self.group.publish(jax.tree.leaves(self.params(state)))
                state = self.learning.published(state)
            state, take_in = self.learning.update(state, number)
            state = take_in(self._round(state))
        return self.learning.count(state)

    def _round(self, state: Any) -> Any:
        """Collect the steps of a round; return the state after them."""
        if self.cluster.synchronous:
            for first, reply in self.group.together(self._request(state)):
                state = self._take(state, first, reply)
            return state
        self._left += self.settings.lanes
        while self._left > 0:
            first, reply = self.group.next(self._request(state))
            self._left -= reply.experience.moved.shape[1]
            state = self._take(state, first, reply)
            del reply  # frees the object store before the next request
        return state

    def _request(self, state: Any) -> StepRequest:
        return StepRequest(
            episodes=int(state.episodes[0]),
            env_steps=int(state.env_steps[0]),
            length=float(state.length[0]),
            level=self.learning.level(state),
            version=self.version,
        )

    def _take(self, state: Any, first: int, reply: StepReply) -> Any:
        """Learn from a reply; first: the actor's first lane."""
        state = self.learning.record(state, reply.experience, first)
        return state._replace(restarts=state.restarts + reply.faults)

    def counters(self, state: Any) -> Counters:
        """Return the counters so far."""
        return self._local.counters(state)

    def forget_stats(self, state: Any) -> Any:
        """Return the state with empty statistics."""
        return self._local.forget_stats(state)

    def params(self, state: Any) -> Any:
        """Return the parameters of the network, `[1, ...]`."""
        return self._local.params(state)

    def template(self) -> Any:
        """Return names, shapes and dtypes of the arrays of a checkpoint."""
        return self._local.template()

    def play(
        self, params: Any, episodes: int, budget: int, number: int, level: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Play test episodes on this machine; return their returns and lengths `[1, episodes]`."""
        return self._local.play(params, episodes, budget, number, level)

    def watch_tests(self, report: Callable[[int], None]) -> None:
        """Have `play` call `report` with the number of episodes finished so far."""
        self._local.watch_tests(report)


def _new_seeds(actor: Actor, state: Any) -> np.ndarray:
    """Return reset seeds `[1, lanes]` that no round before had."""
    shape = state.episode_seed.shape
    return actor.random(0, RESET, int(state.steps[0])).integers(2**31, size=shape)


class TransitionLearning:
    """Learns from transitions, as `HostTrainer` does."""

    refresh = 1  # rounds between parameter updates of the actors

    def __init__(self, *arguments: Any, **options: Any):
        self.trainer = host.HostTrainer(*arguments, **options)
        self._made = np.zeros(1, np.int32)  # updates that are not counted yet, and their losses
        self._losses: list[Any] = []

    def begin(self) -> host.TrainState:
        """Return the state before the first round."""
        return self.trainer.blank()

    def snapshot(self, state: host.TrainState) -> host.TrainState:
        """Return the arrays to write to a checkpoint, with episodes to begin on one machine."""
        seeds = _new_seeds(self.trainer.actor, state)
        wanted = np.full(seeds.shape, self.level(state), np.int32)
        return state._replace(episode_seed=seeds, episode_wanted=wanted)

    def restore(self, state: host.TrainState) -> host.TrainState:
        """Return the state of a checkpoint, without its current episodes."""
        names = ("episode_seed", "episode_step", "episode_return")
        blank = {name: np.zeros_like(getattr(state, name)) for name in names}
        return host.on_device(state)._replace(**blank, history=np.zeros(0, np.int32))

    def level(self, state: host.TrainState) -> int:
        """Return the level to request for new episodes."""
        return int(self.trainer.wanted(state)[0])

    def published(self, state: host.TrainState) -> host.TrainState:
        """Return the state after its parameters were sent to the actors."""
        return state

    def update(
        self, state: host.TrainState, number: int
    ) -> tuple[host.TrainState, Callable[[host.TrainState], host.TrainState]]:
        """Hand the updates of a round to the device, and do not wait for them."""
        random = self.trainer.actor.each(LEARN, number)
        updates = self.trainer.learner.updates(state, random, _ALL)
        learned, losses = updates.finish(number)
        self._made += updates.made
        self._losses += losses
        return state._replace(learner=learned), lambda after: after

    def record(self, state: host.TrainState, experience: Experience, first: int) -> host.TrainState:
        """Add the experience of some lanes, from the first one on, to replay, and count it."""
        own = {"episode_step": state.episode_step, "episode_return": state.episode_return}
        return self.trainer.record(state, experience, _ALL, first)._replace(**own)

    def count(self, state: host.TrainState) -> host.TrainState:
        """Count the updates of a chunk, and the faults of test lanes."""
        made, losses, self._made, self._losses = self._made, self._losses, self._made * 0, []
        return self.trainer.count(state, made, losses)

    def bytes_of_a_step(self) -> int:
        """Return the bytes that an actor sends per step of a lane."""
        data = self.trainer.learner.shapes()[1].data
        sent = data._replace(target=jax.eval_shape(unpack_target, data.target))
        return sum(
            int(np.prod(x.shape[2:])) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(sent)
        )

    def replay_ratio(self, steps: int, updates: int) -> float:
        """Return how often a transition was sampled; steps, updates: since learning began."""
        return updates * self.trainer.settings.batch / max(steps, 1)


class SequenceLearning:
    """Learns from sequences, as `R2D2Trainer` does; methods as in `TransitionLearning`."""

    def __init__(self, *arguments: Any, **options: Any):
        self.trainer = R2D2Trainer(*arguments, **options)
        self.refresh = self.trainer.settings.r2d2.refresh or 1
        self._learner = self.trainer.learner

    def begin(self) -> SequenceState:
        """Return the state before the first round."""
        return self._learner.begin()

    def snapshot(self, state: SequenceState) -> Saved:
        """Return the arrays to write to a checkpoint, with episodes to begin on one machine."""
        lanes = blank_lanes(self.trainer.setup, self.trainer.settings.lanes)
        state = state._replace(episode_seed=_new_seeds(self.trainer.actor, state))
        return Saved(state, lanes, self._learner.replay.state())

    def restore(self, state: Saved) -> SequenceState:
        """Return the state of a checkpoint, without its current episodes."""
        blank = no_episodes(self.trainer.settings.lanes)
        return self._learner.restore(state.state, state.replay)._replace(**blank._asdict())

    def level(self, state: SequenceState) -> int:
        """Return the level to request for new episodes."""
        return ANY_LEVEL

    def published(self, state: SequenceState) -> SequenceState:
        """Return the state after its parameters were sent to the actors."""
        return state._replace(acting=state.learner.params)

    def update(
        self, state: SequenceState, number: int
    ) -> tuple[SequenceState, Callable[[SequenceState], SequenceState]]:
        """Start the updates of a round; return the state, and what takes them in after it."""
        updates = self._learner.updates(state)
        return state, lambda after: self._learner.take_in(after, updates)

    def record(self, state: SequenceState, experience: Any, first: int) -> SequenceState:
        """Add the experience of some lanes to replay, and count it."""
        return self._learner.record(state, experience)

    def count(self, state: SequenceState) -> SequenceState:
        """Count the faults of test lanes."""
        return self.trainer.count_faults(state)

    def bytes_of_a_step(self) -> int:
        """Return the most bytes that an actor sends per step of a lane: a packed sequence."""
        return self._learner.replay.typical_bytes

    def replay_ratio(self, steps: int, updates: int) -> float:
        """Return how often a sequence was sampled since learning began."""
        counts, least = self._learner.replay.counters(), self.trainer.settings.r2d2.replay.minimum
        return counts["sampled"] / max(counts["inserted"] - least, 1)
