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


class Ladder:
    """Four steps up, each of which pays 1."""

    num_actions = 2

    def reset(self, seed):
        return 0

    def step(self, state, action):
        return state + 1, 1.0, state >= 3, False

    def observe(self, state):
        import numpy as np

        return np.array([state / 4])


SMALL = {"steps": 64, "lanes": 8, "batch": 8, "budget": 1, "progress": False}


def test_a_factory_of_a_notebook_trains_in_this_process(tmp_path, monkeypatch):
    """A class of `__main__` without a file, as a notebook has it, and one inside a function."""

    class Here(Ladder):
        pass

    monkeypatch.setattr(Ladder, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert env_name(Ladder) == "__main__:Ladder"
    assert env_name(Here) == "__main__:Here"
    run = save_rl.train(Here, out=tmp_path / "run", **SMALL)  # workers are left out
    assert {row["return_mean"] for row in run.metrics if "return_mean" in row} == {4.0}
    assert save_rl.load(run.path).act(0, 1).visits.sum() == 1
    with pytest.raises(InputError) as refused:
        save_rl.train(Here, out=tmp_path / "other", workers=2, **SMALL)
    assert str(refused.value) == (
        "workers: 2 is not possible; it must be 0 for '__main__:Here': workers import their "
        "simulators from files, and can't import what a notebook or a function defines."
    )
    monkeypatch.setattr("save_rl.envs._given", {})  # as in another process
    with pytest.raises(InputError, match="was defined in a notebook, a prompt or a function of an"):
        save_rl.evaluate(run.path, (0,), 2, trust=True)
    assert save_rl.load(run.path, simulator=Here()).act(0, 1).visits.sum() == 1
    shown = repr(run).splitlines()
    assert shown[0] == f"{run.path}: save on __main__:Here, seed 0"
    assert shown[1].startswith("32 episodes, 128 real steps, 128 simulated steps, ")
    assert shown[2] == "return at the end 4.000"
    assert run._repr_html_().count("<br>") == len(shown) - 1


def test_the_package_lists_what_it_offers():
    listed = {name for name in dir(save_rl) if not name.startswith("__")}
    assert listed == set(save_rl.__all__)
    for name in listed:
        assert callable(getattr(save_rl, name))
    assert {"train", "evaluate", "load", "search", "compare", "make", "check"} <= listed


def test_the_version_is_shown(capsys):
    from save_rl.cli import main

    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"save-rl {save_rl.__version__}\n"


def test_what_is_run_without_being_imported_trains_here():
    """As the blocks of a page, or the text of a prompt."""
    names = {"__name__": "page"}
    exec("class Corridor: pass", names)
    assert env_name(names["Corridor"]) == "__main__:Corridor"
