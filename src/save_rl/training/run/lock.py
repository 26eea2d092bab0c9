"""A lock on a run folder, so that two processes never train in it at once."""

import fcntl
import os
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
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
