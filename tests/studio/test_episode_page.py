"""The episode page in a real browser: play, scrub, search again, walk through a tree."""

import re

import pytest
from playwright.sync_api import expect

from tests.studio.conftest import serving
from tests.studio.made_runs import make_run

# One worker runs them all, with one page.
pytestmark = pytest.mark.xdist_group("studio-episode-page")
EPISODE = "episode?run=rope"


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """The page of a run whose agent knows nothing, after it has played an episode."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "rope", env_options={"terminal": 30, "reward": "dense"}, c=0.05, budget=12)
    with serving(folder) as address:
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
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
    expect(page.locator("button.primary")).to_be_enabled(timeout=120_000)
    expect(page.locator(".setup .job")).to_be_empty()


@pytest.fixture(autouse=True)
def at_the_start(page):
    page.keyboard.press("Home")
    expect(page.locator(".episode[data-shown='0']")).to_be_visible()


def picture(page):
    expect(page.locator(".picture img")).to_have_attribute("src", re.compile("."))
    return page.locator(".picture img").get_attribute("src")


def test_keys_and_slider_scrub_through_the_episode(page):
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


def test_space_plays_and_pauses(page):
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="pause (space)")).to_be_visible()
    expect(page.locator(".counter")).to_have_text(re.compile("^2 /"))
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="play (space)")).to_be_visible()


def test_the_chosen_action_is_marked_and_has_both_bars(page):
    row = page.locator("tr.chosen")
    expect(row).to_have_count(1)
    expect(row.locator(".qbar.prior")).to_have_count(1)
    expect(row.locator(".qbar.value")).to_have_count(1)
    expect(page.locator("table.actions tbody tr")).to_have_count(12)


def test_another_budget_searches_again_from_the_same_state(page):
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


def test_a_node_tells_its_numbers_and_shows_its_state(page):
    node = page.locator(".tree [data-node='1']")
    node.hover()
    expect(page.locator(".tree-tip")).to_be_visible()
    expect(page.locator(".tree-tip")).to_contain_text("visits")
    node.click()
    expect(page.locator(".inspector img")).to_have_attribute("src", re.compile("^data:image/png"))
    expect(page.locator(".inspector .path li")).to_have_count(1)


def test_a_tree_collapses_and_expands(page):
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


def test_hovering_an_action_shows_the_state_after_it(page):
    before = picture(page)
    page.locator("table.actions tbody tr").nth(1).hover()
    expect(page.locator(".picture.preview figcaption")).to_contain_text("after action")
    assert picture(page).startswith("data:image/png")
    page.locator("h1").hover()
    expect(page.locator(".picture.preview")).to_have_count(0)
    assert picture(page) == before


def test_an_address_opens_the_same_step_again(page):
    page.keyboard.press("ArrowRight")
    expect(page.locator(".episode[data-shown='1']")).to_be_visible()
    shown = page.locator(".search .table").inner_text()
    page.reload()
    expect(page.locator(".counter")).to_have_text(re.compile("^1 /"))
    expect(page.locator(".search .table")).to_have_text(shown, use_inner_text=True)


def test_it_fits_a_phone(page):
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.locator("html").evaluate("e => e.scrollWidth") == 390
    page.set_viewport_size({"width": 1280, "height": 900})
