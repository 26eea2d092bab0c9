"""The conformance check against simulators that are sound, and ones that break one rule each."""

import copy
import io
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from save_rl.envs import make
from save_rl.envs.check import check, episodes
from save_rl.envs.tightrope import tightrope, tightrope_simulator
from save_rl.errors import InputError

LENGTH, LIMIT = 12, 9


class Place(NamedTuple):
    cell: int
    steps: int = 0


class Walk:
    """A walk on a ring of 12 cells: forwards, backwards, stay. Cell 0 ends it; so do 9 steps."""

    num_actions = 3

    def reset(self, seed):
        return Place(int(np.random.default_rng(seed).integers(3, LENGTH - 2)))

    def step(self, state, action):
        cell = (state.cell + (1, -1, 0)[action]) % LENGTH
        steps = state.steps + 1
        return Place(cell, steps), float(cell == 0), cell == 0, cell != 0 and steps >= LIMIT

    def observe(self, state):
        return np.eye(LENGTH, dtype=np.float32)[state.cell]


def test_a_plain_walk_is_sound():
    report = check(Walk())
    assert report.ok
    assert {f.subject for f in report.findings if f.verdict == "note"} == {"speed"}


# Simulators that break one rule, with the subject and the words that say so.
BROKEN = []


def broken(subject, *words, verdict="wrong", others=()):
    def add(simulator):
        case = (simulator, subject, words, verdict, others)
        BROKEN.append(pytest.param(*case, id=simulator.__name__))
        return simulator

    return add


@broken("interface", "class NotMade", "NotMade()")
class NotMade(Walk):
    __call__ = None

    def __new__(cls):
        return cls


@broken("interface", "no step", "no observe")
class WithoutStep:
    num_actions = 3

    def reset(self, seed):
        return 0


@broken("interface", "num_actions", "@property")
class CountsInAMethod(Walk):
    def num_actions(self):
        return 3


@broken("interface", "num_actions", "0")
class NothingToDo(Walk):
    num_actions = 0


@broken("interface", "step must be a method")
class StepIsNone(Walk):
    step = None


@broken("reset", "reset(0) raised KeyError", "'size'", "test_check.py:")
class RaisesInReset(Walk):
    def reset(self, seed):
        return {}["size"]


@broken("reset", "reset(0) gives another start", "default_rng(seed)")
class IgnoresTheSeed(Walk):
    def reset(self, seed):
        return Place(int(np.random.default_rng().integers(2**40)))

    def observe(self, state):
        return np.array([state.cell / 2**40])


@broken("reset", "gives another start", "simulator.rng")
class DrawsStartsFromOneGenerator(Walk):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def reset(self, seed):
        return Place(int(self.rng.integers(2**40)))

    def observe(self, state):
        return np.array([state.cell / 2**40])


@broken("determinism", "the same seed and actions", "at step 1 of seed 0", "np.random")
class GlobalChance(Walk):
    def step(self, state, action):
        after, _, *flags = super().step(state, action)
        return after, np.random.random(), *flags  # noqa: NPY002


@broken("determinism", "at step", "reward is", "simulator.episodes")
class CountsEpisodes(Walk):
    episodes = 0

    def reset(self, seed):
        self.episodes += 1
        return super().reset(seed)

    def step(self, state, action):
        self.episodes += 0.5
        after, _, *flags = super().step(state, action)
        return after, float(self.episodes), *flags


@broken("determinism", "clock")
class LooksAtTheClock(Walk):
    def step(self, state, action):
        after, _, *flags = super().step(state, action)
        return after, time.perf_counter(), *flags


@broken("determinism", "observation[0]")
class NoisyObservation(Walk):
    """Its starts look right: the noise comes later."""

    def observe(self, state):
        noise = np.random.default_rng().random() if state.steps > 3 else 0.0
        return np.array([state.cell + noise])


class Board:
    """A state that can be changed."""

    def __init__(self, cell):
        self.cells, self.steps = np.eye(LENGTH)[cell], 0


