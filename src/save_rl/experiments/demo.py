"""A one-minute demo of SAVE: three agents learn Tightrope; a table and a figure show the result."""

import shutil
from pathlib import Path
from typing import Any

AGENTS = ("save", "q-learning", "puct")
EPISODES = 12_000
BUDGETS = (0, 5, 10, 20)
TESTS = 200
_MARKER = "demo.txt"


def run(out: Path, episodes: int = EPISODES, tests: int = TESTS) -> dict[str, Any]:
    """Train, test at several budgets, print the table and write `curve.png`.

    Replaces the folder of an earlier demo.
    """
    from rich.console import Console

    from save_rl.errors import InputError
    from save_rl.evaluation import evaluate_parameters, mean_and_error
    from save_rl.files import is_empty, write_atomically
    from save_rl.report.plots import budget_table, curve_figure
    from save_rl.training.run.loop import train
    from save_rl.training.settings import TrainSettings

    console = Console()
    marker = out / _MARKER
    if marker.exists():
        shutil.rmtree(out)
    elif not is_empty(out):
        raise InputError(
            f"--out: '{out}' holds something other than a demo; choose another folder."
        )
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(marker, "This folder is replaced by the next demo.\n")
    console.print(
        "Tightrope: 11 states, 100 actions each, 95 of them fatal; reward 1 only at the goal.\n"
        f"Three agents train for {episodes:,} episodes with at most 10 simulations per step."
    )
    curves, table = {}, {}
    for agent in AGENTS:
        settings = TrainSettings(agent=agent, episodes=episodes, test_episodes=tests)
        result = train(settings, out / agent, label=f"{agent:<10}")
        rows = result.metrics
        curves[agent] = ([r["episodes"] for r in rows], [r["test_return"] for r in rows])
        params = result.trainer.params(result.state)
        tested = evaluate_parameters(result.trainer, params, BUDGETS, tests)
        table[agent] = {result.budget: mean_and_error(result) for result in tested}
    title = f"Test reward after {episodes:,} episodes, {tests} test episodes, seed 0"
    console.print(budget_table(table, title))
    curve_figure(
        curves, out / "curve.png", title="Tightrope, sparse reward, 95 % of actions fatal",
        x_label="Training episodes", y_label="Test reward", log_x=False,
    )  # fmt: skip
    console.print(f"The learning curves are in {out / 'curve.png'}")
    return table
