"""`save-rl check`: a report on standard output, and an exit code that scripts can use."""

import shlex
import sys

import numpy as np
import pytest

import save_rl
from save_rl.cli import main

HERE = "tests.cli.test_check_command"


class Countdown:
    """From 5 to 0; nothing is wrong with it."""

    num_actions = 2

    def __init__(self, start=5):
        self.start = start

    def reset(self, seed):
        return self.start + seed

    def step(self, state, action):
        after = max(0, state - 1 - action)
        return after, float(after), after == 0, False

    def observe(self, state):
        return np.array([state / 10])


class RollsDice(Countdown):
    def step(self, state, action):
        after, _, *flags = super().step(state, action)
        return after, np.random.default_rng().random(), *flags


class TwoFaults(Countdown):
    def observe(self, state):
        return np.array([np.inf])

    def step(self, state, action):
        after, _, *flags = super().step(state, action)
        return after, np.nan, *flags


def without_a_map(path="maps/one.txt"):
    raise FileNotFoundError(f"there is no map {path}")


def needs_a_size(size):
    return Countdown(size)


@pytest.fixture
def check(capsys, monkeypatch):
    """Exit code, standard output and standard error of `save-rl check ...`."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # `main` adds the folder one stands in

    def run(arguments):
        code = 0
        try:
            main(["check", "--seconds", "1", *shlex.split(arguments)])
        except SystemExit as stop:
            code = stop.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.parametrize("env", ["tightrope", "gym/FrozenLake-v1", "covering"])
def test_ours_and_those_of_gymnasium_are_sound(check, env):
    code, out, err = check(env)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("ok    interface     a simulator of ")
    assert lines[-1] == "Nothing is wrong with this simulator."
    assert any(line.startswith("ok    processes") for line in lines)


def test_options_reach_the_factory(check):
    assert "no episode ended" in check(f"{HERE}:Countdown --env-options start=1000")[1]


def test_a_fault_is_said_in_words(check):
    code, out, err = check(f"{HERE}:RollsDice")
    assert (code, err) == (1, "")
    assert "wrong  determinism   the same seed and actions give another episode" in out
    assert out.endswith("One thing is wrong with this simulator.\n")


def test_faults_are_counted(check):
    code, out, _ = check(f"{HERE}:TwoFaults")
    assert code == 1
    assert out.endswith("2 things are wrong with this simulator.\n")


def test_what_training_refuses_is_not_called_sound(check):
    code, out, _ = check("tests.cli.broken_environments:Branching")
    assert code == 1
    assert "training refuses it" in out


IMPOSSIBLE = {
    "tigthrope": (
        "ENV: there is no environment 'tigthrope'; known: atari/GAME, connecting, covering, "
        "covering-hard, gym/ID, gymnax/ID, jumanji/ID, marble-run, pgx/ID, silhouette, tightrope. "
        "Did you mean 'tightrope'?"
    ),
    "gym/CartPol-v1": "ENV: Gymnasium has no environment 'CartPol-v1'. Did you mean 'CartPole-v1'?",
    "nowhere.at_all:make": "ENV: 'nowhere.at_all' can't be imported (No module named 'nowhere').",
    f"{HERE}:missing": f"ENV: module '{HERE}' has no 'missing'.",
    f"{HERE}:Countdown --env-options begin=3": (
        "--env-options: there is no option 'begin'; known: start."
    ),
    "tightrope --seed -1": "--seed: -1 is not possible; it must be 0 or more.",
    "tightrope --seconds 0": "--seconds: 0.0 is not possible; it must be more than 0.",
    f"{HERE}:without_a_map --env-options path=two.txt": (
        f"ENV: '{HERE}:without_a_map' can't be made: FileNotFoundError: there is no map two.txt "
        f"({__file__}:{without_a_map.__code__.co_firstlineno + 1})."
    ),
    f"{HERE}:needs_a_size": (
        f"ENV: '{HERE}:needs_a_size' can't be made: TypeError: needs_a_size() missing 1 required "
        "positional argument: 'size'."
    ),
}


@pytest.mark.parametrize("arguments", IMPOSSIBLE)
def test_what_can_not_be_made_is_answered_in_a_sentence(check, monkeypatch, tmp_path, arguments):
    monkeypatch.chdir(tmp_path)
    assert check(arguments) == (2, "", f"save-rl: {IMPOSSIBLE[arguments]}\n")


def test_a_module_that_fails_is_named_with_its_line(check, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fails_at_once.py").write_text("import json\n\nSIZES = json.loads('')\n")
    assert check("fails_at_once:make") == (
        2,
        "",
        "save-rl: ENV: 'fails_at_once:make' can't be made: JSONDecodeError: Expecting value: line "
        "1 column 1 (char 0) (fails_at_once.py:3).\n",
    )


def test_a_simulator_can_be_checked_from_python():
    assert save_rl.check(Countdown(), seconds=1).ok
    assert "check" in save_rl.__all__
