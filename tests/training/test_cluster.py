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
from save_rl.training.cluster import actor_group, learner, run  # noqa: E402
from save_rl.training.cluster.actor import (  # noqa: E402
    ActorProcess,
    ActorTask,
    SequenceLanes,
    StepReply,
    StepRequest,
)
from save_rl.training.cluster.actor_group import ActorGroup  # noqa: E402
from save_rl.training.cluster.inference import Inference  # noqa: E402
from save_rl.training.cluster.settings import ClusterSettings  # noqa: E402
from save_rl.training.cluster.trainer import ClusterTrainer  # noqa: E402
from save_rl.training.host.trainer import HostTrainer  # noqa: E402
from save_rl.training.r2d2.trainer import R2D2Trainer  # noqa: E402
from save_rl.training.settings import TrainSettings  # noqa: E402
from tests.search.table_simulators import FOREVER, maze  # noqa: E402
from tests.training.local_ray import LocalRay  # noqa: E402
from tests.training.numbered import Moment, Numbered, check_numbers  # noqa: E402
from tests.training.pictures import Pictures  # noqa: E402
from tests.training.ray_cluster import CORES, LIMIT  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("ray"),
    # Ray starts its processes by forking, and executes another program at once.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]
ENV = "tests.search.table_simulators:maze"
NUMBERED = "tests.training.numbered:Numbered"
PICTURES = "tests.training.pictures:Pictures"
LANES = 8
RUNNING = np.ones(1, bool)
# More actions than a search can try, and some of them not allowed.
WIDE = {
    "env": "tests.search.table_simulators:wide", "env_options": {"actions": 80}, "network": "table",
}  # fmt: skip
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
    """Make trainers whose actors live in this process, see `local_ray`."""
    monkeypatch.setattr(actor_group, "_SILENCE", np.inf)  # nobody waits for a core
    yield from trainers(lambda choose: monkeypatch.setattr(actor_group, "ray", LocalRay(*choose)))


@pytest.fixture
def make(joined):
    """Make trainers whose actors are processes of a real cluster."""
    yield from trainers(lambda choose: None)


def trainers(prepare):
    made = []

    def trainer(*choose, warn=None, changes=None, **given):
        prepare(choose)
        chosen = settings(**(changes or {}))
        (simulator,) = make_all(chosen.env, (3,), **chosen.env_options)
        made.append(ClusterTrainer(chosen, [simulator], ClusterSettings(**given), warn=warn))
        return made[-1]

    yield trainer
    for trainer in made:
        trainer.close()


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


def wait_until_answered(group):
    """Wait until everything is answered that actors were asked for."""
    owed = [reference for place in group.places for reference, _ in place.owed]
    ready, _ = ray.wait(owed, num_returns=len(owed), timeout=LIMIT)
    assert len(ready) == len(owed)


def advance(trainer, state, chunks, first=0):
    for number in range(first, first + chunks):
        state = trainer.advance(state, number * trainer.settings.chunk, RUNNING)
    return state


def advance_until(event, trainer, state, first):
    """Advance until `event` returns true; return the state and real steps after every chunk."""
    began, steps = time.monotonic(), [int(state.env_steps[0])]
    while not event():
        assert time.monotonic() - began < LIMIT, "it did not happen"
        state = advance(trainer, state, 1, first + len(steps) - 1)
        steps.append(int(state.env_steps[0]))
    return state, steps


def check_same_run(there, changes):
    """Compare a run of one actor that never runs ahead with a run of one machine."""
    chosen = settings(**changes)
    here = HostTrainer(chosen, make_all(chosen.env, (3,), **chosen.env_options))
    expected = advance(here, here.begin(), 6)
    found = advance(there, there.begin(), 6)
    assert int(expected.episodes[0]) > 3
    for name in ("learner", "replay", "episodes", "env_steps", "updates", "length", "stats"):
        same = jax.tree.map(np.array_equal, getattr(expected, name), getattr(found, name))
        assert all(jax.tree.leaves(same)), name
    here.close()


def check_same_run_of_r2d2(there):
    here = R2D2Trainer(settings(**RECURRENT), [Pictures()])
    state = advance(here, here.begin(), 12)
    found = advance(there, there.begin(), 12)
    assert int(state.updates[0]) > 3
    same = jax.tree.map(np.array_equal, here.params(state), there.params(found))
    assert all(jax.tree.leaves(same))
    for name, array in here.snapshot(state).replay.items():
        assert np.array_equal(array, there.snapshot(found).replay[name]), name
    here.close()


@pytest.mark.parametrize(
    "changes", [WIDE, *(pytest.param(x, marks=pytest.mark.slow) for x in ({}, {"agent": "puct"}))]
)
def test_one_actor_in_step_is_a_run_of_one_machine(make_here, changes):
    check_same_run(make_here(actors=1, synchronous=True, changes=changes), changes)


