"""R2D2 with and without SAVE as a program: lock-steps, sequences, updates, checkpoints."""

import jax
import numpy as np
import pytest

from save_rl.learning.r2d2_settings import (
    NetworkSettings,
    R2D2Settings,
    ReplaySettings,
    SequenceSettings,
)
from save_rl.training import checkpoint
from save_rl.training.r2d2 import Program
from save_rl.training.settings import TrainSettings
from tests.training.test_recurrent_network import Pictures

LANES, CHUNK = 4, 4


def program(agent="r2d2-save", minimum=6, **changes):
    values = {
        "network": NetworkSettings(profile="small"),
        "sequences": SequenceSettings(burn_in=4, train=6, period=3, gamma=0.9),
        "replay": ReplaySettings(60, minimum=minimum, batch=4, threads=1, capacity_bytes=2**26),
        "refresh": 3,
        "target_period": 7,
        **changes,
    }
    chosen = TrainSettings(
        "pictures", agent, lanes=LANES, budget=3, chunk=CHUNK, episodes=10_000,
        r2d2=R2D2Settings(**values),
    )  # fmt: skip
    chosen.check()
    return Program(chosen, [Pictures()])


def advance(made, state, chunks, first=0):
    for chunk in range(first, first + chunks):
        state = made.advance(state, chunk * CHUNK)
    return state


@pytest.fixture(scope="module")
def trained():
    made = program()
    return made, advance(made, made.begin(), 10)


def test_what_is_counted(trained):
    made, state = trained
    (seed,), done = state, made.counters(state)
    assert done.env_steps.tolist() == [10 * CHUNK * LANES]
    assert done.simulator_steps[0] <= 3 * done.env_steps[0]
    assert done.episodes[0] > 5
    assert seed.health.steps == done.env_steps[0]
    assert 1 < seed.health.explored / seed.health.steps <= 3
    assert 0 < seed.health.changed < seed.health.steps
    assert np.isfinite([done.stats.loss_q, done.stats.loss_a]).all()
    assert done.stats.loss_a[0] > 0


def test_there_is_one_discount(trained):
    made, _ = trained
    assert made.r2d2.sequences.gamma == made.settings.discount == 0.9


def test_as_much_is_drawn_as_asked_for(trained):
    made, state = trained
    counts, updates = made._replay.counters(), int(state[0].updates)
    assert updates > 10
    assert counts["sampled"] == 4 * updates
    due = 2.0 * (counts["inserted"] - 6)
    last = 2.0 * LANES  # at most, for what the last lock-step added; they are drawn in the next one
    assert due - last - 4 < counts["sampled"] <= due


def test_the_learner_and_its_target_move(trained):
    made, (seed,) = trained
    start = made.networks.initial(jax.random.PRNGKey(0))
    for part, before in ((seed.learner.params, start.params), (seed.learner.target, start.params)):
        pairs = zip(jax.tree.leaves(part), jax.tree.leaves(before), strict=True)
        assert any(not np.array_equal(a, b) for a, b in pairs)
    leaves = [jax.tree.leaves(x) for x in (seed.learner.params, seed.learner.target)]
    same = all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))
    assert same == (seed.updates % made.r2d2.target_period == 0)


def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_happened(trained, tmp_path):
    _, expected = trained
    first = program()
    state = advance(first, first.begin(), 6)
    checkpoint.save(tmp_path, 6, first.snapshot(state), {})
    second = program()
    found = checkpoint.load_newest(tmp_path, second.template(), pytest.fail)
    assert found is not None
    state = advance(second, second.restore(found.state), 4, first=6)
    ours, theirs = trained[0].snapshot(expected), second.snapshot(state)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_search_that_is_thrown_away_changes_nothing():
    """The literal control acts as the agent without any search does."""
    histories = []
    for agent, discards in (("r2d2", False), ("r2d2-controlled", True)):
        made = program(agent, minimum=50, discards=discards)
        state = advance(made, made.begin(), 5)
        histories.append(([list(lane) for lane in made._history[0]], state[0].episode_return))
        assert (state[0].simulator_steps > 0) == discards
        assert state[0].updates == 0
    assert histories[0][0] == histories[1][0]
    np.testing.assert_array_equal(histories[0][1], histories[1][1])


def test_episodes_are_played_without_exploring(trained):
    made = Program(trained[0].settings, [Pictures()], test_lanes=3, train=False)
    params = trained[0].params(trained[1])
    played = [made.play(params, 5, budget, 7) for budget in (0, 0, 3)]
    for returns, steps in played:
        assert returns.shape == steps.shape == (1, 5)
        assert steps.min() >= 1
    np.testing.assert_array_equal(played[0][0], played[1][0])
