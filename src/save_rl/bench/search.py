"""Simulations per second of both back ends, next to `mctx.muzero_policy` on the same shapes.

All search the same random tabular MDP, so that the model is cheap. The time of the model is
measured too, and subtracted where the cost of the trees alone is reported.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.bench import median_seconds
from save_rl.bench.pool import bench_pool
from save_rl.search import device, host
from save_rl.search.device import mctx
from save_rl.search.rules import Rule

_STATES = 64


class _Tables:
    """A tabular MDP as a JAX environment that never ends."""

    def __init__(self, num_actions: int):
        rng = np.random.default_rng(0)
        self.num_actions = num_actions
        shape = (_STATES, num_actions)
        self.next_state = rng.integers(0, _STATES, shape).astype(np.int32)
        self.reward = rng.random(shape).astype(np.float32)
        self.prior = rng.standard_normal(shape).astype(np.float32)
        self.value = self.prior.max(1)
        self._on_device = tuple(
            map(jnp.asarray, (self.next_state, self.reward, self.prior, self.value))
        )

    def step(self, state: Any, action: Any) -> Any:
        next_state, reward, _, _ = self._on_device
        never = jnp.zeros((), jnp.bool_)
        return next_state[state, action], reward[state, action], never, never

    def evaluate(self, states: Any, key: Any = None) -> Any:
        return self._on_device[2][states], self._on_device[3][states]


def _case(lanes: int, num_actions: int, budget: int, repeats: int) -> dict[str, Any]:
    tables = _Tables(num_actions)
    roots = np.arange(lanes, dtype=np.int32) % _STATES
    seeds = np.arange(lanes, dtype=np.uint32)

    @jax.jit
    def on_device(states):
        return device.search(
            tables, states, tables.evaluate, rule=Rule.SAVE, budget=budget, c=2.0, discount=0.99,  # type: ignore[arg-type]
            seeds=jnp.asarray(seeds), key=jax.random.PRNGKey(0),
        )[:3]  # fmt: skip

    def recurrent(params, key, action, states):
        states, reward, _, _ = jax.vmap(tables.step)(states, action)
        prior, value = tables.evaluate(states)
        discount = jnp.full_like(reward, 0.99)
        return mctx.RecurrentFnOutput(
            reward=reward, discount=discount, prior_logits=prior, value=value
        ), states

    @jax.jit
    def reference(states):
        prior, value = tables.evaluate(states)
        root = mctx.RootFnOutput(prior_logits=prior, value=value, embedding=states)
        output = mctx.muzero_policy((), jax.random.PRNGKey(0), root, recurrent, budget)
        return output.action_weights

    @jax.jit
    def model(states):
        """Run the steps and evaluations of a search, without a tree."""

        def once(carry, k):
            states, total = carry
            states, reward, _, _ = jax.vmap(tables.step)(states, (states + k) % num_actions)
            prior, value = tables.evaluate(states)
            return (states, total + reward + prior[:, 0] + value), prior

        return jax.lax.scan(once, (states, jnp.zeros(lanes)), jnp.arange(budget))

    trees = host.Search(lanes, budget, num_actions)
    result = np.zeros((lanes, num_actions), np.float32), np.zeros((lanes, num_actions), np.int32)
    rows = np.arange(lanes)
    never = np.zeros(lanes, np.bool_)

    def on_host(clock=None):
        """Search; with a clock, append the seconds of everything but the model to it."""
        at = np.zeros((lanes, budget + 1), np.int32)
        at[:, 0] = roots
        prior = tables.prior[roots]
        started = time.perf_counter()
        outside = 0.0
        trees.begin(prior, rule=Rule.SAVE, c=2.0, discount=0.99, seeds=seeds)
        for k in range(budget):
            nodes, actions = trees.select()
            asked = time.perf_counter()
            before = at[rows, nodes]
            after = tables.next_state[before, actions]
            at[:, k + 1] = after
            found = (tables.reward[before, actions], tables.prior[after], tables.value[after])
            outside += time.perf_counter() - asked
            trees.expand(found[0], never, *found[1:])
        trees.result(*result)
        if clock is not None:
            clock.append(time.perf_counter() - started - outside)
        return result

    states, clock = jnp.asarray(roots), []
    seconds = median_seconds(
        {
            "device": lambda: jax.block_until_ready(on_device(states)),
            "host": on_host,
            "mctx.muzero_policy": lambda: jax.block_until_ready(reference(states)),
            "model": lambda: jax.block_until_ready(model(states)),
            "trees": lambda: on_host(clock),
        },
        repeats,
    )
    simulations = lanes * budget
    tree = {
        "device": (seconds["device"] - seconds.pop("model")) / simulations,
        "host": float(np.median(clock[1:])) / simulations,
    }
    del seconds["trees"]
    rates = {name: simulations / value for name, value in seconds.items()}
    muzero = rates["mctx.muzero_policy"]
    return {
        "lanes": lanes,
        "actions": num_actions,
        "budget": budget,
        "simulations_per_second": {name: round(rate) for name, rate in rates.items()},
        "ratio_to_muzero_policy": {name: round(rate / muzero, 2) for name, rate in rates.items()},
        "tree_microseconds_per_simulation": {name: round(t * 1e6, 2) for name, t in tree.items()},
        "trees_host_faster_than_mctx": round(tree["device"] / tree["host"], 1),
        "tree_megabytes_host": round(sum(x.nbytes for x in trees.trees) / 1e6, 2),
    }


def bench_search(repeats: int = 7) -> dict[str, Any]:
    """Measure a few shapes; 64 lanes, 100 actions and budget 10 are Tightrope's."""
    shapes = [(64, 100, 10), (64, 100, 50), (640, 100, 10), (64, 1000, 10), (64, 10_000, 10)]
    return {
        "device": jax.devices()[0].device_kind,
        "cases": [_case(*shape, repeats=repeats) for shape in shapes],
        "pool": bench_pool(),
    }
