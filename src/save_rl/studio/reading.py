"""The files of a run or experiment, read carefully: what is wrong with one is said, not raised."""

import csv
import errno
import fcntl
import io
import json
import math
import os
import stat
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from save_rl.files import FAILURE, LOCK

_LONGEST = 2**26  # bytes of any file that is read as a whole
_HEARTBEAT = 120.0  # seconds; counts only where folders can't be locked


class Unreadable(ValueError):
    """A file can't be used; says why."""


def open_file(path: Path) -> BinaryIO:
    """Open a file of a run; refuse a link, which may lead out of the folder, and what is no file.

    A pipe, for one, would keep its reader waiting.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, and none is followed") from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a file")
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, last: int | None = None) -> bytes:
    """Return the content of a file, or its last bytes; raise Unreadable with a reason."""
    try:
        with open_file(path) as file:
            if last is not None:
                file.seek(max(0, os.fstat(file.fileno()).st_size - last))
            data = file.read(_LONGEST + 1)
    except FileNotFoundError:
        raise Unreadable(f"{path.name} is missing") from None
    except OSError as error:
        raise Unreadable(f"{path.name} can't be read ({error.strerror})") from None
    if len(data) > _LONGEST:
        raise Unreadable(f"{path.name} is too long")
    return data


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise Unreadable with a reason."""
    data = read_bytes(path)
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise Unreadable(f"{path.name} is damaged or half-written") from None


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file that are whole; raise Unreadable with a reason."""
    text = read_bytes(path).decode(errors="replace")
    try:
        rows = list(csv.DictReader(io.StringIO(text)))
    except csv.Error as error:
        raise Unreadable(f"{path.name} is damaged ({error})") from None
    return [row for row in rows if None not in row and None not in row.values()]


def read_config(run: Path) -> dict[str, Any]:
    """Return a run's config.json, with `settings`; raise Unreadable with a reason."""
    config = read_json(run / "config.json")
    settings = config.get("settings") if isinstance(config, dict) else None
    if not isinstance(settings, dict):
        raise Unreadable("config.json has no settings")
    texts = all(isinstance(settings.get(name), str) for name in ("env", "agent"))
    seeds = settings.get("seeds")
    if not texts or not isinstance(seeds, list) or not seeds:
        raise Unreadable("config.json names no environment, agent or seeds")
    return config


def finite(value: Any) -> Any:
    """Return a value as JSON can hold it: None for NaN and infinities."""
    if type(value) is float:  # most are
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [finite(x) for x in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_training(run: Path) -> bool:
    """Test whether a process holds the lock of a run.

    A shared lock, held for an instant, is how to ask; `lock_folder` waits out such an instant.
    """
    try:
        handle = os.open(run / LOCK, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # a filesystem without locks
        try:
            return time.time() - (run / "metrics.csv").stat().st_mtime < _HEARTBEAT
        except OSError:
            return False
    finally:
        os.close(handle)


def checkpoint_numbers(run: Path, folder: str = "checkpoints") -> list[str]:
    """Return the folders of a run's checkpoints, oldest first."""
    try:
        names = os.listdir(run / folder)
    except OSError:
        return []
    return sorted((name for name in names if name.isdecimal()), key=int)


def failures(run: Path) -> str:
    """Return why a run or some of its seeds could not continue; "" if all is well."""
    try:
        return read_bytes(run / FAILURE).decode(errors="replace").strip()
    except Unreadable:
        pass
    for number in reversed(checkpoint_numbers(run)):
        try:
            failed = read_json(run / "checkpoints" / number / "manifest.json").get("failed")
        except (Unreadable, AttributeError):
            continue
        return "; ".join(map(str, failed.values())) if isinstance(failed, dict) else ""
    return ""
