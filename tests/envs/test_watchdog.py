"""A call that does not return is named, and one Ctrl-C ends it."""

import itertools
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

from save_rl.envs.watchdog import EARLY, Watchdog, ask_where, place, place_in
from save_rl.processes import start_python
from tests.envs.broken_simulators import Hanging

TRACE = """Thread 0x1 (most recent call first):
  File "/elsewhere/other.py", line 1 in other

Current thread 0x2 (most recent call first):
  File "/usr/lib/python3/numpy.py", line 3 in dot
  File "/home/me/maze.py", line 12 in _walk
  File "/home/me/maze.py", line 40 in reset

Thread 0x3 (most recent call first):
  File "/elsewhere/third.py", line 1 in third
"""


def test_the_innermost_function_of_the_author_is_named():
    assert place_in(TRACE.replace("/usr/lib/python3", "<frozen")) == "_walk (maze.py:12)"
    library = threading.__file__
    frames = [("<string>", 1, "x"), (library, 5, "wait"), ("/home/me/maze.py", 7, "step")]
    assert place(frames) == "step (maze.py:7)"
    assert place(frames[:2]) == "wait (threading.py:5)"  # nothing else is known
    assert place([]) == place_in("") == ""


def test_a_call_that_hangs_is_named_once(tmp_path):
    said: list[str] = []
    trap, heard = tmp_path / "trap", threading.Event()
    trap.touch()

    def say(message):
        said.append(message)
        assert dog.hanging
        trap.unlink()
        heard.set()

    dog = Watchdog(patience=0.05, say=say)
    dog.name = "the simulator 'maze'"
    with dog, dog:  # also within itself
        Hanging(trap).reset(0)
    assert heard.wait(1200)
    assert not dog.hanging
    (message,) = said
    assert message.startswith("the simulator 'maze' has not answered for 0 s; it is in reset (brok")
    with dog:
        pass  # calls that return are not mentioned
    assert len(said) == 1


def test_waiting_for_another_process_says_where_it_is():
    said: list[str] = []
    dog = Watchdog(patience=0.01, say=said.append)
    answers = iter([False, False, True])
    dog.waiting(lambda milliseconds: next(answers), lambda: TRACE)
    assert len(said) == 1  # not again for the same place
    assert "; it is in _walk (maze.py:12)." in said[0] or "dot (numpy.py:3)" in said[0]
    assert not dog.hanging


def test_a_process_that_makes_calls_does_not_hang():
    said: list[str] = []
    dog = Watchdog(patience=0.01, say=said.append)
    answers, calls = iter([False] * 5 + [True]), iter([0, 1, 2, 2, 3, 3])
    hangs = []

    def poll(milliseconds):
        hangs.append(dog.hanging)
        return next(answers)

    dog.waiting(poll, lambda: TRACE, lambda: next(calls))
    assert hangs == [False, False, False, True, False, True]
    assert len(said) == 1
    assert not dog.hanging


@pytest.mark.parametrize("moves", [True, False])
def test_a_thread_that_makes_calls_does_not_hang(moves):
    """The calls are counted as often as the watchdog looks, however slow the machine is."""
    said, looks, numbers = threading.Event(), threading.Event(), itertools.count()

    def calls():
        number = next(numbers)
        if number > 100:
            looks.set()
        return number if moves else 0

    dog = Watchdog(patience=0.05, say=lambda message: said.set())
    with dog.counting(calls):
        assert looks.wait(1200)
        assert said.is_set() != moves


WAITS = """
def rests():
    print("rests", flush=True)
    time.sleep(10**6)
"""


@pytest.mark.parametrize("early", [True, False])
def test_a_process_says_where_it_is_once_it_can(early):
    """The signal would end one that is still starting."""
    with tempfile.TemporaryFile() as file:
        code = (EARLY.format(1) if early else "") + f"import time\n{WAITS}\nrests()"
        process = start_python(
            code, str(file.fileno()), stdout=subprocess.PIPE, pass_fds=[file.fileno()]
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"rests\n"
            said = ask_where(process, file.fileno())
            process.kill()
        assert process.returncode == -signal.SIGKILL
    assert ("in rests" in said) is early


HANGS = """
import sys
from save_rl.envs.watchdog import WATCHDOG
WATCHDOG.patience = 0.5
from save_rl.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", ["check", "train --workers 0", "train"])
def test_a_simulator_that_hangs_in_reset_is_named_and_ends_on_one_ctrl_c(tmp_path, command):
    trap = tmp_path / "trap"
    trap.touch()
    name, *more = command.split()
    arguments = [name, "tests.envs.broken_simulators:Hanging", *more]
    arguments += ["--env-options", f"trap={trap}"]
    if name == "train":
        arguments += ["--steps", "100", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS, *arguments], stderr=subprocess.PIPE, text=True
    )
    limit = threading.Timer(1200, process.kill)
    try:
        assert process.stderr is not None
        lines = [""]
        limit.start()
        while "it is in reset (broken_simulators.py:" not in lines[-1]:  # imports may be slow, too
            lines.append(process.stderr.readline())
            assert lines[-1], "".join(lines)  # the end of the file
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    finally:
        limit.cancel()
        process.kill()
        process.communicate()
    assert "the simulator 'tests.envs.broken_simulators:Hanging'" in lines[-1]
    assert not (tmp_path / "run").exists()
