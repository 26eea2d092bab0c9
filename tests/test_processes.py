"""Processes that this one starts: the same modules, words for their end, and no child left."""

import os
import signal
import subprocess
import sys

import pytest

from save_rl.processes import end_group, ending, start_python
from tests.envs.pool_simulators import have_ended


def test_a_process_finds_the_same_modules_and_its_arguments(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("value = 7")
    monkeypatch.syspath_prepend(str(tmp_path))
    code = "import only_here; print(sys.path, only_here.value, sys.argv[1:])"
    process = start_python(code, "a b", "{}", stdout=subprocess.PIPE)
    said, _ = process.communicate()
    assert said.decode() == f"{[x for x in sys.path if isinstance(x, str)]} 7 ['a b', '{{}}']\n"


def test_a_process_and_its_children_are_killed():
    code = "import os, time; os.fork(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(600)"
    with start_python(code, stdout=subprocess.PIPE) as process:
        try:
            said = [process.stdout.readline() for _ in range(2)]
            group = os.getpgid(process.pid)
        finally:
            end_group(process)
    assert group == process.pid
    assert process.returncode == -signal.SIGKILL
    assert have_ended([int(pid) for pid in said])


def test_a_process_that_ends_in_time_is_not_killed():
    process = start_python("import time; time.sleep(0.2); sys.exit(3)")
    end_group(process, 120.0)
    assert process.returncode == 3


@pytest.mark.parametrize(
    ("code", "words"),
    {
        0: "it exited with code 0",
        3: "it exited with code 3",
        -9: "it was killed by SIGKILL",
        -40: "it was killed by signal 40",
    }.items(),
)
def test_the_end_of_a_process_in_words(code, words):
    assert ending(code) == words
