"""A real browser and a real server, shared by the tests of a module.

Where chromium is missing, these tests are skipped and say how to get it; with
SAVE_RL_REQUIRE_BROWSER set they fail.
"""

import os
import shutil
import threading
from contextlib import contextmanager

import pytest

from save_rl.studio.serve import bind, make_server, run_server

GET_IT = "no browser; install one, on Debian with: apt-get install chromium"


def find_browser():
    """The path of a browser; without one, skip the test, or fail it where one is required."""
    found = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    path = next(found, None)
    if path is None and os.environ.get("SAVE_RL_REQUIRE_BROWSER"):
        pytest.fail(GET_IT)
    if path is None:
        pytest.skip(GET_IT)
    return path


@pytest.fixture(scope="module")
def browser():
    """Chromium. Module-wide, because asyncio.run is impossible while Playwright is open."""
    path = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=300_000
        )
        yield opened
        opened.close()


@contextmanager
def serving(folder, host="127.0.0.1", port=0, trust=False, episodes=None):
    """A server in a thread; yields its address. It is closed as by Ctrl-C.

    episodes: in place of those that it would play.
    """
    with bind(host, port) as listening:
        server, address = make_server(folder, listening, host, trust, seconds=0.2)
        if episodes is not None:
            server.config.app.state.episodes = episodes
        thread = threading.Thread(target=run_server, args=(server, listening))
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def shared_page(browser):
    """A page with the errors of its scripts and the addresses it has asked; tests take turns."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    errors, asked = [], []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.set_default_timeout(300_000)  # ends what hangs
    yield opened, errors, asked
    context.close()


@pytest.fixture
def page(shared_page):
    """A page. An error in its scripts, or a request to elsewhere, fails the test."""
    opened, errors, asked = shared_page
    yield opened
    opened.unroute_all()
    found = list(errors), [url for url in asked if not url.startswith(("http://127.", "blob:"))]
    errors.clear()
    asked.clear()
    assert found == ([], [])
