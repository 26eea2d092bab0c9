"""The loop between chunks: signals in any phase, metrics that are gone."""

import csv
import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from jax.errors import JaxRuntimeError

from save_rl.agents import get_agent
from save_rl.errors import InputError, Interrupted, RunError
from save_rl.training.counters import Counters, no_stats
from save_rl.training.run import checkpoint, loop
from save_rl.training.run.interrupt import StopOnSignal
from save_rl.training.run.progress import Progress, warn
from save_rl.training.settings import TrainSettings


class State(NamedTuple):
    count: np.ndarray


class Counting:
    """A trainer that finishes an episode per chunk, and learns nothing."""

    agent = get_agent("save")
    curriculum = "none"

    def begin(self) -> State:
        return State(np.zeros(1, np.int64))

    template = begin

    def advance(self, state: State, step: int, running: np.ndarray) -> State:
        return State(state.count + 1)

    def counters(self, state: State) -> Counters:
        stats = no_stats(np)
        stats = stats._make(np.full(1, x) for x in stats)._replace(steps=np.ones(1))
        return Counters(*[state.count] * 6, level=np.array([-1]), stats=stats)

    def same(self, state: State) -> State:
        return state

    snapshot = restore = params = forget_stats = same

    def close(self) -> None:
        pass


def make(*arguments: Any, **options: Any) -> Any:
    return Counting()


def train(out, *, episodes=20, resume=False, said=None):
    overseer = loop.Overseer(make=make, warn=pytest.fail if said is None else said.append)
    settings = TrainSettings(episodes=episodes)
    return loop.train(settings, out, resume=resume, progress=False, overseer=overseer)