def test_an_actor_that_asks_another_process_acts_as_by_itself():
    chosen = settings(**WIDE)
    trainer = HostTrainer(chosen, make_all(chosen.env, (3,), **chosen.env_options))
    blank, rng = jax.tree.leaves(trainer.params(trainer.begin())), np.random.default_rng(0)
    leaves = [rng.standard_normal(x.shape, np.float32) for x in blank]

    def ask(seen, mask):
        prior, value = trainer.network.run("rows", leaves, seen[None], mask[None])
        return np.asarray(prior)[0], np.asarray(value)[0]

    actors = [ActorProcess(lambda parameters: parameters), ActorProcess(None, ask)]
    request = StepRequest(episodes=0, env_steps=0, length=1.0, level=-1, version=0)
    for actor in actors:
        actor.start(ActorTask(asdict(chosen), 0, 0, 0, LANES, -1))
    for _ in range(3):
        alone, asked = (actor.act(request, [leaves]).experience.transitions for actor in actors)
        assert np.array_equal(alone.action, asked.action)
        assert alone.target.shape == (1, LANES, 80)
        np.testing.assert_allclose(alone.target, asked.target, rtol=1e-5)
    trainer.close()


@pytest.mark.slow  # below it resumes, and other agents are in step
def test_one_actor_of_r2d2_in_step_is_a_run_of_one_machine(make_here):
    check_same_run_of_r2d2(make_here(actors=1, synchronous=True, changes=RECURRENT))


@pytest.mark.slow
def test_one_actor_of_r2d2_of_a_cluster_in_step_is_a_run_of_one_machine(make):
    check_same_run_of_r2d2(make(actors=1, synchronous=True, changes=RECURRENT))


def test_actors_of_r2d2_explore_as_the_lanes_of_one_machine():
    lanes = settings(**RECURRENT).lanes
    tasks = [ActorTask({}, number, 0, 2 * number, 2, -1) for number in range(2)]
    own = [SequenceLanes(task, settings(**RECURRENT), Pictures()).epsilon for task in tasks]
    assert np.concatenate(own).tolist() == epsilon_ladder(lanes).tolist()


@pytest.mark.slow
def test_a_run_of_r2d2_resumes_from_a_checkpoint(make_here):
    trainer = make_here(actors=2, changes=RECURRENT)
    saved = trainer.snapshot(advance(trainer, trainer.begin(), 12))
    other = make_here(actors=2, changes=RECURRENT)
    other.begin()
    state = other.restore(jax.tree.map(np.array, saved))
    assert int(state.updates[0]) == int(saved.state.updates[0]) > 3
    after = other.advance(state, 24, RUNNING)
    assert int(after.env_steps[0]) > int(saved.state.env_steps[0])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [(HostTrainer, {}), pytest.param(R2D2Trainer, RECURRENT, marks=pytest.mark.slow)],
)
def test_a_run_moves_from_one_machine_to_a_cluster_and_back(make_here, kind, changes):
    there, chosen = make_here(actors=2, changes=changes), settings(**changes)
    here = kind(chosen, make_all(chosen.env, (3,), **chosen.env_options))
    there.begin()
    state = advance(here, here.begin(), 3)
    for trainer, other in ((here, there), (there, here)):
        state = other.restore(jax.tree.map(np.array, trainer.snapshot(state)))
        before = int(state.env_steps[0])
        state = advance(other, state, 3, int(state.steps[0]))
        assert int(state.env_steps[0]) > before
    here.close()


@pytest.mark.parametrize("changes", [{}, pytest.param(RECURRENT, marks=pytest.mark.slow)])
def test_a_run_that_moves_to_one_machine_begins_another_episode_in_every_lane(make_here, changes):
    trainer = make_here(actors=2, changes=changes)
    saved = trainer.snapshot(trainer.begin())
    seeds = (saved.state if changes else saved).episode_seed
    assert len(np.unique(seeds)) == seeds.size == trainer.settings.lanes


def test_the_replay_ratio_holds_whoever_is_faster(make_here):
    order, most = random.Random(5), []

    def choose(references):
        most.append(max(len(place.owed) for place in trainer.group.places))
        return order.choice([*references, references[0], references[0]])

    trainer = make_here(choose, actors=3)
    state = advance(trainer, trainer.begin(), 10)
    answered = [place.steps for place in trainer.group.places]
    assert max(answered) > 2 * min(answered) > 0
    assert max(most) == ClusterSettings().ahead
    assert int(state.updates[0]) == 19 * trainer.settings.updates_per_step
    assert abs(int(state.env_steps[0]) - 20 * LANES) <= LANES
    assert int(state.replay.added[0]) == int(state.env_steps[0])


