"""Types shared by the layers: search results, and the protocols of simulators and evaluators."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

# A NumPy or JAX array; docstrings give the shapes.
Array = Any
State = Any


class SearchResult(NamedTuple):
    """The statistics of a search's roots, for `B` lanes and `A` actions.

    q_values: `[B, A]` Q_MCTS; untried actions keep the prior (0 without a prior of values), masked
        ones are -inf.
    visits: `[B, A]` simulations through each action, without pseudo-counts.
    explored: `[B, A]` true where the action was tried at least once.
    tree: the back end's whole tree, for inspection, or None.
    policy, action: `[B, A]` and `[B]`, the policy that a Gumbel search found and the action that it
        chose; None for other searches.
    """

    q_values: Array
    visits: Array
    explored: Array
    tree: Any = None
    policy: Any = None
    action: Any = None


class Simulator(Protocol):
    """Pure functions of an opaque state. `action_mask(state)` and `render(state)` are optional.

    So are `save_state(state)`, which returns a byte array of fixed length, and
    `load_state(bytes)`: with them, resuming a recurrent agent need not replay long episodes.

    With chance, `stochastic` is True and the luck of a step is an argument,
    `step(state, action, seed)`: a whole number from 0 to 2**31 - 1, and the same seed gives the
    same outcome. Searches then average over outcomes.

    A JAX environment has the same methods with jittable bodies, and `reset` takes a key, as does
    `step` with chance. If it holds arrays (a table, an observation matrix) it must be a pytree, so
    that seeds can be vmapped.
    """

    @property
    def num_actions(self) -> int: ...
    def reset(self, seed: Any) -> State: ...
    @property
    def step(self) -> Callable[..., tuple[State, Any, Any, Any]]:
        """`step(state, action)`, with chance `step(state, action, seed)`: return `(state, reward,
        terminated, truncated)`."""
        ...

    def observe(self, state: State) -> Any: ...


# Maps states of `B` lanes and a JAX key to `(prior [B, A], value [B])`; masked actions are -inf.
Evaluator = Callable[[State, Array], tuple[Array, Array]]
