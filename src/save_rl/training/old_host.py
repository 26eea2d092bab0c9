"""Training on Python simulators: trees on the host, states in worker processes.

A lock-step moves every lane by one real step, then makes the updates that keep the replay ratio, as
in `training.device`, with which this shares agents, losses, schedules and the learner. All random
numbers derive from the seed and the number of the lock-step, so a run does not depend on the number
of workers, and its checkpoints need no generator state.

A lock-step's updates use the replay from before it, and acting uses the parameters from before
these updates. So both can run at the same time: on a GPU the updates are dispatched in pieces,
between the network calls of the search, while the simulators work.

A checkpoint stores an episode in progress as its seed and its actions: simulators are pure, so
replaying the actions leads to the same state.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import Agent, get_agent
from save_rl.envs.pool import Source
from save_rl.envs.worker import ANY_LEVEL, Layout
from save_rl.errors import InputError
from save_rl.learning import host_replay
from save_rl.learning.curriculum import Bins, linear_level, no_bins, record
from save_rl.learning.exploration import epsilon_at_step
from save_rl.learning.host_replay import HostReplay
from save_rl.learning.replay import Transition
from save_rl.networks import is_graph, network_maker
from save_rl.players import Move, Player, best_tried
from save_rl.search import save as save_search
from save_rl.search.simulators import Evaluate
from save_rl.training.counters import (
    AnyLength,
    Counters,
    Stats,
    count_step,
    count_updates,
    keep_types,
    no_stats,
)
from save_rl.training.devices import concurrent
from save_rl.training.host_network import Network, SortedUpdates, Updates
from save_rl.training.learner import Learner, Learning
from save_rl.training.settings import TrainSettings
from save_rl.training.stage import ACT, LEARN, RESET, Stage, hardest_level
from save_rl.training.trainer import NO_PLAYER
from save_rl.types import SearchResult, Simulator, State

_GPU_GROUPS = 3  # groups of lanes on a GPU: the network takes about as long as the trees
_PARTS = 4  # parts of a batch of graphs on a CPU
_PIECES = 8  # pieces of a lock-step's updates on a GPU: more take longer to dispatch than to run


class HostSeed(NamedTuple):
    """Everything one seed carries from lock-step to lock-step, in NumPy arrays."""

    episode_seed: np.ndarray  # [lanes] reset seed of the current episode
    episode_wanted: np.ndarray  # [lanes] requested level, see `envs.worker.Arrays`
    episode_step: np.ndarray  # [lanes]
    episode_return: np.ndarray  # [lanes]
    history: np.ndarray  # [sum of episode_step] actions of the current episodes, lane by lane
    length: np.ndarray  # [] running estimate of the length of an episode
    episodes: np.ndarray  # []
    steps: np.ndarray  # [] lock-steps
    env_steps: np.ndarray  # []
    simulator_steps: np.ndarray  # [] made by searches
    restarts: np.ndarray  # [] faults of the simulator
    updates: np.ndarray  # []
    bins: Bins  # of an adaptive curriculum
    learner: Learner
    replay: HostReplay
    stats: Stats


class Experience(NamedTuple):
    """The results of a lock-step of the lanes, `[lanes, ...]`."""

    transitions: Transition
    moved: np.ndarray  # lanes that made a step
    over: np.ndarray  # lanes whose episode ended with it
    episode_step: np.ndarray  # before it
    episode_return: np.ndarray  # before it
    level: np.ndarray  # of their episodes; see `envs.worker.Arrays`
    kind: np.ndarray
    solved: np.ndarray
    next_seed: np.ndarray  # reset seeds of the next episodes
    simulations: int

    @property
    def reward(self) -> np.ndarray:
        return self.transitions.reward


class Program(Stage):
    """Trains and tests all seeds of one set of settings, over one pool of simulators.

    options: compiler options; only GPUs have some. The other arguments are those of `Stage`.
    """

    def __init__(
        self,
        settings: TrainSettings,
        simulators: Sequence[Simulator],
        sources: Sequence[Source] = (),
        *,
        options: dict[str, str] | None = None,
        plays: Agent | None = None,
        **places: Any,
    ):
        agent, seen = get_agent(settings.agent), Layout.of(simulators[0]).example()
        options = concurrent(options or {})
        make = network_maker(
            settings.network, seen, simulators[0], agent.prior == "policy",
            settings.mixed_precision,
        )  # fmt: skip
        self.learning = Learning(agent, settings, make)
        super().__init__(
            settings,
            simulators,
            sources,
            plays=plays,
            groups=_GPU_GROUPS if options else 2,
            **places,
        )
        masked = self.pool.layout.num_actions if self.pool.layout.masked else 0
        self.network = Network(self._plays, self.learning, masked, options)
        pieces = min(settings.updates_per_step, _PIECES) if options else 1
        while settings.updates_per_step % pieces:
            pieces -= 1
        if is_graph(seen) and not options:
            parts = math.gcd(settings.batch, _PARTS)
            self.updates: Updates = SortedUpdates(self.learning, masked, parts)
        else:
            self.updates = Updates(self.learning, masked, pieces, options)
        self._counted = [0] * len(simulators)  # faults already included in `restarts`

    def close(self) -> None:
        self.updates.close()
        super().close()

    def evaluator(self, params: Any, lanes: int, budget: int) -> Evaluate:
        return self.network.with_params(params)

    def acting(self, leaves: list[Any]) -> Evaluate:
        """Return the network with these parameters, for lanes to act with."""
        return self.network.with_params(leaves)

    def begin(self) -> tuple[HostSeed, ...]:
        """Return the state of all seeds before their first lock-step."""
        return tuple(self._begin(i) for i in range(len(self._simulators)))

    def _begin(self, index: int) -> HostSeed:
        s, seed = self.settings, self.settings.seeds[index]
        state = self._blank(seed)
        self._history[index] = [[] for _ in range(s.lanes)]
        state.episode_seed[:] = self._random(index, RESET, 0).integers(2**31, size=s.lanes)
        state.episode_wanted[:] = self._wanted(state)
        self._reset(index, np.ones(s.lanes, np.bool_), state.episode_seed, state.episode_wanted)
        return state

    def _wanted(self, seed: HostSeed) -> int:
        """Return the level to request for new episodes."""
        if self.curriculum == "linear":
            hardest = hardest_level(self._simulators[0])
            return linear_level(int(seed.env_steps), self.settings.curriculum_steps, hardest)
        return int(seed.bins.level) if self.curriculum == "adaptive" else ANY_LEVEL

    def _blank(self, seed: int) -> HostSeed:
        """Return the state of a seed whose lanes have not started."""
        s, layout = self.settings, self.pool.layout
        lanes = np.zeros(s.lanes, np.float32)
        lane = np.zeros(s.lanes, np.int64)
        width = layout.num_actions if self.agent.amortization_loss != "none" else 0
        observation, mask = (
            self.pool.observation(lane),
            np.packbits(self.pool.arrays.mask[lane], -1),
        )
        example = Transition(
            observation=observation,
            action=lanes.astype(np.int32),
            reward=lanes,
            discount=lanes,
            next_observation=observation,
            target=np.zeros((s.lanes, width), np.float32),
            mask=mask,
            next_mask=mask,
        )
        none = np.zeros((), np.int64)
        return HostSeed(
            episode_seed=lane.copy(),
            episode_wanted=np.full(s.lanes, ANY_LEVEL, np.int32),
            episode_step=lanes.astype(np.int32),
            episode_return=lanes.copy(),
            history=np.zeros(0, np.int32),
            length=np.ones((), np.float32),
            episodes=none,
            steps=none,
            env_steps=none,
            simulator_steps=none,
            restarts=none,
            updates=none,
            bins=no_bins(),
            learner=self.learning.initial(jax.random.PRNGKey(seed)),
            replay=host_replay.empty(example, s.replay),
            stats=no_stats(np),
        )

    def template(self) -> Any:
        """Return names, shapes and dtypes of the arrays of a checkpoint; -1 is any length."""
        one = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self._blank(self.settings.seeds[0])
        )
        one = one._replace(history=AnyLength(np.int32))
        return tuple(one for _ in self._simulators)

    def snapshot(self, state: tuple[HostSeed, ...]) -> tuple[HostSeed, ...]:
        """Return the state to write to a checkpoint."""
        return tuple(
            seed._replace(history=self._past_actions(index)) for index, seed in enumerate(state)
        )

    def restore(self, state: tuple[HostSeed, ...]) -> tuple[HostSeed, ...]:
        """Return the state of a checkpoint, ready to continue; replays its current episodes."""
        for index, seed in enumerate(state):
            self._play_again(
                index, seed.episode_seed, seed.episode_wanted, seed.episode_step, seed.history
            )
        return tuple(
            seed._replace(learner=jax.tree.map(jnp.asarray, seed.learner)) for seed in state
        )

    def advance(self, state: tuple[HostSeed, ...], step: int) -> tuple[HostSeed, ...]:
        """Run a chunk of lock-steps after the first `step`; `state` must not be used again."""
        after = []
        for index, seed in enumerate(state):
            if int(seed.episodes) < self.settings.episodes:
                made = 0
                for t in range(step, step + self.settings.chunk):
                    learns = int(seed.replay.added) >= self.settings.min_replay
                    made += learns * self.settings.updates_per_step
                    seed = keep_types(seed, self._lock_step(index, seed, t, learns))
                losses, self.updates.losses = self.updates.losses, []
                loss_q, loss_a = np.sum(np.asarray(losses, np.float32).reshape(-1, 2), 0)
                restarts = seed.restarts + self.pool.faults[index] - self._counted[index]
                self._counted[index] = self.pool.faults[index]
                counted = count_updates(seed, made, loss_q, loss_a)._replace(restarts=restarts)
                seed = keep_types(seed, counted)
            after.append(seed)
        return tuple(after)

    def counters(self, state: tuple[HostSeed, ...]) -> Counters:
        """Return the counters so far."""

        def stacked(*values: Any) -> np.ndarray:
            return np.stack([np.asarray(value) for value in values])

        return Counters(
            stats=jax.tree.map(stacked, *(seed.stats for seed in state)),
            level=np.array([self._wanted(seed) for seed in state]),
            health=None,
            **{
                name: stacked(*(getattr(seed, name) for seed in state))
                for name in Counters._fields
                if name not in ("stats", "level", "health")
            },
        )

    def forget_stats(self, state: tuple[HostSeed, ...]) -> tuple[HostSeed, ...]:
        return tuple(seed._replace(stats=no_stats(np)) for seed in state)

    def params(self, state: tuple[HostSeed, ...]) -> list[Any]:
        """Return the parameters of the networks, by seed."""
        return [seed.learner.params for seed in state]

    def player(self, params: Sequence[Any], sim: Simulator, budget: int) -> Player:
        """Return the first seed as a player of a simulator; it acts as in tests."""
        s = self.settings
        if self.agent.prior != "q" or self.agent.act == "visits":
            raise InputError(NO_PLAYER)
        network = jax.jit(lambda params, seen: self.learning.network(params)(seen)[0])

        def move(state: State, rng: np.random.Generator) -> Move:
            result = save_search(
                sim, [state], lambda seen: network(params[0], seen), budget=budget, c=s.c,
                discount=s.discount, seed=int(rng.integers(2**31)),
            )  # fmt: skip
            return best_tried(sim, state, result)

        return move

    def _lock_step(self, index: int, seed: HostSeed, step: int, learns: bool) -> HostSeed:
        if learns:
            slots = self._draw(index, seed, step)
            self.updates.begin(seed.learner, seed.replay, slots, seed.episodes)
            self.network.meanwhile = self.updates.go_on
        params, going_on = seed.learner.params, seed

        def learned() -> None:
            nonlocal going_on
            self.network.meanwhile = None
            if learns:
                going_on = seed._replace(learner=self.updates.finish(step))

        experience = self.act(index, seed, self.network.with_params(params), step, learned)
        seed = self.absorb(going_on, experience)
        return self.renew(index, seed, experience, self._wanted(seed))

    def _draw(self, index: int, seed: HostSeed, step: int) -> np.ndarray:
        """Sample the replay slots to learn from in lock-step `step`."""
        s = self.settings
        rng = self._random(index, LEARN, step)
        return host_replay.draw(seed.replay, rng, (s.updates_per_step, s.batch))

    def act(
        self, index: int, seed: HostSeed, evaluate: Evaluate, step: int,
        between: Callable[[], None] | None = None,
    ) -> Experience:  # fmt: skip
        """Take a real step in all lanes. Finished episodes stay at their end until `renew`.

        seed: the state of its lanes and counters. between: called after the actions are chosen.
        """
        s, agent, pool = self.settings, self.agent, self.pool
        rng = self._random(index, ACT, step)
        search, lanes = self.searches[index], self._lanes(self._groups[index])
        before = pool.observation(lanes), pool.arrays.mask[lanes]
        epsilon = epsilon_at_step(s.epsilon.at(seed.episodes), seed.episode_step, seed.length)
        result, actions = self._decide(
            search, evaluate, agent.search, ~pool.lost[lanes], epsilon, rng, agent.root_noise
        )
        if between is not None:
            between()
        self._advance(index, actions)
        arrays = pool.arrays
        moved = (actions >= 0) & ~pool.lost[lanes]
        terminated = arrays.terminated[lanes] & moved
        reward = np.where(moved, arrays.reward[lanes], 0.0).astype(np.float32)
        transitions = Transition(
            observation=before[0],
            action=actions.astype(np.int32),
            reward=reward,
            discount=np.where(terminated, 0.0, s.discount).astype(np.float32),
            next_observation=pool.observation(lanes),
            target=_target(agent, result),
            mask=np.packbits(before[1], -1),
            next_mask=np.packbits(np.where(terminated[:, None], True, arrays.mask[lanes]), -1),
        )
        return Experience(
            transitions=transitions,
            moved=moved,
            over=terminated | (arrays.truncated[lanes] & moved),
            episode_step=seed.episode_step,
            episode_return=seed.episode_return,
            level=arrays.level[lanes],
            kind=arrays.kind[lanes],
            solved=arrays.solved[lanes],
            next_seed=rng.integers(2**31, size=s.lanes),
            simulations=search.simulations,
        )

    def absorb(self, seed: HostSeed, experience: Experience, first: int = 0) -> HostSeed:
        """Add the experience of lanes to replay, and count it. first: index of the first lane."""
        made, moved, over = experience.transitions, experience.moved, experience.over
        track = self.agent.value_loss == "return"
        host_replay.add(seed.replay, made, moved, over, self.settings.discount, track, first)
        seed = seed._replace(
            episode_step=experience.episode_step, episode_return=experience.episode_return
        )
        seed = self._count_levels(seed, experience)
        seed = count_step(seed, made.reward, over, moved, np)
        return seed._replace(
            env_steps=seed.env_steps + moved.sum(),
            simulator_steps=seed.simulator_steps + experience.simulations,
        )

    def renew(self, index: int, seed: HostSeed, experience: Experience, level: int) -> HostSeed:
        """Start new episodes, of this level, in lanes whose episode is over or was lost."""
        renewed, seeds = experience.over | ~experience.moved, experience.next_seed
        wanted = np.where(renewed, level, seed.episode_wanted).astype(np.int32)
        self._reset(index, renewed, seeds, wanted)
        self._note(index, experience.transitions.action, renewed)
        return seed._replace(
            episode_wanted=wanted,
            episode_seed=np.where(renewed, seeds, seed.episode_seed),
            episode_step=np.where(renewed, 0, seed.episode_step).astype(np.int32),
            episode_return=np.where(renewed, 0.0, seed.episode_return).astype(np.float32),
        )

    def _count_levels(self, seed: HostSeed, experience: Experience) -> HostSeed:
        """Count ended episodes of the current level; an adaptive curriculum may raise the level."""
        over = experience.over
        if self.curriculum == "none" or not over.any():
            return seed
        stats, at_level = seed.stats, over & (experience.level == self._wanted(seed))
        returns = experience.episode_return + experience.transitions.reward
        seed = seed._replace(
            stats=stats._replace(
                level_episodes=stats.level_episodes + at_level.sum(),
                level_return_sum=stats.level_return_sum + returns[at_level].sum(),
            )
        )
        if self.curriculum == "adaptive":
            kinds, solved = experience.kind[over], experience.solved[over]
            hardest = hardest_level(self._simulators[0])
            seed = seed._replace(bins=record(seed.bins, kinds, solved, hardest))
        return seed


def _target(agent: Agent, result: SearchResult) -> np.ndarray:
    """Return the target of the amortization loss, `[lanes, A]`, or `[lanes, 0]` without one."""
    if agent.amortization_loss == "none":
        return np.zeros((len(result.visits), 0), np.float32)
    if agent.amortization_loss == "visits":
        total = np.maximum(result.visits.sum(-1, keepdims=True), 1)
        return (result.visits / total).astype(np.float32)
    return np.asarray(result.q_values, np.float32)
