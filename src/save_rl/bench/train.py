"""Training time on a JAX environment by part: search, environment, learning, the rest.

The whole is the compiled program of a run. Each part is a program of its own over the same states;
parts and whole take turns.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import get_agent
from save_rl.bench import median_seconds
from save_rl.envs import ENVIRONMENTS, make_all
from save_rl.envs.chance import lucky_step
from save_rl.experiments import suites
from save_rl.experiments.runs import check_agents
from save_rl.training.device.acting import evaluator, run_search
from save_rl.training.device.trainer import DeviceTrainer, SeedState
from save_rl.training.devices import compiler_options
from save_rl.training.settings import TrainSettings

AGENTS = ("save", "q-learning")
_WARM_UP = 12  # chunks, until episodes are as long as those of a trained agent
_KEPT = 1e-9  # weight with which a part's results enter its output, so that none is optimised away


def settings_of(env: str, agent: str, seeds: int, lanes: int) -> TrainSettings:
    """Return the settings to measure: the paper's on Tightrope, elsewhere those of `minatar`."""
    check_agents((agent,))
    if env in ENVIRONMENTS:
        chosen = TrainSettings(env=env, agent=agent, seeds=tuple(range(seeds)), lanes=lanes)
    else:
        axes = suites.SuiteAxes((env,), steps=1, seeds=seeds, lanes=lanes)
        chosen = suites.settings(axes, env, agent)
    chosen.check()
    return chosen


def _parts(trainer: DeviceTrainer, simulations: int) -> dict[str, tuple[Callable, Callable]]:
    """Return the parts of a lock-step of one seed, by name.

    Each is a function that returns what it carries from lock-step to lock-step, from a `SeedState`,
    and the part itself, `part(env, state, carried, step, key)`, which returns it anew.
    """
    s, agent = trainer.settings, trainer.agent

    def search(env, state: SeedState, carried, step, key):
        result = run_search(
            agent, trainer.network(state.learner.params), env, state.env_states, rule=agent.search,
            budget=s.budget, c=s.c, discount=s.discount, key=key, noise=agent.root_noise,
        )  # fmt: skip
        return carried + result.q_values[:, 0] * _KEPT

    def network(env, state: SeedState, carried, step, key):
        """Evaluate as often as a search does: the root and every simulation."""
        evaluate = evaluator(agent, trainer.network(state.learner.params), env, s.discount)

        def once(_, total):
            # Depends on the evaluation before, as in a search.
            states = jax.tree.map(lambda x: x + (total[0] > 1e6).astype(x.dtype), state.env_states)
            prior, value = evaluate(states, key)
            return total + (value + prior[:, 0]) * _KEPT

        return jax.lax.fori_loop(0, simulations + 1, once, carried)

    def simulator(env, state: SeedState, carried, step, key):
        """Step as often as a search does."""

        def once(i, carried):
            states, total = carried
            states, reward, terminated, _ = _random_steps(env, states, jax.random.fold_in(key, i))
            return states, total + (reward + terminated) * _KEPT

        return jax.lax.fori_loop(0, simulations, once, carried)

    def environment(env, state: SeedState, carried, step, key):
        """Take a real step, begin episodes anew and observe before and after."""
        states, total = carried
        after, reward, terminated, truncated = _random_steps(env, states, key)
        over = terminated | truncated
        fresh = jax.vmap(env.reset)(jax.random.split(key, s.lanes))

        def restart(new, old):
            return jnp.where(over.reshape(-1, *[1] * (old.ndim - 1)), new, old).astype(old.dtype)

        seen = jax.tree.leaves([jax.vmap(env.observe)(x) for x in (states, after)])
        total = total + reward + sum(x.astype(jnp.float32).sum() for x in seen) * _KEPT
        return jax.tree.map(restart, fresh, after), total

    def learning(env, state: SeedState, carried, step, key):
        return trainer.learn(state._replace(learner=carried), key, step).learner

    def zeros(state: SeedState):
        return jnp.zeros(s.lanes)

    def states_and_zeros(state: SeedState):
        return state.env_states, jnp.zeros(s.lanes)

    parts: dict[str, tuple[Callable, Callable]] = {
        "search": (zeros, search),
        "environment": (states_and_zeros, environment),
        "learning": (lambda state: state.learner, learning),
    }
    if simulations:
        parts |= {"network": (zeros, network), "simulator": (states_and_zeros, simulator)}
    return parts


def _random_steps(env: Any, states: Any, key: Any) -> tuple[Any, Any, Any, Any]:
    lanes = jax.tree.leaves(states)[0].shape[0]
    action_key, luck_key = jax.random.split(key)
    action = jax.random.randint(action_key, (lanes,), 0, env.num_actions)
    return jax.vmap(lucky_step(env))(states, action, jax.random.split(luck_key, lanes))


