"""Tree search on the device: `mctx.search` with the paper's rules, inside a jitted program.

mctx stores, per node, the mean of the returns backed up through it, its reward and its discount;
the sums of returns that `search.rules` needs are computed from these. `prior_logits` carries Qθ
(SAVE) or π (PUCT), -inf where an action is masked. The discount is 0 after a terminal step, so
nodes that mctx expands below a terminal node never affect the values above it.

Gumbel AlphaZero is `mctx.gumbel_muzero_policy` over the same nodes; `prior_logits` are then the
logits of a policy.
With chance, mctx is given `A W` actions: number `a W + w` is outcome `w` of action `a`, and `W` is
the most outcomes that the budget allows. The statistics of an action are the sums over its
outcomes. Without chance, `W` is 1 and this changes nothing.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx as mctx_library

from save_rl.envs.chance import is_stochastic
from save_rl.search import rules
from save_rl.search.rules import TIE_TOLERANCE, Rule
from save_rl.types import Array, Evaluator, SearchResult, Simulator

mctx: Any = mctx_library  # type checkers cannot see its dataclasses, which are built at run time


class Embedding(NamedTuple):
    """The embedding of a tree node of one lane."""

    state: Any
    over: Array  # [] bool, the episode ended at or above this node
    seed: Any = None  # [] uint32, with chance: from which outcomes are drawn


class Extra(NamedTuple):
    """Data of a tree with chance, per lane: the lane's seed, and `W` as a shape."""

    seeds: Array  # [] uint32
    outcomes: Array  # [W]


def root_noise(key: Array, policy: Array, fraction: float = 0.25) -> Array:
    """Mix Dirichlet(1/n) noise over the n unmasked actions into a policy `[A]` (paper, A.3).

    A symmetric Dirichlet whose concentrations sum to 1 has the distribution of the total weight
    that a Dirichlet process with concentration 1 puts on each action. Stick-breaking samples it
    from uniform random numbers; what remains after 64 sticks is below the precision of float32.
    """
    sticks = 64
    stick_key, action_key = jax.random.split(key)
    cuts = jax.random.uniform(stick_key, (sticks,), minval=1e-7, maxval=1.0)
    left = jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - cuts)[:-1]])
    valid = policy > -jnp.inf
    rank = jnp.cumsum(valid) - 1  # index among the unmasked actions
    picks = jnp.floor(jax.random.uniform(action_key, (sticks,)) * valid.sum()).astype(rank.dtype)
    noise = (cuts * left) @ (picks[:, None] == rank[None, :]).astype(cuts.dtype)
    return jnp.where(valid, (1 - fraction) * policy + fraction * noise, -jnp.inf)


def outcomes_of(tree: Any) -> int:
    """Return `W` of a batch of trees, or of one: outcomes per action; 1 without chance."""
    extra = tree.extra_data
    return extra.outcomes.shape[-1] if isinstance(extra, Extra) else 1


def _node_values(tree: Any, node: Array, rule: Rule) -> tuple[Array, Array, Array]:
    """Return prior, Q_k and visits of all actions of a node of an unbatched tree, each `[A]`."""
    prior = tree.children_prior_logits[node]
    visits = tree.children_visits[node]
    mean = tree.children_rewards[node] + tree.children_discounts[node] * tree.children_values[node]
    total = visits * mean
    stochastic = isinstance(tree.extra_data, Extra)
    if stochastic:
        width = outcomes_of(tree)
        prior = prior[::width]
        visits, total = (x.reshape(-1, width).sum(-1) for x in (visits, total))
    before = rules.prior_visits(stochastic)
    return prior, rules.action_value(rule, prior, total, visits, before), visits


