"""Acting for training: real steps of the lanes of an actor, and the transitions to learn from."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import Agent
from save_rl.learning.replay import Transition
from save_rl.networks.graph import sizes as graph_sizes
from save_rl.training.host.actor import ACT, Actor, Episodes, LaneDecisions


class Experience(NamedTuple):
    """The results of a lock-step of the lanes, `[seeds, lanes, ...]`."""

    transitions: Transition
    sizes: np.ndarray  # [seeds, lanes, 2] nodes of both observations, if they are graphs
    moved: np.ndarray  # lanes that made a step
    over: np.ndarray  # lanes whose episode ended with it
    episode_step: np.ndarray  # before it
    episode_return: np.ndarray  # before it
    level: np.ndarray  # of their episodes; see `envs.layout.Arrays`
    kind: np.ndarray
    solved: np.ndarray
    next_seed: np.ndarray  # reset seeds of the next episodes
    simulations: np.ndarray  # [seeds]

    @property
    def reward(self) -> np.ndarray:
        return self.transitions.reward


class Collector:
    """Acts for training: one real step of all lanes, and what there is to learn from it."""

    def __init__(self, actor: Actor, agent: Agent, graphs: bool):
        self.actor, self.agent, self._graphs = actor, agent, graphs
        budget = actor.settings.budget if agent.search is not None else 0
        self._search = actor.searches(budget)
        self._targets = jax.jit(partial(_searched_targets, kind=agent.amortization_loss))

    def step(self, state: Any, evaluator: Any, step: int, running: np.ndarray) -> Experience:
        """Take a real step in the lanes of seeds that are `running`. Finished episodes stay at
        their end until `start_episodes`.

        state: of lanes and counters, see `TrainState`.
        """
        actor, s, agent = self.actor, self.actor.settings, self.agent
        pool, lanes = actor.pool, actor.places.lanes
        assert self._search is not None
        random = actor.each(ACT, step)
        before = pool.observation(lanes)
        epsilon = np.stack([
            s.lane_epsilon(*of_seed)
            for of_seed in zip(
                state.episodes, state.env_steps, state.episode_step, state.length, strict=True
            )
        ])  # fmt: skip
        active = ~pool.lost[lanes] & running[:, None]
        found = actor.act(
            self._search, evaluator, agent.search, actor.places, active, epsilon, random,
            Episodes(state.episode_seed, state.episode_step), agent.root_noise,
        )  # fmt: skip
        target = self._target(found, evaluator)
        moved = actor.arrive(found.actions, actor.places)
        arrays, after = pool.arrays, pool.observation(lanes)
        terminated = arrays.terminated[lanes] & moved
        transitions = Transition(
            observation=before,
            action=found.actions.astype(np.int32),
            reward=np.where(moved, arrays.reward[lanes], 0.0).astype(np.float32),
            discount=np.where(terminated, 0.0, s.discount).astype(np.float32),
            next_observation=after,
            target=target,
            mask=found.allowed,
            next_mask=np.where(terminated[..., None], np.uint8(255), arrays["allowed"][lanes]),
        )
        sizes = np.zeros((*lanes.shape, 2), np.int32)
        if self._graphs:
            sizes[..., 0], sizes[..., 1] = graph_sizes(before), graph_sizes(after)
        return Experience(
            transitions=transitions,
            sizes=sizes,
            moved=moved,
            over=terminated | (arrays.truncated[lanes] & moved),
            episode_step=state.episode_step,
            episode_return=state.episode_return,
            level=arrays.level[lanes],
            kind=arrays.kind[lanes],
            solved=arrays.solved[lanes],
            next_seed=np.stack([rng.integers(2**31, size=lanes.shape[1]) for rng in random]),
            simulations=found.simulations,
        )

    def _target(self, found: LaneDecisions, evaluator: Any) -> Any:
        """Return the target of the amortization loss, `[seeds, lanes, A]`, or `[..., 0]` without
        one. Untried actions keep Qθ of the root, which is still on the device."""
        places, roots, kind = self.actor.places, found.roots, self.agent.amortization_loss
        if kind == "none":
            return np.zeros((*places.lanes.shape, 0), np.float32)
        visits, q_values = places.by_seed(roots.visits), places.by_seed(roots.q_values)
        if kind == "visits":
            total = np.maximum(visits.sum(-1, keepdims=True), 1)
            return (visits / total).astype(np.float32)
        if kind == "explored":
            q_values = np.where(visits > 0, q_values, np.float32(-np.inf))
        if roots.actions.shape[1] == 0:
            also = [visits.astype(np.float32)] if kind == "weighted" else []
            return np.concatenate([q_values, *also], -1)
        actions = places.by_seed(roots.actions)
        rows = evaluator.root_rows(self.actor.pool, places.groups)
        return self._targets(rows, actions, q_values, visits)

    def start_episodes(
        self, state: Any, experience: Experience, level: np.ndarray, running: Any
    ) -> Any:
        """Start new episodes, of these levels `[seeds]`, in lanes whose episode is over or was
        lost."""
        renewed = (experience.over | ~experience.moved) & running[:, None]
        seeds = experience.next_seed
        wanted = np.where(renewed, level[:, None], state.episode_wanted).astype(np.int32)
        self.actor.reset(renewed, seeds, wanted)
        self.actor.note(experience.transitions.action, experience.episode_step)
        return state._replace(
            episode_wanted=wanted,
            episode_seed=np.where(renewed, seeds, state.episode_seed),
            episode_step=np.where(renewed, 0, state.episode_step).astype(np.int32),
            episode_return=np.where(renewed, 0.0, state.episode_return).astype(np.float32),
        )


def _searched_targets(rows: Any, actions: Any, q_values: Any, visits: Any, kind: str) -> Any:
    """Return Q_MCTS `[seeds, lanes, A]`: rows of Qθ with the values of explored slots. kind: of the
    loss; 'explored' has -inf elsewhere, 'weighted' adds the visits of all actions."""
    seed, lane = (jnp.arange(size) for size in rows.shape[:2])
    # Slots that were not explored write behind the end, which is dropped: those that are left over
    # where few actions are allowed all have action 0.
    actions = jnp.where(visits > 0, actions, rows.shape[-1])
    at = seed[:, None, None], lane[None, :, None], actions
    rows = jnp.full_like(rows, -jnp.inf) if kind == "explored" else rows
    found = rows.at[at].set(q_values, mode="drop")
    if kind != "weighted":
        return found
    counts = jnp.zeros_like(rows).at[at].set(visits.astype(rows.dtype), mode="drop")
    return jnp.concatenate([found, counts], -1)
