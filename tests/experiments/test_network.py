"""`reproduce tightrope-network`: what a curve comes to, its files, and going on after a stop."""

import csv
import json
import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from save_rl.errors import InputError
from save_rl.experiments.experiment import reproduce
from save_rl.experiments.tightrope_network import SCALES, TIGHTROPE_NETWORK, curve_rows, settings

pytestmark = pytest.mark.xdist_group("tightrope-network")  # one reproduction for all of them
run = partial(reproduce, TIGHTROPE_NETWORK)
# One agent that needs little compilation. Several are trained below, made up and (slowly) for real.
AXES = {"agents": ("q-learning",), "seeds": 2, "episodes": 40, "budget": 1}


def point(seed, episodes, test_return):
    return {"seed": float(seed), "episodes": float(episodes), "test_return": test_return}


# Two seeds, their lines mixed as in metrics.csv. Seed 0 over log10 episodes 1, 2, 3, 4: the
# trapezoids are (0 + 0.5) / 2 + (0.5 + 1) / 2 + (1 + 0.9) / 2 = 1.95, over a width of 3.
METRICS = [
    point(0, 10, 0.0), point(1, 100, 0.2),
    point(0, 100, 0.5), point(1, 1000, 0.4),
    point(0, 1000, 1.0),
    point(0, 10_000, 0.9),
]  # fmt: skip


def summary(seed, metrics=METRICS):
    rows = curve_rows("save", 10, metrics)
    return {
        row["metric"]: (row["episodes"], row["value"])
        for row in rows
        if row["seed"] == seed and row["metric"] != "test_reward"
    }


def test_an_agent_twice_would_count_its_seeds_twice(tmp_path):
    with pytest.raises(InputError, match=r"--agents: .* different values"):
        run("smoke", AXES | {"agents": ("q-learning",) * 2}, tmp_path / "out", False, "")
    assert not (tmp_path / "out").exists()


def test_a_curve_by_hand():
    found = summary(0)
    assert found["area_under_curve"] == (10_000, pytest.approx(1.95 / 3))
    assert found["episodes_to_solve"] == (10_000, 1000.0)
    assert found["final_test_reward"] == (10_000, pytest.approx((0 + 0.5 + 1 + 0.9) / 4))


def test_a_curve_that_does_not_solve_it_says_nothing_of_when():
    found = summary(1)
    assert set(found) == {"area_under_curve", "final_test_reward"}
    assert found["area_under_curve"] == (1000, pytest.approx(0.3))
    assert found["final_test_reward"] == (1000, pytest.approx(0.3))


def test_the_final_reward_is_the_mean_of_the_last_five_tests():
    metrics = [
        point(0, 10 * (i + 1), value) for i, value in enumerate([0, 0, 0.1, 0.2, 0.3, 0.4, 0.5])
    ]
    assert summary(0, metrics)["final_test_reward"][1] == pytest.approx(0.3)


def test_reaching_exactly_the_threshold_solves_it():
    metrics = [point(0, 10, 0.94), point(0, 20, 0.95), point(0, 30, 0.2)]
    assert summary(0, metrics)["episodes_to_solve"] == (30, 20.0)


def test_a_curve_of_one_point_has_its_value_as_area():
    assert summary(0, [point(0, 10, 0.25)])["area_under_curve"] == (10, 0.25)


def test_the_points_of_a_curve_are_rows():
    rows = [row for row in curve_rows("save", 10, METRICS) if row["metric"] == "test_reward"]
    assert [(row["seed"], row["episodes"], row["value"]) for row in rows] == [
        (0, 10, 0.0), (0, 100, 0.5), (0, 1000, 1.0), (0, 10_000, 0.9),
        (1, 100, 0.2), (1, 1000, 0.4),
    ]  # fmt: skip
    assert list(rows[0]) == [
        "experiment", "agent", "seed", "budget", "episodes", "metric", "value",
    ]  # fmt: skip


def test_training_is_what_the_axes_say():
    chosen = settings(SCALES["paper"], "puct")
    assert (chosen.agent, chosen.episodes, chosen.budget) == ("puct", 1_000_000, 10)
    assert chosen.seeds == tuple(range(10))
    assert chosen.env_options == {"reward": "sparse", "terminal": 95}
    for axes in SCALES.values():
        axes.check()


