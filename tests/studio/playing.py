"""A simulator and an agent without a network, for the processes that play; no JAX here.

The seed of an episode says what goes wrong in it.
"""

import os
import signal
import time

import numpy as np

from save_rl.errors import MissingExtra
from save_rl.search.nodes import Node
from save_rl.studio.places import Step
from save_rl.studio.records import ShownDecision, decision_record
from save_rl.studio.watched import Watched

ACTING = "tests.studio.playing:Acting"
RAISES, HANGS, DIES, ENDLESS, UNDRAWN, TALKS, NAN = 100, 101, 102, 103, 104, 105, 106
LENGTH = 6


class Ladder:
    """Climbs by the number of the action; an episode has six steps."""

    num_actions = 3
    difficulty, curriculum_sample = 4, True

    def reset(self, seed, *, difficulty=None, curriculum_sample=True):
        return (seed, difficulty, 0, 0)  # seed, level, height, steps

    def step(self, state, action):
        seed, level, height, steps = state
        if steps >= 2:
            trouble(seed)
        steps += 1
        reward = float("nan") if seed == NAN else 0.5 * action
        return (seed, level, height + action, steps), reward, steps == end(seed), False

    def observe(self, state):
        return np.array(state[2:], np.float32)

    def render(self, state):
        if state[0] == UNDRAWN:
            raise ModuleNotFoundError("No module named 'paint'")
        image = np.zeros((4, 4, 3), np.uint8)
        image[3 - state[2] % 4] = 200
        return image


def end(seed):
    return 10**9 if seed == ENDLESS else LENGTH


def trouble(seed):
    if seed == RAISES:
        raise ArithmeticError("the ladder is broken")
    if seed == HANGS:
        time.sleep(10**6)
    if seed == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == TALKS:
        print("the ladder creaks " * 1000)
    if seed == ENDLESS:
        time.sleep(0.01)


class Missing:
    """An agent whose environment needs a package that is not installed."""

    def __init__(self, folder, trust, tick):
        raise MissingExtra("install it with: pip install 'save-rl[atari]'.")


class Acting:
    """Tries every action once, then climbs by the number of the step; see `studio.acting`."""

    def __init__(self, folder, trust, tick):
        self.simulator = Watched(Ladder(), tick)

    def choices(self):
        return {"levels": 5, "actions": 3, "pictures": True, "process": os.getpid()}

    def decide(self, states, *, seed, budget, c, best, of):
        state, number = states[-1], len(states) - 1
        nodes, values, visits = (
            [Node(0, -1, -1, budget, float("nan"), 0.0, float("nan"), False)],
            [],
            [],
        )
        for k in range(budget):
            _, reward, over, _ = self.simulator.step(state, k % 3)
            if k < 3:
                nodes.append(Node(k + 1, 0, k, 1, reward, reward, c, over))
        for action in range(3):
            values.append(0.5 * action)
            visits.append(int(action < budget))
        decision = ShownDecision(
            number % 3, np.full(3, c), np.array(values), np.array(visits), nodes
        )  # fmt: skip
        return decision_record(self.simulator, state, decision), Step(number % 3)
