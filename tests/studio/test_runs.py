"""The list of runs: what each line says, also of runs that are broken, and changes as they come."""

import asyncio
import fcntl
import json
import math
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from save_rl.studio.folder import Folder
from save_rl.studio.runs import Library, summarise
from save_rl.studio.server import make_app
from save_rl.studio.stream import Stream
from save_rl.training.run.lock import lock_folder
from tests.studio.asgi import request
from tests.studio.folders import (
    COLUMNS,
    append,
    contents,
    line,
    lines,
    locked,
    make_checkpoint,
    make_run,
)


def test_a_line_by_hand(tmp_path):
    """Two seeds at 400 and 300 episodes: the slower one counts, rewards are averaged."""
    rows = lines(4) + lines(3, seed=1, of=lambda i: 1.0)
    run = make_run(tmp_path / "run", rows, seeds=[0, 1], agent="q-learning")
    with locked(run):
        told = summarise("run", run)
    assert (told["env"], told["label"], told["state"]) == ("tightrope", "Q-learning", "training")
    assert (told["done"], told["target"], told["unit"]) == (300, 1000, "episodes")
    assert told["reward"] == pytest.approx((0.4 + 1.0) / 2)
    assert told["test_reward"] is None
    assert told["steps_per_s"] == pytest.approx(30 + 30)
    assert told["left_s"] == pytest.approx((1000 - 300) / 10)  # 100 episodes in 10 s


def test_progress_in_steps_where_they_are_limited(tmp_path):
    told = summarise("run", make_run(tmp_path / "run", lines(4), steps=1200))
    assert (told["done"], told["target"], told["unit"]) == (1200, 1200, "steps")
    assert told["state"] == "finished"


def test_tests_come_before_training_episodes(tmp_path):
    rows = [line(episodes=i, return_mean=0, test_return=i, seed=0) for i in range(1, 5)]
    told = summarise("run", make_run(tmp_path / "run", rows))
    assert told["test_reward"] == 4
    assert told["spark"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("episodes", "state"), [(9, "stopped"), (10, "finished"), (11, "finished")]
)
def test_a_run_without_a_process_is_finished_or_stopped(tmp_path, episodes, state):
    told = summarise("run", make_run(tmp_path / "run", lines(episodes)))
    assert told["state"] == state
    assert told["left_s"] is None


def test_the_lock_alone_tells_that_it_trains(tmp_path):
    run = make_run(tmp_path / "run", lines(2))
    (run / ".lock").touch()  # stays after every run
    assert summarise("run", run)["state"] == "stopped"
    with locked(run):
        assert summarise("run", run)["state"] == "training"
    assert summarise("run", run)["state"] == "stopped"


def test_asking_never_keeps_a_trainer_out(tmp_path, monkeypatch):
    """The studio holds a shared lock for an instant; a trainer that starts then tries again."""
    run = make_run(tmp_path / "run")
    (run / ".lock").touch()
    asking = os.open(run / ".lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        fcntl.flock(asking, fcntl.LOCK_UN)

    monkeypatch.setattr("time.sleep", sleep)
    os.close(lock_folder(run, "--out", lambda text: pytest.fail(text)))
    os.close(asking)
    assert len(waits) == 1


def test_a_failed_run_says_why(tmp_path):
    run = make_run(tmp_path / "run", lines(3))
    make_checkpoint(run, 3, failed={"0": "loss_q is not finite"})
    assert summarise("run", run)["problem"] == "loss_q is not finite"
    assert summarise("run", run)["state"] == "failed"
    (run / "failure.txt").write_text("the simulator fails\n")
    assert summarise("run", run)["problem"] == "the simulator fails"
    with locked(run):  # one seed of several failed, the others go on
        assert summarise("run", run)["state"] == "training"


def write_budget(run, budget):
    config = json.loads((run / "config.json").read_text())
    config["settings"]["budget"] = budget
    (run / "config.json").write_text(json.dumps(config))


def write(run, name, data):
    (run / name).write_bytes(data)


BROKEN = {
    "no config": (lambda run: (run / "config.json").unlink(), "config.json is missing."),
    "half a config": (
        lambda run: write(run, "config.json", b'{"settings": {"env'),
        "config.json is damaged or half-written.",
    ),
    "another config": (
        lambda run: write(run, "config.json", b"[]"),
        "config.json has no settings.",
    ),
    "no agent": (
        lambda run: write(run, "config.json", b'{"settings": {"env": "x", "seeds": [0]}}'),
        "config.json names no environment, agent or seeds.",
    ),
    "deep config": (
        lambda run: write(run, "config.json", b"[" * 100_000),
        "config.json is damaged or half-written.",
    ),
    "no metrics": (lambda run: (run / "metrics.csv").unlink(), "metrics.csv is missing."),
    "empty metrics": (lambda run: write(run, "metrics.csv", b""), "metrics.csv has no header."),
    "binary metrics": (
        lambda run: write(run, "metrics.csv", bytes(range(256)) * 50),
        "metrics.csv has no header.",
    ),
    "numbers that JSON lacks": (
        lambda run: (write_budget(run, math.nan), (run / "metrics.csv").unlink()),
        "metrics.csv is missing.",
    ),
    "a pipe": (
        lambda run: (
            (run / "config.json").unlink(),
            os.mkfifo(run / "config.json"),
        ),
        "config.json can't be read (it is not a file).",
    ),
    "another pipe": (
        lambda run: ((run / "metrics.csv").unlink(), os.mkfifo(run / "metrics.csv")),
        "It can't be read (it is not a file).",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_run_says_what_is_wrong_and_the_others_are_listed(tmp_path, kind):
    spoil, said = BROKEN[kind]
    make_run(tmp_path / "good", lines(10))
    bad = make_run(tmp_path / "bad", lines(3))
    (bad / "checkpoints").mkdir()
    spoil(bad)
    app = make_app(tmp_path, token="t")
    found = {run["name"]: run for run in request(app, "/api/runs").json["runs"]}
    assert found["good"]["state"] == "finished"
    assert (found["bad"]["state"], found["bad"]["problem"]) == ("broken", said)
    assert request(app, "/api/run", {"run": "bad"}).json["line"]["problem"] == said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["settings", "env", "agent", "seeds", "episodes", "steps", "x"]), inner
    ),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=JSON | st.fixed_dictionaries({"settings": st.fixed_dictionaries({
    "env": st.text(max_size=5) | JSON, "agent": st.text(max_size=5) | JSON,
    "seeds": st.lists(JSON, max_size=3), "episodes": JSON, "steps": JSON})}),
    metrics=st.binary(max_size=80), header=st.booleans())  # fmt: skip
