"""R2D2 with and without SAVE as a program: lock-steps, sequences, updates, checkpoints."""

from contextlib import closing

import jax
import numpy as np
import pytest

from save_rl.envs import make
from save_rl.envs.pool import Source
from save_rl.learning.r2d2_settings import (
    NetworkSettings,
    R2D2Settings,
    ReplaySettings,
    SequenceSettings,
)
from save_rl.training import checkpoint
from save_rl.training.r2d2 import Program
from save_rl.training.recurrent_network import to_batch
from save_rl.training.settings import TrainSettings
from tests.training.pictures import Pictures

# One worker runs them all, so that the run is made once.
pytestmark = pytest.mark.xdist_group("r2d2-program")

LANES, CHUNK = 4, 4
UNLEARNED = ReplaySettings(60, minimum=60, batch=4, capacity_bytes=2**26)


def settings(agent="r2d2-save", chunk=CHUNK, **changes):
    values = {
        "network": NetworkSettings(profile="small"),
        "sequences": SequenceSettings(burn_in=4, train=6, period=3, gamma=0.9),
        "replay": ReplaySettings(60, minimum=6, batch=4, threads=1, capacity_bytes=2**26),
        "refresh": 3,
        "target_period": 7,
        **changes,
    }
    chosen = TrainSettings(
        "pictures", agent, lanes=LANES, budget=3, chunk=chunk, episodes=10_000,
        r2d2=R2D2Settings(**values),
    )  # fmt: skip
    chosen.check()
    return chosen


def program(agent="r2d2-save", **changes):
    return Program(settings(agent, **changes), [Pictures()])


