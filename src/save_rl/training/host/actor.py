"""The actor: lanes of simulators of all seeds, searches in them, real steps and tests.

Arrays of lanes are `[seeds, lanes]`. A group of the pool holds a share of every seed's lanes, so
every message and every call of the network serves all seeds. All random numbers derive from the
seed and the number of the lock-step, so results do not depend on workers or groups, and a seed's
lanes don't depend on those of other seeds (but for which of equal actions get slots).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from save_rl.agents import ACTS, Agent
from save_rl.envs.layout import Layout
from save_rl.envs.pool import Group, Source
from save_rl.envs.worker import ANY_LEVEL, exactly
from save_rl.errors import require
from save_rl.search import rules
from save_rl.search.noise import mix_noise_all
from save_rl.search.rules import Rule, Space
from save_rl.search.simulators import Evaluator, LaneSearch, Roots
from save_rl.search.tree_lanes import SEATS, is_shallow, slots_for, tree_pool
from save_rl.training.host import acting
from save_rl.training.host.acting import act_all
from save_rl.training.host.levels import curriculum_of, hardest_level, has_levels
from save_rl.training.settings import TrainSettings
from save_rl.training.trainer import MAX_TEST_STEPS
from save_rl.types import Simulator, State

ACT, TEST, RESET, LEARN = 1, 2, 3, 4  # streams of random numbers
_FOR_ALL = ("threshold", "ucb", "softmax")  # kinds of final actions that look at every action


class StatefulEvaluator(Protocol):
    """An `Evaluator` with a recurrent state per lane, such as `r2d2.network.RecurrentEvaluator`."""

    def commit_step(self, fresh: np.ndarray) -> None:
        """Advance all lanes by a step; those that are `fresh` `[lanes]` start an episode next."""
        ...


class GroupedLanes(NamedTuple):
    """The lanes `[seeds, lanes]` of some adjacent groups of a pool."""

    groups: list[int]
    lanes: np.ndarray  # numbered as in the pool

    @property
    def low(self) -> int:
        return int(self.lanes.min()) if self.lanes.size else 0

    def in_order(self, values: np.ndarray) -> np.ndarray:
        """Return values `[seeds, lanes, ...]` in the order of the pool, `[n, ...]`."""
        ordered = np.empty((self.lanes.size, *values.shape[2:]), values.dtype)
        ordered[self.lanes - self.low] = values
        return ordered

    def by_seed(self, ordered: np.ndarray) -> np.ndarray:
        """Return values in the order of the pool as `[seeds, lanes, ...]`."""
        return ordered[self.lanes - self.low]

    def part(self, group: Group) -> slice:
        """Return where the lanes of a group are in that order."""
        return slice(group.low - self.low, group.high - self.low)


class Episodes(NamedTuple):
    """The episodes of lanes `[seeds, lanes]`. With chance, the luck of a step follows from these,
    so that an episode can be played again."""

    seeds: np.ndarray  # of their resets
    steps: np.ndarray  # that they have made


class LaneDecisions(NamedTuple):
    """Chosen actions, and what they were chosen from. -1 where a lane is lost or does not act."""

    actions: np.ndarray  # [seeds, lanes]
    roots: Roots  # in the order of the pool; the next search overwrites them
    allowed: np.ndarray  # [seeds, lanes, bytes] actions before the search, as bits
    simulations: np.ndarray  # [seeds]


class Actor:
    """The pool of simulators of all seeds of one set of settings, and an agent acting in it.

    simulators: one per seed. sources: from which worker processes make the same ones. plays: the
    agent that searches and acts. lanes, test_lanes: per seed; 0 for none. groups: number of groups
    of the lanes, see `search.simulators`. slots: per node, see `slots_of`; 0 for one per action.
    space: units in which searches average. own: numbers of this actor among several, part of its
    random seeds.
    """

    def __init__(
        self,
        settings: TrainSettings,
        simulators: Sequence[Simulator],
        sources: Sequence[Source] = (),
        *,
        plays: Agent,
        lanes: int,
        test_lanes: int = 0,
        slots: int = 0,
        groups: int = 2,
        workers: int = 0,
        timeout: float = 0.0,
        warn: Callable[[str], None] | None = None,
        space: Space = Space.PLAIN,
        own: tuple[int, ...] = (),
    ):
        self.settings, self.plays, self.space = settings, plays, space
        self.simulators, self._own = simulators, own
        self.curriculum = curriculum_of(settings, simulators[0])
        train, test = _parts(lanes, groups), _parts(test_lanes, groups)
        self.pool = tree_pool(
            simulators, [*train, *test], slots, workers=workers, sources=sources, timeout=timeout,
            seats=seats_of(plays, settings.budget, slots or simulators[0].num_actions),
            warn=warn,
        )  # fmt: skip
        acting.compile_ahead()  # while workers compile theirs
        self.places = self._places(0, train)
        self.test_places = self._places(len(train), test)
        self.history: Any = np.zeros((len(simulators), lanes, 16), np.int32)
        """Actions of the current episodes, `[seeds, lanes, at least as many as steps]`."""
        self.on_episodes: Callable[[int], None] | None = None
        """Called after every step of `play` with the number of episodes finished so far."""

    def _places(self, first: int, sizes: list[int]) -> GroupedLanes:
        blocks = [
            np.arange(*self.pool.groups[group]).reshape(-1, size)
            for group, size in enumerate(sizes, first)
        ]
        none = np.zeros((len(self.simulators), 0), np.int64)
        groups = list(range(first, first + len(sizes)))
        return GroupedLanes(groups, np.concatenate([none, *blocks], 1))

    def close(self) -> None:
        """End the workers."""
        self.pool.close()

    def random(self, index: int, stream: int, *number: int) -> np.random.Generator:
        """Return the random numbers of a seed for one purpose."""
        return np.random.default_rng((self.settings.seeds[index], stream, *number, *self._own))

    def each(self, stream: int, *number: int) -> list[np.random.Generator]:
        """Return `random` of every seed."""
        return [self.random(index, stream, *number) for index in range(len(self.simulators))]

    def searches(self, budget: int) -> LaneSearch | None:
        """Return a search over the training lanes."""
        return LaneSearch(self.pool, self.places.groups, budget) if self.places.groups else None

    def reset(
        self, which: np.ndarray, seeds: np.ndarray, wanted: np.ndarray,
        places: GroupedLanes | None = None,
    ) -> None:  # fmt: skip
        """Start episodes in some lanes; arguments `[seeds, lanes]`."""
        pool, places = self.pool, places or self.places
        ordered = [places.in_order(x) for x in (which, seeds, wanted)]
        asked = []
        for group in places.groups:
            low, mine = pool.groups[group].low, places.part(pool.groups[group])
            at = np.flatnonzero(ordered[0][mine])
            if len(at):
                pool.reset(group, low + at, ordered[1][mine][at], ordered[2][mine][at], wait=False)
                asked.append(group)
        for group in asked:
            pool.receive(group)

    def advance(self, actions: np.ndarray, episodes: Episodes) -> np.ndarray:
        """Take a real step in the training lanes; -1 skips one. Return those that moved.

        actions: `[seeds, lanes]`.
        """
        places = self.places
        ordered, luck = places.in_order(actions), places.in_order(luck_of(*episodes))
        for group in places.groups:
            mine = places.part(self.pool.groups[group])
            self.pool.advance(group, ordered[mine], luck[mine])
        return self.arrive(actions, places)

    def arrive(self, actions: np.ndarray, places: GroupedLanes) -> np.ndarray:
        """Wait for the real steps of all lanes; return those that moved, `[seeds, lanes]`."""
        for group in places.groups:
            self.pool.receive(group)
        return (actions >= 0) & ~self.pool.lost[places.lanes]

    def note(self, actions: np.ndarray, steps: np.ndarray) -> None:
        """Record the actions `[seeds, lanes]` that step number `steps` of the episodes took."""
        if steps.max(initial=0) >= self.history.shape[2]:
            self.history = np.concatenate([self.history, np.zeros_like(self.history)], 2)
        np.put_along_axis(self.history, steps[..., None], actions[..., None], 2)

    def past_actions(self, steps: np.ndarray) -> np.ndarray:
        """Return the actions of episodes that have made this many steps `[seeds, lanes]`, one
        after the other."""
        return self.history[np.arange(self.history.shape[2]) < steps[..., None]]

    def play_again(
        self, seeds: np.ndarray, wanted: np.ndarray, steps: np.ndarray, actions: np.ndarray
    ) -> None:
        """Replay the current episodes of the training lanes: simulators are pure.

        seeds, wanted: `[seeds, lanes]` reset seeds and requested levels. steps: `[seeds, lanes]`
        lengths of the episodes. actions: of `past_actions`.
        """
        longest = int(steps.max(initial=0))
        self.history = np.full((*steps.shape, max(16, longest)), -1, np.int32)
        self.history[np.arange(self.history.shape[2]) < steps[..., None]] = actions
        self.reset(np.ones(steps.shape, np.bool_), seeds, wanted)
        for t in range(longest):
            again = np.where(t < steps, self.history[..., t], -1)
            self.advance(again, Episodes(seeds, np.full_like(steps, t)))

    def saved(self) -> np.ndarray:
        """Return the saved states of the training lanes, `[seeds, lanes, bytes]`, with 0 bytes if
        simulators cannot save states."""
        if self.pool.layout.saved == 0:
            return np.zeros((*self.places.lanes.shape, 0), np.uint8)
        parts = [self.pool.save(group) for group in self.places.groups]
        return self.places.by_seed(np.concatenate(parts))

    def load(self, saved: np.ndarray) -> None:
        """Restore the states of the training lanes that `saved` returned."""
        ordered = self.places.in_order(saved)
        for group in self.places.groups:
            self.pool.load(group, ordered[self.places.part(self.pool.groups[group])])

    def act(
        self, search: LaneSearch, evaluate: Evaluator, rule: Rule | None, places: GroupedLanes,
        active: np.ndarray, epsilon: np.ndarray, random: Sequence[np.random.Generator],
        episodes: Episodes | None = None, noise: float = 0.0,
        instead: Callable[[], np.ndarray] | None = None,
    ) -> LaneDecisions:  # fmt: skip
        """Search from the current states of the lanes, choose actions, and begin the real steps.

        A group begins its step as soon as its own search is done, while others are still searched;
        `arrive` waits for the steps of all. Without `episodes`, no step is taken.

        active, epsilon: `[seeds, lanes]`; ε below 0 means test. random: per seed. instead: returns
        values `[lanes, A]` (in the order of the pool) to act on instead of the search's result.
        """
        pool, size = self.pool, places.lanes.shape[1]
        drawn = [rng.integers(2**32, size=(3, size), dtype=np.uint32) for rng in random]
        ties, luck, rest = (places.in_order(np.stack([d[i] for d in drawn])) for i in range(3))
        # The real steps overwrite what the pool shows.
        allowed = pool.arrays["allowed"][search.low : search.high].copy()
        wanted, in_order = places.in_order(active), places.in_order(epsilon)
        scale = places.in_order(self._scale(evaluate, active))
        chance = places.in_order(luck_of(*episodes)) if episodes is not None else None
        actions, roots = np.full(places.lanes.size, -1, np.int64), search.roots
        for group in self._searched(search, evaluate, rule, wanted, ties, scale, rest, noise):
            if instead is not None:
                values = instead()
                roots = Roots(values, np.zeros(values.shape, np.int32), roots.actions[:, :0])
            low, high = pool.groups[group]
            mine = places.part(pool.groups[group])
            act_all(
                mine.start + np.flatnonzero(wanted[mine] & ~pool.lost[low:high]), luck,
                search.budget > 0, ACTS.index(self.plays.act), self.settings.c, in_order,
                roots.q_values, roots.visits, roots.actions, allowed, pool.layout.num_actions,
                actions,
            )  # fmt: skip
            if chance is not None:
                pool.advance(group, actions[mine], chance[mine])
        return LaneDecisions(
            places.by_seed(actions),
            roots,
            places.by_seed(allowed),
            places.by_seed(search.simulations).sum(1),
        )

    def _searched(
        self, search: LaneSearch, evaluate: Evaluator, rule: Rule | None, wanted: np.ndarray,
        ties: np.ndarray, scale: np.ndarray, rest: np.ndarray, noise: float,
    ) -> Iterator[int]:  # fmt: skip
        """Search, if there is a rule and a budget; return the groups, each when it is done.

        Arguments `[lanes]`, in the order of the pool; rest: seeds of the noise.
        """
        start = int(ties[0]) % self.pool.layout.num_actions
        if rule is None or search.budget == 0:
            return search.priors_by_group(evaluate, wanted, start)

        def mix(priors: np.ndarray, lanes: np.ndarray) -> None:
            mix_noise_all(rest[lanes], noise, priors)

        return search.run_by_group(
            evaluate,
            rule=rule,
            c=self.settings.c,
            discount=self.settings.discount,
            seeds=ties,
            lanes=wanted,
            noise=mix if noise > 0 else None,
            space=self.space,
            start=start,
            scale=scale,
        )

    def _scale(self, evaluate: Any, lanes: np.ndarray) -> np.ndarray:
        """Return what searches divide rewards by, `[seeds, lanes]`: as the evaluator says."""
        scale = getattr(evaluate, "scale", np.array([self.settings.reward_scale or 1.0]))
        return np.broadcast_to(scale[:, None], lanes.shape).astype(np.float32)

    def decide_at(
        self, state: State, search: LaneSearch, evaluate: Evaluator, rng: np.random.Generator
    ) -> tuple[Roots, int]:
        """Run a test search from a state, in the one test lane; return its result and the action.

        Needs `workers=0`: states live in the workers.
        """
        self.pool.place(search.low, state)
        found = self.act(
            search, evaluate, self.plays.test_search, self.test_places, np.ones((1, 1), np.bool_),
            np.full((1, 1), -1.0), [rng],
        )  # fmt: skip
        return found.roots, int(found.actions[0, 0])

    def test_search(self, budget: int) -> LaneSearch:
        """Return a search over the test lanes."""
        return LaneSearch(self.pool, self.test_places.groups, budget)

    def test_level(self, level: int | None) -> int:
        """Return the request for test episodes of a level; with a curriculum, the default is the
        hardest."""
        simulator = self.simulators[0]
        if level is not None:
            require(
                has_levels(simulator), "--level", level,
                "left out in an environment without levels",
            )  # fmt: skip
            hardest = hardest_level(simulator)
            require(0 <= level <= hardest, "--level", level, f"from 0 to {hardest}")
            return exactly(level)
        return exactly(hardest_level(simulator)) if self.curriculum != "none" else ANY_LEVEL

    def play(
        self, evaluate: Any, episodes: int, budget: int, number: int, level: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Play test episodes; return their returns and lengths `[seeds, episodes]`.

        evaluate: an `Evaluator`, maybe a `StatefulEvaluator`. number: of this test, part of the
        random seed. level: see `test_level`.
        """
        pool, places, wanted = self.pool, self.test_places, self.test_level(level)
        search, lanes = self.test_search(budget), places.lanes
        many, size = lanes.shape
        limit = getattr(self.simulators[0], "max_steps", MAX_TEST_STEPS)
        # Episode `episodes` does not exist: lanes that have nothing left to play have it.
        returns, steps = np.zeros((many, episodes + 1)), np.zeros((many, episodes + 1), np.int64)
        episode = np.tile(np.minimum(np.arange(size), episodes), (many, 1))
        begun = np.full(many, min(size, episodes))
        rows, greedy = np.arange(many)[:, None], np.full(lanes.shape, -1.0)
        fresh, t, finished = episode < episodes, 0, 0
        begun_with = np.zeros(lanes.shape, np.int64)
        commit = getattr(evaluate, "commit_step", None)
        while np.any(episode < episodes):
            random = self.each(TEST, number, t)
            seeds = np.stack([rng.integers(2**31, size=size) for rng in random])
            self.reset(fresh, seeds, np.full(lanes.shape, wanted), places)
            begun_with = np.where(fresh, seeds, begun_with)
            active = (episode < episodes) & ~pool.lost[lanes]
            found = self.act(
                search, evaluate, self.plays.test_search, places, active, greedy, random,
                Episodes(begun_with, steps[rows, episode]),
            )  # fmt: skip
            moved = self.arrive(found.actions, places)
            returns[rows, episode] += np.where(moved, pool.arrays.reward[lanes], 0.0)
            steps[rows, episode] += moved
            over = pool.arrays.terminated[lanes] | pool.arrays.truncated[lanes]
            over = moved & (over | (steps[rows, episode] >= limit))
            fresh = ~moved & (episode < episodes)  # failed: play again from another start
            at = np.nonzero(fresh)
            returns[at[0], episode[at]], steps[at[0], episode[at]] = 0.0, 0
            for i, lane in zip(*np.nonzero(over), strict=True):
                episode[i, lane] = min(begun[i], episodes)
                fresh[i, lane] = begun[i] < episodes
                begun[i] += 1
                finished += 1
            if self.on_episodes is not None:
                self.on_episodes(finished)
            if commit is not None:
                commit(fresh[0])
            t += 1
        return returns[:, :episodes], steps[:, :episodes]


