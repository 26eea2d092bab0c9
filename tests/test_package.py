"""The package as users get it: the wheel, the sdist, and a fresh environment in another folder."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import save_rl

ROOT = Path(__file__).parents[1]
EXTRAS = {"covering": "construction", "atari/ms_pacman": "atari"}  # an environment of each


def run(*command, cwd, check=True):
    """Run a command away from this checkout; returns what it printed."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean, check=check, capture_output=True, text=True
    )


def build(source, out):
    """Build a folder as its wheel and sdist."""
    run(sys.executable, "-m", "hatchling", "build", "-d", out, cwd=source)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def test_the_wheel_holds_the_package_and_nothing_else(built):
    wheel, _ = built
    assert wheel.name == f"save_rl-{save_rl.__version__}-py3-none-any.whl"
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected
    assert "save_rl/py.typed" in names


def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert (source / "tests" / "conftest.py").exists()
    assert (source / "constraints.txt").exists()
    again, _ = build(source, tmp_path / "dist")
    assert again.read_bytes() == wheel.read_bytes()


def environment(folder, *install):
    """Make a fresh environment without pip; returns its Python."""
    run("uv", "venv", "--python", sys.executable, folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    run("uv", "pip", "install", "--python", python, *install, cwd=folder.parent)
    return python


@pytest.fixture(autouse=True)
def _uv(monkeypatch):
    """Find the uv of this environment first."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def test_the_wheel_works_in_another_folder(built, tmp_path):
    python = environment(tmp_path / "env", "--no-deps", built[0])
    # Dependencies come from here; a path file does not bring the checkout along.
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "here.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = run(python, "-c", "import save_rl; print(save_rl.__file__)", cwd=tmp_path).stdout
    assert Path(found.strip()).is_relative_to(tmp_path)
    assert (
        "save-no-amortization" in run(tmp_path / "env/bin/save-rl", "agents", cwd=tmp_path).stdout
    )


@pytest.mark.slow
def test_a_fresh_environment_runs_the_demo_and_names_missing_extras(built, tmp_path):
    python = environment(tmp_path / "env", "-c", ROOT / "constraints.txt", built[0])
    command = tmp_path / "env" / "bin" / "save-rl"
    shown = run(command, "demo", "--episodes", "64", "--out", "demo", cwd=tmp_path)
    assert "Test reward after 64 episodes" in shown.stdout
    assert (tmp_path / "demo" / "curve.png").stat().st_size > 1000
    found = run(python, "-c", "import save_rl; print(save_rl.__file__)", cwd=tmp_path).stdout
    assert Path(found.strip()).is_relative_to(tmp_path)
    for env, extra in EXTRAS.items():
        agent = ("--agent", "r2d2") if extra == "atari" else ()
        refused = run(command, "train", env, *agent, "--episodes", "1", cwd=tmp_path, check=False)
        assert refused.returncode == 2
        assert f"pip install 'save-rl[{extra}]'" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    refused = run(command, "train", "--cluster", "auto", cwd=tmp_path, check=False)
    assert refused.returncode == 2
    assert "pip install 'save-rl[cluster]'" in refused.stderr
