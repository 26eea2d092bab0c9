"""Runs on a Ray cluster: to their end, whoever dies on the way."""

import json
import os
import re
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

ray = pytest.importorskip("ray")

from save_rl.errors import InputError, RunError  # noqa: E402
from save_rl.training.cluster import learner, local_cluster, run  # noqa: E402
from save_rl.training.cluster.display import rows  # noqa: E402
from save_rl.training.cluster.run import train_on_cluster  # noqa: E402
from save_rl.training.cluster.settings import ClusterSettings  # noqa: E402
from save_rl.training.cluster.trainer import ClusterTrainer  # noqa: E402
from save_rl.training.run import loop  # noqa: E402
from save_rl.training.run.progress import Progress  # noqa: E402
from save_rl.training.settings import TrainSettings  # noqa: E402
from tests.search.table_simulators import maze  # noqa: E402
from tests.training.ray_cluster import (  # noqa: E402
    BATCH,
    LANES,
    called,
    check_counters,
    descendants,
    exists,
    finish,
    newest,
    private_ray,
    start,
    wait_for,
)

pytestmark = [
    pytest.mark.xdist_group("ray"),
    # Ray starts its processes by forking, and executes another program at once.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]


def settings(**changes):
    """The settings of the command line, see `ray_cluster.SETTINGS`."""
    values = {
        "env": "tests.training.numbered:Numbered", "lanes": LANES, "batch": BATCH,
        "replay": 20000, "min_replay": 8, "budget": 2, "chunk": 8, "seeds": (3,),
    }  # fmt: skip
    return TrainSettings(**(values | changes))


def head_of(driver):
    """Return the process of the cluster that a driver has started."""
    (found,) = [pid for pid, name in descendants(driver.pid).items() if "guard.py" in name]
    return found


def arrays(out):
    """Read what the last checkpoint of a run has of everything but episodes in progress."""
    names = ("learner", "replay", "episodes", "env_steps", "updates", "length", "stats")
    with np.load(out / "checkpoints" / f"{newest(out):09d}" / "arrays.npz") as found:
        kept = {
            name: found[name] for name in found if name.startswith(tuple(f".{x}" for x in names))
        }
    assert len(kept) > 10
    return kept


@pytest.mark.slow
def test_a_run_with_one_actor_in_step_is_that_of_one_machine(cluster, tmp_path, capsys):
    address, ray_process = cluster
    here, there = tmp_path / "here", tmp_path / "there"
    chosen = settings(episodes=60)
    in_step = ClusterSettings(actors=1, synchronous=True)
    result = train_on_cluster(chosen, there, in_step, address, checkpoint_seconds=0)
    errors = capsys.readouterr().err
    wait_for(lambda: not called(ray_process, "ray::Learner") + called(ray_process, "ray::Actor"))
    port = address.rpartition(":")[2]
    assert re.search(rf"^cluster at [\d.]+:{port}; Ray's dashboard: ", errors)
    assert "actors 1 of 1 alive; steps " in errors
    for name in ("config.json", "metrics.csv", "curve.png", "checkpoints"):
        assert (there / name).exists()
    check_counters(there)
    assert result.metrics[-1]["episodes"] >= 60

    loop.train(chosen, here, workers=0, checkpoint_seconds=0, progress=False)
    expected, found = arrays(here), arrays(there)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert np.array_equal(array, found[name]), name


@pytest.mark.slow
def test_a_learner_that_is_killed_goes_on(cluster, tmp_path):
    address, ray_process = cluster
    out = tmp_path / "run"
    driver = start("--cluster", address, "--episodes", 2000, "--out", out)
    wait_for(lambda: newest(out) >= 4, driver)
    (first,) = called(ray_process, "ray::Learner")
    os.kill(first, signal.SIGKILL)
    said, errors = finish(driver)
    assert said.startswith(f"{out}: 2")
    assert "warning: the learner died; it continues from checkpoint " in errors
    assert json.loads((out / learner.NOTES).read_text())["restarts"] == 1
    check_counters(out)
    events = b"".join(path.read_bytes() for path in out.glob("events*"))
    assert b"cluster_parameter_age/seed3" in events
    wait_for(lambda: not called(ray_process, "ray::Learner") + called(ray_process, "ray::Actor"))


def test_a_learner_that_dies_eight_times_without_a_checkpoint_gives_up(tmp_path):
    (tmp_path / "checkpoints" / f"{3:09d}").mkdir(parents=True)
    process = object.__new__(learner.LearnerProcess)
    process._again, process._out, process._said = True, tmp_path, []
    assert [process._count_restarts() for _ in range(7)] == [1, 2, 3, 4, 5, 6, 7]
    (tmp_path / "checkpoints" / f"{4:09d}").mkdir()
    assert [process._count_restarts() for _ in range(7)] == [8, 9, 10, 11, 12, 13, 14]
    with pytest.raises(RunError, match="the learner died 8 times without a new checkpoint"):
        process._count_restarts()


@pytest.mark.slow
def test_an_environment_that_is_missing_on_a_node_is_named_with_it(cluster, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("from tests.search.table_simulators import maze\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    out = tmp_path / "run"
    with pytest.raises(InputError) as error:
        train_on_cluster(settings(env="only_here:maze"), out, ClusterSettings(), cluster[0])
    assert re.fullmatch(
        r"--cluster: node [\d.]+ \(\w{8}\): ENV: 'only_here' can't be imported "
        r"\(No module named 'only_here'\)\.",
        str(error.value),
    )
    assert not out.exists()


@pytest.mark.slow
def test_a_driver_may_leave_and_come_back_and_ends_what_it_began(tmp_path):
    out = tmp_path / "run"
    asked = ["--cluster", "auto", "--episodes", 100_000, "--out", out]
    with private_ray(token=False):
        driver = start(*asked)
        wait_for(lambda: newest(out) >= 2, driver)
        ray_process = head_of(driver)
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
        assert "episodes" in driver.stderr.readline()  # it has heard of the learner
        wait_for(lambda: len(called(ray_process, "ray::Actor")) == 2, driver)
        below = descendants(ray_process)
        driver.send_signal(signal.SIGINT)
        _, errors = finish(driver, 130)
        assert errors.endswith(f"save-rl: stopped; '{out}' is saved, continue with --resume.\n")
        wait_for(lambda: not any(exists(pid) for pid in below))
        check_counters(out, finished=False)


def test_a_second_ctrl_c_ends_the_learner_and_its_cluster_at_once(tmp_path, monkeypatch):
    asked, ended = [], []
    job = learner.make_job(
        settings(episodes=9), ClusterSettings(), tmp_path, resume=True, device="cpu", workers=0,
        checkpoint_seconds=0, light_checkpoints=False, started=77,
    )  # fmt: skip

    def ask(found, heard):
        asked.append(heard)
        assert len(asked) < 5, "it was asked twice to stop"
        os.kill(os.getpid(), signal.SIGINT)
        return learner.Status(job, 5, 0, "", {}, [], None)

    monkeypatch.setattr(run.RunDirectory, "check_old", lambda out, settings: None)
    monkeypatch.setattr(run, "_connect", lambda address, mine: None)
    monkeypatch.setattr(run, "_find", lambda out, mine: "learner")
    monkeypatch.setattr(run, "_ask", ask)
    monkeypatch.setattr(run, "_end", lambda found, out: ended.append(found))
    monkeypatch.setattr(run, "end_cluster", lambda *processes: ended.extend(processes))
    with pytest.raises(KeyboardInterrupt):
        train_on_cluster(settings(episodes=9), tmp_path, ClusterSettings(), "auto", resume=True)
    assert (len(asked), ended) == (2, ["learner", 77])


@pytest.mark.slow
def test_a_cluster_outlives_the_run_it_was_started_for_only_with_the_one_that_follows(tmp_path):
    out = tmp_path / "run"
    asked = ["--cluster", "auto", "--out", out, "--episodes"]
    with private_ray(token=False):
        driver = start(*asked, 300)
        wait_for(lambda: newest(out) >= 1, driver)
        ray_process = head_of(driver)
        driver.kill()
        driver.communicate()
        wait_for(lambda: not called(ray_process, "ray::Actor"))  # the run is over
        assert called(ray_process, "ray::Learner")  # it waits to be asked
        below = descendants(ray_process)
        finish(start(*asked, 600, "--resume"))
        wait_for(lambda: not any(exists(pid) for pid in below))
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
    trainer = ClusterTrainer(settings, [maze(0)], ClusterSettings(actors=2, ahead=3))
    everywhere, at_learner = learner.needed_bytes(trainer)
    params = trainer.params(trainer.learning.begin())
    assert everywhere == 2 * sum(np.asarray(x).nbytes for x in jax.tree.leaves(params))
    seen = maze(0).features[0].nbytes
    # two observations, Q_MCTS of 5 actions, action, reward and discount
    assert at_learner == LANES * 3 * (2 * seen + 5 * 4 + 3 * 4)
    trainer.close()


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
        _, process = local_cluster.start_cluster()
        assert local_cluster.running_cluster() is not None
        local_cluster.end_cluster(process)
        # Without an address Ray would try to join the last cluster of this machine.
        code = "import ray; ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["gcs_server", "raylet", "cluster at"])
def test_a_driver_that_is_killed_while_ray_starts_leaves_nothing_behind(tmp_path, moment):
    out = tmp_path / "run"
    with private_ray(token=False):
        driver = start("--cluster", "auto", "--out", out)
        if moment == "cluster at":
            assert driver.stderr.readline().startswith(moment)
        else:
            wait_for(lambda: any(moment in x for x in descendants(driver.pid).values()), driver)
        below = descendants(driver.pid)
        driver.kill()
        driver.communicate()
        wait_for(lambda: not any(exists(pid) for pid in below))
        assert not out.exists()


@pytest.mark.slow
def test_a_cluster_whose_run_is_gone_is_ended_and_not_joined(tmp_path):
    out = tmp_path / "run"
    with private_ray(token=False):
        driver = start("--cluster", "auto", "--out", out)
        assert driver.stderr.readline().startswith("cluster at ")
        below = descendants(driver.pid)
        os.kill(head_of(driver), signal.SIGKILL)  # so that nobody ends what it has started
        driver.kill()
        driver.communicate()
        address = local_cluster.running_cluster()
        assert len(local_cluster.abandoned(address)) == 1
        _, errors = finish(start("--cluster", "auto", "--out", out, "--episodes", 300))
        first, second, *_ = errors.splitlines()
        assert first == f"ended the cluster at {address}: the run that started it is gone"
        assert second.startswith("cluster at ")
        assert not any(exists(pid) for pid in below)
        check_counters(out)
