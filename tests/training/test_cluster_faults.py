"""A run on several nodes, where actors, nodes and the learner die at random moments."""

import json
import os
import random
import signal
import time

import pytest

pytest.importorskip("ray")

from ray.cluster_utils import Cluster

from save_rl.training.cluster.learner import NOTES
from tests.training.ray_cluster import (
    LIMIT,
    called,
    check_counters,
    exists,
    newest,
    private_ray,
    start,
    wait_for,
)

# Ray forks to start a node; JAX warns of that if an earlier test of this process has loaded it.
pytestmark = [
    pytest.mark.xdist_group("ray"), pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]  # fmt: skip
STEPS = 100_000  # all of which are in the replay at the end
FAULTS = ["actor"] * 11 + ["node"] * 5 + ["learner"] * 5


def test_a_run_with_many_faults_finishes_and_counts_right(tmp_path):
    out, me = tmp_path / "run", os.getpid()
    moments = random.Random(0)
    faults = moments.sample(FAULTS, len(FAULTS))
    with private_ray():
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        try:
            nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
            driver = start(
                "--cluster", cluster.address, "--steps", STEPS, "--chunk", 16, "--out", out,
                "--replay", STEPS + 1000, "--env-options", "length=40",
            )  # fmt: skip
            for fault in faults:
                before = newest(out)
                wait_for(lambda before=before: newest(out) > max(before, 1), driver)
                time.sleep(moments.uniform(0, 1))
                if fault == "node":
                    cluster.remove_node(nodes.pop(moments.randrange(2)), allow_graceful=False)
                    nodes.append(cluster.add_node(num_cpus=1))
                    continue
                name = {"actor": "ray::Actor", "learner": "ray::Learner"}[fault]
                found = wait_for(lambda name=name: called(me, name), driver)
                os.kill(moments.choice(found), signal.SIGKILL)
            assert driver.poll() is None, "the run ended before its last fault"
            below = [*called(me, "ray::Actor"), *called(me, "ray::Learner")]
            _, errors = driver.communicate(timeout=LIMIT)
            assert driver.returncode == 0, errors
            assert "Traceback" not in errors
            check_counters(out)
            assert json.loads((out / NOTES).read_text())["restarts"] == FAULTS.count("learner")
            wait_for(lambda: not any(exists(pid) for pid in below))
            wait_for(lambda: not called(me, "ray::Learner") + called(me, "ray::Actor"))
        finally:
            cluster.shutdown()
