"""Training speed of two versions of save_rl in turns, for machines that do other things as well.

Both versions train at the same time, in processes of their own, but only one of them is under way
at any moment: each gets a few seconds, then the other. The ratio is the median over the turns. CPU
time of a step, of all processes of a version, hardly depends on what else the machine does.

    python benchmarks/in_turns.py OLD/src NEW/src gym/Taxi-v4 --agents save q-learning

It prints a line of JSON per environment and agent: env steps per second, and the CPU time of one in
microseconds, before and now.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np

WARM_UP = 40  # lock-steps after the first update


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", nargs=2, help="src of the version before and of the one now")
    parser.add_argument("envs", nargs="+")
    parser.add_argument("--agents", nargs="+", default=["save"])
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--workers", type=int, default=-1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=9)
    given = parser.parse_args()
    for env in given.envs:
        for agent in given.agents:
            print(json.dumps(compare(given, env, agent)), flush=True)


def compare(given: argparse.Namespace, env: str, agent: str) -> dict[str, object]:
    settings = {"env": env, "agent": agent, "lanes": given.lanes, "seeds": given.seeds}
    trainers = [_start(source, {**settings, "workers": given.workers}) for source in given.sources]
    try:
        for trainer in trainers:
            trainer.stdout.readline()  # it is warm
        load, rates = [], []
        for _ in range(given.turns):
            rates.append([_turn(trainer, given.seconds) for trainer in trainers])
            load.append(os.getloadavg()[0])
    finally:
        for trainer in trainers:
            trainer.stdin.close()
        for trainer in trainers:
            trainer.wait()
    before, now = np.moveaxis(rates, -1, 0)[0].T
    cpu = np.median(rates, 0)[:, 1]
    return {
        **settings,
        "before": round(float(np.median(before)), 1),
        "now": round(float(np.median(now)), 1),
        "ratio": round(float(np.median(now / before)), 3),
        "ratios": np.round(now / before, 2).tolist(),
        "cpu_microseconds": np.round(cpu * 1e6, 1).tolist(),
        "load": round(float(np.mean(load)), 1),
    }


def _start(source: str, settings: dict[str, object]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, __file__, "--child", json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": str(Path(source).resolve())},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def _turn(trainer: "subprocess.Popen[str]", seconds: float) -> list[float]:
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    trainer.stdin.write(f"{seconds}\n")
    trainer.stdin.flush()
    return json.loads(trainer.stdout.readline())


def train(env: str, agent: str, lanes: int, seeds: int, workers: int) -> None:
    """Train for as many seconds as each line of the input says; answer with env steps per second
    and the CPU seconds of one."""
    import jax
    from engines import _running, _trainer, _worker_seconds

    from save_rl.training.devices import select_device
    from save_rl.training.settings import TrainSettings

    device = select_device("cpu")
    settings = TrainSettings(
        env=env, agent=agent, seeds=tuple(range(seeds)), lanes=lanes, chunk=1
    )  # fmt: skip
    settings.check()
    with jax.default_device(device), closing(_trainer(settings, device, workers)) as trainer:
        state, step, running = trainer.begin(), 0, _running(seeds)
        first = None
        while first is None or step < first + WARM_UP:
            state, step = trainer.advance(state, step, *running), step + 1
            if first is None and trainer.counters(state).updates.any():
                first = step
        print("warm", flush=True)
        for line in sys.stdin:
            before = np.sum(trainer.counters(state).env_steps)
            began, used = time.perf_counter(), time.process_time() + _worker_seconds(trainer)
            while time.perf_counter() < began + float(line):
                state, step = trainer.advance(state, step, *running), step + 1
            jax.block_until_ready(jax.tree.leaves(trainer.params(state)))
            made = float(np.sum(trainer.counters(state).env_steps) - before)
            used = time.process_time() + _worker_seconds(trainer) - used
            print([made / (time.perf_counter() - began), used / made], flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        train(**json.loads(sys.argv[2]))
    else:
        main()
