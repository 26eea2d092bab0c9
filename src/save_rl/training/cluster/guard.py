"""Run a command that ends when its owner dies, until the owner lets it go.

    python guard.py PIPE COMMAND ...

PIPE is the file number of the reading end of a pipe whose other end only the owner has. A byte from
it means "keep": the command runs on by itself. If the pipe closes before that, the owner is gone,
and the command is ended with SIGTERM. SIGTERM to the guard is passed on to the command. Imports the
standard library alone, so it is up before the command is.
"""

import os
import signal
import subprocess
import sys
import threading


def guard(pipe: int, command: list[str]) -> int:
    """Return the exit code of the command."""
    children: list[subprocess.Popen[bytes]] = []
    asked = threading.Event()

    def end(*_: object) -> None:
        asked.set()
        for child in children:
            child.terminate()

    def watch() -> None:
        if not os.read(pipe, 1):
            end()

    signal.signal(signal.SIGTERM, end)
    children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
    threading.Thread(target=watch, daemon=True).start()
    if asked.is_set():  # before there was a child to end
        end()
    return children[0].wait()


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), sys.argv[2:]))
