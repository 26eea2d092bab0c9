"""The trainer for Python simulators: an actor and a learner in lock-steps, all seeds together.

A lock-step moves every lane by one real step, then makes the updates that keep the replay ratio, as
in `training.device`, with which this shares agents, losses, schedules and the learner. All random
numbers derive from the seed and the number of the lock-step, so a run does not depend on the number
of workers, and its checkpoints need no generator state.

A checkpoint stores an episode in progress as its seed and its actions: simulators are pure, so
replaying the actions leads to the same state.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import Agent, get_agent
from save_rl.envs.layout import Layout
from save_rl.envs.pool import Source
from save_rl.envs.worker import ANY_LEVEL
from save_rl.learning.curriculum import Bins, linear_level, no_bins, record
from save_rl.learning.host_replay import HostReplay
from save_rl.learning.reward_scale import next_sums
from save_rl.networks import is_graph, padded_sizes
from save_rl.training.counters import (
    AnyLength,
    Counters,
    Stats,
    count_step,
    count_updates,
    no_stats,
)
from save_rl.training.devices import host_options
from save_rl.training.host.actor import (
    LEARN,
    RESET,
    Actor,
    seats_of,
    slots_of,
)
from save_rl.training.host.ahead import Ahead, shapes
from save_rl.training.host.collector import Collector, Experience
from save_rl.training.host.evaluator import Network
from save_rl.training.host.learner import HostLearner, make_learning
from save_rl.training.host.levels import hardest_level
from save_rl.training.host.spot_check import SpotChecks
from save_rl.training.host.updates import Updates
from save_rl.training.learner import Learner
from save_rl.training.settings import TrainSettings
from save_rl.types import Simulator

_MANY = 512  # lanes from which a GPU serves three groups: fewer are evaluated as fast as asked for


class TrainState(NamedTuple):
    """Everything that all seeds carry from lock-step to lock-step."""

    episode_seed: np.ndarray  # [seeds, lanes] reset seed of the current episode
    episode_wanted: np.ndarray  # [seeds, lanes] requested level, see `envs.layout.Arrays`
    episode_step: np.ndarray  # [seeds, lanes]
    episode_return: np.ndarray  # [seeds, lanes]
    history: np.ndarray  # actions of the current episodes, one after the other; in checkpoints
    length: np.ndarray  # [seeds] running estimate of the length of an episode
    episodes: np.ndarray  # [seeds]
    steps: np.ndarray  # [seeds] lock-steps
    env_steps: np.ndarray  # [seeds]
    simulator_steps: np.ndarray  # [seeds] made by searches
    restarts: np.ndarray  # [seeds] faults of the simulator
    updates: np.ndarray  # [seeds]
    bins: Bins  # [seeds, ...] of an adaptive curriculum
    learner: Learner  # [seeds, ...], on the device
    replay: HostReplay
    stats: Stats  # [seeds]
    sums: Any = None  # [seeds, lanes] of `reward_scale.next_sums`, where the scale is measured


class HostTrainer:
    """Trains and tests all seeds of one set of settings, over one pool of simulators.

    simulators, sources, workers, timeout, warn, test_lanes: see `Actor`. train: false leaves out
    the training lanes. plays: the agent that searches and acts, if it is not the one that learns.
    budgets: of tests. options: compiler options; only GPUs have some. groups: of lanes, see
    `search.simulators`; 0 chooses.
    """

    refills_replay = True
    test_batch: int | None = None  # test lanes take episodes until all are played

    def __init__(
        self,
        settings: TrainSettings,
        simulators: Sequence[Simulator],
        sources: Sequence[Source] = (),
        *,
        options: dict[str, str] | None = None,
        plays: Agent | None = None,
        train: bool = True,
        budgets: Sequence[int] = (),
        groups: int = 0,
        **places: Any,
    ):
        self.settings, self.agent = settings, get_agent(settings.agent)
        layout, options = Layout.of(simulators[0]), host_options(options or {})
        seen = layout.example()
        self.learning = make_learning(settings, simulators[0])
        plays, lanes = plays or self.agent, settings.lanes if train else 0
        many = lanes * len(simulators) >= _MANY
        # Only a slow network is worth overlapping with simulators: every group is another call.
        groups = groups or ((3 if many else 2) if options else (2 if is_graph(seen) else 1))
        budget = max(settings.budget, settings.test_budget, *budgets, 0)
        ahead = self._ahead = Ahead() if options and train else None
        slots, batch = slots_of(plays, budget, layout), -(-lanes // groups)
        rounds = settings.budget if train else budget
        most = min(seats_of(plays, settings.budget, slots), max(rounds, 1))
        self.network = Network(plays, self.learning, layout, slots, batch, options, ahead, most)
        self.learner = HostLearner(self.learning, settings, layout, is_graph(seen), options, ahead)
        if ahead is not None:  # while the workers start
            self._compile_ahead(padded_sizes(seen, gpu=True), batch)
        try:
            self.actor = Actor(
                settings, simulators, sources, plays=plays, lanes=lanes, groups=groups, slots=slots,
                **places,
            )  # fmt: skip
        except BaseException:  # nobody can close a trainer that was not made
            self._end_threads()
            raise
        self.curriculum, self.pool = self.actor.curriculum, self.actor.pool
        self.collector = Collector(self.actor, self.agent, is_graph(seen))
        self._counted = np.zeros(len(simulators), np.int64)  # faults included in `restarts`
        self._warn: Callable[[str], None] | None = places.get("warn")
        self.spot_checks = SpotChecks(simulators, layout, settings.env, self._warn)

    def _compile_ahead(self, sizes: list[int], batch: int) -> None:
        """Compile the programs of training, for graphs padded to these sizes; batch: lanes of a
        group."""
        learner, replay = self.learner.shapes()
        leaves = jax.tree.leaves(learner.params)

        def compile_network(size: int) -> None:
            for states in sorted(set(self.network.batch_sizes(batch))):
                self.network.compile_ahead(leaves, states, size)

        compile_network(sizes[0])  # graphs are small at first
        for size in sizes:  # these take longest
            self.learner.programs.compile_ahead(learner, replay, size)
        for size in sizes[1:]:
            compile_network(size)

    def close(self) -> None:
        """End threads and workers; say how many spot checks failed, if there were any."""
        summary = self.spot_checks.summary()
        if summary and self._warn is not None:
            self._warn(summary)
        self._end_threads()
        self.actor.close()

    def _end_threads(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self.learner.close()

    def begin(self) -> TrainState:
        """Return the state of all seeds before their first lock-step."""
        state, lanes = self.blank(), self.settings.lanes
        for seeds, rng in zip(state.episode_seed, self.actor.each(RESET, 0), strict=True):
            seeds[:] = rng.integers(2**31, size=lanes)
        state.episode_wanted[:] = self.wanted(state)[:, None]
        everywhere = np.ones(state.episode_seed.shape, np.bool_)
        self.actor.reset(everywhere, state.episode_seed, state.episode_wanted)
        return state

    def wanted(self, state: TrainState) -> np.ndarray:
        """Return the levels to request for new episodes, `[seeds]`."""
        if self.curriculum == "linear":
            hardest, total = hardest_level(self.actor.simulators[0]), self.settings.curriculum_steps
            return np.array([linear_level(n, total, hardest) for n in state.env_steps.tolist()])
        if self.curriculum == "adaptive":
            return state.bins.level
        return np.full(len(state.steps), ANY_LEVEL)

    def blank(self) -> TrainState:
        """Return the state of seeds whose lanes have not started."""
        state = self._counters()
        return state._replace(learner=self.learner.initial(), replay=self.learner.replay())

    def _counters(self) -> Any:
        """Return that state, without learner and replay."""
        s, seeds = self.settings, len(self.settings.seeds)
        lanes = (seeds, s.lanes)

        def none() -> np.ndarray:
            return np.zeros(seeds, np.int64)

        return TrainState(
            episode_seed=np.zeros(lanes, np.int64),
            episode_wanted=np.full(lanes, ANY_LEVEL, np.int32),
            episode_step=np.zeros(lanes, np.int32),
            episode_return=np.zeros(lanes, np.float32),
            history=np.zeros(0, np.int32),
            length=np.ones(seeds, np.float32),
            episodes=none(),
            steps=none(),
            env_steps=none(),
            simulator_steps=none(),
            restarts=none(),
            updates=none(),
            bins=jax.tree.map(lambda x: np.stack([x] * seeds), no_bins()),
            learner=None,  # pyright: ignore[reportArgumentType]
            replay=None,  # pyright: ignore[reportArgumentType]
            stats=no_stats(np, (seeds,)),
            sums=np.zeros(lanes, np.float32) if self.learning.measures_scale else None,
        )

    def template(self) -> Any:
        """Return names, shapes and dtypes of the arrays of a checkpoint; -1 is any length."""
        learner, replay = self.learner.shapes()
        counters = shapes(self._counters()._replace(learner=(), replay=()))
        return counters._replace(learner=learner, replay=replay, history=AnyLength(np.int32))

    def snapshot(self, state: TrainState) -> TrainState:
        """Return the state to write to a checkpoint."""
        return state._replace(history=self.actor.past_actions(state.episode_step))

    def restore(self, state: TrainState) -> TrainState:
        """Return the state of a checkpoint, ready to continue; replays its current episodes."""
        self.actor.play_again(
            state.episode_seed, state.episode_wanted, state.episode_step, state.history
        )
        return on_device(state)._replace(history=np.zeros(0, np.int32))

    def advance(self, state: TrainState, step: int, running: np.ndarray) -> TrainState:
        """Run a chunk of lock-steps after the first `step`; `state` must not be used again.

        running: `[seeds]`; the others stay as they are.
        """
        losses: list[Any] = []
        made = np.zeros(len(running), np.int32)
        for t in range(step, step + self.settings.chunk):
            updates = self.learner.updates(state, self.actor.each(LEARN, t), running)
            state, new = self._lock_step(state, t, running, updates)
            made, losses = made + updates.made, losses + new
        self.spot_checks.after_chunk(state, self.actor)
        return self.count(state, made, losses)

    def count(self, state: TrainState, made: np.ndarray, losses: list[Any]) -> TrainState:
        """Count the updates of a chunk and the faults of simulators."""
        total = np.sum([np.asarray(x) for x in losses], 0) if losses else np.zeros((len(made), 2))
        total = np.asarray(total, np.float32)
        restarts = state.restarts + self.pool.faults - self._counted
        self._counted = self.pool.faults.copy()
        return count_updates(state, made, total[:, 0], total[:, 1])._replace(restarts=restarts)

    def _lock_step(
        self, state: TrainState, step: int, running: np.ndarray, updates: Updates
    ) -> tuple[TrainState, list[Any]]:
        evaluator = self.network.with_params(state.learner.params, beside=updates)
        experience = self.collector.step(state, evaluator, step, running)
        learner, losses = updates.finish(step)
        state = self.record(state._replace(learner=learner), experience, running)
        return self.collector.start_episodes(state, experience, self.wanted(state), running), losses

    def record(
        self, state: TrainState, experience: Experience, running: np.ndarray, first: int = 0
    ) -> TrainState:
        """Add the experience of lanes to replay, and count it. first: index of the first lane."""
        moved, over = experience.moved, experience.over
        state = state._replace(
            replay=self.learner.record(state.replay, experience, running, first),
            episode_step=experience.episode_step,
            episode_return=experience.episode_return,
        )
        state = self._measure_scale(state, experience, running, first)
        state = self._count_levels(state, experience)
        state = count_step(state, experience.reward, over, moved, np, running)
        return state._replace(
            env_steps=state.env_steps + moved.sum(1),
            simulator_steps=state.simulator_steps + experience.simulations,
        )

    def _measure_scale(
        self, state: TrainState, experience: Experience, running: np.ndarray, first: int
    ) -> TrainState:
        """Follow the size of returns, where it is measured."""
        if not self.learning.measures_scale:
            return state
        mine = slice(first, first + experience.moved.shape[1])
        sums, fresh = state.sums.copy(), experience.episode_step == 0
        after = next_sums(sums[:, mine], experience.reward, self.settings.discount, fresh, np)
        sums[:, mine] = np.where(running[:, None], after, sums[:, mine])
        return state._replace(sums=sums, learner=self.learning.measure(state.learner, sums))

    def _count_levels(self, state: TrainState, experience: Experience) -> TrainState:
        """Count ended episodes of the current level; an adaptive curriculum may raise the level."""
        over, stats = experience.over, state.stats
        if self.curriculum == "none" or not over.any():
            return state
        at_level = over & (experience.level == self.wanted(state)[:, None])
        returns = np.where(at_level, experience.episode_return + experience.reward, 0.0)
        state = state._replace(
            stats=stats._replace(
                level_episodes=stats.level_episodes + at_level.sum(1, dtype=np.int32),
                level_return_sum=stats.level_return_sum + returns.sum(1, dtype=np.float32),
            )
        )
        if self.curriculum != "adaptive":
            return state
        hardest = hardest_level(self.actor.simulators[0])
        each = [
            record(Bins(*bins), kind[ended], solved[ended], hardest)
            for *bins, kind, solved, ended in zip(
                *state.bins, experience.kind, experience.solved, over, strict=True
            )
        ]
        return state._replace(bins=Bins(*map(np.stack, zip(*each, strict=True))))

    def counters(self, state: TrainState) -> Counters:
        """Return the counters so far."""
        return Counters(
            level=np.asarray(self.wanted(state)),
            health=None,
            **{
                name: getattr(state, name)
                for name in Counters._fields
                if name not in ("level", "health")
            },
        )

    def forget_stats(self, state: TrainState) -> TrainState:
        """Return the state with empty statistics."""
        return state._replace(stats=no_stats(np, state.steps.shape))

    def params(self, state: TrainState) -> Any:
        """Return the parameters of the networks, `[seeds, ...]`."""
        return state.learner.params

    def play(
        self, params: Any, episodes: int, budget: int, number: int, level: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Play test episodes; return their returns and lengths `[seeds, episodes]`.

        number: of this test, part of the random seed. level: of the episodes, in environments with
        levels; with a curriculum, the default is the hardest.
        """
        return self.actor.play(self.network.with_params(params), episodes, budget, number, level)

    def watch_tests(self, report: Callable[[int], None]) -> None:
        """Have `play` call `report` with the number of episodes finished so far."""
        self.actor.on_episodes = report


def on_device(state: TrainState) -> TrainState:
    """Return a state with the arrays of learner and replay on the device."""
    learner, data = jax.tree.map(jnp.asarray, (state.learner, state.replay.data))
    return state._replace(learner=learner, replay=state.replay._replace(data=data))
