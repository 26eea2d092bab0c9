"""The learner of a run on a cluster: what `training.host` does, except for acting.

A *round* is as many steps as there are lanes, and is followed by the same updates as a lock-step
of one machine. So the replay ratio holds exactly, whatever the speed of the actors: they may be
ahead by a few steps that wait to be taken in, and no more is asked for before.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from save_rl.errors import require
from save_rl.training import host
from save_rl.training.cluster.actor import Order
from save_rl.training.cluster.crew import Crew
from save_rl.training.cluster.settings import ClusterSettings
from save_rl.training.settings import TrainSettings
from save_rl.types import Simulator


class Program(host.Program):
    """A `host.Program` whose lanes are those of a crew of actors; its own are for tests alone."""

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
        cluster.check(settings.lanes)
        super().__init__(
            settings, simulators, *arguments, test_lanes=max(test_lanes, 1), train=False,
            warn=warn, **places,
        )  # fmt: skip
        self.cluster = cluster
        self.crew = Crew(settings, cluster, warn or (lambda text: None))
        self._left = 0  # steps of lanes, of the round that has begun

    def close(self) -> None:
        self.crew.close()
        super().close()

    def _begin(self, index: int) -> host.HostSeed:
        state = self._blank(self.settings.seeds[index])
        self._hire(state)
        return state

    def _hire(self, seed: host.HostSeed) -> None:
        self.crew.close()
        self._left = 0
        self.crew.begin(self._wanted(seed))

    def restore(self, state: tuple[host.HostSeed, ...]) -> tuple[host.HostSeed, ...]:
        """A state as a checkpoint gives it; its actors begin new episodes."""
        (seed,) = state
        self._hire(seed)
        return (seed._replace(learner=jax.tree.map(jnp.asarray, seed.learner)),)

    def _lock_step(self, index: int, seed: host.HostSeed, step: int, learns: bool) -> host.HostSeed:
        """A round."""
        lanes = self.settings.lanes
        blank = {"episode_step": seed.episode_step, "episode_return": seed.episode_return}
        if step % self.cluster.refresh == 0 or self._version < 0:
            self._version = step
            self.crew.publish(jax.tree.leaves(seed.learner.params))
        if learns:
            self.updates.begin(seed.learner, self._sample(index, seed, step), seed.episodes)
        learner = self.updates.finish(step) if learns else seed.learner
        order = Order(
            step, int(seed.episodes), float(seed.length), self._wanted(seed), self._version
        )
        if self.cluster.synchronous:
            for first, report in self.crew.together(order):
                seed = self._take(seed, first, report)
        else:
            self._left += lanes
            while self._left > 0:
                now = order._replace(
                    episodes=int(seed.episodes), length=float(seed.length), level=self._wanted(seed)
                )
                first, report = self.crew.next(now)
                self._left -= len(report.experience.moved)
                seed = self._take(seed, first, report)
        return seed._replace(learner=learner, **blank)

    _version = -1  # round that the actors' parameters are of

    def _take(self, seed: host.HostSeed, first: int, report: Any) -> host.HostSeed:
        self.pool.faults[0] += report.faults
        return self.absorb(seed, report.experience, first)
