"""The trainer of R2D2: a collector and a learner in lock-steps.

The updates due at the start of a lock-step run in a separate thread while its lanes act; their
batches and the lanes' parameters are fixed before. So a run does not depend on timing, nor on the
number of workers.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from save_rl.envs.layout import Layout
from save_rl.envs.pool import Source
from save_rl.errors import require
from save_rl.learning.exploration import epsilon_ladder
from save_rl.players import Move, Player, RootValues, make_move
from save_rl.rescaling import unscale
from save_rl.training.counters import AnyLength, Counters
from save_rl.training.host.actor import Actor, slots_of
from save_rl.training.learner import Learner
from save_rl.training.r2d2.collector import SavedLanes, SequenceCollector, blank_lanes
from save_rl.training.r2d2.learner import SequenceLearner, SequenceState
from save_rl.training.r2d2.network import RecurrentEvaluator
from save_rl.training.r2d2.setup import Setup
from save_rl.training.settings import TrainSettings
from save_rl.types import Simulator, State


class Saved(NamedTuple):
    """A checkpoint: the whole state of a run, from the three places that have it."""

    state: SequenceState
    lanes: SavedLanes
    replay: dict[str, np.ndarray]

    @property
    def learner(self) -> Learner:
        return self.state.learner


class R2D2Trainer:
    """Trains and tests one seed of R2D2, over one pool of simulators.

    simulators, sources, workers, timeout, warn, test_lanes: see `Actor`. train: false leaves out
    the training lanes. budgets: of tests. options: compiler options; only GPUs have some.
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
        train: bool = True,
        budgets: Sequence[int] = (),
        **places: Any,
    ):
        require(
            len(settings.seeds) == 1, "--seed", settings.seeds,
            f"one number for '{settings.agent}'; start a run for each",
        )  # fmt: skip
        self.setup = setup = Setup(settings, Layout.of(simulators[0]), options)
        self.settings, self.agent = setup.settings, setup.agent
        self.learner = SequenceLearner(setup)  # first: it refuses a replay that is too large
        s = self.settings
        budget = max(s.budget, s.test_budget, *budgets, 0)
        self.actor = Actor(
            s, simulators, sources, plays=self.agent, lanes=s.lanes if train else 0,
            slots=slots_of(self.agent, budget, setup.layout), space=setup.space, **places,
        )  # fmt: skip
        self.curriculum, self.pool = self.actor.curriculum, self.actor.pool
        self.collector = SequenceCollector(setup, self.actor, epsilon_ladder(s.lanes))
        self._counted = self.pool.faults.copy()  # faults included in `restarts`

    def close(self) -> None:
        """End workers and threads."""
        self.learner.close()
        self.actor.close()

    def begin(self) -> SequenceState:
        """Return the state before the first lock-step."""
        return self.learner.begin()._replace(**self.collector.begin()._asdict())

    def template(self) -> Saved:
        """Return names, shapes and dtypes of the arrays of a checkpoint; -1 is any length."""
        blank = Saved(
            self.learner.blank(),
            blank_lanes(self.setup, self.settings.lanes),
            self.learner.blank_replay(),
        )
        whole: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), blank)
        writer = {**whole.lanes.writer, "frame": AnyLength(np.uint8)}
        replay = {
            name: x if name == "counters" else AnyLength(x.dtype)
            for name, x in whole.replay.items()
        }
        lanes = whole.lanes._replace(history=AnyLength(np.int32), writer=writer)
        return whole._replace(lanes=lanes, replay=replay)

    def snapshot(self, state: SequenceState) -> Saved:
        """Return the arrays to write to a checkpoint."""
        lanes = self.collector.save(state.episode_step)
        return Saved(state, lanes, self.learner.replay.state())

    def restore(self, state: Saved) -> SequenceState:
        """Return the state of a checkpoint, ready to continue.

        Replays its current episodes if simulators cannot save states.
        """
        restored = self.learner.restore(state.state, state.replay)
        self.collector.restore(state.lanes, restored.episode_seed, restored.episode_step)
        self.collector.use(restored.acting)
        return restored

    def advance(self, state: SequenceState, step: int, running: np.ndarray) -> SequenceState:
        """Run a chunk of lock-steps after the first `step`; `state` must not be used again.

        running: `[1]`; false leaves everything as it is.
        """
        if not running[0]:
            return state
        for t in range(step, step + self.settings.chunk):
            state = self._lock_step(state, t)
        return self.count_faults(state)

    def count_faults(self, state: SequenceState) -> SequenceState:
        """Count the faults of simulators since the last call."""
        restarts = state.restarts + self.pool.faults - self._counted
        self._counted = self.pool.faults.copy()
        return state._replace(restarts=restarts)

    def _lock_step(self, state: SequenceState, step: int) -> SequenceState:
        updates = self.learner.updates(state)
        if step % (self.settings.r2d2.refresh or 1) == 0:
            state = state._replace(acting=state.learner.params)
            self.collector.use(state.acting)
        experience = self.collector.step(state, step)
        state = self.learner.record(state, experience)
        state = self.collector.start_episodes(state, experience)
        return self.learner.take_in(state, updates)

    def counters(self, state: SequenceState) -> Counters:
        """Return the counters so far."""
        return state.counters()

    def forget_stats(self, state: SequenceState) -> SequenceState:
        """Return the state with empty statistics."""
        return state.forget_stats()

    def params(self, state: SequenceState | Saved) -> Any:
        """Return the parameters of the network, `[1, ...]`."""
        return state.learner.params

    def play(
        self, params: Any, episodes: int, budget: int, number: int, level: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Play test episodes; return their returns and lengths `[1, episodes]`.

        number: of this test, part of the random seed. level: see `Actor.test_level`.
        """
        lanes = self.actor.test_places.lanes.shape[1]
        evaluator = RecurrentEvaluator(self.setup.networks, lanes, budget).use(params)
        return self.actor.play(evaluator, episodes, budget, number, level)

    def watch_tests(self, report: Callable[[int], None]) -> None:
        """Have `play` call `report` with the number of episodes finished so far."""
        self.actor.on_episodes = report

    def player(self, params: Any, sim: Simulator, budget: int) -> Player:
        """Return a player of a simulator that acts as in tests.

        It must see every state of an episode, from the first on.
        """
        setup = self.setup
        actor = Actor(
            setup.settings, [sim], plays=setup.agent, lanes=0, test_lanes=1,
            slots=slots_of(setup.agent, budget, setup.layout), space=setup.space,
        )  # fmt: skip
        search = actor.test_search(budget)
        evaluator = RecurrentEvaluator(setup.networks, 1, budget).use(params)

        def move(state: State, rng: np.random.Generator) -> Move:
            roots, action = actor.decide_at(state, search, evaluator, rng)
            prior = np.asarray(unscale(evaluator.root_q.astype(np.float64)))
            found = roots._replace(q_values=setup.points(roots.q_values))
            searched, explored = found.of_all_actions(prior)
            values = RootValues(prior[0], searched[0], explored[0], action)
            after = make_move(sim, state, action, rng, f"Q {values.searched[action]:.1f}")
            evaluator.commit_step(np.array([after.over]))
            return after._replace(values=values)

        return move
