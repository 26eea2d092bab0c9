"""Run a command that ends when its owner dies, until the owner lets it go.

    python guard.py PIPE COMMAND ...

PIPE is the file number of the reading end of a pipe whose other end only the owner has. A byte from
it means "keep": the command runs on by itself. If the pipe closes before that, the owner is gone,
and the command is ended. SIGTERM to the guard ends it as well. A command that is still there half a
minute after SIGTERM, as Ray may be when it is stopped while it starts, is killed with all processes
of its group. Imports the standard library alone, so it is up before the command is.
"""

import os
import signal
import subprocess
import sys
import threading
import time


def guard(pipe: int, command: list[str], patience: float = 30.0) -> int:
    """Return the exit code of the command; patience: seconds from SIGTERM to SIGKILL."""
    children: list[subprocess.Popen[bytes]] = []
    asked = threading.Event()

    def end(*_: object) -> None:
        asked.set()
        for child in children:
            child.terminate()
            threading.Thread(target=kill, args=[child], daemon=True).start()

    def kill(child: "subprocess.Popen[bytes]") -> None:
        time.sleep(patience)
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)

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
