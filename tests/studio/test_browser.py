"""The pages in a real browser."""

import csv
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from save_rl.report.palette import LOOKS
from tests.studio.conftest import serving
from tests.studio.folders import append, contents, line, lines, locked, make_checkpoint, make_run

pytestmark = pytest.mark.xdist_group("studio")  # one browser and one server for all
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    both = lines(10) + lines(10, seed=1, of=lambda i: i / 5)
    first = make_run(root / "alpha", both, seeds=[0, 1], budget=25)
    make_checkpoint(first, 7, time_s=100.0, failed={})
    (first / "evaluation.csv").write_text("budget,episode,return,steps\n0,0,0.25,9\n10,0,0.75,9\n")
    make_run(root / "beta", lines(5, of=lambda i: 2.0), agent="q-learning", env="gym/CartPole-v1")
    make_run(root / "deep" / "gamma-2", lines(20), agent="puct", episodes=2000)
    make_run(root / "deep" / "gamma-10", lines(2), agent="puct")
    half = make_run(root / "half")
    (half / "config.json").write_text('{"settings": {"en')
    shutil.copytree(RESULTS / "tightrope-network", root / "tightrope-network")
    return root


@pytest.fixture(scope="module")
def address(root, browser):
    with serving(root) as address:
        yield address


@pytest.fixture
def runs(page, address):
    """The page with all runs, nothing ticked, sorted or filtered: its address holds all that."""
    if page.url != address:
        page.goto(address)
        page.locator("tr[data-run]").nth(4).wait_for()
    page.evaluate("document.activeElement.blur()")
    return page


def names(page):
    return [row.get_attribute("data-run") for row in page.locator("tr[data-run]").all()]


def row(page, name):
    return page.locator(f'tr[data-run="{name}"]')


def heading(page, key):
    return page.locator(f'th[data-key="{key}"] button')


def wait_text(page, selector, text):
    page.locator(selector, has_text=text).first.wait_for()


def test_every_run_has_its_line(runs):
    assert sorted(names(runs)) == ["alpha", "beta", "deep/gamma-10", "deep/gamma-2", "half"]
    assert row(runs, "alpha").locator(".state").inner_text() == "finished"
    assert row(runs, "beta").locator(".state").inner_text() == "stopped"
    assert row(runs, "beta").locator(".env").inner_text() == "gym/CartPole-v1"
    assert row(runs, "beta").locator(".reward").inner_text() == "2"
    assert row(runs, "alpha").locator(".reward").inner_text() == "1.5"
    assert "500 / 1,000 episodes" in row(runs, "beta").locator(".progress").inner_text()
    assert row(runs, "half").locator(".problem").inner_text() == (
        "config.json is damaged or half-written."
    )


def test_a_page_asks_for_everything_once(shared_page, page, address):
    """What it will need is named in its head, and is not asked for again."""
    _, _, asked = shared_page
    page.goto("about:blank")
    page.goto(address)
    page.locator("tr[data-run]").nth(4).wait_for()
    own = [url.removeprefix(address) for url in asked if url.startswith(address)]
    modules = [url for url in own if url.endswith(".js") and url != "static/updates.js"]
    assert {"static/runs.js", "static/chart.js", "api/runs"} <= set(own)
    assert max(own.count(url) for url in [*modules, "api/runs"]) == 1


def test_sorting_by_a_heading_and_back(runs):
    heading(runs, "name").click()
    order = ["alpha", "beta", "deep/gamma-2", "deep/gamma-10", "half"]  # 2 before 10
    assert names(runs) == order
    assert runs.locator("th.run").get_attribute("aria-sort") == "ascending"
    heading(runs, "name").click()
    assert names(runs) == order[::-1]
    heading(runs, "reward").click()
    assert names(runs)[:3] == ["beta", "deep/gamma-2", "alpha"]  # 2 and 2, then 1.5
    runs.reload()
    row(runs, "beta").wait_for()
    assert names(runs)[0] == "beta"  # the address remembers


def test_filtering_by_typing_and_by_state(runs):
    runs.keyboard.press("/")
    runs.keyboard.type("gamma puct")
    assert sorted(names(runs)) == ["deep/gamma-10", "deep/gamma-2"]
    runs.keyboard.type(" nothing")
    wait_text(runs, ".notice", "No run matches this filter.")
    runs.get_by_role("searchbox").fill("")
    runs.get_by_role("button", name="1 broken").click()
    assert names(runs) == ["half"]