def _looped(trainer: DeviceTrainer, start: Callable, part: Callable) -> Any:
    """Return a program that makes a part of every lock-step of a chunk, for all seeds."""

    def one_seed(env_arrays, state, first):
        env = trainer.env(env_arrays)

        def body(carried, step):
            return part(env, state, carried, step, jax.random.fold_in(state.key, step)), None

        steps = first + jnp.arange(trainer.settings.chunk)
        return jax.lax.scan(body, start(state), steps)[0]

    return jax.jit(
        jax.vmap(one_seed, in_axes=(0, 0, None)), compiler_options=trainer.compiler_options
    )


class _Run:
    """A run that is measured: its trainer, its state and the number of lock-steps made."""

    def __init__(self, settings: TrainSettings, device: Any):
        envs = make_all(settings.env, settings.seeds, **settings.all_env_options)
        self.trainer = DeviceTrainer(settings, envs, compiler_options(device))
        self.state, self.step = self.trainer.begin(), 0
        self._running = np.ones(len(settings.seeds), np.bool_)
        began = time.perf_counter()
        lowered = self.trainer.chunk.lower(  # pyright: ignore[reportFunctionMemberAccess]
            self.trainer.env_arrays, self.state, self.step, self._running
        )
        self._chunk = lowered.compile()
        self.compile_seconds = time.perf_counter() - began

    def advance(self) -> None:
        """Make the lock-steps of a chunk."""
        self.state = self._chunk(self.trainer.env_arrays, self.state, self.step, self._running)
        self.step += self.trainer.settings.chunk
        jax.block_until_ready(self.state)

    def part(self, start: Callable, part: Callable) -> Callable[[], Any]:
        """Compile a part of the lock-steps of a chunk."""
        looped = _looped(self.trainer, start, part)
        compiled = looped.lower(self.trainer.env_arrays, self.state, self.step).compile()
        return lambda: jax.block_until_ready(
            compiled(self.trainer.env_arrays, self.state, self.step)
        )


def _case(settings: TrainSettings, device: Any, repeats: int, parts: bool) -> dict[str, Any]:
    run, agent = _Run(settings, device), get_agent(settings.agent)
    for _ in range(_WARM_UP):
        run.advance()
    simulations = settings.budget if agent.search is not None else 0
    measured: dict[str, Callable[[], Any]] = {"whole": run.advance}
    if parts:
        made = _parts(run.trainer, simulations)
        with ThreadPoolExecutor() as threads:
            compiled = {
                name: threads.submit(_on, device, run.part, *part) for name, part in made.items()
            }
        measured |= {name: done.result() for name, done in compiled.items()}
    per_step = {
        name: value / settings.chunk for name, value in median_seconds(measured, repeats).items()
    }
    total, seeds = per_step.pop("whole"), len(settings.seeds)
    shares = {name: value / total for name, value in per_step.items()}
    inside = {name: shares.pop(name) for name in ("network", "simulator") if name in shares}
    if shares:
        shares["rest"] = 1 - sum(shares.values())
    if inside:
        inside["tree"] = shares["search"] - sum(inside.values())
    env_steps = seeds * settings.lanes / total
    return {
        "agent": settings.agent,
        "seeds": seeds,
        "lanes": settings.lanes,
        "batch": settings.batch,
        "env_steps_per_second": round(env_steps),
        "simulations_per_second": round(env_steps * simulations),
        "updates_per_second": round(seeds * settings.updates_per_step / total),
        "milliseconds_per_lock_step": round(total * 1e3, 3),
        "compile_seconds": round(run.compile_seconds, 1),
        "share": {name: round(value, 3) for name, value in shares.items()},
        "share_of_search": {name: round(value, 3) for name, value in inside.items()},
    }


def _on(device: Any, function: Callable, *arguments: Any) -> Any:
    """Call a function with a default device, which threads do not inherit."""
    with jax.default_device(device):
        return function(*arguments)


def bench_train(
    env: str, device: Any, seeds: Sequence[int], lanes: int = 64, agents: Sequence[str] = AGENTS,
    parts: bool = True, repeats: int = 7,
) -> dict[str, Any]:  # fmt: skip
    """Measure agents with each number of seeds side by side, on a JAX environment.

    parts: measure where the time goes, too.
    """
    runs = [settings_of(env, agent, count, lanes) for count in seeds for agent in agents]
    return {
        "device": device.device_kind,
        "env": env,
        "cases": [_case(settings, device, repeats, parts) for settings in runs],
    }
