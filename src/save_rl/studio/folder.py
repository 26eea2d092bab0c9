"""The folder that the studio shows: runs and experiments below it, and nothing outside it."""

import os
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

_DEEPEST = 8
_MOST_FOLDERS = 20_000
_NEVER = {"node_modules", "__pycache__", "site-packages"}
_OF_A_RUN = ("metrics.csv", "checkpoints")
_OF_AN_EXPERIMENT = ("experiment.json", "claims.json")


class NotInFolder(LookupError):
    """A name that leads out of the folder, or to nothing."""


class Found(NamedTuple):
    """Names of runs and experiments, relative to the folder; `cut` if there was too much to see."""

    runs: list[str]
    experiments: list[str]
    cut: bool


class Folder:
    """Runs and experiments below `root`, which are looked for at most once a second."""

    def __init__(self, root: Path, seconds: float = 1.0):
        self.root = root.resolve()
        self._seconds = seconds
        self._lock = threading.Lock()
        self._found = Found([], [], False)
        self._looked: float | None = None

    def path(self, name: str, *inside: str) -> Path:
        """Return an existing file or folder by its name below the root, links resolved."""
        try:
            path = self.root.joinpath(name, *inside).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # absent; a null byte; links in a circle
            raise NotInFolder(f"'{'/'.join((name, *inside))}' is not in this folder.") from None
        if not path.is_relative_to(self.root):
            raise NotInFolder(f"'{'/'.join((name, *inside))}' is not in this folder.")
        return path

    def run(self, name: str) -> Path:
        """Return the folder of a run by its name."""
        path = self.path(name)
        if not looks_like_a_run(
            {entry.name for entry in os.scandir(path)} if path.is_dir() else ()
        ):
            raise NotInFolder(f"'{name}' holds no run.")
        return path

    def found(self) -> Found:
        """Return what there is now, or was a moment ago."""
        with self._lock:
            if self._looked is None or time.monotonic() - self._looked >= self._seconds:
                self._found = _look(self.root)
                self._looked = time.monotonic()
            return self._found


def looks_like_a_run(names: Collection[str]) -> bool:
    """Test whether a folder with these files is a run, be it a broken one."""
    return "config.json" in names or all(name in names for name in _OF_A_RUN)


def _look(root: Path) -> Found:
    runs: list[str] = []
    experiments: list[str] = []
    cut = False
    for count, (name, files) in enumerate(_walk(root)):
        if count >= _MOST_FOLDERS:
            cut = True
            break
        if looks_like_a_run(files):
            runs.append(name)
        elif any(file in files for file in _OF_AN_EXPERIMENT):
            experiments.append(name)
    return Found(sorted(runs), sorted(experiments), cut)


def _walk(root: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield folders with the names of their entries; not below runs, nor through links."""
    waiting = [("", 0)]
    while waiting:
        name, depth = waiting.pop()
        try:
            with os.scandir(root / name) as entries:
                below = list(entries)
        except OSError:  # gone, or not ours to read
            continue
        files = {entry.name for entry in below}
        yield name or ".", files
        if looks_like_a_run(files) or depth >= _DEEPEST:
            continue
        for entry in below:
            hidden = entry.name.startswith(".") or entry.name in _NEVER
            if not hidden and entry.is_dir(follow_symlinks=False):
                waiting.append((os.path.join(name, entry.name), depth + 1))