def test_ticked_runs_are_overlaid(runs):
    row(runs, "alpha").get_by_role("checkbox").check()
    row(runs, "deep/gamma-2").get_by_role("checkbox").check()
    runs.locator(".legend li").nth(1).wait_for()
    assert runs.locator(".legend li").all_inner_texts() == [
        "alpha (2 seeds)\n1.5", "deep/gamma-2\n2",
    ]  # fmt: skip
    assert runs.locator(".uplot canvas").count() == 1
    runs.locator("#axis").select_option("Wall time")
    wait_text(runs, "section h2", "Reward, mean by wall time")
    runs.get_by_label("log x").check()
    runs.get_by_label("log y").check()
    runs.get_by_label("Smoothing").fill("0.5")
    assert "tick=alpha&tick=deep%2Fgamma-2" in runs.url
    assert "x=time_s&logx=1&logy=1&smooth=0.5" in runs.url
    runs.reload()
    runs.locator(".legend li").nth(1).wait_for()
    assert runs.get_by_label("log x").is_checked()
    runs.get_by_role("button", name="Untick all").click()
    assert runs.locator(".legend").is_hidden()


def test_curves_are_downloaded_as_csv_and_png(runs):
    row(runs, "alpha").get_by_role("checkbox").check()
    runs.locator(".legend li").wait_for()
    with runs.expect_download() as download:
        runs.get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename == "return_mean-by-episodes.csv"
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    assert [float(row["episodes"]) for row in rows] == [100 * i for i in range(1, 11)]
    assert float(rows[3]["lowest"]) == pytest.approx(0.4)
    assert float(rows[3]["highest"]) == pytest.approx(0.8)
    assert float(rows[3]["return_mean"]) == pytest.approx(0.6)
    with runs.expect_download() as download:
        runs.get_by_role("button", name="PNG").click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_smoothing_by_hand(runs):
    """An average whose weights halve with age and add up to one: 0, 2/3, 6/7 of a step to 1."""
    smooth = "async (values) => (await import('/static/chart.js')).smooth(values, 0.5)"
    assert runs.evaluate(smooth, [0, 1, 1]) == pytest.approx([0, 2 / 3, 6 / 7])


def luminance(colour):
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_agent_stands_out_from_a_dark_page(runs):
    runs.emulate_media(color_scheme="dark")
    legible = "async (colours) => colours.map((await import('/static/chart.js')).legible)"
    shown = runs.evaluate(legible, [look.colour for look in LOOKS.values()])
    runs.emulate_media(color_scheme="light")
    card = luminance("#1c1e21")
    assert min((luminance(colour) + 0.05) / (card + 0.05) for colour in shown) >= 3


def test_a_training_run_is_followed(page, root, address):
    """Lines, state and new runs arrive without a reload, in the table and in the curves."""
    page.goto(f"{address}?tick=live&tick=alpha")
    wait_text(page, ".legend li", "alpha (2 seeds)")
    assert page.locator(".legend li").count() == 1
    live = make_run(root / "live", lines(2))
    try:
        page.locator(".legend li").nth(1).wait_for()  # a ticked run that is there at last
        assert row(page, "live").locator(".state").inner_text() == "stopped"
        with locked(live):
            row(page, "live").locator(".chip.training").wait_for()
            append(live, line(time_s=30, episodes=300, env_steps=900, return_mean=0.75, seed=0))
            wait_text(page, 'tr[data-run="live"] .progress', "300 / 1,000 episodes")
            assert "1 min 10 s left" in row(page, "live").locator(".progress").inner_text()
            wait_text(page, ".legend li", "0.75")
        row(page, "live").locator(".chip.stopped").wait_for()
    finally:
        shutil.rmtree(live)
    row(page, "live").wait_for(state="detached")
    page.locator(".legend li").nth(1).wait_for(state="detached")  # the other is still drawn
    assert page.locator(".notice").count() == 0


@pytest.mark.slow
def test_a_real_run_is_followed_from_its_first_line_to_its_end(page, tmp_path):
    command = [sys.executable, "-m", "save_rl", "train", "tightrope", "--episodes", "4000"]
    page.set_default_timeout(1_200_000)
    with serving(tmp_path) as address:
        page.goto(address)
        wait_text(page, ".empty", "No runs here yet")
        with subprocess.Popen([*command, "--out", str(tmp_path / "real")]) as training:
            row(page, "real").locator(".chip.training").wait_for()
            assert training.wait(1200) == 0
        row(page, "real").locator(".chip.finished").wait_for()
        row(page, "real").get_by_role("link").click()
        page.locator("[data-metric=return_mean] canvas").wait_for()


