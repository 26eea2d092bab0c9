"""The application: routes of all parts, the page around them, static files."""

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
PAGES = ("/", "/run", "/episode", "/experiments", "/experiment")
"""All are the same HTML; `static/app.js` shows the module of the path."""


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
    app.state.html = (STATIC / "index.html").read_text().replace("TOKEN", token)
    return app


def _page(request: Request) -> Response:
    return HTMLResponse(request.app.state.html)


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
