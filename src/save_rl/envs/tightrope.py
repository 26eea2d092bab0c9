"""Tightrope (paper, section 4.1 and B.1): a chain of states where most actions end the episode.

Eleven states in a row, 100 actions in each, M % of which are fatal; the others lead to the next
state. The fatal actions are drawn per state and fixed for the life of the environment.

* Observation: 50 fixed standard-normal values per state. It does not reveal the goal.
* `dense`: the goal is the last state and every safe step gives a reward of 0.1.
* `sparse`: each episode draws its goal uniformly from states 1-10; only reaching it gives 1.
* A fatal action gives 0 and ends the episode. Reaching the goal ends it too, after its reward.
"""

from typing import Any, NamedTuple

import numpy as np

from save_rl.errors import require
from save_rl.types import Array

STATES, ACTIONS, FEATURES = 11, 100, 50  # paper, B.1


class TightropeState(NamedTuple):
    """The position of the walker and this episode's goal."""

    position: Any
    goal: Any


def transition(
    fatal: Array, step_reward: Any, goal_reward: Any, position: Any, goal: Any, action: Any
) -> tuple[Any, Any, Any]:
    """Take one step along the chain; return `(position, reward, terminated)`.

    Written without branches, so that the same code runs in Python, in JAX and in Numba.
    """
    safe = 1 - fatal[position, action]
    position = position + safe
    arrived = safe * (position == goal)
    reward = safe * step_reward + arrived * goal_reward
    return position, reward, (safe - arrived) == 0


class Tightrope(NamedTuple):
    """Tightrope as a JAX environment; a pytree, so that seeds with different tables can be vmapped.

    fatal: `[11, 100]` 1 where the action ends the episode.
    observations: `[11, 50]`.
    step_reward, goal_reward: 0.1 and 0 (dense), 0 and 1 (sparse).
    first_goal: the nearest goal an episode may have: 1 (sparse) or 10 (dense).
    """

    fatal: Array
    observations: Array
    step_reward: Array
    goal_reward: Array
    first_goal: Array

    @property
    def num_actions(self) -> int:
        return ACTIONS

    @property
    def max_steps(self) -> int:
        return STATES - 1

    def reset(self, seed: Any) -> TightropeState:
        """Start an episode; `seed` is a JAX key."""
        import jax

        goal = jax.random.randint(seed, (), self.first_goal, STATES)
        return TightropeState(goal * 0, goal)

    def step(self, state: TightropeState, action: Any) -> tuple[TightropeState, Any, Any, Any]:
        position, reward, terminated = transition(
            self.fatal, self.step_reward, self.goal_reward, state.position, state.goal, action
        )
        return TightropeState(position, state.goal), reward, terminated, terminated & False

    def observe(self, state: TightropeState) -> Array:
        return self.observations[state.position]


class TightropeSimulator(Tightrope):
    """The same task in NumPy, with integer seeds, for Python programs and Gymnasium."""

    def reset(self, seed: int) -> TightropeState:
        goal = np.random.default_rng(seed).integers(int(self.first_goal), STATES)
        return TightropeState(0, int(goal))

    def render(self, state: TightropeState) -> np.ndarray:
        """Draw the rope as a picture `[40, 11 * 24, 3]`: walker orange, goal green, rope grey."""
        image = np.full((40, STATES * 24, 3), 255, np.uint8)
        image[19:21] = 120
        for index in range(STATES):
            colour = (120, 120, 120)
            if index == state.goal:
                colour = (44, 160, 44)
            if index == state.position:
                colour = (255, 127, 14)
            image[10:30, index * 24 + 6 : index * 24 + 18] = colour
        return image


def tightrope_simulator(
    seed: int = 0, *, reward: str = "sparse", terminal: float = 95
) -> TightropeSimulator:
    """Sample a Tightrope in NumPy, in which `terminal` % of the actions are fatal."""
    require(reward in ("sparse", "dense"), "--reward", repr(reward), "'sparse' or 'dense'")
    number = isinstance(terminal, int | float) and 0 <= terminal <= 100
    require(number, "--terminal", repr(terminal), "a percentage from 0 to 100")
    rng = np.random.default_rng(seed)
    fatal = np.zeros((STATES, ACTIONS), np.int32)
    fatal[:, : round(ACTIONS * terminal / 100)] = 1
    dense = reward == "dense"
    return TightropeSimulator(
        fatal=rng.permuted(fatal, axis=1),
        observations=rng.standard_normal((STATES, FEATURES)).astype(np.float32),
        step_reward=np.float32(0.1 if dense else 0.0),
        goal_reward=np.float32(0.0 if dense else 1.0),
        first_goal=np.int32(STATES - 1 if dense else 1),
    )


def tightrope(seed: int = 0, *, reward: str = "sparse", terminal: float = 95) -> Tightrope:
    """Sample the same Tightrope as a JAX environment."""
    import jax.numpy as jnp

    return Tightrope(*map(jnp.asarray, tightrope_simulator(seed, reward=reward, terminal=terminal)))
