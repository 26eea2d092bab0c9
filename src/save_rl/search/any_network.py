"""Search without training: any simulator, and any function that evaluates observations.

    decision = save_rl.search(simulator, state, evaluate, budget=20)

`evaluate` may be written in NumPy, PyTorch, JAX or ONNX: what it returns is read as NumPy arrays.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from save_rl.envs.layout import Layout
from save_rl.errors import InputError, require, require_numbers, unknown_name
from save_rl.search import masked, policy_of, search_list
from save_rl.search.decision import Decision, trees_of
from save_rl.search.rules import PAPER_RULES, Rule
from save_rl.types import Simulator, State

RULES = {rule.name.lower(): rule for rule in PAPER_RULES}
# Maps observations `[B, ...]`, an array or a dictionary of arrays, to priors `[B, A]`, or to priors
# and values `[B]`.
AnyNetwork = Callable[[Any], Any]


def search_one(
    simulator: Simulator, state: State, evaluate: AnyNetwork | None = None, *, budget: int = 10,
    c: float = 2.0, rule: str = "save", discount: float = 0.99, seed: int = 0,
) -> Decision:  # fmt: skip
    """Search from one state of a Python simulator; return the best action and what speaks for it.

    evaluate: maps observations `[B, ...]` to priors `[B, A]`, or to `(priors, values [B])`. Under
    the rule 'save' priors are Q-values, and values default to their maximum. Under 'puct' they are
    logits of a policy, and values are required. Under 'uct' only values count; without `evaluate`,
    random rollouts find them. seed: breaks ties; the same seed gives the same decision.
    """
    return search_batch(
        simulator, [state], evaluate, budget=budget, c=c, rule=rule, discount=discount, seed=seed
    ).first()


def search_batch(
    simulator: Simulator, states: Sequence[State], evaluate: AnyNetwork | None = None, *,
    budget: int = 10, c: float = 2.0, rule: str = "save", discount: float = 0.99, seed: int = 0,
) -> Decision:  # fmt: skip
    """Search from several states together, with one call of `evaluate` for each simulation.

    Otherwise as `search_one`.
    """
    if rule not in RULES:
        raise unknown_name("rule", str(rule), RULES, "rule")
    require_numbers({"--budget": budget, "c": c, "discount": discount, "seed": seed}.items())
    require(budget >= 1, "budget", budget, "at least 1")
    require(c >= 0, "c", c, "0 or more")
    require(0 <= discount <= 1, "discount", discount, "between 0 and 1")
    require(seed >= 0, "seed", seed, "0 or more")
    states = list(states)
    require(len(states) > 0, "states", "an empty list", "at least one state")
    if evaluate is None and rule != "uct":
        raise InputError(f"evaluate: the rule '{rule}' needs one; 'uct' does without.")
    require(evaluate is None or callable(evaluate), "evaluate", repr(evaluate)[:60], "a function")
    python_layout(simulator)
    first: list[np.ndarray] = []

    def look(observation: Any, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert evaluate is not None
        said = evaluate(observation)
        prior, value = _read(said, len(mask), simulator.num_actions, mask, RULES[rule])
        first[:] = first or [prior]
        return prior, value

    found = search_list(
        simulator, states, look if evaluate is not None else None, RULES[rule], seed, budget=budget,
        c=c, discount=discount, return_tree=True,
    )  # fmt: skip
    q_values, visits, explored = (np.array(x) for x in found[:3])
    by = visits if rule == "puct" else np.where(explored, q_values, -np.inf)
    prior = first[0] if first else np.where(q_values > -np.inf, 0.0, -np.inf)
    trees = trees_of(found.tree, len(states), RULES[rule], simulator)
    return Decision(_highest(by, seed), q_values, prior, visits, explored, trees)


def _highest(values: np.ndarray, seed: int) -> np.ndarray:
    """Return the index of the highest of each row of values `[B, A]`, ties at random."""
    luck = np.random.default_rng((seed, 1)).random(values.shape)
    return np.where(values == values.max(-1, keepdims=True), luck, -1.0).argmax(-1)


def python_layout(simulator: Any) -> Layout:
    """Return the layout of a Python simulator that the user gave; refuse anything else."""
    try:
        return Layout.of(simulator)
    except (Exception, SystemExit) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"simulator: it is not a Python simulator ({said}).") from error


def _read(
    said: Any, count: int, actions: int, mask: np.ndarray, rule: Rule
) -> tuple[np.ndarray, np.ndarray]:
    """Return priors `[count, A]` and values `[count]`, checked, from what `evaluate` returned."""
    # A pair, or the list of outputs of an ONNX session; a list of rows of numbers is the priors.
    several = isinstance(said, tuple | list) and len(said) in (1, 2) and np.ndim(said[0]) == 2
    given, values = (said[0], said[1] if len(said) == 2 else None) if several else (said, None)
    prior = masked(_numbers("priors", given, count, actions), mask)
    if not (prior > -np.inf).any(-1).all():
        raise InputError("evaluate: priors of -inf for all allowed actions of a state.")
    if values is None:
        if rule == Rule.PUCT:
            raise InputError("evaluate: the rule 'puct' needs (priors, values), not priors alone.")
        value = prior.max(-1)
    else:
        value = _numbers("values", values, count)
    if rule == Rule.PUCT:
        prior = policy_of(prior)
    elif rule == Rule.UCT:
        prior = np.where(prior > -np.inf, np.float32(0), np.float32(-np.inf))
    return prior, value


def _numbers(name: str, given: Any, *shape: int) -> np.ndarray:
    """Return an array of this shape in single precision; refuse NaN and infinity (-inf is a
    forbidden action)."""
    try:
        array = np.asarray(given)
    except Exception as error:  # such as that of a tensor that needs a gradient
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"evaluate: its {name} can't be read as an array ({said}).") from error
    each = "a row of actions" if len(shape) == 2 else "one value"
    require(array.shape == shape, "evaluate", f"{name} of shape {list(array.shape)}",
            f"{list(shape)}, {each} for each state")  # fmt: skip
    require(array.dtype.kind in "fiub", "evaluate", f"{name} of type {array.dtype}", "real numbers")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    wrong = np.isnan(array) | (np.isinf(array) & ((array > 0) | (len(shape) == 1)))
    require(not wrong.any(), "evaluate", f"a number of {array[wrong][:1].tolist()} in its {name}",
            "finite in single precision")  # fmt: skip
    return array
