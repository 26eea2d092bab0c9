"""Random rollouts, with which UCT values the states of a simulator."""

from typing import Any

import numpy as np

from save_rl.envs.chance import MOST_LUCK, is_stochastic
from save_rl.types import State

ROLLOUT_LIMIT = 1000  # steps, in an environment that never ends
_FLOAT32 = np.finfo(np.float32)


def rollout(simulator: Any, state: State, over: bool, discount: float, seed: int) -> float:
    """Return the discounted return of random actions from a state to the end of its episode.

    seed: of the step that led to the state, whose luck is not that of the rollout.
    """
    rng = np.random.default_rng((seed, 1))
    total, weight, mask = 0.0, 1.0, getattr(simulator, "action_mask", None)
    stochastic = is_stochastic(simulator)
    for _ in range(ROLLOUT_LIMIT):
        if over:
            break
        if mask is None:
            action = int(rng.integers(simulator.num_actions))
        else:
            action = int(rng.choice(np.flatnonzero(mask(state))))
        luck = (int(rng.integers(MOST_LUCK)),) if stochastic else ()
        state, reward, terminated, truncated = simulator.step(state, action, *luck)
        total += weight * reward
        weight *= discount
        over = terminated or truncated
    if not abs(total) <= _FLOAT32.max:
        raise ValueError("step returned a reward that is not finite in a rollout.")
    return total
