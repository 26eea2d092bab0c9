"""Training on simulators for Python: trees on the host, states in worker processes.

A lock-step moves every lane by one real step and is followed by the updates that keep the replay
ratio, as in `training.device`, with which this shares agents, losses, schedules and the learner.
Every random number is drawn from the seed and the number of the lock-step, so a run does not depend
on how many workers simulate for it, and needs no generator in its checkpoints.

A lock-step's updates use what was replayed up to it, and acting in it uses the parameters from
before them. So both can go on at the same time: on a GPU the updates are handed over in pieces,
between the network's calls for the search, while the simulators work.

An episode in progress is written to a checkpoint as its seed and its actions: simulators are pure,
so playing them again leads to the same state.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import ACTS, Agent, get_agent
from save_rl.envs import ENVIRONMENTS
from save_rl.envs.pool import Pool, Source
from save_rl.envs.worker import ANY_LEVEL, Layout, exactly
from save_rl.errors import require
from save_rl.learning import host_replay
from save_rl.learning.curriculum import Bins, linear_level, no_bins, record
from save_rl.learning.exploration import epsilon_at_step
from save_rl.learning.host_replay import HostReplay
from save_rl.learning.replay import Transition
from save_rl.networks import network_maker
from save_rl.search.host import mix_noise_all
from save_rl.search.rules import Rule
from save_rl.search.simulators import LaneSearch
from save_rl.training.counters import Counters, Stats, count_step, count_updates, no_stats
from save_rl.training.host_acting import act_all
from save_rl.training.host_network import Network, Updates
from save_rl.training.learner import Learner, Learning
from save_rl.training.settings import TrainSettings
from save_rl.types import SearchResult, Simulator

_PIECES = 8  # of a lock-step's updates on a GPU: more take longer to hand over than to make
_ACT, _TEST, _RESET = 1, 2, 3  # streams of random numbers
MAX_TEST_STEPS = 1000  # in simulators that say no `max_steps` of their own


class HostSeed(NamedTuple):
    """Everything one seed carries from lock-step to lock-step, in NumPy arrays."""

    episode_seed: np.ndarray  # [lanes] what the episode in progress was reset with
    episode_wanted: np.ndarray  # [lanes] the level it was asked for, see `envs.worker.Arrays`
    episode_step: np.ndarray  # [lanes]
    episode_return: np.ndarray  # [lanes]
    history: np.ndarray  # [sum of episode_step] actions so far, lane after lane
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


class Program:
    """What trains and tests all seeds of one set of settings, over one pool of simulators.

    simulators: one per seed. sources: how worker processes make the same ones. test_lanes: lanes
    for tests, per seed. Without `train`, there are no others. What is learned does not depend on
    `workers` or `overlap`. options: of the compiler; there are some for a GPU. plays: the agent
    that searches and acts, where it is not the one that learns.
    """

    def __init__(
        self,
        settings: TrainSettings,
        simulators: Sequence[Simulator],
        sources: Sequence[Source] = (),
        *,
        workers: int = 0,
        timeout: float = 0.0,
        test_lanes: int = 0,
        train: bool = True,
        overlap: bool = True,
        warn: Callable[[str], None] | None = None,
        options: dict[str, str] | None = None,
        plays: Agent | None = None,
    ):
        self.settings = settings
        self.agent: Agent = get_agent(settings.agent)
        self._plays = plays or self.agent
        self._simulators, self._overlap = simulators, overlap
        halves = [settings.lanes - settings.lanes // 2, settings.lanes // 2] if train else []
        tests = [test_lanes - test_lanes // 2, test_lanes // 2]
        sizes = [
            (i, size) for i in range(len(simulators)) for size in (*halves, *tests) if size > 0
        ]
        used = sum(size > 0 for size in halves)
        per_seed = len(sizes) // len(simulators)
        first = range(0, len(sizes), per_seed)
        self._groups = [list(range(i, i + used)) for i in first]
        self._test_groups = [list(range(i + used, i + per_seed)) for i in first]
        seen = Layout.of(simulators[0]).example()
        make = network_maker(
            settings.network, seen, simulators[0], self.agent.prior == "policy",
            settings.mixed_precision,
        )  # fmt: skip
        self.learning = Learning(self.agent, settings, make)
        self.curriculum = _curriculum(settings, simulators[0])
        self.pool = Pool(
            simulators, sizes, workers=workers, sources=sources, timeout=timeout, warn=warn
        )
        masked = self.pool.layout.num_actions if self.pool.layout.masked else 0
        self.network = Network(self._plays, self.learning, masked, options or {})
        pieces = min(settings.updates_per_step, _PIECES) if options else 1
        while settings.updates_per_step % pieces:
            pieces -= 1
        self.updates = Updates(self.learning, masked, pieces, options or {})
        budget = settings.budget if self.agent.search is not None else 0
        self._searches = [LaneSearch(self.pool, g, budget, overlap) for g in self._groups if g]
        self._history: list[list[list[int]]] = [[] for _ in simulators]
        self._counted = [0] * len(simulators)  # faults that are in `restarts`

    def begin(self) -> tuple[HostSeed, ...]:
        """All seeds before their first lock-step."""
        return tuple(self._begin(i) for i in range(len(self._simulators)))

    def _begin(self, index: int) -> HostSeed:
        s, seed = self.settings, self.settings.seeds[index]
        state = self._blank(seed)
        self._history[index] = [[] for _ in range(s.lanes)]
        state.episode_seed[:] = self._random(index, _RESET, 0).integers(2**31, size=s.lanes)
        state.episode_wanted[:] = self._wanted(state)
        self._reset(index, np.ones(s.lanes, np.bool_), state.episode_seed, state.episode_wanted)
        return state

    def _wanted(self, seed: HostSeed) -> int:
        """The level that new episodes are asked for."""
        if self.curriculum == "linear":
            hardest = _hardest(self._simulators[0])
            return linear_level(int(seed.env_steps), self.settings.curriculum_steps, hardest)
        return int(seed.bins.level) if self.curriculum == "adaptive" else ANY_LEVEL

    def _blank(self, seed: int) -> HostSeed:
        """A seed whose lanes have not begun."""
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
        """Names, shapes and types of the arrays of a checkpoint; -1 is any length."""
        one = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self._blank(self.settings.seeds[0])
        )
        one = one._replace(history=_AnyLength())
        return tuple(one for _ in self._simulators)

    def snapshot(self, state: tuple[HostSeed, ...]) -> tuple[HostSeed, ...]:
        """What a checkpoint holds."""
        return tuple(
            seed._replace(history=np.array([a for lane in lanes for a in lane], np.int32))
            for seed, lanes in zip(state, self._history, strict=True)
        )

    def restore(self, state: tuple[HostSeed, ...]) -> tuple[HostSeed, ...]:
        """A state as a checkpoint gives it, ready to go on: its episodes are played again."""
        for index, seed in enumerate(state):
            ends = np.cumsum(seed.episode_step)
            histories = np.split(seed.history, ends[:-1])
            self._history[index] = [part.tolist() for part in histories]
            everywhere = np.ones(len(histories), np.bool_)
            self._reset(index, everywhere, seed.episode_seed, seed.episode_wanted)
            for t in range(int(seed.episode_step.max(initial=0))):
                actions = [part[t] if t < len(part) else -1 for part in histories]
                self._advance(index, np.array(actions))
        return tuple(
            seed._replace(learner=jax.tree.map(jnp.asarray, seed.learner)) for seed in state
        )

    def advance(self, state: tuple[HostSeed, ...], step: int) -> tuple[HostSeed, ...]:
        """A chunk of lock-steps; `step` were made before. What is given is used up."""
        after = []
        for index, seed in enumerate(state):
            if int(seed.episodes) < self.settings.episodes:
                made = 0
                for t in range(step, step + self.settings.chunk):
                    learns = int(seed.replay.added) >= self.settings.min_replay
                    made += learns * self.settings.updates_per_step
                    seed = _keep_types(seed, self._lock_step(index, seed, t, learns))
                losses, self.updates.losses = self.updates.losses, []
                loss_q, loss_a = np.sum(np.asarray(losses, np.float32).reshape(-1, 2), 0)
                restarts = seed.restarts + self.pool.faults[index] - self._counted[index]
                self._counted[index] = self.pool.faults[index]
                counted = count_updates(seed, made, loss_q, loss_a)._replace(restarts=restarts)
                seed = _keep_types(seed, counted)
            after.append(seed)
        return tuple(after)

    def counters(self, state: tuple[HostSeed, ...]) -> Counters:
        """What has been done so far."""

        def stacked(*values: Any) -> np.ndarray:
            return np.stack([np.asarray(value) for value in values])

        return Counters(
            stats=jax.tree.map(stacked, *(seed.stats for seed in state)),
            level=np.array([self._wanted(seed) for seed in state]),
            **{
                name: stacked(*(getattr(seed, name) for seed in state))
                for name in Counters._fields
                if name not in ("stats", "level")
            },
        )

    def forget_stats(self, state: tuple[HostSeed, ...]) -> tuple[HostSeed, ...]:
        return tuple(seed._replace(stats=no_stats(np)) for seed in state)

    def params(self, state: tuple[HostSeed, ...]) -> list[Any]:
        """Parameters of the networks, by seed."""
        return [seed.learner.params for seed in state]

    def close(self) -> None:
        """End the workers."""
        self.pool.close()

    def _random(self, index: int, stream: int, *number: int) -> np.random.Generator:
        return np.random.default_rng((self.settings.seeds[index], stream, *number))

    def _lanes(self, groups: list[int]) -> np.ndarray:
        """Lanes of neighbouring groups; what is read with these numbers is a copy."""
        return np.arange(self.pool.groups[groups[0]].low, self.pool.groups[groups[-1]].high)

    def _reset(self, index: int, which: np.ndarray, seeds: np.ndarray, wanted: np.ndarray) -> None:
        """Begin episodes in some training lanes."""
        start = self._lanes(self._groups[index])[0]
        for group in self._groups[index]:
            lanes = self.pool.groups[group].lanes
            mine = lanes[which[lanes - start]]
            if len(mine):
                self.pool.reset(group, mine, seeds[mine - start], wanted[mine - start])

    def _advance(self, index: int, actions: np.ndarray) -> None:
        """A real step of the training lanes; -1 leaves a lane where it is."""
        start = self._lanes(self._groups[index])[0]
        for group in self._groups[index]:
            self.pool.advance(group, actions[self.pool.groups[group].lanes - start])
        for group in self._groups[index]:
            self.pool.receive(group)

    def _decide(
        self, search: LaneSearch, params: Any, rule: Rule | None, active: np.ndarray,
        epsilon: np.ndarray, rng: np.random.Generator, noise: float = 0.0,
    ) -> tuple[SearchResult, np.ndarray]:  # fmt: skip
        """Search from where the lanes stand, and choose; ε below 0 means test."""
        s, agent = self.settings, self._plays
        evaluate = self.network.with_params(params)
        ties, luck, rest = rng.integers(2**32, size=(3, len(active)), dtype=np.uint32)
        if rule is None or search.budget == 0:
            prior = search.priors(evaluate, active)
            visits = np.zeros(prior.shape, np.int32)
            result = SearchResult(prior, visits, visits > 0)
        else:

            def mix(priors: np.ndarray, lanes: np.ndarray) -> None:
                mix_noise_all(rest[lanes], noise, priors)

            result = search.run(
                evaluate,
                rule=rule,
                c=s.c,
                discount=s.discount,
                seeds=ties,
                lanes=active,
                noise=mix if noise > 0 else None,
            )
        active = active & ~self.pool.lost[search.low : search.high]
        actions = np.full(len(active), -1, np.int64)
        act_all(
            np.flatnonzero(active), luck, search.budget > 0, ACTS.index(agent.act), s.c, epsilon,
            result.q_values, result.visits, actions,
        )  # fmt: skip
        return result, actions

    def _lock_step(self, index: int, seed: HostSeed, step: int, learns: bool) -> HostSeed:
        s, agent, pool = self.settings, self.agent, self.pool
        rng = self._random(index, _ACT, step)
        search, lanes = self._searches[index], self._lanes(self._groups[index])
        if learns:
            sampled = host_replay.sample(seed.replay, rng, (s.updates_per_step, s.batch))
            self.updates.begin(seed.learner, sampled, seed.episodes)
            self.network.meanwhile = self.updates.go_on
        before = pool.observation(lanes), pool.arrays.mask[lanes]
        epsilon = epsilon_at_step(s.epsilon.at(seed.episodes), seed.episode_step, seed.length)
        result, actions = self._decide(
            search, seed.learner.params, agent.search, ~pool.lost[lanes], epsilon, rng,
            agent.root_noise,
        )  # fmt: skip
        self.network.meanwhile = None
        if learns:
            seed = seed._replace(learner=self.updates.finish(step))
        self._advance(index, actions)
        moved = (actions >= 0) & ~pool.lost[lanes]
        terminated = pool.arrays.terminated[lanes] & moved
        over = terminated | (pool.arrays.truncated[lanes] & moved)
        reward = np.where(moved, pool.arrays.reward[lanes], 0.0).astype(np.float32)
        transitions = Transition(
            observation=before[0],
            action=actions.astype(np.int32),
            reward=reward,
            discount=np.where(terminated, 0.0, s.discount).astype(np.float32),
            next_observation=pool.observation(lanes),
            target=_target(agent, result),
            mask=np.packbits(before[1], -1),
            next_mask=np.packbits(np.where(terminated[:, None], True, pool.arrays.mask[lanes]), -1),
        )
        host_replay.add(
            seed.replay, transitions, moved, over, s.discount, agent.value_loss == "return"
        )
        seed = self._count_levels(seed, lanes, over, reward)
        seed = count_step(seed, reward, over, moved, np)
        renewed = over | ~moved
        seeds = rng.integers(2**31, size=s.lanes)
        wanted = np.where(renewed, self._wanted(seed), seed.episode_wanted).astype(np.int32)
        self._reset(index, renewed, seeds, wanted)
        seed = seed._replace(
            episode_wanted=wanted,
            episode_seed=np.where(renewed, seeds, seed.episode_seed),
            episode_step=np.where(renewed, 0, seed.episode_step).astype(np.int32),
            episode_return=np.where(renewed, 0.0, seed.episode_return).astype(np.float32),
            env_steps=seed.env_steps + moved.sum(),
            simulator_steps=seed.simulator_steps + search.simulations,
        )
        for history, action, new in zip(
            self._history[index], actions.tolist(), renewed.tolist(), strict=True
        ):
            if new:
                history.clear()
            else:
                history.append(action)
        return seed

    def _count_levels(
        self, seed: HostSeed, lanes: np.ndarray, over: np.ndarray, reward: np.ndarray
    ) -> HostSeed:
        """Episodes of the present level that have just ended; an adaptive curriculum may rise."""
        if self.curriculum == "none" or not over.any():
            return seed
        arrays, stats = self.pool.arrays, seed.stats
        at_level = over & (arrays.level[lanes] == self._wanted(seed))
        seed = seed._replace(
            stats=stats._replace(
                level_episodes=stats.level_episodes + at_level.sum(),
                level_return_sum=stats.level_return_sum
                + (seed.episode_return + reward)[at_level].sum(),
            )
        )
        if self.curriculum == "adaptive":
            kinds, solved = arrays.kind[lanes][over], arrays.solved[lanes][over]
            hardest = _hardest(self._simulators[0])
            seed = seed._replace(bins=record(seed.bins, kinds, solved, hardest))
        return seed

    def play(
        self, params: Sequence[Any], episodes: int, budget: int, number: int,
        level: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Returns and lengths `[seeds, episodes]` of test episodes; `number` draws them.

        level: where there is a curriculum, the level of the episodes; default the hardest.
        """
        wanted = ANY_LEVEL
        if level is not None:
            require(
                has_levels(self._simulators[0]), "--level", level,
                "left out in an environment without levels",
            )  # fmt: skip
            hardest = _hardest(self._simulators[0])
            require(0 <= level <= hardest, "--level", level, f"from 0 to {hardest}")
            wanted = exactly(level)
        elif self.curriculum != "none":
            wanted = exactly(_hardest(self._simulators[0]))
        played = [
            self._play(i, seed, episodes, budget, number, wanted) for i, seed in enumerate(params)
        ]
        return np.stack([returns for returns, _ in played]), np.stack([n for _, n in played])

    def _play(
        self, index: int, params: Any, episodes: int, budget: int, number: int, wanted: int
    ) -> tuple[np.ndarray, np.ndarray]:
        pool, groups = self.pool, self._test_groups[index]
        search, lanes = LaneSearch(pool, groups, budget, self._overlap), self._lanes(groups)
        limit = getattr(self._simulators[index], "max_steps", MAX_TEST_STEPS)
        returns, steps = np.zeros(episodes), np.zeros(episodes, np.int64)
        size = len(lanes)
        episode = np.arange(size)  # that each lane plays; the number of episodes where none is left
        episode[episode >= episodes] = episodes
        begun = int(np.count_nonzero(episode < episodes))
        fresh = episode < episodes
        greedy = np.full(size, -1.0)
        t = 0
        while np.any(episode < episodes):
            rng = self._random(index, _TEST, number, t)
            seeds = rng.integers(2**31, size=size)
            for group in groups:
                mine = pool.groups[group].lanes
                mine = mine[fresh[mine - lanes[0]]]
                if len(mine):
                    pool.reset(group, mine, seeds[mine - lanes[0]], wanted)
            active = (episode < episodes) & ~pool.lost[lanes]
            _, actions = self._decide(search, params, self._plays.test_search, active, greedy, rng)
            for group in groups:
                pool.advance(group, actions[pool.groups[group].lanes - lanes[0]])
            for group in groups:
                pool.receive(group)
            moved = (actions >= 0) & ~pool.lost[lanes]
            at = episode[moved]
            returns[at] += pool.arrays.reward[lanes][moved]
            steps[at] += 1
            over = np.zeros(size, np.bool_)
            over[moved] = (
                pool.arrays.terminated[lanes] | pool.arrays.truncated[lanes]
            )[moved] | (steps[at] >= limit)  # fmt: skip
            fresh = ~moved & (episode < episodes)  # failed: played again, with another start
            returns[episode[fresh]], steps[episode[fresh]] = 0.0, 0
            for lane in np.flatnonzero(over):
                episode[lane] = min(begun, episodes)
                fresh[lane] = begun < episodes
                begun += 1
            t += 1
        return returns, steps


