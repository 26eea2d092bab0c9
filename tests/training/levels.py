"""A simulator with levels, for curricula: level L is solved by action 1 in each of L + 1 steps."""

import numpy as np


class Stairs:
    """Kinds of scenes: two at every level. Odd seeds fail where `fails` says so."""

    num_actions = 3
    max_steps = 9

    def __init__(self, hardest=2, sample=True, fails=False):
        self.difficulty, self.curriculum_sample, self.fails = hardest, sample, fails

    def reset(self, seed, difficulty=None, curriculum_sample=None):
        level = self.difficulty if difficulty is None else difficulty
        sample = self.curriculum_sample if curriculum_sample is None else curriculum_sample
        if sample:
            level = seed // 2 % (level + 1)
        return level, seed % 2, 0

    def step(self, state, action):
        level, odd, steps = state
        if not 0 <= steps <= level:
            raise ValueError("this episode is over")
        right = action == 1 and not (self.fails and odd)
        steps = steps + 1 if right else -1
        done = steps == level + 1
        return (level, odd, steps), float(done), done or not right, False

    def observe(self, state):
        level, odd, steps = state
        return np.array([level, odd, steps, 1.0], np.float32)

    def kind(self, state):
        return state[0], 2 * state[0] + state[1]

    def solved(self, state):
        return state[2] == state[0] + 1
