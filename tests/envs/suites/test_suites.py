"""Adapters of gymnax, Jumanji and Pgx: one of each beside its suite, refusals, chance, limits."""

import sys

import gymnax
import jax
import jax.numpy as jnp
import jumanji
import numpy as np
import pytest

from save_rl.envs import FAMILIES, imports, make, make_all, runs_on_host
from save_rl.envs.suites.common import has_chance
from save_rl.errors import InputError, MissingExtra
from save_rl.training.device.trainer import stack_envs
from tests.envs.suites.oracles import side_by_side


@pytest.mark.parametrize(
    ("suite", "id", "options"),
    [
        ("gymnax", "Catch-bsuite", {}),
        ("gymnax", "UmbrellaChain-bsuite", {"max_steps_in_episode": 4}),
        ("jumanji", "Game2048-v1", {}),
        pytest.param("pgx", "2048", {}, marks=pytest.mark.slow),
    ],
)
def test_one_of_each_plays_as_its_suite_does(suite, id, options):
    ends = side_by_side(suite, id, steps=60, **options)
    assert ends["truncated"] == (2 if options else 0)


def test_the_limit_of_jumanji_is_truncated_and_can_be_passed():
    """A search looks past time limits; Jumanji itself ends there with a discount of 0."""
    assert side_by_side("jumanji", "Snake-v1", luck_shows=False, time_limit=2) == {
        "terminated": 0, "truncated": 2,
    }  # fmt: skip
    env = make("jumanji/Snake-v1", time_limit=2)
    state, step = env.reset(jax.random.PRNGKey(0)), jax.jit(env.step)
    for late in (False, True, True):
        action = np.int32(np.argmax(env.action_mask(state)))
        state, _, terminated, truncated = step(state, action)
        assert (bool(terminated), bool(truncated)) == (False, late)


def test_the_timer_of_pgx_freeway_is_a_limit_that_can_be_passed():
    env = make("pgx/minatar-freeway", time_limit=2)
    assert make("pgx/minatar-freeway").max_steps == 2501
    state, step = env.reset(jax.random.PRNGKey(0)), jax.jit(env.step)
    for late in (False, True, True):
        before = state.inner._step_count
        state, _, terminated, truncated = step(state, np.int32(0))
        assert (bool(terminated), bool(truncated)) == (False, late)
        assert state.inner._step_count == before + 1


def test_chance_is_found_where_a_result_is_computed_from_the_key():
    number = jax.ShapeDtypeStruct((), jnp.float32)

    def drawn(x, key):
        return x + jax.random.uniform(key)

    def passed_on(x, key):
        return jax.lax.cond(x > 0, lambda: x * 2, lambda: x), jax.random.split(key)

    assert has_chance(drawn, number)
    assert has_chance(jax.jit(drawn), number)
    assert has_chance(lambda x, key: jax.lax.cond(x > 0, drawn, lambda x, _: x, x, key), number)
    assert not has_chance(lambda x, key: passed_on(x, key)[0], number)
    assert not has_chance(jax.jit(lambda x, key: passed_on(x, key)[0]), number)


def test_which_environments_have_chance():
    known = {
        "gymnax/Breakout-MinAtar": False, "gymnax/Asterix-MinAtar": True,
        "gymnax/CartPole-v1": False, "gymnax/Acrobot-v1": False, "gymnax/FrozenLake-misc": True,
        "jumanji/Maze-v0": False, "jumanji/Snake-v1": True, "pgx/2048": True,
    }  # fmt: skip
    assert {name: make(name).stochastic for name in known} == known
    assert not make("gymnax/FrozenLake-misc", is_slippery=False).stochastic
    assert make("gymnax/Acrobot-v1", torque_noise_max=1.0).stochastic


@pytest.mark.parametrize(
    "name",
    [
        "gymnax/FrozenLake-misc",
        pytest.param("jumanji/Game2048-v1", marks=pytest.mark.slow),
        "pgx/2048",
    ],
)
def test_luck_comes_from_the_state_or_from_the_key(name):
    env = make(name)

    @jax.jit
    def outcomes(seed):
        """The same action from one start: with eight keys, and twice with none."""
        state = env.reset(jax.random.PRNGKey(seed))
        mask = env.action_mask(state) if hasattr(env, "action_mask") else jnp.ones(4)
        action = jnp.argmax(mask).astype(jnp.int32)
        keys = jax.vmap(jax.random.PRNGKey)(jnp.arange(8))
        drawn = jax.vmap(lambda key: env.observe(env.step(state, action, key)[0]))(keys)
        own = jax.vmap(lambda _: env.observe(env.step(state, action)[0]))(keys[:2])
        return drawn, own

    drawn, own = jax.device_get(jax.vmap(outcomes)(jnp.arange(4)))
    assert (own[:, 0] == own[:, 1]).all()
    assert (drawn[:, :1] != drawn).any()


