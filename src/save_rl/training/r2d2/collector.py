"""Acting for R2D2: real steps of the lanes of an actor, cut into sequences."""

from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np

from save_rl.envs.worker import ANY_LEVEL
from save_rl.learning.r2d2 import to_rescaled
from save_rl.learning.sequence_replay import Packed, pack
from save_rl.learning.sequences import Step, Writer
from save_rl.search.simulators import Roots
from save_rl.training.counters import Health
from save_rl.training.host.actor import ACT, RESET, Actor, Episodes
from save_rl.training.r2d2.network import RecurrentEvaluator
from save_rl.training.r2d2.setup import Setup

StateT = TypeVar("StateT", bound=Any)


class SequenceExperience(NamedTuple):
    """The results of a lock-step of the lanes, `[1, lanes]`, and the sequences it completed."""

    sequences: list[Packed]
    actions: np.ndarray
    reward: np.ndarray
    moved: np.ndarray  # lanes that made a step
    over: np.ndarray  # lanes whose episode ended with it
    episode_step: np.ndarray  # before it
    episode_return: np.ndarray  # before it
    next_seed: np.ndarray  # reset seeds of the next episodes
    simulations: np.ndarray  # [1]
    health: Health  # [1], of this lock-step


class SequenceEpisodes(NamedTuple):
    """The current episodes; `learner.SequenceState` has these fields, too."""

    episode_seed: np.ndarray  # [1, lanes] reset seed
    episode_step: np.ndarray  # [1, lanes]
    episode_return: np.ndarray  # [1, lanes]


def no_episodes(lanes: int) -> SequenceEpisodes:
    """Return the episodes of lanes that have not started."""
    shape = (1, lanes)
    return SequenceEpisodes(
        np.zeros(shape, np.int64), np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    )


class SavedLanes(NamedTuple):
    """The lanes in a checkpoint: recurrent states, unfinished sequences, and the simulators' states
    as bytes or, if simulators cannot save them, as the actions that lead there."""

    before: np.ndarray  # [lanes + 1, 2, H]
    writer: dict[str, np.ndarray]
    states: np.ndarray  # [1, lanes, bytes]
    history: np.ndarray  # actions of the current episodes, one after the other


def blank_lanes(setup: Setup, lanes: int) -> SavedLanes:
    """Return lanes that have not started."""
    return SavedLanes(
        before=np.zeros((lanes + 1, *setup.shapes.state), np.float32),
        writer=Writer(setup.r2d2.sequences, setup.shapes, lanes).state(),
        states=np.zeros((1, lanes, setup.layout.saved), np.uint8),
        history=np.zeros(0, np.int32),
    )


