"""Training with actors on a Ray cluster: the same run, whoever acts, and whoever dies."""

import os
import re
import signal
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest

ray = pytest.importorskip("ray")

from save_rl.envs import make_all  # noqa: E402
from save_rl.errors import RunError  # noqa: E402
from save_rl.learning.exploration import epsilon_ladder  # noqa: E402
from save_rl.learning.r2d2_settings import (  # noqa: E402
    NetworkSettings,
    R2D2Settings,
    ReplaySettings,
    SequenceSettings,
)
from save_rl.training import host, r2d2  # noqa: E402
from save_rl.training.cluster import learner, run  # noqa: E402
from save_rl.training.cluster.actor import Actor, FrameLanes, Order, Task  # noqa: E402
from save_rl.training.cluster.program import cluster_program  # noqa: E402
from save_rl.training.cluster.settings import ClusterSettings  # noqa: E402
from save_rl.training.settings import TrainSettings  # noqa: E402
from tests.search.table_simulators import FOREVER, maze  # noqa: E402
from tests.training.numbered import Moment, Numbered, check_numbers  # noqa: E402
from tests.training.test_recurrent_network import Pictures  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("ray"),
    # Ray starts its processes by forking, and executes another program at once.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]
ENV = "tests.search.table_simulators:maze"
NUMBERED = "tests.training.numbered:Numbered"
PICTURES = "tests.training.test_recurrent_network:Pictures"
LANES = 8
RECURRENT = {
    "env": PICTURES, "agent": "r2d2-save", "lanes": 4, "batch": 16, "budget": 3, "replay": 4000,
    "min_replay": 100, "learning_rate": 2e-4,
    "r2d2": R2D2Settings(
        network=NetworkSettings(profile="small"),
        sequences=SequenceSettings(burn_in=4, train=6, period=3, gamma=0.9),
        replay=ReplaySettings(60, minimum=6, batch=4, threads=1, capacity_bytes=2**26),
        refresh=3,
    ),
}  # fmt: skip


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
    ray.init("local", num_cpus=4, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def make(cluster):
    made = []

    def program(warn=None, changes=None, **given):
        chosen = settings(**(changes or {}))
        (simulator,) = make_all(chosen.env, (3,), **chosen.env_options)
        place = ClusterSettings(**given)
        made.append(cluster_program(chosen, [simulator], place, warn=warn))
        return made[-1]

    yield program
    for program in made:
        program.close()


class Idle:
    """Takes cores, and does nothing."""

    def ready(self):
        return True


def process_of(place):
    return int(place.where.split()[-1].rstrip(")"))


def wait_until_done(crew):
    """Until everything is answered that actors were asked for."""
    owed = [reference for place in crew.places for reference, _ in place.owed]
    ray.wait(owed, num_returns=len(owed), timeout=60)


def advance(program, state, chunks):
    for number in range(chunks):
        state = program.advance(state, number * program.settings.chunk)
    return state


@pytest.mark.parametrize("agent", ["save", "puct"])
def test_one_actor_in_step_is_a_run_of_one_machine(make, agent):
    here = host.Program(settings(agent=agent), [maze(3)])
    expected = advance(here, here.begin(), 6)[0]
    there = make(actors=1, synchronous=True, changes={"agent": agent})
    found = advance(there, there.begin(), 6)[0]
    assert int(expected.episodes) > 3
    for name in ("learner", "replay", "episodes", "env_steps", "updates", "length", "stats"):
        same = jax.tree.map(np.array_equal, getattr(expected, name), getattr(found, name))
        assert all(jax.tree.leaves(same)), name


def test_one_actor_of_r2d2_in_step_is_a_run_of_one_machine(make):
    here = r2d2.Program(settings(**RECURRENT), [Pictures()])
    state = advance(here, here.begin(), 12)
    there = make(actors=1, synchronous=True, changes=RECURRENT)
    found = advance(there, there.begin(), 12)
    assert int(state[0].updates) > 3
    same = jax.tree.map(np.array_equal, here.params(state), there.params(found))
    assert all(jax.tree.leaves(same))
    for name, array in here.snapshot(state)[0].replay.items():
        assert np.array_equal(array, there.snapshot(found)[0].replay[name]), name
    here.close()


def test_actors_of_r2d2_explore_as_the_lanes_of_one_machine(make):
    lanes = settings(**RECURRENT).lanes
    tasks = [Task({}, number, 0, 2 * number, 2, -1) for number in range(2)]
    own = [FrameLanes(task, settings(**RECURRENT), [Pictures()])._epsilon for task in tasks]
    assert np.concatenate(own).tolist() == epsilon_ladder(lanes).tolist()


@pytest.mark.slow
def test_a_run_of_r2d2_goes_on_from_a_checkpoint(make):
    program = make(actors=2, changes=RECURRENT)
    state = program.snapshot(advance(program, program.begin(), 12))
    other = make(actors=2, changes=RECURRENT)
    other.begin()
    (seed,) = other.restore(jax.tree.map(np.array, state))
    assert int(seed.updates) == int(state[0].updates) > 3
    (after,) = other.advance((seed,), 24)
    assert int(after.env_steps) > int(seed.env_steps)


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


def test_an_actor_that_is_ahead_does_not_repeat_itself():
    actor = Actor(lambda parameters: parameters)
    actor.start(Task(asdict(settings()), 0, 0, 0, LANES, -1))
    program = host.Program(settings(), [maze(3)])
    leaves = jax.tree.leaves(program.params(program.begin())[0])
    order = Order(episodes=0, length=1.0, level=-1, version=0, updates=0)
    seeds = [actor.act(order, [leaves]).experience.next_seed for _ in range(2)]
    assert not np.array_equal(*seeds)
    program.close()


def test_an_actor_that_is_killed_is_replaced(make):
    said = []
    program = make(warn=said.append, actors=2, changes={"env": NUMBERED, "replay": 640})
    state = advance(program, program.begin(), 3)
    before = int(state[0].env_steps)
    where = program.crew.places[1].where
    os.kill(process_of(program.crew.places[1]), signal.SIGKILL)
    steps = [before]
    for number in range(3, 12):
        state = program.advance(state, number * 2)
        steps.append(int(state[0].env_steps))
    assert program.crew.deaths == 1
    assert said == [f"actor 1 is gone, {where}; another one takes its place"]
    assert all(after - now <= 3 * LANES for now, after in pairwise(steps))
    assert program.crew.places[1].life == 1
    replay = state[0].replay
    assert 24 * LANES - LANES <= int(state[0].env_steps) == int(replay.added) <= 640
    check_numbers(replay.data.observation, int(replay.added))


@pytest.mark.parametrize("wrong", [[0, 1, 1, 2], [0, 2], [0, 2, 1], [1, 2]])
def test_a_step_that_is_not_counted_once_is_found(wrong):
    other = Numbered()

    def ring(times):
        seen = [other.observe(Moment(seed, t)) for seed in (7, 2**31 - 1) for t in times]
        return np.array([*seen, other.observe(Moment(3, 0))])

    check_numbers(ring([0, 1, 2]), 7)
    with pytest.raises(AssertionError):
        check_numbers(ring(wrong), len(ring(wrong)))


def test_memory_is_what_the_system_says_and_object_stores_hold_no_more_than_they_must(make):
    wide = {"env": NUMBERED, "env_options": {"width": 8000}}
    program = make(actors=1, ahead=3, changes=wide)
    state, held = program.begin(), []
    for number in range(8):
        state = program.advance(state, number * program.settings.chunk)
        wait_until_done(program.crew)
        held.append(program.crew.stored_bytes())
    everywhere, at_learner = learner.needed_bytes(program)
    assert 1.3 * everywhere / 2 < max(held) <= 1.01 * (everywhere / 2 + at_learner)
    place = program.crew.places[0]
    status = Path(f"/proc/{process_of(place)}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024 / 1e6
    assert place.megabytes == pytest.approx(peak, rel=0.1)


def test_actors_that_find_no_core_are_named(make, monkeypatch):
    class Told(Exception):
        pass

    def tell(text):
        raise Told(text)

    monkeypatch.setattr("save_rl.training.cluster.crew._SILENCE", 0.5)
    all_cores = ray.remote(num_cpus=4)(Idle).remote()
    ray.get(all_cores.ready.remote())
    program = make(warn=tell, actors=2, synchronous=True)
    with pytest.raises(Told) as told:
        advance(program, program.begin(), 1)
    assert str(told.value) == (
        "2 of 2 actors find no free core, of the 4 that the cluster has; with "
        "--cluster.synchronous the run waits for them"
    )
    ray.kill(all_cores)


def test_one_process_answers_all_actors(make):
    program = make(actors=3, synchronous=True, inference="learner")
    (seed,) = advance(program, program.begin(), 6)
    assert int(seed.env_steps) == 12 * LANES
    asked, batches = ray.get(program.crew._inference.counts.remote())
    # Each asks for the roots and at most four times more, of one or two groups, in every step.
    assert 3 * 12 * 3 <= asked <= 3 * 12 * 10
    assert batches < asked


@pytest.mark.slow
def test_the_process_that_answers_can_be_lost(make):
    said = []
    program = make(warn=said.append, actors=2, inference="learner")
    state = advance(program, program.begin(), 3)
    ray.kill(program.crew._inference)
    for number in range(3, 6):
        state = program.advance(state, number * 2)
    assert said[0] == "the process that answers the actors is gone; all begin anew"
    assert int(state[0].replay.added) == int(state[0].env_steps) >= 12 * LANES - LANES


class Nobody:
    def status(self, heard):
        return heard


def test_a_learner_whose_machine_has_left_is_said_to_be_lost(cluster):
    gone = run._on("0" * 56)
    found = ray.remote(Nobody).options(num_cpus=0, scheduling_strategy=gone).remote()
    with pytest.raises(RunError, match="--cluster: this machine has left the cluster before"):
        run._ask(found, 0)
