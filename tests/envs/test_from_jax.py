"""A JAX environment played as a Python simulator."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from save_rl.envs import make, make_simulator
from save_rl.envs.from_jax import FromJax
from save_rl.envs.layout import Layout
from save_rl.envs.tightrope import TightropeSimulator, tightrope
from save_rl.players import make_player, play


class Dice(NamedTuple):
    """Action 1 adds a throw to the sum, action 0 stops; a sum above 9 loses it."""

    faces: Any = 6

    num_actions = 2
    stochastic = True
    max_steps = 20

    def reset(self, key):
        return {"sum": jnp.int32(0), "key": key}

    def step(self, state, action, key=None):
        later, luck = jax.random.split(state["key"])
        luck = luck if key is None else key
        total = state["sum"] + action * jax.random.randint(luck, (), 1, self.faces + 1)
        over = (total > 9) | (action == 0)
        reward = jnp.where(over & (total <= 9), total, 0)
        return {"sum": total, "key": later}, reward, over, jnp.bool_(False)

    def observe(self, state):
        return {"sum": state["sum"], "left": 9 - state["sum"]}

    def action_mask(self, state):
        return jnp.array([True, True]).at[0].set(state["sum"] > 0)

    def render(self, state):
        assert isinstance(state["sum"], np.ndarray)
        return np.full((4, 4, 3), state["sum"], np.uint8)


def test_it_gives_what_the_environment_gives():
    env, sim = Dice(), FromJax(Dice())
    inner, state = env.reset(jax.random.PRNGKey(7)), sim.reset(7)
    for action in (1, 1, 0):
        assert sim.observe(state) == {"sum": inner["sum"], "left": 9 - inner["sum"]}
        assert isinstance(sim.observe(state)["sum"], np.ndarray | np.generic)
        assert sim.action_mask(state).tolist() == [bool(inner["sum"] > 0), True]
        assert sim.render(state)[0, 0, 0] == inner["sum"]
        inner, *theirs = env.step(inner, action)
        state, *ours = sim.step(state, action)
        assert ours == theirs
    assert (sim.num_actions, sim.max_steps, sim.stochastic) == (2, 20, True)


def test_a_seed_draws_the_outcome_and_states_are_not_changed():
    sim = FromJax(Dice())
    start = sim.reset(0)
    sums = [int(sim.observe(sim.step(start, 1, seed)[0])["sum"]) for seed in range(30)]
    assert set(sums) == set(range(1, 7))
    again = [int(sim.observe(sim.step(start, 1, seed)[0])["sum"]) for seed in range(30)]
    assert sums == again
    assert len({int(sim.observe(sim.step(start, 1)[0])["sum"]) for _ in range(5)}) == 1
    assert sim.observe(start)["sum"] == 0


def test_large_seeds_are_possible():
    sim = FromJax(Dice())
    assert sim.observe(sim.reset(2**64 - 1))["sum"] == 0
    assert sim.reset(np.uint64(2**63)).mask.tolist() == [False, True]


def test_what_the_environment_lacks_is_lacking():
    sim = FromJax(tightrope(0))
    assert not any(hasattr(sim, name) for name in ("action_mask", "render"))
    assert Layout.of(sim).masked is False
    assert Layout.of(FromJax(Dice())).masked is True


def test_search_and_chance_play_it():
    sim = FromJax(Dice())
    episode = play(sim, make_player("uct", sim, 20), 0)
    assert episode.moves[-1].over
    random = [play(sim, make_player("random", sim), seed).total for seed in range(20)]
    assert 0 < np.mean(random) < 9


def test_make_simulator_wraps_what_is_written_in_jax():
    assert isinstance(make_simulator("tightrope"), TightropeSimulator)
    assert isinstance(make_simulator("gymnax/Catch-bsuite"), FromJax)
    own = make_simulator("tests.envs.test_from_jax:Dice", faces=2)
    assert isinstance(own, FromJax)
    assert own.environment == make("tests.envs.test_from_jax:Dice", faces=2)
    python = make_simulator("tests.test_players:Corridor")
    assert not isinstance(python, FromJax)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gymnax/Breakout-MinAtar", "jumanji/Snake-v1", "pgx/2048"])
def test_a_suite_is_played_and_drawn(name):
    sim = make_simulator(name)
    episode = play(sim, make_player("random", sim), 0)
    picture = sim.render(episode.states[-1])
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
