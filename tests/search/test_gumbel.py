"""Gumbel searches against mctx called by hand, with and without masked actions."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

from save_rl.agents import get_agent
from save_rl.envs.tightrope import STATES, Tightrope, TightropeState, tightrope
from save_rl.networks.table import TableNetwork
from save_rl.search import device
from save_rl.training.device.acting import choose_action, evaluator, run_search

GAMMA, BUDGET, LANES = 0.9, 10, 8
AGENT: Any = get_agent("gumbel")


class Numbered(Tightrope):
    """Tightrope that shows the number of its state, for tables."""

    def observe(self, state):
        return state.position


class Fenced(Numbered):
    """The same, where every third action is masked, and all of them after the last state."""

    def action_mask(self, state):
        return (jnp.arange(self.num_actions) % 3 > 0) & (state.position < STATES - 1)


def with_tables(network, head, value):
    return eqx.tree_at(lambda n: (n.head, n.value), network, (head, value))


def table(seed):
    """A network of random logits and values."""
    rng = np.random.default_rng(seed)
    logits, values = 2 * rng.normal(size=(STATES, 100)), rng.normal(size=STATES)
    network = TableNetwork(STATES, 100, value_head=True)
    return with_tables(network, jnp.float32(logits), jnp.float32(values))


def by_hand(env, network, states, key, scale):
    """mctx's policy, with a model written down from the environment's tables."""

    def model(params, rng_key, action, embedding):
        position, over = embedding
        safe = 1 - env.fatal[position, action]
        after = position + safe
        arrived = (safe == 1) & (after == states.goal)
        reward = jnp.where(over, 0.0, safe * env.step_reward + arrived * env.goal_reward)
        ends = over | (safe == 0) | arrived
        step = mctx.RecurrentFnOutput(
            reward=reward,
            discount=jnp.where((safe == 0) | arrived, 0.0, GAMMA),
            prior_logits=network.head[after],
            value=jnp.where(ends, 0.0, network.value[after]),
        )
        return step, (after, ends)

    root = mctx.RootFnOutput(
        prior_logits=network.head[states.position],
        value=network.value[states.position],
        embedding=(states.position, jnp.zeros(LANES, bool)),
    )
    return mctx.gumbel_muzero_policy(
        (), key, root, model, num_simulations=BUDGET, gumbel_scale=scale
    )


@functools.partial(jax.jit, static_argnames=("scale", "budget"))
def searched(env, network, states, key, scale, budget=BUDGET):
    return run_search(
        AGENT, network, env, states, rule=AGENT.search, budget=budget, c=2.0, discount=GAMMA,
        key=key, noise=scale,
    )  # fmt: skip


def lanes():
    """States along the rope."""
    at = jnp.arange(LANES, dtype=jnp.int32)
    return TightropeState(at, at * 0 + STATES - 1)


@pytest.mark.parametrize("scale", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_it_is_the_search_of_mctx(scale):
    env = Numbered(*tightrope(0, reward="dense", terminal=50))
    network, states, key = table(1), lanes(), jax.random.key(7)
    result = searched(env, network, states, key, scale)
    mctx_key = jax.random.split(jax.random.split(key)[1], 3)[0]  # others are for ties and the root
    expected = jax.jit(by_hand, static_argnames="scale")(env, network, states, mctx_key, scale)
    summary = expected.search_tree.summary()
    np.testing.assert_array_equal(result.action, expected.action)
    np.testing.assert_array_equal(result.visits, summary.visit_counts)
    np.testing.assert_allclose(result.policy, expected.action_weights, rtol=1e-5, atol=1e-7)
    tried = np.asarray(summary.visit_counts) > 0
    np.testing.assert_array_equal(result.explored, tried)
    np.testing.assert_allclose(
        np.asarray(result.q_values)[tried], np.asarray(summary.qvalues)[tried], rtol=1e-5
    )
    assert result.visits.sum(-1).tolist() == [BUDGET] * LANES


@pytest.mark.slow
def test_noise_changes_the_action_and_tests_have_none():
    env = Numbered(*tightrope(0, reward="dense", terminal=50))
    same = {scale: [searched(env, table(1), lanes(), jax.random.key(k), scale).action.tolist()
                    for k in range(3)] for scale in (0.0, 1.0)}  # fmt: skip
    assert same[0.0][0] == same[0.0][1] == same[0.0][2]
    assert same[1.0][0] != same[1.0][1]
    assert AGENT.root_noise == 1.0  # which is for training; `play` has none


def test_masked_actions_are_neither_tried_nor_learned_nor_taken():
    env = Fenced(*tightrope(0, reward="dense", terminal=50))
    states = lanes()
    masked = ~np.asarray(jax.vmap(env.action_mask)(states))
    for seed in range(3):
        result = searched(env, table(seed), states, jax.random.key(seed), 1.0)
        assert not np.asarray(result.visits)[masked].any()
        assert not np.asarray(result.policy)[masked].any()
        assert np.all(np.asarray(result.q_values)[masked] == -np.inf)
        assert not masked[np.arange(LANES), np.asarray(result.action)].any()
        np.testing.assert_allclose(result.policy.sum(-1), 1.0, rtol=1e-5)


@pytest.mark.slow
def test_masked_actions_are_not_tried_deeper_in_the_tree_either():
    env = Fenced(*tightrope(0, reward="dense", terminal=10))  # few actions are fatal: deep trees
    evaluate = evaluator(AGENT, table(0), env, GAMMA)
    seeds = jnp.zeros(LANES, jnp.uint32)
    tree = device.search(
        env, lanes(), evaluate, rule=AGENT.search, budget=40, c=2.0, discount=GAMMA, seeds=seeds,
        key=jax.random.key(0), return_tree=True,
    ).tree  # fmt: skip
    inside = ~np.asarray(tree.embeddings.over)
    tried = np.asarray(tree.children_visits)
    assert tried[:, 1:][inside[:, 1:]].any()
    assert not tried[inside][:, ::3].any()


def test_the_policy_prefers_what_the_search_found_to_be_better():
    """With equal logits, tried actions that are worth more have more weight."""
    env = Numbered(*tightrope(0, reward="dense", terminal=50))
    network = with_tables(table(0), jnp.zeros((STATES, 100)), jnp.zeros(STATES))
    result = searched(env, network, lanes(), jax.random.key(0), 1.0)
    safe = np.asarray(env.fatal)[np.arange(LANES)] == 0
    policy, tried = np.asarray(result.policy), np.asarray(result.explored)
    for lane in range(LANES):
        good, bad = policy[lane][tried[lane] & safe[lane]], policy[lane][tried[lane] & ~safe[lane]]
        assert min(good.size, bad.size) > 0
        assert good.min() > bad.max()
        assert safe[lane, int(result.action[lane])]


def choice(result, epsilon):
    """The final action of the first lane."""
    one = jax.tree.map(lambda x: x[0], result)
    return int(choose_action(AGENT, one, epsilon, jax.random.key(3)))


def test_it_acts_on_what_the_search_chose_and_without_a_budget_on_the_policy():
    env = Numbered(*tightrope(0, reward="dense", terminal=50))
    network, states = table(1), lanes()
    result = searched(env, network, states, jax.random.key(7), 1.0)
    assert choice(result, None) == choice(result, jnp.float32(1.0)) == int(result.action[0])
    nothing = searched(env, network, states, jax.random.key(7), 0.0, budget=0)
    assert nothing.action is None
    assert choice(nothing, None) == int(jnp.argmax(network.head[0]))
