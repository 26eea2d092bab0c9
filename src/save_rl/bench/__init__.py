"""Benchmarks: throughput on this machine, each next to a reference in the same run."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np


def median_seconds(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median time of each function; they alternate, so noise affects all equally."""
    for function in functions.values():
        function()  # compiles
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in times.items()}
