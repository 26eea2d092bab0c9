"""Compile the kernels that most tests need, once: two test workers would each compile them.

`make test` runs this beside the linters, once with `construction` and once with `search`.
"""

import sys
from typing import Any

import numpy as np


def construction() -> None:
    from save_rl.envs import make_simulator

    for task in ("covering", "marble-run"):
        env: Any = make_simulator(task)
        env.compile_ahead()


def search() -> None:
    from save_rl import search
    from save_rl.agents import get_agent
    from save_rl.envs.tightrope import tightrope_simulator
    from save_rl.search.slots import best_actions
    from save_rl.training.host import acting
    from save_rl.training.tabular import TabularSettings, train_and_test
    from tests.search.table_simulators import maze

    tiny = TabularSettings(episodes=1, test_episodes=1)
    train_and_test(get_agent("save"), tightrope_simulator(0), 2, 0, tiny)
    simulator = maze(0)
    actions = simulator.num_actions
    search.save(
        simulator, [simulator.reset(0)], lambda seen: np.zeros((len(seen), actions)), budget=2
    )
    acting.compile_ahead()
    row, number = np.zeros((1, 3), np.float32), np.zeros(1, np.int32)
    prior = np.zeros((1, 5), np.float32)
    prior.flags.writeable = False  # as arrays of JAX are
    best_actions(prior, 0, row, np.zeros((1, 3), np.int32), number, number.copy())


if __name__ == "__main__":
    {"construction": construction, "search": search}[sys.argv[1]]()
