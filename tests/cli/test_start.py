"""The first moments of a command: an interrupt is no traceback, whenever it comes."""

import subprocess
import sys

import pytest

from save_rl import cli

# Raises an interrupt when a module is imported for the first time.
INTERRUPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests ignore it
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)
wanted = sys.argv[1]
sys.meta_path.insert(0, Finder())
sys.argv = ["save-rl", *sys.argv[2:]]
from save_rl.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("save_rl.errors", "agents"),
        ("save_rl.cli.commands", "agents"),
        ("tyro", "agents"),
        ("numpy", "agents"),
        ("jax", "train --episodes 1"),
    ],
)
def test_an_interrupt_while_modules_are_imported_is_a_sentence(tmp_path, module, command):
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPT, module, *command.split()],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (130, "save-rl: interrupted.\n")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_before_anything_is_imported_is_a_sentence(monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupt)
    with pytest.raises(SystemExit) as stop:
        cli.main(["train"])
    assert stop.value.code == 130
    assert capsys.readouterr().err == "save-rl: interrupted.\n"
