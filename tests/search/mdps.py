"""Random finite MDPs, and both back ends over them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from save_rl.search import device, host, rules
from save_rl.search.rules import Rule
from tests.search.reference import Mdp

ACTIONS, STATES = 30, 12
# What the device is asked for: it has a program for each of them, and tests share these.
DEVICE_BUDGETS = (4, 10)


@st.composite
def mdps(draw: st.DrawFn, rule: Rule) -> Mdp:
    """An MDP of 1-30 usable actions; rewards, values and priors often repeat, so ties do occur."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    branching = draw(st.integers(1, ACTIONS))
    shape = (STATES, ACTIONS)
    grid = draw(st.sampled_from([None, 4]))

    def numbers(shape):
        x = rng.uniform(-1, 1, shape)
        return x if grid is None else np.round(x * grid) / grid

    mask = np.zeros(shape, bool)
    mask[:, :branching] = rng.random((STATES, branching)) < draw(st.sampled_from([0.3, 1.0]))
    mask[np.arange(STATES), rng.integers(0, branching, STATES)] = True
    prior = numbers(shape)
    if rule == Rule.PUCT:
        prior = np.where(mask, np.exp(3 * prior), 0.0)
        prior /= prior.sum(1, keepdims=True)
    if draw(st.booleans()):  # a tree-like MDP: states only lead to later ones
        next_state = np.minimum(np.arange(STATES)[:, None] + rng.integers(1, 4, shape), STATES - 1)
    else:
        next_state = rng.integers(0, STATES, shape)
    return Mdp(
        next_state=next_state,
        reward=numbers(shape) * (rng.random(shape) < draw(st.sampled_from([0.1, 1.0]))),
        terminal=rng.random(shape) < draw(st.sampled_from([0.0, 0.3, 0.9])),
        mask=mask,
        prior=prior,
        value=numbers(STATES),
    )


def prefer(seed: int):
    """The tie-break of the back ends, for the reference."""

    def choose(simulation: int, node: int, actions: list[int]) -> int:
        return max(actions, key=lambda a: rules.tie_priority(seed, simulation, node, a))

    return choose


def priors(mdp: Mdp, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """What the back ends are given for each state: the masked prior and the leaf value."""
    prior = np.where(mdp.mask, np.zeros_like(mdp.prior) if rule == Rule.UCT else mdp.prior, -np.inf)
    return prior, prior.max(1) if rule == Rule.SAVE else mdp.value


def host_search(mdp: Mdp, roots: np.ndarray, rule: Rule, budget, c, discount, seeds):
    prior, value = priors(mdp, rule)
    prior = prior.astype(np.float32)  # as networks give it
    states = np.zeros((len(roots), budget + 1), int)
    states[:, 0] = roots
    lanes = np.arange(len(roots))
    calls = np.zeros(len(roots), int)

    def step(nodes, actions, new_node):
        asked = actions >= 0
        calls[asked] += 1
        before, action = states[lanes, nodes], np.maximum(actions, 0)
        after = mdp.next_state[before, action]
        states[asked, new_node] = after[asked]
        return mdp.reward[before, action], mdp.terminal[before, action], prior[after], value[after]

    result = host.search(
        prior[roots], step, rule=rule, budget=budget, c=c, discount=discount, seeds=seeds
    )
    return result, calls


class TableEnv:
    """An MDP of tables as a JAX environment."""

    num_actions = ACTIONS

    def __init__(self, tables: Mdp):
        self.tables = tables

    def step(self, state, action):
        at = (state, action)
        done = self.tables.terminal[at]
        return self.tables.next_state[at], self.tables.reward[at], done, done & False


@functools.partial(jax.jit, static_argnames=("rule", "budget"))
def _device_search(tables, prior, value, roots, rule, budget, c, discount, seeds):
    return device.search(
        TableEnv(tables),
        roots,
        lambda states, key: (prior[states], value[states]),
        rule=rule,
        budget=budget,
        c=c,
        discount=discount,
        seeds=seeds,
        key=jax.random.PRNGKey(0),
        return_tree=True,
    )


def device_search(mdp: Mdp, roots: np.ndarray, rule: Rule, budget, c, discount, seeds):
    prior, value = (jnp.asarray(x, jnp.float32) for x in priors(mdp, rule))
    single = {"f": np.float32, "i": np.int32, "b": np.bool_}
    tables = Mdp(*(jnp.asarray(x.astype(single[x.dtype.kind])) for x in mdp))
    return _device_search(
        tables,
        prior,
        value,
        jnp.asarray(roots, jnp.int32),
        rule,
        budget,
        c,
        discount,
        jnp.asarray(seeds, jnp.uint32),
    )
