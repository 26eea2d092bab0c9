"""What `bench train --env atari/GAME` reports."""

import pytest

from save_rl.bench.r2d2 import OFTEN, bench_r2d2
from save_rl.cli.bench import print_bench
from save_rl.training.devices import select_device


@pytest.mark.slow
def test_a_short_measurement_has_every_figure(monkeypatch):
    monkeypatch.setattr("save_rl.bench.r2d2._WARM_UP", 1)
    report = bench_r2d2("atari/Pong", select_device("cpu"), 8, 0, 8.0, small=True)
    print_bench(report, as_json=False)  # a table can be made of it
    save, often, controlled = report["cases"]
    for case in report["cases"]:
        assert case["agent_steps_per_second"] > 0
        assert abs(sum(case["share"].values()) - 1) < 0.01
        # Sequences begin every 10 steps; 8 of them make an update.
        expected = case["agent_steps_per_second"] / 10 * case["samples_per_insert"] / 8
        assert 0.2 * expected < case["updates_per_second"] < 3 * expected
    assert save["simulations_per_second"] > 5 * save["agent_steps_per_second"]
    assert controlled["simulations_per_second"] == 0
    assert often["samples_per_insert"] == OFTEN
    assert report["learner"]["updates_per_second"] > 0
