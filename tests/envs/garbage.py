"""Simulators that no agent could learn from, by `tests.envs.garbage:make`; no JAX here.

`AT_ONCE` can be seen when an episode begins, `LATER` when a step is made.
"""

import sys

import numpy as np


class Sound:
    """Walks to 6; nothing is wrong with it."""

    num_actions = 3

    def reset(self, seed):
        return 0

    def step(self, state, action):
        after = state + 1
        return after, float(action), after >= 6, False

    def observe(self, state):
        return np.array([state / 6, 1.0])


def fail(*_):
    raise ArithmeticError("the engine is on fire")


def leave(*_):
    sys.exit(3)


def recurse(*arguments):
    return recurse(*arguments)


def actions(number):
    return {"num_actions": number}


def start(value):
    """It shows this from the first state on."""
    return {"observe": lambda self, state: value}


def later(value):
    """It shows this after the first step."""
    usual = Sound.observe
    return {"observe": lambda self, state: value if state else usual(self, state)}


def mask(value, after=0):
    good = np.ones(3, bool)
    return {"action_mask": lambda self, state: value if state >= after else good}


def reward(value):
    return {"step": lambda self, state, action: (state + 1, value, state >= 5, False)}


def step(result):
    return {"step": lambda self, state, action: result}


def only_seed_zero(self, seed):
    return fail() if seed else 0


AT_ONCE = {
    "no actions": actions(0),
    "negative actions": actions(-3),
    "half an action": actions(2.5),
    "true actions": actions(True),
    "actions in words": actions("3"),
    "actions of None": actions(None),
    "actions not a number": actions(float("nan")),
    "too many actions": actions(10**12),
    "endless actions": actions(10**40),
    "actions as an array": actions(np.array([2])),
    "actions as a method": actions(lambda self: 3),
    "actions that fail": actions(property(fail)),
    "reset fails": {"reset": fail},
    "reset leaves": {"reset": leave},
    "reset recurses": {"reset": recurse},
    "reset takes nothing": {"reset": lambda self: 0},
    "no step": {"step": None},
    "step is a number": {"step": 4},
    "observe is None": {"observe": None},
    "observe fails": {"observe": fail},
    "observe leaves": {"observe": leave},
    "nothing seen": start(None),
    "text seen": start("north"),
    "texts seen": start(np.array(["north", "south"])),
    "objects seen": start(np.array([object(), None])),
    "an empty array seen": start(np.zeros(0)),
    "an empty dictionary seen": start({}),
    "a dictionary in a dictionary seen": start({"a": {"b": 1.0}}),
    "a dictionary of numbers seen": start({0: np.zeros(2), 1: np.zeros(2)}),
    "a dictionary without a word seen": start({"": np.zeros(2)}),
    "complex numbers seen": start(np.array([1j, 2.0])),
    "dates seen": start(np.array(["2020-01-01"], "datetime64[D]")),
    "NaN seen": start(np.array([np.nan, 0.0])),
    "infinity seen": start(np.array([np.inf, 0.0])),
    "1e300 seen": start(np.array([1e300, 0.0])),
    "2**40 seen": start(np.array([2**40, 0])),
    "a ragged list seen": start([[1.0], [1.0, 2.0]]),
    "a short mask": mask(np.ones(2, bool)),
    "a mask of fractions": mask(np.array([0.5, np.nan, 1.0])),
    "a mask of text": mask("yes"),
    "a mask of None": mask(None),
    "an empty mask": mask(np.zeros(3, bool)),
    "a mask that fails": {"action_mask": fail},
    "saved as text": {"save_state": lambda self, state: "x", "load_state": lambda self, data: 0},
}
LATER = {
    "reward NaN": reward(np.nan),
    "reward infinite": reward(-np.inf),
    "reward 1e308": reward(1e308),
    "reward None": reward(None),
    "reward in words": reward("one"),
    "two rewards": reward(np.ones(2)),
    "complex reward": reward(1j),
    "step returns nothing": step(None),
    "step returns a number": step(1.0),
    "step returns three": step((1, 0.0, False)),
    "step returns five": step((1, 0.0, False, False, {})),
    "step returns two endings": step((1, 0.0, np.zeros(2, bool), False)),
    "step fails": {"step": fail},
    "step leaves": {"step": leave},
    "step recurses": {"step": recurse},
    "later another shape": later(np.zeros(3)),
    "later NaN": later(np.array([np.nan, 0.0])),
    "later 1e300": later(np.array([1e300, 0.0])),
    "later text": later("north"),
    "later nothing": later(None),
    "later a dictionary": later({"a": np.zeros(2)}),
    "later complex": later(np.array([1j, 0.0])),
    "later an empty mask": mask(np.zeros(3, bool), after=1),
    "later a short mask": mask(np.ones(2, bool), after=1),
    "later a mask of text": mask("yes", after=1),
    "most seeds fail": {"reset": only_seed_zero},
}
KINDS = {**AT_ONCE, **LATER}


def make(kind):
    return type("Garbage", (Sound,), KINDS[kind])()


def sound():
    return Sound()


def nothing():
    return None


def a_class():
    return Sound


def needs_more(size, colour):
    return Sound()


NOT_A_FACTORY = 3