def test_actors_differ(make_here):
    trainer = make_here(actors=2, synchronous=True)
    state = advance(trainer, trainer.begin(), 4)
    first, second = np.split(np.asarray(state.replay.data.action).reshape(-1, LANES), 2, 1)
    assert not np.array_equal(first, second)


def test_an_actor_that_is_ahead_does_not_repeat_itself():
    actor = ActorProcess(lambda parameters: parameters)
    actor.start(ActorTask(asdict(settings()), 0, 0, 0, LANES, -1))
    trainer = HostTrainer(settings(), [maze(3)])
    leaves = jax.tree.leaves(trainer.params(trainer.begin()))
    request = StepRequest(episodes=0, env_steps=0, length=1.0, level=-1, version=0)
    seeds = [actor.act(request, [leaves]).experience.next_seed for _ in range(2)]
    assert not np.array_equal(*seeds)
    trainer.close()


@pytest.mark.parametrize("synchronous", [pytest.param(False, marks=pytest.mark.slow), True])
def test_every_step_counts_once_whoever_dies(make_here, synchronous):
    chance, killed, said = random.Random(7), [], []

    def choose(references):
        handle = actor_group.ray.handles[-1]
        if chance.random() < 0.1 and len(killed) < 6 and handle not in killed:
            handle.alive = False
            killed.append(handle)
        return chance.choice(references)

    changes = {"env": NUMBERED, "replay": 1000}
    trainer = make_here(
        choose, actors=3, synchronous=synchronous, warn=said.append, changes=changes
    )
    state, steps = advance_until(lambda: len(killed) == 6, trainer, trainer.begin(), 0)
    state = advance(trainer, state, 4, len(steps))
    assert trainer.group.deaths == len(said) == 6
    assert sum(place.life for place in trainer.group.places) == 6
    replay, made = state.replay, int(state.env_steps[0])
    assert abs(made - 2 * LANES * (len(steps) + 3)) <= LANES
    assert int(replay.added[0]) == made <= 1000
    check_numbers(np.asarray(replay.data.observation)[0], made)


def test_actors_that_die_one_after_the_other_end_the_run(make_here):
    def choose(references):
        actor_group.ray.handles[-1].alive = False
        return references[0]

    trainer = make_here(choose, actors=1)
    with pytest.raises(RunError, match=r"^--cluster: processes keep dying; the last one: "):
        advance(trainer, trainer.begin(), 1)
    assert trainer.group.deaths == 8


class Quick:
    """An actor that makes nothing of what it is asked for."""

    def __init__(self, fetch, ask=None):
        pass

    def start(self, task):
        return {"host": "here", "pid": 1, "versions": {}}

    def act(self, request, parameters):
        return StepReply(None, 0, 1)


@pytest.fixture
def group_here(monkeypatch):
    """Make a group of `Quick` actors in this process; choose: see `LocalRay`."""

    def group(actors, choose, said=lambda text: None):
        monkeypatch.setattr(actor_group, "_SILENCE", np.inf)
        monkeypatch.setattr(actor_group, "ActorProcess", Quick)
        monkeypatch.setattr(actor_group, "other_version", lambda theirs: "")
        monkeypatch.setattr(actor_group, "ray", LocalRay(choose))
        made = ActorGroup(settings(lanes=32), ClusterSettings(actors=actors), said)
        made.begin(-1)
        return made

    return group


REQUEST = StepRequest(episodes=0, env_steps=0, length=1.0, level=-1, version=0)


def test_actors_that_die_at_their_first_step_end_the_run(group_here):
    """Although each of them has started well."""
    order = random.Random(2)

    def choose(references):
        assert sum(place.life for place in group.places) < 50, "the run goes on for ever"
        for place in group.places:
            place.actor.alive = not place.ready
        return order.choice(references)

    group = group_here(3, choose)
    with pytest.raises(RunError, match=r"^--cluster: processes keep dying; the last one: "):
        group.next(REQUEST)


def test_all_actors_of_a_node_may_die_together(group_here):
    """Another process takes long to start, and those that live have answered meanwhile."""
    lost = []

    def choose(references):
        starting = [place.starting for place in group.places]
        return min(references, key=lambda one: (one in starting) == bool(lost))

    group = group_here(30, choose)
    group.next(REQUEST)
    lost += group.places[:20]
    assert all(place.owed for place in lost)
    for place in lost:
        place.actor.alive = False
    first, _ = group.next(REQUEST)
    assert first == group.places[20].first
    assert group.deaths == 20
    assert [place.life for place in group.places] == [1] * 20 + [0] * 10


