"""The pictures of docs/studio.md and README.md: real runs, in a real browser.

    python benchmarks/studio_pictures.py --runs /tmp/studio-runs --out docs/images

Makes the runs first, where they are missing (some minutes), and trains another one meanwhile. The
pictures are reduced to 128 colours.
"""

import argparse
import io
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from studio_episode_pictures import play

ROOT = Path(__file__).parents[1]
TIGHTROPE = "--episodes 20000 --seed 0 1 2 --test-episodes 32"
RUNS = {
    "tightrope/save": f"tightrope --agent save {TIGHTROPE}",
    "tightrope/q-learning": f"tightrope --agent q-learning {TIGHTROPE}",
    "tightrope/puct": f"tightrope --agent puct {TIGHTROPE}",
    "tightrope/large-steps": "tightrope --episodes 3000 --learning-rate 1e20",
    "frozen-lake": "gym/FrozenLake-v1 --episodes 1500 --env-options is_slippery=false",
    "covering": "covering --episodes 150 --curriculum-steps 600 --lanes 16",
}
LIVE = "tightrope --agent save-l2 --episodes 300000 --seed 0 1 --test-episodes 32"
COLOURS = 128


def save_rl(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "save_rl", *arguments]


def make_runs(folder: Path) -> None:
    """Train what is missing; test the first run at some budgets; add a recorded experiment."""
    for name, line in RUNS.items():
        if not (folder / name).exists():
            print(name, flush=True)
            subprocess.run(
                save_rl("train", *line.split(), "--out", str(folder / name)), check=False
            )
    first = folder / "tightrope" / "save"
    if not (first / "evaluation.csv").exists():
        budgets = ["--budgets", "0", "5", "10", "20", "50", "--episodes", "100"]
        subprocess.run(save_rl("evaluate", str(first), *budgets), check=True)
    for name in ("tightrope-network", "tightrope-tabular", "construction"):
        if not (folder / "results" / name).exists():
            shutil.copytree(ROOT / "results" / name, folder / "results" / name)


def shrunk(png: bytes) -> Image.Image:
    """A picture with few colours, which is a third of the size and looks the same."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    return picture.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)


def new_page(
    browser: Browser, scheme: str, width: int = 1280, height: int = 860, scale: float = 1.5
) -> Page:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=scale
    )
    return context.new_page()


def shoot(page: Page, path: Path, whole: bool = False) -> None:
    page.wait_for_timeout(1500)
    shrunk(page.screenshot(full_page=whole)).save(path, optimize=True)
    print(path, path.stat().st_size // 1000, "kB", flush=True)


TICKED = (
    "?tick=tightrope%2Fsave&tick=tightrope%2Fq-learning&tick=tightrope%2Fpuct"
    "&metric=test_return&logx=1"
)


def take_pictures(browser: Browser, address: str, out: Path) -> None:
    page = new_page(browser, "light")
    page.goto(address + TICKED)
    page.locator(".chip.training").first.wait_for()
    page.locator(".legend li").nth(2).wait_for()
    shoot(page, out / "studio.png")
    page = new_page(browser, "dark", 390, 844)
    page.goto(address + TICKED)
    page.locator(".legend li").nth(2).wait_for()
    shoot(page, out / "studio-phone.png")
    page = new_page(browser, "dark")
    page.goto(f"{address}run?run=tightrope%2Fsave")
    page.locator("canvas").nth(5).wait_for()
    shoot(page, out / "studio-run.png", whole=True)
    page = new_page(browser, "light")
    page.goto(f"{address}experiment?name=results%2Ftightrope-network")
    page.locator("img.figure").first.wait_for()
    shoot(page, out / "studio-experiment.png")


def take_tour(browser: Browser, address: str, path: Path) -> None:
    """A short film: runs are ticked one by one, one of them trains, then an episode is scrubbed."""
    page = new_page(browser, "light", 1000, 700, scale=1.0)
    frames: list[Image.Image] = []
    lasting: list[int] = []

    def take(milliseconds: int) -> None:
        frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        lasting.append(milliseconds)

    page.goto(f"{address}?metric=test_return&logx=1")
    page.locator("tr[data-run]").nth(5).wait_for()
    take(1500)
    for name in ("tightrope/puct", "tightrope/q-learning", "tightrope/save", "live"):
        page.locator(f'tr[data-run="{name}"]').get_by_role("checkbox").check()
        page.locator(".legend li", has_text=name).wait_for()
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(400)
        take(900)
    for _ in range(3):
        page.wait_for_timeout(2000)
        take(600)
    best = play(page, address.rstrip("/"))
    show_step(page, 0, ".split")
    take(1500)
    for step in range(1, best + 1):
        show_step(page, step, ".split")
        take(700)
    page.locator("table.actions tbody tr").nth(2).hover()
    page.locator(".picture.preview").wait_for()
    page.wait_for_timeout(300)
    take(1500)
    for step in range(best + 1):
        show_step(page, step, ".treecard")
        take(700)
    page.locator(".tree .mark").nth(1).click()
    page.locator(".inspector img").evaluate("image => image.decode()")
    page.wait_for_timeout(300)
    take(3000)
    save_film(frames, lasting, path)


def show_step(page: Page, step: int, part: str) -> None:
    """Show a step of the episode, scrolled to a part of its page."""
    page.mouse.move(0, 0)
    page.locator("input.scrub").fill(str(step))
    page.locator(f".episode[data-shown='{step}']").wait_for()
    page.locator(".picture img").evaluate("image => image.decode()")
    page.locator(part).evaluate("e => scrollBy(0, e.getBoundingClientRect().top - 60)")
    page.wait_for_timeout(300)


def save_film(frames: list[Image.Image], lasting: list[int], path: Path) -> None:
    """Write an animation whose frames share their colours."""
    width, height = frames[0].size
    samples = (frames[0], frames[4], frames[len(frames) // 2], frames[-1])
    several = Image.new("RGB", (width, len(samples) * height))
    for place, frame in enumerate(samples):
        several.paste(frame, (0, place * height))
    palette = several.quantize(COLOURS, dither=Image.Dither.NONE)
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    small[0].save(path, save_all=True, append_images=small[1:], duration=lasting, loop=0)
    print(path, path.stat().st_size // 1000, "kB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--film", action="store_true", help="only studio.gif")
    options = parser.parse_args()
    make_runs(options.runs)
    shutil.rmtree(options.runs / "live", ignore_errors=True)
    live = subprocess.Popen(save_rl("train", *LIVE.split(), "--out", str(options.runs / "live")))
    command = save_rl("studio", str(options.runs), "--port", "0", "--no-browser")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        said = server.stdout.readline()
        metrics = options.runs / "live" / "metrics.csv"
        while not metrics.exists() or len(metrics.read_text().splitlines()) < 9:
            time.sleep(1)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox"]
            )
            address = next(word for word in said.split() if word.startswith("http"))
            if not options.film:
                take_pictures(browser, address, options.out)
            take_tour(browser, address, options.out / "studio.gif")
            browser.close()
    finally:
        for process in (live, server):
            process.send_signal(signal.SIGINT)
            process.wait()


if __name__ == "__main__":
    main()
