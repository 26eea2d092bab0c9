"""The continuous interface: choose a block and any point
(docs/construction/index.md#by-coordinates)."""

from functools import lru_cache

import numpy as np

from save_rl.envs.construction import graph
from save_rl.envs.construction.graph import Placement
from save_rl.envs.construction.scene import BOUND_X, BOUND_Y, HALF_WIDTH, Supply
from save_rl.envs.construction.simulator import Construction
from save_rl.envs.construction.state import State
from save_rl.errors import InputError

# selector, horizontal, vertical, sticky
LOW = np.array([-HALF_WIDTH, -BOUND_X, 0.0, -1.0], np.float32)
HIGH = np.array([HALF_WIDTH, BOUND_X, BOUND_Y, 1.0], np.float32)


@lru_cache(maxsize=8)
def slot_boundaries(supply: Supply) -> tuple[float, ...]:
    """Return the selector values that separate neighbouring blocks: the middles of the gaps."""
    edges = [
        (x - abs(shape.width) / 2, x + abs(shape.width) / 2)
        for (x, _), shape in zip(supply.display, supply.shapes, strict=True)
    ]
    return tuple((edges[i][1] + edges[i + 1][0]) / 2 for i in range(len(edges) - 1))


def placement(supply: Supply, action: np.ndarray) -> Placement:
    """Return the placement of an action: selector, horizontal, vertical, sticky (above 0)."""
    action = np.asarray(action, np.float64)
    if action.shape != (4,) or not np.isfinite(action).all():
        raise InputError("action: it must be four finite numbers: selector, x, y, sticky.")
    if (action < LOW - 1e-6).any() or (action > HIGH + 1e-6).any():
        low, high = LOW.tolist(), HIGH.tolist()
        raise InputError(f"action: {action.tolist()} is outside {low} to {high}.")
    selector, x, y, sticky = action.tolist()
    return Placement(int(np.digitize(selector, slot_boundaries(supply))), x, y, sticky > 0)


def step(sim: Construction, state: State, action: np.ndarray) -> tuple[State, float, bool, bool]:
    """Place a block by coordinates; choosing a used-up block ends the episode (`bad_choice`)."""
    chosen = placement(sim.task.supply, action)
    if not state.ending and chosen.slot in graph.taken(state, sim.task):
        return state._replace(steps=state.steps + 1, ending="bad_choice"), 0.0, True, False
    return sim.drop(state, chosen)
