"""`save-rl bench`: a command per benchmark."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import tyro


@dataclass(frozen=True)
class BenchSearch:
    """Simulations per second, compared with mctx.muzero_policy on equal shapes; worker overhead."""

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
        print_bench(report, self.json)


@dataclass(frozen=True)
class BenchTrain:
    """Training throughput and its breakdown: on a JAX environment, a Python simulator or Atari."""

    json: bool = False
    """Print JSON instead of a table."""
    device: str = "auto"
    """auto, cpu or gpu."""
    env: str | None = None
    """A JAX environment such as gymnax/ID, a Python simulator such as covering or gym/ID,
    package.module:factory or atari/GAME; the default is tightrope, with --cluster covering."""
    agents: tuple[str, ...] = ("save", "q-learning")
    """Agents to train, a case each; on Atari and with --cluster they are fixed."""
    cluster: bool = False
    """Measure one and two actors on a Ray cluster that is started on this machine."""
    seeds: tuple[int, ...] = (1,)
    """Numbers of seeds to train together, a case each; 1 on Atari and with --cluster."""
    lanes: int = 64
    """Episodes played in parallel; with --cluster, per actor."""
    workers: int = -1
    """Processes for simulators: -1 for one per core, 0 for none."""
    seconds: float = 20.0
    """Training time per agent, without compilation; a JAX environment makes a number of chunks."""
    parts: bool = True
    """On a JAX environment: measure where the time goes, which compiles five more programs."""
    small: bool = False
    """On Atari: the small network and short sequences, for CPUs."""

    def run(self) -> None:
        from save_rl.envs import ATARI, ENVIRONMENTS, make, runs_on_host
        from save_rl.errors import require, unknown_name
        from save_rl.training.devices import select_device

        env = self.env or ("covering" if self.cluster else "tightrope")
        atari = env.startswith(ATARI)
        if env not in ENVIRONMENTS and not any(mark in env for mark in ":/"):
            known = [*ENVIRONMENTS, f"{ATARI}GAME"]
            raise unknown_name("environment to measure", env, known, "--env")
        require(atari or not self.small, "--small", "true", f"left out without {ATARI}GAME")
        require(bool(self.seeds) and min(self.seeds) > 0, "--seeds", self.seeds, "at least 1 each")
        require(self.seconds > 0, "--seconds", self.seconds, "above 0")
        require(self.lanes >= 1, "--lanes", self.lanes, "at least 1")
        require(self.workers >= -1, "--workers", self.workers, "-1 or more")
        chosen = select_device(self.device)
        import jax

        with jax.default_device(chosen):
            if self.cluster:
                from save_rl.bench.cluster import bench_cluster

                report = bench_cluster(env, chosen, self.lanes, self.seconds)
            elif atari:
                from save_rl.bench.r2d2 import bench_r2d2

                report = bench_r2d2(env, chosen, self.lanes, self.workers, self.seconds, self.small)
            elif runs_on_host(make(env), env):
                from save_rl.bench.construction import bench_host_train

                report = bench_host_train(
                    env, chosen, self.lanes, self.workers, self.seconds, self.seeds, self.agents
                )
            else:
                from save_rl.bench.train import bench_train

                report = bench_train(env, chosen, self.seeds, self.lanes, self.agents, self.parts)
        print_bench(report, self.json)


@dataclass(frozen=True)
class BenchPhysics:
    """Settled placements per second and core, compared with a bare Box2D loop."""

    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from save_rl.bench.physics import bench_physics

        print_bench(bench_physics(), self.json)


@dataclass(frozen=True)
class BenchAtari:
    """Atari simulations per second and core, compared with a bare loop over the emulator."""

    workers: int = 2
    """Processes to compare with one."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from save_rl.bench.atari import bench_atari
        from save_rl.errors import require

        require(self.workers >= 1, "--workers", self.workers, "at least 1")
        print_bench(bench_atari(workers=self.workers), self.json)


@dataclass(frozen=True)
class Bench:
    """Measure throughput on this machine."""

    what: (
        Annotated[BenchSearch, tyro.conf.subcommand("search", prefix_name=False)]
        | Annotated[BenchPhysics, tyro.conf.subcommand("physics", prefix_name=False)]
        | Annotated[BenchAtari, tyro.conf.subcommand("atari", prefix_name=False)]
        | Annotated[BenchTrain, tyro.conf.subcommand("train", prefix_name=False)]
    )

    def run(self) -> None:
        self.what.run()


def print_bench(report: dict[str, Any], as_json: bool) -> None:
    """Print a report of cases, a column each; nested numbers get their own rows."""
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
    cores = f", {report['cores']} cores" if "cores" in report else ""
    table = Table(title=report["device"] + cores, title_justify="left")
    table.add_column("")
    for _ in flat:
        table.add_column(justify="right")
    for label in flat[0]:
        table.add_row(label, *(cells.get(label, "") for cells in flat))
    Console().print(table)
    if "gain_of_a_second_actor" in report:
        print(
            f"a second actor gains {report['gain_of_a_second_actor']}x, a second process that "
            f"acts without a learner {report['without_a_learner']['gain_of_a_second_process']}x"
        )
        print("computed from that:")
        print_bench({"device": "many actors", "cases": report["computed_for_many_actors"]}, False)
    for name in ("graph_network", "graph_network_mixed_precision"):
        graphs = report.get(name)
        if not graphs:
            continue
        print(
            f"{name.replace('_', ' ')}, {graphs['nodes']} nodes: "
            f"{graphs['milliseconds_per_update']} ms per update of {graphs['batch']}, "
            f"{graphs['graph_evaluations_per_second']:,} evaluations/s at {graphs['lanes']} lanes"
        )
    learner = report.get("learner")
    if learner:
        took = learner["milliseconds"]
        print(
            f"learner alone, {learner['batch']} sequences of {learner['steps']} steps: "
            f"{took['unpack']} ms to unpack, {took['update']} ms for the update, "
            f"{learner['updates_per_second']} updates/s"
        )
    pool = report.get("pool")
    if pool:
        print(
            f"pool, {pool['lanes']} lanes: a round trip adds "
            f"{pool['round_trip_overhead_microseconds']} µs per batch; a second worker gains "
            f"{pool['gain_of_a_second_worker']}x on steps of 0.5 ms"
        )
    workers = report.get("in_workers")
    if workers:
        rates = workers["simulations_per_second"]
        print(
            f"{workers['game']}: {rates['one worker']:,} simulations/s in one worker, "
            f"{rates['workers']:,} in {workers['workers']}, a gain of "
            f"{workers['gain_of_workers']}x; bare loops in as many processes gain "
            f"{workers['gain_of_bare_loops']}x"
        )
    for name, value in report.get("milliseconds", {}).items():
        print(f"{name}: median {value['median']} ms, worst {value['worst']} ms")
