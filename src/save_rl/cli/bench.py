"""`save-rl bench`: a command per benchmark."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import tyro


@dataclass(frozen=True)
class BenchSearch:
    """Simulations per second, next to mctx.muzero_policy on the same shapes; cost of workers."""

    json: bool = False
    """Print JSON instead of a table."""
    device: str = "auto"
    """auto, cpu or gpu."""

    def run(self) -> None:
        from save_rl.training.devices import select_device

        chosen = select_device(self.device)
        import jax

        from save_rl.bench.search import bench_search

        with jax.default_device(chosen):
            report = bench_search()
        _print_bench(report, self.json)


@dataclass(frozen=True)
class BenchTrain:
    """Training throughput on Tightrope, and where a second goes."""

    json: bool = False
    """Print JSON instead of a table."""
    device: str = "auto"
    """auto, cpu or gpu."""
    seeds: tuple[int, ...] = (1,)
    """Numbers of seeds to train side by side."""

    def run(self) -> None:
        from save_rl.errors import require
        from save_rl.training.devices import select_device

        require(bool(self.seeds) and min(self.seeds) > 0, "--seeds", self.seeds, "at least 1 each")
        chosen = select_device(self.device)
        import jax

        from save_rl.bench.train import bench_train

        with jax.default_device(chosen):
            report = bench_train(chosen, self.seeds)
        _print_bench(report, self.json)


@dataclass(frozen=True)
class BenchPhysics:
    """Settled placements per second and core, next to a bare Box2D loop."""

    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from save_rl.bench.physics import bench_physics

        _print_bench(bench_physics(), self.json)


@dataclass(frozen=True)
class Bench:
    """Measure throughput on this machine."""

    what: (
        Annotated[BenchSearch, tyro.conf.subcommand("search", prefix_name=False)]
        | Annotated[BenchPhysics, tyro.conf.subcommand("physics", prefix_name=False)]
        | Annotated[BenchTrain, tyro.conf.subcommand("train", prefix_name=False)]
    )

    def run(self) -> None:
        self.what.run()


def _print_bench(report: dict[str, Any], as_json: bool) -> None:
    """Print a report of cases, nested numbers as columns of their own."""
    if as_json:
        print(json.dumps(report, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    flat = []
    for case in report["cases"]:
        cells: dict[str, str] = {}
        for name, value in case.items():
            inner = value if isinstance(value, dict) else {"": value}
            for key, number in inner.items():
                label = f"{name} {key}".strip().replace("_", " ")
                cells[label] = f"{number:,}" if isinstance(number, int) else str(number)
        flat.append(cells)
    table = Table(title=report["device"], title_justify="left")
    table.add_column("")
    for _ in flat:
        table.add_column(justify="right")
    for label in flat[0]:
        table.add_row(label, *(cells.get(label, "") for cells in flat))
    Console().print(table)
    pool = report.get("pool")
    if pool:
        print(
            f"pool, {pool['lanes']} lanes: a round trip adds "
            f"{pool['round_trip_overhead_microseconds']} µs per batch; a second worker gains "
            f"{pool['gain_of_a_second_worker']}x on steps of 0.5 ms"
        )
    for name, value in report.get("milliseconds", {}).items():
        print(f"{name}: median {value['median']} ms, worst {value['worst']} ms")
