"""How fast the studio shows many runs, and how much memory it takes while they train.

    python benchmarks/studio.py --seconds 60
    python benchmarks/studio.py --seconds 0 --starts 5 --folder /tmp/many  # two versions in turns

Makes a folder of runs (200 with 10,000 lines of metrics by default), starts `save-rl studio` on it,
opens it in Debian's chromium, and prints JSON: seconds to the first paint and to the whole table,
cold (median, lowest and highest over --starts) and warm; seconds to overlay ten runs; then, with
ten tabs open while five runs grow, memory of the server and of a page at the beginning and at the
end.
"""

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from playwright.sync_api import Browser, Page, Playwright, sync_playwright

import save_rl
from save_rl.training.run.run_directory import METRICS
from save_rl.training.settings import TrainSettings

AGENTS = ("save", "q-learning", "puct", "save-l2")
TICKS = os.sysconf("SC_CLK_TCK")
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
LEARNT = {"return_mean", "return_min", "return_max", "test_return"}


def line(number: int, seed: int, luck: random.Random) -> str:
    """A line of metrics of a run that learns slowly."""
    reward = 1 - math.exp(-number / 3000) + luck.gauss(0, 0.05)
    values = {
        "time_s": round(number * 0.9, 3), "episodes": number * 40, "env_steps": number * 1000,
        "simulator_steps": number * 10_000, "updates": number * 250, "restarts": 0, "seed": seed,
        "epsilon": max(0.01, 1 - number / 5000), "beta_q": 0.5, "beta_a": 0.5, "level": "",
        "loss_q": 0.1 * luck.random(), "loss_a": luck.random(), "episode_length": 25.0,
    }  # fmt: skip
    cells = {name: reward if name in LEARNT else values.get(name, "") for name in METRICS}
    return ",".join(str(cells[name]) for name in METRICS) + "\n"


