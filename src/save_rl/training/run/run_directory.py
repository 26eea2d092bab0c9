"""The folder of a training run: `config.json`, `metrics.csv`, checkpoints."""

import json
import os
import platform
import reprlib
import secrets
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from save_rl.agents import get_agent
from save_rl.errors import InputError, RunError
from save_rl.files import FAILURE, append, is_empty, write_atomically
from save_rl.training.options import kind_problem, named_options
from save_rl.training.run.lock import lock_folder
from save_rl.training.run.metrics_file import METRICS as METRICS
from save_rl.training.run.metrics_file import MetricsFile
from save_rl.training.run.progress import warn as print_warning
from save_rl.training.settings import TrainSettings

BEST = "best"
"""Folder of the best parameters, in runs with a curriculum."""
RESUMED = "resumed.jsonl"
"""File with a line for every time a run was resumed."""
# These may change on resume.
_FREE = ("--episodes", "--steps")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    packages = ("save-rl", "jax", "jaxlib", "equinox", "optax", "mctx", "numba", "numpy")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def _git_commit() -> str | None:
    """Return the commit of the git checkout that this package runs from, if any."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


class WrongType(ValueError):
    """A value in `config.json` has the wrong type for its setting."""

    def __init__(self, name: str, value: Any):
        super().__init__(f"{name} can't be {reprlib.repr(value)}")


def settings_from_json(data: dict[str, Any]) -> TrainSettings:
    """Return the settings in `config.json`; only the seeds are required."""
    return _from_json(TrainSettings, {**data, "seeds": data["seeds"]})


def _from_json(kind: Any, data: dict[str, Any]) -> Any:
    """Return a dataclass and those inside it; missing fields have their defaults."""
    kinds = get_type_hints(kind)
    return kind(**{name: _value(name, kinds[name], x) for name, x in data.items() if name in kinds})


def _value(name: str, kind: Any, value: Any) -> Any:
    """Return a setting, its tuples and dataclasses restored."""
    if is_dataclass(kind) and isinstance(value, dict):
        return _from_json(kind, value)
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(_value(name, get_args(kind)[0], x) for x in value)
    endless = isinstance(value, int | float) and not abs(value) < 2**63
    if is_dataclass(kind) or endless or kind_problem(kind, value):
        raise WrongType(name, value)
    return value


class Config(NamedTuple):
    """The part of `config.json` that is read back."""

    settings: TrainSettings
    run_id: str  # empty for a run of an old version


def read_config(folder: Path, option: str) -> Config:
    """Return the settings and the id of the run in a folder."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
        run_id = config.get("run_id", "")
        if not isinstance(run_id, str):
            raise WrongType("run_id", run_id)
        return Config(settings_from_json(config["settings"]), run_id)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{option}: '{folder}' holds no run (config.json is missing).") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"; {error}" if isinstance(error, WrongType) else ""
        raise InputError(f"{option}: '{path}' can't be read{why}.") from None


def read_settings(folder: Path, option: str) -> TrainSettings:
    """Return the settings of the run in a folder."""
    return read_config(folder, option).settings


def started_from(folder: Path) -> Path | None:
    """Return the folder of the run whose parameters the run in a folder started with, if any."""
    origin = json.loads((folder / "config.json").read_bytes()).get("started_from")
    if origin is None:
        return None
    try:
        return Path(origin["folder"])
    except (KeyError, TypeError):
        raise InputError(
            f"--resume: '{folder / 'config.json'}' can't be read; started_from can't be "
            f"{reprlib.repr(origin)}."
        ) from None


def settings_to_resume(folder: Path) -> TrainSettings:
    """Return the settings with which a run was last trained: those of its `config.json`, and the
    limits of its last resume."""
    settings = read_settings(folder, "--resume")
    try:
        lines = (folder / RESUMED).read_text().splitlines()
        last = json.loads(lines[-1])
        free = {name: last[name] for name in ("episodes", "steps")}
        return settings_from_json({**asdict(settings), **free})
    except (OSError, ValueError, KeyError, IndexError, TypeError):  # never resumed, or damaged
        return settings


