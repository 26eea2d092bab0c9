"""What travels between the layers: search results and the two protocols of a simulator."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

# An array of NumPy or JAX; the shape stands in the docstring beside it.
Array = Any
State = Any


class SearchResult(NamedTuple):
    """What a search found at its roots, for `B` lanes and `A` actions.

    q_values: `[B, A]` Q_MCTS; untried actions keep the prior (0 for UCT and PUCT), masked ones are
        -inf.
    visits: `[B, A]` simulations through each action, without pseudo-counts.
    explored: `[B, A]` whether the action was tried at least once.
    tree: the whole tree of the back end, for inspection, or None.
    """

    q_values: Array
    visits: Array
    explored: Array
    tree: Any = None


class Simulator(Protocol):
    """A pure function of an opaque state. `action_mask(state)` and `render(state)` are optional.

    So are `save_state(state)`, an array of bytes that is always as long, and `load_state(bytes)`:
    with them a long episode need not be played again when a run of a recurrent agent is resumed.

    A JAX environment has the same names with jittable bodies, and `reset` takes a key. Where it
    holds arrays (a table, an observation matrix) it is a pytree, so that seeds can be vmapped.
    """

    @property
    def num_actions(self) -> int: ...
    def reset(self, seed: Any) -> State: ...
    def step(self, state: State, action: Any) -> tuple[State, Any, Any, Any]:
        """Return `(state, reward, terminated, truncated)`."""
        ...

    def observe(self, state: State) -> Any: ...


# Maps states of `B` lanes and a JAX key to `(prior [B, A], value [B])`; masked actions are -inf.
Evaluator = Callable[[State, Array], tuple[Array, Array]]
