"""Callbacks hear of everything once, in order, also across a resume; their errors are theirs."""

import csv
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import save_rl
from save_rl.errors import InputError, Interrupted, MissingExtra, StopTraining
from save_rl.training.run import loop
from save_rl.training.run.callbacks import EVENTS, Callback, check_callback
from save_rl.training.run.loggers import make_loggers
from save_rl.training.settings import TrainSettings
from tests.training.test_loop import Counting


class Tested(Counting):
    """Plays tests whose returns are the number of the chunk."""

    settings = TrainSettings(seeds=(4,))

    def play(self, params, episodes, budget, number, level=None):
        return np.full((1, episodes), float(number)), np.ones((1, episodes), int)


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "draw_curve", lambda *_: None)


def train(out, *callbacks, episodes=6, said=None, **options):
    overseer = loop.Overseer(
        make=lambda *_, **__: Tested(), warn=pytest.fail if said is None else said.append
    )
    settings = TrainSettings(episodes=episodes, seeds=(4,), test_episodes=2, budget=3)
    return loop.train(
        settings, out, progress=False, overseer=overseer, callbacks=callbacks, **options
    )


class Diary(Callback):
    def __init__(self):
        self.lines = []

    def on_start(self, run):
        self.lines.append(("start", run.folder.name, run.chunks))

    def on_test(self, test):
        self.lines.append(("test", test.chunk, test.budget, test.returns[4].tolist()))

    def on_metrics(self, row):
        assert "" not in row.values()
        self.lines.append(("metrics", row["chunk"], row["episodes"], row["test_return"]))

    def on_checkpoint(self, folder):
        assert (folder / "arrays.npz").exists()
        self.lines.append(("checkpoint", int(folder.name)))

    def on_end(self):
        self.lines.append(("end",))


def told(chunks):
    return [
        line
        for k in chunks
        for line in (("test", k, 3, [k, k]), ("metrics", k, k, k), ("checkpoint", k))
    ]


def test_everything_is_told_in_order(tmp_path):
    diary = Diary()
    train(tmp_path / "run", diary, episodes=3, checkpoint_seconds=0)
    assert diary.lines == [("start", "run", 0), *told((1, 2, 3)), ("checkpoint", 3), ("end",)]


def test_a_resumed_run_tells_what_comes_after_its_checkpoint(tmp_path):
    diary = Diary()
    train(tmp_path / "run", episodes=2, checkpoint_seconds=0)
    train(tmp_path / "run", diary, episodes=4, checkpoint_seconds=0, resume=True)
    assert diary.lines == [("start", "run", 2), *told((3, 4)), ("checkpoint", 4), ("end",)]


