"""Tree search from a learned prior, in one call.

    result = save_rl.search.save(env, states, q_function, budget=10)
    decision = save_rl.search(simulator, state, evaluate, budget=10)

The module is also a function: called, it is `any_network.search_one`, for any function that
evaluates observations; `save_rl.search.batch` is the same for several states.

`states` holds the states of `B` lanes: a pytree with a leading axis for a JAX environment, a list
for a Python simulator. The first is searched by the jittable function in `search.device`, the
second by `search.simulators` and the kernels of `search.host`. `search.draw` draws the tree.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from save_rl.errors import RunError, require
from save_rl.types import Array, Evaluator, SearchResult, Simulator, State

if TYPE_CHECKING:
    from save_rl.envs.pool import Pool
    from save_rl.search.decision import Decision
    from save_rl.search.rules import Rule
    from save_rl.search.simulators import Evaluate

__all__ = ["batch", "save", "uct", "puct"]


def search_list(
    simulator: Simulator,
    states: list[State],
    evaluate: "Evaluate | None",
    rule: "Rule",
    seed: int,
    *,
    budget: int,
    c: float,
    discount: float,
    return_tree: bool,
    noise: float = 0.0,
    pool: "Pool | None" = None,
    scale: float = 1.0,
) -> SearchResult:
    """Search from a list of states of a Python simulator.

    scale: divides its rewards; evaluations and results are in these units.
    pool: the `tree_pool` of an earlier call, for the same simulator and number of states; making
    one resets the simulator. Raises RunError, with the traceback, if the simulator fails.
    """
    import numpy as np

    from save_rl.search.noise import mix_noise_all
    from save_rl.search.simulators import LaneSearch
    from save_rl.search.tree_lanes import tree_pool

    pool = tree_pool([simulator], [len(states)]) if pool is None else pool
    for lane, state in enumerate(states):
        pool.place(lane, state)
    ties, luck = np.random.default_rng(seed).integers(2**32, size=(2, len(states)), dtype=np.uint32)

    def mix(priors: Array, lanes: Array) -> None:
        mix_noise_all(luck[lanes], noise, priors)

    found = LaneSearch(pool, [0], budget).run(
        evaluate, rule=rule, c=c, discount=discount, seeds=ties, return_tree=return_tree,
        noise=mix if noise > 0 else None, scale=scale,
    )  # fmt: skip
    if pool.lost.any():
        raise RunError(f"ENV: the simulator failed in a search with:\n{pool.last_fault}")
    return SearchResult(found.q_values, found.visits, found.explored, found.tree)


def _require_shape(name: str, found: Array, *expected: int) -> Array:
    """Return what a user's function returned, if it has the shape that a search needs."""
    shape = getattr(found, "shape", ())
    what = "a row of actions for each state" if len(expected) == 2 else "one value for each state"
    require(shape == expected, name, f"an array of shape {shape}", f"{expected}, {what}")
    return found


def masked(values: Array, mask: Array) -> Array:
    """Return the values `[n, A]`, -inf where masked, in NumPy; a mask of width 0 masks nothing."""
    import numpy as np

    values = np.asarray(values, np.float32)
    return values if mask.shape[1] == 0 else np.where(mask, values, np.float32(-np.inf))


def policy_of(logits: Array) -> Array:
    """Return the softmax of logits `[n, A]` in NumPy, -inf where masked."""
    import numpy as np

    weights = np.exp(logits - logits.max(-1, keepdims=True))
    policy = weights / weights.sum(-1, keepdims=True)
    return np.where(logits > -np.inf, policy, -np.inf)


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
    """Run SAVE's search (paper, section 3.2): start from Qθ and return Q_MCTS.

    q_function: maps observations `[B, ...]` to Qθ `[B, A]`.
    """
    from save_rl.search.rules import Rule

    options = {"budget": budget, "c": c, "discount": discount, "return_tree": return_tree}
    if isinstance(states, list):

        def look(observation: Any, mask: Array) -> tuple[Array, Array]:
            q = _require_shape("q_function", q_function(observation), len(mask), env.num_actions)
            q = masked(q, mask)
            return q, q.max(-1)

        return search_list(env, states, look, Rule.SAVE, seed, **options)
    import jax

    from save_rl.search.lanes import apply_mask, masks

    def evaluate(nodes: Any, key: Array) -> tuple[Array, Array]:
        mask = masks(env, nodes)
        q = q_function(jax.vmap(env.observe)(nodes))
        q = apply_mask(_require_shape("q_function", q, len(mask), env.num_actions), mask)
        return q, q.max(-1)

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
    """Run UCT without a prior (paper, section 3.1); a random rollout evaluates each new state."""
    from save_rl.search.rules import Rule

    options = {"budget": budget, "c": c, "discount": discount, "return_tree": return_tree}
    if isinstance(states, list):
        return search_list(env, states, None, Rule.UCT, seed, **options)
    import jax.numpy as jnp

    from save_rl.search.lanes import apply_mask, masks, rollouts

    def evaluate(nodes: Any, key: Array) -> tuple[Array, Array]:
        mask = masks(env, nodes)
        prior = apply_mask(jnp.zeros((mask.shape[0], env.num_actions)), mask)
        return prior, rollouts(env, nodes, discount, key)

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
    """Run PUCT (paper, A.3): a policy guides the search, a value function evaluates new states.

    policy_value: maps observations `[B, ...]` to policy logits `[B, A]` and values `[B]`.
    noise: weight of the Dirichlet noise at the root; 0.25 in training, 0 otherwise.
    """
    from save_rl.search.rules import Rule

    options = {"budget": budget, "c": c, "discount": discount, "return_tree": return_tree}
    if isinstance(states, list):
        import numpy as np

        def look(observation: Any, mask: Array) -> tuple[Array, Array]:
            logits, value = policy_value(observation)
            _require_shape("policy_value", value, len(mask))
            logits = _require_shape("policy_value", logits, len(mask), env.num_actions)
            logits = masked(logits, mask)
            return policy_of(logits), np.asarray(value)

        return search_list(env, states, look, Rule.PUCT, seed, noise=noise, **options)
    import jax
    import jax.numpy as jnp

    from save_rl.search.lanes import apply_mask, masks

    def evaluate(nodes: Any, key: Array) -> tuple[Array, Array]:
        mask = masks(env, nodes)
        logits, value = policy_value(jax.vmap(env.observe)(nodes))
        _require_shape("policy_value", value, len(mask))
        logits = _require_shape("policy_value", logits, len(mask), env.num_actions)
        logits = apply_mask(logits, mask)
        return jnp.where(logits > -jnp.inf, jax.nn.softmax(logits), -jnp.inf), value

    return _search(env, states, evaluate, Rule.PUCT, seed, noise=noise, **options)


def batch(simulator: Simulator, states: Any, evaluate: Any = None, **options: Any) -> "Decision":
    """Search from several states of a Python simulator; see `any_network.search_batch`."""
    from save_rl.search.any_network import search_batch

    return search_batch(simulator, states, evaluate, **options)


class SearchModule(ModuleType):
    """The class of this module, so that `save_rl.search(...)` can be called."""

    save = staticmethod(save)
    uct = staticmethod(uct)
    puct = staticmethod(puct)
    batch = staticmethod(batch)

    def __call__(
        self, simulator: Simulator, state: State, evaluate: Any = None, **options: Any
    ) -> "Decision":
        """Search from one state of a Python simulator; see `any_network.search_one`."""
        from save_rl.search.any_network import search_one

        return search_one(simulator, state, evaluate, **options)


sys.modules[__name__].__class__ = SearchModule