def lines(out) -> list[int]:
    with (out / "metrics.csv").open() as file:
        return [int(row["episodes"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("content", "episodes"),
    [(None, 20), (None, 22), (b"", 22), (b"\0" * 500, 22), (b"time_s\xff\n1,2,3\n", 22)],
    ids=["missing, at its end", "missing", "empty", "NUL", "no text"],
)
def test_a_run_goes_on_without_its_metrics(tmp_path, content, episodes):
    train(tmp_path)
    assert lines(tmp_path) == list(range(1, 21))
    path = tmp_path / "metrics.csv"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    said: list[str] = []
    train(tmp_path, resume=True, episodes=episodes, said=said)
    assert said == [
        f"'{path}' is damaged or shorter than it was at the checkpoint; lines before the "
        "checkpoint are missing."
    ]
    assert lines(tmp_path) == list(range(21, episodes + 1))


class Failing(Counting):
    """Three seeds; the loss of the second is not finite from its fourth chunk on."""

    def begin(self) -> State:
        return State(np.zeros(3, np.int64))

    template = begin

    def advance(self, state: State, step: int, running: np.ndarray) -> State:
        return State(state.count + running)

    def counters(self, state: State) -> Counters:
        stats = no_stats(np, (3,))._replace(
            steps=np.ones(3, np.int32),
            loss_a=np.where((np.arange(3) == 1) & (state.count > 3), np.nan, 0.0),
        )
        return Counters(*[state.count] * 6, level=np.full(3, -1), stats=stats)


def test_the_seeds_beside_one_whose_loss_is_not_finite_go_on(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "make", lambda *_, **options: Failing())
    said: list[str] = []

    def run(episodes, resume=False):
        overseer = loop.Overseer(make=make, warn=said.append)
        settings = TrainSettings(episodes=episodes, seeds=(4, 5, 6))
        with pytest.raises(RunError) as error:
            loop.train(settings, tmp_path, resume=resume, progress=False, overseer=overseer)
        return str(error.value)

    why = "loss_a is not finite (seed 5, lock-step 48)"
    end = f"{why}; the other seeds are finished, and everything is in '{tmp_path}'."
    assert run(8) == end
    assert said == [f"{why}; the other seeds go on. A smaller --learning-rate often helps."]
    # It is not forgotten.
    assert run(10, resume=True) == end
    assert len(said) == 1
    with (tmp_path / "metrics.csv").open() as file:
        rows = [(int(row["seed"]), int(row["episodes"])) for row in csv.DictReader(file)]
    assert sorted(rows) == [
        *((4, n) for n in range(1, 11)), *((5, n) for n in range(1, 4)),
        *((6, n) for n in range(1, 11)),
    ]  # fmt: skip


def test_the_last_seed_whose_loss_is_not_finite_ends_the_run(tmp_path, monkeypatch):
    class Lost(Counting):
        def counters(self, state: State) -> Counters:
            made = super().counters(state)
            return made._replace(stats=made.stats._replace(loss_q=np.full(1, np.inf)))

    monkeypatch.setitem(globals(), "make", lambda *_, **options: Lost())
    with pytest.raises(RunError, match=r"loss_q is not finite \(seed 0, lock-step 0\); stopped"):
        train(tmp_path)
    assert (tmp_path / "failure.txt").read_text().startswith("loss_q is not finite (seed 0")


class Climbing(Counting):
    """Two seeds on a level: the first is at its best in its second chunk, the other gets better."""

    curriculum = "adaptive"

    def __init__(self, killed: int):
        self.killed = killed

    def begin(self) -> State:
        return State(np.zeros(2, np.int64))

    template = begin

    def advance(self, state: State, step: int, running: np.ndarray) -> State:
        if state.count[0] == self.killed:
            raise KeyboardInterrupt
        return super().advance(state, step, running)

    def counters(self, state: State) -> Counters:
        chunk = int(state.count[0])
        means = np.array([5 if chunk == 2 else 1, chunk], np.float32)
        stats = no_stats(np, (2,))._replace(
            steps=np.ones(2, np.int32), level_episodes=np.full(2, 20), level_return_sum=20 * means
        )
        return Counters(*[state.count] * 6, level=np.zeros(2, int), stats=stats)


def test_a_run_that_was_killed_keeps_the_best_that_it_had_found_before(tmp_path, monkeypatch):
    """Not only what it finds again after its checkpoint, here the third chunk."""

    def run(episodes, killed=-1, resume=False):
        monkeypatch.setitem(globals(), "make", lambda *_, **options: Climbing(killed))
        overseer = loop.Overseer(make=make, warn=pytest.fail)
        settings = TrainSettings(episodes=episodes, seeds=(0, 1))
        loop.train(settings, tmp_path, resume=resume, progress=False, overseer=overseer)

    run(3)
    with pytest.raises(KeyboardInterrupt):
        run(20, killed=8, resume=True)
    run(20, resume=True)
    best = checkpoint.load_newest(tmp_path / "best", State(np.zeros(2, np.int64)), pytest.fail)
    assert best is not None
    assert best.manifest["scores"] == [[0, 5], [0, 20]]
    assert best.state.count.tolist() == [2, 20]  # the chunks that the parameters are of


def test_a_device_without_memory_is_one_sentence(tmp_path, monkeypatch):
    class Large(Counting):
        def advance(self, state: State, step: int, running: np.ndarray) -> State:
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")

    monkeypatch.setitem(globals(), "make", lambda *_, **options: Large())
    with pytest.raises(RunError, match="out of memory; use fewer --lanes, fewer seeds") as error:
        train(tmp_path)
    assert str(error.value).count("\n") == 0


def test_other_errors_of_a_device_stay_as_they_are(tmp_path, monkeypatch):
    class Broken(Counting):
        def advance(self, state: State, step: int, running: np.ndarray) -> State:
            raise JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setitem(globals(), "make", lambda *_, **options: Broken())
    with pytest.raises(JaxRuntimeError, match="something else"):
        train(tmp_path)


def test_a_checkpoint_of_another_run_is_not_used(tmp_path):
    """The state of a longer run must not become that of a shorter one with the same settings."""
    train(tmp_path / "a")
    train(tmp_path / "b", episodes=25)
    foreign = tmp_path / "b" / "checkpoints" / "000000025"
    foreign.rename(tmp_path / "a" / "checkpoints" / foreign.name)
    said: list[str] = []
    result = train(tmp_path / "a", resume=True, episodes=22, said=said)
    assert ["it belongs to another run" in text for text in said] == [True]
    assert result.state.count == 22


def test_a_run_is_locked_while_it_trains_and_no_longer(tmp_path, monkeypatch):
    refused = []

    class Nosy(Counting):
        def advance(self, state: State, step: int, running: np.ndarray) -> State:
            with pytest.raises(InputError, match="--resume: another process is training in") as e:
                train(tmp_path, resume=True)
            refused.append(e)
            return super().advance(state, step, running)

    monkeypatch.setitem(globals(), "make", lambda *_, **options: Nosy())
    train(tmp_path, episodes=2)
    assert len(refused) == 2
    monkeypatch.undo()
    train(tmp_path, resume=True, episodes=3)
    assert lines(tmp_path) == [1, 2, 3]


def signalling(function: Any, numbers: Sequence[int]) -> Any:
    """Return a function that gets these signals before it does anything the first time."""
    waiting = list(numbers)

    def signalled(*arguments: Any, **options: Any) -> Any:
        while waiting:
            signal.raise_signal(waiting.pop())
        return function(*arguments, **options)

    return signalled


@pytest.fixture(autouse=True)
def no_picture(monkeypatch):
    monkeypatch.setattr(loop, "draw_curve", lambda *_, **options: None)


PHASES = {
    "the trainer": (Counting, "__init__"),
    "the folder": (loop.RunDirectory, "_write_config"),
    "the first state": (Counting, "begin"),
    "the first checkpoint": (checkpoint, "save"),
    "the first chunk": (Counting, "advance"),
    "the first line": (loop._Run, "log"),
}


@pytest.mark.parametrize(("owner", "name"), PHASES.values(), ids=list(PHASES))
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_any_phase_leaves_a_run_that_goes_on(tmp_path, owner, name, number):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, signalling(getattr(owner, name), [number]))
        with pytest.raises(Interrupted, match=f"^stopped; '{tmp_path}' is saved, continue") as stop:
            train(tmp_path)
    assert stop.value.code == 128 + number
    train(tmp_path, resume=True)
    assert lines(tmp_path) == list(range(1, 21))


@pytest.mark.parametrize(("owner", "name"), PHASES.values(), ids=list(PHASES))
def test_ctrl_c_twice_ends_at_once_and_leaves_a_folder_that_can_be_used(tmp_path, owner, name):
    twice = [signal.SIGINT, signal.SIGINT]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, signalling(getattr(owner, name), twice))
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path)
    train(tmp_path, resume=(tmp_path / "config.json").exists())
    assert lines(tmp_path) == list(range(1, 21))


def test_under_nohup_a_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopOnSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.code is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_after_entering_again_a_second_ctrl_c_still_acts_as_usual():
    with StopOnSignal() as stop:
        stop.__enter__()  # as where Ray has put handlers of its own
        signal.raise_signal(signal.SIGINT)
        assert stop.code == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_terminal_that_is_gone_does_not_stop_the_work(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", Gone())
    warn("a")
    with Progress("work", 10, "runs") as progress:
        progress.update(10)
        progress.say("b")
    assert len(written) == 3
