"""Training with actors on a Ray cluster: the same run, whoever acts, and whoever dies."""

import asyncio
import os
import random
import re
import signal
import time
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
from save_rl.training.cluster import crew, learner, run  # noqa: E402
from save_rl.training.cluster.actor import Actor, FrameLanes, Order, Task  # noqa: E402
from save_rl.training.cluster.inference import Inference  # noqa: E402
from save_rl.training.cluster.program import cluster_program  # noqa: E402
from save_rl.training.cluster.settings import ClusterSettings  # noqa: E402
from save_rl.training.settings import TrainSettings  # noqa: E402
from tests.search.table_simulators import FOREVER, maze  # noqa: E402
from tests.training.numbered import Moment, Numbered, check_numbers  # noqa: E402
from tests.training.ray_cluster import CORES, LIMIT  # noqa: E402
from tests.training.ray_here import RayHere  # noqa: E402
from tests.training.pictures import Pictures  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("ray"),
    # Ray starts its processes by forking, and executes another program at once.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]
ENV = "tests.search.table_simulators:maze"
NUMBERED = "tests.training.numbered:Numbered"
PICTURES = "tests.training.pictures:Pictures"
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


@pytest.fixture
def make_here(monkeypatch):
    """Make programs whose actors live in this process, see `ray_here`."""
    monkeypatch.setattr(crew, "_SILENCE", np.inf)  # nobody waits for a core
    yield from programs(lambda choose: monkeypatch.setattr(crew, "ray", RayHere(*choose)))


@pytest.fixture
def make(joined):
    """Make programs whose actors are processes of a real cluster."""
    yield from programs(lambda choose: None)


def programs(prepare):
    made = []

    def program(*choose, warn=None, changes=None, **given):
        prepare(choose)
        chosen = settings(**(changes or {}))
        (simulator,) = make_all(chosen.env, (3,), **chosen.env_options)
        made.append(cluster_program(chosen, [simulator], ClusterSettings(**given), warn=warn))
        return made[-1]

    yield program
    for program in made:
        program.close()


