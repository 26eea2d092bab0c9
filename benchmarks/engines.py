"""Training speed of one version of save_rl, to compare versions in one session on one machine.

Run it once per version and case, with the version's `src` on PYTHONPATH; it prints a line of JSON:

    PYTHONPATH=src python benchmarks/engines.py covering --agent save --seeds 8 --lanes 128

An empty folder as XDG_CACHE_HOME makes it compile everything anew. Versions before November 2026
train seeds one after the other, so one seed says it all.
"""

import argparse
import json
import os
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

STARTED = time.perf_counter()
WARM_UP = 6  # lock-steps after the first update


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("env")
    parser.add_argument("--agent", default="save")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--workers", type=int, default=-1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--network", default="auto")
    parser.add_argument("--mixed-precision", action="store_true")
    parser.add_argument("--replay-ratio", type=int, default=4)
    parser.add_argument("--label", default="")
    given = parser.parse_args()
    print(json.dumps({"label": given.label, **measure(given)}), flush=True)


def measure(given: argparse.Namespace) -> dict[str, object]:
    import jax
    import numpy as np

    from save_rl.learning.r2d2_settings import R2D2Settings, ReplaySettings
    from save_rl.training.devices import select_device
    from save_rl.training.settings import TrainSettings

    device = select_device(given.device)
    seeds = tuple(range(given.seeds))
    settings = TrainSettings(
        env=given.env, agent=given.agent, seeds=seeds, lanes=given.lanes, chunk=1,
        network=given.network, mixed_precision=given.mixed_precision,
        replay_ratio=given.replay_ratio,
    )  # fmt: skip
    if given.agent.startswith("r2d2"):  # else the first update comes after minutes
        settings = replace(settings, r2d2=R2D2Settings(replay=ReplaySettings(4096, minimum=128)))
    settings.check()
    with (
        jax.default_device(device),
        closing(_trainer(settings, device, given.workers)) as trainer,
        _clocks() as clocks,
    ):
        state, step, first = trainer.begin(), 0, 0.0
        running = _running(given.seeds)
        takes = [trainer.counters(state)]
        slowest, longest, end = [], 0.0, np.inf
        while time.perf_counter() < end:
            began = time.perf_counter()
            state, step = trainer.advance(state, step, *running), step + 1
            now = trainer.counters(state)
            slowest.append(time.perf_counter() - began)
            if not first and now.updates.any():
                jax.block_until_ready(jax.tree.leaves(trainer.params(state)))
                first, updated = time.perf_counter() - STARTED, step
            elif first:
                longest = max(longest, slowest[-1])
            if first and end == np.inf and step >= updated + WARM_UP and _is_compiled(trainer):
                jax.block_until_ready(jax.tree.leaves(trainer.params(state)))
                takes, slowest, began = [now], [], time.perf_counter()
                clocks.seconds.clear()
                measured, end = began, began + given.seconds
                busy = _worker_seconds(trainer)
        jax.block_until_ready(jax.tree.leaves(trainer.params(state)))
        total = time.perf_counter() - measured
        takes.append(trainer.counters(state))
        busy = (_worker_seconds(trainer) - busy) / total

    def rate(name: str) -> float:
        before, after = (np.sum(getattr(take, name)) for take in takes)
        return round(float(after - before) / total, 1)

    return {
        "env": given.env,
        "agent": given.agent,
        "seeds": given.seeds,
        "lanes": given.lanes,
        "network": given.network,
        "mixed_precision": given.mixed_precision,
        "device": device.device_kind,
        "env_steps_per_second": rate("env_steps"),
        "updates_per_second": rate("updates"),
        "median_lock_step_milliseconds": round(float(np.median(slowest)) * 1e3, 1),
        "longest_lock_step_milliseconds": round(longest * 1e3, 1),
        "seconds_to_first_update": round(first, 1),
        "workers_busy": round(float(busy), 2),
        "share": {
            f"{thread}: {name}": round(value / total, 3)
            for (thread, name), value in sorted(clocks.seconds.items())
        },
    }


def _is_compiled(trainer):
    """Test whether threads still compile programs for later, in versions that do."""
    ahead = getattr(trainer, "_ahead", None)
    return ahead is None or all(program.done() for program in ahead._programs.values())


def _worker_seconds(trainer):
    """Return the CPU time of the workers so far."""
    total = 0
    for worker in trainer.pool._workers:
        fields = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _trainer(settings, device, workers):
    try:
        from save_rl.training.run.trainers import make_trainer
    except ImportError:
        from save_rl.training.loop import make_program as make_trainer
    return make_trainer(settings, device, workers=workers)


def _clocks():
    """Return what times the parts of a lock-step, in versions that have it."""
    from save_rl.bench import construction
    from save_rl.bench.clocks import Clocks

    if not hasattr(construction, "_watch"):
        return nullcontext(SimpleNamespace(seconds={}))
    clocks = Clocks()
    construction._watch(clocks)
    return clocks


def _running(seeds: int) -> tuple:
    """Return what `advance` takes besides state and step."""
    import numpy as np

    try:
        import save_rl.training.trainer  # noqa: F401
    except ImportError:
        return ()
    return (np.ones(seeds, np.bool_),)


if __name__ == "__main__":
    main()
