"""What is wrong with a cluster, found on a real one: a sentence that says where."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray")

from save_rl.training.cluster import local_cluster
from tests.training.ray_cluster import finish, private_ray, start, wait_for

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]


@pytest.fixture
def started():
    """Starts a cluster with options of ray start; its address."""
    processes = []

    def begin(*options):
        address, process = local_cluster.start_cluster(*options)
        processes.append(process)
        return address

    with private_ray():
        yield begin
        for process in processes:
            local_cluster.end_cluster(process)


def refusal(code, *options):
    """What a run on a cluster answers, in one line and before it writes anything. It may say first
    where the cluster is and which settings it chose."""
    out = Path(options[-1])
    _, errors = finish(start(*options), code)
    *before, last = errors.splitlines()
    said = ("cluster at ", "Chosen for ", "  --")
    assert [line for line in before if not line.startswith(said)] == []
    assert not out.exists()
    return last


@pytest.mark.parametrize(("name", "value"), [("TOKEN", "f" * 32), ("MODE", "disabled")])
def test_a_wrong_token_or_none(cluster, tmp_path, monkeypatch, name, value):
    address, _ = cluster
    monkeypatch.setenv(f"RAY_AUTH_{name}", value)
    said = refusal(1, "--cluster", address, "--out", tmp_path / "run")
    assert said == (
        f"save-rl: --cluster: can't join the cluster at '{address}'; it wants another token, see "
        "Ray's RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH."
    )


def test_an_object_store_that_is_too_small(started, tmp_path):
    least = 75 * 2**20  # that Ray starts with
    address = started(f"--object-store-memory={least}")
    wide, lanes, ahead = 40_000, 64, 4
    said = refusal(
        2, "--cluster", address, "--env-options", f"width={wide}", "--lanes", lanes,
        "--cluster.ahead", ahead, "--replay", 100, "--out", tmp_path / "run",
    )  # fmt: skip
    pattern = (
        r"save-rl: --cluster: the object store of node [\d.]+ has 78,643,200 bytes, and this run "
        r"needs ([\d,]+); give that node more with ray start --object-store-memory\."
    )
    needed = int(re.fullmatch(pattern, said).group(1).replace(",", ""))
    assert needed > lanes * ahead * 2 * wide * 4 > least  # two observations of each step that waits


def test_a_node_with_another_version(started, tmp_path):
    address = started("--num-cpus=0")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "all.pth").write_text(sysconfig.get_path("purelib"))
    (packages / "numpy-0.0.dist-info").mkdir()
    (packages / "numpy-0.0.dist-info" / "METADATA").write_text("Name: numpy\nVersion: 0.0\n")
    join = ["-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1", f"--address={address}"]
    with (tmp_path / "log").open("w") as log:
        node = subprocess.Popen([venv / "bin" / "python", *join], stdout=log, stderr=log)
    try:
        wait_for(lambda: "Ray runtime started" in (tmp_path / "log").read_text())
        said = refusal(2, "--cluster", address, "--out", tmp_path / "run")
    finally:
        node.terminate()
        node.wait()
    assert re.fullmatch(
        r"save-rl: --cluster: node [\d.]+ \(\w{8}\): it has numpy 0\.0, and the learner "
        rf"{re.escape(np.__version__)}; install the same on all nodes\.",
        said,
    )
