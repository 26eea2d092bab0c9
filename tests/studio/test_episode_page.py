"""The episode page in a real browser: play, scrub, search again, walk through a tree."""

import re

import pytest
from playwright.sync_api import expect

from save_rl.studio.episodes import Episodes
from save_rl.studio.jobs import Jobs
from tests.studio import playing
from tests.studio.conftest import serving
from tests.studio.made_runs import make_run

# One worker runs them all, with one page.
pytestmark = pytest.mark.xdist_group("studio-episode-page")
EPISODE = "episode?run=rope"
expect.set_options(timeout=300_000)  # ends what hangs


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """The page of a run whose agent knows nothing, after it has played an episode."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "rope", env_options={"terminal": 30, "reward": "dense"}, c=0.05, budget=12)
    with serving(folder) as address:
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.set_default_timeout(300_000)
        errors = []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(address + EPISODE)
        play(tab, seed=5)
        yield tab
        tab.close()
    assert errors == []


def play(page, **settings):
    for name, value in settings.items():
        page.locator(f".fields [name={name}]").fill(str(value))
    page.get_by_role("button", name="Play", exact=True).click()
    expect(page.locator("button.primary")).to_be_enabled()
    expect(page.locator(".setup .job")).to_be_empty()


@pytest.fixture
def start(page):
    """The page at the start of the episode."""
    page.keyboard.press("Home")
    expect(page.locator(".episode[data-shown='0']")).to_be_visible()
    return page


def picture(page):
    expect(page.locator(".picture img")).to_have_attribute("src", re.compile("."))
    return page.locator(".picture img").get_attribute("src")


def test_keys_and_slider_scrub_through_the_episode(start):
    page = start
    last = int(page.locator(".counter").inner_text().split("/")[1])
    assert last >= 2
    before = picture(page)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".counter")).to_have_text(f"1 / {last}")
    expect(page.locator(".picture img")).not_to_have_attribute("src", before)
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".counter")).to_have_text(f"0 / {last}")
    page.locator("input.scrub").fill(str(last))
    expect(page.locator("figcaption")).to_have_text("The end: terminated.")
    expect(page.locator(".table")).to_contain_text("The episode is over here")
    reward = float(page.locator(".facts dd").first.inner_text())
    assert round(10 * reward) in (last, last - 1)  # 0.1 for every step but a fatal one


@pytest.mark.slow
def test_space_plays_and_pauses(start):
    page = start
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="pause (space)")).to_be_visible()
    expect(page.locator(".counter")).to_have_text(re.compile("^2 /"))
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="play (space)")).to_be_visible()


def test_the_chosen_action_is_marked_and_has_both_bars(start):
    page = start
    row = page.locator("tr.chosen")
    expect(row).to_have_count(1)
    expect(row.locator(".qbar.prior")).to_have_count(1)
    expect(row.locator(".qbar.value")).to_have_count(1)
    expect(page.locator("table.actions tbody tr")).to_have_count(12)


def test_another_budget_searches_again_from_the_same_state(start):
    page = start
    expect(page.locator(".search")).to_contain_text(re.compile(r"\d+ of 100 actions tried"))
    before = page.locator(".search .table").inner_text()
    page.locator("[name=again-budget]").fill("3")
    page.get_by_role("button", name="Search again").click()
    expect(page.locator(".search")).to_contain_text("Searched again with budget 3, c 0.05.")
    visits = page.locator("td.visits").all_inner_texts()
    assert sum(int(x) for x in visits if x.isdecimal()) == 3
    expect(page.locator(".counter")).to_have_text(re.compile("^0 /"))
    page.get_by_role("button", name="Show the episode's own search").click()
    expect(page.locator(".search .table")).to_have_text(before, use_inner_text=True)


def test_a_node_tells_its_numbers_and_shows_its_state(start):
    page = start
    node = page.locator(".tree [data-node='1']")
    node.hover()
    expect(page.locator(".tree-tip")).to_be_visible()
    expect(page.locator(".tree-tip")).to_contain_text("visits")
    node.click()
    expect(page.locator(".inspector img")).to_have_attribute("src", re.compile("^data:image/png"))
    expect(page.locator(".inspector .path li")).to_have_count(1)


def test_a_tree_collapses_and_expands(start):
    page = start
    marks = page.locator(".tree .mark")
    page.get_by_role("button", name="Expand all").click()
    everything = marks.count()
    assert everything == 13  # the root and a node for each simulation
    page.get_by_role("button", name="Collapse", exact=True).click()
    few = marks.count()
    assert few < everything
    folded = page.locator(".tree .mark[aria-expanded=false]").first
    folded.locator(".fold").click()
    assert marks.count() > few


def test_hovering_an_action_shows_the_state_after_it(start):
    page = start
    before = picture(page)
    page.locator("table.actions tbody tr").nth(1).hover()
    expect(page.locator(".picture.preview figcaption")).to_contain_text("after action")
    assert picture(page).startswith("data:image/png")
    page.locator("h1").hover()
    expect(page.locator(".picture.preview")).to_have_count(0)
    assert picture(page) == before


def test_an_address_opens_the_same_step_again(start):
    page = start
    page.keyboard.press("ArrowRight")
    expect(page.locator(".episode[data-shown='1']")).to_be_visible()
    shown = page.locator(".search .table").inner_text()
    page.reload()
    expect(page.locator(".counter")).to_have_text(re.compile("^1 /"))
    expect(page.locator(".search .table")).to_have_text(shown, use_inner_text=True)


def test_it_fits_a_phone(start):
    page = start
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.locator("html").evaluate("e => e.scrollWidth") == 390
    page.set_viewport_size({"width": 1280, "height": 900})


@pytest.fixture(scope="module")
def ladder(browser, tmp_path_factory):
    """The address of a studio whose agent has no network, and whose simulator gets into trouble."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "ladder")
    foreign = make_run(folder / "foreign").env
    config = folder / "foreign" / "config.json"
    config.write_text(config.read_text().replace(f'"{foreign}"', '"somebodys.module:factory"'))
    with serving(folder, episodes=Episodes(False, Jobs(acting=playing.ACTING))) as address:
        yield address


