"""Environments that are checked by name: made here, and once more in a worker process."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from save_rl.envs.check import check_named
from save_rl.errors import InputError

HERE = "tests.envs.test_check_named"
PARENT = "SAVE_RL_TEST_PARENT"  # set in the process of the tests, to be told from its workers


class Countdown:
    """From `seed % 5 + 3` to 0; action 1 counts by two, action 2 is possible above 2 alone."""

    num_actions = 3
    words = tuple("abcdefghijklmnopqrstuvwxyz")

    def reset(self, seed):
        return seed % 5 + 3

    def step(self, state, action):
        after = max(0, state - (1, 2, 3)[action])
        return after, 0.1 * after, after == 0, False

    def observe(self, state):
        return {"left": np.array([state / 8]), "count": np.int64(state)}

    def action_mask(self, state):
        return np.array([True, True, state > 2])


class ListsASet(Countdown):
    def observe(self, state):
        return np.array([ord(letter) for letter in set(self.words)]) / 200 + state


class LooksAtTheProcess(Countdown):
    def step(self, state, action):
        after, _, *flags = super().step(state, action)
        return after, float(os.getpid()), *flags


class DrawsWhenMade(Countdown):
    def __init__(self):
        self.bonus = np.random.default_rng().random()

    def step(self, state, action):
        after, reward, *flags = super().step(state, action)
        return after, reward + self.bonus, *flags


class DrawsFromItsSeed(DrawsWhenMade):
    """Sound: all workers make the same."""

    def __init__(self, seed, scale=1):
        self.bonus = scale * np.random.default_rng(seed).random()


class Saves(Countdown):
    """Sound."""

    def save_state(self, state):
        return np.array([state], np.uint8)

    def load_state(self, data):
        return int(data[0])


class SavesWhereItIs(Saves):
    """The bytes are right in the process that wrote them alone."""

    def save_state(self, state):
        return super().save_state(state if in_worker() else state + 90)

    def load_state(self, data):
        return super().load_state(data) - (0 if in_worker() else 90)


class KeepsWhatItSaves(Saves):
    def __init__(self):
        self.kept = []

    def save_state(self, state):
        self.kept.append(state)
        return super().save_state(len(self.kept) - 1)

    def load_state(self, data):
        return self.kept[int(data[0])]


def in_worker():
    return os.environ[PARENT] != str(os.getpid())


class FailsElsewhere(Countdown):
    def step(self, state, action):
        if in_worker():
            raise OSError("no display; none at all")
        return super().step(state, action)


class DiesElsewhere(Countdown):
    def step(self, state, action):
        if in_worker():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(state, action)


def made_here_alone():
    if in_worker():
        raise LookupError("the licence is for one process")
    return Countdown()


@pytest.fixture(autouse=True)
def _this_process(monkeypatch):
    monkeypatch.setenv(PARENT, str(os.getpid()))
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


def processes(env, **options):
    """What is found about processes, where nothing else is wrong."""
    report = check_named(env, options, seconds=0.5)
    assert {f.subject for f in report.findings if f.verdict == "wrong"} <= {"processes"}
    return [finding[1:] for finding in report.findings if finding.subject == "processes"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Saves", {}),
        ("DrawsFromItsSeed", {"scale": 2}),  # workers have the same options
        pytest.param("DrawsFromItsSeed", {}, marks=pytest.mark.slow),
        pytest.param("Countdown", {}, marks=pytest.mark.slow),
    ],
)
def test_a_sound_simulator_is_the_same_in_a_worker(name, options):
    same = "4 episodes were the same in a worker process"
    assert processes(f"{HERE}:{name}", **options) == [("ok", same)]


DIFFERENT = {
    "ListsASet": ["at the start of seed 0, observation[", "order of a set"],
    "LooksAtTheProcess": ["at step 1 of seed 0, reward is", f"of {os.getpid()}.0", "machine"],
    "DrawsWhenMade": ["at step 1 of seed 0, reward is", "factory that draws random numbers"],
    "FailsElsewhere": ["FailsElsewhere' failed (OSError: no display; none at all)"],
    "DiesElsewhere": ["A worker process died: it was killed by SIGKILL"],
    "SavesWhereItIs": ["differs when a worker process loads it: at ", " instead of "],
    "KeepsWhatItSaves": [
        "in a worker process the simulator",
        "KeepsWhatItSaves' failed (IndexError",
    ],
    "made_here_alone": ["could not make the simulator: LookupError: the licence is for one"],
}


# What is drawn when it is made and what is seen of the process differ in the same place.
SLOW = {"LooksAtTheProcess"}
NAMES = [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in DIFFERENT]


@pytest.mark.parametrize("name", NAMES)
def test_what_differs_in_a_worker_is_named(name):
    ((verdict, text),) = processes(f"{HERE}:{name}")
    assert verdict == "wrong"
    assert [words for words in DIFFERENT[name] if words not in text] == [], text


def test_a_jax_environment_has_no_worker():
    assert processes("tests.training.environments:never_nan") == []


def test_a_factory_of_the_main_program_is_not_there_in_a_worker():
    program = f"""
        from {HERE} import Countdown
        from save_rl.envs.check import check_named
        make = Countdown
        report = check_named("__main__:make", {{}}, seeds=1)
        (finding,) = [f for f in report.findings if f[1] == "wrong"]
        print(finding.subject, finding.text)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("processes")
    assert "'__main__:make' was defined in a notebook" in ran.stdout


def test_an_environment_that_does_not_exist():
    with pytest.raises(InputError, match="Did you mean 'covering'"):
        check_named("coverin", {})