def test_actions_of_several_parts_become_one_number_and_masks_too():
    env = make("jumanji/Minesweeper-v0")
    state = env.reset(jax.random.PRNGKey(3))
    assert env.num_actions == 100
    after, *_ = jax.jit(env.step)(state, np.int32(37))
    changed = np.argwhere(np.asarray(after.seen["board"]) != np.asarray(state.seen["board"]))
    assert changed.tolist() == [[3, 7]]
    assert np.flatnonzero(~np.asarray(env.action_mask(after))).tolist() == [37]
    assert set(after.seen) == {"board", "num_mines", "step_count"}


def test_seeds_share_an_adapter_and_it_trains_on_the_device():
    envs = make_all("gymnax/Catch-bsuite", (0, 1, 2))
    arrays, static = stack_envs(envs)
    assert jax.tree.leaves(arrays) == []
    assert static is envs[0]
    assert not runs_on_host(envs[0], "gymnax/Catch-bsuite")


def test_integer_observations_say_how_many_states_there_are():
    assert make("gymnax/FrozenLake-misc").num_states == 16


def test_a_suite_imports_nothing_foreign():
    for name in ("gymnax/Catch-bsuite", "jumanji/Snake-v1", "pgx/2048", "gymnax/os:system"):
        assert imports(name) == ""
    assert {"gymnax/ID", "jumanji/ID", "pgx/ID"} < set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gymnax/Breakout-MinAtari", {}, "no environment of gymnax 'Breakout-MinAtari'"),
        ("gymnax/Breakout-MinAtari", {}, "Did you mean 'Breakout-MinAtar'?"),
        ("jumanji/Snake-v2", {}, "Did you mean 'Snake-v1'?"),
        ("pgx/2084", {}, "Did you mean '2048'?"),
        ("gymnax/Pendulum-v1", {}, "'gymnax/Pendulum-v1' has continuous actions"),
        ("jumanji/Cleaner-v0", {}, "has 3 agents that act at once, and save_rl plays one."),
        ("jumanji/JobShop-v0", {}, "has 2e+13 joint actions (10 parts at once)"),
        ("pgx/chess", {}, "'pgx/chess' is a game for 2 players, and save_rl plays alone."),
        ("gymnax/Catch-bsuite", {"row": 5}, "--env-options: there is no option 'row'"),
        ("jumanji/Snake-v1", {"num_row": 5}, "Did you mean 'num_rows'?"),
        ("jumanji/Sokoban-v0", {"generator": "big"}, "generator=toy or generator=simple"),
        ("pgx/2048", {"time_limit": 0}, "time_limit=0 is not possible"),
    ],
)
def test_what_can_not_be_played_is_refused_in_a_sentence(name, options, words):
    with pytest.raises(InputError) as error:
        make(name, **options)
    assert words in str(error.value)


@pytest.mark.parametrize("suite", ["gymnax", "jumanji", "pgx"])
def test_a_suite_that_is_not_installed_names_the_command(suite, monkeypatch):
    monkeypatch.setitem(sys.modules, suite, None)  # an import raises ImportError
    with pytest.raises(MissingExtra, match=rf"install it with: pip install 'save-rl\[{suite}\]'"):
        make(f"{suite}/anything")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gymnax/MNISTBandit-bsuite", "downloads MNIST when it is made, and that failed (no net)."),
        ("jumanji/Sokoban-v0", "generator=toy and simple do not, and that failed (no net)."),
    ],
)
def test_a_failed_download_is_said_in_a_sentence(name, words, monkeypatch):
    def fail(*_, **__):
        raise OSError("no net\nand more")

    for suite in (gymnax, jumanji):
        monkeypatch.setattr(suite, "make", fail)
    with pytest.raises(InputError) as error:
        make(name)
    assert str(error.value).startswith(f"ENV: '{name}' downloads")
    assert str(error.value).endswith(words)