def read(folder):
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The shortest experiment; tests that change it work on a copy."""
    out = tmp_path_factory.mktemp("network") / "out"
    claims = run("smoke", AXES, out, False, "save-rl reproduce …", "cpu")
    assert all(claim.holds is None for claim in claims)  # two seeds tell nothing
    return out


def test_the_experiment_leaves_everything_a_reader_needs(finished):
    assert {path.name for path in finished.iterdir()} == {
        "experiment.json", "results.csv", "figure.png", "claims.json", "provenance.json", "runs",
    }  # fmt: skip
    rows = read(finished)
    assert list(rows[0]) == [
        "experiment", "agent", "seed", "budget", "episodes", "metric", "value",
    ]  # fmt: skip
    assert {(row["agent"], row["seed"]) for row in rows} == {
        ("q-learning", "0"), ("q-learning", "1"),
    }  # fmt: skip
    assert {row["metric"] for row in rows} >= {
        "test_reward", "final_test_reward", "area_under_curve",
    }  # fmt: skip
    assert np.all([0 <= float(row["value"]) <= 1 for row in rows if row["metric"] == "test_reward"])
    assert (finished / "figure.png").read_bytes().startswith(b"\x89PNG")
    claims = json.loads((finished / "claims.json").read_text())
    assert [claim["holds"] for claim in claims] == [None] * 7
    experiment = json.loads((finished / "experiment.json").read_text())
    assert experiment["experiment"] == "tightrope-network"
    assert experiment["axes"]["agents"] == ["q-learning"]
    assert (experiment["axes"]["seeds"], experiment["axes"]["terminal"]) == (2, 95)
    provenance = json.loads((finished / "provenance.json").read_text())
    assert provenance["command"] == "save-rl reproduce …"
    assert list(provenance) == ["command", "device", "cpu", "cores", "python", "wall_time_s"]
    assert (finished / "runs" / "q-learning" / "config.json").exists()


def test_rows_are_the_metrics_of_the_runs(finished):
    with (finished / "runs" / "q-learning" / "metrics.csv").open() as file:
        measured = [
            (r["seed"], r["episodes"], float(r["test_return"])) for r in csv.DictReader(file)
        ]
    rows = [r for r in read(finished) if r["metric"] == "test_reward"]
    assert sorted(measured) == sorted((r["seed"], r["episodes"], float(r["value"])) for r in rows)


def lose(out):
    """Half of the rows, all that is made from them, and the run of Q-learning."""
    lines = (out / "results.csv").read_text().splitlines(keepends=True)
    (out / "results.csv").write_text("".join(lines[: len(lines) // 2]))
    shutil.rmtree(out / "runs" / "q-learning")
    for name in ("figure.png", "claims.json", "provenance.json"):
        (out / name).unlink()


def assert_made_again(out, before):
    for name in ("results.csv", "figure.png", "claims.json", "experiment.json"):
        assert files(out)[name] == before[name]


def test_agents_are_trained_one_after_the_other_and_again_if_lost(monkeypatch, tmp_path):
    trained = []

    def train(chosen, folder, *, resume, device, label):
        trained.append((chosen.agent, resume, device, label))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").touch()
        reward = 0.8 if chosen.agent == "save" else 0.2
        curves = [point(seed, at, reward) for at in (10, 100) for seed in chosen.seeds]
        return SimpleNamespace(metrics=curves)

    monkeypatch.setattr("save_rl.training.run.loop.train", train)
    axes, out = AXES | {"agents": ("save", "q-learning")}, tmp_path / "out"
    run("smoke", axes, out, False, "", "cpu")
    assert trained == [("save", False, "cpu", "save"), ("q-learning", False, "cpu", "q-learning")]
    rewards = [r for r in read(out) if r["metric"] == "final_test_reward"]
    assert [(r["agent"], r["seed"], float(r["value"])) for r in rewards] == [
        ("save", "0", 0.8), ("save", "1", 0.8), ("q-learning", "0", 0.2), ("q-learning", "1", 0.2),
    ]  # fmt: skip
    before = files(out)
    lose(out)
    trained.clear()
    run("smoke", axes, out, True, "", "cpu")
    assert [(agent, resume) for agent, resume, *_ in trained] == [
        ("save", True), ("q-learning", False),
    ]  # fmt: skip
    assert_made_again(out, before)


def test_what_was_lost_is_made_again(finished, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    lose(out)
    run("smoke", AXES, out, True, "save-rl reproduce …", "cpu")
    assert_made_again(out, files(finished))


@pytest.mark.slow
def test_what_was_lost_of_two_agents_is_made_again(tmp_path):
    axes, out = AXES | {"agents": ("save", "q-learning")}, tmp_path / "out"
    run("smoke", axes, out, False, "", "cpu")
    assert {row["agent"] for row in read(out)} == {"save", "q-learning"}
    before = files(out)
    lose(out)
    run("smoke", axes, out, True, "", "cpu")
    assert_made_again(out, before)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"budget": 2}, "--budget 1, not 2"),
        ({"episodes": 41}, "--episodes 40, not 41"),
        ({"terminal": 50.0}, "--terminal 95, not 50.0"),
        ({"reward": "dense"}, "--reward sparse, not dense"),
    ],
)
def test_other_axes_are_not_mixed_in(finished, changed, said):
    before = files(finished)
    with pytest.raises(InputError, match=f"was started with {said}; repeat its settings"):
        run("smoke", AXES | changed, finished, True, "", "cpu")
    assert files(finished) == before


def test_a_folder_in_use_is_refused(finished):
    before = files(finished)
    with pytest.raises(InputError, match="is not empty"):
        run("smoke", AXES, finished, False, "", "cpu")
    assert files(finished) == before
