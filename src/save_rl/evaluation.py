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
from save_rl.envs import check_jax_environment, is_python, make, make_all, make_simulator
from save_rl.errors import InputError, require
from save_rl.players import make_player
from save_rl.players import play as play_episode
from save_rl.report.files import write_atomically
from save_rl.training import checkpoint
from save_rl.training.acting import choose_action, run_search
from save_rl.training.device import Program
from save_rl.training.devices import select_device
from save_rl.training.progress import Progress, warn
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
    program: Program, episodes: int, budget: int
) -> Callable[[Any, Array], tuple[Array, Array]]:
    """A compiled test of all seeds of a program: `(params, keys) -> (returns, steps)`."""
    s = program.settings

    def one(arrays: Any, params: Any, key: Array) -> tuple[Array, Array]:
        return play(
            program.agent, program.network(params), program.env(arrays), key,
            episodes=episodes, budget=budget, c=s.c, discount=s.discount,
        )  # fmt: skip

    compiled = jax.jit(jax.vmap(one))
    return lambda params, keys: compiled(program.env_arrays, params, keys)


def evaluate_program(
    program: Program, params: Any, budgets: Sequence[int], episodes: int
) -> list[TestEpisodes]:
    """Test all seeds of a program with these parameters `[seeds, ...]` at every budget."""
    lanes, results = min(episodes, _LANES), []
    for budget in budgets:
        test = tester(program, lanes, budget)
        batches = []
        for batch in range(-(-episodes // lanes)):
            keys = [
                jax.random.fold_in(jax.random.PRNGKey(seed), 2**20 + batch)
                for seed in program.settings.seeds
            ]
            batches.append(test(params, jnp.stack(keys)))
        returns = np.concatenate([returns for returns, _ in batches], 1)[:, :episodes]
        steps = np.concatenate([steps for _, steps in batches], 1)[:, :episodes]
        results.append(TestEpisodes(budget, returns, steps))
    return results


def mean_and_error(result: TestEpisodes) -> tuple[float, float]:
    """Mean return over all episodes, and its standard error."""
    returns = result.returns
    return float(returns.mean()), float(returns.std() / np.sqrt(returns.size))


def _load_run(folder: Path) -> tuple[Program, Any]:
    """The program of a run and its newest parameters `[seeds, ...]`."""
    settings = read_settings(folder, "DIR")
    envs = make_all(settings.env, settings.seeds, **settings.env_options)
    program = Program(settings, envs)
    template = jax.eval_shape(program.initial, program.env_arrays, np.array(settings.seeds))
    found = checkpoint.load_newest(folder / "checkpoints", template, warn, "DIR")
    if found is None:
        raise InputError(f"DIR: '{folder}' has no checkpoint yet.")
    return program, found.state.learner.params


def _pure_search(
    env: str, name: str, seed: int, env_options: dict[str, Any]
) -> tuple[Program, Any]:
    """A program for an agent that learns nothing; its parameters are never looked at."""
    if get_agent(name).learns:
        raise InputError(f"--agent: '{name}' must be trained; give the folder of its run.")
    environment = make(env, seed, **env_options)
    check_jax_environment(environment, env)
    settings = TrainSettings(env=env, agent=name, seeds=(seed,), env_options=env_options)
    program = Program(settings, [environment])
    return program, program.initial(program.env_arrays, np.array([seed])).learner.params


def _play_simulator(
    env: str,
    agent: str,
    seed: int,
    options: dict[str, Any],
    budgets: Sequence[int],
    episodes: int,
) -> list[TestEpisodes]:
    """Test an agent that learns nothing on a simulator for Python, episode by episode."""
    sim = make_simulator(env, seed, **options)
    results = []
    for budget in budgets:
        player = make_player(agent, sim, budget)
        returns, steps = np.zeros((1, episodes)), np.zeros((1, episodes), int)
        with Progress(f"{env}, {agent}, budget {budget}", episodes, "episodes") as progress:
            for i in range(episodes):
                episode = play_episode(sim, player, seed * 2**20 + i)
                returns[0, i], steps[0, i] = episode.total, len(episode.moves)
                progress.update(i + 1, f"reward {returns[0, : i + 1].mean():.2f}")
        results.append(TestEpisodes(budget, returns, steps))
    return results


def _write(path: Path, results: list[TestEpisodes], seeds: Sequence[int]) -> None:
    """Write `budget,episode,return,steps`, and the seed where there are several."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    several = len(seeds) > 1
    writer.writerow(["budget", "episode", "return", "steps", *["seed"] * several])
    for result in results:
        for seed, returns, steps in zip(seeds, result.returns, result.steps, strict=True):
            for episode, (value, length) in enumerate(zip(returns, steps, strict=True)):
                writer.writerow([result.budget, episode, float(value), length, *[seed] * several])
    write_atomically(path, text.getvalue())


def evaluate(
    run: str | Path,
    budgets: Sequence[int] = (0, 5, 10, 20, 50),
    episodes: int = 100,
    *,
    agent: str | None = None,
    seed: int = 0,
    env_options: dict[str, Any] | None = None,
    out: str | Path | None = None,
    device: str = "auto",
) -> list[TestEpisodes]:
    """Test the run in a folder at every budget and write its `evaluation.csv`.

    With `agent`, which must be one that learns nothing, `run` is an environment instead: `uct`,
    and on simulators for Python `random` and `scripted`, which have no budget (it is written as 0).
    """
    if agent in ("random", "scripted"):
        budgets = (0,)
    require(len(budgets) > 0, "--budgets", "()", "at least one number")
    lowest = 1 if agent == "uct" else 0
    for budget in budgets:
        require(budget >= lowest, "--budgets", budget, f"at least {lowest}")
    require(episodes > 0, "--episodes", episodes, "at least 1")
    require(seed >= 0, "--seed", seed, "0 or more")
    options, seeds = env_options or {}, (seed,)
    target = Path(out) if out else Path("evaluation.csv" if agent else Path(run) / "evaluation.csv")
    if out:
        target.parent.mkdir(parents=True, exist_ok=True)
    if agent is not None and is_python(str(run)):
        results = _play_simulator(str(run), agent, seed, options, budgets, episodes)
    else:
        with jax.default_device(select_device(device)):
            if agent is None:
                program, params = _load_run(Path(run))
                seeds = program.settings.seeds
            else:
                program, params = _pure_search(str(run), agent, seed, options)
            results = evaluate_program(program, params, budgets, episodes)
    _write(target, results, seeds)
    return results
