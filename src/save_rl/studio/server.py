"""The application: routes of all parts, the page around them, static files."""

import re
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from save_rl.errors import InputError
from save_rl.studio import curves, details, episodes, experiments, runs
from save_rl.studio.answers import JSON
from save_rl.studio.folder import Folder, NotInFolder
from save_rl.studio.security import Guard
from save_rl.studio.stream import Stream

STATIC = Path(__file__).parent / "static"
PAGES = {
    "/": "runs.js", "/run": "run.js", "/episode": "episode.js", "/experiments": "experiments.js",
    "/experiment": "experiment.js",
}  # fmt: skip
"""All are the same HTML; `static/app.js` shows this module."""
_IMPORT = re.compile(r'from "\./([\w.]+)"')


def make_app(
    folder: Path, *, token: str, host: str = "127.0.0.1", port: int = 80, trust: bool = False,
    seconds: float = 1.0,
) -> Starlette:  # fmt: skip
    """Return the application that shows a folder.

    token: what actions need, and every request if `host` is not this machine. trust: episodes may
    import the package.module:factory that a run names. seconds: between two looks at the folder.
    """
    app = Starlette(
        routes=[
            *(Route(path, _page) for path in PAGES),
            *runs.routes,
            *details.routes,
            *curves.routes,
            *experiments.routes,
            *episodes.routes,
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/{path:path}", _nothing),
        ],
        middleware=[Middleware(Guard, token=token, host=host, port=port)],
        exception_handlers={
            NotInFolder: _answer(404), InputError: _answer(400), OSError: _unreadable,
            Exception: _failed,
        },
    )  # fmt: skip
    app.state.folder = Folder(folder, seconds)
    app.state.library = runs.Library(app.state.folder)
    app.state.stream = Stream(app.state.library, seconds)
    app.state.trust = trust
    app.state.episodes = episodes.Episodes(trust)
    html = (STATIC / "index.html").read_text().replace("TOKEN", token)
    app.state.html = {path: html.replace("<!-- AHEAD -->", _ahead(path)) for path in PAGES}
    return app


def modules(name: str) -> list[str]:
    """Return a module and all that it imports, directly or not."""
    found = [name]
    for one in found:
        imported = _IMPORT.findall((STATIC / one).read_text())
        found.extend(dict.fromkeys(other for other in imported if other not in found))
    return found


def _ahead(path: str) -> str:
    """Return links to all that a page will ask for, so that nothing waits for something else."""
    links = [f'<link rel="modulepreload" href="/static/{name}">' for name in modules(PAGES[path])]
    if path == "/":
        links.append('<link rel="preload" href="/api/runs" as="fetch" crossorigin>')
    return "\n".join(links)


def _page(request: Request) -> Response:
    return HTMLResponse(request.app.state.html[request.url.path])


def _nothing(request: Request) -> Response:
    return JSON({"error": f"There is no '{request.url.path}'."}, 404)


def _answer(code: int) -> Any:
    def answer(request: Request, error: Exception) -> Response:
        return JSON({"error": str(error)}, code)

    return answer


def _unreadable(request: Request, error: Exception) -> Response:
    why = getattr(error, "strerror", None) or str(error)
    return JSON({"error": f"can't be read: {why}."}, 500)


def _failed(request: Request, error: Exception) -> Response:
    """Answer after a mistake of ours; the terminal gets the traceback."""
    what = f"{type(error).__name__}: {error}"
    return JSON({"error": f"The studio failed ({what}); its terminal says more."}, 500)
