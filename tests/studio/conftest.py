import contextlib
import threading
import time

import pytest


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        b = p.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield b
        b.close()


@pytest.fixture(scope="session")
def studio_of():
    import uvicorn

    from save_rl.studio.serve import bind
    from save_rl.studio.server import make_app

    @contextlib.contextmanager
    def open_studio(folder, **options):
        with bind("127.0.0.1", 0) as listening:
            port = listening.getsockname()[1]
            app = make_app(folder, token="token", port=port, **options)
            server = uvicorn.Server(
                uvicorn.Config(app, ws="none", lifespan="off", log_level="error", http="h11")
            )
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            while not server.started:
                time.sleep(0.01)
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                server.should_exit = True
                thread.join()
                app.state.episodes.close()

    return open_studio
