"""Acting in lanes of simulators: resets, searches, real steps, tests.

Learning is up to the programs built on this: from transitions in `training.host`, from sequences in
`training.r2d2`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from save_rl.agents import ACTS, Agent, get_agent
from save_rl.envs import ENVIRONMENTS
from save_rl.envs.pool import Pool, Source
from save_rl.envs.worker import ANY_LEVEL, exactly
from save_rl.errors import require
from save_rl.search.host import mix_noise_all
from save_rl.search.rules import Rule, Space
from save_rl.search.simulators import Evaluate, LaneSearch
from save_rl.training.host_acting import act_all
from save_rl.training.settings import TrainSettings
from save_rl.training.trainer import MAX_TEST_STEPS
from save_rl.types import SearchResult, Simulator, State

ACT, TEST, RESET, LEARN = 1, 2, 3, 4  # streams of random numbers


class Memory(Protocol):
    """An `Evaluate` with a recurrent state per lane."""

    def go_on(self, fresh: np.ndarray) -> None:
        """Advance all lanes by a step; those that are `fresh` `[lanes]` start an episode next."""
        ...


class Stage(ABC):
    """The pool of simulators of all seeds of one set of settings, and an agent acting in it.

    simulators: one per seed. sources: from which worker processes make the same ones. test_lanes:
    lanes for tests, per seed. train: false leaves out the training lanes. Results do not depend on
    `workers` or `overlap`. groups: number of groups of a seed's lanes, see `search.simulators`.
    agent: that learns; default the agent of the settings. plays: that searches and acts; default
    the agent that learns.
    """

    space = Space.PLAIN  # units in which searches average
    test_batch: int | None = None  # test lanes take episodes until all are played

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
        groups: int = 2,
        warn: Callable[[str], None] | None = None,
        agent: Agent | None = None,
        plays: Agent | None = None,
    ):
        self.settings = settings
        self.agent: Agent = agent or get_agent(settings.agent)
        self._plays = plays or self.agent
        self._simulators, self._overlap = simulators, overlap
        trains = _parts(settings.lanes if train else 0, groups)
        tests = _parts(test_lanes, groups)
        sizes = [(i, size) for i in range(len(simulators)) for size in (*trains, *tests)]
        used = len(trains)
        per_seed = len(sizes) // len(simulators)
        first = range(0, len(sizes), per_seed)
        self._groups = [list(range(i, i + used)) for i in first]
        self._test_groups = [list(range(i + used, i + per_seed)) for i in first]
        self.curriculum = _curriculum(settings, simulators[0])
        self.pool = Pool(
            simulators, sizes, workers=workers, sources=sources, timeout=timeout, warn=warn
        )
        budget = settings.budget if self.agent.search is not None else 0
        self.searches = [LaneSearch(self.pool, g, budget, overlap) for g in self._groups if g]
        self._history = [[[] for _ in range(settings.lanes)] for _ in simulators]

    @abstractmethod
    def evaluator(self, params: Any, lanes: int, budget: int) -> Evaluate:
        """Return a function that evaluates states with these parameters, for this many lanes."""

    def close(self) -> None:
        """End the workers."""
        self.pool.close()

    def _random(self, index: int, stream: int, *number: int) -> np.random.Generator:
        return np.random.default_rng((self.settings.seeds[index], stream, *number))

    def _lanes(self, groups: list[int]) -> np.ndarray:
        """Return the lanes of adjacent groups; indexing with them makes a copy."""
        return np.arange(self.pool.groups[groups[0]].low, self.pool.groups[groups[-1]].high)

    def _reset(self, index: int, which: np.ndarray, seeds: np.ndarray, wanted: np.ndarray) -> None:
        """Start episodes in some training lanes."""
        self._begin_episodes(self._groups[index], which, seeds, wanted)

    def _begin_episodes(
        self, groups: list[int], which: np.ndarray, seeds: np.ndarray, wanted: np.ndarray
    ) -> None:
        """Start episodes in some lanes of adjacent groups; arguments `[lanes of the groups]`."""
        start, asked = self._lanes(groups)[0], []
        for group in groups:
            lanes = self.pool.groups[group].lanes
            mine = lanes[which[lanes - start]]
            if len(mine):
                at = mine - start
                self.pool.reset(group, mine, seeds[at], wanted[at], wait=False)
                asked.append(group)
        for group in asked:
            self.pool.receive(group)

    def _advance(self, index: int, actions: np.ndarray) -> None:
        """Take a real step in the training lanes; action -1 skips a lane."""
        start = self._lanes(self._groups[index])[0]
        for group in self._groups[index]:
            self.pool.advance(group, actions[self.pool.groups[group].lanes - start])
        for group in self._groups[index]:
            self.pool.receive(group)

    def _note(self, index: int, actions: np.ndarray, renewed: np.ndarray) -> None:
        """Record the actions of running episodes, and clear those of lanes that start another."""
        lanes = zip(self._history[index], actions.tolist(), renewed.tolist(), strict=True)
        for history, action, new in lanes:
            if new:
                history.clear()
            else:
                history.append(action)

    def _past_actions(self, index: int) -> np.ndarray:
        """Return the actions of the current episodes, lane by lane."""
        return np.array([a for lane in self._history[index] for a in lane], np.int32)

    def _play_again(
        self, index: int, seeds: np.ndarray, wanted: np.ndarray, steps: np.ndarray,
        actions: np.ndarray,
    ) -> None:  # fmt: skip
        """Replay the current episodes of the training lanes: simulators are pure.

        seeds, wanted: `[lanes]` reset seeds and requested levels. steps: `[lanes]` lengths of the
        episodes. actions: `[sum of steps]`, lane by lane.
        """
        histories = [part.tolist() for part in np.split(actions, np.cumsum(steps)[:-1])]
        self._history[index] = histories
        self._reset(index, np.ones(len(histories), np.bool_), seeds, wanted)
        for t in range(int(steps.max(initial=0))):
            now = [part[t] if t < len(part) else -1 for part in histories]
            self._advance(index, np.array(now))

    def _saved(self, index: int) -> np.ndarray:
        """Return the saved states of the training lanes, `[lanes, bytes]`, with 0 bytes if
        simulators cannot save states."""
        return np.concatenate([self.pool.save(group) for group in self._groups[index]])

    def _load(self, index: int, saved: np.ndarray) -> None:
        """Restore the states of the training lanes that `_saved` returned."""
        start = self._lanes(self._groups[index])[0]
        for group in self._groups[index]:
            self.pool.load(group, saved[self.pool.groups[group].lanes - start])

    def _decide(
        self, search: LaneSearch, evaluate: Evaluate, rule: Rule | None, active: np.ndarray,
        epsilon: np.ndarray, rng: np.random.Generator, noise: float = 0.0,
        instead: Callable[[], np.ndarray] | None = None,
    ) -> tuple[SearchResult, np.ndarray]:  # fmt: skip
        """Search from the current states of the lanes, and choose actions; ε below 0 means test.

        instead: returns values `[lanes, A]` to act on instead of the search's result.
        """
        s, agent = self.settings, self._plays
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
                space=self.space,
            )
        if instead is not None:
            visits = np.zeros_like(result.visits)
            result = SearchResult(instead(), visits, visits > 0)
        active = active & ~self.pool.lost[search.low : search.high]
        actions = np.full(len(active), -1, np.int64)
        act_all(
            np.flatnonzero(active), luck, search.budget > 0, ACTS.index(agent.act), s.c, epsilon,
            result.q_values, result.visits, actions,
        )  # fmt: skip
        return result, actions

    def play(
        self, params: Sequence[Any], episodes: int, budget: int, number: int,
        level: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Play test episodes; return their returns and lengths `[seeds, episodes]`.

        number: of this test, part of the random seed. level: of the episodes, in environments with
        levels; with a curriculum, the default is the hardest.
        """
        wanted = ANY_LEVEL
        if level is not None:
            require(
                has_levels(self._simulators[0]), "--level", level,
                "left out in an environment without levels",
            )  # fmt: skip
            hardest = hardest_level(self._simulators[0])
            require(0 <= level <= hardest, "--level", level, f"from 0 to {hardest}")
            wanted = exactly(level)
        elif self.curriculum != "none":
            wanted = exactly(hardest_level(self._simulators[0]))
        played = [
            self._play(i, seed, episodes, budget, number, wanted) for i, seed in enumerate(params)
        ]
        return np.stack([returns for returns, _ in played]), np.stack([n for _, n in played])

    def decide_at(
        self, state: State, search: LaneSearch, evaluate: Evaluate, rng: np.random.Generator
    ) -> tuple[SearchResult, int]:
        """Run a test search from a state, in one lane; return its result and the action.

        Needs `workers=0`: states live in the workers.
        """
        self.pool.place(search.low, state)
        result, actions = self._decide(
            search, evaluate, self._plays.test_search, np.ones(1, np.bool_), np.full(1, -1.0), rng
        )
        return result, int(actions[0])

    def test_search(self, budget: int, index: int = 0) -> LaneSearch:
        """Return a search over the test lanes of a seed."""
        return LaneSearch(self.pool, self._test_groups[index], budget, self._overlap)

    def _play(
        self, index: int, params: Any, episodes: int, budget: int, number: int, wanted: int
    ) -> tuple[np.ndarray, np.ndarray]:
        pool, groups = self.pool, self._test_groups[index]
        search, lanes = self.test_search(budget, index), self._lanes(groups)
        limit = getattr(self._simulators[index], "max_steps", MAX_TEST_STEPS)
        returns, steps = np.zeros(episodes), np.zeros(episodes, np.int64)
        size = len(lanes)
        episode = np.arange(size)  # index of each lane's episode; `episodes` if none is left
        episode[episode >= episodes] = episodes
        begun = int(np.count_nonzero(episode < episodes))
        fresh = episode < episodes
        greedy = np.full(size, -1.0)
        evaluate, t = self.evaluator(params, size, budget), 0
        go_on = getattr(evaluate, "go_on", None)  # of a `Memory`
        while np.any(episode < episodes):
            rng = self._random(index, TEST, number, t)
            seeds = rng.integers(2**31, size=size)
            self._begin_episodes(groups, fresh, seeds, np.full(size, wanted))
            active = (episode < episodes) & ~pool.lost[lanes]
            _, actions = self._decide(
                search, evaluate, self._plays.test_search, active, greedy, rng
            )
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
            fresh = ~moved & (episode < episodes)  # failed: play again from another start
            returns[episode[fresh]], steps[episode[fresh]] = 0.0, 0
            for lane in np.flatnonzero(over):
                episode[lane] = min(begun, episodes)
                fresh[lane] = begun < episodes
                begun += 1
            if go_on is not None:
                go_on(fresh)
            t += 1
        return returns, steps


def _parts(lanes: int, groups: int) -> list[int]:
    """Return the sizes of this many groups of lanes, or of fewer if there are fewer lanes."""
    sizes = [lanes // groups + (i < lanes % groups) for i in range(groups)]
    return [size for size in sizes if size > 0]


def hardest_level(simulator: Any) -> int:
    """Return the last level of a curriculum."""
    return int(simulator.difficulty)


def has_levels(simulator: Any) -> bool:
    """Test whether a curriculum can set the level of a simulator."""
    number = isinstance(getattr(simulator, "difficulty", None), int)
    return number and bool(getattr(simulator, "curriculum_sample", False))


def _curriculum(settings: TrainSettings, simulator: Simulator) -> str:
    """Return the kind of curriculum of this run."""
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
