"""The memory that a run needs, compared with what the machine has, before any work."""

from typing import Any

from save_rl.agents import get_agent, target_rows, target_width
from save_rl.envs.chance import is_stochastic
from save_rl.errors import InputError
from save_rl.training.settings import TrainSettings


def require_memory(settings: TrainSettings, env: Any, on_host: bool) -> None:
    """Refuse a replay and trees that need more memory than this machine has.

    Of agents that learn from transitions; R2D2's replay looks for itself. What is not counted, a
    network or a simulator, only adds to it.
    """
    import jax

    from save_rl.learning.sequence_replay import machine_memory
    from save_rl.search.rules import most_outcomes

    s = settings
    agent = get_agent(s.agent)
    if agent.recurrent:
        return
    arrays = jax.tree.leaves(shown_observation(env, on_host))
    shown = sum(x.size * x.dtype.itemsize for x in arrays)
    target = 4 * target_width(agent, env.num_actions)
    if on_host:  # see `host_replay.PackedTarget`
        target = target // 2 + 4 * target_rows(agent)[0]
    per_transition = 2 * shown + target
    # On the device every outcome of an action has its own numbers.
    chance = is_stochastic(env) and not on_host
    outcomes = most_outcomes(max(s.budget, s.test_budget)) if chance else 1
    per_node = 64 + (4 if on_host else 24) * env.num_actions * outcomes
    trees = s.lanes * (max(s.budget, s.test_budget) + 1) * per_node
    needs = {"--replay": s.replay * per_transition, "--budget": trees}
    memory = machine_memory()
    for option, bytes_needed in needs.items():
        total = bytes_needed * len(s.seeds)
        if total > memory:
            value = s.replay if option == "--replay" else s.budget
            raise InputError(
                f"{option}: {value} needs about {total / 2**30:,.0f} GiB here, and this machine "
                f"has {memory / 2**30:.1f}; give a smaller one, or smaller --lanes."
            )


def shown_observation(env: Any, on_host: bool) -> Any:
    """Return an observation of zeros; of a JAX environment, only shapes and dtypes."""
    import jax

    from save_rl.envs.layout import Layout

    if on_host:
        return Layout.of(env).example()
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    return jax.eval_shape(lambda key: env.observe(env.reset(key)), key)
