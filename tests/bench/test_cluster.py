"""What `bench train --cluster` reports."""

import pytest

pytest.importorskip("ray")

from save_rl.bench.cluster import _many, bench_cluster
from save_rl.cli.bench import print_bench
from save_rl.errors import InputError
from save_rl.training.devices import select_device
from save_rl.training.settings import TrainSettings
from tests.training.ray_cluster import private_ray


def test_what_many_actors_come_to():
    case = {
        "actors": 2, "lanes": 8, "env_steps_per_second": 400.0, "bytes_per_transition": 1000,
        "bytes_of_parameters": 10_000, "megabytes_of_an_actor": 300,
        "megabytes_of_the_learner": 700,
    }  # fmt: skip
    # 200 steps a second of each, with 4 lanes: 50 rounds a second
    assert _many(case, TrainSettings(batch=16, replay_ratio=4), 64) == {
        "actors": 64,
        "lanes": 256,
        "env_steps_per_second": 12_800,
        "updates_per_second": 3_200,
        "megabytes_per_second": {
            "to_learner": 12.8,
            "parameters_every_round": 32.0,
            "parameters_every_second": 0.64,
        },
        # 64 actors with 4 lanes and two steps ahead, 0.512, and two sets of parameters, 0.02
        "megabytes": {
            "object_store_of_the_learner": 0.53,
            "object_store_of_another_node": 0.02,
            "the_learner": 700,
            "all_actors": 19_200,
        },
    }


def test_environments_in_jax_are_refused():
    name = "tests.training.environments:never_nan"
    with pytest.raises(InputError) as error:
        bench_cluster(name, select_device("cpu"), 8, 1.0)
    assert str(error.value) == (f"--env: '{name}' is written in JAX, and actors need simulators.")


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_short_measurement_has_every_figure(monkeypatch):
    monkeypatch.setattr("save_rl.bench.cluster._WARM_UP", 1)
    with private_ray(token=False):  # a cluster of this user may run here
        report = bench_cluster("covering-hard", select_device("cpu"), lanes=8, seconds=2)
    print_bench(report, as_json=False)  # a table can be made of it
    assert [case["actors"] for case in report["cases"]] == [1, 2]
    for case in report["cases"]:
        assert case["env_steps_per_second"] > 0
        assert 0 <= case["learner_idle_share"] <= 1
        assert 0 <= case["parameter_age_rounds"] <= 4
        assert case["bytes_per_transition"] > 1000
        assert case["lanes"] == 8 * case["actors"]
        waiting = 2 * case["lanes"] * case["bytes_per_transition"] + case["bytes_of_parameters"]
        assert 0 < case["megabytes_in_object_stores"] < 1.1 * waiting / 1e6
        assert 100 < case["megabytes_of_an_actor"] < 4000
    assert min(report["without_a_learner"]["env_steps_per_second"]) > 0
    assert [row["actors"] for row in report["computed_for_many_actors"]] == [64, 256, 1024]