class CopiesItsBoards(Walk):
    """Sound: it changes copies only."""

    def reset(self, seed):
        return Board(super().reset(seed).cell)

    def step(self, state, action):
        return self.change(copy.deepcopy(state), action)

    def change(self, state, action):
        state.cells[:] = np.roll(state.cells, (1, -1, 0)[action])
        state.steps += 1
        end = bool(state.cells[0])
        return state, float(end), end, not end and state.steps >= LIMIT

    def observe(self, state):
        return state.cells.copy()


@broken("state", "changes the state it was given", "observation", "state.cells", "deepcopy")
class WritesToItsState(CopiesItsBoards):
    def step(self, state, action):
        return self.change(state, action)


@broken("state", "changes the state it was given", "state.cells")
class CopiesTooLate(CopiesItsBoards):
    def step(self, state, action):
        return self.change(copy.copy(state), action)


@broken("state", "changes the state it was given", "state.steps")
class WritesWhereNobodyLooks(CopiesItsBoards):
    def step(self, state, action):
        state.steps += 1
        return self.change(copy.deepcopy(state), action)


@broken("state", "changes the state it was given", "state[1]")
class DrawsFromTheStatesGenerator(Walk):
    def reset(self, seed):
        return super().reset(seed), np.random.default_rng(seed)

    def step(self, state, action):
        after, _, *flags = super().step(state[0], action)
        return (after, state[1]), state[1].random(), *flags

    def observe(self, state):
        return super().observe(state[0])


@broken("state", "changes the state it was given", "state[0][")
class SharesItsTrail(Walk):
    """All branches write to one list, each believing in its own length."""

    def reset(self, seed):
        return [super().reset(seed).cell], 0

    def step(self, state, action):
        trail, steps = state
        trail.append((trail[steps] + (1, -1, 0)[action]) % LENGTH)
        return (trail, steps + 1), 0.0, False, steps + 1 >= LIMIT

    def observe(self, state):
        trail, steps = state
        return np.eye(LENGTH)[trail[steps]]


@broken("branches", "truncated", "simulator.steps", "keep all it needs in the state")
class CountsStepsOnItself(Walk):
    def reset(self, seed):
        self.steps = 0
        return super().reset(seed)

    def step(self, state, action):
        self.steps += 1
        after, reward, terminated, _ = super().step(state, action)
        return after, reward, terminated, self.steps >= 40


@broken("branches", "simulator.place")
class WorksOnItself(Walk):
    def reset(self, seed):
        self.place = super().reset(seed)
        return None

    def step(self, state, action):
        self.place, *rest = super().step(self.place, action)
        return None, *rest

    def observe(self, state):
        return super().observe(self.place)


@broken("branches", "the global generator of np.random")
class SeedsTheGlobalGenerator(Walk):
    def reset(self, seed):
        np.random.seed(seed)  # noqa: NPY002
        return super().reset(seed)

    def step(self, state, action):
        after, _, *flags = super().step(state, action)
        return after, np.random.random(), *flags  # noqa: NPY002


@broken("interleaving", "interleaved with seed", "simulator.goal", "not on the simulator")
class KeepsTheGoalOnItself(Walk):
    def reset(self, seed):
        self.goal = seed % 5
        return super().reset(seed)

    def step(self, state, action):
        after, _, *flags = super().step(state, action)
        return after, float(self.goal), *flags


