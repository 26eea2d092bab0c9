"""What `bench train --env covering` reports."""

import pytest

from save_rl.bench.clocks import Clocks
from save_rl.bench.construction import _watch, bench_graph, bench_host_train
from save_rl.cli.bench import print_bench
from save_rl.envs.pool import Pool
from save_rl.training.devices import select_device
from save_rl.training.host.actor import Actor
from save_rl.training.host.evaluator import NetworkEvaluator


def test_what_is_timed_is_there_and_comes_back():
    before = Actor.act, NetworkEvaluator.ask, Pool.receive
    with Clocks() as clocks:
        _watch(clocks)
        assert Actor.act is not before[0]
    assert (Actor.act, NetworkEvaluator.ask, Pool.receive) == before


@pytest.mark.slow
def test_a_short_measurement_has_every_figure(monkeypatch):
    monkeypatch.setattr("save_rl.bench.construction.bench_graph", lambda *_, **__: {})
    monkeypatch.setattr("save_rl.bench.construction._WARM_UP", 1)
    report = bench_host_train("covering-hard", select_device("cpu"), lanes=8, workers=0, seconds=1)
    print_bench(report, as_json=False)  # a table can be made of it
    save, q_learning = report["cases"]
    for case in report["cases"]:
        assert case["env_steps_per_second"] > 0
        # An update of 16 for 4 steps, both rounded.
        assert abs(case["env_steps_per_second"] - 4 * case["updates_per_second"]) < 0.3
        main = {name: x for name, x in case["share"].items() if name.startswith("main: ")}
        assert {"main: rest", "main: transitions", "main: search and act"} < set(main)
        assert all(share > -0.01 for share in main.values())
        assert abs(sum(main.values()) - 1) < 0.01
    assert "main: hand to network" in save["share"]
    assert save["simulations_per_second"] > 5 * save["env_steps_per_second"]
    assert q_learning["simulations_per_second"] == 0


@pytest.mark.slow
def test_the_network_alone(monkeypatch):
    monkeypatch.setattr("save_rl.bench.construction.NODES", 8)
    monkeypatch.setattr("save_rl.bench.construction.UPDATES", 2)
    report = bench_graph(select_device("cpu"), lanes=2, repeats=1)
    assert report["milliseconds_per_update"] > 0
    assert report["graph_evaluations_per_second"] > 0
