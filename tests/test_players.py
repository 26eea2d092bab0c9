"""Agents that learn nothing, on simulators small enough to know what they should do."""

import numpy as np
import pytest

from save_rl.envs import make_simulator
from save_rl.envs.construction import Construction
from save_rl.errors import InputError
from save_rl.players import PLAYERS, make_player, play


class Corridor:
    """Five cells; 1 goes right, 0 stays and costs 0.1, 2 is forbidden. The last cell pays 1."""

    num_actions = 3

    def __init__(self):
        self.calls = []

    def reset(self, seed):
        return (0, 0)

    def step(self, state, action):
        self.calls.append((state, action))
        cell, time = state
        assert action != 2, "forbidden"
        cell, time = cell + action, time + 1
        reward = 1.0 if cell == 4 else -0.1 * (1 - action)
        return (cell, time), reward, cell == 4, time == 12

    def observe(self, state):
        return np.array(state)

    def action_mask(self, state):
        return np.array([True, True, False])


def test_random_keeps_to_the_mask_and_to_the_end():
    for seed in range(20):
        episode = play(Corridor(), make_player("random", Corridor()), seed)
        assert len(episode.states) == len(episode.moves) + 1
        assert [move.over for move in episode.moves] == [False] * (len(episode.moves) - 1) + [True]
        assert episode.total == pytest.approx(sum(move.reward for move in episode.moves))
        last = episode.states[-1]
        assert last[0] == 4 or last[1] == 12


def test_search_walks_straight_to_the_end():
    sim = Corridor()
    episode = play(sim, make_player("uct", sim, 60), 3)
    assert [state[0] for state in episode.states] == [0, 1, 2, 3, 4]
    assert episode.total == pytest.approx(1.0)
    assert "visits" in episode.moves[0].remark


def test_one_simulation_takes_the_action_it_tried():
    sim = Corridor()
    player = make_player("uct", sim, 1)
    move = player((0, 0), np.random.default_rng(0))
    (first_state, first_action), *_, (last_state, last_action) = sim.calls
    assert first_state == last_state == (0, 0)
    assert first_action == last_action
    assert not move.over


class Guess:
    """One of eight numbers; naming it pays 1, and any ends the episode."""

    num_actions = 8

    def reset(self, seed):
        return int(np.random.default_rng(seed).integers(8))

    def step(self, state, action):
        return state, float(action == state), True, False

    def observe(self, state):
        return np.zeros(1)


def test_players_do_not_draw_what_the_simulator_draws():
    sim = Guess()
    totals = [play(sim, make_player("random", sim), seed).total for seed in range(200)]
    assert 0 < np.mean(totals) < 0.25  # 1/8 is to be expected


class Nothing:
    """Four actions, all of which pay nothing and end the episode."""

    num_actions = 4

    def reset(self, seed):
        return 0

    def step(self, state, action):
        return 1 + action, 0.0, True, False

    def observe(self, state):
        return np.array(state)


def test_search_chooses_among_equal_actions_at_random():
    sim = Nothing()
    player = make_player("uct", sim, 8)
    ends = {player(0, np.random.default_rng(seed)).state for seed in range(40)}
    assert ends == {1, 2, 3, 4}


def test_search_leaves_the_episode_alone():
    """Imagined steps start from states, not from what other steps have left behind."""
    sim = Construction("covering", difficulty=0)
    state = sim.reset(3)
    make_player("uct", sim, 20)(state, np.random.default_rng(0))
    assert state == sim.reset(3)


def test_the_seed_decides_everything():
    sim = Construction("connecting", difficulty=2)
    for name in ("random", "uct"):
        one, two = (play(sim, make_player(name, sim, 10), 5) for _ in range(2))
        assert one.states == two.states
    assert play(sim, make_player("random", sim), 6).states != one.states


def test_tightrope_has_a_simulator_for_players():
    sim = make_simulator("tightrope", 1, reward="dense", terminal=50)
    totals = [play(sim, make_player("uct", sim, 100), seed).total for seed in range(5)]
    randoms = [play(sim, make_player("random", sim), seed).total for seed in range(20)]
    assert min(totals) > np.mean(randoms)


@pytest.mark.parametrize(
    ("name", "budget", "sentence"),
    [
        ("scripte", 0, "--agent: there is no agent without training 'scripte'; known: random, "
         "scripted, uct. Did you mean 'scripted'?"),
        ("uct", 0, "--budget: 0 is not possible; it must be at least 1."),
        ("scripted", 0,
         "--agent: there is a scripted agent for covering, marble-run, silhouette only."),
    ],
)  # fmt: skip
def test_players_that_do_not_exist(name, budget, sentence):
    with pytest.raises(InputError) as error:
        make_player(name, Construction("connecting"), budget)
    assert str(error.value) == sentence


def test_the_builder_of_marble_runs_follows_its_plan():
    sim = Construction("marble-run", difficulty=1, curriculum_sample=False)
    episode = play(sim, make_player("scripted", sim), 0)
    assert episode.total == 1.0
    assert {move.remark for move in episode.moves} == {""}


def test_every_player_is_listed():
    sim = Construction("covering")
    for name in PLAYERS:
        assert make_player(name, sim, 1)