class RunDirectory:
    """A run folder; `create` and `resume` lock it until `close`."""

    def __init__(self, path: Path, warn: Callable[[str], None] = print_warning):
        self.path = path
        self.checkpoints, self.best = path / "checkpoints", path / BEST
        self.metrics = MetricsFile(path / "metrics.csv", warn)
        self.run_id = ""
        self._warn = warn
        self._lock: int | None = None

    @classmethod
    def create(
        cls, path: Path, settings: TrainSettings, device: str,
        warn: Callable[[str], None] = print_warning, started_from: dict[str, str] | None = None,
    ) -> "RunDirectory":  # fmt: skip
        """Start a run; the folder must be absent or empty.

        started_from: folder and id of the run whose parameters it starts with.
        """
        cls.check_new(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, warn)
        with run._locking("--out"):
            cls.check_new(path)  # another process may have been faster
            run.run_id = secrets.token_hex(16)
            run._write_config(settings, device, started_from)
            run.metrics.create()
        return run

    @staticmethod
    def check_new(path: Path) -> None:
        """Refuse a folder that can't hold a new run."""
        if not is_empty(path):
            if (path / "config.json").exists():
                raise InputError(
                    f"--out: '{path}' already holds a run; choose another folder or add --resume "
                    "to continue it."
                )
            wrong = "is not empty" if path.is_dir() else "is not a folder"
            raise InputError(f"--out: '{path}' {wrong}; choose another folder.")

    @classmethod
    def resume(
        cls, path: Path, settings: TrainSettings, device: str,
        warn: Callable[[str], None] = print_warning,
    ) -> "RunDirectory":  # fmt: skip
        """Open an existing run, which must have been started with the same settings."""
        before = cls.check_old(path, settings)
        run = cls(path, warn)
        with run._locking("--resume"):
            run.run_id = before.run_id
            run.metrics.check_columns()
            run._note_resume(settings, device)
        return run

    @staticmethod
    def check_old(path: Path, settings: TrainSettings) -> Config:
        """Return the config of a run; refuse if it was started with other settings."""
        before = read_config(path, "--resume")
        for (option, old), (_, new) in zip(
            named_options(before.settings), named_options(settings), strict=True
        ):
            if option not in _FREE and old != new:
                raise InputError(
                    f"--resume: '{path}' was started with {option} {old}, not {new}; "
                    "repeat its settings or choose another --out."
                )
        return before

    @contextmanager
    def _locking(self, option: str) -> Iterator[None]:
        """Lock the folder; unlock it if the body fails."""
        self._lock = lock_folder(self.path, option, self._warn)
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _note_resume(self, settings: TrainSettings, device: str) -> None:
        """Add a line to `resumed.jsonl`: `config.json` stays as first written."""
        line = {
            option.removeprefix("--"): x for option, x in named_options(settings) if option in _FREE
        }
        line |= {"device": device, "versions": versions(), "git_commit": _git_commit()}
        append(self.path / RESUMED, json.dumps(line).encode() + b"\n")

    def _write_config(
        self, settings: TrainSettings, device: str, started_from: dict[str, str] | None = None
    ) -> None:
        config = {
            "run_id": self.run_id,
            "settings": asdict(settings),
            "agent": asdict(get_agent(settings.agent)),
            "device": device,
            "versions": versions(),
            "git_commit": _git_commit(),
            **({"started_from": started_from} if started_from else {}),
        }
        write_atomically(self.path / "config.json", json.dumps(config, indent=2) + "\n")

    def cut_metrics(self, size: int | None) -> None:
        """Delete the lines after a checkpoint (None: all): training writes them again."""
        self.metrics.cut(size)

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Append lines to `metrics.csv`."""
        self.metrics.append(rows)

    def read_metrics(self) -> list[dict[str, float]]:
        """Return the lines of `metrics.csv`, numbers as floats, empty cells left out."""
        return self.metrics.read()

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Write down why the run can't continue, if it can't; forget why it could not before."""
        (self.path / FAILURE).unlink(missing_ok=True)
        try:
            yield
        except RunError as error:
            write_atomically(self.path / FAILURE, f"{error}\n")
            raise

    def close(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
