"""Tightrope against its rules (paper, section 4.1 and B.1)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl import compiled
from save_rl.envs import tightrope as module
from save_rl.envs.tightrope import TightropeState, tightrope, tightrope_simulator
from save_rl.errors import InputError

STATES, ACTIONS = 11, 100
rewards = pytest.mark.parametrize("reward", ["sparse", "dense"])
terminals = pytest.mark.parametrize("terminal", [0, 50, 95, 100])
factories = pytest.mark.parametrize("make", [tightrope, tightrope_simulator])


def rules(fatal, reward, position, goal, action):
    """Apply the rules of the paper, word for word."""
    if fatal[position][action]:
        return position, 0.0, True
    position = position + 1
    if reward == "dense":
        return position, 0.1, position == goal
    if position == goal:
        return position, 1.0, True
    return position, 0.0, False


def situations(reward):
    """Every position short of every goal an episode may have, with every action: `[3, N]`."""
    goals = range(1, STATES) if reward == "sparse" else [STATES - 1]
    return np.array([(p, goal, a) for goal in goals for p in range(goal) for a in range(ACTIONS)]).T


@jax.jit
def all_steps(env, positions, goals, actions):
    return jax.vmap(env.step)(TightropeState(positions, goals), actions)


@jax.jit
def one_step(env, state, action):
    return env.step(state, action)


@rewards
@terminals
def test_steps_follow_the_rules(reward, terminal):
    simulator = tightrope_simulator(4, reward=reward, terminal=terminal)
    fatal = simulator.fatal.tolist()
    cases = situations(reward)
    expected = [rules(fatal, reward, *map(int, case)) for case in cases.T]
    positions, payments, endings = map(np.array, zip(*expected, strict=True))

    on_host = [simulator.step(TightropeState(p, goal), a) for p, goal, a in cases.T]
    np.testing.assert_array_equal([s.position for s, *_ in on_host], positions)
    np.testing.assert_array_equal([s.goal for s, *_ in on_host], cases[1])
    np.testing.assert_allclose([r for _, r, _, _ in on_host], payments, rtol=1e-6)
    np.testing.assert_array_equal([over for *_, over, _ in on_host], endings)
    assert not any(truncated for *_, truncated in on_host)

    env = tightrope(4, reward=reward, terminal=terminal)
    states, paid, over, truncated = all_steps(env, *(x.astype(np.int32) for x in cases))
    np.testing.assert_array_equal(states.position, positions)
    np.testing.assert_array_equal(states.goal, cases[1])
    np.testing.assert_allclose(paid, payments, rtol=1e-6)
    np.testing.assert_array_equal(over, endings)
    assert not np.asarray(truncated).any()


@rewards
@given(
    seed=st.integers(0, 2**32 - 1), terminal=st.sampled_from([0, 50, 95]),
    goal=st.integers(1, STATES - 1), actions=st.lists(st.integers(0, ACTIONS - 1), min_size=STATES),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_an_episode_is_the_same_in_both_versions(reward, seed, terminal, goal, actions):
    options = {"reward": reward, "terminal": terminal}
    here, there = tightrope_simulator(seed, **options), tightrope(seed, **options)
    goal = goal if reward == "sparse" else STATES - 1
    one, other = TightropeState(0, goal), TightropeState(jnp.int32(0), jnp.int32(goal))
    over = False
    for action in actions:
        if over:
            break
        np.testing.assert_array_equal(here.observe(one), there.observe(other))
        one, paid, over, truncated = here.step(one, action)
        other, *result = one_step(there, other, action)
        assert (*one, paid, over, truncated) == (*other, *result)
    assert over  # no rope is longer


@rewards
def test_compiled_steps_follow_the_rules(reward):
    env = tightrope_simulator(4, reward=reward, terminal=50)
    transition = compiled.njit(module.transition)
    for position, goal, action in situations(reward).T[::7]:
        after, paid, over = transition(
            env.fatal, float(env.step_reward), float(env.goal_reward), position, goal, action
        )
        expected = rules(env.fatal, reward, position, goal, action)
        assert (after, over) == (expected[0], expected[2])
        assert paid == pytest.approx(expected[1], rel=1e-6)


@rewards
def test_both_versions_are_drawn_alike(reward):
    for one, other in zip(
        tightrope(9, reward=reward), tightrope_simulator(9, reward=reward), strict=True
    ):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@given(terminal=st.integers(0, 100), seed=st.integers(0, 2**32 - 1))
def test_the_share_of_fatal_actions_is_exact_in_every_state(terminal, seed):
    fatal = tightrope_simulator(seed, terminal=terminal).fatal
    assert fatal.shape == (STATES, ACTIONS)
    assert set(np.unique(fatal)) <= {0, 1}
    np.testing.assert_array_equal(fatal.sum(1), np.full(STATES, terminal))


def test_fatal_actions_are_drawn_for_each_state_apart():
    fatal = np.array([tightrope_simulator(seed, terminal=50).fatal for seed in range(400)])
    # Every action is fatal in half of the seeds (standard deviation 0.025) ...
    assert np.all(np.abs(fatal.mean(0) - 0.5) < 5 * 0.025)
    # ... and knowing one state tells nothing of the next: fatal in both in a quarter of the cases.
    together = (fatal[:, :-1] * fatal[:, 1:]).mean()
    assert together == pytest.approx(0.25, abs=0.005)


@factories
def test_a_seed_gives_the_same_environment_again(make):
    for one, other in zip(make(5), make(5), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(make(5).fatal, make(6).fatal)
    assert not np.array_equal(make(5).observations, make(6).observations)


def test_observations_are_standard_normal():
    observations = np.array([tightrope_simulator(seed).observations for seed in range(20)])
    assert observations.shape == (20, STATES, 50)
    assert scipy.stats.kstest(observations.ravel(), "norm").pvalue > 1e-3
    # No two states look the same.
    assert len(np.unique(observations[0], axis=0)) == STATES


@factories
@given(position=st.integers(0, STATES - 1))
@settings(max_examples=STATES)
def test_observations_show_the_position_and_not_the_goal(make, position):
    env = make(2)
    seen = [np.asarray(env.observe(TightropeState(position, goal))) for goal in (1, 5, 10)]
    np.testing.assert_array_equal(seen[0], env.observations[position])
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[0], seen[2])


def starts(make, reward, number):
    env = make(0, reward=reward)
    if make is tightrope_simulator:
        states = [env.reset(seed) for seed in range(number)]
        return np.array([s.position for s in states]), np.array([s.goal for s in states])
    states = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), number))
    return np.asarray(states.position), np.asarray(states.goal)


@factories
def test_sparse_goals_are_uniform(make):
    positions, goals = starts(make, "sparse", 4000)
    assert not positions.any()
    counts = np.bincount(goals, minlength=STATES)
    assert counts[0] == 0
    assert len(counts) == STATES
    assert scipy.stats.chisquare(counts[1:]).pvalue > 1e-3


@factories
def test_the_dense_goal_is_the_last_state(make):
    positions, goals = starts(make, "dense", 100)
    assert not positions.any()
    assert np.all(goals == STATES - 1)


@rewards
def test_the_whole_rope_pays_one(reward):
    env = tightrope_simulator(1, reward=reward, terminal=95)
    for seed in range(10):
        state, total, over, steps = env.reset(seed), 0.0, False, 0
        while not over:
            safe = int(np.argmin(env.fatal[state.position]))
            state, paid, over, _ = env.step(state, safe)
            total, steps = total + paid, steps + 1
        assert total == pytest.approx(1.0, rel=1e-6)
        assert steps == state.goal == state.position <= env.max_steps


def test_environments_of_several_seeds_can_be_vmapped():
    envs = [tightrope(seed, terminal=50) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *envs)
    start = TightropeState(jnp.int32(0), jnp.int32(1))
    _, paid, _, _ = jax.vmap(lambda env: env.step(start, 17))(stacked)
    np.testing.assert_array_equal(paid, [1.0 - env.fatal[0, 17] for env in envs])


@factories
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"reward": "medium"},
            "--reward: 'medium' is not possible; it must be 'sparse' or 'dense'",
        ),
        ({"terminal": -1}, "--terminal: -1 is not possible; it must be a percentage from 0 to 100"),
        ({"terminal": 100.5}, "--terminal: 100.5 is not possible"),
        ({"terminal": float("nan")}, "--terminal: nan is not possible"),
    ],
)
def test_impossible_options_are_refused(make, options, said):
    with pytest.raises(InputError) as refusal:
        make(0, **options)
    assert said in str(refusal.value)
