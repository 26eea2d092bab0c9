"""Atomic file writes: a reader sees the whole file or none of it."""

import os
import secrets
from pathlib import Path


def is_empty(folder: Path) -> bool:
    """Test whether a folder is absent or empty, apart from leftovers of interrupted writes."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(path.name.endswith(".tmp") for path in folder.iterdir())


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Replace the file at `path` with `data` (text as UTF-8, line endings unchanged).

    The folder must exist. On failure the old file stays and no temporary file is left.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    # Not tempfile, whose files only their owner can read.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
