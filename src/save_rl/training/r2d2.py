"""Training R2D2, with and without SAVE, on simulators with frames as observations
(docs/experiments/atari.md#r2d2; Kapturowski et al. 2019; paper, appendix E).

A lock-step moves every lane by one agent step, on the same stage as `training.host`. The
differences: the network is recurrent, so search nodes carry its state; every lane explores with its
own ε; and learning uses sequences of steps, sampled by priority at the rate of
`samples_per_insert`. Actors get new parameters every few lock-steps.

The updates due at the start of a lock-step run in a separate thread while its lanes act; their
batches and the actors' parameters are fixed beforehand.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import Agent, get_agent
from save_rl.envs.atari_protocol import SIZE, STACK
from save_rl.envs.pool import Source
from save_rl.envs.worker import ANY_LEVEL, Layout
from save_rl.errors import require
from save_rl.learning.exploration import epsilon_ladder
from save_rl.learning.r2d2 import to_rescaled
from save_rl.learning.r2d2_settings import R2D2Settings
from save_rl.learning.sequence_replay import Drawn, Packed, SequenceReplay, pack
from save_rl.learning.sequences import Shapes, Step, Writer, blank
from save_rl.players import Move, Player, RootValues, make_move
from save_rl.rescaling import unscale
from save_rl.search.rules import Space
from save_rl.training.counters import (
    AnyLength,
    Counters,
    Health,
    Stats,
    count_step,
    count_updates,
    keep_types,
    no_health,
    no_stats,
)
from save_rl.training.learner import Learner
from save_rl.training.recurrent_network import Networks, Recall, to_batch
from save_rl.training.settings import TrainSettings
from save_rl.training.stage import ACT, LEARN, RESET, Stage
from save_rl.types import Simulator, State

SPACES = {"transformed": Space.TRANSFORMED, "mixed": Space.MIXED, "raw": Space.PLAIN}


class SequenceSeed(NamedTuple):
    """Everything a run carries from lock-step to lock-step.

    writer, replay, before, history, states: filled in only for checkpoints.
    """

    episode_seed: np.ndarray  # [lanes] reset seed of the current episode
    episode_step: np.ndarray  # [lanes]
    episode_return: np.ndarray  # [lanes]
    history: np.ndarray  # [sum of episode_step] actions of the current episodes, lane by lane; or
    states: np.ndarray  # [lanes, bytes] current states, if simulators can save states
    length: np.ndarray  # [] running estimate of the length of an episode
    episodes: np.ndarray  # []
    steps: np.ndarray  # [] lock-steps
    env_steps: np.ndarray  # []
    simulator_steps: np.ndarray  # [] made by searches
    restarts: np.ndarray  # [] faults of the simulator
    updates: np.ndarray  # []
    learner: Learner
    acting: Any  # parameters of the actors
    before: np.ndarray  # [lanes + 1, 2, H] recurrent states before the next roots
    writer: dict[str, np.ndarray]
    replay: dict[str, np.ndarray]
    stats: Stats
    health: Health


class Experience(NamedTuple):
    """The results of a lock-step of the lanes, `[lanes]`, and the sequences that it completed."""

    sequences: list[Packed]
    actions: np.ndarray
    reward: np.ndarray
    moved: np.ndarray  # lanes that made a step
    over: np.ndarray  # lanes whose episode ended with it
    episode_step: np.ndarray  # before it
    episode_return: np.ndarray  # before it
    health: Health  # of this lock-step
    next_seed: np.ndarray  # reset seeds of the next episodes
    simulations: int


class Program(Stage):
    """Trains and tests one seed of R2D2, over one pool of simulators.

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
        require(
            len(settings.seeds) == 1, "--seed", settings.seeds,
            f"one number for '{settings.agent}'; start a run for each",
        )  # fmt: skip
        agent, self.r2d2 = _filled_in(settings)
        settings = replace(settings, discount=self.r2d2.sequences.gamma)
        layout = Layout.of(simulators[0])
        beta_q, beta_a = (beta.start for beta in settings.betas)
        self.networks = Networks(
            (beta_q, beta_a), self.r2d2.network, self.r2d2.sequences, layout.num_actions,
            options or {},
        )  # fmt: skip
        shown = {name: shape for name, _, shape in layout.observation}
        self._shapes = Shapes(
            frame=shown["frames"][:2],
            state=(2, self.networks.hidden),
            actions=layout.num_actions,
            searched=agent.amortization_loss != "none",
        )
        self._new_replay()  # raises an error if it is too large, before any process starts
        super().__init__(settings, simulators, sources, agent=agent, plays=plays, **places)
        self.space = SPACES[self.r2d2.network.search_space]
        self._epsilon = epsilon_ladder(settings.lanes)
        self._counted = 0  # faults already included in `restarts`
        (self._device,) = jnp.zeros(()).devices()
        self._learning = ThreadPoolExecutor(1, "learn")
        self._start(self.networks.initial(jax.random.PRNGKey(settings.seeds[0])).params)

    def _new_replay(self) -> SequenceReplay:
        return SequenceReplay(self.r2d2.replay, blank(self.r2d2.sequences, self._shapes))

    def _start(self, params: Any) -> None:
        """Create empty recurrent states, sequence buffers and replay."""
        s, r = self.settings, self.r2d2
        self._recall = Recall(self.networks, params, s.lanes, s.budget)
        self._writer = Writer(r.sequences, self._shapes, s.lanes)
        self._replay = self._new_replay()

    def close(self) -> None:
        self._learning.shutdown()
        super().close()

    def evaluator(self, params: Any, lanes: int, budget: int) -> Recall:
        return Recall(self.networks, params, lanes, budget)

    def points(self, found: np.ndarray) -> np.ndarray:
        """Return the values of a search in game points."""
        rescaled = self.space == Space.TRANSFORMED
        return np.asarray(unscale(found.astype(np.float64))) if rescaled else found

    def begin(self) -> tuple[SequenceSeed]:
        """Return the state of the seed before its first lock-step."""
        s, state = self.settings, self._blank()
        self._start(state.acting)
        self._history[0] = [[] for _ in range(s.lanes)]
        state.episode_seed[:] = self._random(0, RESET, 0).integers(2**31, size=s.lanes)
        self._reset(0, np.ones(s.lanes, np.bool_), state.episode_seed, self._any_level())
        return (state,)

    def _any_level(self) -> np.ndarray:
        return np.full(self.settings.lanes, ANY_LEVEL, np.int32)

    def _blank(self) -> SequenceSeed:
        """Return the state of a seed whose lanes have not started."""
        lanes, none = self.settings.lanes, np.zeros((), np.int64)
        learner = self.networks.initial(jax.random.PRNGKey(self.settings.seeds[0]))
        return SequenceSeed(
            episode_seed=np.zeros(lanes, np.int64),
            episode_step=np.zeros(lanes, np.int32),
            episode_return=np.zeros(lanes, np.float32),
            history=np.zeros(0, np.int32),
            states=np.zeros((lanes, self.pool.layout.saved), np.uint8),
            length=np.ones((), np.float32),
            episodes=none,
            steps=none,
            env_steps=none,
            simulator_steps=none,
            restarts=none,
            updates=none,
            learner=learner,
            acting=learner.params,
            before=np.zeros((lanes + 1, 2, self.networks.hidden), np.float32),
            writer=Writer(self.r2d2.sequences, self._shapes, lanes).state(),
            replay=self._new_replay().state(),
            stats=no_stats(np),
            health=no_health(),
        )

    def template(self) -> Any:
        """Return names, shapes and dtypes of the arrays of a checkpoint; -1 is any length."""
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self._blank())
        replay = {
            name: x if name == "counters" else AnyLength(x.dtype) for name, x in one.replay.items()
        }
        writer = {**one.writer, "frame": AnyLength(np.uint8)}
        return (one._replace(history=AnyLength(np.int32), writer=writer, replay=replay),)

    def snapshot(self, state: tuple[SequenceSeed]) -> tuple[SequenceSeed]:
        """Return the state to write to a checkpoint."""
        return (
            state[0]._replace(
                history=self._past_actions(0),
                states=self._saved(0) if self.pool.layout.saved else state[0].states,
                before=np.asarray(self._recall.before),
                writer=self._writer.state(),
                replay=self._replay.state(),
            ),
        )

    def restore(self, state: tuple[SequenceSeed]) -> tuple[SequenceSeed]:
        """Return the state of a checkpoint, ready to continue.

        Replays its current episodes if simulators cannot save states.
        """
        (seed,) = state
        self._start(seed.acting)
        self._recall.before = jnp.asarray(seed.before)
        self._writer.restore(seed.writer)
        self._replay.restore(seed.replay)
        if self.pool.layout.saved:
            self._load(0, seed.states)
        else:
            wanted = self._any_level()
            self._play_again(0, seed.episode_seed, wanted, seed.episode_step, seed.history)
        learner, acting = jax.tree.map(jnp.asarray, (seed.learner, seed.acting))
        return (seed._replace(learner=learner, acting=acting, writer={}, replay={}),)

    def advance(self, state: tuple[SequenceSeed], step: int) -> tuple[SequenceSeed]:
        """Run a chunk of lock-steps after the first `step`; `state` must not be used again."""
        (seed,) = state
        if int(seed.episodes) < self.settings.episodes:
            for t in range(step, step + self.settings.chunk):
                learned = self._learning.submit(self._learn, seed, self._due(seed))
                seed = keep_types(seed, self._lock_step(seed, t))
                seed = keep_types(seed, self._take_in(seed, *learned.result()))
            restarts = seed.restarts + self.pool.faults[0] - self._counted
            self._counted = self.pool.faults[0]
            seed = keep_types(seed, seed._replace(restarts=restarts))
        return (seed,)

    def _lock_step(self, seed: SequenceSeed, step: int) -> SequenceSeed:
        if step % (self.r2d2.refresh or 1) == 0:
            seed = seed._replace(acting=seed.learner.params)
            self.acting(jax.tree.leaves(seed.acting))
        experience = self.act(0, seed, self._recall, step)
        return self.renew(0, self.absorb(seed, experience), experience, ANY_LEVEL)

    def acting(self, leaves: list[Any]) -> Recall:
        """Return the network with these parameters and the lanes' recurrent states, to act with."""
        self._recall.set_params(leaves)
        return self._recall

    def act(self, index: int, seed: SequenceSeed, recall: Recall, step: int) -> Experience:
        """Take a real step in all lanes, and complete sequences. Finished episodes stay at their
        end until `renew`.

        seed: the state of its lanes.
        """
        s, pool = self.settings, self.pool
        rng = self._random(index, ACT, step)
        search, lanes = self.searches[index], self._lanes(self._groups[index])
        seen, before = pool.observation(lanes), np.asarray(recall.before)[:-1]
        result, actions = self._decide(
            search, recall, self.agent.search, ~pool.lost[lanes], self._epsilon, rng,
            instead=(lambda: recall.root_q) if self.r2d2.discards else None,
        )  # fmt: skip
        found, explored = result.q_values.copy(), result.explored.copy()
        self._advance(index, actions)
        moved = (actions >= 0) & ~pool.lost[lanes]
        terminated = pool.arrays.terminated[lanes] & moved
        over = terminated | (pool.arrays.truncated[lanes] & moved)
        reward = np.where(moved, pool.arrays.reward[lanes], 0.0).astype(np.float32)
        searched = self._shapes.searched
        self._writer.drop(np.flatnonzero(~moved))
        finished = self._writer.add(
            Step(
                frame=seen["frames"][..., -1],
                previous_action=seen["action"],
                previous_reward=seen["reward"],
                action=np.maximum(actions, 0).astype(np.int32),
                reward=reward,
                discount=np.where(terminated, 0.0, 1.0).astype(np.float32),
                q_theta=recall.root_q,
                state=before,
                q_mcts=to_rescaled(found, self.r2d2.network.search_space) if searched else None,
            ),
            over,
            pool.observation(lanes)["frames"][..., -1],
        )
        self._writer.drop(np.flatnonzero(~moved))
        return Experience(
            sequences=[pack(sequence) for sequence in finished],
            actions=actions,
            reward=reward,
            moved=moved,
            over=over,
            episode_step=seed.episode_step,
            episode_return=seed.episode_return,
            health=Health(
                moved.sum(),
                explored[moved].sum(),
                (actions != recall.root_q.argmax(-1))[moved].sum(),
            ),
            next_seed=rng.integers(2**31, size=s.lanes),
            simulations=search.simulations,
        )

    def absorb(self, seed: SequenceSeed, experience: Experience, first: int = 0) -> SequenceSeed:
        """Add the experience of lanes to replay, and count it."""
        for sequence in experience.sequences:
            self._replay.add(sequence)
        counted = zip(seed.health, experience.health, strict=True)
        seed = seed._replace(
            episode_step=experience.episode_step,
            episode_return=experience.episode_return,
            health=Health(*(so_far + new for so_far, new in counted)),
        )
        seed = count_step(seed, experience.reward, experience.over, experience.moved, np)
        return seed._replace(
            env_steps=seed.env_steps + experience.moved.sum(),
            simulator_steps=seed.simulator_steps + experience.simulations,
        )

    def renew(
        self, index: int, seed: SequenceSeed, experience: Experience, level: int
    ) -> SequenceSeed:
        """Start new episodes in lanes whose episode is over or was lost; advance all lanes."""
        renewed, seeds = experience.over | ~experience.moved, experience.next_seed
        self._reset(index, renewed, seeds, np.full(len(seeds), level, np.int32))
        self._recall.go_on(renewed)
        if not self.pool.layout.saved:
            self._note(index, experience.actions, renewed)
        return seed._replace(
            episode_seed=np.where(renewed, seeds, seed.episode_seed),
            episode_step=np.where(renewed, 0, seed.episode_step).astype(np.int32),
            episode_return=np.where(renewed, 0.0, seed.episode_return).astype(np.float32),
        )

    def _due(self, seed: SequenceSeed) -> list[Drawn]:
        """Sample the batches of all updates that are due."""
        replay, settings, due = self._replay, self.r2d2.replay, []
        while len(replay) >= settings.minimum and replay.owed >= settings.batch:
            due.append(replay.draw(self._random(0, LEARN, int(seed.updates) + len(due))))
        return due

    def _learn(self, seed: SequenceSeed, due: list[Drawn]) -> tuple[Learner, list[Any]]:
        """Make updates on these batches; return the learner, and the metrics of each batch.

        Does not wait for the device.
        """
        learner, made, r = seed.learner, [], self.r2d2
        with jax.default_device(self._device):
            for number, drawn in enumerate(due, int(seed.updates) + 1):
                leaves, about = self.networks.update(
                    jax.tree.leaves((learner.params, learner.optimiser)),
                    jax.tree.leaves(learner.target),
                    to_batch(self._replay.unpack(drawn), r.sequences.gamma),
                )
                params, optimiser = jax.tree.unflatten(self.networks.structure, leaves)
                target = params if number % r.target_period == 0 else learner.target
                learner = Learner(params, target, optimiser)
                made.append((drawn, about))
        return learner, made

    def _take_in(self, seed: SequenceSeed, learner: Learner, made: list[Any]) -> SequenceSeed:
        """Wait for the updates, set the new priorities, and count."""
        for drawn, about in made:
            self._replay.update(drawn.serial, np.asarray(about["priorities"], np.float64))
            seed = count_updates(seed, 1, float(about["loss_q"]), float(about.get("loss_a", 0.0)))
        return seed._replace(learner=learner)

    def counters(self, state: tuple[SequenceSeed]) -> Counters:
        """Return the counters so far."""
        (seed,) = state
        names = [name for name in Counters._fields if name not in ("stats", "level", "health")]
        stats, health = jax.tree.map(lambda x: np.asarray(x)[None], (seed.stats, seed.health))
        return Counters(
            stats=stats,
            level=np.array([-1]),
            health=health,
            **{name: np.asarray(getattr(seed, name))[None] for name in names},
        )

    def forget_stats(self, state: tuple[SequenceSeed]) -> tuple[SequenceSeed]:
        return (state[0]._replace(stats=no_stats(np), health=no_health()),)

    def params(self, state: tuple[SequenceSeed]) -> list[Any]:
        """Return the parameters of the network."""
        return [state[0].learner.params]

    def player(self, params: Sequence[Any], sim: Simulator, budget: int) -> Player:
        """Return a player of a simulator that acts as in tests, and needs a test lane.

        It must see every state of an episode, from the first on.
        """
        search, recall = self.test_search(budget), self.evaluator(params[0], 1, budget)

        def move(state: State, rng: np.random.Generator) -> Move:
            result, action = self.decide_at(state, search, recall, rng)
            prior, explored = unscale(recall.root_q[0].astype(np.float64)), result.explored[0]
            values = RootValues(
                np.asarray(prior), self.points(result.q_values[0]), explored.copy(), action
            )
            after = make_move(sim, state, action, f"Q {values.searched[action]:.1f}")
            recall.go_on(np.array([after.over]))
            return after._replace(values=values)

        return move


def shows_frames(layout: Layout) -> bool:
    """Test whether observations are those of the recurrent network, see `networks.recurrent`."""
    shown = {name: shape for name, _, shape in layout.observation}
    return shown == {"frames": (SIZE, SIZE, STACK), "action": (), "reward": ()}


def _filled_in(settings: TrainSettings) -> tuple[Agent, R2D2Settings]:
    """Return the agent with the changes of its settings, and the settings with its defaults."""
    agent, given = get_agent(settings.agent), settings.r2d2
    if given.discards:
        agent = replace(agent, search=agent.test_search)
    ratio = given.replay.samples_per_insert or agent.samples_per_insert
    replay = replace(given.replay, samples_per_insert=ratio)
    return agent, replace(given, replay=replay, refresh=given.refresh or agent.refresh)
