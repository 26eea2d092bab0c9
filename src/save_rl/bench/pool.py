"""The overhead of a pool of worker processes, and the speed-up from a second worker.

This module must not import JAX: workers import it for its simulator.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from save_rl.bench import median_seconds
from save_rl.envs.pool import Pool, Source

LANES = 32
_OBSERVATION = np.zeros(16, np.float32)


class Busy:
    """A simulator that keeps its core busy for this many milliseconds in every step."""

    num_actions = 4

    def __init__(self, milliseconds: float):
        self._seconds = milliseconds / 1000

    def reset(self, seed: int) -> int:
        return 0

    def step(self, state: int, action: int) -> tuple[int, float, bool, bool]:
        if self._seconds:
            end = time.perf_counter() + self._seconds
            while time.perf_counter() < end:
                pass
        return state + 1, 0.0, False, False

    def observe(self, state: int) -> np.ndarray:
        return _OBSERVATION


def _round_trips(workers: int, milliseconds: float) -> tuple[Pool, Any]:
    """Return a pool and a function that steps all its lanes once."""
    source = Source("save_rl.bench.pool:Busy", 0, {"milliseconds": milliseconds})
    pool = Pool([Busy(milliseconds)], [LANES], workers=workers, sources=[source])
    pool.reset(0, np.arange(LANES), np.zeros(LANES, np.int64))
    nodes, actions = np.zeros(LANES, np.int64), np.ones(LANES, np.int64)

    def trip() -> None:
        pool.step(0, nodes, actions, 1)
        pool.receive(0)

    return pool, trip


@contextlib.contextmanager
def _echo() -> Iterator[Callable[[], None]]:
    """Yield a function that sends eight bytes to a bare process and back: the shortest possible
    round trip on this machine."""
    code = "import os\nwhile x := os.read(0, 8): os.write(1, x)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        there, back = process.stdin.fileno(), process.stdout.fileno()

        def trip() -> None:
            os.write(there, b"12345678")
            os.read(back, 8)

        trip()  # waits until the process has started
        yield trip
        process.stdin.close()


def _microseconds(milliseconds: float, repeats: int) -> dict[str, float]:
    """Return median times of a batch step: bare calls, in this process, with one worker, two."""
    simulator, out = Busy(milliseconds), np.zeros((LANES, 16), np.float32)

    def bare() -> None:
        for lane in range(LANES):
            state, _, _, _ = simulator.step(0, 1)
            out[lane] = simulator.observe(state)

    pools = {workers: _round_trips(workers, milliseconds) for workers in (0, 1, 2)}
    try:
        named = {"no_workers": pools[0][1], "one_worker": pools[1][1], "two_workers": pools[2][1]}
        with _echo() as pipe:
            seconds = median_seconds({"bare_calls": bare, "bare_pipe": pipe, **named}, repeats)
    finally:
        for pool, _ in pools.values():
            pool.close()
    return {name: round(value * 1e6, 1) for name, value in seconds.items()}


def bench_pool(repeats: int = 2000) -> dict[str, Any]:
    """Measure batch steps of 32 lanes, with a simulator that does nothing and one of 0.5 ms."""
    nothing, busy = _microseconds(0.0, repeats), _microseconds(0.5, max(repeats // 50, 1))
    return {
        "lanes": LANES,
        "microseconds_per_batch": nothing,
        "round_trip_overhead_microseconds": round(nothing["one_worker"] - nothing["no_workers"], 1),
        "handling_microseconds": round(nothing["no_workers"] - nothing["bare_calls"], 1),
        "microseconds_per_batch_of_half_a_millisecond_each": busy,
        "gain_of_a_second_worker": round(busy["one_worker"] / busy["two_workers"], 2),
    }
