"""Runs on a Ray cluster by the command line: to their end, whoever dies on the way."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest

ray = pytest.importorskip("ray")

from save_rl.errors import InputError  # noqa: E402
from save_rl.training import checkpoint  # noqa: E402
from save_rl.training.cluster import here, learner  # noqa: E402
from save_rl.training.cluster.display import rows  # noqa: E402
from save_rl.training.cluster.program import Program  # noqa: E402
from save_rl.training.cluster.settings import ClusterSettings  # noqa: E402
from save_rl.training.progress import Progress  # noqa: E402
from save_rl.training.settings import TrainSettings  # noqa: E402
from tests.search.table_simulators import maze  # noqa: E402
from tests.training.numbered import check_numbers  # noqa: E402

pytestmark = pytest.mark.xdist_group("ray")
ROOT = Path(__file__).parents[2]
LANES, RATIO, BATCH = 8, 4, 16
SETTINGS = [
    "train", "tests.training.numbered:Numbered", "--lanes", str(LANES), "--batch", str(BATCH),
    "--replay", "20000", "--min-replay", "8", "--budget", "2", "--chunk", "8", "--seed", "3",
    "--checkpoint-seconds", "0",
]  # fmt: skip


@contextmanager
def private_ray(token=True):
    """Ray's files in a folder of our own, with a short name, and its token too.

    Without `token`, Ray makes one when a cluster is started.
    """
    with (
        tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("HOME", folder)
        patch.delenv("RAY_AUTH_MODE", raising=False)
        patch.delenv("RAY_AUTH_TOKEN", raising=False)
        patch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
        if token:
            patch.setenv("RAY_AUTH_MODE", "token")
            patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster, and its process."""
    with private_ray():
        address, process = here.start_cluster()
        yield address, process
        here.end_cluster(process)


