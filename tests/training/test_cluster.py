"""Training with actors on a Ray cluster: the same run, whoever acts, and whoever dies."""

import os
import signal
from itertools import pairwise

import jax
import numpy as np
import pytest

ray = pytest.importorskip("ray")

from save_rl.training import host  # noqa: E402
from save_rl.training.cluster.program import Program  # noqa: E402
from save_rl.training.cluster.settings import ClusterSettings  # noqa: E402
from save_rl.training.settings import TrainSettings  # noqa: E402
from tests.search.table_simulators import FOREVER, maze  # noqa: E402

pytestmark = pytest.mark.xdist_group("ray")
ENV = "tests.search.table_simulators:maze"
LANES = 8


def settings(**changes):
    values = {
        "env": ENV, "lanes": LANES, "batch": 16, "replay": 64, "min_replay": LANES, "budget": 4,
        "chunk": 2, "learning_rate": 1e-3, "episodes": FOREVER, "seeds": (3,),
    }  # fmt: skip
    return TrainSettings(**(values | changes))


@pytest.fixture(scope="module")
def cluster():
    path = os.pathsep.join([os.path.abspath("src"), os.path.abspath(".")])
    os.environ["PYTHONPATH"] = path
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def make(cluster):
    made = []

    def program(warn=None, changes=None, **given):
        chosen = settings(**(changes or {}))
        made.append(Program(chosen, [maze(3)], ClusterSettings(**given), warn=warn))
        return made[-1]

    yield program
    for program in made:
        program.close()


def advance(program, state, chunks):
    for number in range(chunks):
        state = program.advance(state, number * program.settings.chunk)
    return state


@pytest.mark.parametrize("agent", ["save", "q-learning", "puct"])
def test_one_actor_in_step_is_a_run_of_one_machine(make, agent):
    here = host.Program(settings(agent=agent), [maze(3)])
    expected = advance(here, here.begin(), 6)[0]
    there = make(actors=1, synchronous=True, changes={"agent": agent})
    found = advance(there, there.begin(), 6)[0]
    assert int(expected.episodes) > 3
    for name in ("learner", "replay", "episodes", "env_steps", "updates", "length", "stats"):
        same = jax.tree.map(np.array_equal, getattr(expected, name), getattr(found, name))
        assert all(jax.tree.leaves(same)), name


def test_the_replay_ratio_holds_with_actors_that_run_ahead(make):
    program = make(actors=3)
    (seed,) = advance(program, program.begin(), 10)
    assert int(seed.updates) == 19 * program.settings.updates_per_step
    assert abs(int(seed.env_steps) - 20 * LANES) <= LANES
    assert int(seed.replay.added) == int(seed.env_steps)


def test_actors_differ(make):
    program = make(actors=2, synchronous=True)
    (seed,) = advance(program, program.begin(), 4)
    first, second = np.split(seed.replay.data.action.reshape(-1, LANES), 2, 1)
    assert not np.array_equal(first, second)


def test_an_actor_that_is_killed_is_replaced(make):
    said = []
    program = make(warn=said.append, actors=2)
    state = advance(program, program.begin(), 3)
    before = int(state[0].env_steps)
    where = program.crew.places[1].where
    os.kill(int(where.split()[-1].rstrip(")")), signal.SIGKILL)
    steps = [before]
    for number in range(3, 12):
        state = program.advance(state, number * 2)
        steps.append(int(state[0].env_steps))
    assert program.crew.deaths == 1
    assert said == [f"actor 1 is gone, {where}; another one takes its place"]
    assert all(after - now <= 3 * LANES for now, after in pairwise(steps))
    assert program.crew.places[1].life == 1
    assert int(state[0].replay.added) == int(state[0].env_steps)
