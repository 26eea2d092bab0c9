"""A training run from beginning to end: chunks of compiled work, and what happens between them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.envs import check_jax_environment, make_all
from save_rl.errors import Interrupted, RunError
from save_rl.learning.exploration import EPSILON
from save_rl.report.plots import curve_figure
from save_rl.training import checkpoint
from save_rl.training.device import Program, SeedState
from save_rl.training.devices import compiler_options, select_device
from save_rl.training.interrupt import StopOnSignal
from save_rl.training.progress import Progress, warn
from save_rl.training.run_directory import RunDirectory
from save_rl.training.settings import TrainSettings


@dataclass(frozen=True)
class TrainResult:
    """A finished run: its folder, its program and the final state of all seeds."""

    path: Path
    program: Program
    state: SeedState
    metrics: list[dict[str, float]]


def is_log_point(chunk: int) -> bool:
    """Whether chunk number `chunk` (from 1) ends with a line of metrics.

    Every chunk at first, then 32 lines per doubling: learning is fastest early on. It depends on
    the number alone, so a resumed run writes the same lines.
    """
    return chunk % (1 << max(0, chunk.bit_length() - 6)) == 0


class _Run:
    """The moving parts of a run between chunks."""

    def __init__(self, settings: TrainSettings, program: Program, folder: RunDirectory):
        self.settings, self.program, self.folder = settings, program, folder
        self.state: SeedState = program.initial(program.env_arrays, np.array(settings.seeds))
        self.chunks = 0
        self.before = 0.0  # seconds of earlier sittings
        self.started = time.monotonic()
        self.saved_at = self.started
        self._test = self._make_test()

    def _make_test(self) -> Callable[..., Any] | None:
        s, agent = self.settings, self.program.agent
        if s.test_episodes == 0:
            return None
        from save_rl.evaluation import tester

        searches = agent.search is not None
        budget = s.test_budget if s.test_budget >= 0 else (s.budget if searches else 0)
        return tester(self.program, s.test_episodes, budget)

    def restore(self) -> None:
        """Go on from the newest checkpoint, or from the start if none was made."""
        found = checkpoint.load_newest(self.folder.checkpoints, self.state, warn, "--resume")
        self.folder.cut_metrics(found.manifest["metrics_bytes"] if found else None)
        if found:
            self.state = jax.tree.map(jnp.asarray, found.state)
            self.chunks = found.manifest["number"]
            self.before = found.manifest["time_s"]

    def save(self) -> None:
        manifest = {"metrics_bytes": self.folder.metrics_size(), "time_s": self.seconds()}
        checkpoint.save(self.folder.checkpoints, self.chunks, self.state, manifest)
        self.saved_at = time.monotonic()

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def finished(self) -> bool:
        return bool(np.all(np.asarray(self.state.episodes) >= self.settings.episodes))

    def chunk(self) -> None:
        """One compiled call, then the look at the losses that stops a run gone wrong."""
        step = self.chunks * self.settings.chunk
        self.state = self.program.chunk(
            self.program.env_arrays, self.state, step, self.settings.episodes
        )
        self.chunks += 1
        for name, loss in (
            ("loss_q", self.state.stats.loss_q),
            ("loss_a", self.state.stats.loss_a),
        ):
            bad = ~np.isfinite(np.asarray(loss))
            if bad.any():
                seed = self.settings.seeds[int(np.argmax(bad))]
                raise RunError(
                    f"{name} is not finite (seed {seed}, lock-step {step}); stopped, the last good "
                    f"checkpoint is in '{self.folder.checkpoints}'. A smaller --learning-rate "
                    "often helps."
                )

    def log(self) -> list[dict[str, Any]]:
        """Write a line of metrics per seed that moved since the last one."""
        s, state = self.settings, self.state
        stats, seconds, rows = jax.tree.map(np.asarray, state.stats), self.seconds(), []
        done = np.asarray(state.episodes, np.float64)
        tests = None
        if self._test is not None:
            keys = jnp.stack(
                [jax.random.fold_in(jax.random.PRNGKey(seed), self.chunks) for seed in s.seeds]
            )
            tests = np.asarray(self._test(self.state.learner.params, keys)[0])
        agent = self.program.agent
        simulations = s.budget if agent.search is not None else 0
        for i, seed in enumerate(s.seeds):
            if stats.steps[i] == 0:
                continue
            episodes, updates = int(stats.episodes[i]), max(int(stats.updates[i]), 1)
            env_steps = int(state.steps[i]) * s.lanes
            rows.append(
                {
                    "time_s": round(seconds, 3),
                    "episodes": int(state.episodes[i]),
                    "env_steps": env_steps,
                    "simulator_steps": env_steps * simulations,
                    "updates": int(state.updates[i]),
                    "return_mean": float(stats.return_sum[i]) / episodes if episodes else "",
                    "return_min": float(stats.return_min[i]) if episodes else "",
                    "return_max": float(stats.return_max[i]) if episodes else "",
                    "loss_q": float(stats.loss_q[i]) / updates,
                    "loss_a": float(stats.loss_a[i]) / updates,
                    "epsilon": 0.0 if agent.act == "visits" else float(EPSILON.at(done[i])),
                    "beta_q": float(agent.beta_q.at(done[i])),
                    "beta_a": float(agent.beta_a.at(done[i])),
                    "episode_length": float(state.length[i]),
                    "test_return": "" if tests is None else float(tests[i].mean()),
                    "seed": seed,
                }
            )
        self.folder.write_metrics(rows)
        self.state = self.program.forget_stats(self.state)
        return rows


def _note(rows: list[dict[str, Any]], simulations_per_second: float) -> str:
    """The words beside the progress bar."""
    rewards = [row["return_mean"] for row in rows if row["return_mean"] != ""]
    reward = f"reward {np.mean(rewards):.2f}" if rewards else "reward -"
    tests = [row["test_return"] for row in rows if row["test_return"] != ""]
    test = f"  test {np.mean(tests):.2f}" if tests else ""
    speed = f"  {simulations_per_second:,.0f} sims/s" if simulations_per_second else ""
    return f"{reward}{test}{speed}"


def _finish(run: _Run, draw: bool) -> TrainResult:
    run.save()
    metrics = run.folder.read_metrics()
    if draw:
        curves = {}
        for seed in run.settings.seeds:
            rows = [row for row in metrics if row["seed"] == seed]
            name = "test_return" if run.settings.test_episodes else "return_mean"
            rows = [row for row in rows if name in row]
            label = run.settings.agent if len(run.settings.seeds) == 1 else f"seed {seed}"
            curves[label] = ([r["episodes"] for r in rows], [r[name] for r in rows])
        curve_figure(
            curves, run.folder.path / "curve.png", x_label="Episodes", y_label="Reward",
            title=f"{run.settings.agent} on {run.settings.env}",
        )  # fmt: skip
    return TrainResult(run.folder.path, run.program, run.state, metrics)


def train(
    settings: TrainSettings,
    out: Path,
    *,
    resume: bool = False,
    device: str = "auto",
    checkpoint_seconds: float = 60.0,
    progress: bool = True,
    label: str | None = None,
) -> TrainResult:
    """Train all seeds of `settings` and leave a run directory in `out`."""
    settings.check()
    target = select_device(device)
    envs = make_all(settings.env, settings.seeds, **settings.env_options)
    check_jax_environment(envs[0], settings.env)
    with jax.default_device(target), StopOnSignal() as stop:
        program = Program(settings, envs, compiler_options(target))
        open_run = RunDirectory.resume if resume else RunDirectory.create
        folder = open_run(out, settings, str(target))
        simulations = settings.budget if program.agent.search is not None else 0
        run = _Run(settings, program, folder)
        try:
            if resume:
                run.restore()
            elif checkpoint_seconds > 0:
                run.save()  # a broken first minute can be resumed too
            latest: dict[int, dict[str, Any]] = {}  # the last line of metrics of each seed
            clock = counted = None  # set after the first chunk, which compiles
            with Progress(label or settings.agent, settings.episodes, "episodes", progress) as bar:
                while not run.finished():
                    if stop.code is not None:
                        run.save()
                        raise Interrupted(
                            f"stopped; '{out}' is saved, go on with --resume.", stop.code
                        )
                    run.chunk()
                    if is_log_point(run.chunks) or run.finished():
                        latest |= {row["seed"]: row for row in run.log()}
                    if time.monotonic() - run.saved_at >= checkpoint_seconds:
                        run.save()
                    if clock is None or counted is None:
                        clock, counted, rate = time.monotonic(), run.chunks, 0.0
                    else:
                        steps = (run.chunks - counted) * settings.chunk * settings.lanes
                        seconds = time.monotonic() - clock
                        rate = steps * len(settings.seeds) * simulations / seconds
                    bar.update(
                        int(np.min(np.asarray(run.state.episodes))),
                        _note(list(latest.values()), rate),
                    )
            return _finish(run, draw=True)
        finally:
            folder.close()
