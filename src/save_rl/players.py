"""Agents that learn nothing, for any Python simulator: random, scripted, plain search."""

import math
import time
import traceback
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.chance import MOST_LUCK, is_stochastic, lucky_step
from save_rl.envs.layout import allowed_actions
from save_rl.errors import InputError, Interrupted, RunError, require, unknown_name
from save_rl.types import SearchResult, Simulator, State

LONGEST = 100_000  # most steps of an episode
PLAYERS = {
    "random": "Random valid actions; learns nothing",
    "scripted": "Written by hand, for silhouette, covering and marble-run; learns nothing",
    "uct": "Pure search with random rollouts; learns nothing",
}


class RootValues(NamedTuple):
    """Values behind a choice, `[A]` each: Qθ, and the values after the search where it explored."""

    prior: np.ndarray
    searched: np.ndarray
    explored: np.ndarray
    action: int


class Move(NamedTuple):
    """A player's move: the step's result, and a remark."""

    state: State
    reward: float
    over: bool
    remark: str = ""
    values: RootValues | None = None


class Episode(NamedTuple):
    """States from the first to the last, and the moves between them."""

    states: list[State]
    moves: list[Move]

    @property
    def total(self) -> float:
        """The sum of rewards."""
        return sum(move.reward for move in self.moves)


# Makes a move, given a state and a random generator.
Player = Callable[[State, np.random.Generator], Move]


def make_player(name: str, sim: Simulator, budget: int = 0, c: float = 2.0) -> Player:
    """Return a player by name; `budget` is the number of simulations of `uct`, `c` its constant."""
    if name not in PLAYERS:
        raise unknown_name("agent without training", name, PLAYERS, "--agent")
    if name == "scripted":
        return _scripted(sim)
    if name == "uct":
        require(budget >= 1, "--budget", budget, "at least 1")
        return partial(_uct, sim, budget, c=c)
    return partial(_random, sim)


def play(sim: Simulator, player: Player, seed: int) -> Episode:
    """Play one episode; the seed draws its start and the player's choices.

    Raises RunError, with the traceback, if the simulator fails or the episode never ends.
    """
    try:
        return _play(sim, player, seed)
    except (InputError, RunError, Interrupted):
        raise
    except (Exception, SystemExit) as error:
        raise RunError(
            f"ENV: the simulator failed in the episode of seed {seed} with:\n"
            f"{traceback.format_exc().rstrip()}"
        ) from error


def _play(sim: Simulator, player: Player, seed: int) -> Episode:
    rng = _generator(seed)
    episode = Episode([sim.reset(seed)], [])
    while not episode.moves or not episode.moves[-1].over:
        if len(episode.moves) == LONGEST:
            raise RunError(
                f"ENV: the episode of seed {seed} has not ended after {LONGEST} steps; have the "
                "simulator report truncated after some limit."
            )
        move = player(episode.states[-1], rng)
        if not math.isfinite(move.reward):
            raise RunError(f"ENV: step returned a reward of {move.reward}, which is not finite.")
        episode.states.append(move.state)
        episode.moves.append(move)
    return episode


def _generator(seed: int) -> np.random.Generator:
    """Return the choices of a player; the seed alone may be that of the simulator's generator."""
    return np.random.default_rng((seed, 1))


def _valid_actions(sim: Simulator, state: State) -> np.ndarray:
    if not hasattr(sim, "action_mask"):
        return np.arange(sim.num_actions)
    return np.flatnonzero(allowed_actions(sim, state, sim.num_actions))


def make_move(
    sim: Simulator, state: State, action: Any, rng: np.random.Generator, remark: str = ""
) -> Move:
    """Take an action; with chance, the generator draws its luck."""
    luck = int(rng.integers(MOST_LUCK)) if is_stochastic(sim) else None
    after, reward, terminated, truncated = lucky_step(sim)(state, int(action), luck)
    return Move(after, float(reward), bool(terminated or truncated), remark)


def _random(sim: Simulator, state: State, rng: np.random.Generator) -> Move:
    return make_move(sim, state, rng.choice(_valid_actions(sim, state)), rng)


def _scripted(sim: Simulator) -> Player:
    from save_rl.envs.construction import Construction
    from save_rl.envs.construction.scripted import SCRIPTED

    if isinstance(sim, Construction) and sim.name == "marble-run":
        return _builder(sim)
    if not isinstance(sim, Construction) or sim.name not in SCRIPTED:
        known = ", ".join(sorted([*SCRIPTED, "marble-run"]))
        raise InputError(f"--agent: there is a scripted agent for {known} only.")
    policy, construction = SCRIPTED[sim.name], sim

    def move(state: State, rng: np.random.Generator) -> Move:
        after, reward, terminated, truncated = construction.drop(state, policy(state))
        return Move(after, reward, terminated or truncated)

    return move


def _builder(sim: Any) -> Player:
    """Plan a whole marble run when an episode starts; act at random if no plan is found."""
    from save_rl.envs.construction.marble_builder import build

    plan = lru_cache(maxsize=1)(lambda scene: build(sim, sim.start(scene)))

    def move(state: Any, rng: np.random.Generator) -> Move:
        placements = plan(state.scene)
        if placements is None or state.steps >= len(placements):
            return _random(sim, state, rng)._replace(remark="no plan")
        after, reward, terminated, truncated = sim.drop(state, placements[state.steps])
        return Move(after, reward, terminated or truncated)

    return move


def _uct(
    sim: Simulator,
    budget: int,
    state: State,
    rng: np.random.Generator,
    *,
    c: float = 2.0,
    discount: float = 0.99,
) -> Move:
    """Run UCT without a prior (paper, section 3.1); take the best action that it tried."""
    from save_rl import search

    result = search.uct(
        sim, [state], budget=budget, c=c, discount=discount, seed=int(rng.integers(2**31))
    )
    return best_tried(sim, state, result, rng)


def uct_returns(
    sim: Simulator, budget: int, c: float, discount: float, seconds: float
) -> list[float]:
    """Return the returns of the episodes that UCT finishes in this time, at most 50."""
    end, returns = time.monotonic() + seconds, []
    for seed in range(50):
        rng, state, total = _generator(seed), sim.reset(seed), 0.0
        for _ in range(LONGEST):
            if time.monotonic() >= end:
                return returns
            move = _uct(sim, budget, state, rng, c=c, discount=discount)
            state, total = move.state, total + move.reward
            if move.over:
                break
        returns.append(total)
    return returns


def best_tried(
    sim: Simulator, state: State, result: SearchResult, rng: np.random.Generator
) -> Move:
    """Take the action with the highest value of those that a search tried, ties at random."""
    values = np.where(result.explored[0], result.q_values[0], -np.inf)
    action = int(rng.choice(np.flatnonzero(values == values.max())))
    tried, visits = int(result.explored[0].sum()), int(result.visits[0, action])
    remark = f"Q {values[action]:.2f} ({visits} visits, {tried} actions tried)"
    return make_move(sim, state, action, rng, remark)
