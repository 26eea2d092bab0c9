"""Curricula in training: which levels are played, counted, kept and tested."""

import csv
import json
from contextlib import closing
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import save_rl
from save_rl.envs.worker import ANY_LEVEL
from save_rl.errors import InputError
from save_rl.evaluation import evaluate_levels, level_table, trained_player
from save_rl.learning import host_replay
from save_rl.players import play
from save_rl.training.devices import compiler_options
from save_rl.training.host import trainer as host_trainer
from save_rl.training.host.levels import curriculum_of
from save_rl.training.host.trainer import HostTrainer
from save_rl.training.host.updates import UpdatePrograms, Updates
from save_rl.training.settings import TrainSettings
from save_rl.watch import watch
from tests.training.levels import Stairs

LANES = 8
STAIRS = "tests.training.levels:Stairs"
GPU = compiler_options(SimpleNamespace(platform="gpu"))

# What a fixture made is used in the worker that made it.
ADAPTIVE = pytest.mark.xdist_group("adaptive")
REPLAYED = pytest.mark.xdist_group("curricula-replayed")


def settings(agent="q-learning", **options):
    options = {
        "env": STAIRS, "lanes": LANES, "batch": 16, "replay": 400, "min_replay": 16, "chunk": 1,
        "budget": 3, "epsilon_start": 0.3, "epsilon_end": 0.3, **options,
    }  # fmt: skip
    return TrainSettings(agent=agent, **options)


ALL = np.ones(1, bool)  # seeds that run


def walk(trainer, steps):
    """The level before each lock-step and those that lanes play then; the state after the last."""
    state, seen = trainer.begin(), []
    for t in range(steps):
        seen.append((int(trainer.counters(state).level[0]), trainer.pool.arrays.level.copy()))
        state = trainer.advance(state, t, ALL)
    return seen, state


