"""R2D2 with and without SAVE as a trainer: lock-steps, sequences, updates, checkpoints."""

import time
from contextlib import closing
from dataclasses import replace

import jax
import numpy as np
import pytest

from save_rl.envs import make
from save_rl.envs.layout import Layout
from save_rl.envs.pool import Source
from save_rl.errors import InputError
from save_rl.learning.r2d2_settings import (
    NetworkSettings,
    R2D2Settings,
    ReplaySettings,
    SequenceSettings,
)
from save_rl.training.r2d2.collector import SequenceCollector
from save_rl.training.r2d2.learner import SequenceLearner
from save_rl.training.r2d2.network import to_batch
from save_rl.training.r2d2.setup import shows_frames
from save_rl.training.r2d2.trainer import R2D2Trainer
from save_rl.training.run import checkpoint
from save_rl.training.run.trainers import environments
from save_rl.training.settings import TrainSettings
from tests.training.pictures import Pictures

# One worker runs them all, so that the run is made once.
pytestmark = pytest.mark.xdist_group("r2d2-trainer")

LANES, CHUNK = 4, 4
RUNNING = np.ones(1, bool)
UNLEARNED = ReplaySettings(60, minimum=60, batch=4, capacity_bytes=2**26)


class Crowded(Pictures):
    """So many actions that nodes of its search have slots for some only."""

    num_actions = 100


def settings(agent="r2d2-save", chunk=CHUNK, **changes):
    values = {
        "network": NetworkSettings(profile="small"),
        "sequences": SequenceSettings(burn_in=4, train=6, period=3, gamma=0.9),
        "replay": ReplaySettings(60, minimum=6, batch=4, threads=1, capacity_bytes=2**26),
        "refresh": 5,
        "target_period": 7,
        **changes,
    }
    chosen = TrainSettings(
        "pictures", agent, lanes=LANES, budget=3, chunk=chunk, episodes=10_000,
        r2d2=R2D2Settings(**values),
    )  # fmt: skip
    chosen.check()
    return chosen


def trainer(agent="r2d2-save", **changes):
    return R2D2Trainer(settings(agent, **changes), [Pictures()])


