"""Runs that start from another, or go on without a setting retyped."""

import json
import shutil

import jax
import numpy as np
import pytest

import save_rl
from save_rl import cli
from save_rl.cli.resume import split_resume
from save_rl.errors import InputError
from save_rl.training.run.run_directory import settings_to_resume
from tests.training.levels import Stairs

pytestmark = pytest.mark.xdist_group("starts")
STAIRS = "tests.training.levels:Stairs"
SMALL = {
    "env": STAIRS, "lanes": 8, "batch": 16, "budget": 2, "curriculum": "none", "workers": 0,
    "progress": False,
}  # fmt: skip


class Narrow(Stairs):
    def observe(self, state):
        return super().observe(state)[:2]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    out = tmp_path_factory.mktemp("starts") / "first"
    return save_rl.train(**SMALL, seed=(3, 5), steps=160, out=out)


def params(result):
    return jax.tree.leaves(result.trainer.params(result.state))


def first_params(folder):
    """Parameters and target of a run's oldest checkpoint."""
    oldest = min((folder / "checkpoints").iterdir())
    with np.load(oldest / "arrays.npz", allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    kinds = (".learner.params", ".learner.target", ".learner.optimiser")
    return [{n.removeprefix(k): x for n, x in found.items() if n.startswith(k)} for k in kinds]


def test_a_run_starts_with_the_parameters_of_another_and_nothing_else(source, tmp_path):
    """Other lanes, budget and options of the environment, and one of its seeds."""
    settings = {**SMALL, "lanes": 4, "budget": 1, "env_options": {"hardest": 1}}
    result = save_rl.train(**settings, seed=5, steps=16, out=tmp_path / "run", from_run=source.path)
    start, target, optimiser = first_params(tmp_path / "run")
    ended = [np.asarray(x) for x in params(source)]
    assert len(start) == len(ended)
    for found, copy, end in zip(start.values(), target.values(), ended, strict=True):
        np.testing.assert_array_equal(found, end[1:])  # of seed 5
        np.testing.assert_array_equal(copy, end[1:])
    assert all(not np.any(x) for x in optimiser.values())  # Adam begins anew
    scales = [run.trainer.settings.reward_scale for run in (source, result)]
    assert scales[0] == scales[1]  # values are in its units
    assert result.metrics[0]["env_steps"] == 16 * 4  # a chunk of lock-steps of four lanes
    told = json.loads((tmp_path / "run" / "config.json").read_text())["started_from"]
    run_id = json.loads((source.path / "config.json").read_text())["run_id"]
    assert told == {"folder": str(source.path), "run_id": run_id}


def test_a_run_that_ends_before_its_first_checkpoint_starts_there_again(
    source, tmp_path, monkeypatch
):
    def killed(*_):
        raise KeyboardInterrupt

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("save_rl.training.run.checkpoint.save", killed)
        with pytest.raises(KeyboardInterrupt):
            save_rl.train(**SMALL, seed=5, steps=16, out=out, from_run=source.path)
    assert not (out / "checkpoints").exists()
    save_rl.train(resume=out, workers=0, progress=False)
    start, *_ = first_params(out)
    for found, end in zip(start.values(), params(source), strict=True):
        np.testing.assert_array_equal(found, np.asarray(end)[1:])  # of seed 5
    shutil.rmtree(out / "checkpoints")
    shutil.move(source.path, tmp_path / "elsewhere")
    try:
        with pytest.raises(InputError, match="holds no run"):
            save_rl.train(resume=out, workers=0, progress=False)
    finally:
        shutil.move(tmp_path / "elsewhere", source.path)


@pytest.mark.slow
def test_in_jax_a_run_starts_with_the_parameters_of_another(tmp_path):
    small = {"lanes": 4, "batch": 4, "budget": 2, "episodes": 8, "progress": False}
    first = save_rl.train("tightrope", out=tmp_path / "first", **small)
    save_rl.train("tightrope", out=tmp_path / "run", from_run=first.path, seed=(0, 1), **small)
    start, *_ = first_params(tmp_path / "run")
    for found, end in zip(start.values(), params(first), strict=True):
        np.testing.assert_array_equal(found[0], end[0])
        np.testing.assert_array_equal(found[1], end[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": 4}, "--from: '{}' has seeds 3, 5; --seed must be among them, so that each seed "),
        (
            {"env": "tests.training.test_starts:Narrow", "seed": 3},
            "--from: the parameters of '{}' do not fit this run, whose network must have the same "
            "shapes (.learner.params.network.torso.layers[0].weight has another shape or type).",
        ),
        ({"agent": "puct", "seed": 3}, "--from: the parameters of '{}' do not fit this run, whose"),
        (
            {"reward_scale": 1.0, "seed": 3},
            "--reward-scale: 1.0 is not possible; it must be 0 as in",
        ),
        ({"from_run": "none", "seed": 3}, "--from: 'none' holds no run (config.json is missing)."),
        ({"resume": True}, "--from: a run that is resumed has its own parameters; leave one"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(source, tmp_path, options, said):
    given = {**SMALL, "from_run": source.path, "out": tmp_path / "run", "steps": 8, **options}
    with pytest.raises(InputError) as refused:
        save_rl.train(**given)
    assert str(refused.value).startswith(said.format(source.path))
    assert not (tmp_path / "run").exists()


def last_steps(out):
    return int((out / "metrics.csv").read_text().splitlines()[-1].split(",")[2])


def test_a_folder_is_all_that_a_resume_needs(source, tmp_path, capsys):
    short = tmp_path / "run"
    shutil.copytree(source.path, short)
    before, steps = (short / "config.json").read_bytes(), last_steps(short)
    cli.main(["train", "--resume", str(short), "--steps", "300", "--workers", "0"])
    assert steps < 300 <= last_steps(short)
    assert (short / "config.json").read_bytes() == before
    assert settings_to_resume(short).steps == 300
    cli.main(["train", "--resume", str(short), "--workers", "0"])  # the limit it had last
    assert f"tensorboard --logdir {short}  shows its curves" in capsys.readouterr().out
    assert settings_to_resume(short).steps == 300
    noted = [json.loads(line) for line in (short / "resumed.jsonl").read_text().splitlines()]
    assert [(line["steps"], line["episodes"]) for line in noted] == [(300, 10**6), (300, 10**6)]
    assert "jax" in noted[0]["versions"]
    assert save_rl.train(resume=short, workers=0, progress=False).path == short
    with pytest.raises(SystemExit):
        cli.main(["train", "--resume", str(short), "--budget", "3"])
    said = capsys.readouterr().err
    assert f"--resume: '{short}' was started with --budget 2, not 3; repeat its settings" in said


def test_a_resume_runs_no_code_without_trust(source, capsys, monkeypatch):
    monkeypatch.setattr("save_rl.envs._made", set())
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "--resume", str(source.path)])
    assert stop.value.code == 2
    assert "would import and run code of 'tests.training.levels'" in capsys.readouterr().err
    with pytest.raises(InputError, match="would import and run code"):
        save_rl.train(resume=source.path)
    with pytest.raises(InputError, match=r"^out: '.*' is not possible; it must be left out, or"):
        save_rl.train(resume=source.path, out="elsewhere", trust=True)


@pytest.mark.parametrize(
    ("options", "left", "folder"),
    [
        (["--resume", "runs/none", "--steps", "5"], ["--steps", "5"], "runs/none"),
        (["--resume=runs/none"], [], "runs/none"),
        (["tightrope", "--resume", "--out", "x"], ["tightrope", "--resume", "--out", "x"], None),
        (["--out", "x", "--resume"], ["--out", "x", "--resume"], None),
        (["--resume", "gym/CartPole-v1"], ["--resume", "gym/CartPole-v1"], None),
        (["--resume", "atari/pong"], ["--resume", "atari/pong"], None),
        (["--resume", "a.b:c", "--out", "x"], ["--resume", "a.b:c", "--out", "x"], None),
        (["--budget", "3"], ["--budget", "3"], None),
    ],
)
def test_the_flag_may_name_a_folder(options, left, folder):
    assert split_resume(options) == (left, folder)


def test_a_folder_without_a_run_is_not_resumed(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "--resume", str(tmp_path)])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said == f"save-rl: --resume: '{tmp_path}' holds no run (config.json is missing).\n"
