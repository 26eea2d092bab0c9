"""The server's end of a process that plays; see `player.py`."""

import json
import os
import socket
import threading
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from save_rl.processes import ONE_THREAD, end_group, ending, start_python

_START = "from save_rl.studio.player import main; main(*sys.argv[1:])"
_LAST_LINES = 40  # of what it has printed
ACTING = "save_rl.studio.acting:Acting"


class PlayerProcess:
    """Starts a process that plays the run in a folder; acting: see `player.main`.

    It computes on the CPU, to leave a GPU to a training that may be going on.
    """

    def __init__(self, folder: Path, trust: bool, acting: str = ACTING):
        self.folder = folder
        ours, theirs = socket.socketpair()
        printed, writing = os.pipe()
        try:
            self._process = start_python(
                _START, str(theirs.fileno()), str(os.getpid()), str(folder), str(int(trust)),
                acting, stdout=writing, stderr=writing, pass_fds=[theirs.fileno()],
                env={**os.environ, **ONE_THREAD, "JAX_PLATFORMS": "cpu"},
            )  # fmt: skip
        except BaseException:
            ours.close()
            os.close(printed)
            raise
        finally:
            theirs.close()
            os.close(writing)
        self._connection = Connection(ours.detach())
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._reader = threading.Thread(target=self._read, args=(printed,), daemon=True)
        self._reader.start()
        self.heard = time.monotonic()
        """When it last sent something."""

    def _read(self, printed: int) -> None:
        """Keep the last lines that it prints."""
        with os.fdopen(printed, errors="replace") as file:
            while part := file.readline(2000):
                self._lines.append(part.rstrip("\n"))

    def send(self, request: dict[str, Any]) -> bool:
        """Send a request; false if the process is gone."""
        try:
            self._connection.send_bytes(json.dumps(request).encode())
        except OSError:
            return False
        return True

    def receive(self, seconds: float) -> tuple[dict[str, Any], bytes] | None:
        """Return the next message and its picture, or None if there is none in time.

        Raises EOFError if the process is gone.
        """
        try:
            if not self._connection.poll(seconds):
                return None
            content = json.loads(self._connection.recv_bytes())
            picture = self._connection.recv_bytes() if content.pop("picture") else b""
        except OSError as error:
            raise EOFError from error
        self.heard = time.monotonic()
        return content, picture

    def last_words(self) -> str:
        """Return how a process that is gone has ended, and what it printed last."""
        end_group(self._process, 5.0)
        self._reader.join(5.0)
        said = "\n".join(self._lines).strip()
        return f"{ending(self._process.returncode)}." + (f"\n{said}" if said else "")

    def close(self, grace: float = 0.0) -> None:
        """End the process; after `grace` seconds by force."""
        self._connection.close()
        end_group(self._process, grace)