def _select(tree: Any, node: Array, rule: Rule, c: float) -> Array:
    """Return `argmax_a Q_k + U_k` at a node of an unbatched tree, breaking ties at random."""
    prior, value, visits = _node_values(tree, node, rule)
    stochastic = isinstance(tree.extra_data, Extra)
    before = rules.prior_visits(stochastic)
    valid = prior > -jnp.inf
    numbers = jnp.where(valid, rules.pseudo_visits(rule, visits, before), 0)
    counts = jnp.sum(numbers).astype(prior.dtype)
    spread = jnp.sqrt(counts if rule == Rule.PUCT else jnp.log(counts))
    score = value + rules.exploration(rule, prior, visits, spread, c, before)
    score = jnp.where(valid, score, -jnp.inf)
    tied = score >= jnp.max(score) - TIE_TOLERANCE
    priority = rules.tie_priority(
        tree.extra_data.seeds if stochastic else tree.extra_data,
        (tree.node_visits[mctx.Tree.ROOT_INDEX] - 1).astype(jnp.uint32),
        node.astype(jnp.uint32),
        jnp.arange(prior.shape[0], dtype=jnp.uint32),
    )
    action = jnp.argmax(jnp.where(tied, priority + 1, 0))
    return _choose_outcome(tree, node, action) if stochastic else action


def _choose_outcome(tree: Any, node: Array, action: Array) -> Array:
    """Return `a W + w` for an action `a`: the next new outcome `w` if its visits allow another,
    else the least visited one, the oldest of several."""
    width = outcomes_of(tree)
    visits = tree.children_visits[node].reshape(-1, width)[action]
    outcomes = jnp.sum(visits > 0)
    new = (outcomes == 0) | rules.widens(outcomes, jnp.sum(visits))
    least = jnp.argmin(jnp.where(visits > 0, visits, jnp.iinfo(visits.dtype).max))
    return action * width + jnp.where(new, outcomes, least)


def search(
    env: Simulator,
    states: Any,
    evaluate: Evaluator,
    *,
    rule: Rule,
    budget: int,
    c: float,
    discount: float,
    seeds: Array,
    key: Array,
    noise: float = 0.0,
    return_tree: bool = False,
    simulations: Any = None,
    scale: Any = 1.0,
) -> SearchResult:
    """Search from the states of `B` lanes of a JAX environment.

    Args:
        states: environment states with a leading axis `B`.
        evaluate: returns prior and value of new nodes, see `Evaluator`.
        budget: simulations, or the most of them.
        simulations: how many to make; may be traced, so that one program serves all budgets up to
            `budget`. Not with Gumbel AlphaZero, whose plan depends on the number.
        seeds: `[B]` uint32, for tie-breaking and, with chance, for the luck of the steps.
        key: JAX key, for root noise and for `evaluate`.
        noise: weight of the Dirichlet noise in the root priors (PUCT in training: 0.25); the scale
            of Gumbel noise (1 in training).
        scale: divides the rewards; evaluations and results are in these units.
    """
    key, root_key, noise_key = jax.random.split(key, 3)
    prior, value = evaluate(states, root_key)
    if noise > 0 and rule != Rule.GUMBEL:
        noise_keys = jax.random.split(noise_key, prior.shape[0])
        prior = jax.vmap(root_noise, (0, 0, None))(noise_keys, prior, noise)
    if budget == 0:
        q_values = prior if rule == Rule.SAVE else jnp.where(prior > -jnp.inf, 0.0, -jnp.inf)
        visits = jnp.zeros(prior.shape, jnp.int32)
        return SearchResult(q_values, visits, visits > 0)

    stochastic = is_stochastic(env)
    # Gumbel AlphaZero keeps the first outcome of an action.
    width = rules.most_outcomes(budget) if stochastic and rule != Rule.GUMBEL else 1
    seeds = jnp.asarray(seeds, jnp.uint32)

    def take(node, action):
        """Step with the luck of an outcome; return the seed of the new node too."""
        if not stochastic:
            return jax.vmap(env.step)(node.state, action), None
        luck = rules.luck(node.seed, (action % width).astype(jnp.uint32))
        keys = jax.vmap(jax.random.PRNGKey)(luck)
        action = action // width
        seed = rules.luck(luck, action.astype(jnp.uint32), rules.NODE)
        return jax.vmap(env.step)(node.state, action, keys), seed

    def recurrent_fn(params, rng_key, action, node):
        del params
        (state, reward, terminated, truncated), seed = take(node, action)
        # Time limits end real episodes, and UCT's rollouts; the search continues past them.
        ends = terminated | truncated if rule == Rule.UCT else terminated
        new_prior, new_value = evaluate(state, rng_key)
        if stochastic:
            new_prior = jnp.repeat(new_prior, width, -1)
        return mctx.RecurrentFnOutput(
            reward=jnp.where(node.over, 0.0, reward / scale).astype(new_value.dtype),
            discount=jnp.where(terminated, 0.0, discount).astype(new_value.dtype),
            prior_logits=new_prior,
            value=jnp.where(node.over | ends, 0.0, new_value),
        ), Embedding(state, node.over | terminated, seed)

    def action_selection(rng_key, tree, node, depth=None):
        del rng_key, depth
        return _select(tree, node, rule, c)

    root = mctx.RootFnOutput(
        prior_logits=jnp.repeat(prior, width, -1) if stochastic else prior,
        value=value,
        embedding=Embedding(
            states, jnp.zeros(value.shape, jnp.bool_), seeds if stochastic else None
        ),
    )
    if rule == Rule.GUMBEL:
        assert simulations is None
        return _gumbel(root, recurrent_fn, budget, noise, key, return_tree)
    tree = mctx.search(
        params=(),
        rng_key=key,
        root=root,
        recurrent_fn=recurrent_fn,
        root_action_selection_fn=action_selection,
        interior_action_selection_fn=action_selection,
        num_simulations=budget,
        loop_fn=partial(_loop, simulations),
        extra_data=Extra(seeds, jnp.zeros((len(seeds), width))) if stochastic else seeds,
    )
    _, q_values, visits = jax.vmap(_node_values, (0, None, None))(tree, 0, rule)
    q_values = jnp.where(prior > -jnp.inf, q_values, -jnp.inf)
    return SearchResult(q_values, visits, visits > 0, tree if return_tree else None)


