"""SAVE with a graph network learns to build on a task of the Construction suite."""

import csv

import numpy as np
import pytest

import save_rl
from save_rl.networks import graph
from save_rl.players import make_player, play

LEVEL_0 = {
    "env": "covering", "agent": "save", "env_options": {"difficulty": 0}, "steps": 448,
    "lanes": 16, "budget": 4, "epsilon_episodes": 150, "beta_episodes": 400,
    "learning_rate": 1e-3, "chunk": 8,
}  # fmt: skip


def random_returns(env, episodes):
    player = make_player("random", env, 0)
    return np.array([play(env, player, seed).total for seed in range(episodes)])


def test_a_few_steps_on_covering_are_trained_and_tested(tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "STEPS", 2)  # two thirds of the network, and of its compilation
    out, few = tmp_path / "run", LEVEL_0 | {"steps": 24, "lanes": 8, "min_replay": 8, "chunk": 3}
    run = save_rl.train(**few, out=out, progress=False, workers=0)
    last = run.metrics[-1]
    assert (last["env_steps"], last["updates"]) == (24, 4)  # none in the first
    assert run.metrics[-1]["level"] == 0
    assert run.metrics[-1]["loss_q"] > 0
    (tested,) = save_rl.evaluate(out, (2,), 2, workers=0)
    assert tested.returns.shape == (1, 2)
    assert np.all(tested.returns >= 0)


@pytest.mark.slow
def test_a_short_run_on_covering_gets_better_than_its_start_and_than_chance(tmp_path):
    out = tmp_path / "run"
    save_rl.train(**LEVEL_0, out=out, progress=False)
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["level"] for row in rows} == {"0"}
    first = float(rows[0]["return_mean"])
    (tested,) = save_rl.evaluate(out, (4,), 32)
    chance = random_returns(save_rl.make("covering", difficulty=0), 100)
    error = np.hypot(chance.std() / 10, tested.returns.std() / np.sqrt(32))
    assert tested.returns.mean() > chance.mean() + 4 * error
    assert tested.returns.mean() > first + 0.3
