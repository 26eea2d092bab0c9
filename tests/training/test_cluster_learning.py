"""Agents learn on a cluster as they do on one machine; asked for from Python."""

import json
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("ray")

import save_rl
from save_rl.training.run.run_directory import RunDirectory
from tests.training.ray_cluster import ROOT, private_ray
from tests.training.test_covering import LEVEL_0, random_returns

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]
SCRIPT = """
import json, sys
import save_rl
if __name__ == "__main__":
    run = save_rl.train(cluster="auto", progress=False, **json.loads(sys.argv[1]))
    print(len(run.metrics))
"""
STAIRS = """
from pathlib import Path
import numpy as np
import save_rl
from save_rl.training.cluster.settings import ClusterSettings

class Stairs:
    num_actions = 2
    def reset(self, seed): return 0
    def step(self, state, action): return state + 1, 1.0, state >= 3, False
    def observe(self, state): return np.array([state / 4])

if __name__ == "__main__":
    run = save_rl.train(
        Stairs, steps=256, lanes=8, batch=8, out=Path(__file__).parent / "run", progress=False,
        cluster="auto", cluster_settings=ClusterSettings(actors=1),
    )
    print(run.metrics[-1]["return_mean"])
"""
TIGHTROPE = {
    "env": "tightrope", "env_options": {"reward": "dense", "terminal": 80}, "steps": 8000,
    "lanes": 32, "epsilon_episodes": 1000, "learning_rate": 1e-3,
}  # fmt: skip


def train_on_cluster(out, **options):
    """Train by a script, on a cluster of this machine; the returns of its lines of metrics."""
    with private_ray(token=False):
        given = json.dumps({**options, "out": str(out)})
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, given], cwd=ROOT, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    metrics = RunDirectory(out).read_metrics()
    assert int(done.stdout) == len(metrics)
    return [row["return_mean"] for row in metrics]


def test_the_simulator_of_a_script_is_found_beside_it(tmp_path):
    (tmp_path / "stairs.py").write_text(STAIRS)
    with private_ray(token=False):
        done = subprocess.run(
            [sys.executable, tmp_path / "stairs.py"], cwd=ROOT, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 4.0


def play_again(out, budgets, episodes):
    return [result.returns for result in save_rl.evaluate(out, budgets, episodes, workers=0)]


def test_tightrope_is_learned_as_on_one_machine(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    simulator = {**TIGHTROPE, "env": "save_rl.envs.tightrope:tightrope_simulator"}
    save_rl.train(**simulator, out=here, workers=0, progress=False)
    returns = train_on_cluster(there, **simulator)
    assert returns[0] < 0.2
    # A walk over the whole rope pays 1; a fifth of the actions is safe in each of ten states.
    for mine, other in zip(
        play_again(here, (0, 10), 100), play_again(there, (0, 10), 100), strict=True
    ):
        assert mine.mean() > 0.95
        assert other.mean() > 0.95


def test_a_short_run_on_covering_gets_better_than_its_start_and_than_chance(tmp_path):
    returns = train_on_cluster(tmp_path / "run", **LEVEL_0)
    ((trained,),) = play_again(tmp_path / "run", (LEVEL_0["budget"],), 32)
    chance = random_returns(save_rl.make("covering", difficulty=0), 100)
    error = np.hypot(chance.std() / 10, trained.std() / np.sqrt(32))
    assert trained.mean() > chance.mean() + 4 * error
    assert trained.mean() > returns[0] + 0.3


def test_ones_own_network_learns_on_a_cluster(tmp_path):
    returns = train_on_cluster(
        tmp_path / "run", env="tests.training.signs:Signs", env_options={"kind": "dictionary"},
        agent="q-learning", network="tests.networks.own_networks:small",
        optimizer="tests.networks.own_networks:sgd", steps=1600, lanes=16, batch=16,
        learning_rate=3e-4, epsilon_episodes=400, epsilon_end=0.01, replay_ratio=4,
        target_period=100,
    )  # fmt: skip
    assert 0 <= returns[0] < 0.6  # at random, one in three
    assert returns[-1] > 0.75  # of a few episodes, some of them random