def test_the_page_of_a_run(page, address):
    page.goto(f"{address}run?run=alpha")
    page.locator("[data-metric=return_mean] canvas").wait_for()
    assert page.locator("h1").inner_text() == "alpha"
    changed = [row.inner_text().split() for row in page.locator("#settings > table tr").all()]
    assert changed == [
        ["seeds", "[0,1]"], ["episodes", "1,000", "default", "1,000,000"],
        ["budget", "25", "default", "10"],
    ]  # fmt: skip
    assert "0.75 ± 0" in page.locator("#tests").inner_text()
    assert page.locator("#checkpoints tbody tr").inner_text().split()[0] == "7"
    page.locator("#axis").select_option("Real steps")
    page.get_by_label("log x").check()
    page.locator("[data-metric=return_mean] canvas").wait_for()
    assert page.get_by_role("link", name="Episodes").get_attribute("href") == "/episode?run=alpha"
    page.get_by_role("link", name="Compare").click()
    page.locator(".legend li").wait_for()


def test_the_last_choice_counts_and_an_error_is_said(page, address):
    """However late the answer to an earlier choice comes."""
    page.goto(f"{address}run?run=alpha")
    value = page.locator("[data-metric=return_mean] h3 span")
    value.wait_for()
    late = []
    page.route(re.compile("x=env_steps"), lambda route: late.append(route))
    page.locator("#axis").select_option("Real steps")
    with page.expect_response(re.compile("x=time_s")):
        page.locator("#axis").select_option("Wall time")
    old = page.request.get(f"{address}api/curves?run=alpha").json()
    old["curves"][0]["median"] = [9.0] * 10
    with page.expect_response(re.compile("x=env_steps")):
        late[0].fulfill(json=old)
    page.evaluate("fetch('/api/runs').then((answer) => answer.json())")  # the page has heard it
    assert value.inner_text() == "1.5"
    page.route(re.compile("log=1"), lambda route: route.abort())
    page.get_by_label("log x").check()
    wait_text(page, "section p", "The server does not answer")


def test_curves_come_with_the_first_lines(page, root, address):
    run = make_run(root / "early")
    (run / "metrics.csv").unlink()
    try:
        page.goto(f"{address}run?run=early")
        wait_text(page, ".notice.error", "metrics.csv is missing.")
        assert page.locator("#axis").is_hidden()
        make_run(run, lines(3))
        page.locator("[data-metric=return_mean] canvas").wait_for()
    finally:
        shutil.rmtree(run)


def test_markup_in_a_run_is_only_text(page, root, address):
    """Names, settings, columns and errors come from files that others may have written."""
    markup = "<img src=x onerror=alert(1)>"
    run = make_run(root / markup, agent=markup, env=markup, **{markup: markup})
    head = f"seed,episodes,return_mean,{markup}\n"
    (run / "metrics.csv").write_text(head + "0,1,1,1\n0,2,2,2\n")
    for file in ("failure.txt", "job.log", "evaluation.csv"):
        (run / file).write_text(markup)
    make_checkpoint(run, 1, failed={"0": markup})
    where = f"run={quote(markup)}"
    try:
        for path, shown in (
            (f"?tick={quote(markup)}", ".legend li"), (f"run?{where}", "canvas"),
            (f"episode?{where}", "h1 a"),
        ):  # fmt: skip
            page.goto(address + path)
            page.locator(shown).first.wait_for()
            assert page.locator("main img[src=x]").count() == 0
            assert markup in page.locator("main").inner_text()
    finally:
        shutil.rmtree(run)


def test_a_broken_run_has_a_page_too(page, address):
    page.goto(f"{address}run?run=half")
    wait_text(page, ".notice.error", "config.json is damaged or half-written.")
    assert page.locator(".facts dt").count() == 0  # nothing is known


def test_a_bad_path_is_answered_in_words(page, address):
    for path, said in (
        ("run?run=../../etc", "'../../etc' is not in this folder."),
        ("run?run=nothing", "'nothing' is not in this folder."),
        ("experiment?name=deep", "'deep' holds no experiment."),
    ):
        page.goto(address + path)
        wait_text(page, ".notice.error", said)


def test_experiments_with_claims_and_figure(page, address):
    page.goto(f"{address}experiments")
    page.get_by_role("link", name="tightrope-network").click()
    page.locator("#claims tbody tr").nth(6).wait_for()
    second = page.locator("#claims tbody tr").nth(1).inner_text()
    assert "holds" in second
    assert "SAVE ends above PUCT at this budget" in second
    assert "< 0.0001" in second
    width = "async (image) => { await image.decode(); return image.naturalWidth; }"
    assert page.locator("img.figure").first.evaluate(width) > 100


