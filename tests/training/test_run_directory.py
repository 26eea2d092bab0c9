"""A run folder belongs to one process, and damage to its files never ends in a traceback."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from save_rl.errors import InputError, RunError
from save_rl.learning.r2d2_settings import NetworkSettings, R2D2Settings, ReplaySettings
from save_rl.training.run.run_directory import (
    METRICS,
    RunDirectory,
    read_config,
    read_settings,
    settings_from_json,
)
from save_rl.training.settings import TrainSettings

NESTED = TrainSettings(
    "atari/MsPacman",
    "r2d2-save",
    seeds=(3,),
    r2d2=R2D2Settings(
        network=NetworkSettings(profile="small"),
        replay=ReplaySettings(capacity=7, minimum=2),
        refresh=5,
    ),
)
ROW = dict.fromkeys(METRICS, 1.0)


@pytest.mark.parametrize("settings", [TrainSettings(seeds=(1, 2)), NESTED])
def test_settings_come_back_from_json(settings):
    assert settings_from_json(json.loads(json.dumps(asdict(settings)))) == settings


def test_a_config_from_before_there_was_a_setting_has_its_default(tmp_path):
    RunDirectory.create(tmp_path, TrainSettings(budget=3), "cpu").close()
    config = json.loads((tmp_path / "config.json").read_text())
    del config["settings"]["r2d2"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_settings(tmp_path, "DIR") == TrainSettings(budget=3)


def test_a_nested_setting_that_differs_is_named(tmp_path):
    RunDirectory.create(tmp_path, NESTED, "cpu").close()
    other = replace(NESTED, r2d2=replace(NESTED.r2d2, network=NetworkSettings()))
    with pytest.raises(InputError, match=r"with --r2d2.network.profile small, not paper; repeat"):
        RunDirectory.resume(tmp_path, other, "cpu")
    more = replace(NESTED, episodes=2 * NESTED.episodes, steps=9)
    RunDirectory.resume(tmp_path, more, "cpu").close()


def test_a_run_that_was_begun_without_the_newest_columns_goes_on_without_them(tmp_path):
    settings = TrainSettings()
    RunDirectory.create(tmp_path, settings, "cpu").close()
    old = [name for name in METRICS if name not in ("explored", "changed")]
    (tmp_path / "metrics.csv").write_text(",".join(old) + "\n")
    run = RunDirectory.resume(tmp_path, settings, "cpu")
    run.cut_metrics(None)
    run.write_metrics([{**ROW, "env_steps": 1, "explored": "", "changed": ""}])
    assert run.read_metrics() == [dict.fromkeys(old, 1.0)]
    run.close()
    (tmp_path / "metrics.csv").write_text("time_s,seed\n")
    with pytest.raises(InputError, match="was written by another version"):
        RunDirectory.resume(tmp_path, settings, "cpu")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("lanes", '"x"', "lanes can't be 'x'"),
        ("lanes", "true", "lanes can't be True"),
        ("lanes", "8.5", "lanes can't be 8.5"),
        ("seeds", "3", "seeds can't be 3"),
        ("seeds", '["0"]', "seeds can't be '0'"),
        ("budget", "1e400", "budget can't be inf"),
        ("budget", "1" + "0" * 400, r"budget can't be 10+\.\.\.0+"),
        ("discount", "NaN", "discount can't be nan"),
        ("beta_q", "[]", r"beta_q can't be \[\]"),
        ("env_options", "[]", r"env_options can't be \[\]"),
        ("r2d2", "null", "r2d2 can't be None"),
        ("r2d2", '{"network": {"profile": "huge"}}', "profile can't be 'huge'"),
    ],
)
def test_a_setting_of_a_wrong_type_is_named(tmp_path, name, value, said):
    path = tmp_path / "config.json"
    path.write_text(f'{{"settings": {{"seeds": [0], "{name}": {value}}}}}')
    with pytest.raises(InputError, match=rf"^DIR: '{path}' can't be read; {said}\.$"):
        read_settings(tmp_path, "DIR")


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[" * 100_000, b'{"settings": {"seeds": [0'])
def test_a_config_that_is_no_json_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(InputError, match=r"can't be read\.$"):
        read_settings(tmp_path, "DIR")


def test_a_run_keeps_its_id_and_another_run_has_another(tmp_path):
    ids = []
    for name in "ab":
        run = RunDirectory.create(tmp_path / name, TrainSettings(), "cpu")
        ids.append(run.run_id)
        run.close()
    assert ids[0] != ids[1]
    again = RunDirectory.resume(tmp_path / "a", TrainSettings(episodes=2_000_000), "cpu")
    again.close()
    assert again.run_id == ids[0] == read_config(tmp_path / "a", "DIR").run_id


def test_a_folder_that_another_process_trains_in_is_refused(tmp_path):
    run = RunDirectory.create(tmp_path / "run", TrainSettings(), "cpu")
    said = (
        f"--resume: another process is training in '{tmp_path / 'run'}'; wait until it ends or "
        "choose another --out."
    )
    with pytest.raises(InputError) as refusal:
        RunDirectory.resume(tmp_path / "run", TrainSettings(), "cpu")
    assert str(refusal.value) == said
    assert read_settings(tmp_path / "run", "DIR") == TrainSettings()  # to test it stays possible
    run.close()
    RunDirectory.resume(tmp_path / "run", TrainSettings(), "cpu").close()


def test_a_process_that_was_killed_leaves_no_lock(tmp_path):
    """The other process locks with the system call alone, says so, and waits to be killed."""
    folder = tmp_path / "run"
    RunDirectory.create(folder, TrainSettings(), "cpu").close()
    code = (
        "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(InputError, match="another process is training"):
            RunDirectory.resume(folder, TrainSettings(), "cpu")
        other.kill()
    RunDirectory.resume(folder, TrainSettings(), "cpu").close()


def test_two_new_runs_do_not_share_a_folder(tmp_path, monkeypatch):
    """The second one looks before the first has written anything."""
    first = RunDirectory.create(tmp_path, TrainSettings(), "cpu")
    monkeypatch.setattr(RunDirectory, "check_new", lambda path: None)
    with pytest.raises(InputError, match="--out: another process is training in"):
        RunDirectory.create(tmp_path, TrainSettings(), "cpu")
    first.close()
    monkeypatch.undo()
    with pytest.raises(InputError, match="already holds a run"):
        RunDirectory.create(tmp_path, TrainSettings(), "cpu")


def test_a_run_that_could_not_begin_leaves_its_folder_unlocked(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("save_rl.training.run.run_directory.write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        RunDirectory.create(tmp_path, TrainSettings(), "cpu")
    monkeypatch.undo()
    RunDirectory.create(tmp_path, TrainSettings(), "cpu").close()


def test_a_filesystem_without_locks_is_reported(tmp_path, monkeypatch):
    def refuse(handle, operation):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    said: list[str] = []
    RunDirectory.create(tmp_path, TrainSettings(), "cpu", said.append).close()
    assert said == [
        f"'{tmp_path}' can't be locked (Operation not supported); make sure that no other process "
        "trains in it."
    ]


HEADER = ",".join(METRICS) + "\n"
LINES = ["".join(f"{n}{i}," for n in range(len(METRICS) - 1)) + "0\n" for i in range(3)]
WHOLE = HEADER + "".join(LINES)
DAMAGED = {
    "missing": (None, []),
    "empty": ("", []),
    "cut in the header": (HEADER[:20], []),
    "header alone": (HEADER, []),
    "cut after a line": (HEADER + LINES[0], LINES[:1]),
    "cut in a line": ((HEADER + LINES[0] + LINES[1])[:-9], LINES[:1]),
    "cut in the last cell": ((HEADER + LINES[0] + LINES[1])[:-1], LINES[:1]),
    "without its header": ("".join(LINES), LINES),
    "NUL for a line": (HEADER + LINES[0] + "\0" * len(LINES[1]) + LINES[2], LINES[:1]),
    "NUL for all": ("\0" * len(WHOLE), []),
    "text in a cell": (WHOLE.replace(LINES[1], "x" * len(LINES[1][:-1]) + "\n"), LINES[::2]),
    "no text": (HEADER + "\udcff" * 50 + "\n" + LINES[2], LINES[2:]),
}


@pytest.mark.parametrize(("text", "kept"), DAMAGED.values(), ids=list(DAMAGED))
def test_metrics_that_are_missing_or_damaged_keep_the_lines_they_have(tmp_path, text, kept):
    RunDirectory.create(tmp_path, TrainSettings(), "cpu").close()
    path = tmp_path / "metrics.csv"
    path.unlink()
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    said: list[str] = []
    run = RunDirectory.resume(tmp_path, TrainSettings(), "cpu", said.append)
    run.cut_metrics(len(WHOLE))
    assert path.read_text() == HEADER + "".join(kept)
    run.write_metrics([{**ROW, "env_steps": 1}])
    assert len(run.read_metrics()) == len(kept) + 1
    run.close()
    assert said == [
        f"'{path}' is damaged or shorter than it was at the checkpoint; lines before the "
        "checkpoint are missing."
    ]


@pytest.mark.parametrize("size", [len(WHOLE) + 1, 10**12, 2**62])
def test_metrics_are_never_made_longer(tmp_path, size):
    RunDirectory.create(tmp_path, TrainSettings(), "cpu").close()
    (tmp_path / "metrics.csv").write_text(WHOLE)
    said: list[str] = []
    run = RunDirectory.resume(tmp_path, TrainSettings(), "cpu", said.append)
    run.cut_metrics(size)
    run.close()
    assert (tmp_path / "metrics.csv").read_text() == WHOLE
    assert len(said) == 1


@pytest.mark.parametrize("lines", [0, 1, 2, 3])
def test_lines_after_the_checkpoint_are_forgotten_without_a_word(tmp_path, lines):
    RunDirectory.create(tmp_path, TrainSettings(), "cpu").close()
    (tmp_path / "metrics.csv").write_text(WHOLE)
    kept = HEADER + "".join(LINES[:lines])
    run = RunDirectory.resume(tmp_path, TrainSettings(), "cpu", pytest.fail)
    run.cut_metrics(len(kept) if lines else None)
    run.close()
    assert (tmp_path / "metrics.csv").read_text() == kept


def test_a_line_that_can_not_be_read_is_left_out_and_reported(tmp_path):
    said: list[str] = []
    run = RunDirectory(tmp_path, said.append)
    (tmp_path / "metrics.csv").write_bytes(b"time_s,seed\n1.5,0\n\0\0\0\n2,\n\xff,1\n3,1")
    assert run.read_metrics() == [{"time_s": 1.5, "seed": 0.0}, {"time_s": 2.0}]
    path = tmp_path / "metrics.csv"
    assert said == [f"'{path}' has lines that can't be read; they are left out."]


def test_a_run_that_cant_continue_says_why_until_it_is_resumed(tmp_path):
    run = RunDirectory.create(tmp_path, TrainSettings(), "cpu")
    with pytest.raises(RunError), run.noting_failure():
        raise RunError("the loss is not finite")
    assert (tmp_path / "failure.txt").read_text() == "the loss is not finite\n"
    with pytest.raises(KeyboardInterrupt), run.noting_failure():
        raise KeyboardInterrupt  # no failure
    assert not (tmp_path / "failure.txt").exists()
    run.close()