def test_a_linear_curriculum_rises_with_the_steps():
    trainer = HostTrainer(settings(curriculum="linear", curriculum_steps=80), [Stairs(hardest=4)])
    seen, _ = walk(trainer, 14)
    # A lock-step is 8 steps: level 4 t / 10 after t of them.
    assert [level for level, _ in seen] == [min(4, 4 * t // 10) for t in range(14)]
    highest = [played.max() for _, played in seen]
    assert highest[0] == 0
    assert highest[-1] > 1
    for level, played in seen:
        assert played.max() <= level


def test_without_a_curriculum_the_simulator_draws():
    trainer = HostTrainer(settings(curriculum="none"), [Stairs(hardest=2)])
    seen, state = walk(trainer, 3)
    assert {level for level, _ in seen} == {ANY_LEVEL}
    assert max(played.max() for _, played in seen) == 2
    assert trainer.counters(state).stats.level_episodes.tolist() == [0]


def test_what_has_no_levels_to_sample_from_has_no_curriculum():
    with pytest.raises(InputError, match="--curriculum: 'linear' is not possible"):
        HostTrainer(settings(curriculum="linear"), [Stairs(sample=False)])


@pytest.mark.parametrize(
    ("curriculum", "method", "allowed"),
    [
        ("linear", "kind", "'none' in a simulator without kind(state)"),
        ("adaptive", "kind", "'none' in a simulator without kind(state)"),
        ("adaptive", "solved", "'none' or 'linear' in a simulator without solved(state)"),
    ],
)
def test_a_curriculum_needs_to_know_the_level_of_an_episode(curriculum, method, allowed):
    methods = {name: one for name, one in vars(Stairs).items() if name != method}
    simulator = type("Without", (), methods)()
    with pytest.raises(InputError) as refused:
        curriculum_of(settings(curriculum=curriculum), simulator)
    said = f"--curriculum: '{curriculum}' is not possible; it must be {allowed}."
    assert str(refused.value) == said


def test_an_adaptive_curriculum_rises_once_both_kinds_are_solved():
    chosen = settings("save", curriculum="adaptive", learning_rate=3e-3, epsilon_start=0.05)
    trainer = HostTrainer(chosen, [Stairs(hardest=1)])
    state = trainer.begin()
    levels, t = [], 0
    while not levels or (levels[-1] == 0 and t < 400):
        state = trainer.advance(state, t, ALL)
        levels.append(int(trainer.counters(state).level[0]))
        t += 1
    assert levels[-1] == 1
    assert state.episodes[0] >= 100  # two kinds, fifty episodes each
    assert state.bins.episodes.sum() == 0  # a level begins without results


def test_a_kind_that_is_never_solved_holds_the_curriculum_back():
    chosen = settings("save", curriculum="adaptive", learning_rate=3e-3, epsilon_start=0.05)
    trainer = HostTrainer(chosen, [Stairs(hardest=1, fails=True)])
    _, state = walk(trainer, 60)
    bins = jax.tree.map(lambda x: x[0], state.bins)
    assert int(bins.level) == 0
    assert bins.episodes.sum() == state.episodes[0] > 300
    share = bins.solved.mean(1)[np.argsort(bins.code[:2])]
    assert share[1] == 0.0
    assert share[0] > 0.5


def test_returns_of_the_present_level_are_counted_apart():
    trainer = HostTrainer(settings(curriculum="linear", curriculum_steps=1), [Stairs(hardest=2)])
    total = count = 0.0
    state = trainer.begin()
    for t in range(10):
        returns, added = state.episode_return[0], int(state.replay.added[0])
        level, played = int(trainer.counters(state).level[0]), trainer.pool.arrays.level.copy()
        state = trainer.advance(state, t, ALL)
        new = jax.tree.map(lambda x: np.asarray(x[0, added : added + LANES]), state.replay.data)  # noqa: B023
        mine = (new.discount == 0) & (played == level)
        count += mine.sum()
        total += (returns + new.reward)[mine].sum()
    stats = trainer.counters(state).stats
    assert stats.level_episodes.tolist() == [count]
    assert count > 0
    assert stats.level_return_sum[0] == pytest.approx(total)


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    run = {
        "seed": (0, 1), "episodes": 400, "lanes": LANES, "batch": 16, "replay": 400,
        "min_replay": 16, "budget": 3, "chunk": 4, "learning_rate": 3e-3, "epsilon_start": 0.05,
        "curriculum": "adaptive", "env_options": {"hardest": 1}, "progress": False, "workers": 0,
        "checkpoint_seconds": 0,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("save_rl.training.run.loop.ENOUGH_EPISODES", 1)  # so that every line counts
        return save_rl.train(STAIRS, out=out, **run), run


@ADAPTIVE
def test_the_best_parameters_on_the_highest_level_are_kept(adaptive):
    result, _ = adaptive
    rows = [row for row in read(result.path / "metrics.csv") if row["level_return"]]
    best = sorted((result.path / "best").iterdir())[-1]
    scores = json.loads((best / "manifest.json").read_text())["scores"]
    for seed, (level, mean) in enumerate(scores):
        mine = [row for row in rows if row["seed"] == str(seed)]
        expected = max((int(row["level"]), float(row["level_return"])) for row in mine)
        assert (level, mean) == pytest.approx(expected)
    assert {row["level"] for row in rows} == {"0", "1"}


@ADAPTIVE
def test_few_episodes_make_nothing_the_best(adaptive, tmp_path, monkeypatch):
    monkeypatch.setattr("save_rl.training.run.loop.ENOUGH_EPISODES", 10**6)
    _, run = adaptive
    save_rl.train(STAIRS, out=tmp_path / "run", **{**run, "episodes": 60})
    assert not (tmp_path / "run" / "best").exists()


@ADAPTIVE
def test_tests_play_the_level_they_are_asked_for(adaptive):
    result, _ = adaptive
    for level in (None, 0, 1):
        (tested,) = save_rl.evaluate(result.path, (0,), 10, workers=0, level=level)
        solved = tested.returns == 1
        assert solved.any()
        assert set(tested.steps[solved]) == {1 + (1 if level is None else level)}
    with pytest.raises(InputError, match="--level: 2 is not possible; it must be from 0 to 1"):
        save_rl.evaluate(result.path, (0,), 2, workers=0, level=2)


@ADAPTIVE
def test_several_levels_are_tested_at_once(adaptive):
    result, _ = adaptive
    evaluate_levels(result.path, (1, 0), (0, 3), 6, workers=0)
    for level in (0, 1):
        save_rl.evaluate(
            result.path, (0, 3), 6, workers=0, level=level, append=False, baseline="none"
        )
        one, all_of_them = (result.path / name for name in ("evaluation.csv", level_table(level)))
        assert one.read_bytes() == all_of_them.read_bytes()


@ADAPTIVE
def test_a_run_plays_on_its_own(adaptive):
    result, _ = adaptive
    sim = Stairs(hardest=1, sample=False)
    player = trained_player(result.path, sim, 3, device="cpu")
    episodes = [play(sim, player, seed) for seed in range(10)]
    assert np.mean([episode.total for episode in episodes]) > 0.7
    assert max(len(episode.moves) for episode in episodes) == 2  # level 1
    assert "actions tried" in episodes[0].moves[0].remark
    reflex = play(sim, trained_player(result.path, sim, 0, device="cpu"), 0)
    assert len(reflex.moves) <= 2
    assert "actions tried" not in reflex.moves[0].remark
    with pytest.raises(InputError, match="--budget: -1 is not possible"):
        trained_player(result.path, sim, -1)


@ADAPTIVE
@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_curriculum(adaptive, tmp_path):
    _, run = adaptive
    whole = save_rl.train(STAIRS, out=tmp_path / "whole", **{**run, "episodes": 320})
    part = tmp_path / "part"
    save_rl.train(STAIRS, out=part, **{**run, "episodes": 90})
    resumed = save_rl.train(STAIRS, out=part, resume=True, **{**run, "episodes": 320})

    def without_time(path):
        rows = read(path / "metrics.csv")
        return [{k: v for k, v in row.items() if k != "time_s"} for row in rows]

    # Where the part ended, its last lines stand in addition.
    lines = without_time(whole.path)
    assert [row for row in without_time(resumed.path) if row in lines][-4:] == lines[-4:]
    for a, b in zip(jax.tree.leaves(whole.state), jax.tree.leaves(resumed.state), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@ADAPTIVE
def test_uct_searches_over_the_network_of_a_run(adaptive):
    """The values of new states are what lets it look further than it searches."""
    result, _ = adaptive
    (tested,) = save_rl.evaluate(result.path, (6,), 20, workers=0, agent="uct")
    assert (result.path / "evaluation-uct.csv").exists()
    assert tested.returns.mean() > 0.7


@pytest.fixture(scope="module")
def replayed():
    """A trainer, a state with something in its replay, and what four updates draw from it."""
    trainer = HostTrainer(settings("save", lanes=16, min_replay=16), [Stairs()])
    _, state = walk(trainer, 6)
    return trainer, state, host_replay.draw(state.replay, [np.random.default_rng(0)], (4, 16))


def begun(programs, state, slots):
    return Updates(programs, state.learner, state.replay, slots, state.episodes, ALL)


@REPLAYED
def test_updates_do_not_depend_on_the_pieces_they_are_made_in(replayed):
    trainer, state, slots = replayed
    learners = []
    for pieces, options in ((1, {}), (2, {}), (2, GPU)):
        programs = UpdatePrograms(trainer.learning, 0, options)
        with closing(programs):
            programs.pieces = pieces
            updates = begun(programs, state, slots)
            updates.go_on()
            learner, terms = updates.finish(99)
        learners.append(learner)
        assert len(terms) == pieces
        total = np.sum([np.asarray(x) for x in terms], 0)
        assert total.shape == (1, 2)
        if pieces == 1:
            losses = total
        np.testing.assert_allclose(total, losses, rtol=1e-4)
    for a, *others in zip(*map(jax.tree.leaves, learners), strict=True):
        for b in others:
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6)
    before, after = jax.tree.leaves(state.learner.params), jax.tree.leaves(learners[0].params)
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@REPLAYED
def test_updates_are_spread_over_the_batches_of_a_search(replayed):
    """Of a search as long as the last one: the second hands over what is left, with every batch."""
    trainer, state, slots = replayed
    with closing(UpdatePrograms(trainer.learning, 0, {})) as programs:
        programs.pieces = programs.calls = 4
        handed = []
        for calls in (2, 2, 6, 6):
            updates, after = begun(programs, state, slots), []
            for _ in range(calls):
                updates.go_on()
                after.append(len(updates._losses))
            assert len(updates.finish(99)[1]) == 4
            handed.append(after)
    assert handed == [[1, 2], [2, 4], [2, 4, 4, 4, 4, 4], [1, 2, 2, 3, 4, 4]]


@pytest.mark.slow  # tests/training/test_host_seeds.py has a fast one
def test_a_program_for_a_gpu_does_the_same(monkeypatch):
    """There many lanes are searched in three groups, and a thread hands updates over in pieces."""
    monkeypatch.setattr(host_trainer, "_MANY", 16)
    states = []
    for options in ({}, GPU):
        chosen = settings("save", lanes=16, batch=4, min_replay=16)
        with closing(HostTrainer(chosen, [Stairs()], options=options)) as trainer:
            assert len(trainer.actor.places.groups) == (3 if options else 1)
            assert chosen.updates_per_step == 16
            assert trainer.learner.programs.pieces == (8 if options else 1)
            states.append(walk(trainer, 6)[1])
    here, there = states
    assert here.updates[0] > 0
    assert here.replay.added == there.replay.added
    np.testing.assert_array_equal(here.replay.data.action, there.replay.data.action)
    for a, b in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-4)


@REPLAYED
@pytest.mark.parametrize("options", [{}, GPU], ids=["here", "in a thread"])
def test_what_fails_while_updates_are_handed_over_is_not_lost(replayed, monkeypatch, options):
    trainer, state, slots = replayed

    def broken(*_):
        raise MemoryError("no room")

    with closing(UpdatePrograms(trainer.learning, 0, options)) as programs:
        updates = begun(programs, state, slots)
        monkeypatch.setattr(host_replay, "outcomes", broken)
        with pytest.raises(MemoryError, match="no room"):
            updates.finish(99)


@ADAPTIVE
def test_a_run_plays_itself(adaptive, tmp_path):
    result, _ = adaptive
    with pytest.raises(InputError, match="is a run and plays itself; leave --agent out"):
        watch(str(result.path), tmp_path / "x.gif", agent="random")
    with pytest.raises(InputError, match="nothing to watch"):
        watch(str(result.path), tmp_path / "x.gif")  # it has been loaded, and has no pictures
