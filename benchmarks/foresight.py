"""How well a run's searches foretell which states they need (see `search/foresight.py`).

    python benchmarks/foresight.py covering-hard --seconds 600

It trains on a CPU and prints a line of JSON from time to time, about the searches since the last:
rounds per search (messages to a worker; without foresight the budget), and states simulated per
state used.
"""

import argparse
import json
import time
from contextlib import closing

import jax
import numpy as np
from engines import _running, _trainer

from save_rl.search.simulators import LaneSearch
from save_rl.training.devices import select_device
from save_rl.training.settings import TrainSettings


class Count:
    """Counts what the searches of a trainer do; a context."""

    def __init__(self) -> None:
        self._look, self._run = LaneSearch._look_at_seats, LaneSearch.run_by_group
        self.clear()

    def clear(self) -> None:
        self.searches = self.rounds = self.simulated = self.used = 0

    def __enter__(self) -> "Count":
        def look(search: LaneSearch, group: int) -> None:
            self.rounds += 1
            self._look(search, group)

        def run(search: LaneSearch, *given, **options):
            serials = search.pool.arrays["seat serial"]
            serials[search.low : search.high] = 0  # the highest is how many were simulated
            for group in self._run(search, *given, **options):
                low, high = search.pool.groups[group]
                self.searches += 1
                self.simulated += int(serials[low:high].max(1).sum())
                self.used += int(search.simulations[low - search.low : high - search.low].sum())
                yield group

        LaneSearch._look_at_seats, LaneSearch.run_by_group = look, run
        return self

    def __exit__(self, *_: object) -> None:
        LaneSearch._look_at_seats, LaneSearch.run_by_group = self._look, self._run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("env")
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--budget", type=int, default=10)
    parser.add_argument("--unmasked", action="store_true", help="for tasks of Construction")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--every", type=float, default=60.0)
    given = parser.parse_args()
    device, settings = select_device("cpu"), TrainSettings(
        env=given.env, agent="save", lanes=given.lanes, budget=given.budget, chunk=1,
        env_options={"masked": False} if given.unmasked else {},
    )  # fmt: skip
    settings.check()
    with (
        jax.default_device(device),
        closing(_trainer(settings, device, -1)) as trainer,
        Count() as count,
    ):
        state, step, began = trainer.begin(), 0, time.perf_counter()
        shown = began
        while shown < began + given.seconds:
            state, step = trainer.advance(state, step, *_running(1)), step + 1
            if time.perf_counter() < shown + given.every:
                continue
            shown, made = time.perf_counter(), trainer.counters(state)
            line = {
                "env": given.env,
                "unmasked": given.unmasked,
                "budget": given.budget,
                "env_steps": int(np.sum(made.env_steps)),
                "episodes": int(np.sum(made.episodes)),
                "rounds_per_search": round(count.rounds / count.searches, 3),
                "simulated_per_used": round(count.simulated / count.used, 4),
            }
            print(json.dumps(line), flush=True)
            count.clear()


if __name__ == "__main__":
    main()
