"""Several seeds in one trainer: what they share, and what of one seed leaves the others alone."""

import os
import signal
from contextlib import ExitStack, closing
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from save_rl.envs.pool import Pool, Source
from save_rl.envs.worker import ADVANCE
from save_rl.training.devices import compiler_options
from save_rl.training.host import trainer
from save_rl.training.host.collector import Collector
from save_rl.training.host.evaluator import NetworkEvaluator
from save_rl.training.host.trainer import HostTrainer
from tests.envs.pool_simulators import have_ended
from tests.search.table_simulators import TableSimulator, maze
from tests.training.levels import Stairs
from tests.training.test_device import assert_same, is_same
from tests.training.test_host import LANES, assert_identical, copy, history, of_seed, settings

# What a fixture made is used in the worker that made it.
pytestmark = pytest.mark.xdist_group("host-seeds")

SEEDS = (3, 5, 8)
EVERYBODY = np.ones(3, bool)
MASKED = {"masked": True, "limit": 6}


def make(agent="save", seeds=SEEDS, env=None, simulators=None, workers=0, how=None, **changes):
    options = MASKED if env is None else env
    simulators = simulators or [maze(seed, **options) for seed in seeds]
    sources = [Source("tests.search.table_simulators:maze", seed, options) for seed in seeds]
    chosen = settings(agent, seeds, target_period=4, **changes)
    return HostTrainer(chosen, simulators, sources, workers=workers, **(how or {}))


@pytest.fixture(scope="module")
def undisturbed():
    """States of three seeds before each of 8 lock-steps and after the last, by agent."""

    class Found(dict):
        def __missing__(self, agent):
            with closing(make(agent)) as made:
                self[agent] = history(made, 8)[0]
            return self[agent]

    return Found()


# Seeds that rest


@pytest.mark.parametrize("agent", ["save", pytest.param("puct", marks=pytest.mark.slow)])
def test_a_seed_that_rests_stays_as_it_is_and_the_others_go_on_without_it(undisturbed, agent):
    with closing(make(agent)) as made:
        states, state = history(made, 3)
        assert_identical(states, undisturbed[agent][:4])
        running = np.array([True, False, True])
        later, state = history(made, 5, state, 3, running)
        for t, now in enumerate(later):
            assert_identical(of_seed(now, 1), of_seed(states[-1], 1))
            for i in (0, 2):
                assert_identical(of_seed(now, i), of_seed(undisturbed[agent][3 + t], i))
        asleep, _ = history(made, 2, state, 8, ~EVERYBODY)
        assert_identical(asleep, [later[-1]] * 3)


@pytest.mark.parametrize("agent", ["save", pytest.param("puct", marks=pytest.mark.slow)])
def test_a_seed_that_has_rested_goes_on_with_its_episodes(agent):
    """Its lanes stand where they stood, and what they do next belongs to the same episodes."""
    with closing(make(agent, env={"ends": 0.0, "limit": 5}, replay=400)) as made:
        _, state = history(made, 3)
        _, state = history(made, 4, state, 3, np.array([False, True, False]))
        states, _ = history(made, 2, state, 7)
    first = of_seed(states[-1], 0)
    assert first.steps == first.episode_step.sum() / LANES + 5 == 5  # one episode each
    data = jax.tree.map(lambda x: x[: 5 * LANES].reshape(5, LANES, *x.shape[1:]), first.replay.data)
    np.testing.assert_array_equal(data.observation[1:], data.next_observation[:-1])
    if agent == "puct":
        returns = np.zeros((5, LANES))
        for t in reversed(range(5)):
            returns[t] = data.reward[t] + 0.9 * (returns[t + 1] if t < 4 else 0)
        held = first.replay.returns[: 5 * LANES].reshape(5, LANES)
        np.testing.assert_allclose(held, returns, rtol=1e-5)
        assert not first.replay.unfinished.any()


# Checkpoints


def test_a_restored_state_goes_on_bit_for_bit():
    """In the middle of long episodes, with other workers; one seed rests then and later."""
    running, long = np.array([True, True, False]), {"ends": 0.0, "limit": 40}
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(closing(make(env=long, workers=workers, chunk=3)))
            for workers in (0, 2)
        )
        _, state = history(one, 2)
        _, state = history(one, 4, state, 2, running)
        saved = copy(one, state)
        assert saved.episode_step.max() == 18  # more than there was room for at first
        assert len(saved.history) == saved.episode_step.sum()
        restored = other.restore(saved)
        assert_identical(copy(other, restored), saved)
        for chunk, now in ((6, running), (7, EVERYBODY)):
            here, state = history(one, 1, state, chunk, now)
            there, restored = history(other, 1, restored, chunk, now)
            assert_identical(here, there)


def leaves_of(tree):
    return [
        (jax.tree_util.keystr(path), tuple(x.shape), np.dtype(x.dtype))
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    ]


