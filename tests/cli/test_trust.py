"""What runs code, and where modules are looked for: only what the user has named or trusted."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import save_rl
from save_rl import envs
from save_rl.cli import main
from save_rl.errors import InputError
from save_rl.training.settings import TrainSettings
from save_rl.watch import watch

SRC = Path(save_rl.__file__).parents[1]


@pytest.fixture
def forgetful(monkeypatch):
    """A process that has made nothing yet."""
    monkeypatch.setattr(envs, "_made", set())
    monkeypatch.setattr(sys, "path", [*sys.path])


def foreign(folder, env="tightrope", **settings):
    """Write the config of a run that somebody else has made."""
    config = {"settings": asdict(TrainSettings(env=env, **settings))}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    assert out == ""
    return stop.value.code, err


FOREIGN = {
    "os:system": "os",
    "evil_twin:make": "evil_twin",
    "gym/evil_twin:my/Env-v0": "evil_twin",
    "save_rl.files:write_atomically": "save_rl.files",
    "gym/GymV26Environment-v0": "GymV26Environment-v0",
}


@pytest.mark.parametrize(("env", "module"), FOREIGN.items())
@pytest.mark.usefixtures("forgetful")
def test_a_foreign_run_runs_no_code(tmp_path, capsys, monkeypatch, env, module):
    monkeypatch.chdir(tmp_path)
    Path("evil_twin.py").write_text("open('was_run', 'w').close()\n")
    folder = foreign(tmp_path, env)
    sentence = (
        f"the run in '{folder}' would import and run code of '{module}' (its environment is "
        f"'{env}'); add --trust (trust=True in Python) if you know it."
    )
    assert said(capsys, "evaluate", folder) == (2, f"save-rl: DIR: {sentence}\n")
    assert said(capsys, "evaluate", folder, "--agent", "uct", "--budgets", 1) == (
        2,
        f"save-rl: DIR: {sentence}\n",
    )
    assert said(capsys, "watch", folder, "--out", "x.gif") == (2, f"save-rl: ENV: {sentence}\n")
    with pytest.raises(InputError, match="would import and run code"):
        save_rl.evaluate(folder)
    with pytest.raises(InputError, match="would import and run code"):
        watch(str(folder), tmp_path / "x.gif")
    assert not Path("was_run").exists()
    assert "evil_twin" not in sys.modules


@pytest.mark.parametrize("what", ["network", "optimizer"])
@pytest.mark.usefixtures("forgetful")
def test_a_foreign_run_runs_no_code_of_its_network(tmp_path, capsys, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    Path(f"evil_{what}.py").write_text("open('was_run', 'w').close()\n")
    foreign(tmp_path, **{what: f"evil_{what}:make"})
    code, sentence = said(capsys, "evaluate", tmp_path)
    assert code == 2
    assert sentence.startswith(f"save-rl: DIR: the run in '{tmp_path}' would import and run code")
    assert f"of 'evil_{what}' (its {what} is 'evil_{what}:make'); add --trust" in sentence
    assert not Path("was_run").exists()
    assert said(capsys, "evaluate", tmp_path, "--trust")[0] == 2  # it makes nothing
    assert Path("was_run").exists()


@pytest.mark.parametrize("env", ["tightrope", "covering", "gym/CartPole-v1", "atari/MsPacman"])
def test_named_environments_need_no_trust(env):
    envs.require_trust(env, "runs/x", False, "DIR")


def run_here(folder, *arguments, entry=("-m", "save_rl"), path=SRC):
    """Run the command line in a folder, as a process of its own."""
    return subprocess.run(
        [sys.executable, *entry, *map(str, arguments)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(path)}, check=False,
    )  # fmt: skip


SCRIPT = ("-P", "-c", "import sys; from save_rl.cli import main; main()")


@pytest.mark.parametrize("entry", [("-m", "save_rl"), SCRIPT], ids=["module", "script"])
def test_files_in_the_current_folder_replace_no_modules(tmp_path, entry):
    for name in ("secrets", "json", "typing_extensions", "numpy", "difflib", "tyro"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('was run')\n")
    ran = run_here(tmp_path, "agents", entry=entry)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("save ")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_simulator_in_the_current_folder_is_found_behind_all_else(tmp_path, workers, capsys):
    """Also by a worker process, where the files there replace no modules either."""
    (tmp_path / "json.py").write_text("raise SystemExit('was run')\n")
    (tmp_path / "my_own_walk.py").write_text("from tests.envs.pool_simulators import walk\n")
    root = Path(__file__).parents[2]
    code = (
        "import sys\n"
        "from save_rl.envs import make_simulator\n"
        "from save_rl.envs.pool import Pool, Source\n"
        "source = Source('my_own_walk:walk', 0, {})\n"
        f"with Pool([make_simulator('my_own_walk:walk')], [1], workers={workers},\n"
        "          sources=[source]) as pool:\n"
        "    pool.reset(0, pool.groups[0].lanes, [3])\n"
        "    print(pool.observation([0])[0][0], sys.path[-1])\n"
    )
    ran = run_here(tmp_path, entry=("-P", "-c", code), path=f"{SRC}{os.pathsep}{root}")
    assert ran.stdout == f"1.0 {tmp_path}\n", ran.stderr


def test_a_current_folder_that_was_deleted_is_no_traceback(tmp_path):
    code = "import os, sys; os.rmdir(os.getcwd()); from save_rl.cli import main; main(sys.argv[1:])"
    gone = tmp_path / "gone"
    # With -P it is not on the path, as with an installed command; where it is, Python 3.13.0 can't
    # import NumPy.
    for arguments, answer in (
        (["agents"], (0, "")),
        (["check", "nowhere:x"], (2, "ENV: 'nowhere' can't be imported (No module named")),
    ):
        gone.mkdir()
        ran = run_here(gone, *arguments, entry=("-P", "-c", code))
        assert ran.returncode == answer[0], ran.stderr
        assert answer[1] in ran.stderr
        assert "Traceback" not in ran.stderr
