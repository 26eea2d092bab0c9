"""Figures of many games are valid, repeatable, and show every number they are given."""

from functools import cache, partial

import pytest

from save_rl.report.games import change_figure, game_curves

pytestmark = pytest.mark.xdist_group("games")  # each figure is drawn once for all of them
CHANGES = {"Alien": 20.0, "Frostbite": -30.0, "Hero": 0.0}
PUBLISHED = {"Alien": 191.9, "Frostbite": 80.0, "Zaxxon": 192.0}
GAMES = ("alien", "beam_rider", "frostbite", "hero", "zaxxon")
ROWS = [
    {
        "agent": agent, "seed": seed, "game": game, "frames": frames, "metric": "train_reward",
        "value": 10.0 * place + seed + frames / 1e5,
    }
    for place, game in enumerate(GAMES)
    for agent in ("r2d2-controlled", "r2d2-save")
    for seed in range(3)
    for frames in (100_000 + seed, 500_000, 900_000 + seed)
]  # fmt: skip
TWO = {"zaxxon": "Zaxxon", "hero": "Hero"}
changes = partial(change_figure, x_label="Change (%)", published=PUBLISHED)
panels = partial(game_curves, ROWS)
FIGURES = {
    "changes": partial(changes, CHANGES),
    "far apart": partial(changes, CHANGES | {"Frostbite": 1734.4}),
    "the paper far apart": partial(changes, CHANGES, published={"Alien": 1734.4}),
    "below": partial(changes, {"Alien": -900.0}),
    "nothing published": partial(changes, CHANGES, published={}),
    "no changes": partial(changes, {}),
    "one game": partial(panels, titles={"alien": "Alien"}),
    "two games": partial(panels, titles=TWO),
    "five games": partial(panels, titles=dict.fromkeys(GAMES, "Game")),
    "a game without rows": partial(panels, titles={"alien": "Alien", "pong": "Pong"}),
    "no rows": partial(game_curves, [], titles={"alien": "Alien"}),
}


def picture(draw, folder):
    draw(path=folder / "figure.png")
    return (folder / "figure.png").read_bytes()


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """The figures, by their names; each is drawn when it is first asked for."""
    folder = tmp_path_factory.mktemp("games")
    return cache(lambda name: picture(FIGURES[name], folder))


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_a_png(name, before):
    assert before(name).startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("name", ["changes", "two games"])
def test_a_figure_has_the_same_bytes_when_drawn_again(name, before, tmp_path):
    assert picture(FIGURES[name], tmp_path) == before(name)


def test_every_number_changes_the_bars(before, tmp_path):
    for name in CHANGES:
        moved = CHANGES | {name: CHANGES[name] + 5.0}
        assert picture(partial(changes, moved), tmp_path) != before("changes")
    other = partial(changes, CHANGES, published=PUBLISHED | {"Alien": 150.0})
    assert picture(other, tmp_path) != before("changes")
    same = partial(changes, CHANGES, published=PUBLISHED | {"Zaxxon": 5.0})  # which was not run
    assert picture(same, tmp_path) == before("changes")


def test_lines_are_means_between_the_worst_and_the_best(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(
        "save_rl.report.plots._line", lambda axes, at, y, look, **_: drawn.append((look.label, y))
    )
    skewed = [r | {"value": 90.0} if r["seed"] == 2 else r | {"value": 0.0} for r in ROWS]
    picture(partial(game_curves, skewed, titles={"hero": "Hero"}), tmp_path)
    assert {label for label, _ in drawn} == {"R2D2, controlled", "R2D2 with SAVE"}
    for _, line in drawn:
        assert line == pytest.approx(30.0)  # the median is 0


def test_every_number_changes_the_curves(before, tmp_path):
    change = {"game": "zaxxon", "agent": "r2d2-save", "seed": 1, "frames": 500_000}
    moved = [r | {"value": 49.0} if change.items() <= r.items() else r for r in ROWS]
    assert moved != ROWS
    assert picture(partial(game_curves, moved, titles=TWO), tmp_path) != before("two games")