def make_runs(root: Path, runs: int, lines: int) -> None:
    """Write runs; every tenth has lines of its own, the others repeat them."""
    luck = random.Random(0)
    texts = [
        ",".join(METRICS) + "\n" + "".join(line(i, 0, luck) for i in range(1, lines + 1))
        for _ in range(max(runs // 10, 1))
    ]
    for i in range(runs):
        agent = AGENTS[i % len(AGENTS)]
        settings = replace(TrainSettings(), agent=agent, seeds=(i,), episodes=400_000)
        folder = root / f"task-{i // 20}" / f"{agent}-{i}"
        folder.mkdir(parents=True)
        config = {"run_id": f"{i:032x}", "settings": asdict(settings), "device": "cpu"}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "metrics.csv").write_text(texts[i % len(texts)])


def megabytes(pid: int) -> float:
    """Memory of a process."""
    for row in Path(f"/proc/{pid}/status").read_text().splitlines():
        if row.startswith("VmRSS"):
            return round(int(row.split()[1]) / 1024, 1)
    raise LookupError("VmRSS")


def heap(page: Page) -> float:
    """JavaScript memory of a page, in megabytes, without garbage."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return round(session.send("Runtime.getHeapUsage")["usedSize"] / 2**20, 2)


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().split()[13:15])) / TICKS


def open_page(page: Page, address: str, runs: int, pid: int) -> dict[str, float]:
    """Open the list of runs; seconds to the first paint and to the last row, and of the server."""
    started, computed = time.monotonic(), cpu_seconds(pid)
    page.goto(address)
    page.locator("tbody tr").nth(runs - 1).wait_for(state="attached")
    table = time.monotonic() - started
    page.wait_for_function(PAINT)
    return {
        "first_paint_s": round(page.evaluate(PAINT) / 1000, 3), "table_s": round(table, 3),
        "server_cpu_s": round(cpu_seconds(pid) - computed, 2),
    }  # fmt: skip


def weight() -> float:
    """Kilobytes of all that any page can load, besides the numbers of runs."""
    static = Path(save_rl.__file__).parent / "studio" / "static"
    return round(sum(p.stat().st_size for p in static.rglob("*") if p.is_file()) / 1000, 1)


@contextmanager
def studio(playwright: Playwright, root: Path) -> Iterator[tuple[Browser, str, int]]:
    """A new browser and a new server; yields its address and process."""
    browser = playwright.chromium.launch(
        executable_path="/usr/bin/chromium", args=["--no-sandbox"]
    )  # fmt: skip
    command = [sys.executable, "-m", "save_rl", "studio", str(root), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        said = server.stdout.readline()
        yield browser, next(word for word in said.split() if word.startswith("http")), server.pid
    finally:
        browser.close()
        server.terminate()
        server.wait()


def cold_starts(playwright: Playwright, root: Path, runs: int, starts: int) -> dict:
    """Median, lowest and highest of several starts."""
    found = []
    for _ in range(starts):
        with studio(playwright, root) as (browser, address, pid):
            found.append(open_page(browser.new_page(), address, runs, pid))
    return {
        name: [f([one[name] for one in found]) for f in (statistics.median, min, max)]
        for name in found[0]
    }


def measure(root: Path, runs: int, lines: int, seconds: float, starts: int) -> dict:
    report: dict = {
        "runs": runs, "lines_per_run": lines, "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1), "starts": starts,
    }  # fmt: skip
    with sync_playwright() as playwright:
        report["cold_median_lowest_highest"] = cold_starts(playwright, root, runs, starts)
        if seconds <= 0:
            return report
        with studio(playwright, root) as (browser, address, pid):
            context = browser.new_context()
            page = context.new_page()
            open_page(page, address, runs, pid)
            report["warm"] = open_page(page, address, runs, pid)
            report["server_mb_after_opening"] = megabytes(pid)
            started = time.monotonic()
            for box in page.query_selector_all("tbody .tick input")[:10]:
                box.check()
            page.locator(".legend li").nth(9).wait_for()
            report["ten_runs_overlaid_s"] = round(time.monotonic() - started, 3)
            report["all_static_files_kb"] = weight()
            tabs = [context.new_page() for _ in range(9)]
            for tab in tabs:
                open_page(tab, address, runs, pid)
            report["ten_tabs"] = stream(root, [page, *tabs], pid, lines, seconds)
    return report


def stream(root: Path, pages: list[Page], pid: int, lines: int, seconds: float) -> dict:
    """Let five runs grow by two lines a second each; memory at the beginning and at the end."""
    luck = random.Random(1)
    growing = sorted(root.glob("*/*/metrics.csv"))[:5]
    pages[0].wait_for_timeout(3000)
    before = {
        "server_mb": megabytes(pid),
        "page_mb": heap(pages[0]),
        "last_tab_mb": heap(pages[-1]),
    }
    computed = cpu_seconds(pid)
    end = time.monotonic() + seconds
    number = lines
    while time.monotonic() < end:
        number += 1
        for path in growing:
            with path.open("a") as file:
                file.write(line(number, 0, luck))
        pages[0].wait_for_timeout(500)
    share = (cpu_seconds(pid) - computed) / seconds
    name = str(growing[0].parent.relative_to(root))
    find = "(name) => document.querySelector(`[data-run='${name}'] .progress span`).textContent"
    shown = [int(tab.evaluate(find, name).split()[0].replace(",", "")) // 40 for tab in pages]
    after = {"server_mb": megabytes(pid), "page_mb": heap(pages[0]), "last_tab_mb": heap(pages[-1])}
    return {
        "seconds": seconds, "before": before, "after": after, "cpu_percent": round(100 * share, 1),
        "lines_added": number - lines, "lines_behind": [number - seen for seen in shown],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of growing runs; or 0")
    parser.add_argument("--starts", type=int, default=5, help="cold starts")
    parser.add_argument("--folder", type=Path, help="make the runs there, or use those there")
    options = parser.parse_args()
    root = options.folder or Path(tempfile.mkdtemp(prefix="studio-"))
    try:
        if not root.exists() or not any(root.iterdir()):
            make_runs(root, options.runs, options.lines)
        found = measure(root, options.runs, options.lines, options.seconds, options.starts)
        print(json.dumps(found, indent=2))
    finally:
        if options.folder is None:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
