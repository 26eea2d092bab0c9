"""Writing a file so that a reader sees all of it or none of it."""

import os
import secrets
from pathlib import Path


def is_empty(folder: Path) -> bool:
    """Whether a folder is absent, or holds nothing but what an interrupted write left behind."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(path.name.endswith(".tmp") for path in folder.iterdir())


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Replace the file at `path` by `data` (text as UTF-8, line endings as they are).

    The folder must exist. When anything fails, what was at `path` stays and nothing else is left.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    # Opened by name instead of with tempfile, whose files are readable by their owner only.
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
