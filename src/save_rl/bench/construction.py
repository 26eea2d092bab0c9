"""Training time on simulators by part: waiting for them, the network, learning, the rest.

Also the time of the graph network alone, at the sizes of Construction.
"""

import time
from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import get_agent
from save_rl.bench import median_seconds
from save_rl.bench.clocks import Clocks
from save_rl.envs.construction.graph import ACTIONS_PER_EDGE, AVAILABLE, feature_count
from save_rl.learning.replay import Transition
from save_rl.networks.graph import GraphNetwork
from save_rl.processes import usable_cores
from save_rl.training.devices import compiler_options, concurrent
from save_rl.training.learner import Learning
from save_rl.training.programs import make_program
from save_rl.training.settings import TrainSettings

NODES, BATCH, UPDATES = 32, 16, 16
_WARM_UP = 6  # lock-steps


def bench_graph(
    device: Any, lanes: int = 64, mixed: bool = False, repeats: int = 20
) -> dict[str, Any]:
    """Measure graphs of 32 nodes: updates on batches of 16, evaluations of `lanes` at once."""
    actions = AVAILABLE * (NODES - 1) * ACTIONS_PER_EDGE
    features = feature_count("covering")
    rng = np.random.default_rng(0)

    def graphs(*shape: int) -> dict[str, Any]:
        nodes = rng.normal(size=(*shape, NODES, features)).astype(np.float32)
        return jax.device_put({"nodes": nodes, "node_mask": np.ones((*shape, NODES), np.bool_)})

    learning = Learning(
        get_agent("save"),
        TrainSettings(env="covering", batch=BATCH),
        lambda key: GraphNetwork(features, NODES, AVAILABLE, ACTIONS_PER_EDGE, key, mixed=mixed),
    )
    learner = learning.initial(jax.random.PRNGKey(0))
    shape, options = (UPDATES, BATCH), concurrent(compiler_options(device)) or None
    zeros = jnp.zeros(shape)
    batches = Transition(
        observation=graphs(*shape),
        action=jnp.zeros(shape, jnp.int32),
        reward=zeros,
        discount=zeros,
        next_observation=graphs(*shape),
        target=jnp.zeros((*shape, actions)),
        mask=jnp.ones((*shape, actions), bool),
        next_mask=jnp.ones((*shape, actions), bool),
    )
    # Pass lists of arrays: flattening a network takes longer than the computation.
    leaves, structure = jax.tree.flatten(learner)
    update = jax.jit(
        lambda leaves, batches: jax.tree.leaves(
            learning.updates(
                jax.tree.unflatten(structure, leaves), batches, zeros, zeros > 0, 0.0, 0, True
            )
        ),
        compiler_options=options,
    )
    params, of_params = jax.tree.flatten(learner.params)
    evaluate = jax.jit(
        lambda params, seen: learning.network(jax.tree.unflatten(of_params, params))(seen)[0],
        compiler_options=options,
    )
    seen = graphs(lanes)
    seconds = median_seconds(
        {
            "update": lambda: jax.block_until_ready(update(leaves, batches)),
            "evaluate": lambda: jax.block_until_ready(evaluate(params, seen)),
        },
        repeats,
    )
    return {
        "nodes": NODES,
        "batch": BATCH,
        "lanes": lanes,
        "milliseconds_per_update": round(seconds["update"] / UPDATES * 1e3, 3),
        "graph_evaluations_per_second": round(lanes / seconds["evaluate"]),
    }


def bench_host_train(
    env: str, device: Any, lanes: int, workers: int, seconds: float
) -> dict[str, Any]:
    """Train SAVE and Q-learning for this many seconds each, after everything is compiled."""
    cases = []
    for agent in ("save", "q-learning"):
        settings = TrainSettings(env=env, agent=agent, lanes=lanes, chunk=1)
        settings.check()
        with closing(make_program(settings, device, workers=workers)) as program:
            cases.append(_case(program, settings, seconds))
    return {
        "device": device.device_kind,
        "env": env,
        "cores": usable_cores(),
        "cases": cases,
        **_graph_reports(device),
    }


def _graph_reports(device: Any) -> dict[str, Any]:
    """Measure the graph network; on GPUs also in mixed precision (CPUs only emulate bfloat16)."""
    if device.platform != "gpu":
        return {"graph_network": bench_graph(device, repeats=2)}
    return {
        "graph_network": bench_graph(device),
        "graph_network_mixed_precision": bench_graph(device, mixed=True),
    }


def _case(program: Any, settings: TrainSettings, seconds: float) -> dict[str, Any]:
    clocks = Clocks()
    clocks.watch("simulators", program.pool, "receive")
    clocks.watch("network", program.network, "ask")
    for search in program.searches:
        clocks.watch("network", search, "answer")
    clocks.watch("learning", program.updates, "begin", "go_on", "finish")
    state, step = program.begin(), 0

    def advance() -> None:
        nonlocal state, step
        state = program.advance(state, step)
        step += 1

    while step < settings.min_replay // settings.lanes + _WARM_UP:
        advance()
    before, made, counted = dict(clocks.seconds), program.counters(state), 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        advance()
        counted += 1
    jax.block_until_ready(jax.tree.leaves(program.params(state)))
    total = time.perf_counter() - started
    done = program.counters(state)
    shares = {name: (spent - before[name]) / total for name, spent in clocks.seconds.items()}
    shares["rest"] = 1 - sum(shares.values())

    def rate(name: str) -> float:
        return round(float((getattr(done, name) - getattr(made, name))[0]) / total, 1)

    return {
        "agent": settings.agent,
        "lanes": settings.lanes,
        "workers": program.pool.workers,
        "env_steps_per_second": rate("env_steps"),
        "simulations_per_second": rate("simulator_steps"),
        "updates_per_second": rate("updates"),
        "episode_length": round(float(done.length[0]), 1),
        "milliseconds_per_lock_step": round(total / counted * 1e3, 1),
        "share": {name: round(value, 3) for name, value in shares.items()},
    }
