"""A training run: compiled chunks, with metrics, checkpoints and signals in between."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from save_rl.errors import InputError, Interrupted, RunError
from save_rl.training.counters import Counters
from save_rl.training.devices import enough_memory, select_device
from save_rl.training.run import checkpoint
from save_rl.training.run.callbacks import Callbacks, RunStart, Test
from save_rl.training.run.interrupt import StopOnSignal
from save_rl.training.run.loggers import USUAL, make_loggers
from save_rl.training.run.progress import Progress, announce, warn
from save_rl.training.run.recent import RecentReturns
from save_rl.training.run.result import TrainResult, draw_curve
from save_rl.training.run.run_directory import RunDirectory, started_from
from save_rl.training.run.trained import params_to_start_from, with_params
from save_rl.training.run.trainers import make_trainer
from save_rl.training.settings import TrainSettings
from save_rl.training.trainer import Trainer

SAVING = 9  # wait this many times the duration of a checkpoint before the next
ENOUGH_EPISODES = 20  # of a level, before its mean return can be the best


def is_log_point(chunk: int) -> bool:
    """Test whether chunk number `chunk` (from 1) ends with a line of metrics.

    True for every chunk at first, then 32 times per doubling: learning is fastest early on. It
    depends only on the number, so a resumed run writes the same lines.
    """
    return chunk % (1 << max(0, chunk.bit_length() - 6)) == 0


def _is_time(value: Any) -> bool:
    """Test whether a value of a manifest is a number of seconds."""
    return checkpoint.is_number(value) and value >= 0


class _Run:
    """The moving parts of a run between chunks."""

    def __init__(
        self, settings: TrainSettings, trainer: Trainer, folder: RunDirectory,
        warn: Callable[[str], None], callbacks: Callbacks, light: bool = False,
    ):  # fmt: skip
        self.settings, self.trainer, self.folder, self._warn = settings, trainer, folder, warn
        self.callbacks = callbacks
        self._light = light
        self.figures: dict[str, float] = {}  # for TensorBoard, beside the metrics
        self.state: Any = trainer.begin()
        self.chunks = 0
        self.before = 0.0  # seconds before the last resume
        self.started = time.monotonic()
        self.saved_at = self.started
        self._saving = 0.0  # seconds that the last checkpoint took
        self._best: list[tuple[float, float]] = [(-1.0, 0.0)] * len(settings.seeds)
        self._best_params: Any = None  # [seeds, ...]
        self._best_is_new = False  # since the last checkpoint
        self._failed: dict[int, str] = {}  # why seeds stopped, by index
        self.recent = [RecentReturns() for _ in settings.seeds]

    def restore(self) -> None:
        """Continue from the newest checkpoint, or from the start if there is none."""
        template, run_id = self.trainer.template(), self.folder.run_id
        found = checkpoint.load_newest(
            self.folder.checkpoints, template, self._warn, run_id=run_id,
            needs={
                "metrics_bytes": checkpoint.is_count, "time_s": _is_time,
                "failed": self._are_failures,
            },
        )  # fmt: skip
        self.folder.cut_metrics(found.manifest["metrics_bytes"] if found else None)
        if found:
            saved = found.state
            if found.manifest.get("light") is True:
                saved = saved._replace(replay=self.trainer.snapshot(self.state).replay)
            self.state = self.trainer.restore(saved)
            self.chunks = found.manifest["number"]
            self.before = found.manifest["time_s"]
            self._failed = {int(i): why for i, why in found.manifest["failed"].items()}
        params = self.trainer.params(template)
        kept = checkpoint.load_newest(
            self.folder.best, params, self._warn, run_id=run_id,
            needs={"scores": self._are_scores}, latest=self.chunks,
        )  # fmt: skip
        if kept:
            self._best_params = kept.state
            self._best = [(level, mean) for level, mean in kept.manifest["scores"]]

    def _are_failures(self, value: Any) -> bool:
        """Test whether a value of a manifest says why some seeds stopped."""
        known = {str(i) for i in range(len(self.settings.seeds))}
        return isinstance(value, dict) and value.keys() <= known and all(
            isinstance(why, str) for why in value.values()
        )  # fmt: skip

    def _are_scores(self, value: Any) -> bool:
        """Test whether a value of a manifest is a level and a mean return of every seed."""
        return (
            isinstance(value, list)
            and len(value) == len(self._best)
            and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
            and all(checkpoint.is_number(x) for pair in value for x in pair)
        )

    def _keep_best(self, rows: list[dict[str, Any]]) -> None:
        """Keep the parameters with the highest return on the highest level (paper D.4), in runs
        with a curriculum."""
        if self.trainer.curriculum == "none":
            return
        params = self.trainer.params(self.state)
        if self._best_params is None:
            self._best_params = jax.tree.map(np.array, params)
        played = self.trainer.counters(self.state).stats.level_episodes
        for row in rows:
            i = self.settings.seeds.index(row["seed"])
            score = (row["level"], row["level_return"])
            if played[i] >= ENOUGH_EPISODES and score > self._best[i]:
                self._best[i], self._best_is_new = score, True
                jax.tree.map(partial(_copy_seed, i), self._best_params, params)

    def _save_best(self) -> None:
        if self._best_is_new:
            manifest = {"run_id": self.folder.run_id, "scores": self._best}
            checkpoint.save(self.folder.best, self.chunks, self._best_params, manifest)
            self._best_is_new = False

    def save(self) -> None:
        began = time.monotonic()
        self._save_best()  # first, so that a run that goes on from here finds the best so far
        manifest = {
            "run_id": self.folder.run_id,
            "metrics_bytes": self.folder.metrics.size(),
            "time_s": self.seconds(),
            "failed": {str(i): why for i, why in self._failed.items()},
            "light": self._light,
        }
        arrays = self.trainer.snapshot(self.state)
        if self._light:
            arrays = checkpoint.without_replay(arrays)
        written = checkpoint.save(self.folder.checkpoints, self.chunks, arrays, manifest)
        self.callbacks.tell("on_checkpoint", written)
        self.saved_at = time.monotonic()
        self._saving = self.saved_at - began

    def save_if_due(self, seconds: float) -> None:
        """Save if this many seconds have passed, or more: saving takes at most 10 % of the time."""
        wait = max(seconds, SAVING * self._saving) if seconds > 0 else 0.0
        if time.monotonic() - self.saved_at >= wait:
            self.save()

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def running(self) -> np.ndarray:
        """Return which seeds `[seeds]` go on."""
        done, s = self.trainer.counters(self.state), self.settings
        left = done.episodes < s.episodes
        if s.steps > 0:
            left &= done.env_steps < s.steps
        left[list(self._failed)] = False
        return left

    def finished(self) -> bool:
        return not self.running().any()

    def progress(self) -> int:
        """Return the fewest episodes of any seed; steps instead, if they are limited."""
        done = self.trainer.counters(self.state)
        return int((done.env_steps if self.settings.steps > 0 else done.episodes).min())

    def simulations(self) -> int:
        """Return the number of simulator steps made for searches."""
        return int(self.trainer.counters(self.state).simulator_steps.sum())

    def chunk(self) -> None:
        """Run one chunk. A seed whose loss is not finite stops; raise RunError if it was the last
        one."""
        step = self.chunks * self.settings.chunk
        self.state = self.trainer.advance(self.state, step, self.running())
        self.chunks += 1
        stats = self.trainer.counters(self.state).stats
        for name, loss in (("loss_q", stats.loss_q), ("loss_a", stats.loss_a)):
            for i in np.flatnonzero(~np.isfinite(loss)):
                if i not in self._failed:
                    self._fail(int(i), name, step)

    def _fail(self, index: int, name: str, step: int) -> None:
        """Stop a seed whose loss is not finite."""
        seed = self.settings.seeds[index]
        inside = "r2d2.network." if self.trainer.agent.recurrent else ""
        self._failed[index] = f"{name} is not finite (seed {seed}, lock-step {step})"
        hint = f"A smaller --{inside}learning-rate often helps."
        if len(self._failed) == len(self.settings.seeds):
            self._save_best()
            raise RunError(
                f"{self._failed[index]}; stopped, the last good checkpoint is in "
                f"'{self.folder.checkpoints}'. {hint}"
            )
        self._warn(f"{self._failed[index]}; the other seeds go on. {hint}")

    def require_success(self) -> None:
        """Raise RunError if a seed has stopped before its end."""
        if self._failed:
            raise RunError(
                f"{'; '.join(self._failed.values())}; the other seeds are finished, and everything "
                f"is in '{self.folder.path}'."
            )

    def _test(self) -> np.ndarray | None:
        """Return the returns of test episodes, `[seeds, episodes]`; None if there are no tests."""
        s, trainer = self.settings, self.trainer
        if s.test_episodes == 0:
            return None
        searches = trainer.agent.search is not None
        budget = s.test_budget if s.test_budget >= 0 else (s.budget if searches else 0)
        params = trainer.params(self.state)
        returns = trainer.play(params, s.test_episodes, budget, self.chunks)[0]
        by_seed = dict(zip(s.seeds, returns, strict=True))
        self.callbacks.tell("on_test", Test(self.chunks, budget, by_seed))
        return returns

    def log(self) -> list[dict[str, Any]]:
        """Write a line of metrics for every seed that made steps since its last one."""
        s, seconds, rows = self.settings, self.seconds(), []
        done = self.trainer.counters(self.state)
        stats, tests, agent = done.stats, self._test(), self.trainer.agent
        for i, seed in enumerate(s.seeds):
            if stats.steps[i] == 0 or i in self._failed:
                continue
            self.recent[i].add(int(stats.episodes[i]), float(stats.return_sum[i]))
            episodes, updates = int(stats.episodes[i]), max(int(stats.updates[i]), 1)
            so_far, steps = float(done.episodes[i]), float(done.env_steps[i])
            level, played = int(done.level[i]), int(stats.level_episodes[i])
            beta_q, beta_a = (beta.at(so_far) for beta in s.betas)
            healthy = done.health if done.health and done.health.steps[i] else None
            rows.append(
                {
                    "time_s": round(seconds, 3),
                    "episodes": int(done.episodes[i]),
                    "env_steps": int(done.env_steps[i]),
                    "simulator_steps": int(done.simulator_steps[i]),
                    "updates": int(done.updates[i]),
                    "return_mean": float(stats.return_sum[i]) / episodes if episodes else "",
                    "return_min": float(stats.return_min[i]) if episodes else "",
                    "return_max": float(stats.return_max[i]) if episodes else "",
                    "loss_q": float(stats.loss_q[i]) / updates,
                    "loss_a": float(stats.loss_a[i]) / updates,
                    "epsilon": float(s.mean_epsilon(so_far, steps)) if agent.explores else 0.0,
                    "beta_q": float(beta_q),
                    "beta_a": float(beta_a),
                    "episode_length": float(done.length[i]),
                    "level": level if level >= 0 else "",
                    "level_return": float(stats.level_return_sum[i]) / played if played else "",
                    "test_return": "" if tests is None else float(tests[i].mean()),
                    "restarts": int(done.restarts[i]),
                    "explored": healthy.explored[i] / healthy.steps[i] if healthy else "",
                    "changed": healthy.changed[i] / healthy.steps[i] if healthy else "",
                    "seed": seed,
                    **self.figures,
                }
            )
        self.folder.write_metrics(rows)
        for row in rows:
            filled = {name: x for name, x in row.items() if x != ""}
            self.callbacks.tell("on_metrics", {"chunk": self.chunks, **filled})
        self._keep_best(rows)
        self.state = self.trainer.forget_stats(self.state)
        return rows


def _copy_seed(index: int, best: np.ndarray, new: Any) -> None:
    best[index] = np.asarray(new[index])


def _note(
    rows: list[dict[str, Any]], recent: list[RecentReturns], simulations_per_second: float
) -> str:
    """Return the text beside the progress bar: means over seeds."""
    means = [seed.mean for seed in recent if seed.episodes]
    counts = [seed.episodes for seed in recent if seed.episodes]
    reward = f"reward {np.mean(means):.2f} (last {min(counts)})" if means else "reward -"
    reward += f"  ε {np.mean([row['epsilon'] for row in rows]):.2f}" if rows else ""
    tests = [row["test_return"] for row in rows if row["test_return"] != ""]
    test = f"  test {np.mean(tests):.2f}" if tests else ""
    speed = f"  {simulations_per_second:,.0f} sims/s" if simulations_per_second else ""
    return f"{reward}{test}{speed}"


def _finish(run: _Run) -> TrainResult:
    run.save()
    metrics = run.folder.read_metrics()
    draw_curve(run.settings, metrics, run.folder.path / "curve.png")
    return TrainResult(run.folder.path, run.trainer, run.state, metrics)


@dataclass(frozen=True)
class Overseer:
    """Callbacks of a run; by default, those for a terminal.

    make: makes the trainer. stop: requests a stop. bar: shows the progress. watch: called after
    every chunk with the number of chunks and the counters; returns figures for TensorBoard. warn:
    shows warnings.
    """

    make: Callable[..., Trainer] = make_trainer
    stop: StopOnSignal = field(default_factory=StopOnSignal)
    bar: Progress | None = None
    watch: Callable[[int, Counters], dict[str, float]] | None = None
    warn: Callable[[str], None] = warn


def train(
    settings: TrainSettings,
    out: Path,
    *,
    resume: bool = False,
    device: str = "auto",
    workers: int = -1,
    step_timeout: float = 0.0,
    checkpoint_seconds: float = 60.0,
    light_checkpoints: bool = False,
    progress: bool = True,
    label: str | None = None,
    chosen: Sequence[str] = (),
    overseer: Overseer | None = None,
    from_run: Path | None = None,
    callbacks: Sequence[Any] | None = None,
) -> TrainResult:
    """Train all seeds of `settings`, with the run directory `out`.

    workers, step_timeout: for simulators written in Python, see `make_trainer`. light_checkpoints:
    leave the replay out of checkpoints; a run that is resumed from one fills it anew. chosen: lines
    about settings that were chosen, to print. from_run: start with the parameters of this run.
    callbacks: see `callbacks.Callback`; default TensorBoard.
    """
    settings.check()
    if resume:  # before environments, workers and compilers are started
        RunDirectory.check_old(out, settings)
        if not checkpoint.numbers(RunDirectory(out).checkpoints):  # it ended before its first one
            from_run = started_from(out)
    else:
        RunDirectory.check_new(out)
    seen = overseer or Overseer()
    told = Callbacks(make_loggers(USUAL) if callbacks is None else callbacks, seen.warn)
    target = select_device(device)
    with (
        enough_memory(), jax.default_device(target), seen.stop as stop, ExitStack() as stack
    ):  # fmt: skip
        trainer = seen.make(
            settings, target, workers=workers, step_timeout=step_timeout,
            test_lanes=min(settings.test_episodes, settings.lanes),
        )  # fmt: skip
        stack.callback(trainer.close)
        if light_checkpoints and not trainer.refills_replay:
            raise InputError(
                "--light-checkpoints: it is only for simulators written in Python; the replay of "
                f"'{settings.env}' is part of every checkpoint."
            )
        first = origin = None
        if from_run is not None:
            template = trainer.params(trainer.template())
            first, origin = params_to_start_from(from_run, template, settings.seeds)
        if resume:
            folder = RunDirectory.resume(out, settings, str(target), seen.warn)
        else:
            folder = RunDirectory.create(out, settings, str(target), seen.warn, origin)
        stack.callback(folder.close)
        stack.enter_context(folder.noting_failure())
        run = _Run(settings, trainer, folder, seen.warn, told, light_checkpoints)
        if resume:
            run.restore()
        if first is not None:
            run.state = with_params(run.state, first)
        stack.callback(told.tell, "on_end")
        told.tell("on_start", RunStart(folder.path, folder.run_id, settings, run.chunks))
        if first is not None or (checkpoint_seconds > 0 and not resume):
            run.save()  # so that a run killed in its first minute can be resumed
        for line in chosen if progress else ():
            announce(line)
        latest: dict[int, dict[str, Any]] = {}  # the last line of metrics of each seed
        clock = counted = None  # set after the first chunk, which compiles
        goal = (settings.steps, "steps") if settings.steps else (settings.episodes, "episodes")
        with seen.bar or Progress(label or settings.agent, *goal, progress) as bar:
            while not run.finished() and told.stop is None:
                if stop.code is not None:
                    run.save()
                    message = f"stopped; '{out}' is saved, continue with --resume."
                    raise Interrupted(message, stop.code)
                run.chunk()
                if seen.watch is not None:
                    run.figures = seen.watch(run.chunks, trainer.counters(run.state))
                if is_log_point(run.chunks) or run.finished():
                    latest |= {row["seed"]: row for row in run.log()}
                run.save_if_due(checkpoint_seconds)
                if clock is None or counted is None:
                    clock, counted, rate = time.monotonic(), run.simulations(), 0.0
                else:
                    rate = (run.simulations() - counted) / (time.monotonic() - clock)
                bar.update(run.progress(), _note(list(latest.values()), run.recent, rate))
        if told.stop is not None:
            seen.warn(f"training ends early: {told.stop}.")
        result = _finish(run)
        run.require_success()
        return result