def advance(made, state, chunks, first=0):
    for chunk in range(first, first + chunks):
        state = made.advance(state, chunk * CHUNK, RUNNING)
    return state


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """The folder with a checkpoint of `trained` after six of its ten chunks."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def trained(checkpoints):
    made = trainer()
    state = advance(made, made.begin(), 6)
    checkpoint.save(checkpoints, 6, made.snapshot(state), {})
    return made, advance(made, state, 4, first=6)


def test_what_is_counted(trained):
    made, state = trained
    done = made.counters(state)
    assert done.env_steps.tolist() == [10 * CHUNK * LANES]
    assert done.simulator_steps[0] <= 3 * done.env_steps[0]
    assert done.episodes[0] > 5
    health = done.health
    assert health.steps == done.env_steps
    assert 1 < health.explored[0] / health.steps[0] <= 3
    assert 0 < health.changed[0] < health.steps[0]
    assert np.isfinite([done.stats.loss_q, done.stats.loss_a]).all()
    assert done.stats.loss_a[0] > 0
    after = made.counters(made.forget_stats(state))
    assert after.stats.steps == after.stats.updates == after.health.steps == 0
    assert after.env_steps == done.env_steps


def test_all_arrays_have_the_types_of_a_checkpoint(trained):
    """After many steps and updates, and after a line of metrics."""
    made, state = trained
    expected = jax.tree_util.tree_leaves_with_path(made.template())
    for here in (state, made.forget_stats(state)):
        saved = jax.tree_util.tree_leaves_with_path(made.snapshot(here))
        for (name, wanted), (same_name, found) in zip(expected, saved, strict=True):
            assert name == same_name
            assert found.dtype == wanted.dtype, jax.tree_util.keystr(name)
            assert wanted.shape in (found.shape, (-1,)), jax.tree_util.keystr(name)


def test_a_seed_that_is_done_rests():
    made = trainer(replay=UNLEARNED)
    state = made.begin()
    before = jax.tree.map(np.array, made.snapshot(state))
    after = made.snapshot(made.advance(state, 0, ~RUNNING))
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_several_seeds_are_refused():
    chosen = replace(settings(), seeds=(0, 1))
    with pytest.raises(InputError, match=r"^--seed: \(0, 1\) .* one number for 'r2d2-save'; start"):
        R2D2Trainer(chosen, [Pictures(), Pictures()])


def test_forbidden_actions_are_refused():
    env = "tests.training.pictures:Masked"
    with pytest.raises(InputError) as refusal:
        environments(replace(settings(), env=env))
    assert str(refusal.value) == (
        f"--agent: 'r2d2-save' takes any action in any state, and '{env}' has an action_mask; "
        "leave it out, and let forbidden actions do nothing."
    )


@pytest.mark.parametrize(("kind", "fits"), [(np.uint8, True), (np.float32, False)])
def test_frames_are_bytes(monkeypatch, kind, fits):
    """Replay would round others to bytes, which the network that acts does not see."""
    push = Pictures._push
    monkeypatch.setattr(Pictures, "_push", lambda *given: push(*given).astype(kind))
    assert shows_frames(Layout.of(Pictures())) == fits


def test_there_is_one_discount(trained):
    made, _ = trained
    assert made.settings.r2d2.sequences.gamma == made.settings.discount == 0.9


def test_as_much_is_drawn_as_asked_for(trained):
    made, state = trained
    counts, updates = made.learner.replay.counters(), int(state.updates[0])
    assert updates > 10
    assert counts["sampled"] == 4 * updates
    due = 2.0 * (counts["inserted"] - 6)
    last = 2.0 * LANES  # at most, for what the last lock-step added; they are drawn in the next one
    assert due - last - 4 < counts["sampled"] <= due


def test_the_learner_and_its_target_move(trained):
    made, state = trained
    learner, start = state.learner, made.setup.networks.initial(jax.random.PRNGKey(0))
    for part, before in ((learner.params, start.params), (learner.target, start.params)):
        pairs = zip(jax.tree.leaves(part), jax.tree.leaves(before), strict=True)
        assert any(not np.array_equal(a, b) for a, b in pairs)
    leaves = [jax.tree.leaves(x) for x in (learner.params, learner.target)]
    same = all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))
    assert same == (state.updates[0] % made.settings.r2d2.target_period == 0)


def test_an_update_is_a_step_of_adam_along_the_clipped_gradient(trained):
    """The first one: what Adam keeps of the gradient is a tenth of it, and both of its means come
    out as the gradient itself, so that the step is -rate * g / (|g| + 0.001)."""
    made, state = trained
    networks, other = made.setup.networks, SequenceLearner(made.setup)
    other.replay.restore(made.learner.replay.state())  # a copy, since drawing changes it
    drawn = other.replay.draw(np.random.default_rng(0))
    batch = to_batch(other.replay.unpack(drawn), 0.9)
    start, target = networks.initial(jax.random.PRNGKey(5)), state.learner.target

    def gradient(size):
        """What the optimiser was given, where the weights of sequences are scaled by `size`."""
        scaled = batch._replace(weight=batch.weight * np.float32(size))
        leaves = jax.tree.leaves((start.params, start.optimiser))
        after, _ = networks.update(leaves, jax.tree.leaves(target), scaled)
        params, optimiser = jax.tree.unflatten(networks.structure, after)
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
    second = trainer()
    found = checkpoint.load_newest(checkpoints, second.template(), pytest.fail)
    assert found is not None
    state = advance(second, second.restore(found.state), 4, first=6)
    ours, theirs = trained[0].snapshot(expected), second.snapshot(state)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_run_goes_on_with_an_empty_replay(checkpoints):
    second = trainer()
    found = checkpoint.load_newest(checkpoints, second.template(), pytest.fail)
    assert found is not None
    empty = second.snapshot(second.begin()).replay
    state = second.restore(found.state._replace(replay=empty))
    before = state.updates.copy()
    jax.tree.map(np.testing.assert_array_equal, state.learner, found.state.state.learner)
    assert second.learner.replay.inserted == 0
    state = advance(second, state, 4, first=6)
    assert second.learner.replay.inserted > 6
    assert state.updates > before
    assert np.isfinite(state.stats.loss_q).all()


def test_neither_timing_nor_workers_change_anything(checkpoints, trained, monkeypatch):
    """Whether updates or lanes take longer."""
    rng = np.random.default_rng(0)

    def with_pauses(whole):
        def late(*arguments):
            time.sleep(rng.choice([0, 0.05]))
            return whole(*arguments)

        return late

    for part, name in ((SequenceLearner, "_update"), (SequenceCollector, "step")):
        monkeypatch.setattr(part, name, with_pauses(getattr(part, name)))
    source = Source("tests.training.pictures:Pictures", 0, {})
    made = R2D2Trainer(settings(), [Pictures()], [source], workers=2)
    with closing(made):
        state = made.snapshot(advance(made, made.begin(), 6))
    assert state.state.updates > 5
    found = checkpoint.load_newest(checkpoints, made.template(), pytest.fail)
    jax.tree.map(np.testing.assert_array_equal, state, found.state)


@pytest.mark.parametrize("simulator", [Pictures, pytest.param(Crowded, marks=pytest.mark.slow)])
def test_a_search_that_is_thrown_away_changes_nothing(simulator):
    """The literal control acts, remembers and replays as the one that does not search."""
    runs = []
    for discards in (False, True):
        chosen = settings("r2d2-controlled", discard_search=discards, replay=UNLEARNED)
        made = R2D2Trainer(chosen, [simulator()])
        state, lanes, replay = made.snapshot(advance(made, made.begin(), 8))
        assert (state.simulator_steps[0] > 0) == discards
        assert 10 < len(replay["ends"]) < 60
        runs.append((state._replace(simulator_steps=np.zeros(1)), lanes, replay))
    jax.tree.map(np.testing.assert_array_equal, *runs)


@pytest.mark.parametrize(
    ("space", "simulator"),
    [
        ("transformed", Pictures),
        ("raw", Pictures),
        pytest.param("mixed", Pictures, marks=pytest.mark.slow),
        ("raw", Crowded),
    ],
)
def test_what_a_search_found_is_replayed_in_the_units_of_the_network(space, simulator, monkeypatch):
    """So where it did not look, there is what the network said; rewards are -6 to 6 points."""
    network = NetworkSettings(profile="small", search_space=space)
    made = R2D2Trainer(settings(network=network, replay=UNLEARNED), [simulator()])
    assert made.pool.arrays["prior"].shape[1] < 20
    state = made.begin()
    act, add, tried, steps = made.actor.act, made.collector.writer.add, [], []

    def acted(*arguments, **options):
        found = act(*arguments, **options)
        tried.append(found.roots.of_all_actions(made.collector.evaluator.root_q)[1])
        return found

    def added(step, *arguments):
        steps.append((step.q_mcts.copy(), step.q_theta.copy()))
        return add(step, *arguments)

    monkeypatch.setattr(made.actor, "act", acted)
    monkeypatch.setattr(made.collector.writer, "add", added)
    advance(made, state, 2)
    found, own = (np.array(values) for values in zip(*steps, strict=True))
    explored = np.array(tried)
    assert explored.shape == found.shape == own.shape == (2 * CHUNK, LANES, simulator.num_actions)
    assert 0 < explored.sum() < explored.size
    np.testing.assert_allclose(found[~explored], own[~explored], rtol=1e-4, atol=1e-5)
    assert np.abs(found - own)[explored].max() > 0.1
    assert np.abs(found).max() < 4  # h(20) = 3.6


@pytest.mark.slow
def test_a_worker_that_dies_costs_its_episodes_and_not_the_run(tmp_path):
    """As where an emulator ends its process: its lanes begin anew and remember nothing."""
    env, said = "tests.training.pictures:DiesOnce", []
    options = {"grave": str(tmp_path / "grave"), "after": 60}
    made = R2D2Trainer(
        settings(chunk=1), [make(env, **options)], [Source(env, 0, options)], workers=2,
        warn=said.append,
    )  # fmt: skip
    state, anew = made.begin(), np.zeros(LANES, bool)
    with closing(made):
        for step in range(40):
            state = made.advance(state, step, RUNNING)
            if state.restarts[0] and not anew.any():
                anew = state.episode_step[0] == 0
                before = np.asarray(made.collector.evaluator.before)[:LANES]
                np.testing.assert_array_equal(before.any((1, 2)), ~anew)
                assert anew.sum() >= 2
    assert state.restarts == 1
    assert len(said) == 1
    assert "killed by SIGSEGV" in said[0]
    assert state.updates > 10
    assert state.env_steps < 40 * LANES
    # No sequence goes over the place where an episode was lost.
    for i in range(30):
        s = made.learner.replay.unpack(made.learner.replay.draw(np.random.default_rng(i))).sequences
        both = s.valid[1:] & s.valid[:-1]
        np.testing.assert_array_equal(s.previous_action[1:][both], s.action[:-1][both])
        np.testing.assert_array_equal(s.previous_reward[1:][both], s.reward[:-1][both])


def test_episodes_are_played_without_exploring(trained):
    made = R2D2Trainer(trained[0].settings, [Pictures()], test_lanes=3, train=False)
    params = trained[0].params(trained[1])
    played = [made.play(params, 5, budget, 7) for budget in (0, 0, 3)]
    for returns, steps in played:
        assert returns.shape == steps.shape == (1, 5)
        assert steps.min() >= 1
    np.testing.assert_array_equal(played[0][0], played[1][0])
