"""Tree search from a learned prior, in one call.

    result = save_rl.search.save(env, states, q_function, budget=10)

`states` are states of `B` lanes of a JAX environment, with a leading axis. `search.device` has the
jittable function behind these calls; `search.host` has the kernels for simulators that are not
written in JAX.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from save_rl.types import Array, Evaluator, SearchResult, Simulator

if TYPE_CHECKING:
    from save_rl.search.rules import Rule

__all__ = ["save", "uct", "puct"]


def _search(
    env: Simulator, states: Any, evaluate: Evaluator, rule: "Rule", seed: int, **options: Any
) -> SearchResult:
    import jax
    import jax.numpy as jnp

    from save_rl.search import device

    key = jax.random.PRNGKey(seed)
    lanes = jax.tree.leaves(states)[0].shape[0]
    seeds = jax.random.bits(key, (lanes,), jnp.uint32)
    return device.search(env, states, evaluate, rule=rule, seeds=seeds, key=key, **options)


def save(
    env: Simulator,
    states: Any,
    q_function: Callable[[Array], Array],
    *,
    budget: int = 10,
    c: float = 2.0,
    discount: float = 0.99,
    seed: int = 0,
    return_tree: bool = False,
) -> SearchResult:
    """SAVE's search (paper, section 3.2): starts from Qθ and returns Q_MCTS.

    q_function: maps observations `[B, ...]` to Qθ `[B, A]`.
    """
    import jax

    from save_rl.search.lanes import apply_mask, masks
    from save_rl.search.rules import Rule

    def evaluate(nodes: Any, key: Array) -> tuple[Array, Array]:
        q = apply_mask(q_function(jax.vmap(env.observe)(nodes)), masks(env, nodes))
        return q, q.max(-1)

    options = {"budget": budget, "c": c, "discount": discount, "return_tree": return_tree}
    return _search(env, states, evaluate, Rule.SAVE, seed, **options)


def uct(
    env: Simulator,
    states: Any,
    *,
    budget: int = 10,
    c: float = 2.0,
    discount: float = 0.99,
    seed: int = 0,
    return_tree: bool = False,
) -> SearchResult:
    """UCT without a prior (section 3.1); new states are valued by a random rollout."""
    import jax.numpy as jnp

    from save_rl.search.lanes import apply_mask, masks, rollouts
    from save_rl.search.rules import Rule

    def evaluate(nodes: Any, key: Array) -> tuple[Array, Array]:
        mask = masks(env, nodes)
        prior = apply_mask(jnp.zeros((mask.shape[0], env.num_actions)), mask)
        return prior, rollouts(env, nodes, discount, key)

    options = {"budget": budget, "c": c, "discount": discount, "return_tree": return_tree}
    return _search(env, states, evaluate, Rule.UCT, seed, **options)


def puct(
    env: Simulator,
    states: Any,
    policy_value: Callable[[Array], tuple[Array, Array]],
    *,
    budget: int = 10,
    c: float = 2.0,
    discount: float = 0.99,
    seed: int = 0,
    noise: float = 0.0,
    return_tree: bool = False,
) -> SearchResult:
    """PUCT (A.3): a policy guides the search, a value function ends it.

    policy_value: maps observations `[B, ...]` to policy logits `[B, A]` and values `[B]`.
    noise: share of Dirichlet noise at the root; 0.25 while training, 0 otherwise.
    """
    import jax
    import jax.numpy as jnp

    from save_rl.search.lanes import apply_mask, masks
    from save_rl.search.rules import Rule

    def evaluate(nodes: Any, key: Array) -> tuple[Array, Array]:
        logits, value = policy_value(jax.vmap(env.observe)(nodes))
        logits = apply_mask(logits, masks(env, nodes))
        return jnp.where(logits > -jnp.inf, jax.nn.softmax(logits), -jnp.inf), value

    options = {"budget": budget, "c": c, "discount": discount, "return_tree": return_tree}
    return _search(env, states, evaluate, Rule.PUCT, seed, noise=noise, **options)