def _hardest(simulator: Any) -> int:
    """The level that a curriculum ends at."""
    return int(simulator.difficulty)


def has_levels(simulator: Any) -> bool:
    """Whether a curriculum can ask a simulator for levels."""
    number = isinstance(getattr(simulator, "difficulty", None), int)
    return number and bool(getattr(simulator, "curriculum_sample", False))


def _curriculum(settings: TrainSettings, simulator: Simulator) -> str:
    """How levels rise in this run."""
    name = settings.curriculum
    if name == "auto":
        entry = ENVIRONMENTS.get(settings.env)
        return entry.curriculum if entry and has_levels(simulator) else "none"
    require(
        name == "none" or has_levels(simulator), "--curriculum", repr(name),
        "'none' in an environment without levels to sample from",
    )  # fmt: skip
    require(
        name != "adaptive" or hasattr(simulator, "solved"), "--curriculum", repr(name),
        "'none' or 'linear' in a simulator without kind(state) and solved(state)",
    )  # fmt: skip
    return name


def _keep_types(before: HostSeed, after: HostSeed) -> HostSeed:
    """`after` with numbers of the types that a checkpoint holds."""
    rest = {"learner": None, "replay": None, "bins": None}
    kept = jax.tree.map(
        lambda old, new: np.asarray(new, old.dtype), before._replace(**rest), after._replace(**rest)
    )
    return kept._replace(learner=after.learner, replay=after.replay, bins=after.bins)


class _AnyLength:
    """Stands for an array of int32 of any length in a template."""

    shape, dtype = (-1,), np.dtype(np.int32)


def _target(agent: Agent, result: SearchResult) -> np.ndarray:
    """What the search's result is regressed to, `[lanes, A]`; no actions where nothing is."""
    if agent.amortization_loss == "none":
        return np.zeros((len(result.visits), 0), np.float32)
    if agent.amortization_loss == "visits":
        total = np.maximum(result.visits.sum(-1, keepdims=True), 1)
        return (result.visits / total).astype(np.float32)
    return np.asarray(result.q_values, np.float32)