def test_nothing_in_a_run_breaks_the_list(tmp_path, config, metrics, header):
    run = make_run(tmp_path / "run")
    (run / "config.json").write_text(json.dumps(config))
    head = ",".join(COLUMNS).encode() + b"\n" if header else b""
    (run / "metrics.csv").write_bytes(head + metrics)
    app = make_app(tmp_path, token="t")
    (told,) = request(app, "/api/runs").json["runs"]
    assert told["state"] in ("stopped", "finished", "broken")
    assert request(app, "/api/run", {"run": "run"}).status == 200
    assert request(app, "/api/curves", {"run": "run"}).status == 200


def test_runs_are_found_at_any_depth_but_not_inside_runs(tmp_path):
    make_run(tmp_path / "a" / "b" / "c")
    make_run(tmp_path / "best")
    make_run(tmp_path / "top")
    make_run(tmp_path / "top" / "inner")
    make_run(tmp_path / ".hidden" / "run")
    (tmp_path / "notes").mkdir()
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "claims.json").write_text("[]")
    make_run(tmp_path / "experiment" / "runs" / "save-0")
    found = Folder(tmp_path).found()
    assert found.runs == ["a/b/c", "best", "experiment/runs/save-0", "top"]
    assert found.experiments == ["experiment"]


def test_the_folder_may_be_a_run_itself(tmp_path):
    make_run(tmp_path, lines(2))
    app = make_app(tmp_path, token="t")
    (told,) = request(app, "/api/runs").json["runs"]
    assert told["name"] == "."
    assert request(app, "/api/run", {"run": "."}).json["line"]["done"] == 200


def test_only_what_changed_is_read_again(tmp_path, monkeypatch):
    first, second = (make_run(tmp_path / name, lines(2)) for name in "ab")
    read = []
    monkeypatch.setattr(
        "save_rl.studio.runs.summarise", lambda name, run: read.append(name) or {"name": name}
    )
    library = Library(Folder(tmp_path, seconds=0))
    for _ in range(3):
        assert [run["name"] for run in library.lines()] == ["a", "b"]
    assert read == ["a", "b"]
    append(second, *lines(1))
    library.lines()
    assert read == ["a", "b", "b"]
    (first / "failure.txt").write_text("why")
    library.lines()
    assert read == ["a", "b", "b", "a"]


def parsed(event):
    name, data = event.strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_the_stream_tells_all_and_then_changes(tmp_path):
    run = make_run(tmp_path / "run", lines(2))
    other = make_run(tmp_path / "other", lines(2))
    before = contents(other)
    stream = Stream(Library(Folder(tmp_path, seconds=0)), seconds=0.01)

    async def watch():
        pages = [stream.events() for _ in range(10)]
        for page in pages:
            kind, data = parsed(await anext(page))
            assert kind == "all"
            assert [told["name"] for told in data["runs"]] == ["other", "run"]
        append(run, *lines(3)[2:])
        changes = [parsed(await anext(page)) for page in pages]
        assert [kind for kind, _ in changes] == ["change"] * 10
        assert {told["done"] for _, data in changes for told in data["runs"]} == {300}
        assert all([told["name"] for told in data["runs"]] == ["run"] for _, data in changes)
        (run / "config.json").unlink()
        (run / "metrics.csv").unlink()
        kind, data = parsed(await anext(pages[0]))
        assert (kind, data) == ("change", {"runs": [], "gone": ["run"]})
        for page in pages:
            await page.aclose()
        assert stream._task is None
        stream.stopping = lambda: True
        last = stream.events()
        assert parsed(await anext(last))[0] == "all"
        with pytest.raises(StopAsyncIteration):
            await anext(last)

    asyncio.run(watch())
    assert contents(other) == before


def test_a_name_that_is_no_text_is_listed(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff")
    make_run(tmp_path.__class__(folder), lines(2))
    app = make_app(tmp_path, token="t")
    assert [run["name"] for run in request(app, "/api/runs").json["runs"]] == ["run-\udcff"]
