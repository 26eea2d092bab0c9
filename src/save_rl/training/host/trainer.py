"""The trainer for Python simulators: an actor and a learner in lock-steps, all seeds together.

A lock-step moves every lane by one real step, then makes the updates that keep the replay ratio, as
in `training.device`, with which this shares agents, losses, schedules and the learner. All random
numbers derive from the seed and the number of the lock-step, so a run does not depend on the number
of workers, and its checkpoints need no generator state.

A checkpoint stores an episode in progress as its seed and its actions: simulators are pure, so
replaying the actions leads to the same state.
"""

import math
from collections.abc import Sequence
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
from save_rl.networks import is_graph, network_maker, padded_sizes
from save_rl.networks.graph import sizes as graph_sizes
from save_rl.players import Move, Player, best_tried
from save_rl.search import save as save_search
from save_rl.training.counters import (
    AnyLength,
    Counters,
    Stats,
    count_step,
    count_updates,
    no_stats,
)
from save_rl.training.devices import concurrent
from save_rl.training.host.actor import (
    ACT,
    LEARN,
    RESET,
    Actor,
    Decision,
    hardest_level,
    slots_of,
)
from save_rl.training.host.ahead import Ahead, shapes
from save_rl.training.host.evaluator import Network
from save_rl.training.host.updates import UpdatePrograms, Updates
from save_rl.training.learner import Learner, Learning
from save_rl.training.settings import TrainSettings
from save_rl.training.trainer import NO_PLAYER
from save_rl.types import Simulator, State

_MANY = 512  # lanes from which a GPU serves three groups: fewer are evaluated as fast as asked for
_PARTS = 4  # parts of a batch of graphs on a CPU


class TrainState(NamedTuple):
    """Everything that all seeds carry from lock-step to lock-step."""

    episode_seed: np.ndarray  # [seeds, lanes] reset seed of the current episode
    episode_wanted: np.ndarray  # [seeds, lanes] requested level, see `envs.worker.Arrays`
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


class Experience(NamedTuple):
    """The results of a lock-step of the lanes, `[seeds, lanes, ...]`."""

    transitions: Transition
    sizes: np.ndarray  # [seeds, lanes, 2] nodes of both observations, if they are graphs
    moved: np.ndarray  # lanes that made a step
    over: np.ndarray  # lanes whose episode ended with it
    episode_step: np.ndarray  # before it
    episode_return: np.ndarray  # before it
    level: np.ndarray  # of their episodes; see `envs.worker.Arrays`
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
        self._targets = jax.jit(_searched_targets)

    def step(self, state: Any, evaluator: Any, step: int, running: np.ndarray) -> Experience:
        """Take a real step in the lanes of seeds that are `running`. Finished episodes stay at
        their end until `renew`.

        state: of lanes and counters, see `TrainState`.
        """
        actor, s, agent = self.actor, self.actor.settings, self.agent
        pool, lanes = actor.pool, actor.places.lanes
        assert self._search is not None
        random = actor.each(ACT, step)
        before = pool.observation(lanes)
        epsilon = np.stack([
            epsilon_at_step(s.epsilon.at(episodes), steps, length)
            for episodes, steps, length in zip(
                state.episodes, state.episode_step, state.length, strict=True
            )
        ])  # fmt: skip
        active = ~pool.lost[lanes] & running[:, None]
        found = actor.decide(
            self._search, evaluator, agent.search, actor.places, active, epsilon, random,
            agent.root_noise,
        )  # fmt: skip
        target = self._target(found, evaluator)
        moved = actor.advance(found.actions)
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

    def _target(self, found: Decision, evaluator: Any) -> Any:
        """Return the target of the amortization loss, `[seeds, lanes, A]`, or `[..., 0]` without
        one. Untried actions keep Qθ of the root, which is still on the device."""
        places, roots, kind = self.actor.places, found.roots, self.agent.amortization_loss
        if kind == "none":
            return np.zeros((*places.lanes.shape, 0), np.float32)
        visits, q_values = places.by_seed(roots.visits), places.by_seed(roots.q_values)
        if kind == "visits":
            total = np.maximum(visits.sum(-1, keepdims=True), 1)
            return (visits / total).astype(np.float32)
        if roots.actions.shape[1] == 0:
            return q_values
        actions = places.by_seed(roots.actions)
        rows = evaluator.root_rows(self.actor.pool, places.groups)
        return self._targets(rows, actions, q_values, visits > 0)

    def renew(self, state: Any, experience: Experience, level: np.ndarray, running: Any) -> Any:
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


