"""SAVE, "Search with Amortized Value Estimates" (Hamrick et al. 2020), for small search budgets.

    import save_rl
    run = save_rl.train("tightrope", agent="save", episodes=20_000, out="runs/first")
    save_rl.evaluate("runs/first", budgets=(0, 10))
    policy = save_rl.load("runs/first")

Nothing heavy is imported before it is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from save_rl.api import train
    from save_rl.comparison import compare
    from save_rl.envs import make
    from save_rl.envs.check import check
    from save_rl.errors import StopTraining
    from save_rl.evaluation import evaluate
    from save_rl.policy import load
    from save_rl.search import SearchModule
    from save_rl.training.run.callbacks import Callback

    search: SearchModule

__version__ = "0.2.0"
__all__ = [
    "Callback",
    "StopTraining",
    "check",
    "compare",
    "evaluate",
    "load",
    "make",
    "search",
    "train",
]

_HOMES = {
    "Callback": "save_rl.training.run.callbacks",
    "StopTraining": "save_rl.errors",
    "train": "save_rl.api",
    "make": "save_rl.envs",
    "check": "save_rl.envs.check",
    "compare": "save_rl.comparison",
    "evaluate": "save_rl.evaluation",
    "load": "save_rl.policy",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "search":
        return importlib.import_module("save_rl.search")
    raise AttributeError(f"module 'save_rl' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", "__doc__", "__path__", "__file__"})
