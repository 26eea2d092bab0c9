"""The trainer of a run, chosen by its environment and its agent."""

from collections.abc import Sequence
from typing import Any

from save_rl.agents import AGENTS, Agent, get_agent
from save_rl.envs import make_all, runs_on_host
from save_rl.envs.layout import Layout
from save_rl.envs.pool import Source
from save_rl.envs.watchdog import WATCHDOG
from save_rl.errors import InputError, require
from save_rl.processes import usable_cores
from save_rl.search.rules import PAPER_RULES
from save_rl.training.device.trainer import DeviceTrainer
from save_rl.training.devices import compiler_options
from save_rl.training.host.trainer import HostTrainer
from save_rl.training.memory import require_memory
from save_rl.training.networks import require_network_memory
from save_rl.training.r2d2.setup import shows_frames
from save_rl.training.r2d2.trainer import R2D2Trainer
from save_rl.training.run.progress import warn
from save_rl.training.settings import TrainSettings
from save_rl.training.trainer import Trainer
from save_rl.types import Simulator


def make_trainer(
    settings: TrainSettings,
    target: Any,
    *,
    workers: int = -1,
    step_timeout: float = 0.0,
    test_lanes: int = 0,
    train: bool = True,
    plays: Agent | None = None,
    budgets: Sequence[int] = (),
) -> Trainer:
    """Return the trainer of a run: in JAX for a JAX environment, else over a pool of simulators.

    target: JAX device. workers: processes, -1 for one per core. test_lanes: lanes of simulators for
    tests; without `train`, the only lanes. plays: the agent that searches and acts, if it is not
    the one that learns. budgets: of tests.
    """
    require(workers >= -1, "--workers", workers, "-1 (one per core), 0 (no processes) or more")
    require(step_timeout >= 0, "--step-timeout", step_timeout, "0 (none) or more")
    envs, on_host = environments(settings, plays)
    if train:
        require_memory(settings, envs[0], on_host)
        require_network_memory(settings, envs[0], on_host)
    if not on_host:
        if plays is not None:
            raise InputError(
                f"--agent: '{plays.name}' searches over a run's network only on Python "
                f"simulators, and '{settings.env}' is written in JAX."
            )
        return DeviceTrainer(settings, envs, compiler_options(target), budgets)
    count = usable_cores() if workers < 0 else workers
    if count == 1 and workers < 0:
        count = 0
    require(
        step_timeout == 0 or count > 0, "--step-timeout", step_timeout,
        "0 without worker processes: nobody could end a simulator that hangs",
    )  # fmt: skip
    sources = [Source(settings.env, seed, settings.all_env_options) for seed in settings.seeds]
    places: dict[str, Any] = {
        "workers": min(count, settings.lanes), "timeout": step_timeout, "test_lanes": test_lanes,
        "train": train, "warn": warn, "options": compiler_options(target), "budgets": budgets,
    }  # fmt: skip
    if get_agent(settings.agent).recurrent:
        return R2D2Trainer(settings, envs, sources, **places)
    return HostTrainer(settings, envs, sources, plays=plays, **places)


def environments(
    settings: TrainSettings, plays: Agent | None = None
) -> tuple[list[Simulator], bool]:
    """Return an environment per seed, and whether they are Python simulators."""
    with WATCHDOG:
        envs = make_all(settings.env, settings.seeds, **settings.all_env_options)
        on_host = runs_on_host(envs[0], settings.env)
    _check_frames(settings, envs[0], on_host, plays)
    agent = get_agent(settings.agent)
    if on_host and not {agent.search, agent.test_search} <= {None, *PAPER_RULES}:
        raise InputError(
            f"--agent: '{agent.name}' searches with mctx, which needs an environment in JAX, and "
            f"'{settings.env}' is a Python simulator."
        )
    return envs, on_host


def _check_frames(settings: TrainSettings, env: Any, on_host: bool, plays: Agent | None) -> None:
    """Refuse frames without a recurrent agent, and a recurrent agent without frames."""
    agent = get_agent(settings.agent)
    frames = on_host and shows_frames(Layout.of(env))
    if agent.recurrent and not frames:
        raise InputError(
            f"--agent: '{agent.name}' learns from frames, and '{settings.env}' shows none; it "
            "needs atari/GAME, or a Python simulator with the same observations."
        )
    if agent.recurrent and hasattr(env, "action_mask"):
        raise InputError(
            f"--agent: '{agent.name}' takes any action in any state, and '{settings.env}' has an "
            "action_mask; leave it out, and let forbidden actions do nothing."
        )
    if frames and not agent.recurrent:
        known = ", ".join(name for name, row in AGENTS.items() if row.recurrent)
        raise InputError(
            f"--agent: '{agent.name}' can't learn from the frames of '{settings.env}'; use one of "
            f"{known}."
        )
    if agent.recurrent and plays is not None:
        raise InputError(
            f"--agent: '{plays.name}' can't search over a network with a memory, as "
            f"'{agent.name}' has; leave --agent out."
        )
