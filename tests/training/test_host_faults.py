"""Runs over worker processes: what they survive, how they stop, and what is left of them."""

import csv
import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from save_rl.envs.pool import Source
from save_rl.training.host.trainer import HostTrainer
from save_rl.training.settings import TrainSettings
from tests.envs.pool_simulators import (
    has_ended,
    have_ended,
    trapped,
    wait_until,
    wait_until_idle,
    workers,
)
from tests.training.test_resume import assert_same, final_arrays, newest, run_in_process

ENV = "tests.envs.pool_simulators:trapped"
OPTIONS = [
    "--budget", "3", "--batch", "8", "--replay", "64", "--min-replay", "16", "--chunk", "2",
    "--no-check",
]  # fmt: skip


ROOT = Path(__file__).parents[2]


class Run:
    """A training process and its folder; a trap in its simulator, which tests may set."""

    def __init__(
        self, folder: Path, *options: str, env_options: tuple[str, ...] = (), seconds: int = 0
    ):
        self.out, self.trap = folder / "run", folder / "trap"
        # The trap's name tells the workers of this run from all others.
        self._arguments = [
            "train", ENV, *OPTIONS, "--out", str(self.out), *options,
            "--checkpoint-seconds", str(seconds),
            "--env-options", f"trap={self.trap}", *env_options,
        ]  # fmt: skip

    def arguments(self, *more: str) -> list[str]:
        return [*self._arguments, *more]

    def start(self, *more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "save_rl", *self._arguments, *more], text=True,
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            # pgx installs a package 'tests', too.
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def workers(self) -> list[int]:
        return workers(str(self.trap))

    def wait_for(self, what: Any) -> Any:
        """Wait for something that must come true before the run ends."""

        def look() -> Any:
            found = what()
            assert found or self.process.poll() is None, self.process.communicate()
            return found

        return wait_until(look)

    def wait_for_checkpoints(self, count: int) -> None:
        first = newest(self.out)
        self.wait_for(lambda: newest(self.out) >= first + count)

    def wait_for_episodes(self, count: int) -> None:
        first = int(self.metrics()[-1]["episodes"])
        self.wait_for(lambda: int(self.metrics()[-1]["episodes"]) >= first + count)

    def set_trap(self, deed: str) -> int:
        """The worker that falls into it."""
        bait = self.trap.with_suffix(".bait")
        bait.write_text(deed)
        bait.rename(self.trap)
        caught = self.wait_for(lambda: list(self.trap.parent.glob("trap.[0-9]*")))
        return int(caught[0].suffix[1:])

    def end(self, code: int = 0) -> str:
        """What it says on stderr until it ends, without leaving any process."""
        _, errors = self.process.communicate()
        assert self.process.returncode == code, errors
        wait_until(lambda: not self.workers())
        return errors

    def metrics(self) -> list[dict[str, str]]:
        with (self.out / "metrics.csv").open() as file:
            return list(csv.DictReader(file))

    def restarts(self) -> list[int]:
        return [int(row["restarts"]) for row in self.metrics()]


def warnings_in(errors: str) -> list[str]:
    """What a run said about its simulator; that it learned little in so short a time does not
    count."""
    return [line for line in errors.splitlines() if line.startswith("warning: the simulator ")]


KILLED = (
    f"warning: the simulator '{ENV}' failed (A worker process died: it was killed by SIGKILL); "
)


@pytest.mark.slow  # tests/training/test_host_seeds.py has a fast one
def test_workers_killed_in_a_search_and_between_requests_cost_their_episodes_alone(tmp_path):
    run = Run(tmp_path, "--lanes", "16", "--workers", "2", "--episodes", "120",
              env_options=("search=true",))  # fmt: skip
    run.start()
    run.wait_for_checkpoints(2)
    os.kill(run.set_trap("sleep"), signal.SIGKILL)
    run.wait_for_episodes(8)
    run.process.send_signal(signal.SIGSTOP)
    victim = run.workers()[0]
    wait_until_idle(victim)
    os.kill(victim, signal.SIGKILL)
    assert have_ended([victim])
    run.process.send_signal(signal.SIGCONT)
    assert warnings_in(run.end()) == [f"{KILLED}8 episodes are restarted."] * 2
    assert run.restarts()[0] == 0
    assert run.restarts()[-1] == 2


@pytest.mark.slow
def test_workers_that_are_killed_during_checkpoints_cost_their_episodes_alone(tmp_path):
    run = Run(tmp_path, "--lanes", "8", "--workers", "2", "--episodes", "100")
    run.start()
    kills = 3
    for kill in range(kills):
        run.wait_for(lambda: list((run.out / "checkpoints").glob(".writing-*")))
        os.kill(run.workers()[kill % 2], signal.SIGKILL)
        run.wait_for(lambda kill=kill: run.restarts()[-1:] == [kill + 1])
        run.wait_for_episodes(8)
    warnings = warnings_in(run.end())
    assert len(warnings) == kills
    assert all(warning.startswith(KILLED) for warning in warnings)
    assert run.restarts()[-1] == kills