def test_an_object_with_one_method_will_do(tmp_path):
    rows = []
    train(tmp_path / "run", SimpleNamespace(on_metrics=rows.append), episodes=2)
    with (tmp_path / "run" / "metrics.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == [4, 4]
    for row, line in zip(rows, written, strict=True):
        assert {name for name in row if name != "chunk"} == {n for n, x in line.items() if x}
        assert row["episodes"] == float(line["episodes"])


@pytest.mark.parametrize("event", EVENTS)
def test_an_error_is_shown_once_and_the_run_goes_on(tmp_path, event):
    def fail(*_):
        raise KeyError("no such project\nand more")

    said, diary = [], Diary()
    broken = type("Broken", (), {event: staticmethod(fail)})()
    result = train(tmp_path / "run", broken, diary, said=said)
    assert said == [
        f"callback Broken failed in {event} (KeyError: 'no such project\\nand more'); the run goes "
        "on without it."
    ]
    assert result.metrics[-1]["episodes"] == 6
    assert [line[1] for line in diary.lines if line[0] == "metrics"] == [1, 2, 3, 4, 5, 6]


def test_a_callback_can_stop_a_run(tmp_path):
    def enough(row):
        if row["test_return"] >= 3:
            raise save_rl.StopTraining("good enough")

    said = []
    result = train(tmp_path / "run", SimpleNamespace(on_metrics=enough), said=said)
    assert said == ["training ends early: good enough."]
    assert [row["episodes"] for row in result.metrics] == [1, 2, 3]
    assert StopTraining is save_rl.StopTraining
    assert Callback is save_rl.Callback
    train(tmp_path / "run", resume=True)  # it can go on


def test_the_end_is_told_however_a_run_ends(tmp_path, monkeypatch):
    diary = Diary()

    def fail(*_):
        raise Interrupted("stopped", 130)

    monkeypatch.setattr(loop._Run, "chunk", fail)
    with pytest.raises(Interrupted):
        train(tmp_path / "run", diary)
    assert [line[0] for line in diary.lines] == ["start", "checkpoint", "end"]


def test_what_is_no_callback_is_refused():
    for given, said in (
        (3, "callbacks: int has none of on_start, on_test, on_metrics, on_checkpoint, on_end."),
        (
            SimpleNamespace(on_metric=print),
            "callbacks: SimpleNamespace: there is no method 'on_metric'; known: on_checkpoint, "
            "on_end, on_metrics, on_start, on_test. Did you mean 'on_metrics'?",
        ),
    ):
        with pytest.raises(InputError) as refused:
            check_callback(given)
        assert str(refused.value) == said
    with pytest.raises(InputError, match="callbacks: int has none of"):
        save_rl.train("tightrope", callbacks=[3], out="never")


def read_lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_json_lines_are_those_of_an_undisturbed_run(tmp_path):
    """Killed after its last line and before its checkpoint, and resumed."""
    train(tmp_path / "whole", *make_loggers(["jsonl"]), episodes=4, checkpoint_seconds=0)
    out = tmp_path / "run"
    train(out, *make_loggers(["jsonl"]), episodes=2, checkpoint_seconds=0)
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "metrics", "chunk": 3, "episodes": 3}\n{"kind": "metr')
    train(out, *make_loggers(["jsonl"]), episodes=4, checkpoint_seconds=0, resume=True)
    whole, resumed = (read_lines(folder) for folder in (tmp_path / "whole", out))
    for line in (*whole, *resumed):
        line.pop("time_s", None)
    assert resumed == whole
    assert [(line["kind"], line["chunk"]) for line in whole] == [
        (kind, chunk) for chunk in (1, 2, 3, 4) for kind in ("test", "metrics")
    ]
    assert whole[0]["returns"] == {"4": [1.0, 1.0]}


class FakeWandb:
    """Stands in for the module `wandb`: keeps what it is told."""

    def __init__(self):
        self.runs = []

    def init(self, **options):
        run = SimpleNamespace(options=options, logged=[], finished=False)
        run.log = lambda what, step: run.logged.append((step, what))
        run.finish = lambda: setattr(run, "finished", True)
        self.runs.append(run)
        return run


def test_weights_and_biases_is_told_by_step(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    train(tmp_path / "run", *make_loggers(["wandb"]), episodes=2)
    train(tmp_path / "run", *make_loggers(["wandb"]), episodes=3, resume=True)
    first, second = fake.runs
    run_id = json.loads((tmp_path / "run" / "config.json").read_text())["run_id"]
    for run in (first, second):
        assert run.options["id"] == run_id
        assert run.options["resume"] == "allow"
        assert run.options["project"] == "save_rl"
        assert run.options["name"] == "run"
        assert run.options["config"]["budget"] == 3
        assert run.finished
    assert [step for step, _ in first.logged] == [1, 2]
    assert [step for step, _ in second.logged] == [3]
    assert first.logged[1][1]["test_return/seed4"] == 2.0
    assert first.logged[1][1]["env_steps/seed4"] == 2.0


def test_logs_that_there_are_not_are_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match="wandb, Weights & Biases, is not installed"):
        save_rl.train("tightrope", log=("wandb",), out=tmp_path / "run")
    with pytest.raises(InputError) as refused:
        save_rl.train("tightrope", log=("json",), out=tmp_path / "run")
    assert str(refused.value) == (
        "--log: there is no log 'json'; known: jsonl, tensorboard, wandb. Did you mean 'jsonl'?"
    )
    assert list(tmp_path.iterdir()) == []


def test_without_logs_there_are_no_events(tmp_path):
    train(tmp_path / "run")
    assert not list((tmp_path / "run").glob("events*"))