@broken("step", "step(state,", "raised IndexError", "test_check.py:", "at step 5 of seed")
class RaisesAtTheFifthStep(Walk):
    def step(self, state, action):
        return [super().step(state, action)][state.steps // 4]


@broken("step", "If action 2 is not possible there, say so in action_mask(state)", "no standing")
class RefusesAnAction(Walk):
    def step(self, state, action):
        if action == 2:
            raise ValueError("no standing")
        return super().step(state, action)


@broken("masks", "action_mask allows action 2", "no standing")
class RefusesWhatItAllows(RefusesAnAction):
    def action_mask(self, state):
        return np.array([True, state.steps % 2 == 0, True])


@broken("masks", "action_mask allows action 70", "no standing")
class RefusesOneOfMany(Walk):
    num_actions = 100

    def step(self, state, action):
        if action == 70:
            raise ValueError("no standing")
        return super().step(state, action % 3)

    def action_mask(self, state):
        return np.arange(100) >= 60


@broken("step", "(state, reward, terminated, truncated)", "3 values", "False")
class ThreeValues(Walk):
    def step(self, state, action):
        return super().step(state, action)[:3]


@broken("step", "(state, reward, terminated, truncated)", "5 values", "no info")
class FiveValues(Walk):
    def step(self, state, action):
        return *super().step(state, action), {}


@broken("step", "(state, reward, terminated, truncated)", "returned None")
class NoValue(Walk):
    def step(self, state, action):
        return None


@broken("step", "reward", "not finite", "nan", "at step 8")
class LateNaN(Walk):
    def step(self, state, action):
        after, reward, *flags = super().step(state, action)
        return after, np.nan if after.steps == 8 else reward, *flags


@broken("step", "one number as the reward", "float64 [1]", "float(reward)")
class RewardWithAShape(Walk):
    def step(self, state, action):
        after, reward, *flags = super().step(state, action)
        return after, np.array([reward]), *flags


@broken("step", "one number as the reward", "None")
class NoReward(Walk):
    def step(self, state, action):
        return super().step(state, action)[0], None, False, False


@broken("step", "terminated must be True or False", "The order is")
class OtherOrder(Walk):
    def step(self, state, action):
        after, reward, terminated, truncated = super().step(state, action)
        return after, terminated, reward + 0.5, truncated


@broken("step", "terminated is a number", "bool(terminated)", verdict="note")
class FlagsAsNumbers(Walk):
    def step(self, state, action):
        after, reward, *flags = super().step(state, action)
        return after, reward, *map(int, flags)


@broken("observations", "same entries, shapes and types", "[12]", "[13]", "at step 4")
class GrowingObservation(Walk):
    def observe(self, state):
        return np.eye(LENGTH + (state.steps > 3))[state.cell]


@broken("observations", "same entries, shapes and types", "float64", "float32")
class ChangingType(Walk):
    def observe(self, state):
        return super().observe(state).astype(np.float64 if state.steps > 3 else np.float32)


@broken("observations", "same entries, shapes and types", "observation['bonus']")
class AnotherEntryLater(Walk):
    def observe(self, state):
        entries = {"cell": super().observe(state)}
        return entries | {"bonus": np.ones(1)} if state.steps > 3 else entries


@broken("observations", "not finite", "observation['time'][1] is inf", "at step 4")
class InfiniteObservation(Walk):
    def observe(self, state):
        times = np.array([1.0, np.inf if state.steps > 3 else 1.0])
        return {"cell": super().observe(state), "time": times}


@broken("observations", "array of numbers", "None")
class ObservesNothing(Walk):
    def observe(self, state):
        return None


@broken("observations", "array of numbers", "observation['name'] is 'walk'")
class ObservesWords(Walk):
    def observe(self, state):
        return {"name": "walk"}


@broken("observations", "observe(state) raised ZeroDivisionError", "the start of seed 0")
class RaisesInObserve(Walk):
    def observe(self, state):
        return 1 / 0


@broken("observations", "changed by later calls", "Copy it")
class ReusesItsArray(Walk):
    def __init__(self):
        self.array = np.zeros(LENGTH)

    def observe(self, state):
        self.array[:] = super().observe(state)
        return self.array


@broken("observations", "large", "2000", "scale it", verdict="note")
class LargeNumbers(Walk):
    def observe(self, state):
        return super().observe(state) * 2000


@broken("observations", "float32", "1e+300")
class HugeNumbers(Walk):
    def observe(self, state):
        return super().observe(state).astype(float) * 1e300


@broken("observations", "look the same", verdict="note")
class ConstantObservation(Walk):
    def observe(self, state):
        return np.ones(3)


@broken("masks", "3 truth values", "bool [4]")
class MaskTooLong(Walk):
    def action_mask(self, state):
        return np.ones(4, bool)


@broken("masks", "allows nothing", "step 4 of seed", "terminated")
class AllowsNothing(Walk):
    def action_mask(self, state):
        return np.array([True, True, False]) & (state.steps < 4)


@broken("masks", "allows nothing", "the start of seed 0", others={"step"})
class AllowsNothingEver(Walk):
    def action_mask(self, state):
        return np.zeros(3, bool)


@broken("masks", "not numbers", "astype(bool)")
class MaskOfNumbers(Walk):
    def action_mask(self, state):
        return np.array([1, 1, 0])


@broken("masks", "changed by later calls")
class ReusesItsMask(Walk):
    def __init__(self):
        self.mask = np.ones(3, bool)

    def action_mask(self, state):
        self.mask[2] = state.steps % 2
        return self.mask


@broken("masks", "left out", verdict="note")
class AllowsEverything(Walk):
    def action_mask(self, state):
        return np.ones(3, bool)


@broken("endings", "search", "raised RuntimeError", "over", "truncated was True at step 9")
class RaisesPastTruncation(Walk):
    def step(self, state, action):
        if state.steps >= LIMIT:
            raise RuntimeError("the episode is over")
        return super().step(state, action)


@broken("endings", "no episode ended within 60 random steps", "time limit", verdict="note")
class NeverEnds(Walk):
    def step(self, state, action):
        after, reward, _, _ = super().step(state, action)
        return after, reward, False, False


@broken("seeds", "every seed", "puzzle", verdict="note")
class OneStart(Walk):
    def reset(self, seed):
        return Place(5)


@broken("render", "uint8 [height, width, 3]", "float64 [4, 4, 3]")
class RendersFloats(Walk):
    def render(self, state):
        return np.zeros((4, 4, 3))


@broken("render", "uint8 [height, width, 3]", "uint8 [4, 4]")
class RendersGrey(Walk):
    def render(self, state):
        return np.zeros((4, 4), np.uint8)


@broken("render", "render(state) raised ImportError: no canvas")
class RaisesInRender(Walk):
    def render(self, state):
        raise ImportError("no canvas")


@broken("render", "changes the state")
class RenderMoves(CopiesItsBoards):
    def render(self, state):
        state.cells[:] = 0
        return np.zeros((4, 4, 3), np.uint8)


@broken("render", "one size", verdict="note")
class RendersManySizes(Walk):
    def render(self, state):
        return np.zeros((4, 4 + state.steps, 3), np.uint8)


class Slips(CopiesItsBoards):
    """Sound: a step that slips, by a seed."""

    stochastic = True

    def step(self, state, action, seed):
        return super().step(state, int(np.random.default_rng(seed).integers(3)))


@broken("determinism", "give another episode", "from the seed of the step")
class SlipsAnyhow(Slips):
    def step(self, state, action, seed):
        return super().step(state, action, None)


@broken("state", "changes the state it was given", "state.cells")
class SlipsInPlace(Slips):
    def step(self, state, action, seed):
        self.change(state, 0)
        state.cells[:] = np.eye(LENGTH)[seed % 7]
        return copy.deepcopy(state), 0.0, False, False


@broken("chance", "never made a difference", verdict="note")
class NeverSlips(Slips):
    def step(self, state, action, seed):
        return CopiesItsBoards.step(self, state, action)


@broken("step", "3 values")
class SlipsOutOfForm(Slips):
    def step(self, state, action, seed):
        return super().step(state, action, seed)[:3]


@broken("interface", "stochastic is True, but step takes 2 arguments", "step(state, action, seed)")
class SaysThatItSlips(CopiesItsBoards):
    stochastic = True


@broken("interface", "step needs 3 arguments", "stochastic = True")
class DoesNotSayThatItSlips(Slips):
    stochastic = False


@broken("interface", "stochastic is 'often'", "True or False")
class SlipsOften(Slips):
    stochastic = "often"


class Saves(Walk):
    """Sound: a state is two bytes."""

    def save_state(self, state):
        return np.array(state, np.uint8)

    def load_state(self, data):
        return Place(*data.tolist())


@broken("interface", "There is save_state but no load_state", "both, or neither")
class SavesForNobody(Walk):
    save_state = Saves.save_state


@broken("interface", "There is load_state but no save_state", "both, or neither")
class LoadsFromNobody(Walk):
    load_state = Saves.load_state


@broken("saving", "uint8 [length]", "an array int64 [2], at the start of seed 0")
class SavesNumbers(Saves):
    def save_state(self, state):
        return np.array(state)


@broken("saving", "uint8 [length]", "b'")
class SavesBytes(Saves):
    def save_state(self, state):
        return bytes(state)


@broken("saving", "always give 2 bytes, as before, but gave", "Pad")
class SavesMoreAndMore(Saves):
    def save_state(self, state):
        return np.append(super().save_state(state), np.zeros(state.steps, np.uint8))

    def load_state(self, data):
        return super().load_state(data[:2])


@broken("saving", "load_state(save_state(state)) raised KeyError", "at the start of seed 0")
class RaisesInLoad(Saves):
    def load_state(self, data):
        raise KeyError("version")


@broken("saving", "saved at the start of seed 0 differs after loading", "observation[", "bytes")
class SavesAnotherCell(Saves):
    def save_state(self, state):
        return super().save_state(state._replace(cell=(state.cell + 1) % LENGTH))


@broken("saving", "differs after loading: at step", "truncated is False instead of True")
class ForgetsTheSteps(Saves):
    """What is missing shows at the end alone."""

    def load_state(self, data):
        return super().load_state(data)._replace(steps=0)


@broken("saving", "differs after loading", "step(state, ", "raised TypeError")
class LoadsNothing(Saves):
    def load_state(self, data):
        return Place(int(data[0]), None)


@broken("saving", "save_state changes the state it was given")
class SaveMoves(CopiesItsBoards):
    def save_state(self, state):
        state.cells[:] = 0
        return np.zeros(3, np.uint8)

    def load_state(self, data):
        return self.reset(0)


@pytest.mark.parametrize(("simulator", "subject", "words", "verdict", "others"), BROKEN)
def test_what_is_broken_is_named(simulator, subject, words, verdict, others):
    report = check(simulator(), steps=60)
    found = {(f.subject, f.verdict) for f in report.findings} - {("speed", "note")}
    text = " ".join(f.text for f in report.findings if f[:2] == (subject, verdict))
    assert [word for word in words if word not in text] == [], text
    assert report.ok == (verdict == "note")
    # One cause, one complaint.
    assert {s for s, v in found if v == "wrong"} - {subject} == set(others)


class Strict(Walk):
    """Sound: it takes nothing that its mask or its ending forbids, and never looks back."""

    def action_mask(self, state):
        return np.array([True, state.steps % 2 == 0, state.cell > 3])

    def step(self, state, action):
        assert state.cell != 0
        assert type(action) is int
        assert self.action_mask(state)[action]
        return super().step(state, action)


class Dice(Walk):
    """Sound: chance is a part of the state."""

    def reset(self, seed):
        return super().reset(seed), seed

    def step(self, state, action):
        place, seed = state
        rng = np.random.default_rng(seed)
        after, _, *flags = super().step(place, action)
        return (after, int(rng.integers(2**40))), float(rng.normal()), *flags

    def observe(self, state):
        return super().observe(state[0])


class CopiesItsGenerator(Dice):
    def reset(self, seed):
        return Walk.reset(self, seed), np.random.default_rng(seed)

    def step(self, state, action):
        rng = copy.deepcopy(state[1])
        after, _, *flags = Walk.step(self, state[0], action)
        return (after, rng), rng.random(), *flags


class Remembers(Walk):
    """Sound: what it keeps on itself are results that never change."""

    def __init__(self):
        self.known = {}

    def step(self, state, action):
        if (state, action) not in self.known:
            self.known[state, action] = super().step(state, action)
        return self.known[state, action]


class Lists(Walk):
    """Sound: plain lists and numbers of NumPy are as good as arrays and numbers of Python."""

    def step(self, state, action):
        after, reward, terminated, truncated = super().step(state, action)
        return [after, np.float32(reward), np.bool_(terminated), np.array(truncated)]

    def observe(self, state):
        return super().observe(state).tolist()

    def action_mask(self, state):
        return [True, True, state.steps > 2]


class ArraysOfJax(Walk):
    """Sound: a Python simulator may compute with JAX."""

    def observe(self, state):
        return jnp.eye(LENGTH)[state.cell]


def thin_ice():
    sys.path.append(str(Path(__file__).parents[2] / "examples"))
    try:
        import custom_environment
    finally:
        sys.path.pop()
    return custom_environment.thin_ice()


class Drift(NamedTuple):
    """Sound: a JAX environment with entries to see, a picture, and chance by a key."""

    num_actions = 3

    def reset(self, key):
        return {"at": jax.random.uniform(key, (2,)), "steps": jnp.int32(0)}

    stochastic = True

    def step(self, state, action, key):
        length = action * 0.1 + 0.01 * jax.random.uniform(key)
        after = {"at": state["at"] + length, "steps": state["steps"] + 1}
        return after, after["at"].sum(), after["at"][0] > 1.5, after["steps"] >= 20

    def observe(self, state):
        return {"at": state["at"], "steps": state["steps"] / 20}

    def render(self, state):
        return np.zeros((2, 2, 3), np.uint8)


SOUND = {
    "tightrope": tightrope_simulator,
    "tightrope, easy": lambda: tightrope_simulator(terminal=20, reward="dense"),
    "covering": lambda: make("covering"),
    "marble run": lambda: make("marble-run"),
    "tightrope in JAX": tightrope,
    "thin ice in JAX": thin_ice,
    "drift in JAX": Drift,
    **{kind.__name__: kind for kind in (Strict, CopiesItsBoards, Slips, Dice, CopiesItsGenerator)},
    **{kind.__name__: kind for kind in (Remembers, Lists, ArraysOfJax, Saves)},
}


def chance_in(simulator):
    return [
        finding[1:] for finding in check(simulator, steps=50).findings if finding[0] == "chance"
    ]


def test_chance_is_found_and_said_in_words():
    ((verdict, text),) = chance_in(Slips())
    assert verdict == "ok"
    assert "other outcomes with other seeds, the same with the same seed" in text
    ((verdict, text),) = chance_in(CopiesItsGenerator())
    assert verdict == "note"
    assert "the state holds a random generator, state[1], that step draws from" in text
    assert "stochastic = True" in text
    assert chance_in(Walk()) == []


def test_a_simulator_without_chance_that_is_random_is_told_how_to_say_so():
    (finding,) = [f for f in check(GlobalChance()).findings if f.verdict == "wrong"]
    assert finding.subject == "determinism"
    assert "stochastic = True and draw from the seed that step(state, action, seed)" in finding.text


def test_what_was_saved_is_reported():
    found = [finding[1:] for finding in check(Saves(), steps=50).findings if finding[0] == "saving"]
    assert found == [("ok", "12 states continued the same from 2 bytes each")]


# Marble Run is a Construction task too, thin ice and Drift are JAX environments too.
SLOW = {"covering", "tightrope in JAX"}
NAMES = [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in SOUND]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_sound_is_called_sound(name):
    report = check(SOUND[name](), steps=50)
    assert [finding for finding in report.findings if finding.verdict == "wrong"] == []
    kind = "JAX environment" if name.endswith("JAX") else "simulator"
    assert f"a {kind} of" in report.findings[0].text
    assert {"determinism", "state", "branches", "interleaving", "endings", "speed"} <= {
        finding.subject for finding in report.findings if "not looked at" not in finding.text
    }


def test_a_key_with_a_step_that_cannot_be_compiled():
    class Untraceable(Drift):
        def step(self, state, action, key):
            return super().step(state, action if state["at"][0] > 0 else 1, key)

    (finding,) = check(Untraceable()).findings
    assert finding[:2] == ("interface", "wrong")
    assert "jax.jit can't compile step: TracerBoolConversionError" in finding.text
    assert "test_check.py:" in finding.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s, *rest: (s | {"at": jnp.zeros(3)}, *rest), "structure, shapes and types"),
        (lambda s, r, *rest: (s, jnp.stack([r, r]), *rest), "float32 [2]"),
        (lambda s, r, a, b: (s, r, a), "3 values"),
        (lambda s, r, a, b: (s, r / 0, a, b), "not finite"),
    ],
    ids=["another state", "two rewards", "three values", "infinite reward"],
)
def test_a_step_that_compiles_and_is_wrong(change, words):
    class Broken(Drift):
        def step(self, state, action, key):
            return change(*super().step(state, action, key))

        def observe(self, state):
            return state["at"][:2]

    (finding,) = [f for f in check(Broken(), steps=20).findings if f.verdict == "wrong"]
    assert finding.subject == "step"
    assert words in finding.text


