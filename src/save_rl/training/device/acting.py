"""Search and action selection on a JAX environment, for training and tests; test episodes."""

from typing import Any

import jax
import jax.numpy as jnp

from save_rl.agents import Agent
from save_rl.envs.chance import lucky_step
from save_rl.search import device
from save_rl.search.lanes import apply_mask, masks, random_action, rollouts
from save_rl.search.rules import Rule, tie_priority
from save_rl.training.trainer import MAX_TEST_STEPS
from save_rl.types import Array, Evaluator, SearchResult, Simulator


def evaluator(
    agent: Agent, network: Any, env: Simulator, discount: float, scale: Any = 1.0
) -> Evaluator:
    """Return the function that gives prior and value of new states to the agent's search.

    scale: divides the returns of random rollouts.
    """

    def evaluate(states: Any, key: Array) -> tuple[Array, Array]:
        mask = masks(env, states)
        if agent.prior == "none":
            lanes = jax.tree.leaves(states)[0].shape[0]
            prior = apply_mask(jnp.zeros((lanes, env.num_actions)), mask)
            return prior, rollouts(env, states, discount, key) / scale
        head, value = network(jax.vmap(env.observe)(states))
        return prior_and_value(agent, head, value, mask)

    return evaluate


def prior_and_value(
    agent: Agent, head: Array, value: Array | None, mask: Array
) -> tuple[Array, Array]:
    """Return prior `[B, A]` and value `[B]` of states, from the network's outputs."""
    head = apply_mask(head, mask)
    highest = jnp.max(head, -1)
    if agent.prior == "q":
        return head, highest
    if agent.prior == "none":  # UCT with a trained Qθ, which evaluates leaves but is not a prior
        return jnp.where(head > -jnp.inf, 0.0, -jnp.inf), highest
    if agent.prior == "logits":
        assert value is not None
        return head, value
    policy = jnp.where(head > -jnp.inf, jax.nn.softmax(head), -jnp.inf)
    return policy, highest if value is None else value


def run_search(
    agent: Agent, network: Any, env: Simulator, states: Any, *,
    rule: Rule | None, budget: int, c: float, discount: float, key: Array, noise: float = 0.0,
    simulations: Any = None, scale: Any = 1.0,
) -> SearchResult:  # fmt: skip
    """Search from the states `[B]`; without a rule or a budget, return the prior as the result.

    With budget 0, agents whose prior is a policy act on the policy. simulations: how many of the
    budget to make; scale: of rewards; see `device.search`.
    """
    seed_key, key = jax.random.split(key)
    evaluate = evaluator(agent, network, env, discount, scale)
    if rule is None or budget == 0:
        prior, _ = evaluate(states, key)
        visits = jnp.zeros(prior.shape, jnp.int32)
        return SearchResult(prior, visits, visits > 0)
    lanes = jax.tree.leaves(states)[0].shape[0]
    result = device.search(
        env, states, evaluate, rule=rule, budget=budget, c=c, discount=discount,
        seeds=jax.random.bits(seed_key, (lanes,), jnp.uint32), key=key, noise=noise,
        simulations=simulations, scale=scale,
    )  # fmt: skip
    if simulations is None:
        return result
    prior, _ = evaluate(states, key)  # the compiler sees that the search has computed it
    return result._replace(q_values=jnp.where(simulations > 0, result.q_values, prior))


def _highest(values: Array, eligible: Array, seed: Array) -> Array:
    """Return the index of the highest eligible value `[A]`, ties at random."""
    values = jnp.where(eligible, values, -jnp.inf)
    priority = tie_priority(
        seed, jnp.uint32(0), jnp.uint32(0), jnp.arange(values.shape[0], dtype=jnp.uint32)
    )
    return jnp.argmax(jnp.where(eligible & (values == jnp.max(values)), priority + 1, 0))


