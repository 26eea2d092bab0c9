"""Settings of a first run: chosen where they were not given, and written to config.json."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given as draw
from hypothesis import strategies as st

import save_rl
from save_rl.cli.commands import parse
from save_rl.envs.check.look import Look, look, look_apart
from save_rl.errors import InputError, RunError
from save_rl.training.advice import advise, recent_mean
from save_rl.training.automatic import AUTOMATIC, applies, choose, describe, first_look
from save_rl.training.settings import TrainSettings

WALK = "tests.training.numbered:Numbered"
SEEN = Look(num_actions=4, features=16, vector=True, length=8.0, ended=1.0, returns=1.0)
OWN = TrainSettings(env="gym/FrozenLake-v1", steps=20_000)


def test_the_papers_environments_keep_the_papers_numbers():
    assert not applies(TrainSettings(env="tightrope"))
    assert not applies(TrainSettings(env="covering"))
    assert not applies(TrainSettings(env="atari/Pong", agent="r2d2-save"))
    assert applies(OWN)
    assert applies(TrainSettings(env="package.module:factory", agent="q-learning"))


def test_a_short_run_spends_most_of_its_steps_with_a_small_epsilon():
    chosen = choose(OWN, (), SEEN)
    assert chosen.mean_epsilon(0, 0) == 1
    assert chosen.mean_epsilon(0, 10_000) == pytest.approx(0.05)  # whatever episodes there were
    assert chosen.mean_epsilon(10**6, 3_000) == pytest.approx(0.525)  # halfway to 6,000
    assert chosen.lanes < 64
    assert chosen.learning_rate > 2e-4


def test_what_was_given_wins_even_if_it_is_the_default():
    usual = TrainSettings()
    for name in AUTOMATIC:
        assert getattr(choose(OWN, {name}, SEEN), name) == getattr(usual, name), name
    given = parse(["train", "gym/FrozenLake-v1", "--lanes", "64", "--learning_rate=0.0002"]).given  # pyright: ignore[reportAttributeAccessIssue]
    assert given == {"lanes", "learning_rate"}


def test_epsilon_falls_over_episodes_if_asked_to_and_never_over_both():
    by_episodes = choose(replace(OWN, epsilon_episodes=300.0), {"epsilon_episodes"}, SEEN)
    assert by_episodes.epsilon_steps == 0
    assert by_episodes.mean_epsilon(150, 10**9) == pytest.approx((1 + 0.05) / 2)
    both = replace(OWN, epsilon_episodes=300.0, epsilon_steps=100.0)
    with pytest.raises(InputError, match=r"--epsilon-steps: 100 .* together with --epsilon-epis"):
        choose(both, {"epsilon_episodes", "epsilon_steps"}, SEEN)


@draw(
    st.integers(1, 10**9), st.integers(1, 300), st.integers(1, 300), st.integers(1, 40),
    st.sets(st.sampled_from(["lanes", "batch", "replay_ratio"]), max_size=2),
    st.floats(0, 1e30), st.floats(1, 1e4),
)  # fmt: skip
def test_any_choice_is_possible(steps, lanes, batch, ratio, given, returns, length):
    """Of lanes, batch and replay ratio any one, and most pairs, can be given."""
    settings = replace(OWN, steps=steps, lanes=lanes, batch=batch, replay_ratio=ratio)
    seen = SEEN._replace(returns=returns, length=length)
    chosen = choose(settings, given, seen)
    if given != {"lanes", "batch"}:  # these two alone may not fit together
        chosen.check()
    assert all(getattr(chosen, name) == getattr(settings, name) for name in given)


def test_batches_fit_a_replay_ratio_or_a_small_replay_that_is_given_alone():
    for ratio in range(1, 41):
        chosen = choose(replace(OWN, replay_ratio=ratio), {"replay_ratio"}, SEEN)
        chosen.check()
        assert chosen.replay_ratio == ratio
    small = choose(replace(OWN, replay=20, min_replay=10), {"replay", "min_replay"}, SEEN)
    small.check()
    assert small.replay == 20


def test_the_scale_of_rewards_follows_the_returns():
    for factor in (1e-3, 1.0, 1e3):
        chosen = choose(OWN, (), SEEN._replace(returns=factor))
        assert 0.7 <= chosen.reward_scale / factor <= 1.5  # the nearest power of 2
        assert math.log2(chosen.reward_scale).is_integer()
    assert choose(OWN, (), SEEN._replace(returns=0.0)).reward_scale == 0  # is measured
    sampled = replace(OWN, agent="save-softmax")
    assert choose(sampled, (), SEEN._replace(returns=0.0)).reward_scale == 1


def test_targets_look_several_steps_ahead_where_random_play_finds_no_rewards():
    nothing = SEEN._replace(returns=0.0)
    assert choose(OWN, (), nothing).n_step == 5
    assert choose(OWN, (), SEEN).n_step is None  # the agent's, 1
    assert choose(replace(OWN, n_step=2), {"n_step"}, nothing).n_step == 2
    for agent in ("puct", "gumbel"):  # learns from whole episodes; has its own number
        assert choose(replace(OWN, agent=agent), (), nothing).n_step is None
    short = choose(replace(OWN, replay=128, lanes=64), {"replay", "lanes"}, nothing)
    assert short.n_step == 2  # a lane has no more steps in replay
    short.check()


@pytest.mark.parametrize("seen", [SEEN, SEEN._replace(returns=0.0)])
def test_the_choice_is_two_lines_that_can_be_given_back(seen):
    chosen = choose(OWN, {"lanes"}, seen)
    first, second = describe(chosen, {"lanes"}, seen)
    assert first.startswith("Chosen for 20,000 steps of gym/FrozenLake-v1 (4 actions, 16 numbers")
    assert "--lanes" not in second
    again = parse(["train", OWN.env, "--steps", "20000", "--lanes", "64", *second.split()])
    assert again.settings == replace(chosen, lanes=64)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_look_measures_random_play():
    seen = look("gym/CliffWalking-v1", {}, check=False)
    assert (seen.num_actions, seen.features, seen.length, seen.ended) == (4, 48, 100.0, 0.0)
    assert seen.vector
    assert seen.returns > 50  # a fall costs 100
    assert seen == look("gym/CliffWalking-v1", {}, check=False)  # the same every time


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("automatic") / "run"
    save_rl.train(WALK, agent="q-learning", steps=300, chunk=4, out=out, workers=0, progress=False)
    return out


def test_a_run_writes_what_was_chosen_and_goes_on_with_it(run):
    before = json.loads((run / "config.json").read_text())["settings"]
    assert before["epsilon_steps"] == 90
    assert before["lanes"] == 16
    more = save_rl.train(
        WALK, agent="q-learning", steps=600, chunk=4, out=run, workers=0, progress=False,
        resume=True,
    )  # fmt: skip
    after = json.loads((run / "config.json").read_text())["settings"]
    assert before == after  # stays as first written
    assert more.metrics[-1]["env_steps"] >= 600
    with pytest.raises(InputError, match=r"started with --lanes 16, not 64"):
        save_rl.train(
            WALK, agent="q-learning", steps=900, chunk=4, out=run, workers=0, progress=False,
            resume=True, lanes=64,
        )  # fmt: skip


def test_a_simulator_that_is_wrong_is_not_trained_on_unless_told_to(tmp_path):
    impure = "tests.envs.broken_simulators:Counting"
    settings = TrainSettings(env=impure, steps=100)
    with pytest.raises(InputError) as refused:
        first_look(settings, (), check=True, apart=False, warn=lambda text: None)
    assert str(refused.value).startswith(f"ENV: a check of '{impure}' found something wrong")
    assert "--no-check trains anyway" in str(refused.value)
    first_look(settings, (), check=False, apart=False, warn=lambda text: None)


def test_native_code_that_crashes_is_named(tmp_path):
    with pytest.raises(RunError) as stopped:
        look_apart("tests.envs.broken_simulators:Crashing", {})
    said = str(stopped.value)
    assert "the simulator 'tests.envs.broken_simulators:Crashing' ended its process" in said
    assert "it was killed by SIGSEGV, in reset (broken_simulators.py:" in said


def test_a_look_in_another_process_sees_the_same():
    options = {"is_slippery": False}
    seen = look_apart("gym/FrozenLake-v1", options, check=False)
    assert seen == look("gym/FrozenLake-v1", options, check=False)
    with pytest.raises(InputError, match="can't be made"):
        look_apart("tests.envs.garbage:fail", {})


LINES = [
    {"seed": 0, "episodes": 50.0, "return_mean": 0.0, "epsilon": 0.8, "time_s": 1.0},
    {"seed": 0, "episodes": 130.0, "return_mean": 0.5, "epsilon": 0.7, "time_s": 2.0},
    {"seed": 0, "episodes": 150.0, "return_mean": 1.0, "epsilon": 0.6, "time_s": 3.0},
]


def test_the_mean_of_the_last_hundred_episodes():
    assert recent_mean(LINES) == pytest.approx((20 * 1 + 80 * 0.5) / 100)  # by hand
    assert recent_mean(LINES[:1]) == 0
    assert recent_mean([]) is None


def test_a_run_that_ends_with_a_high_epsilon_is_told_so(capsys):
    by_episodes = TrainSettings(agent="q-learning")
    advise(by_episodes, LINES)
    assert capsys.readouterr().err == (
        "warning: ε was still 0.60 at the end; give more --steps or a smaller --epsilon-episodes.\n"
    )
    advise(replace(by_episodes, epsilon_steps=1e5), LINES)
    assert capsys.readouterr().err.endswith("or a smaller --epsilon-steps.\n")
    advise(by_episodes, [{**LINES[-1], "epsilon": 0.1}])
    advise(replace(by_episodes, epsilon_end=0.6), LINES)  # as it was asked for
    assert capsys.readouterr().err == ""


def test_a_run_that_plain_search_beats_is_told_so(capsys):
    """UCT finds the action that pays on the ladder; the run got nothing."""
    settings = TrainSettings(env="tests.envs.broken_simulators:Ladder", budget=8, steps=100)
    lines = [{**LINES[-1], "epsilon": 0.0, "return_mean": -5.0, "time_s": 10_000.0}]
    advise(settings, lines)
    assert capsys.readouterr().err.startswith("warning: UCT without learning got ")
    advise(settings, [{**lines[0], "return_mean": 50.0}])
    assert capsys.readouterr().err == ""
