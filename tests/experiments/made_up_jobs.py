"""What jobs do in tests: training and tests that take no time, and whatever a plan has them do."""

import json
import os
import signal
import sys
from types import ModuleType

import numpy as np

from save_rl.errors import InputError, Interrupted
from save_rl.experiments import jobs
from save_rl.training.run.interrupt import StopOnSignal
from tests.envs.pool_simulators import wait_until
from tests.experiments.made_up import open_run, write_line, write_tests

START = jobs._JOB.replace("save_rl.experiments.jobs", __name__)
PLAN = "SAVE_RL_MADE_UP_PLAN"
"""A variable of the environment: JSON, what runs do, by the names of their folders."""


def job(parent, task):
    """`jobs.job` with what takes time put aside; nothing of JAX is loaded."""
    for name, parts in {
        "save_rl.training.run.loop": {"train": train},
        "save_rl.evaluation": {"evaluate": evaluate, "evaluate_levels": None},
    }.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(parts)
    jobs.job(parent, task)


def train(chosen, folder, *, resume, device, workers, label, light_checkpoints):
    """Leave a run, and what it saw in `seen.json`; halfway it does what is planned."""
    todo, _, what = json.loads(os.environ.get(PLAN, "{}")).get(folder.name, "").partition(" ")
    if todo == "refuse":
        raise InputError("--out: not today.")
    directory = open_run(folder, chosen, resume)
    seen = {
        "pid": os.getpid(), "resume": resume, "device": device, "workers": workers, "label": label,
        "light": light_checkpoints,
        "preallocate": os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE"), "jax": "jax" in sys.modules,
    }  # fmt: skip
    write_line(directory, chosen, episodes=chosen.episodes // 2, return_mean=0.5)
    (folder / "seen.json.tmp").write_text(json.dumps(seen))
    (folder / "seen.json.tmp").replace(folder / "seen.json")
    if todo == "fail":
        raise ValueError("the moon is full\nand the night is long")
    if todo == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if todo == "after":
        wait_until((folder.parent / what).exists)
    if todo == "stop":
        with StopOnSignal() as stop:
            (folder / "ready").touch()
            wait_until(lambda: stop.code)
            (folder / "saved").write_text(str(stop.code))
            raise Interrupted("stopped", stop.code)
    write_line(directory, chosen, episodes=chosen.episodes, return_mean=chosen.seeds[0])
    directory.close()


def evaluate(folder, budgets, episodes, *, agent, out, last, baseline, append, device, workers):
    rewards = np.random.default_rng(len(folder.name)).normal(size=episodes) - last
    write_tests(out, {budget: rewards + budget for budget in budgets})
