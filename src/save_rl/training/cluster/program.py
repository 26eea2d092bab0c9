"""The learner's program on a cluster: `training.host` and `training.r2d2` without acting.

A *round* is as many steps as there are lanes, and is followed by the same updates as a lock-step
of one machine. So the replay ratio is exact at any speed of the actors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import get_agent
from save_rl.errors import require
from save_rl.training import host, r2d2
from save_rl.training.cluster.actor import Order
from save_rl.training.cluster.crew import Crew
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.settings import TrainSettings
from save_rl.types import Simulator


def cluster_program(
    settings: TrainSettings,
    simulators: Sequence[Simulator],
    cluster: ClusterSettings,
    *arguments: Any,
    **places: Any,
) -> "AnyProgram":
    """Return the program that trains these settings on a cluster."""
    kind = SequenceProgram if get_agent(settings.agent).recurrent else Program
    return kind(settings, simulators, cluster, *arguments, **places)


class _Rounds:
    """A program whose lanes are those of a crew of actors; its own lanes only run tests."""

    settings: TrainSettings
    pool: Any
    absorb: Callable[..., Any]

    def __init__(
        self,
        settings: TrainSettings,
        simulators: Sequence[Simulator],
        cluster: ClusterSettings,
        *arguments: Any,
        test_lanes: int = 0,
        warn: Callable[[str], None] | None = None,
        **places: Any,
    ):
        require(len(settings.seeds) == 1, "--seed", settings.seeds, "one number with --cluster")
        cluster.check(settings.lanes, get_agent(settings.agent))
        lanes: Any = {"test_lanes": max(test_lanes, 1), "train": False}
        parent: Any = super()
        parent.__init__(settings, simulators, *arguments, **lanes, warn=warn, **places)
        self.cluster = cluster
        (device,) = jnp.zeros(()).devices()
        kind = "gpu" if device.platform == "gpu" else "cpu"
        self.crew = Crew(settings, cluster, warn or (lambda text: None), kind)
        self._left = 0  # steps of lanes that the current round still lacks
        self._version = -1  # the round of the actors' parameters

    def close(self) -> None:
        self.crew.close()
        parent: Any = super()
        parent.close()

    def _hire(self, level: int, after: int = -1) -> None:
        """Start new actors; after: rounds that the run has made."""
        self.crew.close()
        self._left, self._version = 0, -1
        self.crew.begin(level, after)

    def _publish(self, params: Any, step: int, refresh: int) -> bool:
        """Send the actors new parameters if they are due; return whether they were."""
        due = step % refresh == 0 or self._version < 0
        if due:
            self._version = step
            self.crew.publish(jax.tree.leaves(params))
        return due

    def _round(self, seed: Any, level: Callable[[Any], int]) -> Any:
        """Return the seed after one round."""
        own = {"episode_step": seed.episode_step, "episode_return": seed.episode_return}

        def order() -> Order:
            return Order(int(seed.episodes), float(seed.length), level(seed), self._version)

        if self.cluster.synchronous:
            for first, report in self.crew.together(order()):
                seed = self._take(seed, first, report)
        else:
            self._left += self.settings.lanes
            while self._left > 0:
                first, report = self.crew.next(order())
                self._left -= len(report.experience.moved)
                seed = self._take(seed, first, report)
                del report  # frees the object store before the next request
        return seed._replace(**own)

    def _take(self, seed: Any, first: int, report: Any) -> Any:
        self.pool.faults[0] += report.faults
        return self.absorb(seed, report.experience, first)


class Program(_Rounds, host.Program):
    """Learns from transitions."""

    def _begin(self, index: int) -> host.HostSeed:
        state = self._blank(self.settings.seeds[index])
        self._hire(self._wanted(state))
        return state

    def bytes_of_a_step(self) -> int:
        """Return the bytes that an actor sends per step of a lane."""
        return sum(
            int(np.prod(x.shape[1:])) * np.dtype(x.dtype).itemsize
            for x in jax.tree.leaves(self.template()[0].replay.data)
        )

    def replay_ratio(self, steps: int, updates: int) -> float:
        """Return how often a transition was sampled; steps, updates: since learning began."""
        return updates * self.settings.batch / max(steps, 1)

    def restore(self, state: tuple[host.HostSeed, ...]) -> tuple[host.HostSeed, ...]:
        """Return the state of a checkpoint; the actors begin new episodes."""
        (seed,) = state
        self._hire(self._wanted(seed), int(seed.steps))
        return (seed._replace(learner=jax.tree.map(jnp.asarray, seed.learner)),)

    def _lock_step(self, index: int, seed: host.HostSeed, step: int, learns: bool) -> host.HostSeed:
        """Make a round."""
        self._publish(seed.learner.params, step, self.cluster.refresh or 1)
        learner = seed.learner
        if learns:
            slots = self._draw(index, seed, step)
            self.updates.begin(learner, seed.replay, slots, seed.episodes)
            learner = self.updates.finish(step)
        return self._round(seed, self._wanted)._replace(learner=learner)


class SequenceProgram(_Rounds, r2d2.Program):
    """Learns from sequences: R2D2."""

    def begin(self) -> tuple[r2d2.SequenceSeed]:
        state = self._blank()
        self._start(state.acting)
        self._hire(r2d2.ANY_LEVEL)
        return (state,)

    def bytes_of_a_step(self) -> int:
        """Return the most bytes that an actor sends per step of a lane: a packed sequence."""
        return self._replay.typical_bytes

    def replay_ratio(self, steps: int, updates: int) -> float:
        """Return how often a sequence was sampled since learning began."""
        counts, least = self._replay.counters(), self.r2d2.replay.minimum
        return counts["sampled"] / max(counts["inserted"] - least, 1)

    def snapshot(self, state: tuple[r2d2.SequenceSeed]) -> tuple[r2d2.SequenceSeed]:
        return (state[0]._replace(replay=self._replay.state()),)

    def restore(self, state: tuple[r2d2.SequenceSeed]) -> tuple[r2d2.SequenceSeed]:
        """Return the state of a checkpoint; the actors begin new episodes."""
        (seed,) = state
        self._start(seed.acting)
        self._replay.restore(seed.replay)
        self._hire(r2d2.ANY_LEVEL, int(seed.steps))
        learner, acting = jax.tree.map(jnp.asarray, (seed.learner, seed.acting))
        return (seed._replace(learner=learner, acting=acting),)

    def _lock_step(self, seed: r2d2.SequenceSeed, step: int) -> r2d2.SequenceSeed:
        """Make a round."""
        refresh = self.cluster.refresh or self.r2d2.refresh or 1
        if self._publish(seed.learner.params, step, refresh):
            seed = seed._replace(acting=seed.learner.params)
        return self._round(seed, lambda _: r2d2.ANY_LEVEL)


AnyProgram = Program | SequenceProgram
