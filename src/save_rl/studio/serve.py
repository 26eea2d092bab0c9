"""The server process of the studio: its address, the browser, Ctrl-C."""

import contextlib
import errno
import os
import socket
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from save_rl.errors import InputError, MissingExtra, require


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens; refuse, in words, an address that can't be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family)
    except socket.gaierror:
        raise InputError(f"--host: '{host}' is not the name or address of this machine.") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"--port: {port} is in use, maybe by another studio; choose another one, or 0 for "
                "any that is free."
            ) from None
        if error.errno == errno.EACCES:
            raise InputError(
                f"--port: {port} needs rights you don't have; use 1024 or more."
            ) from None
        raise InputError(f"--host: '{host}' can't be listened on ({error.strerror}).") from None


def make_server(
    folder: Path, listening: socket.socket, host: str = "127.0.0.1", trust: bool = False,
    seconds: float = 1.0,
) -> tuple[Any, str]:  # fmt: skip
    """Return the server of a folder on a socket, and the address to open; see `make_app`."""
    try:
        import uvicorn

        from save_rl.studio.security import is_loopback, new_token
        from save_rl.studio.server import make_app
    except ImportError as error:
        if (error.name or "").split(".")[0] in ("starlette", "uvicorn"):
            raise MissingExtra(
                "the studio needs Starlette and uvicorn; install them with: "
                "pip install 'save-rl[studio]'."
            ) from None
        raise
    port, token = listening.getsockname()[1], new_token()
    app = make_app(folder, token=token, host=host, port=port, trust=trust, seconds=seconds)
    config = uvicorn.Config(
        app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None,
        server_header=False, access_log=False, timeout_graceful_shutdown=3,
    )  # fmt: skip
    server = uvicorn.Server(config)
    app.state.stream.stopping = lambda: server.should_exit
    shown = f"[{host}]" if ":" in host else host
    secret = "" if is_loopback(host) else f"?token={quote(token)}"
    return server, f"http://{shown}:{port}/{secret}"


def run_server(server: Any, listening: socket.socket) -> None:
    """Answer requests until the server is told to exit; then end the processes that play."""
    try:
        server.run(sockets=[listening])
    finally:
        server.config.app.state.episodes.close()


def serve(folder: Path, *, host: str, port: int, browser: bool, trust: bool) -> None:
    """Show a folder until Ctrl-C."""
    require(0 <= port <= 65535, "--port", port, "between 0 and 65535")
    if not folder.is_dir():
        wrong = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(
            f"FOLDER: '{folder}' {wrong}; give the folder of your runs, or make a first run with: "
            "save-rl train tightrope --episodes 3000"
        )
    with bind(host, port) as listening:
        server, address = make_server(folder, listening, host, trust)
        print(f"studio of '{folder}': {address}  (Ctrl-C ends it)", flush=True)
        if browser and _has_a_screen():
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn has closed everything by then
            run_server(server, listening)


def _has_a_screen() -> bool:
    """Test whether a browser would open in a window; in a terminal it would only be in the way."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
