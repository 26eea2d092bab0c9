"""`reproduce --jobs`: several runs at a time, each in a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from save_rl.errors import InputError, RunError
from save_rl.experiments import jobs as jobs_module
from save_rl.experiments.cells import Cell, Table, read_cell
from save_rl.experiments.construction import CONSTRUCTION
from save_rl.experiments.experiment import Resources, reproduce
from save_rl.experiments.marble_run import MARBLE_RUN
from save_rl.experiments.runs import run_cells
from save_rl.processes import usable_cores
from save_rl.report.results import read_results
from save_rl.training.settings import TrainSettings
from tests.envs.pool_simulators import have_ended, wait_until
from tests.experiments import made_up_jobs
from tests.experiments.made_up import files, open_run, write_line

pytestmark = pytest.mark.xdist_group("jobs")  # some runs are made once for all of them
NAMES = ("a", "b", "c", "d")
reproduce_construction = partial(reproduce, CONSTRUCTION)


def cells(out, names=NAMES):
    return [
        Cell(
            f"run {name}", out / name, TrainSettings("covering", "save", 40, seeds=(seed,)),
            (Table("evaluation.csv", (0, 3), 2),),
        )
        for seed, name in enumerate(names)
    ]  # fmt: skip


def rows_of(cell, metrics, tests):
    shared = {"experiment": "made up", "agent": cell.name, "seed": cell.settings.seeds[0]}
    trained = {**shared, "metric": "train_reward", "value": metrics[-1]["return_mean"]}
    return [trained] + [
        {**shared, "budget": budget, "metric": "test_reward", "value": returns.mean()}
        for budget, returns in tests["evaluation.csv"].items()
    ]


@pytest.fixture
def said(monkeypatch):
    """Jobs that take no time; returns what was said about them."""
    lines = []
    monkeypatch.setattr(jobs_module, "_JOB", made_up_jobs.START)
    monkeypatch.setattr(jobs_module, "_say", lines.append)
    return lines


@pytest.fixture
def plan(monkeypatch):
    """Has runs do what they are told, by their names."""
    return lambda **todo: monkeypatch.setenv(made_up_jobs.PLAN, json.dumps(todo))


def run_made_up(out, jobs=2, workers=-1):
    out.mkdir(exist_ok=True)
    return run_cells(cells(out), rows_of, out, Resources("cpu", workers, jobs))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of runs that nothing happened to; tests that change it work on a copy."""
    out = tmp_path_factory.mktemp("jobs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs_module, "_JOB", made_up_jobs.START)
        rows = run_made_up(out)
    assert read_results(out / "results.csv") == rows
    return out


def seen(out, name):
    return json.loads((out / name / "seen.json").read_text())


def test_every_run_has_a_process_of_its_own_and_its_share_of_the_cores(said, whole, tmp_path):
    found = [seen(whole, name) for name in NAMES]
    assert len({here["pid"] for here in found} | {os.getpid()}) == 5
    assert not any(here["jax"] for here in found)  # of this process, which has it loaded
    assert {here["workers"] for here in found} == {max(1, usable_cores() // 2)}
    assert not any(here["resume"] for here in found)
    assert [here["label"] for here in found] == [f"{n}/4 run {name}" for n, name in
                                                 enumerate(NAMES, 1)]  # fmt: skip
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    for name in "bd":
        (out / name / "evaluation.csv").unlink()
    run_made_up(out, jobs=1000, workers=7)
    again = [seen(out, name) for name in "bd"]
    assert [(here["workers"], here["resume"]) for here in again] == [(7, True)] * 2


@pytest.mark.slow
def test_so_many_run_at_a_time_and_rows_keep_their_order(said, plan, tmp_path):
    plan(a="after c/seen.json", b="after a/seen.json")
    rows = run_made_up(tmp_path)
    assert [row["agent"] for row in rows] == [f"run {name}" for name in NAMES for _ in range(3)]
    assert read_results(tmp_path / "results.csv") == rows
    running = set()
    for line in said:
        label, what = line.split(": ")
        (running.add if what == "begins" else running.remove)(label)
        assert len(running) <= 2
    assert [line for line in said if "begins" in line] == [
        f"{number}/4 run {name}: begins" for number, name in enumerate(NAMES, 1)
    ]


def test_what_is_done_is_not_done_again(said, plan, whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    plan(a="fail", c="fail")
    assert run_made_up(out) == read_results(whole / "results.csv")
    assert said == []


@pytest.mark.slow
def test_a_status_line_says_how_far_runs_are(said, plan, tmp_path, monkeypatch):
    def listen(text):
        said.append(text)
        if "1/4 run a: 20 of 40 episodes; 2/4 run b: 20 of 40 episodes" in text:
            (tmp_path / "heard").touch()  # what both wait for

    monkeypatch.setattr(jobs_module, "_say", listen)
    monkeypatch.setattr(jobs_module, "_STATUS_SECONDS", 0.0)
    plan(a="after heard", b="after heard")
    run_made_up(tmp_path)
    assert (tmp_path / "heard").exists()


def test_a_line_that_is_just_written_is_not_read(tmp_path):
    (cell,) = cells(tmp_path, "a")
    assert jobs_module._reached(cell) == "starting"
    cell.folder.mkdir()
    for text, reached in {
        "time_s,episodes\n": "0 of 40 episodes",
        "time_s,episodes\n1.0,12\n2.0,3": "12 of 40 episodes",
        "time_s,episodes\n1.0,12\n2.0,34\n": "34 of 40 episodes",
        "time_s,episodes\n3.0,48\n": "testing",
    }.items():
        (cell.folder / "metrics.csv").write_text(text)
        assert jobs_module._reached(cell) == reached


def test_a_run_that_is_limited_by_steps_is_over_after_them(tmp_path):
    limited = replace(TrainSettings("covering", "save", 40), steps=100)
    cell = Cell("a", tmp_path / "a", limited, ())
    directory = open_run(cell.folder, limited, resume=False)
    assert jobs_module._reached(cell) == "0 of 100 steps"
    write_line(directory, limited, episodes=9, env_steps=99)
    assert jobs_module._reached(cell) == "99 of 100 steps"
    assert read_cell(cell) is None
    write_line(directory, limited, episodes=10, env_steps=108)
    directory.close()
    assert jobs_module._reached(cell) == "ending"
    ((metrics, tests),) = read_cell(cell) or [([], None)]
    assert ([line["env_steps"] for line in metrics], tests) == ([99, 108], {})
    early = cell._replace(settings=replace(limited, steps=1000, episodes=10))
    assert read_cell(early) is not None  # its episodes were over before its steps


def test_others_go_on_when_a_run_fails(said, plan, whole, tmp_path):
    out = tmp_path / "out"
    plan(a="fail", b="die", c="refuse")
    with pytest.raises(RunError) as error:
        run_made_up(out)
    assert str(error.value) == (
        f"3 of 4 runs failed: 1/4 run a (ValueError: the moon is full; see '{out}/a/job.log'), "
        f"2/4 run b (it was killed by SIGKILL; see '{out}/b/job.log'), "
        f"3/4 run c (--out: not today; see '{out}/c/job.log.tmp'); the others are done, continue "
        "with --resume."
    )
    log = (out / "a" / "job.log").read_text()
    assert log.startswith("Traceback")
    assert "and the night is long" in log
    assert {row["agent"] for row in read_results(out / "results.csv")} == {"run d"}
    plan()
    said.clear()
    assert run_made_up(out) == read_results(whole / "results.csv")
    assert [line for line in said if "begins" in line] == [
        f"{number}/4 run {name}: begins" for number, name in enumerate("abc", 1)
    ]
    assert files(out)["results.csv"] == files(whole)["results.csv"]
    assert not list(out.rglob("*.tmp"))


def test_jobs_end_when_their_results_can_not_be_kept(said, plan, tmp_path):
    (tmp_path / "results.csv").mkdir()  # in the way
    plan(a="stop", b="after a/ready")
    with pytest.raises(OSError, match=r"results\.csv"):
        run_made_up(tmp_path)
    assert have_ended([seen(tmp_path, "a")["pid"]])
    assert not (tmp_path / "c").exists()


PARENT = """
import sys
from pathlib import Path
from save_rl.errors import Interrupted
from save_rl.experiments import jobs
from tests.experiments import made_up_jobs, test_jobs

jobs._JOB = made_up_jobs.START
try:
    test_jobs.run_made_up(Path(sys.argv[1]))
except Interrupted as stop:
    print(stop)
    raise SystemExit(stop.code)
"""


def start_parent(out):
    """Another process that has two jobs, when both are ready to be stopped; and their numbers."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, out], text=True, cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    for name in "ab":
        wait_until((out / name / "ready").exists)
    return parent, [seen(out, name)["pid"] for name in "ab"]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
@pytest.mark.slow
def test_a_stop_lets_runs_save_themselves(number, code, said, plan, whole, tmp_path):
    out = tmp_path / "out"
    plan(a="stop", b="stop")
    parent, jobs = start_parent(out)
    os.killpg(parent.pid, number)  # as a terminal does
    printed, lines = parent.communicate()
    assert parent.returncode == code
    assert printed == f"stopped; '{out}' is saved, continue with --resume.\n"
    assert have_ended(jobs)
    for name in "ab":
        assert (out / name / "saved").read_text() == "143"  # SIGTERM, and nothing else
    assert "1/4 run a: stopped after" in lines
    assert "run c" not in lines
    plan()
    assert run_made_up(out) == read_results(whole / "results.csv")
    assert [seen(out, name)["resume"] for name in NAMES] == [True, True, False, False]


def test_no_job_outlives_the_process_that_started_it(plan, tmp_path):
    plan(a="stop", b="stop")
    parent, jobs = start_parent(tmp_path / "out")
    parent.kill()
    parent.communicate()
    assert have_ended(jobs)


@pytest.mark.parametrize("experiment", [MARBLE_RUN, CONSTRUCTION], ids=lambda one: one.name)
def test_no_jobs_are_refused(experiment, tmp_path):
    with pytest.raises(InputError, match="--jobs: 0 is not possible; it must be at least 1"):
        reproduce(experiment, "smoke", {}, tmp_path / "out", False, "", "cpu", 0, 0)
    assert list(tmp_path.iterdir()) == []


AXES = {"agents": ("save", "q-learning"), "uct_budget": 2, "uct_episodes": 2}
KEPT = ("experiment.json", "results.csv", "claims.json", "figure.png", "curves.png")


def test_an_experiment_with_two_jobs_leaves_the_same_files(said, plan, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    monkeypatch.setattr("save_rl.training.run.loop.train", made_up_jobs.train)
    monkeypatch.setattr("save_rl.evaluation.evaluate", made_up_jobs.evaluate)
    monkeypatch.setattr("save_rl.experiments.construction.pictures", lambda *given: None)
    one, two = tmp_path / "one", tmp_path / "two"
    for out, jobs in ((one, 1), (two, 2)):
        reproduce_construction("smoke", AXES, out, False, "", "cpu", 0, jobs)
    assert {name: files(one)[name] for name in KEPT} == {name: files(two)[name] for name in KEPT}
    assert len(read_results(two / "results.csv")) == 13
    assert seen(one / "runs/covering", "save")["preallocate"] == "true"
    assert seen(two / "runs/covering", "save")["preallocate"] == "false"
    assert seen(two / "runs/covering", "save")["pid"] != os.getpid()


@pytest.mark.slow
def test_real_runs_are_the_same_with_two_jobs_that_were_stopped(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    axes = {**AXES, "episodes": 200}
    reproduce_construction("smoke", axes, one, False, "", "cpu")
    options = ["--agents", "save", "q-learning", "--uct-budget", "2", "--uct-episodes", "2"]
    command = [
        sys.executable, "-m", "save_rl", "reproduce", "construction", "--scale", "smoke",
        "--device", "cpu", "--episodes", "200", "--jobs", "2", "--out", str(two), *options,
    ]  # fmt: skip
    folders = [two / "runs" / "covering" / agent for agent in axes["agents"]]

    def lines(folder):
        metrics = folder / "metrics.csv"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as parent:
        wait_until(lambda: max(map(lines, folders)) >= 2)
        parent.terminate()
        assert f"save-rl: stopped; '{two}' is saved" in parent.communicate()[1]
    assert parent.returncode == 143
    assert subprocess.run([*command, "--resume"], check=False).returncode == 0
    for name in (*KEPT, "gallery.png", "covering.gif"):
        assert files(one)[name] == files(two)[name]