@pytest.mark.slow
def test_a_lost_worker_counts_for_the_seeds_it_had_whenever_it_is_missed(tmp_path):
    options = {"trap": str(tmp_path / "trap")}
    settings = TrainSettings(
        env=ENV, env_options=options, seeds=(0, 1), lanes=8, budget=2, batch=8, replay=64,
        min_replay=16, chunk=1,
    )  # fmt: skip
    said: list[str] = []
    trainer = HostTrainer(
        settings, [trapped(seed, **options) for seed in settings.seeds],
        [Source(ENV, seed, options) for seed in settings.seeds], workers=2, test_lanes=2,
        warn=said.append,
    )  # fmt: skip
    everybody = np.ones(2, np.bool_)

    def kill_a_worker(number: int) -> None:
        victim = trainer.pool._workers[number].process.pid
        assert victim in workers(options["trap"])
        os.kill(victim, signal.SIGKILL)
        assert have_ended([victim])

    with closing(trainer), jax.default_device(jax.devices("cpu")[0]):
        state = trainer.begin()
        kill_a_worker(0)  # a group's first half are lanes of the first seed
        state = trainer.advance(state, 0, everybody)
        assert trainer.counters(state).restarts.tolist() == [1, 0]
        assert trainer.counters(state).env_steps.tolist() == [0, 8]
        kill_a_worker(1)
        _, steps = trainer.play(trainer.params(state), 2, 2, 0)  # missed in a test
        assert (steps >= 1).all()
        state = trainer.advance(state, 1, everybody)
        assert trainer.counters(state).restarts.tolist() == [1, 1]
        assert len(said) == 2
        # Everybody plays again: a step is made in all lanes.
        before = trainer.counters(state).env_steps
        state = trainer.advance(state, 2, everybody)
        assert (trainer.counters(state).env_steps - before).tolist() == [8, 8]
    assert workers(options["trap"]) == []


def test_a_simulator_that_always_raises_stops_the_run_with_its_traceback(tmp_path, capsys):
    run = Run(tmp_path, "--lanes", "8", "--workers", "2", env_options=("last=3",), seconds=60)
    words = [
        "save-rl: ENV: the simulator failed 5 times without finishing an episode; the last time",
        "Traceback (most recent call last):", "pool_simulators.py", "in raises_on_purpose",
    ]  # fmt: skip
    for more in ([], ["--resume"]):  # it can be gone on with, and comes to the same end
        assert run_in_process(*run.arguments(*more)) == 1
        errors = capsys.readouterr().err
        for word in words:
            assert word in errors
        assert errors.rstrip().endswith("ArithmeticError: the engine is on fire")
        assert run.workers() == []
        assert len(final_arrays(run.out)) > 0


@pytest.mark.slow  # the pool's own tests have a worker that hangs
def test_a_simulator_that_hangs_costs_its_episodes_alone(tmp_path):
    run = Run(tmp_path, "--lanes", "8", "--workers", "2", "--episodes", "30", "--step-timeout", "1")
    run.start()
    run.wait_for_checkpoints(2)
    assert have_ended([run.set_trap("spin")])
    errors = run.end()
    where = r"in \w+ \(pool_simulators.py:\d+\)"
    assert re.search(rf"it did not answer in time, {where}\); 4 episodes", errors)
    assert run.restarts()[-1] >= 1


def test_a_time_limit_without_workers_is_refused_in_a_sentence(tmp_path, capsys):
    run = Run(tmp_path, "--workers", "0", "--step-timeout", "1")
    assert run_in_process(*run.arguments()) == 2
    assert capsys.readouterr().err == (
        "save-rl: --step-timeout: 1.0 is not possible; it must be 0 without worker processes: "
        "nobody could end a simulator that hangs.\n"
    )
    assert not run.out.exists()


@pytest.mark.slow  # test_host.py resumes in one process, test_resume.py kills
def test_a_run_stopped_in_every_way_equals_one_left_alone(tmp_path):
    settings = ["--lanes", "8", "--seed", "3", "5", "--episodes", "70", "--test-episodes", "2",
                "--test-budget", "1"]  # fmt: skip
    alone, run = Run(tmp_path / "alone", *settings), Run(tmp_path / "stopped", *settings)
    run.out.parent.mkdir()
    run.start("--workers", "2")
    run.wait_for_checkpoints(4)
    mine = run.workers()
    run.process.kill()
    run.process.communicate()
    assert len(mine) == 2
    assert have_ended(mine)
    for stop, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        run.start("--workers", "2", "--resume")
        run.wait_for_checkpoints(4)
        mine = run.workers()
        os.killpg(run.process.pid, stop)  # as a terminal does
        errors = run.end(code)
        assert f"save-rl: stopped; '{run.out}' is saved, continue with --resume." in errors
        assert "Traceback" not in errors
        assert all(map(has_ended, mine))
    run.start("--workers", "1", "--resume")
    alone.start("--workers", "2")
    run.end()
    alone.end()
    assert_same(run.out, alone.out)
    assert run.restarts()[-1] == 0