class Table(NamedTuple):
    """A sound random MDP: where an action leads, what it pays, and where it ends."""

    goes: np.ndarray
    pays: np.ndarray
    ends: np.ndarray


def table(seed, states=6, actions=3):
    rng = np.random.default_rng(seed)
    pays = rng.normal(size=(states, actions))
    return Table(rng.integers(states, size=(states, actions)), pays, rng.random(states) < 0.2)


FAULTS = {
    "pays NaN": lambda self, state, result: (result[0], np.nan, *result[2:]),
    "pays an array": lambda self, state, result: (result[0], np.ones(2), *result[2:]),
    "forgets a value": lambda self, state, result: result[:3],
    "raises": lambda self, state, result: result[9],
    "pays by chance": lambda self, state, result: (result[0], float(self.chance()), *result[2:]),
    "counts": lambda self, state, result: (result[0], float(self.visits), *result[2:]),
    "writes to its state": lambda self, state, result: (state.append(state.pop() ^ 1), result)[1],
    "ends in words": lambda self, state, result: (*result[:2], "no", False),
}


class Faulty:
    """A table with a fault in one place; states are lists of one number."""

    num_actions = 3

    def __init__(self, mdp, place, fault):
        self.mdp, self.place, self.fault, self.visits = mdp, place, fault, 0
        self.chance = np.random.default_rng().random

    def reset(self, seed):
        return [seed % 5]

    def step(self, state, action):
        here = (state[0], action)
        after = int(self.mdp.goes[here])
        result = ([after], float(self.mdp.pays[here]), bool(self.mdp.ends[after]), False)
        if here != self.place or self.fault is None:
            return result
        self.visits += 1
        return FAULTS[self.fault](self, state, result)

    def observe(self, state):
        return np.eye(6)[state[0]]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    place=st.tuples(st.integers(0, 5), st.integers(0, 2)),
    fault=st.sampled_from([None, *FAULTS]),
)
def test_a_fault_is_found_wherever_the_check_comes_by(seed, place, fault):
    simulator = Faulty(table(seed), place, fault)
    report = check(simulator, seeds=2, steps=8, seed=seed)
    assert report.ok == (simulator.visits == 0)