def test_an_empty_folder_says_how_to_make_a_first_run(page, tmp_path):
    with serving(tmp_path) as empty:
        page.goto(empty)
        wait_text(page, ".empty pre", "save-rl train tightrope --episodes 3000")
        make_run(tmp_path / "first", lines(1))
        row(page, "first").wait_for()  # and shows it when it is there
        page.goto(f"{empty}experiments")
        wait_text(page, ".empty pre", "save-rl reproduce")


def test_light_and_dark(runs):
    def background():
        return runs.evaluate("getComputedStyle(document.body).backgroundColor")

    runs.emulate_media(color_scheme="light")
    light = background()
    runs.get_by_role("button", name="Light or dark").click()
    dark = background()
    assert dark != light
    runs.reload()
    assert background() == dark  # the choice is kept
    runs.evaluate("localStorage.clear()")
    runs.goto("about:blank")


EVERY_PAGE = (
    "",
    "?tick=alpha",
    "run?run=alpha",
    "experiments",
    "experiment?name=tightrope-network",
)


@pytest.mark.slow
def test_a_phone_shows_all_without_scrolling_sideways(page, address):
    page.set_viewport_size({"width": 390, "height": 800})
    for path in EVERY_PAGE:
        page.goto(address + path)
        page.locator("canvas, td, a.card").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.set_viewport_size({"width": 1280, "height": 900})


def test_the_keyboard_reaches_everything(runs):
    runs.evaluate("""() => {
        globalThis.seen = [];
        addEventListener("focusin", ({target: x}) => seen.push(x.ariaLabel ?? x.textContent));
    }""")
    for _ in range(40):
        runs.keyboard.press("Tab")
    assert set(runs.evaluate("seen")) >= {
        "Runs", "Experiments", "Light or dark", "Filter runs", "Reward", "alpha", "Compare alpha",
    }  # fmt: skip


@pytest.mark.slow
def test_ten_tabs_share_one_stream(browser, root, address):
    live = make_run(root / "tabs", lines(1))
    context = browser.new_context()
    try:
        pages = [context.new_page() for _ in range(10)]
        for page in pages:
            page.goto(address)
        for page in pages:
            row(page, "tabs").wait_for()
        append(live, line(episodes=777, return_mean=1, seed=0))
        for page in pages:
            wait_text(page, 'tr[data-run="tabs"] .progress', "777 / 1,000")
    finally:
        context.close()
        shutil.rmtree(live)


@pytest.mark.slow
def test_the_server_is_killed_and_restarted(page, tmp_path):
    make_run(tmp_path / "run", lines(1))
    with serving(tmp_path) as first:
        page.goto(first)
        row(page, "run").wait_for()
    wait_text(page, "#connection", "The server does not answer")
    assert row(page, "run").is_visible()  # what was known stays
    append(tmp_path / "run", *lines(2)[1:])
    with serving(tmp_path, port=int(first.rsplit(":")[-1].strip("/"))):
        wait_text(page, 'tr[data-run="run"] .progress', "200 / 1,000")
        page.locator("#connection:empty").wait_for(state="attached")


def test_a_bad_token_is_refused_and_the_right_one_opens_the_page(page, tmp_path):
    make_run(tmp_path / "run", lines(1))
    with serving(tmp_path, host="0.0.0.0") as printed:
        here = printed.replace("0.0.0.0", "127.0.0.1")
        assert page.goto(here + "x").status == 403
        assert "token is missing or wrong" in page.content()
        page.goto(here)
        row(page, "run").wait_for()
        assert "token" not in page.url
        page.reload()
        row(page, "run").wait_for()


def test_a_page_of_another_site_gets_nothing(browser, root, address):
    context = browser.new_context()
    page = context.new_page()
    page.route("http://evil.example/*", lambda route: route.fulfill(body="<h1>evil</h1>"))
    page.goto("http://evil.example/")
    ask = "(url) => fetch(url).then((answer) => answer.text(), () => 'refused')"
    assert page.evaluate(ask, f"{address}api/runs") == "refused"
    context.close()


def test_nothing_is_changed_by_looking(runs, root):
    before = contents(root)
    row(runs, "alpha").get_by_role("checkbox").check()
    runs.locator(".legend li").wait_for()
    runs.locator('tr[data-run="alpha"] a').click()
    runs.locator("[data-metric=return_mean] canvas").wait_for()
    assert contents(root) == before