class Counting(Inference):
    """Counts requests and batches."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.requests = self.batches = 0

    async def evaluate(self, observation, mask):
        self.requests += 1
        return await super().evaluate(observation, mask)

    def _answer(self, asked):
        self.batches += 1
        return super()._answer(asked)

    async def counts(self):
        return self.requests, self.batches


class Idle:
    """Takes cores, and does nothing."""

    def ready(self):
        return True


def process_of(place):
    return int(place.where.split()[-1].rstrip(")"))


def wait_until_answered(crew):
    """Wait until everything is answered that actors were asked for."""
    owed = [reference for place in crew.places for reference, _ in place.owed]
    ready, _ = ray.wait(owed, num_returns=len(owed), timeout=LIMIT)
    assert len(ready) == len(owed)


def advance(program, state, chunks, first=0):
    for number in range(first, first + chunks):
        state = program.advance(state, number * program.settings.chunk)
    return state


def advance_until(event, program, state, first):
    """Advance until `event` returns true; return the state and real steps after every chunk."""
    began, steps = time.monotonic(), [int(state[0].env_steps)]
    while not event():
        assert time.monotonic() - began < LIMIT, "it did not happen"
        state = advance(program, state, 1, first + len(steps) - 1)
        steps.append(int(state[0].env_steps))
    return state, steps


def check_same_run(there, agent):
    """Compare a run of one actor that never runs ahead with a run of one machine."""
    here = host.Program(settings(agent=agent), [maze(3)])
    expected = advance(here, here.begin(), 6)[0]
    found = advance(there, there.begin(), 6)[0]
    assert int(expected.episodes) > 3
    for name in ("learner", "replay", "episodes", "env_steps", "updates", "length", "stats"):
        same = jax.tree.map(np.array_equal, getattr(expected, name), getattr(found, name))
        assert all(jax.tree.leaves(same)), name


def check_same_run_of_r2d2(there):
    here = r2d2.Program(settings(**RECURRENT), [Pictures()])
    state = advance(here, here.begin(), 12)
    found = advance(there, there.begin(), 12)
    assert int(state[0].updates) > 3
    same = jax.tree.map(np.array_equal, here.params(state), there.params(found))
    assert all(jax.tree.leaves(same))
    for name, array in here.snapshot(state)[0].replay.items():
        assert np.array_equal(array, there.snapshot(found)[0].replay[name]), name
    here.close()


@pytest.mark.parametrize("agent", ["save", pytest.param("puct", marks=pytest.mark.slow)])
def test_one_actor_in_step_is_a_run_of_one_machine(make_here, agent):
    check_same_run(make_here(actors=1, synchronous=True, changes={"agent": agent}), agent)


def test_one_actor_of_r2d2_in_step_is_a_run_of_one_machine(make_here):
    check_same_run_of_r2d2(make_here(actors=1, synchronous=True, changes=RECURRENT))


@pytest.mark.slow
def test_one_actor_of_r2d2_of_a_cluster_in_step_is_a_run_of_one_machine(make):
    check_same_run_of_r2d2(make(actors=1, synchronous=True, changes=RECURRENT))


def test_actors_of_r2d2_explore_as_the_lanes_of_one_machine():
    lanes = settings(**RECURRENT).lanes
    tasks = [Task({}, number, 0, 2 * number, 2, -1) for number in range(2)]
    own = [FrameLanes(task, settings(**RECURRENT), [Pictures()])._epsilon for task in tasks]
    assert np.concatenate(own).tolist() == epsilon_ladder(lanes).tolist()


def test_a_run_of_r2d2_resumes_from_a_checkpoint(make_here):
    program = make_here(actors=2, changes=RECURRENT)
    state = program.snapshot(advance(program, program.begin(), 12))
    other = make_here(actors=2, changes=RECURRENT)
    other.begin()
    (seed,) = other.restore(jax.tree.map(np.array, state))
    assert int(seed.updates) == int(state[0].updates) > 3
    (after,) = other.advance((seed,), 24)
    assert int(after.env_steps) > int(seed.env_steps)


def test_the_replay_ratio_holds_whoever_is_faster(make_here):
    order, most = random.Random(5), []

    def choose(references):
        most.append(max(len(place.owed) for place in program.crew.places))
        return order.choice([*references, references[0], references[0]])

    program = make_here(choose, actors=3)
    (seed,) = advance(program, program.begin(), 10)
    answered = [place.steps for place in program.crew.places]
    assert max(answered) > 2 * min(answered) > 0
    assert max(most) == ClusterSettings().ahead
    assert int(seed.updates) == 19 * program.settings.updates_per_step
    assert abs(int(seed.env_steps) - 20 * LANES) <= LANES
    assert int(seed.replay.added) == int(seed.env_steps)


def test_actors_differ(make_here):
    program = make_here(actors=2, synchronous=True)
    (seed,) = advance(program, program.begin(), 4)
    first, second = np.split(seed.replay.data.action.reshape(-1, LANES), 2, 1)
    assert not np.array_equal(first, second)


def test_an_actor_that_is_ahead_does_not_repeat_itself():
    actor = Actor(lambda parameters: parameters)
    actor.start(Task(asdict(settings()), 0, 0, 0, LANES, -1))
    program = host.Program(settings(), [maze(3)])
    leaves = jax.tree.leaves(program.params(program.begin())[0])
    order = Order(episodes=0, length=1.0, level=-1, version=0)
    seeds = [actor.act(order, [leaves]).experience.next_seed for _ in range(2)]
    assert not np.array_equal(*seeds)
    program.close()


@pytest.mark.parametrize("synchronous", [False, True])
def test_every_step_counts_once_whoever_dies(make_here, synchronous):
    chance, killed, said = random.Random(7), [], []

    def choose(references):
        handle = crew.ray.handles[-1]
        if chance.random() < 0.1 and len(killed) < 6 and handle not in killed:
            handle.alive = False
            killed.append(handle)
        return chance.choice(references)

    changes = {"env": NUMBERED, "replay": 1000}
    program = make_here(
        choose, actors=3, synchronous=synchronous, warn=said.append, changes=changes
    )
    state, steps = advance_until(lambda: len(killed) == 6, program, program.begin(), 0)
    state = advance(program, state, 4, len(steps))
    assert program.crew.deaths == len(said) == 6
    assert sum(place.life for place in program.crew.places) == 6
    replay, made = state[0].replay, int(state[0].env_steps)
    assert abs(made - 2 * LANES * (len(steps) + 3)) <= LANES
    assert int(replay.added) == made <= 1000
    check_numbers(replay.data.observation, made)


def test_actors_that_die_one_after_the_other_end_the_run(make_here):
    def choose(references):
        crew.ray.handles[-1].alive = False
        return references[0]

    program = make_here(choose, actors=1)
    with pytest.raises(RunError, match=r"^--cluster: processes keep dying; the last one: "):
        advance(program, program.begin(), 1)
    assert program.crew.deaths == 8


def test_ray_says_of_a_killed_actor_what_its_stand_in_says(joined):
    class Sleeper:  # sent by value: its process imports nothing of ours
        def process(self):
            return os.getpid()

        def sleep(self):
            time.sleep(LIMIT)

    handle = ray.remote(num_cpus=0)(Sleeper).remote()
    process = ray.get(handle.process.remote())
    owed = handle.sleep.remote()
    os.kill(process, signal.SIGKILL)
    ready, _ = ray.wait([owed], num_returns=1, timeout=LIMIT)
    assert ready == [owed]
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(owed)


@pytest.mark.slow  # above, with a stand-in for Ray: every step counts once, whoever dies
def test_an_actor_that_is_killed_is_replaced(make, monkeypatch):
    monkeypatch.setattr(crew, "_SILENCE", np.inf)  # a busy machine may take long to start one
    said = []
    program = make(warn=said.append, actors=2, changes={"env": NUMBERED, "replay": 2**18})
    state = program.begin()
    place = program.crew.places[1]
    state, first = advance_until(lambda: place.steps > 0, program, state, 0)
    where, version = place.where, program._version
    os.kill(process_of(place), signal.SIGKILL)

    def replaced():
        return place.life == 1 and place.ready and place.version > version

    state, steps = advance_until(replaced, program, state, len(first) - 1)
    assert program.crew.deaths == 1
    assert said == [f"actor 1 is gone, {where}; another one takes its place"]
    assert all(after - now <= 3 * LANES for now, after in pairwise([*first, *steps[1:]]))
    replay, made = state[0].replay, int(state[0].env_steps)
    assert abs(made - 2 * LANES * (len(first) + len(steps) - 2)) <= LANES
    assert int(replay.added) == made
    check_numbers(replay.data.observation, made)


@pytest.mark.parametrize("wrong", [[0, 1, 1, 2], [0, 2], [0, 2, 1], [1, 2]])
def test_a_step_that_is_not_counted_once_is_found(wrong):
    other = Numbered()

    def ring(times):
        seen = [other.observe(Moment(seed, t)) for seed in (7, 2**31 - 1) for t in times]
        return np.array([*seen, other.observe(Moment(3, 0))])

    check_numbers(ring([0, 1, 2]), 7)
    with pytest.raises(AssertionError):
        check_numbers(ring(wrong), len(ring(wrong)))


@pytest.mark.slow
def test_one_process_answers_actors_and_memory_is_what_the_system_says(make, monkeypatch):
    """Object stores hold no more than they must."""
    monkeypatch.setattr(crew, "Inference", Counting)
    wide = {"env": NUMBERED, "env_options": {"width": 8000}}
    program = make(actors=1, ahead=3, inference="learner", changes=wide)
    state, held = program.begin(), []
    for number in range(8):
        state = program.advance(state, number * program.settings.chunk)
        wait_until_answered(program.crew)
        held.append(program.crew.stored_bytes())
    (place,) = program.crew.places
    made = place.steps + len(place.owed)
    asked, batches = ray.get(program.crew._inference.counts.remote())
    # An actor asks for its roots and at most four times more, of one or two groups, in every step.
    assert made <= batches <= asked <= 10 * made
    everywhere, at_learner = learner.needed_bytes(program)
    assert 1.3 * everywhere / 2 < max(held) <= 1.01 * (everywhere / 2 + at_learner)
    status = Path(f"/proc/{process_of(place)}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024 / 1e6
    assert place.megabytes == pytest.approx(peak, rel=0.1)


def test_questions_of_the_same_moment_are_one_batch():
    program = host.Program(settings(), [maze(3)])
    leaves = jax.tree.leaves(program.params(program.begin())[0])
    evaluate = program.acting(leaves)
    asked = [
        (maze(3).features[first:last], np.ones((last - first, maze(3).num_actions), bool))
        for first, last in ((0, 1), (1, 3), (3, 6))
    ]

    async def ask():
        server = Counting(asdict(settings()), "cpu")
        await server.use(leaves)
        found = await asyncio.gather(*(server.evaluate(*one) for one in asked))
        return found, await server.counts()

    found, counts = asyncio.run(ask())
    assert counts == (3, 1)
    for one, (prior, value) in zip(asked, found, strict=True):
        expected = [x[: len(prior)] for x in evaluate(*one)]  # it answers for all lanes
        np.testing.assert_allclose(prior, expected[0], rtol=1e-5)
        np.testing.assert_allclose(value, expected[1], rtol=1e-5)
    program.close()


@pytest.mark.slow
def test_actors_that_find_no_core_are_named(make, monkeypatch):
    class Told(Exception):
        pass

    def tell(text):
        raise Told(text)

    monkeypatch.setattr(crew, "_SILENCE", 0.5)
    all_cores = ray.remote(num_cpus=CORES)(Idle).remote()
    try:
        ray.get(all_cores.ready.remote())
        program = make(warn=tell, actors=2, synchronous=True)
        with pytest.raises(Told) as told:
            advance(program, program.begin(), 1)
    finally:
        ray.kill(all_cores)
    assert str(told.value) == (
        "2 of 2 actors find no free core, of the 4 that the cluster has; with "
        "--cluster.synchronous the run waits for them"
    )


@pytest.mark.slow
def test_the_process_that_answers_can_be_lost(make):
    said = []
    program = make(warn=said.append, actors=2, inference="learner")
    state = advance(program, program.begin(), 3)
    ray.kill(program.crew._inference)
    state, steps = advance_until(lambda: said, program, state, 3)
    state = advance(program, state, 3, len(steps) + 2)
    assert said[0] == "the inference process is gone; all actors are restarted"
    made = int(state[0].env_steps)
    assert abs(made - 2 * LANES * (len(steps) + 5)) <= LANES
    assert int(state[0].replay.added) == made


class Nobody:
    def status(self, heard):
        return heard


def test_a_learner_whose_machine_has_left_is_said_to_be_lost(joined):
    gone = run._on("0" * 56)
    found = ray.remote(Nobody).options(num_cpus=0, scheduling_strategy=gone).remote()
    with pytest.raises(RunError, match="--cluster: this machine has left the cluster before"):
        run._ask(found, 0)
