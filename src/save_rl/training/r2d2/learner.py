"""Learning from sequences: replay, counters, and the updates that are due."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.learning.sequence_replay import Drawn, SequenceReplay
from save_rl.learning.sequences import blank
from save_rl.training.counters import (
    Counters,
    Health,
    Stats,
    count_step,
    count_updates,
    no_health,
    no_stats,
)
from save_rl.training.host.actor import LEARN
from save_rl.training.learner import Learner
from save_rl.training.r2d2.collector import SequenceExperience, no_episodes
from save_rl.training.r2d2.network import to_batch
from save_rl.training.r2d2.setup import Setup


class SequenceState(NamedTuple):
    """Networks, counters and current episodes, passed from lock-step to lock-step."""

    episode_seed: np.ndarray  # [1, lanes] reset seed of the current episode
    episode_step: np.ndarray  # [1, lanes]
    episode_return: np.ndarray  # [1, lanes]
    length: np.ndarray  # [1] running estimate of the length of an episode
    episodes: np.ndarray  # [1]
    steps: np.ndarray  # [1] lock-steps
    env_steps: np.ndarray  # [1]
    simulator_steps: np.ndarray  # [1] made by searches
    restarts: np.ndarray  # [1] faults of the simulator
    updates: np.ndarray  # [1]
    learner: Learner  # [1, ...], on the device
    acting: Any  # [1, ...] parameters of the actors
    stats: Stats  # [1]
    health: Health  # [1]

    def counters(self) -> Counters:
        """Return the counters so far."""
        shared = [name for name in Counters._fields if name != "level"]
        level = np.full(self.steps.shape, -1)
        return Counters(level=level, **{name: getattr(self, name) for name in shared})

    def forget_stats(self) -> "SequenceState":
        """Return the state with empty statistics."""
        shape = self.steps.shape
        return self._replace(stats=no_stats(np, shape), health=no_health(shape))


class Learned(NamedTuple):
    """The learner after some updates, and the sums of their losses."""

    learner: Learner
    updates: int
    loss_q: float
    loss_a: float


# Makes an update on a batch, as number `n` of the run; returns the learner and metrics.
Update = Callable[[Learner, Drawn, int], tuple[Learner, dict[str, Any]]]


class SequenceUpdates:
    """Updates of sequences in a thread, beside the lanes.

    Their batches are already drawn, so the result does not depend on timing. The replay may grow
    meanwhile, and must not be replaced until `finish`.

    made: updates before these.
    """

    def __init__(
        self, thread: ThreadPoolExecutor, update: Update, replay: SequenceReplay, learner: Learner,
        made: int, due: list[Drawn],
    ):  # fmt: skip
        self._update, self._replay, self._due = update, replay, due
        self._before, self._made = learner, made
        self._done: Future[Any] | None = thread.submit(self._run) if due else None

    def _run(self) -> tuple[Learner, list[dict[str, Any]]]:
        """Hand all updates to the device, without waiting for it."""
        learner, metrics = self._before, []
        for number, drawn in enumerate(self._due, self._made + 1):
            learner, about = self._update(learner, drawn, number)
            metrics.append(about)
        return learner, metrics

    def finish(self) -> Learned:
        """Wait for the updates, and set the new priorities."""
        if self._done is None:
            return Learned(self._before, 0, 0.0, 0.0)
        learner, metrics = self._done.result()
        for drawn, about in zip(self._due, metrics, strict=True):
            self._replay.update(drawn.serial, np.asarray(about["priorities"], np.float64))
        loss_q, loss_a = (
            sum(float(about.get(name, 0.0)) for about in metrics) for name in ("loss_q", "loss_a")
        )
        return Learned(learner, len(metrics), loss_q, loss_a)


class SequenceLearner:
    """Learns from sequences, and counts. Needs no lanes.

    Owns the replay, and a thread for updates; everything else is in a `SequenceState`.
    """

    def __init__(self, setup: Setup):
        self._setup = setup
        self.replay = self._new_replay()  # raises an error if it is too large
        self._thread = ThreadPoolExecutor(1, "learn")
        (self._device,) = jnp.zeros(()).devices()

    def _new_replay(self) -> SequenceReplay:
        setup = self._setup
        return SequenceReplay(setup.r2d2.replay, blank(setup.r2d2.sequences, setup.shapes))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def begin(self) -> SequenceState:
        """Empty the replay; return the state before the first lock-step."""
        self.replay = self._new_replay()
        return self.blank()

    def restore(self, state: SequenceState, replay: dict[str, np.ndarray]) -> SequenceState:
        """Continue from a checkpoint; replay: from `SequenceReplay.state`."""
        self.replay = self._new_replay()
        self.replay.restore(replay)
        learner, acting = jax.tree.map(jnp.asarray, (state.learner, state.acting))
        return state._replace(learner=learner, acting=acting)

    def blank_replay(self) -> dict[str, np.ndarray]:
        """Return an empty replay as in a checkpoint."""
        return self._new_replay().state()

    def blank(self) -> SequenceState:
        """Return the state of an untrained learner whose lanes have not started."""
        s = self._setup.settings

        def none() -> np.ndarray:
            return np.zeros(1, np.int64)

        learner = self._setup.networks.initial(jax.random.PRNGKey(s.seeds[0]))
        return SequenceState(
            **no_episodes(s.lanes)._asdict(),
            length=np.ones(1, np.float32),
            episodes=none(),
            steps=none(),
            env_steps=none(),
            simulator_steps=none(),
            restarts=none(),
            updates=none(),
            learner=learner,
            acting=learner.params,
            stats=no_stats(np, (1,)),
            health=no_health((1,)),
        )

    def record(self, state: SequenceState, experience: SequenceExperience) -> SequenceState:
        """Add the experience of lanes, all or some, to replay, and count it.

        The current episodes stay as they are: `SequenceCollector.start_episodes` has the next ones.
        """
        for sequence in experience.sequences:
            self.replay.add(sequence)
        moved, both = experience.moved, zip(state.health, experience.health, strict=True)
        own = {"episode_step": state.episode_step, "episode_return": state.episode_return}
        state = state._replace(
            episode_step=experience.episode_step, episode_return=experience.episode_return
        )
        state = count_step(state, experience.reward, experience.over, moved, np)
        return state._replace(
            **own,
            env_steps=state.env_steps + moved.sum(1),
            simulator_steps=state.simulator_steps + experience.simulations,
            health=Health(*(so_far + new for so_far, new in both)),
        )

    def updates(self, state: SequenceState) -> SequenceUpdates:
        """Draw the batches of all updates that are due, and start these in the thread."""
        replay, settings, made = self.replay, self._setup.r2d2.replay, int(state.updates[0])
        due: list[Drawn] = []
        while replay.owed >= settings.batch:  # never before the minimum
            seed = (self._setup.settings.seeds[0], LEARN, made + len(due))
            due.append(replay.draw(np.random.default_rng(seed)))
        return SequenceUpdates(self._thread, self._update, replay, state.learner, made, due)

    def _update(self, learner: Learner, drawn: Drawn, number: int) -> tuple[Learner, Any]:
        networks, r = self._setup.networks, self._setup.r2d2
        with jax.default_device(self._device):  # this thread's own default is another
            leaves, about = networks.update(
                jax.tree.leaves((learner.params, learner.optimiser)),
                jax.tree.leaves(learner.target),
                to_batch(self.replay.unpack(drawn), r.sequences.gamma),
            )
        params, optimiser = jax.tree.unflatten(networks.structure, leaves)
        target = params if number % r.target_period == 0 else learner.target
        return Learner(params, target, optimiser), about

    def take_in(self, state: SequenceState, updates: SequenceUpdates) -> SequenceState:
        """Wait for the updates; return the state after them."""
        learned = updates.finish()
        state = state._replace(learner=learned.learner)
        return count_updates(state, learned.updates, learned.loss_q, learned.loss_a)
