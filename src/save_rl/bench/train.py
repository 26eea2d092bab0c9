"""Training time on Tightrope by part: search, environment, learning, the rest.

Each part is timed as a separate compiled program over the same states and compared with the whole
lock-step; parts and whole alternate.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import get_agent
from save_rl.bench import median_seconds
from save_rl.envs.tightrope import tightrope
from save_rl.training.device.acting import run_search
from save_rl.training.device.trainer import DeviceTrainer
from save_rl.training.devices import compiler_options
from save_rl.training.settings import TrainSettings

_WARM_UP = 12  # chunks, until episodes are as long as those of a trained agent


def _case(agent_name: str, seeds: int, device: Any, repeats: int) -> dict[str, Any]:
    settings = TrainSettings(agent=agent_name, seeds=tuple(range(seeds)))
    agent = get_agent(agent_name)
    options = compiler_options(device)
    program = DeviceTrainer(settings, [tightrope(seed) for seed in settings.seeds], options)
    arrays, everybody = program.env_arrays, np.ones(seeds, np.bool_)
    state = program.initial(arrays, np.array(settings.seeds))
    for chunk in range(_WARM_UP):
        state = program.chunk(arrays, state, chunk * settings.chunk, everybody)
    steps = jnp.arange(settings.chunk) + _WARM_UP * settings.chunk

    def looped(part):
        """Compile `part(env, state, step, key)`, once per lock-step of a chunk, over all seeds."""

        def one_seed(env_arrays, seed_state):
            env = program.env(env_arrays)

            def body(carry, step):
                key = jax.random.fold_in(carry[0], step)
                return (key, part(env, carry[1], step, key)), None

            return jax.lax.scan(body, (seed_state.key, seed_state), steps)[0]

        compiled = jax.jit(jax.vmap(one_seed), compiler_options=options)
        return lambda: jax.block_until_ready(compiled(arrays, state))

    def whole(env, s, step, key):
        return program.lock_step(env, s, step)

    def search(env, s, step, key):
        result = run_search(
            agent, program.network(s.learner.params), env, s.env_states, rule=agent.search,
            budget=settings.budget, c=settings.c, discount=settings.discount, key=key,
            noise=agent.root_noise,
        )  # fmt: skip
        # The output must depend on the result, or the compiler would remove the search.
        return s._replace(episode_return=s.episode_return + result.q_values[:, 0] * 1e-9)

    def environment(env, s, step, key):
        action = jax.random.randint(key, (settings.lanes,), 0, env.num_actions)
        after, reward, terminated, _ = jax.vmap(env.step)(s.env_states, action)
        fresh = jax.vmap(env.reset)(jax.random.split(key, settings.lanes))
        states = jax.tree.map(lambda f, a: jnp.where(terminated, f, a), fresh, after)
        seen = jax.vmap(env.observe)(states).sum() * 1e-9
        return s._replace(env_states=states, episode_return=s.episode_return + reward + seen)

    def learning(env, s, step, key):
        return program.learn(s, key, step)

    parts = {"whole": whole, "search": search, "environment": environment, "learning": learning}
    seconds = median_seconds({name: looped(part) for name, part in parts.items()}, repeats)
    per_step = {name: value / settings.chunk for name, value in seconds.items()}
    total = per_step.pop("whole")
    shares = {name: value / total for name, value in per_step.items()}
    shares["rest"] = 1 - sum(shares.values())
    env_steps = seeds * settings.lanes / total
    simulations = env_steps * (settings.budget if agent.search is not None else 0)
    return {
        "agent": agent_name,
        "seeds": seeds,
        "lanes": settings.lanes,
        "env_steps_per_second": round(env_steps),
        "simulations_per_second": round(simulations),
        "updates_per_second": round(seeds * settings.updates_per_step / total),
        "milliseconds_per_lock_step": round(total * 1e3, 3),
        "share": {name: round(value, 3) for name, value in shares.items()},
    }


def bench_train(device: Any, seeds: tuple[int, ...], repeats: int = 7) -> dict[str, Any]:
    """Measure SAVE, Q-learning and PUCT with each number of seeds side by side."""
    return {
        "device": device.device_kind,
        "cases": [
            _case(agent, count, device, repeats)
            for count in seeds
            for agent in ("save", "q-learning", "puct")
        ],
    }
