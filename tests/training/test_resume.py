"""Stopped at any moment, a run goes on as if nothing had happened."""

import csv
import io
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from save_rl import cli
from save_rl.training.run import checkpoint
from save_rl.training.run.loop import is_log_point
from save_rl.training.run.progress import Progress

# One worker runs them all, so that the undisturbed run is made once.
pytestmark = pytest.mark.xdist_group("resume")

SETTINGS = [
    "train", "tightrope", "--lanes", "8", "--chunk", "4", "--seed", "3", "5",
    "--test-episodes", "8", "--checkpoint-seconds", "0",
]  # fmt: skip


def run_in_process(*arguments: str) -> int:
    try:
        cli.main([*arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


class Training(NamedTuple):
    """What a run is told, and the folder of one that was left alone."""

    settings: list[str]
    undisturbed: Path

    def start(self, out: Path, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "save_rl", *self.settings, "--out", str(out), *more]
        return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def finish(self, out: Path, *more: str) -> None:
        """Run to the end, in this process, which has imported everything already."""
        assert run_in_process(*self.settings, "--out", str(out), *more) == 0

    def assert_same(self, out: Path) -> None:
        assert_same(out, self.undisturbed)


def metrics_without_time(out: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader(io.StringIO((out / "metrics.csv").read_text())))
    for row in rows:
        del row["time_s"]
    return rows


def final_arrays(out: Path) -> dict[str, np.ndarray]:
    number = checkpoint.numbers(out / "checkpoints")[-1]
    with np.load(out / "checkpoints" / f"{number:09d}" / "arrays.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def newest(out: Path) -> int:
    return max(checkpoint.numbers(out / "checkpoints"), default=-1)


def wait_for_progress(process: subprocess.Popen[str], out: Path, after: int) -> None:
    while newest(out) <= after and process.poll() is None:
        time.sleep(0.01)


# Q-learning without search in its tests compiles faster, and the files of a run are the same.
@pytest.fixture(scope="module", params=["q-learning", pytest.param("save", marks=pytest.mark.slow)])
def training(request, tmp_path_factory) -> Training:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    # 40 and 70 checkpoints
    episodes, budget = {"q-learning": ("1200", "0"), "save": ("2500", "3")}[request.param]
    settings = [*SETTINGS, "--agent", request.param, "--episodes", episodes, "--budget", budget]
    made = Training(settings, out)
    made.finish(out)
    return made


def assert_same(out: Path, undisturbed: Path) -> None:
    assert metrics_without_time(out) == metrics_without_time(undisturbed)
    expected, found = final_arrays(undisturbed), final_arrays(out)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert array.tobytes() == found[name].tobytes(), name


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_equals_one_left_alone(tmp_path, training, kills):
    """Kills at moments nobody chose: between chunks, in a write, in a test, wherever."""
    out, moments, killed = tmp_path / "run", random.Random(kills), 0
    while killed < kills:
        process = training.start(out, *["--resume"] * (killed > 0))
        wait_for_progress(process, out, newest(out))
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        _, errors = process.communicate()
        if process.returncode == 0:  # it was faster; again from the beginning
            shutil.rmtree(out)
            killed = 0
            continue
        assert process.returncode == -signal.SIGKILL, errors
        killed += 1
    training.finish(out, "--resume")
    training.assert_same(out)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_polite_stop_saves_and_says_how_to_go_on(tmp_path, training, number, code):
    out = tmp_path / "run"
    process = training.start(out)
    wait_for_progress(process, out, 3)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == code
    assert f"save-rl: stopped; '{out}' is saved, continue with --resume." in errors
    assert "Traceback" not in errors
    training.finish(out, "--resume")
    training.assert_same(out)


def test_a_damaged_newest_checkpoint_costs_only_the_way_back_to_the_one_before(
    tmp_path, training, capsys
):
    out = tmp_path / "run"
    shutil.copytree(training.undisturbed, out)
    arrays = out / "checkpoints" / f"{newest(out):09d}" / "arrays.npz"
    arrays.write_bytes(arrays.read_bytes()[:1000])
    training.finish(out, "--resume")
    errors = capsys.readouterr().err
    assert "can't be used (its checksum does not match); trying the one before it." in errors
    training.assert_same(out)


def test_a_finished_run_can_be_resumed_without_harm(tmp_path, training):
    out = tmp_path / "run"
    shutil.copytree(training.undisturbed, out)
    training.finish(out, "--resume")
    training.assert_same(out)


FEW = ["--agent", "q-learning", "--lanes", "4", "--chunk", "4"]


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    tmp_path, capsys
):
    out = tmp_path / "run"
    code = run_in_process(
        "train", "tests.training.environments:turns_nan", *FEW, "--no-check", "--episodes", "500",
        "--checkpoint-seconds", "0", "--out", str(out),
    )  # fmt: skip
    assert code == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("save-rl: loss_q is not finite (seed 0, lock-step ")
    assert str(out / "checkpoints") in message
    assert newest(out) > 0
    for name, array in final_arrays(out).items():
        if ".learner" in name:
            assert np.isfinite(array).all(), name


@pytest.mark.slow
def test_the_same_environment_without_the_flaw_trains(tmp_path):
    code = run_in_process(
        "train", "tests.training.environments:never_nan", *FEW, "--episodes", "20",
        "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert code == 0


def test_lines_of_metrics_are_dense_at_first_and_32_per_doubling_later():
    points = [chunk for chunk in range(1, 4097) if is_log_point(chunk)]
    assert points[:64] == list(range(1, 65))
    for power in range(6, 12):
        between = [p for p in points if 2**power <= p < 2 ** (power + 1)]
        assert len(between) == 32
    assert 4096 in points


def test_progress_without_a_terminal_prints_plain_lines(capsys):
    with Progress("work", 10, "runs") as progress:
        progress.update(3, "slowly")
        progress.update(10, "done")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["work: 10 of 10 runs  done, 0 s left"]