class SequenceCollector:
    """Acts for training: one real step of all lanes of an actor, and the sequences it completes.

    Owns the state of the lanes: the recurrent states, the unfinished sequences, and through the
    actor the simulators. Episodes are counted by the caller. `begin` or `restore` starts the lanes,
    and `use` sets the parameters. One lock-step is `step` and `start_episodes`.

    epsilon: `[lanes]` of the actor.
    """

    def __init__(self, setup: Setup, actor: Actor, epsilon: np.ndarray):
        self.actor, self._setup, self._epsilon = actor, setup, epsilon[None]
        self._search = actor.searches(setup.budget)
        self._forget()

    def _forget(self) -> None:
        """Start without recurrent states and unfinished sequences."""
        setup, lanes = self._setup, self.actor.places.lanes.shape[1]
        self.evaluator = RecurrentEvaluator(setup.networks, lanes, setup.budget)
        self.writer = Writer(setup.r2d2.sequences, setup.shapes, lanes)

    def begin(self) -> SequenceEpisodes:
        """Start episodes in all lanes."""
        self._forget()
        shape = self.actor.places.lanes.shape
        seeds = self.actor.random(0, RESET, 0).integers(2**31, size=shape)
        self.actor.reset(np.ones(shape, np.bool_), seeds, _any_level(shape))
        return no_episodes(shape[1])._replace(episode_seed=seeds)

    def use(self, params: Any) -> None:
        """Act with these parameters `[1, ...]` (or a list of them) from now on."""
        self.evaluator.use(params)

    def save(self, episode_step: np.ndarray) -> SavedLanes:
        """Return the lanes for a checkpoint. episode_step: `[1, lanes]`."""
        actor, saves = self.actor, self._setup.layout.saved > 0
        return SavedLanes(
            before=np.asarray(self.evaluator.before),
            writer=self.writer.state(),
            states=actor.saved(),
            history=np.zeros(0, np.int32) if saves else actor.past_actions(episode_step),
        )

    def restore(
        self, saved: SavedLanes, episode_seed: np.ndarray, episode_step: np.ndarray
    ) -> None:
        """Continue from a checkpoint; replays the episodes if simulators cannot save states.

        episode_seed, episode_step: `[1, lanes]`, reset seeds of the episodes and their steps.
        """
        self._forget()
        self.evaluator.before = jnp.asarray(saved.before)
        self.writer.restore(saved.writer)
        if self._setup.layout.saved:
            self.actor.load(saved.states)
        else:
            wanted = _any_level(episode_step.shape)
            self.actor.play_again(episode_seed, wanted, episode_step, saved.history)

    def step(self, state: Any, step: int) -> SequenceExperience:
        """Take a real step in all lanes; finished episodes stay at their end.

        state: `SequenceEpisodes`, or a state with its fields.
        """
        actor, agent, evaluator = self.actor, self._setup.agent, self.evaluator
        pool, lanes = actor.pool, actor.places.lanes
        assert self._search is not None
        (rng,) = random = actor.each(ACT, step)
        seen, before = pool.observation(lanes[0]), np.asarray(evaluator.before)[:-1]
        discards = self._setup.r2d2.discard_search
        found = actor.act(
            self._search, evaluator, agent.search, actor.places, ~pool.lost[lanes], self._epsilon,
            random, Episodes(state.episode_seed, state.episode_step),
            instead=(lambda: evaluator.root_q) if discards else None,
        )  # fmt: skip
        moved = actor.arrive(found.actions, actor.places)
        arrays, after = pool.arrays, pool.observation(lanes[0])
        terminated = arrays.terminated[lanes] & moved
        over = terminated | (arrays.truncated[lanes] & moved)
        reward = np.where(moved, arrays.reward[lanes], 0.0).astype(np.float32)
        values = self._values(found.roots, moved[0]) if self._setup.shapes.searched else None
        new = Step(
            frame=seen["frames"][..., -1],
            previous_action=seen["action"],
            previous_reward=seen["reward"],
            action=np.maximum(found.actions[0], 0).astype(np.int32),
            reward=reward[0],
            discount=np.where(terminated[0], 0.0, 1.0).astype(np.float32),
            q_theta=evaluator.root_q,
            state=before,
            q_mcts=values,
        )
        return SequenceExperience(
            sequences=self._write(new, moved[0], over[0], after["frames"][..., -1]),
            actions=found.actions,
            reward=reward,
            moved=moved,
            over=over,
            episode_step=state.episode_step,
            episode_return=state.episode_return,
            next_seed=rng.integers(2**31, size=lanes.shape),
            simulations=found.simulations,
            health=self._health(found.roots, found.actions, moved),
        )

    def _values(self, roots: Roots, moved: np.ndarray) -> np.ndarray:
        """Return the values of all actions after the search, rescaled, `[lanes, A]`."""
        found = np.where(moved[:, None], roots.q_values, 0.0)  # lost lanes have -inf
        rescaled = np.asarray(to_rescaled(found, self._setup.r2d2.network.search_space))
        return roots._replace(q_values=rescaled).of_all_actions(self.evaluator.root_q)[0]

    def _write(
        self, new: Step, moved: np.ndarray, over: np.ndarray, last_frame: np.ndarray
    ) -> list[Packed]:
        """Add a step; return the sequences that it completes. Lanes that did not move forget."""
        lost = np.flatnonzero(~moved)
        self.writer.drop(lost)
        finished = self.writer.add(new, over, last_frame)
        self.writer.drop(lost)
        return [pack(sequence) for sequence in finished]

    def _health(self, roots: Roots, actions: np.ndarray, moved: np.ndarray) -> Health:
        explored = self.actor.places.by_seed(roots.explored.sum(1))
        changed = actions != self.evaluator.root_q.argmax(-1)
        return Health(moved.sum(1), np.where(moved, explored, 0).sum(1), (moved & changed).sum(1))

    def start_episodes(self, state: StateT, experience: SequenceExperience) -> StateT:
        """Start new episodes in lanes whose episode is over or was lost; advance all lanes.

        state: of `step`, or a later one. Return it with the current episodes.
        """
        renewed, seeds = experience.over | ~experience.moved, experience.next_seed
        self.actor.reset(renewed, seeds, _any_level(seeds.shape))
        self.evaluator.commit_step(renewed[0])
        if not self._setup.layout.saved:
            self.actor.note(experience.actions, experience.episode_step)
        steps = experience.episode_step + experience.moved
        returns = experience.episode_return + experience.reward
        return state._replace(
            episode_seed=np.where(renewed, seeds, state.episode_seed),
            episode_step=np.where(renewed, 0, steps),
            episode_return=np.where(renewed, 0.0, returns),
        )


def _any_level(shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, ANY_LEVEL, np.int32)