def luck_of(seeds: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the seeds of real steps, from those of their episodes; searches use others."""
    return rules.luck(np.asarray(seeds, np.int64), np.asarray(steps, np.int64), rules.EPISODE)


def slots_of(plays: Agent, budget: int, layout: Layout) -> int:
    """Return the slots per node (see `search.host`) that an agent's searches need.

    budget: the largest of any search. Only SAVE's rule tries actions in the order of their priors.
    """
    rules = {plays.search, plays.test_search} - {None}
    listed = rules <= {Rule.SAVE} and plays.act not in _FOR_ALL
    return slots_for(budget, layout.num_actions) if listed else layout.num_actions


def seats_of(plays: Agent, budget: int, slots: int) -> int:
    """Return the most states per lane that an agent's searches simulate together, see
    `search.foresight`. A recurrent network remembers no more of them than there are nodes."""
    foresees = Rule.SAVE in (plays.search, plays.test_search) and not plays.recurrent
    return SEATS if foresees and is_shallow(budget, slots) else 1


def _parts(lanes: int, groups: int) -> list[int]:
    """Return the sizes of this many groups of lanes, or of fewer if there are fewer lanes."""
    sizes = [lanes // groups + (i < lanes % groups) for i in range(groups)]
    return [size for size in sizes if size > 0]
