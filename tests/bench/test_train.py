"""What `bench train` reports on a JAX environment."""

import pytest

from save_rl.bench import train
from save_rl.cli import main
from save_rl.cli.bench import print_bench
from save_rl.training.devices import select_device

COUNTER = "tests.training.environments:never_nan"


def measure(monkeypatch, agent, **options):
    monkeypatch.setattr(train, "_WARM_UP", 1)
    report = train.bench_train(
        COUNTER, select_device("cpu"), (2,), 16, (agent,), repeats=1, **options
    )
    print_bench(report, as_json=False)  # a table can be made of it
    (case,) = report["cases"]
    assert (case["agent"], case["seeds"], case["lanes"]) == (agent, 2, 16)
    # A lock-step is a step of 16 lanes in 2 seeds, and an update of 64, so that each transition
    # is replayed 4 times; rates and milliseconds are rounded.
    milliseconds = case["milliseconds_per_lock_step"]
    assert case["env_steps_per_second"] == pytest.approx(32e3 / milliseconds, rel=0.05)
    assert case["updates_per_second"] == pytest.approx(2e3 / milliseconds, rel=0.05)
    assert case["compile_seconds"] > 0
    return case


def test_a_rate_without_parts(monkeypatch):
    case = measure(monkeypatch, "q-learning", parts=False)
    assert case["simulations_per_second"] == 0
    assert case["share"] == case["share_of_search"] == {}


@pytest.mark.slow
def test_the_parts_of_an_agent_that_searches(monkeypatch):
    case = measure(monkeypatch, "save")
    assert case["simulations_per_second"] == pytest.approx(
        10 * case["env_steps_per_second"], rel=0.01
    )
    shares, inside = case["share"], case["share_of_search"]
    assert set(shares) == {"search", "environment", "learning", "rest"}
    assert set(inside) == {"network", "simulator", "tree"}
    assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    assert sum(inside.values()) == pytest.approx(shares["search"], abs=0.01)
    measured = [shares[name] for name in ("search", "environment", "learning")]
    assert min(*measured, inside["network"], inside["simulator"]) > 0


@pytest.mark.parametrize(
    ("env", "chosen"),
    [
        ("tightrope", "train.bench_train"),
        (COUNTER, "train.bench_train"),
        ("gymnax/Catch-bsuite", "train.bench_train"),
        ("gym/CartPole-v1", "construction.bench_host_train"),
    ],
)
def test_the_environment_decides_what_is_measured(env, chosen, monkeypatch, capsys):
    called = []
    for name in ("train.bench_train", "construction.bench_host_train"):

        def stub(env, *arguments, name=name):
            called.append((name, env, arguments))
            return {"device": "none", "cases": [{"agent": "save"}]}

        monkeypatch.setattr(f"save_rl.bench.{name}", stub)
    main(["bench", "train", "--env", env, "--seeds", "1", "5", "--agents", "puct"])
    ((name, measured, arguments),) = called
    assert (name, measured) == (chosen, env)
    assert {(1, 5), ("puct",), 64} <= set(arguments)
    assert "save" in capsys.readouterr().out


def test_minatar_is_measured_with_the_settings_of_its_experiment():
    settings = train.settings_of("gymnax/Breakout-MinAtar", "save", 5, 64)
    assert (settings.batch, settings.replay, settings.updates_per_step) == (64, 100_000, 4)
    assert train.settings_of("tightrope", "save", 5, 64).batch == 16  # paper, A.1