def _loop(simulations: Any, first: int, end: int, body: Any, start: Any) -> Any:
    """Loop to `simulations`, or to `end` if it is None. Nodes are numbered by simulation, so room
    for more of them changes nothing."""
    return jax.lax.fori_loop(first, end if simulations is None else simulations, body, start)


def _gumbel(
    root: Any, recurrent_fn: Any, budget: int, scale: float, key: Array, return_tree: bool
) -> SearchResult:
    """Search as Gumbel AlphaZero does (Danihelka et al. 2022), with mctx's values of its settings.

    scale: of the Gumbel noise at the root; 0 in tests.
    """
    valid = root.prior_logits > -jnp.inf

    def finite(logits: Array) -> Array:
        # Where everything is masked, as a terminal state may have it, -inf would turn into NaN.
        return jnp.maximum(logits, jnp.finfo(logits.dtype).min)

    def finite_step(params, rng_key, action, node):
        output, node = recurrent_fn(params, rng_key, action, node)
        return output.replace(prior_logits=finite(output.prior_logits)), node

    found = mctx.gumbel_muzero_policy(
        params=(),
        rng_key=key,
        root=root.replace(prior_logits=finite(root.prior_logits)),
        recurrent_fn=finite_step,
        num_simulations=budget,
        invalid_actions=~valid,
        gumbel_scale=scale,
    )
    summary = found.search_tree.summary()
    visits = summary.visit_counts
    q_values = jnp.where(valid, jnp.where(visits > 0, summary.qvalues, 0.0), -jnp.inf)
    return SearchResult(
        q_values, visits, visits > 0, found.search_tree if return_tree else None,
        policy=found.action_weights, action=found.action,
    )  # fmt: skip
