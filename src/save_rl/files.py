"""Write files: whole or not at all, and with errors that name the file."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"
"""Name of the file that a process locks while it trains in a folder."""
FAILURE = "failure.txt"
"""Name of the file that says why a run could not continue."""


def is_empty(folder: Path) -> bool:
    """Test whether a folder is absent or holds only a lock file and leftovers of a write."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(
        path.name == LOCK or path.name.endswith(".tmp") for path in folder.iterdir()
    )


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name `path` in an OSError that names no file, such as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def append(path: Path, data: bytes) -> None:
    """Append to a file; it is closed afterwards, so a write that fails raises here."""
    with naming(path), path.open("ab") as file:
        file.write(data)


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Replace the file at `path` with `data` (text as UTF-8, line endings unchanged).

    The folder must exist. On failure the old file stays and no temporary file is left.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    # Not tempfile, whose files only their owner can read.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with naming(path), temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
