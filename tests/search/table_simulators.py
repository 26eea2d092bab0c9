"""MDPs of tables as Python simulators; worker processes make them by name."""

from typing import Any, NamedTuple

import numpy as np

from tests.search.reference import Mdp

FOREVER = 10**6


class Place(NamedTuple):
    """Where an episode stands."""

    state: int
    time: int


class TableSimulator:
    """Begins at the state that a seed is the number of, and is cut after `limit` steps.

    It shows the number of its state, or what `features` `[S, ...]` say about it. `calls` lists what
    was asked of it. Masked actions raise, and so do the pairs of state and action in `fails`.
    """

    def __init__(
        self,
        mdp: Mdp,
        features: np.ndarray | None = None,
        *,
        limit: int = FOREVER,
        masked: bool = True,
        fails: frozenset[tuple[int, int]] = frozenset(),
    ):
        self.mdp, self.limit, self.fails = mdp, limit, fails
        self.num_states, self.num_actions = mdp.mask.shape
        self.features = np.arange(self.num_states) if features is None else features
        self.calls: list[tuple[Any, ...]] = []
        if masked:
            self.action_mask = lambda place: mdp.mask[place.state]

    def reset(self, seed: int) -> Place:
        self.calls.append(("reset", int(seed)))
        return Place(int(seed) % self.num_states, 0)

    def step(self, place: Place, action: int) -> tuple[Place, float, bool, bool]:
        self.calls.append(("step", *place, action))
        return self._step(place, action)

    def observe(self, place: Place) -> Any:
        return self.features[place.state]

    def _step(self, place: Place, action: int) -> tuple[Place, float, bool, bool]:
        at, time = (place.state, action), place.time + 1
        if not self.mdp.mask[at] or at in self.fails:
            raise ValueError(f"action {action} is not possible in state {place.state}")
        after = Place(int(self.mdp.next_state[at]), time)
        return after, float(self.mdp.reward[at]), bool(self.mdp.terminal[at]), time >= self.limit

    def count(self, name: str) -> int:
        """How often a method was called."""
        return sum(call[0] == name for call in self.calls)


class Dice(TableSimulator):
    """Every step pays `luck(seed)`, and none ends an episode."""

    stochastic = True

    def step(self, place: Place, action: int, seed: int) -> tuple[Place, float, bool, bool]:
        self.calls.append(("step", *place, action, seed))
        after, _, _, truncated = self._step(place, action)
        return after, luck(seed), False, truncated


def luck(seed: int) -> float:
    return float(np.random.default_rng(seed).uniform(-1, 1))


def tables(
    seed: int, states: int = 12, actions: int = 7, ends: float = 0.3, masked: bool = True,
    allowed: float = 0.6,
) -> Mdp:  # fmt: skip
    """Random numbers everywhere; the prior is a policy, which will do as values too."""
    rng = np.random.default_rng(seed)
    shape = (states, actions)
    mask = (rng.random(shape) < allowed) | (not masked)
    mask[np.arange(states), rng.integers(0, actions, states)] = True
    prior = np.where(mask, rng.random(shape), 0.0)
    return Mdp(
        next_state=rng.integers(0, states, shape),
        reward=rng.uniform(-1, 1, shape),
        terminal=rng.random(shape) < ends,
        mask=mask,
        prior=(prior / prior.sum(1, keepdims=True)).astype(np.float32),
        value=rng.uniform(-1, 1, states).astype(np.float32),
    )


def make(seed: int = 0, fails: tuple[tuple[int, int], ...] = ()) -> TableSimulator:
    """A simulator that shows numbers of states."""
    return TableSimulator(tables(seed), fails=frozenset((s, a) for s, a in fails))


def maze(
    seed: int = 0,
    ends: float = 0.3,
    limit: int = FOREVER,
    masked: bool = False,
    fails: tuple[tuple[int, int], ...] = (),
    actions: int = 5,
    allowed: float = 0.6,
) -> TableSimulator:
    """Six states of five actions or more, to be known by four numbers each.

    allowed: share of actions, if they are masked; the first is always one of few.
    """
    features = np.random.default_rng((seed, 1)).standard_normal((6, 4)).astype(np.float32)
    mdp = tables(seed, 6, actions, ends, masked, allowed)
    mdp.mask[:, 0] |= allowed < 0.5
    pairs = frozenset((state, action) for state, action in fails)
    return TableSimulator(mdp, features, limit=limit, masked=masked, fails=pairs)


def chain(length: int = 6, actions: int = 4) -> TableSimulator:
    """One action of each state leads on, the others end the episode; the last step pays 1."""
    shape = (length, actions)
    right = np.random.default_rng(0).integers(0, actions, length)
    on = np.arange(actions) == right[:, None]
    last = np.arange(length)[:, None] == length - 1
    mdp = Mdp(
        next_state=np.minimum(np.arange(length)[:, None] + np.ones(shape, int), length - 1),
        reward=(on & last).astype(float),
        terminal=~on | last,
        mask=np.ones(shape, bool),
        prior=np.zeros(shape),
        value=np.zeros(length),
    )
    return _FromTheBeginning(mdp, np.eye(length, dtype=np.float32), masked=False)


class _FromTheBeginning(TableSimulator):
    def reset(self, seed: int) -> Place:
        return super().reset(int(seed))._replace(state=0)


def wide(seed: int = 0, actions: int = 50, masked: bool = True, ends: float = 0.2):
    """Ten states of many actions; it shows numbers of states."""
    return TableSimulator(wide_tables(seed, actions, masked, ends), masked=masked)


def wide_tables(
    seed: int, actions: int = 50, masked: bool = True, ends: float = 0.2, allowed: float = 0.6
) -> Mdp:
    """Priors that differ clearly, but for the best three of every state, which tie."""
    rng = np.random.default_rng((seed, 7))
    mdp = tables(seed, 10, actions, ends, masked, allowed)
    prior = np.argsort(rng.random(mdp.prior.shape), 1) / actions - 0.5
    best = np.argsort(np.where(mdp.mask, -prior, np.inf), 1)[:, :3]
    np.put_along_axis(prior, best, 0.6, 1)
    return mdp._replace(prior=prior.astype(np.float32))
