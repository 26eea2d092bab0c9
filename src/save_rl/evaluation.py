"""Testing an agent without exploration, at any search budget."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import Agent, get_agent
from save_rl.envs import check_jax_environment, make
from save_rl.errors import InputError, require
from save_rl.report.files import write_atomically
from save_rl.training import checkpoint
from save_rl.training.acting import choose_action, run_search
from save_rl.training.device import Program, stack_envs
from save_rl.training.devices import select_device
from save_rl.training.run_directory import read_settings
from save_rl.training.settings import TrainSettings
from save_rl.types import Array, Simulator

_LANES = 256
_MAX_STEPS = 1000  # of a test episode, in environments that say no `max_steps` of their own


class TestEpisodes(NamedTuple):
    """Test episodes at one budget; arrays `[seeds, episodes]`."""

    budget: int
    returns: np.ndarray
    steps: np.ndarray


def play(
    agent: Agent, network: Any, env: Simulator, key: Array, *,
    episodes: int, budget: int, c: float, discount: float,
) -> tuple[Array, Array]:  # fmt: skip
    """Returns and lengths of `episodes` test episodes, side by side; jittable."""
    limit = getattr(env, "max_steps", _MAX_STEPS)
    reset_key, key = jax.random.split(key)
    states = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))
    zeros = jnp.zeros(episodes)

    def unfinished(carry):
        _, _, _, over, t = carry
        return ~jnp.all(over) & (t < limit)

    def step(carry):
        states, returns, steps, over, t = carry
        search_key, action_key = jax.random.split(jax.random.fold_in(key, t))
        result = run_search(
            agent, network, env, states, rule=agent.test_search, budget=budget, c=c,
            discount=discount, key=search_key,
        )  # fmt: skip
        actions = jax.vmap(lambda r, k: choose_action(agent, r, None, k))(
            result, jax.random.split(action_key, episodes)
        )
        after, reward, terminated, truncated = jax.vmap(env.step)(states, actions)
        returns = returns + jnp.where(over, 0.0, reward)
        return after, returns, steps + ~over, over | terminated | truncated, t + 1

    start = (states, zeros, zeros.astype(jnp.int32), zeros > 0, 0)
    _, returns, steps, _, _ = jax.lax.while_loop(unfinished, step, start)
    return returns, steps


def tester(
    program: Program, episodes: int, budget: int, agent: Agent | None = None
) -> Callable[[Any, Array], tuple[Array, Array]]:
    """A compiled test of all seeds of a program: `(params, keys) -> (returns, steps)`."""
    s = program.settings

    def one(arrays: Any, params: Any, key: Array) -> tuple[Array, Array]:
        return play(
            agent or program.agent, program.network(params), program.env(arrays), key,
            episodes=episodes, budget=budget, c=s.c, discount=s.discount,
        )  # fmt: skip

    compiled = jax.jit(jax.vmap(one))
    return lambda params, keys: compiled(program.env_arrays, params, keys)


def _batches(run: Callable[[Array], tuple[Array, Array]], seeds: Sequence[int], episodes: int,
             lanes: int, budget: int) -> TestEpisodes:  # fmt: skip
    """Collect `episodes` test episodes in batches of `lanes`."""
    returns, steps = [], []
    for batch in range(-(-episodes // lanes)):
        keys = jnp.stack(
            [jax.random.fold_in(jax.random.PRNGKey(seed), 2**20 + batch) for seed in seeds]
        )
        for collected, new in zip((returns, steps), run(keys), strict=True):
            collected.append(np.asarray(new))
    return TestEpisodes(
        budget,
        np.concatenate(returns, 1)[:, :episodes],
        np.concatenate(steps, 1)[:, :episodes],
    )


def check_evaluation(budgets: Sequence[int], episodes: int) -> None:
    """Refuse impossible numbers."""
    require(len(budgets) > 0, "--budgets", "()", "at least one number")
    for budget in budgets:
        require(budget >= 0, "--budgets", budget, "0 or more")
    require(episodes > 0, "--episodes", episodes, "at least 1")


def evaluate_program(
    program: Program, params: Any, budgets: Sequence[int], episodes: int
) -> list[TestEpisodes]:
    """Test all seeds of a program with these parameters `[seeds, ...]` at every budget."""
    lanes = min(episodes, _LANES)
    results = []
    for budget in budgets:
        test = tester(program, lanes, budget)
        results.append(
            _batches(
                lambda keys, test=test: test(params, keys),
                program.settings.seeds, episodes, lanes, budget,
            )  # fmt: skip
        )
    return results


def evaluate_search(
    env: str, agent_name: str, budgets: Sequence[int], episodes: int, *,
    seed: int = 0, c: float = 2.0, discount: float = 0.99, **env_options: Any,
) -> list[TestEpisodes]:  # fmt: skip
    """Test an agent that learns nothing (UCT) on an environment."""
    agent = get_agent(agent_name)
    if agent.learns:
        raise InputError(
            f"--agent: '{agent_name}' must be trained first; give the folder of its run instead "
            f"of '{env}'."
        )
    environment = make(env, seed, **env_options)
    check_jax_environment(environment, env)
    arrays, _ = stack_envs([environment])
    del arrays
    lanes = min(episodes, _LANES)
    results = []
    for budget in budgets:
        require(budget > 0, "--budgets", budget, f"at least 1 for '{agent_name}'")
        run = jax.jit(
            jax.vmap(
                lambda key, budget=budget: play(
                    agent, None, environment, key, episodes=lanes, budget=budget, c=c,
                    discount=discount,
                )  # fmt: skip
            )
        )
        results.append(_batches(run, [seed], episodes, lanes, budget))
    return results


def load_run(folder: Path, warn: Callable[[str], None]) -> tuple[Program, Any]:
    """The program of a run and its newest parameters `[seeds, ...]`."""
    settings: TrainSettings = read_settings(folder, "DIR")
    envs = [make(settings.env, seed, **settings.env_options) for seed in settings.seeds]
    program = Program(settings, envs)
    template = jax.eval_shape(program.initial, program.env_arrays, np.array(settings.seeds))
    found = checkpoint.load_newest(folder / "checkpoints", template, warn)
    if found is None:
        raise InputError(f"DIR: '{folder}' has no checkpoint yet.")
    return program, found.state.learner.params


def write_evaluation(path: Path, results: list[TestEpisodes], seeds: Sequence[int]) -> None:
    """Write `evaluation.csv`: `budget,episode,return,steps`, and the seed where there are many."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    many = len(seeds) > 1
    writer.writerow(["budget", "episode", "return", "steps", *(["seed"] if many else [])])
    for result in results:
        for row, seed in enumerate(seeds):
            for episode in range(result.returns.shape[1]):
                cells = [result.budget, episode, float(result.returns[row, episode]),
                         int(result.steps[row, episode])]  # fmt: skip
                writer.writerow([*cells, seed] if many else cells)
    write_atomically(path, text.getvalue())


def evaluate(
    run: str | Path, budgets: Sequence[int] = (0, 5, 10, 20, 50), episodes: int = 100,
    device: str = "auto",
) -> list[TestEpisodes]:  # fmt: skip
    """Test the run in a folder at every budget and write its `evaluation.csv`."""
    import warnings

    check_evaluation(budgets, episodes)
    folder = Path(run)
    with jax.default_device(select_device(device)):
        program, params = load_run(folder, warnings.warn)
        results = evaluate_program(program, params, budgets, episodes)
    write_evaluation(folder / "evaluation.csv", results, program.settings.seeds)
    return results
