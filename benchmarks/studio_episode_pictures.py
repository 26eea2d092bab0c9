"""Make the pictures of the studio's episode page in docs/images.

    python benchmarks/studio_episode_pictures.py [RUN]

RUN is the folder of a run of covering; without it, a short one is trained (a minute on two cores).
Needs chromium and the extras `construction` and `studio`.
"""

import shutil
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

import save_rl
from save_rl.studio.serve import bind, make_server, run_server

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SEED, LEVEL, BUDGET, C = 3, 2, 100, 0.01


@contextmanager
def studio(folder: Path):
    """Serve a folder; yield the address."""
    with bind("127.0.0.1", 0) as listening:
        server, address = make_server(folder, listening)
        thread = threading.Thread(target=run_server, args=(server, listening))
        thread.start()
        try:
            yield address.rstrip("/")
        finally:
            server.should_exit = True
            thread.join()


def play(page: Page, address: str) -> int:
    """Open the page of the run `covering`, and play an episode there if none was played.

    Shows the step with the largest reward, and returns its number.
    """
    page.goto(f"{address}/episode?run=covering")
    expect(page.locator(".fields [name=level]")).to_be_visible(timeout=120_000)
    if page.locator(".episode").is_hidden():
        for name, value in (("seed", SEED), ("budget", BUDGET), ("c", C)):
            page.locator(f".fields [name={name}]").fill(str(value))
        page.locator(".fields [name=level]").select_option(str(LEVEL))
        page.locator("button.primary").click()
        expect(page.locator("button.primary")).to_be_enabled(timeout=600_000)
    played = page.request.get(f"{address}/api/episodes?run=covering").json()["episodes"][0]
    step = played["rewards"].index(max(played["rewards"]))
    page.locator("input.scrub").fill(str(step))
    expect(page.locator(f".episode[data-shown='{step}']")).to_be_visible()
    page.locator(".picture img").evaluate("image => image.decode()")
    page.mouse.move(0, 0)
    page.mouse.wheel(0, -10_000)
    page.wait_for_timeout(500)
    return step


def pictures(address: str) -> None:
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1020})
        play(page, address)
        page.screenshot(path=IMAGES / "studio-episode.png")

        page.locator("table.actions tbody tr").nth(2).hover()
        expect(page.locator(".picture.preview")).to_be_visible()
        page.locator(".split").screenshot(path=IMAGES / "studio-preview.png")

        dark = browser.new_page(viewport={"width": 1280, "height": 1800}, color_scheme="dark")
        play(dark, address)
        dark.locator(".tree .mark").nth(3).click()
        expect(dark.locator(".inspector img")).to_be_visible()
        dark.locator(".tree .mark").nth(4).hover()
        dark.locator(".treecard").screenshot(path=IMAGES / "studio-tree.png")
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "covering"
        if len(sys.argv) > 1:
            shutil.copytree(sys.argv[1], folder)
        else:
            save_rl.train("covering", episodes=60, lanes=4, out=folder)
        with studio(Path(name)) as address:
            pictures(address)


if __name__ == "__main__":
    main()