def test_an_actor_that_dies_before_it_is_ready_is_not_taken_for_the_one_before(group_here):
    said = []

    def choose(references):
        (place,) = group.places
        place.actor.alive = place.steps == 0 or group.deaths == 2
        return references[0]

    group = group_here(1, choose, said.append)
    for _ in range(2):
        group.next(REQUEST)
    assert said == [
        f"actor 0 is gone, {where}; another one takes its place"
        for where in ("here (process 1)", "before it was ready")
    ]


@pytest.mark.slow
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
    monkeypatch.setattr(
        actor_group, "_SILENCE", np.inf
    )  # a busy machine may take long to start one
    said = []
    trainer = make(warn=said.append, actors=2, changes={"env": NUMBERED, "replay": 2**18})
    state = trainer.begin()
    place = trainer.group.places[1]
    state, first = advance_until(lambda: place.steps > 0, trainer, state, 0)
    where, version = place.where, trainer.version
    os.kill(process_of(place), signal.SIGKILL)

    def replaced():
        return place.life == 1 and place.ready and place.version > version

    state, steps = advance_until(replaced, trainer, state, len(first) - 1)
    assert trainer.group.deaths == 1
    assert said == [f"actor 1 is gone, {where}; another one takes its place"]
    assert all(after - now <= 3 * LANES for now, after in pairwise([*first, *steps[1:]]))
    replay, made = state.replay, int(state.env_steps[0])
    assert abs(made - 2 * LANES * (len(first) + len(steps) - 2)) <= LANES
    assert int(replay.added[0]) == made
    check_numbers(np.asarray(replay.data.observation)[0], made)


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
    monkeypatch.setattr(actor_group, "Inference", Counting)
    wide = {"env": NUMBERED, "env_options": {"width": 8000}}
    trainer = make(actors=1, ahead=3, inference="learner", changes=wide)
    state, held = trainer.begin(), []
    for number in range(8):
        state = trainer.advance(state, number * trainer.settings.chunk, RUNNING)
        wait_until_answered(trainer.group)
        held.append(trainer.group.stored_bytes())
    (place,) = trainer.group.places
    made = place.steps + len(place.owed)
    asked, batches = ray.get(trainer.group._inference.counts.remote())
    # An actor asks for its roots and at most four times more, of one or two groups, in every step.
    assert made <= batches <= asked <= 10 * made
    everywhere, at_learner = learner.needed_bytes(trainer)
    assert 1.3 * everywhere / 2 < max(held) <= 1.01 * (everywhere / 2 + at_learner)
    status = Path(f"/proc/{process_of(place)}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024 / 1e6
    assert place.megabytes == pytest.approx(peak, rel=0.1)


def test_questions_of_the_same_moment_are_one_batch():
    trainer = HostTrainer(settings(), [maze(3)])
    leaves = jax.tree.leaves(trainer.params(trainer.begin()))
    asked = [
        (maze(3).features[first:last], np.zeros((last - first, 0), np.uint8))
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
        expected = [x[0] for x in trainer.network.run("rows", leaves, *(x[None] for x in one))]
        np.testing.assert_allclose(prior, expected[0], rtol=1e-5)
        np.testing.assert_allclose(value, expected[1], rtol=1e-5)
    trainer.close()


@pytest.mark.slow
def test_actors_that_find_no_core_are_named(make, monkeypatch):
    class Told(Exception):
        pass

    def tell(text):
        raise Told(text)

    monkeypatch.setattr(actor_group, "_SILENCE", 0.5)
    all_cores = ray.remote(num_cpus=CORES)(Idle).remote()
    try:
        ray.get(all_cores.ready.remote())
        trainer = make(warn=tell, actors=2, synchronous=True)
        with pytest.raises(Told) as told:
            advance(trainer, trainer.begin(), 1)
    finally:
        ray.kill(all_cores)
    assert str(told.value) == (
        "2 of 2 actors find no free core, of the 4 that the cluster has; with "
        "--cluster.synchronous the run waits for them"
    )


@pytest.mark.slow
def test_the_process_that_answers_can_be_lost(make):
    said = []
    trainer = make(warn=said.append, actors=2, inference="learner")
    state = advance(trainer, trainer.begin(), 3)
    ray.kill(trainer.group._inference)
    state, steps = advance_until(lambda: said, trainer, state, 3)
    state = advance(trainer, state, 3, len(steps) + 2)
    assert said[0] == "the inference process is gone; all actors are restarted"
    made = int(state.env_steps[0])
    assert abs(made - 2 * LANES * (len(steps) + 5)) <= LANES
    assert int(state.replay.added[0]) == made


class Nobody:
    def status(self, heard):
        return heard


def test_a_learner_whose_machine_has_left_is_said_to_be_lost(joined):
    gone = run._on("0" * 56)
    found = ray.remote(Nobody).options(num_cpus=0, scheduling_strategy=gone).remote()
    with pytest.raises(RunError, match="--cluster: this machine has left the cluster before"):
        run._ask(found, 0)