def start(*more):
    return subprocess.Popen(
        [sys.executable, "-m", "save_rl", *SETTINGS, *map(str, more)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process, code=0):
    said, errors = process.communicate(timeout=240)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    return said, errors


def newest(out):
    return max(checkpoint.numbers(out / "checkpoints"), default=-1)


def wait_for(what, process=None, seconds=120):
    began = time.monotonic()
    while not (found := what()):
        assert process is None or process.poll() is None, process.communicate()[1]
        assert time.monotonic() - began < seconds
        time.sleep(0.05)
    return found


def descendants(process):
    """Processes below one, and what they are called."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout
    lines = [line.split(None, 2) for line in listed.splitlines()[1:]]
    found, todo = {}, [process]
    while todo:
        parent = todo.pop()
        below = {int(pid): name for pid, above, name in lines if int(above) == parent}
        found |= below
        todo += below
    return found


def called(process, name):
    return [pid for pid, args in descendants(process).items() if args.startswith(name)]


def exists(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def check_counters(out, finished=True):
    """A run is consistent: every transition counted once, the ratio that was asked for."""
    with np.load(out / "checkpoints" / f"{newest(out):09d}" / "arrays.npz") as arrays:
        steps, updates = int(arrays["[0].env_steps"]), int(arrays["[0].updates"])
        assert int(arrays["[0].replay.added"]) == steps
        check_numbers(arrays["[0].replay.data.observation"], steps)
    assert updates * BATCH == pytest.approx(steps * RATIO, rel=0.05)
    lines = list(csv.DictReader(io.StringIO((out / "metrics.csv").read_text())))
    for name in ("env_steps", "updates", "episodes"):
        values = [int(line[name]) for line in lines]
        assert all(before <= after for before, after in pairwise(values))
    assert int(lines[-1]["env_steps"]) == steps or not finished


@pytest.mark.slow
def test_a_learner_that_is_killed_goes_on(cluster, tmp_path):
    address, ray_process = cluster
    out = tmp_path / "run"
    driver = start("--cluster", address, "--episodes", 400, "--out", out)
    wait_for(lambda: newest(out) >= 4, driver)
    (first,) = called(ray_process, "ray::Learner")
    os.kill(first, signal.SIGKILL)
    said, errors = finish(driver)
    assert said.startswith(f"{out}: 4")
    assert "warning: the learner was gone; it goes on from checkpoint " in errors
    assert "actors 2 of 2 alive; steps " in errors
    assert "Ray's dashboard" in errors
    for name in ("config.json", "metrics.csv", "curve.png", "checkpoints"):
        assert (out / name).exists()
    assert json.loads((out / learner.NOTES).read_text())["restarts"] == 1
    check_counters(out)
    events = b"".join(path.read_bytes() for path in out.glob("events*"))
    assert b"cluster_parameter_age/seed3" in events
    assert called(ray_process, "ray::Learner") == called(ray_process, "ray::Actor") == []


def test_an_environment_that_is_missing_on_a_node_is_named_with_it(cluster, tmp_path):
    (tmp_path / "only_here.py").write_text("from tests.search.table_simulators import maze\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); from save_rl.cli import main; main()"
    driver = subprocess.Popen(
        [sys.executable, "-c", code, "train", "only_here:maze", "--cluster", cluster[0], "--out",
         str(tmp_path / "run")],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    _, errors = finish(driver, 2)
    assert re.search(
        r"save-rl: --cluster: node [\d.]+ \(\w{8}\): ENV: 'only_here' can't be imported "
        r"\(No module named 'only_here'\)\.\n$",
        errors,
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_driver_may_leave_and_come_back_and_ends_what_it_began(tmp_path):
    out = tmp_path / "run"
    asked = ["--cluster", "auto", "--episodes", 100_000, "--out", out]
    with private_ray(token=False):
        driver = start(*asked)
        wait_for(lambda: newest(out) >= 2, driver)
        (ray_process,) = [pid for pid, name in descendants(driver.pid).items() if "start" in name]
        driver.kill()
        driver.communicate()
        (before,) = called(ray_process, "ray::Learner")
        there = newest(out)
        wait_for(lambda: newest(out) > there)

        assert finish(start(*asked, "--resume", "--cluster.ahead", 3), 2)[1].endswith(
            f"save-rl: --resume: '{out}' is being trained with --cluster.ahead 2, not 3; repeat "
            "its settings to join.\n"
        )
        driver = start(*asked, "--resume")
        wait_for(lambda: called(ray_process, "ray::Learner") == [before], driver)
        assert "cluster at" in driver.stderr.readline()
        time.sleep(2)
        below = descendants(ray_process)
        assert len([name for name in below.values() if name.startswith("ray::Actor")]) == 2
        driver.send_signal(signal.SIGINT)
        _, errors = finish(driver, 130)
        assert errors.endswith(f"save-rl: stopped; '{out}' is saved, go on with --resume.\n")
        assert [name for pid, name in below.items() if exists(pid)] == []
        check_counters(out, finished=False)


@pytest.mark.slow
def test_a_cluster_outlives_the_run_it_was_started_for_only_with_the_one_that_follows(tmp_path):
    out = tmp_path / "run"
    asked = ["--cluster", "auto", "--out", out, "--episodes"]
    with private_ray(token=False):
        driver = start(*asked, 300)
        wait_for(lambda: newest(out) >= 1, driver)
        (ray_process,) = [pid for pid, name in descendants(driver.pid).items() if "start" in name]
        driver.kill()
        driver.communicate()
        wait_for(lambda: not called(ray_process, "ray::Actor"))  # the run is over
        assert called(ray_process, "ray::Learner")  # it waits to be asked
        below = descendants(ray_process)
        finish(start(*asked, 600, "--resume"))
        assert [name for pid, name in below.items() if exists(pid)] == []
        check_counters(out)


def test_object_stores_that_are_too_small_are_named():
    nodes = [
        {"Alive": True, "NodeID": "a", "NodeManagerAddress": "10.0.0.1",
         "Resources": {"object_store_memory": 900.0}},
        {"Alive": True, "NodeID": "b", "NodeManagerAddress": "10.0.0.2",
         "Resources": {"object_store_memory": 500.0}},
        {"Alive": False, "NodeID": "c", "NodeManagerAddress": "10.0.0.3", "Resources": {}},
    ]  # fmt: skip
    learner.check_stores((400, 500), nodes, "a")
    with pytest.raises(InputError) as error:
        learner.check_stores((400, 501), nodes, "a")
    assert str(error.value) == (
        "--cluster: the object store of node 10.0.0.1 has 900 bytes, and this run needs 901; give "
        "that node more with ray start --object-store-memory."
    )


def test_what_object_stores_must_hold():
    settings = TrainSettings(
        env="tests.search.table_simulators:maze", lanes=LANES, batch=BATCH, replay=64, min_replay=8
    )
    program = Program(settings, [maze(0)], ClusterSettings(actors=2, ahead=3))
    everywhere, at_learner = learner.needed_bytes(program)
    state = program.learning.initial(jax.random.PRNGKey(0))
    assert everywhere == 2 * sum(np.asarray(x).nbytes for x in jax.tree.leaves(state.params))
    seen = maze(0).features[0].nbytes
    # two observations, Q_MCTS of 5 actions, action, reward and discount
    assert at_learner == LANES * 3 * (2 * seen + 5 * 4 + 3 * 4)
    program.close()


FIGURES = {
    "actors_alive": 3, "actors": 4, "steps_per_second": 1234.5, "replay_ratio": 4.0,
    "parameter_age": 1.25, "answers_owed": 8, "answers_waiting": 2, "actor_restarts": 1,
    "learner_restarts": 0, "learner_megabytes": 451, "actor_megabytes": 1320,
    "stored_megabytes": 2.25, "store_megabytes": 4000,
}  # fmt: skip


def test_lines_where_there_is_no_terminal(capsys):
    assert rows({}) == {}
    with Progress("save", 100, "episodes") as display:
        display.update(100, "reward 0.5", rows(FIGURES))
        display.say("warning: something")
    assert capsys.readouterr().err == (
        "save: 100 of 100 episodes  reward 0.5  actors 3 of 4 alive; steps 1,234 a second; replay "
        "ratio 4.00; parameters 1.2 rounds old; answers 2 waiting, 8 asked for; restarts 1 of "
        "actors, 0 of the learner; memory learner 451 MB, largest actor 1,320 MB; object store "
        "2.2 of 4,000 MB\nwarning: something\n"
    )


def test_the_table_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress("save", 100, "episodes") as display:
        display.update(50, "reward 0.5", rows(FIGURES))
        display.say("warning: [something]")
    said = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "warning: [something]" in said
    bar, *table = said.splitlines()[-1 - len(rows(FIGURES)) :]
    assert re.search(r"save .* 50/100 episodes reward 0.5", bar)
    assert [line.split("  ", 1)[0].strip() for line in table] == list(rows(FIGURES))
    assert table[0].split() == ["actors", "3", "of", "4", "alive"]


@pytest.mark.slow
def test_a_cluster_that_has_ended_is_forgotten():
    with private_ray():
        _, process = here.start_cluster()
        assert here.running_cluster() is not None
        here.end_cluster(process)
        # Without an address Ray would try to join the last cluster of this machine.
        code = "import ray; ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
