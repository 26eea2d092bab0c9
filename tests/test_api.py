"""Factories given as objects, and scripts that forget their guard."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import save_rl
from save_rl.api import env_name
from save_rl.errors import InputError
from save_rl.training.cluster.settings import ClusterSettings

SOURCE = Path(__file__).parents[1] / "src"
SCRIPT = """
import numpy as np
import save_rl

class Stairs:
    num_actions = 2
    def reset(self, seed): return 0
    def step(self, state, action): return state + 1, 1.0, state >= 3, False
    def observe(self, state): return np.array([state / 4])

save_rl.train(Stairs, steps=100, lanes=8, batch=8, workers=1, out="run")
"""


class Stairs:
    pass


def test_a_factory_is_found_by_its_name():
    assert env_name(Stairs) == "tests.test_api:Stairs"
    assert env_name("gym/CartPole-v1") == "gym/CartPole-v1"


def test_a_factory_of_a_script_is_found_by_the_name_of_its_file(monkeypatch):
    monkeypatch.setattr(Stairs, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/far/away/my_script.py", False)
    assert env_name(Stairs) == "my_script:Stairs"


@pytest.mark.parametrize("factory", [lambda: None, Stairs(), Stairs.__init__, 3])
def test_what_has_no_name_is_refused(factory):
    with pytest.raises(InputError, match="has no name by which a run could find it again"):
        env_name(factory)


@pytest.mark.slow
def test_a_script_without_its_guard_stops_instead_of_starting_workers_without_end(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "starts worker processes when it is imported" in done.stderr


def test_what_is_said_of_a_cluster_is_for_one():
    with pytest.raises(InputError) as error:
        save_rl.train("gym/CartPole-v1", cluster_settings=ClusterSettings(ahead=3))
    assert str(error.value) == (
        "--cluster.ahead: 3 is not possible; it must be left out without --cluster."
    )


def test_a_cluster_is_asked_for_as_on_the_command_line():
    pytest.importorskip("ray")
    actors = ClusterSettings(actors=65)
    with pytest.raises(InputError) as error:
        save_rl.train("gym/CartPole-v1", cluster="auto", cluster_settings=actors)
    assert str(error.value) == (
        "--cluster.actors: 65 is not possible; it must be between 1 and --lanes (64), as every "
        "actor has one at least."
    )