def choose_action(
    agent: Agent, result: SearchResult, epsilon: Array | None, key: Array, c: float = 2.0
) -> Array:
    """Return the final action of one lane; `epsilon` None means test (no exploration).

    c: exploration constant of upper bounds, for agents that act on these.
    """
    q, visits, explored = result.q_values, result.visits, result.explored
    key, seed_key, random_key = jax.random.split(key, 3)
    seed = jax.random.bits(seed_key, (), jnp.uint32)
    valid = q > -jnp.inf
    searched = jnp.any(explored)
    if agent.act == "gumbel":
        return _highest(q, valid, seed) if result.action is None else result.action
    if agent.act == "visits":
        if epsilon is not None:
            return jax.random.categorical(key, jnp.log(visits))
        return _highest(jnp.where(searched, visits, q), valid, seed)
    if epsilon is not None and agent.act in ("softmax", "counts"):
        return jax.random.categorical(key, q if agent.act == "softmax" else jnp.log(visits))
    if epsilon is not None and agent.act == "ucb":
        bound = c * jnp.sqrt(jnp.log(jnp.sum(visits) + jnp.sum(valid)) / (visits + 1))
        return _highest(q + bound, valid, seed)
    action = _highest(q, jnp.where(searched, explored, valid), seed)
    if agent.act == "threshold":
        give_up = searched & (q[action] <= 0) & jnp.any(valid & ~explored)
        action = jnp.where(give_up, _highest(q * 0, valid & ~explored, seed), action)
    if epsilon is None:
        return action
    explore_key, action_key = jax.random.split(random_key)
    explore = jax.random.uniform(explore_key) < epsilon
    return jnp.where(explore, random_action(action_key, valid, q.shape[0]), action)


def target_of(agent: Agent, result: SearchResult) -> Array:
    """Return the target of the amortization loss `[B, W]`, see `agents.target_rows`."""
    q_values, visits, kind = result.q_values, result.visits, agent.amortization_loss
    if kind == "none":
        return jnp.zeros((len(visits), 0))
    if kind == "visits":
        return visits / jnp.sum(visits, -1, keepdims=True)
    if kind == "policy":
        return result.policy
    if kind == "explored":
        return jnp.where(result.explored, q_values, -jnp.inf)
    if kind == "weighted":
        return jnp.concatenate([q_values, visits.astype(q_values.dtype)], -1)
    return q_values


def play(
    agent: Agent, network: Any, env: Simulator, key: Array, *,
    episodes: int, budget: int, c: float, discount: float, simulations: Any = None,
    scale: Any = 1.0,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the returns and lengths of `episodes` parallel test episodes; jittable.

    simulations: how many of the budget to make, see `device.search`. scale: of the rewards in
    searches.
    """
    limit = getattr(env, "max_steps", MAX_TEST_STEPS)
    reset_key, key = jax.random.split(key)
    states = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))
    zeros = jnp.zeros(episodes)

    def unfinished(carry):
        _, _, _, over, t = carry
        return ~jnp.all(over) & (t < limit)

    def step(carry):
        states, returns, steps, over, t = carry
        search_key, action_key = jax.random.split(jax.random.fold_in(key, t))
        result = run_search(
            agent, network, env, states, rule=agent.test_search, budget=budget, c=c,
            discount=discount, key=search_key, simulations=simulations, scale=scale,
        )  # fmt: skip
        action_keys, luck = jax.random.split(action_key, (2, episodes))
        actions = jax.vmap(lambda r, k: choose_action(agent, r, None, k))(result, action_keys)
        after, reward, terminated, truncated = jax.vmap(lucky_step(env))(states, actions, luck)
        returns = returns + jnp.where(over, 0.0, reward)
        return after, returns, steps + ~over, over | terminated | truncated, t + 1

    start = (states, zeros, zeros.astype(jnp.int32), zeros > 0, 0)
    _, returns, steps, _, _ = jax.lax.while_loop(unfinished, step, start)
    return returns, steps
