"""A lock on a run folder, so that two processes never train in it at once."""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from save_rl.errors import InputError
from save_rl.files import LOCK


def lock_folder(folder: Path, option: str, warn: Callable[[str], None]) -> int:
    """Lock a folder for this process; closing the returned file descriptor unlocks it.

    The kernel unlocks it when the process dies, however that happens. The lock file stays.
    """
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(handle)
    except BlockingIOError:
        os.close(handle)
        raise InputError(
            f"{option}: another process is training in '{folder}'; wait until it ends or choose "
            "another --out."
        ) from None
    except OSError as error:  # a filesystem without locks
        warn(
            f"'{folder}' can't be locked ({error.strerror}); make sure that no other process "
            "trains in it."
        )
    return handle


def _lock(handle: int, tries: int = 5) -> None:
    """Lock a file. A reader that asks whether it is locked, as the studio does, holds it for an
    instant; so a few tries are made."""
    for left in reversed(range(tries)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if left == 0:
                raise
            time.sleep(0.02)