def test_jax_is_left_alone_where_nobody_uses_it():
    program = (
        "import sys; from save_rl.envs.check import check;"
        "from save_rl.envs.tightrope import tightrope_simulator;"
        "assert check(tightrope_simulator()).ok; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def lines(report):
    console = Console(width=80, file=io.StringIO())
    report.print(console)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_a_report_in_print():
    text = lines(check(Walk()))
    assert "ok    observations  always observation float32 [12]" in text
    assert text.endswith("Nothing is wrong with this simulator.")
    assert lines(check(ThreeValues())).endswith("One thing is wrong with this simulator.")


def test_places_and_ranges_are_not_taken_for_markup():
    assert "observation['time'][1] is inf" in " ".join(lines(check(InfiniteObservation())).split())


def test_a_slow_simulator_is_looked_at_for_less_long():
    made = 0

    class Slow(NeverEnds):
        def step(self, state, action):
            nonlocal made
            made += 1
            time.sleep(0.005)
            return super().step(state, action)

    report = check(Slow(), seconds=0.5)
    assert made < 2000  # 800 steps and all that is tried with them are 4,000
    assert report.ok
    assert "More did not fit into 0.5 seconds" in report.findings[-1].text


def test_large_observations_are_not_all_remembered(monkeypatch):
    monkeypatch.setattr(episodes, "ROOM", 10 * LENGTH * 8)
    report = check(NeverEnds())
    assert report.ok
    assert "within 2" not in next(f.text for f in report.findings if f.subject == "endings")


def test_the_same_check_twice_finds_the_same():
    one, two = (check(Strict(), seed=3, steps=50).findings[:-1] for _ in range(2))
    assert one == two


@pytest.mark.parametrize(
    ("option", "value"), [("seeds", 0), ("steps", 0), ("seed", -1), ("seconds", 0)]
)
def test_impossible_options(option, value):
    with pytest.raises(InputError, match=f"^{option}: {value} is not possible"):
        check(Walk(), **{option: value})