def advance(made, state, chunks, first=0):
    for chunk in range(first, first + chunks):
        state = made.advance(state, chunk * CHUNK)
    return state


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """The folder with a checkpoint of `trained` after six of its ten chunks."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def trained(checkpoints):
    made = program()
    state = advance(made, made.begin(), 6)
    checkpoint.save(checkpoints, 6, made.snapshot(state), {})
    return made, advance(made, state, 4, first=6)


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


def test_an_update_is_a_step_of_adam_along_the_clipped_gradient(trained):
    """The first one: what Adam keeps of the gradient is a tenth of it, and both of its means come
    out as the gradient itself, so that the step is -rate * g / (|g| + 0.001)."""
    made, (seed,) = trained
    replay = made._new_replay()
    replay.restore(made._replay.state())
    batch = to_batch(replay.unpack(replay.draw(np.random.default_rng(0))), 0.9)
    start, target = made.networks.initial(jax.random.PRNGKey(5)), seed.learner.target

    def gradient(size):
        """What the optimiser was given, where the weights of sequences are scaled by `size`."""
        scaled = batch._replace(weight=batch.weight * np.float32(size))
        leaves = jax.tree.leaves((start.params, start.optimiser))
        after, _ = made.networks.update(leaves, jax.tree.leaves(target), scaled)
        params, optimiser = jax.tree.unflatten(made.networks.structure, after)
        (kept,) = (x.mu for x in jax.tree.leaves(optimiser, is_leaf=has_mu) if has_mu(x))
        found = [10 * np.asarray(x, np.float64) for x in jax.tree.leaves(kept)]
        pairs = zip(*map(jax.tree.leaves, (start.params, params)), found, strict=True)
        for old, new, g in pairs:
            np.testing.assert_allclose(new - old, -1e-4 * g / (abs(g) + 1e-3), atol=2e-7)
        return found

    def norm(of):
        return np.sqrt(sum(np.sum(x**2) for x in of))

    def has_mu(x):
        return hasattr(x, "mu")

    small = gradient(1e-3)
    assert 0 < norm(small) < 1
    for size in (0.5, 10):  # times the largest norm that is left as it is
        times = size * 40 / norm(small)
        for g, whole in zip(gradient(1e-3 * times), small, strict=True):
            np.testing.assert_allclose(g, min(1, 1 / size) * times * whole, rtol=1e-3, atol=1e-4)


def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_happened(trained, checkpoints):
    _, expected = trained
    second = program()
    found = checkpoint.load_newest(checkpoints, second.template(), pytest.fail)
    assert found is not None
    restored = second.restore(found.state)
    assert not restored[0].replay  # it is in the program; a second copy could be gigabytes
    state = advance(second, restored, 4, first=6)
    ours, theirs = trained[0].snapshot(expected), second.snapshot(state)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_search_that_is_thrown_away_changes_nothing():
    """The literal control acts, remembers and replays as the one that does not search."""
    runs = []
    for discards in (False, True):
        made = program("r2d2-controlled", discards=discards, replay=UNLEARNED)
        (seed,) = made.snapshot(advance(made, made.begin(), 8))
        assert (seed.simulator_steps > 0) == discards
        assert 10 < len(seed.replay["ends"]) < 60
        runs.append(seed._replace(simulator_steps=np.zeros(())))
    jax.tree.map(np.testing.assert_array_equal, *runs)


@pytest.mark.parametrize(
    "space", ["transformed", "raw", pytest.param("mixed", marks=pytest.mark.slow)]
)
def test_what_a_search_found_is_replayed_in_the_units_of_the_network(space, monkeypatch):
    """So where it did not look, there is what the network said; rewards are -6 to 6 points."""
    network = NetworkSettings(profile="small", search_space=space)
    made = program(network=network, replay=UNLEARNED)
    decide, add, tried, steps = made._decide, made._writer.add, [], []

    def decided(*arguments, **options):
        result, actions = decide(*arguments, **options)
        tried.append(result.explored.copy())
        return result, actions

    def added(step, *arguments):
        steps.append((step.q_mcts.copy(), step.q_theta.copy()))
        return add(step, *arguments)

    monkeypatch.setattr(made, "_decide", decided)
    state = made.begin()
    monkeypatch.setattr(made._writer, "add", added)
    advance(made, state, 2)
    found, own = (np.array(values) for values in zip(*steps, strict=True))
    explored = np.array(tried)
    assert 0 < explored.sum() < explored.size
    np.testing.assert_allclose(found[~explored], own[~explored], rtol=1e-4, atol=1e-5)
    assert np.abs(found - own)[explored].max() > 0.1
    assert np.abs(found).max() < 4  # h(20) = 3.6


def test_a_worker_that_dies_costs_its_episodes_and_not_the_run(tmp_path):
    """As where an emulator ends its process: its lanes begin anew and remember nothing."""
    env, said = "tests.training.pictures:DiesOnce", []
    options = {"grave": str(tmp_path / "grave"), "after": 60}
    made = Program(
        settings(chunk=1), [make(env, **options)], [Source(env, 0, options)], workers=2,
        warn=said.append,
    )  # fmt: skip
    state, anew = made.begin(), np.zeros(LANES, bool)
    with closing(made):
        for step in range(40):
            state = made.advance(state, step)
            if state[0].restarts and not anew.any():
                anew = state[0].episode_step == 0
                before = np.asarray(made._recall.before)[:LANES]
                np.testing.assert_array_equal(before.any((1, 2)), ~anew)
                assert anew.sum() >= 2
    (seed,) = state
    assert seed.restarts == 1
    assert len(said) == 1
    assert "killed by SIGSEGV" in said[0]
    assert seed.updates > 10
    assert seed.env_steps < 40 * LANES
    # No sequence goes over the place where an episode was lost.
    for i in range(30):
        s = made._replay.unpack(made._replay.draw(np.random.default_rng(i))).sequences
        both = s.valid[1:] & s.valid[:-1]
        np.testing.assert_array_equal(s.previous_action[1:][both], s.action[:-1][both])
        np.testing.assert_array_equal(s.previous_reward[1:][both], s.reward[:-1][both])


def test_episodes_are_played_without_exploring(trained):
    made = Program(trained[0].settings, [Pictures()], test_lanes=3, train=False)
    params = trained[0].params(trained[1])
    played = [made.play(params, 5, budget, 7) for budget in (0, 0, 3)]
    for returns, steps in played:
        assert returns.shape == steps.shape == (1, 5)
        assert steps.min() >= 1
    np.testing.assert_array_equal(played[0][0], played[1][0])