@pytest.mark.parametrize(
    ("agent", "curriculum"),
    [
        ("save", "adaptive"),
        pytest.param("puct", "linear", marks=pytest.mark.slow),
        pytest.param("q-learning", "none", marks=pytest.mark.slow),
    ],
)
def test_a_state_is_always_like_its_template(agent, curriculum):
    chosen = settings(agent, (0, 1), curriculum=curriculum, curriculum_steps=9)
    with closing(HostTrainer(chosen, [Stairs(hardest=2), Stairs(hardest=2)])) as made:
        template = made.template()
        assert template.history.shape == (-1,)
        assert template.history.dtype == np.int32
        expected = leaves_of(template._replace(history=()))
        state = made.begin()

        def check():
            saved = made.snapshot(state)
            assert leaves_of(saved._replace(history=())) == expected
            assert saved.history.dtype == np.int32
            assert saved.history.shape == (saved.episode_step.sum(),)

        check()
        for t in range(4):
            state = made.advance(state, t, np.array([True, t < 2]))
            check()
        assert state.episodes.min() > 0
        state = made.forget_stats(state)
        check()
        state = made.restore(copy(made, state))
        check()
        state = made.advance(state, 4, np.ones(2, bool))
        check()


# One seed's trouble


def huge(seed):
    """Pays more than single precision can square."""
    sound = maze(seed, **MASKED)
    mdp = sound.mdp._replace(reward=np.where(sound.mdp.reward > 0, 1e30, -1e30))
    return TableSimulator(mdp, sound.features, limit=sound.limit)


@pytest.mark.parametrize(
    "agent", ["save", *(pytest.param(x, marks=pytest.mark.slow) for x in ("q-learning", "puct"))]
)
def test_a_loss_that_is_not_finite_changes_nothing(undisturbed, agent):
    """Not the parameters of its own seed, and nothing of the others."""
    simulators = [huge(5) if seed == 5 else maze(seed, **MASKED) for seed in SEEDS]
    if agent in undisturbed:
        sound = undisturbed[agent]
    else:
        with closing(make(agent)) as made:
            sound = history(made, 8)[0]
    with closing(make(agent, simulators=simulators)) as made:
        states, _ = history(made, 8)
    for now, expected in zip(states, sound, strict=True):
        for i in (0, 2):
            assert_identical(of_seed(now, i), of_seed(expected, i))
    first, last = of_seed(states[0], 1), of_seed(states[-1], 1)
    assert_identical(first.learner, last.learner)
    assert last.updates == 14
    assert not np.isfinite(last.stats.loss_q)
    assert np.abs(last.replay.data.reward).max() == np.float32(1e30)
    # The seed acts on, and its sound neighbours have learned.
    assert last.env_steps == 8 * LANES
    assert not is_same(of_seed(states[0], 0).learner, of_seed(states[-1], 0).learner)


def test_simulators_that_fail_in_searches_cost_nothing_of_other_seeds(undisturbed):
    """In the first seed some actions raise, which searches meet far more often than episodes."""
    failing = [maze(3, fails=((1, 2), (4, 0)), **MASKED), *(maze(n, **MASKED) for n in SEEDS[1:])]
    with closing(make(simulators=failing)) as made:
        states, _ = history(made, 8)
    for now, expected in zip(states, undisturbed["save"], strict=True):
        for i in (1, 2):
            assert_identical(of_seed(now, i), of_seed(expected, i))
    last = of_seed(states[-1], 0)
    assert last.restarts > 0
    assert last.env_steps == 8 * LANES - last.restarts == last.replay.added
    at = last.replay.data.action[: last.env_steps]
    seen = last.replay.data.observation[: last.env_steps]
    for state, action in ((1, 2), (4, 0)):
        assert not np.any((at == action) & (seen == failing[0].features[state]).all(-1))


class Held(NamedTuple):
    """The evaluation of a group that is not ready before the other one has begun its real step."""

    answer: Any
    events: list[tuple[Any, int]]

    def ready(self):
        return self.events.count((ADVANCE, 0)) > self.events.count((ADVANCE, 1))

    def write(self, arrays):
        self.events.append(("evaluated", 1))
        self.answer.write(arrays)


@pytest.fixture
def events(monkeypatch):
    """What is sent for which group, where the second group's evaluations take long."""
    found, send, ask = [], Pool.send, NetworkEvaluator.ask

    def sent(self, request):
        found.append((request.command, request.group))
        send(self, request)

    def asked(self, question):
        answer = ask(self, question)
        return Held(answer, found) if question.group == 1 else answer

    monkeypatch.setattr(Pool, "send", sent)
    monkeypatch.setattr(NetworkEvaluator, "ask", asked)
    return found


