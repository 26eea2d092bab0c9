"""Callbacks that write a run's metrics elsewhere, by name: TensorBoard, JSON lines, W&B."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from save_rl.errors import MissingExtra, unknown_name
from save_rl.files import append, write_atomically
from save_rl.training.run.callbacks import RunStart, Test
from save_rl.training.run.events import EventFile

JSON_LINES = "metrics.jsonl"


def _scalars(row: dict[str, float]) -> dict[str, float]:
    """Return a line of metrics by names that tell the seeds apart."""
    seed = int(row["seed"])
    left_out = ("seed", "env_steps", "chunk")
    return {f"{name}/seed{seed}": float(x) for name, x in row.items() if name not in left_out}


class TensorBoard:
    """Writes TensorBoard events into the run folder, over real steps."""

    essential = True

    def on_start(self, run: RunStart) -> None:
        self._file = EventFile(run.folder)

    def on_metrics(self, row: dict[str, float]) -> None:
        self._file.write(_scalars(row), int(row["env_steps"]))


class JsonLines:
    """Appends every line of metrics and every test to `metrics.jsonl` in the run folder.

    A resumed run first cuts it back to its checkpoint, as it does with `metrics.csv`.
    """

    essential = True

    def on_start(self, run: RunStart) -> None:
        self._path = run.folder / JSON_LINES
        if self._path.exists():
            lines = self._path.read_bytes().splitlines(keepends=True)
            kept = b"".join(line for line in lines if _chunk(line) <= run.chunks)
            write_atomically(self._path, kept)

    def on_test(self, test: Test) -> None:
        returns = {str(seed): x.tolist() for seed, x in test.returns.items()}
        self._write({"kind": "test", **test._asdict(), "returns": returns})

    def on_metrics(self, row: dict[str, float]) -> None:
        self._write({"kind": "metrics", **row})

    def _write(self, what: dict[str, Any]) -> None:
        append(self._path, json.dumps(what).encode() + b"\n")


def _chunk(line: bytes) -> float:
    """Return the number of chunks of a line; infinity for a damaged one."""
    try:
        return float(json.loads(line)["chunk"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


class WandB:
    """Logs to Weights & Biases, a step per chunk; a resumed run goes on in the same W&B run.

    The project is that of WANDB_PROJECT, or save_rl.
    """

    def __init__(self) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtra(
                "--log: wandb, Weights & Biases, is not installed; install it with\n"
                "    pip install wandb"
            ) from error
        self._wandb: Any = wandb

    def on_start(self, run: RunStart) -> None:
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "save_rl"), name=run.folder.name,
            id=run.run_id or None, resume="allow", dir=str(run.folder),
            config=asdict(run.settings),
        )  # fmt: skip

    def on_metrics(self, row: dict[str, float]) -> None:
        steps = {f"env_steps/seed{int(row['seed'])}": row["env_steps"]}
        self._run.log({**_scalars(row), **steps}, step=int(row["chunk"]))

    def on_end(self) -> None:
        self._run.finish()


LOGGERS: dict[str, Any] = {"tensorboard": TensorBoard, "jsonl": JsonLines, "wandb": WandB}
USUAL = ("tensorboard",)


def make_loggers(names: Sequence[str]) -> list[Any]:
    """Return loggers by name, each once."""
    for name in names:
        if name not in LOGGERS:
            raise unknown_name("log", name, LOGGERS, "--log")
    return [LOGGERS[name]() for name in dict.fromkeys(names)]