@pytest.fixture(scope="module")
def shared_tab(browser):
    opened = browser.new_page()
    yield opened
    opened.close()


@pytest.fixture
def tab(shared_tab, ladder):
    shared_tab.goto(f"{ladder}episode?run=ladder")
    expect(shared_tab.locator(".fields [name=level]")).to_be_visible()
    yield shared_tab
    shared_tab.unroute_all()


def test_an_episode_shows_while_it_is_played_and_can_be_cancelled(tab):
    tab.locator(".fields [name=seed]").fill(str(playing.ENDLESS))
    tab.locator(".fields [name=most]").fill("10000")
    tab.get_by_role("button", name="Play", exact=True).click()
    expect(tab.locator(".counter")).to_have_text(re.compile(r"^0 / [1-9]"))
    tab.keyboard.press("ArrowRight")
    expect(tab.locator(".episode[data-shown='1']")).to_be_visible()
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.locator(".setup .notice")).to_have_text("Cancelled.")
    expect(tab.get_by_role("button", name="Play", exact=True)).to_be_enabled()


def test_a_reloaded_page_follows_what_is_still_played(tab):
    tab.locator(".fields [name=seed]").fill(str(playing.ENDLESS))
    tab.locator(".fields [name=most]").fill("10000")
    tab.get_by_role("button", name="Play", exact=True).click()
    expect(tab.locator(".counter")).to_have_text(re.compile(r"^0 / [1-9]"))
    tab.reload()
    expect(tab.locator(".setup .job")).to_contain_text(re.compile(r"Playing: step \d+"))
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.locator(".setup .notice")).to_have_text("Cancelled.")


@pytest.mark.slow
def test_a_long_search_shows_its_progress_and_can_be_cancelled(tab):
    play(tab, seed=playing.ENDLESS, most=3)
    tab.keyboard.press("End")
    expect(tab.locator(".table")).to_contain_text("The episode was stopped here")
    tab.locator("[name=again-budget]").fill("100000")
    tab.get_by_role("button", name="Search again").click()
    expect(tab.locator(".search .job")).to_contain_text(re.compile(r"simulation \d+ of 100000"))
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.locator(".search .notice")).to_have_text("Cancelled.")
    tab.get_by_role("button", name="Search again").click()
    expect(tab.locator(".search .job")).to_contain_text(re.compile(r"simulation \d+ of 100000"))
    tab.keyboard.press("Home")  # who leaves a state cancels its search
    expect(tab.get_by_role("button", name="Search again")).to_be_enabled()
    expect(tab.locator(".search .job")).to_be_empty()


def test_what_the_server_no_longer_has_is_said(tab):
    play(tab, seed=1)
    forgotten = {"error": "This episode is no longer in memory; play it again."}
    tab.route("**/steps/4", lambda route: route.fulfill(status=404, json=forgotten))
    tab.locator("input.scrub").fill("4")
    expect(tab.locator(".search .notice.error")).to_have_text(forgotten["error"])
    follow = """async () => (await import("/static/job.js")).follow({job: 999999, state: "running"})
        .catch((error) => error.message)"""
    assert tab.evaluate(follow) == "There is no such job any more."


def test_outcomes_of_chance_are_told_apart(tab):
    """Rows are [parent, action, visits, value, …]: action 1 has two outcomes, action 0 one."""
    names = """async (search) =>
        (await import("/static/tree.js")).readTree(search).map((node) => node.name)"""
    rows = [[-1, -1, 3, None], [0, 1, 1, 0.5], [0, 0, 1, 0.1], [0, 1, 2, 0.5]]
    search = {"tree": rows, "names": {"0": "left", "1": "right"}, "luck": [None, 7, 8, 9]}
    assert tab.evaluate(names, search) == ["root", "right · outcome 2", "left", "right · outcome 1"]
    assert tab.evaluate(names, {**search, "luck": None}) == ["root", "right", "left", "right"]


def test_an_error_of_the_simulator_is_shown_and_its_steps_are_kept(tab):
    tab.locator(".fields [name=seed]").fill(str(playing.RAISES))
    tab.get_by_role("button", name="Play", exact=True).click()
    expect(tab.locator(".setup .notice.error")).to_contain_text("The simulator failed in step")
    expect(tab.locator(".setup .notice pre")).to_contain_text("the ladder is broken")
    expect(tab.locator(".counter")).to_have_text("0 / 1")


def test_foreign_code_is_not_run_and_the_page_says_how(shared_tab, ladder):
    shared_tab.goto(f"{ladder}episode?run=foreign")
    expect(shared_tab.locator(".notice.error")).to_contain_text("save-rl studio --trust")
    expect(shared_tab.locator("form")).to_have_count(0)