@pytest.mark.parametrize(
    ("agent", "workers"),
    [
        ("save", 0),
        ("save", 2),
        *(pytest.param(x, 0, marks=pytest.mark.slow) for x in ("q-learning", "puct", "save-puct")),
    ],
)
def test_a_group_takes_its_real_step_while_others_are_searched(
    undisturbed, monkeypatch, events, agent, workers
):
    """The run is the same: each lane has its own random numbers, and keeps what it was shown."""
    expected, began, step = undisturbed[agent], [], Collector.step
    events.clear()

    def spied(self, *given):
        began.append(len(events))
        return step(self, *given)

    monkeypatch.setattr(Collector, "step", spied)
    with closing(make(agent, workers=workers, how={"groups": 2})) as made:
        states, _ = history(made, 8)
    assert_identical(states, expected)
    for first, end in pairwise([*began, len(events)]):
        before_it = events[first : events.index((ADVANCE, 0), first, end)]
        assert {group for _, group in before_it} <= {0}
        assert ("evaluated", 1) in events[first:end]
        assert (ADVANCE, 1) in events[first:end]


@pytest.mark.parametrize(
    "moment",
    ["before its step", *(pytest.param(x, marks=pytest.mark.slow) for x in ("search", "its step"))],
)
def test_a_worker_that_ends_costs_its_lanes_alone(monkeypatch, events, moment):
    """The middle one of three; it has lanes of two seeds, in both groups, and ends when the second
    is searched: in the search of the first, before its real step, or in it."""
    steps, spied, asked, advance = [], Collector.step, NetworkEvaluator.ask, Pool.advance

    def step(self, *given):
        steps.append(spied(self, *given))
        return steps[-1]

    monkeypatch.setattr(Collector, "step", step)
    with closing(make(seeds=(3, 5))) as made:
        sound, _ = history(made, 3)
    expected = steps.pop()
    steps.clear()
    said = []
    with closing(make(seeds=(3, 5), workers=3, how={"warn": said.append, "groups": 2})) as made:
        states, state = history(made, 2)
        assert_identical(states, sound[:3])
        lanes = np.concatenate([np.arange(low, high) for low, high in made.pool._ranges[1]])
        mine = np.isin(made.actor.places.lanes, lanes)
        assert mine.any(1).all()
        assert not mine.all(1).any()

        def end_worker():
            worker = made.pool._workers[1].process.pid
            os.kill(worker, signal.SIGKILL)
            assert have_ended([worker])

        turns = []

        def ask(self, question):
            turns.append(question.group)
            if question.group == 0 and turns.count(0) == 2 and moment == "search":
                end_worker()
            return asked(self, question)

        def begin_step(self, group, *given):
            if group == 0 and moment == "before its step":
                end_worker()
            advance(self, group, *given)
            if group == 0 and moment == "its step":
                end_worker()

        with monkeypatch.context() as patch:
            patch.setattr(NetworkEvaluator, "ask", ask)
            patch.setattr(Pool, "advance", begin_step)
            (_, after), state = history(made, 1, state, 2)
        np.testing.assert_array_equal(steps[-1].moved, ~mine)
        for name in ("action", "reward", "discount", "target"):
            here, there = (np.asarray(getattr(x.transitions, name)) for x in (steps[-1], expected))
            np.testing.assert_array_equal(here[~mine], there[~mine], err_msg=name)
        assert len(said) == 1
        assert after.restarts.tolist() == [1, 1]
        np.testing.assert_array_equal(after.env_steps, 2 * LANES + (~mine).sum(1))
        np.testing.assert_array_equal(after.replay.added, after.env_steps)
        assert not after.episode_step[mine].any()
        assert np.all(after.episode_seed[mine] != states[-1].episode_seed[mine])
        np.testing.assert_array_equal(after.episode_seed[~mine], sound[3].episode_seed[~mine])
        np.testing.assert_array_equal(after.episode_step[~mine], sound[3].episode_step[~mine])
        (_, last), _ = history(made, 1, state, 3)
        assert steps[-1].moved.all()
        np.testing.assert_array_equal(last.env_steps - after.env_steps, [LANES] * 2)


# Programs for a GPU, on this CPU


@pytest.mark.parametrize("actions", [pytest.param(5, marks=pytest.mark.slow), 100])
def test_lists_and_batches_of_a_gpu_lead_to_the_same(monkeypatch, actions):
    """There whole groups are evaluated, and the best of many actions are chosen on the device."""
    monkeypatch.setattr(trainer, "_MANY", 1)
    states = []
    for options in ({}, compiler_options(SimpleNamespace(platform="gpu"))):
        env = {**MASKED, "actions": actions}
        with closing(make(seeds=(3, 5), env=env, how={"options": options})) as made:
            assert made.network.listed == (actions == 100 and bool(options))
            assert len(made.actor.places.groups) == (3 if options else 1)
            states.append(history(made, 5)[0][-1])
    here, there = states
    assert here.updates.tolist() == [8, 8]
    np.testing.assert_array_equal(here.replay.data.action, there.replay.data.action)
    assert_same(here, there, rtol=1e-3, atol=1e-4)