def _searched_targets(rows: Any, actions: Any, q_values: Any, explored: Any) -> Any:
    """Return Q_MCTS `[seeds, lanes, A]`: rows of Qθ with the values of explored slots."""
    seed, lane = (jnp.arange(size) for size in rows.shape[:2])
    # Slots that were not explored write behind the end, which is dropped: those that are left over
    # where few actions are allowed all have action 0.
    actions = jnp.where(explored, actions, rows.shape[-1])
    return rows.at[seed[:, None, None], lane[None, :, None], actions].set(q_values, mode="drop")


class HostLearner:
    """Learns from transitions: replay and updates of all seeds.

    options: compiler options; only GPUs have some.
    """

    def __init__(
        self, learning: Learning, settings: TrainSettings, layout: Layout, graphs: bool,
        options: dict[str, str], ahead: Ahead | None = None,
    ):  # fmt: skip
        self.learning, self.settings, self._layout = learning, settings, layout
        self._initial = jax.jit(jax.vmap(lambda seed: learning.initial(jax.random.PRNGKey(seed))))
        parts = math.gcd(settings.batch, _PARTS) if graphs and not options else 0
        masked = layout.num_actions if layout.masked else 0
        self.programs = UpdatePrograms(learning, masked, options, parts, ahead)

    def close(self) -> None:
        """End the thread."""
        self.programs.close()

    def initial(self) -> Learner:
        """Return untrained learners of all seeds."""
        return self._initial(np.array(self.settings.seeds))

    def replay(self) -> HostReplay:
        """Return an empty replay."""
        return host_replay.empty(self._example(), self.settings.replay)

    def shapes(self) -> tuple[Learner, HostReplay]:
        """Return learners and replay as shapes and dtypes, without memory for them."""
        capacity, seeds = self.settings.replay, len(self.settings.seeds)
        data = jax.eval_shape(lambda: host_replay.empty_data(self._example(), capacity))
        small = shapes(host_replay.nothing(seeds, capacity))
        return jax.eval_shape(self.initial), small._replace(data=data)

    def _example(self) -> Transition:
        """Return a transition of zeros of every seed."""
        s, layout = self.settings, self._layout
        seeds = len(s.seeds)
        width = layout.num_actions if self.learning.agent.amortization_loss != "none" else 0
        bits = -(-layout.num_actions // 8) if layout.masked else 0
        seen = jax.tree.map(lambda x: np.zeros((seeds, 1, *x.shape), x.dtype), layout.example())
        number, mask = np.zeros((seeds, 1), np.float32), np.zeros((seeds, 1, bits), np.uint8)
        return Transition(
            observation=seen,
            action=number.astype(np.int32),
            reward=number,
            discount=number,
            next_observation=seen,
            target=np.zeros((seeds, 1, width), np.float32),
            mask=mask,
            next_mask=mask,
        )

    def updates(
        self, state: Any, random: list[np.random.Generator], running: np.ndarray
    ) -> Updates:
        """Return the updates of a lock-step, ready to run beside it."""
        s = self.settings
        active = running & (state.replay.added >= s.min_replay)
        slots = host_replay.draw(state.replay, random, (s.updates_per_step, s.batch))
        return Updates(self.programs, state.learner, state.replay, slots, state.episodes, active)

    def record(
        self, replay: HostReplay, experience: Experience, running: np.ndarray, first: int = 0
    ) -> HostReplay:
        """Add the experience of lanes to replay. first: index of the first lane."""
        track = self.learning.agent.value_loss == "return"
        return host_replay.add(
            replay, experience.transitions, experience.sizes, experience.moved, experience.over,
            self.settings.discount, track, first, running,
        )  # fmt: skip


def make_learning(settings: TrainSettings, simulator: Simulator) -> Learning:
    """Return losses and updates of the agent and the network of these settings."""
    agent, seen = get_agent(settings.agent), Layout.of(simulator).example()
    make = network_maker(
        settings.network, seen, simulator, agent.prior == "policy", settings.mixed_precision
    )
    return Learning(agent, settings, make)


class HostTrainer:
    """Trains and tests all seeds of one set of settings, over one pool of simulators.

    simulators, sources, workers, timeout, warn, test_lanes: see `Actor`. train: false leaves out
    the training lanes. plays: the agent that searches and acts, if it is not the one that learns.
    budgets: of tests. options: compiler options; only GPUs have some.
    """

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
        **places: Any,
    ):
        self.settings, self.agent = settings, get_agent(settings.agent)
        layout, options = Layout.of(simulators[0]), concurrent(options or {})
        seen = layout.example()
        self.learning = make_learning(settings, simulators[0])
        plays, lanes = plays or self.agent, settings.lanes if train else 0
        many = lanes * len(simulators) >= _MANY
        groups = 3 if options and many else 2
        budget = max(settings.budget, settings.test_budget, *budgets, 0)
        ahead = self._ahead = Ahead() if options and train else None
        slots, batch = slots_of(plays, budget, layout), -(-lanes // groups)
        self.network = Network(plays, self.learning, layout, slots, batch, options, ahead)
        self.learner = HostLearner(self.learning, settings, layout, is_graph(seen), options, ahead)
        if ahead is not None:  # while the workers start
            learner, replay = self.learner.shapes()
            for size in padded_sizes(seen, gpu=True):  # smaller graphs come first
                self.network.compile_ahead(jax.tree.leaves(learner.params), size)
                self.learner.programs.compile_ahead(learner, replay, size)
        self.actor = Actor(
            settings, simulators, sources, plays=plays, lanes=lanes, groups=groups, slots=slots,
            **places,
        )  # fmt: skip
        self.curriculum, self.pool = self.actor.curriculum, self.actor.pool
        self.collector = Collector(self.actor, self.agent, is_graph(seen))
        self._counted = np.zeros(len(simulators), np.int64)  # faults included in `restarts`

    def close(self) -> None:
        """End threads and workers."""
        if self._ahead is not None:
            self._ahead.close()
        self.learner.close()
        self.actor.close()

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
            learns = running & (state.replay.added >= self.settings.min_replay)
            made += learns * self.settings.updates_per_step
            state, new = self._lock_step(state, t, running)
            losses += new
        return self.count(state, made, losses)

    def count(self, state: TrainState, made: np.ndarray, losses: list[Any]) -> TrainState:
        """Count the updates of a chunk and the faults of simulators."""
        total = np.sum([np.asarray(x) for x in losses], 0) if losses else np.zeros((len(made), 2))
        total = np.asarray(total, np.float32)
        restarts = state.restarts + self.pool.faults - self._counted
        self._counted = self.pool.faults.copy()
        return count_updates(state, made, total[:, 0], total[:, 1])._replace(restarts=restarts)

    def _lock_step(
        self, state: TrainState, step: int, running: np.ndarray
    ) -> tuple[TrainState, list[Any]]:
        updates = self.learner.updates(state, self.actor.each(LEARN, step), running)
        evaluator = self.network.with_params(state.learner.params, beside=updates)
        experience = self.collector.step(state, evaluator, step, running)
        learner, losses = updates.finish(step)
        state = self.absorb(state._replace(learner=learner), experience, running)
        return self.collector.renew(state, experience, self.wanted(state), running), losses

    def absorb(
        self, state: TrainState, experience: Experience, running: np.ndarray, first: int = 0
    ) -> TrainState:
        """Add the experience of lanes to replay, and count it. first: index of the first lane."""
        moved, over = experience.moved, experience.over
        state = state._replace(
            replay=self.learner.record(state.replay, experience, running, first),
            episode_step=experience.episode_step,
            episode_return=experience.episode_return,
        )
        state = self._count_levels(state, experience)
        state = count_step(state, experience.reward, over, moved, np, running)
        return state._replace(
            env_steps=state.env_steps + moved.sum(1),
            simulator_steps=state.simulator_steps + experience.simulations,
        )

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

    def player(self, params: Any, sim: Simulator, budget: int) -> Player:
        """Return the first seed as a player of a simulator; it acts as in tests."""
        s = self.settings
        if self.agent.prior != "q" or self.agent.act == "visits":
            raise InputError(NO_PLAYER)
        network = jax.jit(lambda params, seen: self.learning.network(params)(seen)[0])
        first = jax.tree.map(lambda x: x[0], params)

        def move(state: State, rng: np.random.Generator) -> Move:
            result = save_search(
                sim, [state], lambda seen: network(first, seen), budget=budget, c=s.c,
                discount=s.discount, seed=int(rng.integers(2**31)),
            )  # fmt: skip
            return best_tried(sim, state, result)

        return move


def on_device(state: TrainState) -> TrainState:
    """Return a state with the arrays of learner and replay on the device."""
    learner, data = jax.tree.map(jnp.asarray, (state.learner, state.replay.data))
    return state._replace(learner=learner, replay=state.replay._replace(data=data))
