"""The folder of a training run: `config.json`, `metrics.csv`, TensorBoard events, checkpoints."""

import csv
import io
import json
import os
import platform
import subprocess
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, get_type_hints

from save_rl.agents import get_agent
from save_rl.errors import InputError
from save_rl.report.files import append, is_empty, write_atomically
from save_rl.training.events import EventFile
from save_rl.training.settings import TrainSettings, named_options

METRICS: tuple[str, ...] = (
    "time_s", "episodes", "env_steps", "simulator_steps", "updates", "return_mean", "return_min",
    "return_max", "loss_q", "loss_a", "epsilon", "beta_q", "beta_a", "episode_length",
    "level", "level_return", "test_return", "restarts", "explored", "changed", "seed",
)  # fmt: skip
_NEW_COLUMNS = ("explored", "changed")  # a run that was begun without them goes on without them
BEST = "best"
"""Folder of the best parameters, where a curriculum is adaptive."""
# A run may be continued with other values of these.
_FREE = ("--episodes", "--steps")


def versions() -> dict[str, str]:
    """Of Python and of the packages that results depend on."""
    packages = ("save-rl", "jax", "jaxlib", "equinox", "optax", "mctx", "numba", "numpy")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def _git_commit() -> str | None:
    """The commit of the checkout this package runs from, if it runs from one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def settings_from_json(data: dict[str, Any]) -> TrainSettings:
    """Settings as they stand in `config.json`."""
    return _from_json(TrainSettings, {**data, "seeds": tuple(data["seeds"])})


def _from_json(kind: Any, data: dict[str, Any]) -> Any:
    """A dataclass, and those inside it; what is not there has its default."""
    kinds = get_type_hints(kind)
    return kind(
        **{
            name: _from_json(kinds[name], value) if is_dataclass(kinds[name]) else value
            for name, value in data.items()
            if name in kinds
        }
    )


def read_settings(folder: Path, option: str) -> TrainSettings:
    """The settings of the run in a folder."""
    try:
        return settings_from_json(json.loads((folder / "config.json").read_bytes())["settings"])
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{option}: '{folder}' holds no run (config.json is missing).") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{option}: '{folder / 'config.json'}' can't be read.") from None


class RunDirectory:
    """An open run folder; `metrics.csv` can be cut back to where a checkpoint was made."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._metrics = path / "metrics.csv"
        self._columns = METRICS
        self._events = EventFile(path)

    @classmethod
    def create(cls, path: Path, settings: TrainSettings, device: str) -> "RunDirectory":
        """A new run; the folder must be absent or empty."""
        cls.check_new(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        run._write_config(settings, device)
        write_atomically(run._metrics, ",".join(METRICS) + "\n")
        return run

    @staticmethod
    def check_new(path: Path) -> None:
        """Refuse a folder that can't become that of a new run."""
        if not is_empty(path):
            if (path / "config.json").exists():
                raise InputError(
                    f"--out: '{path}' already holds a run; choose another folder or add --resume "
                    "to go on with it."
                )
            wrong = "is not empty" if path.is_dir() else "is not a folder"
            raise InputError(f"--out: '{path}' {wrong}; choose another folder.")

    @classmethod
    def resume(cls, path: Path, settings: TrainSettings, device: str) -> "RunDirectory":
        """An existing run, which must have been started with the same settings."""
        before = cls.check_old(path, settings)
        run = cls(path)
        run._find_columns()
        if before != settings:
            run._write_config(settings, device)
        return run

    @staticmethod
    def check_old(path: Path, settings: TrainSettings) -> TrainSettings:
        """Refuse to go on with a run that was started otherwise; returns how it was started."""
        before = read_settings(path, "--resume")
        for (option, old), (_, new) in zip(
            named_options(before), named_options(settings), strict=True
        ):
            if option not in _FREE and old != new:
                raise InputError(
                    f"--resume: '{path}' was started with {option} {old}, not {new}; "
                    "repeat its settings or choose another --out."
                )
        return before

    def _find_columns(self) -> None:
        if self._metrics.exists():
            with self._metrics.open() as file:
                self._columns = tuple(file.readline().rstrip("\n").split(","))
            before = tuple(name for name in METRICS if name not in _NEW_COLUMNS)
            if self._columns not in (METRICS, before):
                raise InputError(
                    f"--resume: '{self._metrics}' was written by another version of save_rl; "
                    "choose another --out."
                )

    def _write_config(self, settings: TrainSettings, device: str) -> None:
        config = {
            "settings": asdict(settings),
            "agent": asdict(get_agent(settings.agent)),
            "device": device,
            "versions": versions(),
            "git_commit": _git_commit(),
        }
        write_atomically(self.path / "config.json", json.dumps(config, indent=2) + "\n")

    @property
    def best(self) -> Path:
        return self.path / BEST

    def metrics_size(self) -> int:
        """Bytes of metrics that are safely on disk."""
        with self._metrics.open("rb") as file:
            os.fsync(file.fileno())
        return self._metrics.stat().st_size

    def cut_metrics(self, size: int | None) -> None:
        """Forget the lines after a checkpoint (all of them for None): they will come again."""
        header = ",".join(self._columns) + "\n"
        if not self._metrics.exists():  # stopped before its first line
            write_atomically(self._metrics, header)
        os.truncate(self._metrics, len(header) if size is None else size)

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Append lines to `metrics.csv` and the same numbers to TensorBoard."""
        text = io.StringIO()
        csv.DictWriter(text, self._columns, extrasaction="ignore", lineterminator="\n").writerows(
            rows
        )
        append(self._metrics, text.getvalue().encode())
        for row in rows:
            scalars = {
                f"{name}/seed{row['seed']}": float(value)
                for name, value in row.items()
                if name not in ("seed", "env_steps") and value != ""
            }
            self._events.write(scalars, row["env_steps"])

    def read_metrics(self) -> list[dict[str, float]]:
        """The lines of `metrics.csv`, numbers as floats, empty cells left out."""
        with self._metrics.open() as file:
            return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]

    def close(self) -> None:
        pass
