"""Whatever a simulator does, training, tests and checks answer it with an error of ours."""

import warnings

import numpy as np
import pytest

import save_rl
from save_rl.envs.check import check_named
from save_rl.envs.check.look import look
from save_rl.envs.layout import Layout
from save_rl.envs.pool import Pool
from save_rl.errors import InputError, RunError
from save_rl.players import make_player, play
from tests.envs import garbage

GARBAGE = "tests.envs.garbage"
TINY = {
    "steps": 200, "lanes": 4, "budget": 2, "replay": 64, "min_replay": 16, "chunk": 4,
    "network": "mlp", "device": "cpu", "progress": False,
}  # fmt: skip


def train(tmp_path, kind, workers=0):
    """Train on garbage; returns the error."""
    options = {"env_options": {"kind": kind}, "workers": workers, "out": tmp_path / "run"}
    options["check"] = False  # which would find most of it
    with pytest.raises((InputError, RunError)) as caught:
        save_rl.train(f"{GARBAGE}:make", **TINY, **options)
    return caught.value


@pytest.mark.parametrize("kind", garbage.AT_ONCE)
def test_what_can_be_seen_at_once_is_refused_before_any_work(tmp_path, kind):
    error = train(tmp_path, kind)
    assert isinstance(error, InputError)
    assert str(error).startswith("ENV: ")
    assert "\n" not in str(error)
    assert list(tmp_path.iterdir()) == []


SENTENCES = {
    "half an action": (
        "ENV: num_actions of 2.5 is not possible; it must be a whole number between 1 and 10000000."
    ),
    "texts seen": "ENV: observe returned an array of type <U5; it must be an array of numbers.",
    "1e300 seen": "ENV: observe returned an array with a number that 32 bits can't hold; scale it.",
    "2**40 seen": "ENV: observe returned an array with a number that 32 bits can't hold; scale it.",
    "a dictionary of numbers seen": (
        "ENV: observe returned a dictionary with the key 0; keys must be text."
    ),
    "an empty array seen": "ENV: observe returned an array of shape (0,), with nothing in it.",
    "a short mask": "ENV: action_mask returned shape (2,), not (3,).",
    "a mask of fractions": "ENV: action_mask returned float64, not truth values.",
    "an empty mask": "ENV: action_mask allows nothing in a state that is not terminal.",
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_the_sentence_names_what_is_wrong(kind):
    with pytest.raises(InputError) as caught:
        Layout.of(garbage.make(kind))
    assert str(caught.value) == SENTENCES[kind]


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "nothing": "has no 'num_actions'; an environment needs it.",
        "a_class": "",
        "fail": "can't be made: ArithmeticError: the engine is on fire (",
        "leave": "can't be made: SystemExit: 3 (",
        "recurse": "can't be made: RecursionError: ",
        "needs_more": "can't be made: TypeError: needs_more() missing 2 required positional",
        "NOT_A_FACTORY": "is not a function or class that makes an environment.",
    }.items(),
)
def test_a_factory_that_makes_no_simulator_is_refused(tmp_path, name, words):
    with pytest.raises(InputError) as caught:
        save_rl.train(f"{GARBAGE}:{name}", workers=0, out=tmp_path / "run", **TINY)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def stops_with_the_traceback(error):
    assert isinstance(error, RunError)
    text = str(error)
    assert text.startswith("ENV: the simulator failed 5 times without finishing an episode; ")
    assert "Error" in text or "SystemExit" in text


@pytest.mark.parametrize("kind", garbage.LATER)
def test_what_only_a_step_shows_costs_the_episode(kind):
    said = []
    with (
        warnings.catch_warnings(),
        Pool([garbage.make(kind)], [2], warn=said.append) as pool,
    ):
        warnings.simplefilter("error")
        pool.reset(0, np.arange(2), np.arange(2))  # seed 1 fails where most seeds do
        pool.advance(0, np.array([0, 0]))
        pool.receive(0)
        assert pool.lost[1]
    assert len(said) == 1
    assert said[0].startswith("the simulator failed (")


@pytest.mark.parametrize("kind", garbage.LATER)
def test_a_look_without_a_check_leaves_it_to_training(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = look(f"{GARBAGE}:make", {"kind": kind}, check=False)
    assert seen.num_actions == 3
    assert np.isfinite(seen.returns)


def test_a_look_says_so_if_no_episode_begins():
    with pytest.raises(InputError, match=r"reset\(8\) raised ArithmeticError: the engine is on"):
        look(f"{GARBAGE}:make", {"kind": "most seeds fail"}, seed=1, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", garbage.LATER)
def test_what_only_a_step_shows_stops_the_run_with_the_traceback(tmp_path, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stops_with_the_traceback(train(tmp_path, kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reward None", "step leaves", "later 1e300", "most seeds fail"])
def test_in_workers_it_is_the_same(tmp_path, kind):
    stops_with_the_traceback(train(tmp_path, kind, workers=1))


IN_A_CHECK = (
    "too many actions",
    "actions that fail",
    "reset leaves",
    "observe leaves",
    "2**40 seen",
    "step returns three",
)


def is_found(kind):
    assert not check_named(f"{GARBAGE}:make", {"kind": kind}, seconds=0.3).ok


@pytest.mark.parametrize("kind", IN_A_CHECK)
def test_some_garbage_is_found_by_a_check(kind):
    is_found(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in garbage.KINDS if kind not in IN_A_CHECK])
def test_garbage_is_found_by_a_check(kind):
    is_found(kind)


SEEN_LATER = [kind for kind in garbage.LATER if "later" in kind and "mask" not in kind]


@pytest.mark.parametrize("kind", sorted({*garbage.LATER} - {*SEEN_LATER, "reward 1e308"}))
def test_a_player_ends_with_the_traceback(kind):
    """A player never observes, so what would be seen is nothing to it."""
    sim = garbage.make(kind)
    with pytest.raises(RunError, match=r"^ENV: "):
        play(sim, make_player("random", sim), 1)


def test_an_episode_without_end_is_a_sentence(monkeypatch):
    monkeypatch.setattr("save_rl.players.LONGEST", 50)
    sim = garbage.Sound()
    sim.step = lambda state, action: (state, 0.0, False, False)
    with pytest.raises(RunError, match="has not ended after 50 steps"):
        play(sim, make_player("random", sim), 1)


def test_integers_beyond_32_bits_are_a_fault_and_no_other_number():
    sim = garbage.Sound()
    sim.observe = lambda state: np.array([state * 2**33])
    with Pool([sim], [1], warn=lambda _: None) as pool:
        pool.reset(0, np.arange(1), np.array([1]))
        pool.advance(0, np.array([0]))
        pool.receive(0)
        assert pool.lost.tolist() == [True]
