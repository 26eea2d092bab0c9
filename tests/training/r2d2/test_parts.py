"""R2D2 in parts, as on a cluster: collectors with some of the lanes, a learner without any."""

import pickle
from dataclasses import replace

import jax
import numpy as np
import pytest

from save_rl.envs.layout import Layout
from save_rl.learning.exploration import epsilon_ladder
from save_rl.learning.sequence_replay import Packed
from save_rl.training.host.actor import Actor
from save_rl.training.r2d2.collector import SequenceCollector
from save_rl.training.r2d2.learner import SequenceLearner
from save_rl.training.r2d2.setup import Setup
from save_rl.training.r2d2.trainer import R2D2Trainer
from tests.training.pictures import Pictures
from tests.training.r2d2.test_trainer import CHUNK, LANES, RUNNING, settings

# One worker runs them all, so that the networks are made once.
pytestmark = pytest.mark.xdist_group("r2d2-trainer")


@pytest.fixture(scope="module")
def setup():
    return Setup(settings(), Layout.of(Pictures()))


def collector(setup, first=0, lanes=LANES, own=()):
    """Lanes of an actor process, with the ε that they have in the run."""
    actor = Actor(
        setup.settings, [Pictures()], plays=setup.agent, lanes=lanes, space=setup.space, own=own
    )
    return SequenceCollector(setup, actor, epsilon_ladder(LANES)[first : first + lanes])


def sent(experience):
    """What arrives in another process."""
    return pickle.loads(pickle.dumps(experience))


def run(setup, collectors, steps):
    """Make lock-steps, with new parameters as often as the settings say.

    Return the learner, its state and the episodes of every collector.
    """
    learner, episodes = SequenceLearner(setup), [one.begin() for one in collectors]
    state = learner.begin()
    for step in range(steps):
        updates = learner.updates(state)
        if step % setup.r2d2.refresh == 0:
            for one in collectors:
                one.use([np.asarray(x) for x in jax.tree.leaves(state.learner.params)])
        for i, one in enumerate(collectors):
            experience = one.step(episodes[i], step)
            state = learner.record(state, sent(experience))
            episodes[i] = one.start_episodes(episodes[i], experience)
        state = learner.take_in(state, updates)
    learner.close()
    return learner, state, episodes


@pytest.mark.slow  # tests/training/test_cluster.py has a fast one
def test_one_collector_and_a_learner_elsewhere_are_the_same_run(setup):
    made = R2D2Trainer(settings(), [Pictures()])
    expected = made.begin()
    for chunk in range(5):
        expected = made.advance(expected, chunk * CHUNK, RUNNING)
    learner, state, (episodes,) = run(setup, [collector(setup)], 5 * CHUNK)
    assert state.updates > 3
    own = {"acting": expected.acting, **episodes._asdict()}  # the learner does not have these
    jax.tree.map(np.testing.assert_array_equal, state._replace(**own), expected)
    ours, theirs = learner.replay.state(), made.learner.replay.state()
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_collectors_share_the_lanes(setup):
    parts = [
        collector(setup),
        collector(setup, 0, 3, own=(1, 0)),
        collector(setup, 3, 1, own=(2, 0)),
    ]
    firsts = [one.begin().episode_seed for one in parts]
    assert [x.shape for x in firsts] == [(1, 4), (1, 3), (1, 1)]
    assert len(np.unique(np.concatenate(firsts, 1))) == 8  # all have their own random numbers
    np.testing.assert_array_equal(
        np.concatenate([one._epsilon for one in parts[1:]], 1), parts[0]._epsilon
    )
    learner, state, episodes = run(setup, parts[1:], 20)
    assert state.env_steps == state.health.steps == 20 * LANES
    assert state.updates > 3
    assert state.episode_step.shape == (1, LANES)
    assert not state.episode_step.any()  # they are counted where they are played
    assert [x.episode_step.shape for x in episodes] == [(1, 3), (1, 1)]
    assert learner.replay.inserted > 6


def test_learning_goes_on_when_sequences_grow_and_fewer_fit(setup):
    """The minimum is for the start: later, the limit in bytes may leave fewer."""
    room = 2 * setup.r2d2.replay.minimum * 10_000
    few = replace(setup.r2d2.replay, capacity_bytes=room)
    learner = SequenceLearner(Setup(settings(replay=few), setup.layout))
    drawn = []

    def update(before, batch, number):
        drawn.append(len(batch.data))
        return before, {"priorities": np.ones(few.batch)}

    learner._update, state = update, learner.blank()
    for size in [100] * few.minimum + [room // 2] * 10:
        learner.replay.add(Packed(bytes(size), 1.0))
        state = learner.take_in(state, learner.updates(state))
    assert len(learner.replay) == 2 < few.minimum
    assert drawn == [few.batch] * int(10 * few.samples_per_insert / few.batch)
    learner.close()
