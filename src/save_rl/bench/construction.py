"""Training time on simulators by part and thread: simulators, network, learning, the rest.

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
from save_rl.envs import ENVIRONMENTS
from save_rl.envs.construction.graph import ACTIONS_PER_EDGE, AVAILABLE, feature_count
from save_rl.envs.pool import Pool
from save_rl.learning.replay import Transition
from save_rl.networks.graph import GraphNetwork
from save_rl.processes import usable_cores
from save_rl.search.simulators import LaneSearch
from save_rl.training.devices import compiler_options, host_options
from save_rl.training.host import collector, evaluator, learner, updates
from save_rl.training.host.actor import Actor
from save_rl.training.host.trainer import HostTrainer
from save_rl.training.learner import Learning
from save_rl.training.run.trainers import make_trainer
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
    shape, options = (UPDATES, BATCH), host_options(compiler_options(device)) or None
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
    env: str, device: Any, lanes: int, workers: int, seconds: float,
    seeds: tuple[int, ...] = (1,), agents: tuple[str, ...] = ("save", "q-learning"),
) -> dict[str, Any]:  # fmt: skip
    """Train agents for this many seconds each, after everything is compiled.

    seeds: numbers of seeds to train together, a case each.
    """
    cases = []
    for agent in agents:
        for count in seeds:
            settings = TrainSettings(
                env=env, agent=agent, seeds=tuple(range(count)), lanes=lanes, chunk=1
            )
            settings.check()
            cases.append(_case(settings, device, workers, seconds))
    graphs = _graph_reports(device) if env in ENVIRONMENTS else {}
    return {
        "device": device.device_kind,
        "env": env,
        "cores": usable_cores(),
        "cases": cases,
        **graphs,
    }


def _graph_reports(device: Any) -> dict[str, Any]:
    """Measure the graph network; on GPUs also in mixed precision (CPUs only emulate bfloat16)."""
    if device.platform != "gpu":
        return {"graph_network": bench_graph(device, repeats=2)}
    return {
        "graph_network": bench_graph(device),
        "graph_network_mixed_precision": bench_graph(device, mixed=True),
    }


def _watch(clocks: Clocks) -> None:
    """Time the parts of a lock-step."""
    clocks.watch("send to simulators", Pool, "send")
    clocks.watch("wait for simulators", Pool, "receive")
    clocks.watch("hand to network", evaluator.NetworkEvaluator, "ask")
    clocks.watch("wait for network", evaluator.Lists, "write")
    clocks.watch("wait for network", evaluator.SeedRows, "write")
    clocks.watch("hand over updates", updates.Updates, "_hand_over")
    clocks.watch("wait for updates", updates.Updates, "finish")
    clocks.watch("sample", learner.HostLearner, "updates")
    clocks.watch("replay", learner.HostLearner, "record")
    clocks.watch("wait for simulators or network", LaneSearch, "_next")
    clocks.watch("search and act", Actor, "act")
    clocks.watch("transitions", collector.Collector, "step")


def _case(settings: TrainSettings, device: Any, workers: int, seconds: float) -> dict[str, Any]:
    seeds = len(settings.seeds)
    running, step, began = np.ones(seeds, np.bool_), 0, time.perf_counter()
    with (
        closing(make_trainer(settings, device, workers=workers)) as trainer,
        Clocks() as clocks,
    ):
        assert isinstance(trainer, HostTrainer)
        _watch(clocks)
        state = trainer.begin()

        def finish() -> None:
            jax.block_until_ready(jax.tree.leaves(trainer.params(state)))

        learned = 0.0  # seconds until the first update
        while step < settings.min_replay // settings.lanes + _WARM_UP:
            state, step = trainer.advance(state, step, running), step + 1
            if not learned and state.updates.any():
                finish()
                learned = time.perf_counter() - began
        finish()
        clocks.seconds.clear()
        made, counted, longest = trainer.counters(state), 0, 0.0
        started = last = time.perf_counter()
        while last - started < seconds:
            state, step = trainer.advance(state, step, running), step + 1
            counted, longest = counted + 1, max(longest, time.perf_counter() - last)
            last = time.perf_counter()
        finish()
        total = time.perf_counter() - started
        done = trainer.counters(state)
        spent = dict(clocks.seconds)
        used = trainer.pool.workers

    def rate(name: str) -> float:
        return round(float((getattr(done, name) - getattr(made, name)).sum()) / total, 1)

    parts = {f"{thread}: {name}": value / total for (thread, name), value in spent.items()}
    mine = sum(value for (thread, _), value in spent.items() if thread == "main") / total
    shares = {**dict(sorted(parts.items())), "main: rest": 1 - mine}
    return {
        "agent": settings.agent,
        "seeds": seeds,
        "lanes": settings.lanes,
        "workers": used,
        "env_steps_per_second": rate("env_steps"),
        "simulations_per_second": rate("simulator_steps"),
        "updates_per_second": rate("updates"),
        "episode_length": round(float(done.length.mean()), 1),
        "milliseconds_per_lock_step": round(total / counted * 1e3, 1),
        "longest_lock_step_milliseconds": round(longest * 1e3, 1),
        "seconds_to_first_update": round(learned, 1),
        "share": {name: round(value, 3) for name, value in shares.items()},
    }
