"""Scores on Atari, against the numbers that the paper prints, and tables written and read."""

import csv
import re

import pytest

from save_rl.envs.atari import PAPER_GAMES
from save_rl.experiments.atari_scores import (
    BASELINE,
    CONTROLLED,
    GAMES,
    PUBLISHED,
    SAVE,
    bold,
    change,
    human_percent,
    human_scores,
    level,
)
from save_rl.experiments.atari_table import missing, write_tables

# Table E.1: per cent, and which of the three columns are bold.
PRINTED = {
    "alien": (191.9, "S"), "asteroids": (3.1, "CS"), "beam_rider": (71.8, "S"),
    "centipede": (36.3, "S"), "crazy_climber": (19.8, "BS"), "frostbite": (1734.4, "S"),
    "gravitar": (1.5, "CS"), "hero": (0.5, "CS"), "ms_pacman": (69.9, "S"),
    "name_this_game": (43.7, "S"), "riverraid": (25.4, "S"), "space_invaders": (50.2, "S"),
    "up_n_down": (2.9, "BCS"), "zaxxon": (192.0, "S"),
}  # fmt: skip
LETTERS = {BASELINE: "B", CONTROLLED: "C", SAVE: "S"}


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def tables(folder):
    """The tables of a `table.md`: lists of rows."""
    text = (folder / "table.md").read_text()
    return [
        [cells(line) for line in block.splitlines() if not line.startswith("|---")]
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    ]


def test_the_games_are_those_of_the_simulator():
    assert tuple(GAMES) == PAPER_GAMES


@pytest.mark.parametrize("game", PRINTED)
def test_changes_and_bold_scores_are_those_of_the_paper(game):
    percent, best = PRINTED[game]
    found = change(PUBLISHED[game])
    assert found is not None
    assert round(found, 1) == percent
    assert {LETTERS[agent] for agent in bold(PUBLISHED[game])} == set(best)


def test_the_papers_table_is_written_as_the_paper_prints_it(tmp_path):
    write_tables(tmp_path, PUBLISHED, "The paper's.")
    measured, human, published = tables(tmp_path)
    assert measured == published
    assert measured[0] == ["Level", "Baseline", "Controlled", "SAVE", "% Change"]
    assert measured[5] == ["Crazy Climber", "**311203.8**", "271151.5", "**324726.4**", "19.8 %"]
    assert measured[-2] == ["Median", "58476.1", "58823.7", "199224.0", "40.0 %"]
    assert measured[-1] == ["Mean", "149339.3", "154469.2", "222192.1", "174.5 %"]
    assert human[1] == ["Alien", "227.8", "7127.7", *["1039", "1388", "4058"] * 2]
    assert human[-2] == ["Median", "", "", *["559", "677", "1216"] * 2]
    assert human[-1] == ["Mean", "", "", *["1224", "1431", "2409"] * 2]
    assert "Without a score" not in (tmp_path / "table.md").read_text()


def test_human_scores_by_hand():
    assert human_percent("alien", 227.8) == 0
    assert human_percent("alien", 7127.7) == 100
    assert human_percent("ms_pacman", 307.3 + 2 * (6951.6 - 307.3)) == pytest.approx(200)
    assert human_percent("pong", 3.0) is None
    assert human_scores({"pong": {SAVE: 3.0}}) == {"pong": {}}
    assert (level("up_n_down"), level("double_dunk")) == ("Up 'n' Down", "Double Dunk")


def test_five_per_cent_of_the_best():
    assert bold({SAVE: 100.0, CONTROLLED: 95.0, BASELINE: 94.9}) == {SAVE, CONTROLLED}
    assert bold({SAVE: -100.0, CONTROLLED: -105.0, BASELINE: -106.0}) == {SAVE, CONTROLLED}
    assert bold({SAVE: 100.0}) == set()  # better than whom?


def test_no_change_without_a_score_to_change():
    assert change({SAVE: 3.0}) is None
    assert change({SAVE: 3.0, CONTROLLED: 0.0}) is None
    assert change({SAVE: 1.0, CONTROLLED: 2.0}) == -50


def test_what_was_not_run_is_listed(tmp_path):
    scores = {"ms_pacman": {CONTROLLED: 200.0, SAVE: 300.0}, "pong": {CONTROLLED: -21.0}}
    write_tables(tmp_path, scores, "Made up.")
    others = [game for game in GAMES if game != "ms_pacman"]
    said = f"Made up. Without a score: Baseline (r2d2), {', '.join(others)}."
    assert said in (tmp_path / "table.md").read_text()
    measured, human, _ = tables(tmp_path)
    assert measured[1:] == [
        ["Ms. Pacman", "–", "200.0", "**300.0**", "50.0 %"],
        ["Pong", "–", "-21.0", "–", "–"],
        ["Median", "–", "89.5", "300.0", "50.0 %"],
        ["Mean", "–", "89.5", "300.0", "50.0 %"],
    ]
    assert human[2] == ["Pong", *["–"] * 8]
    assert missing(PUBLISHED) == ""


def test_all_numbers_are_in_the_csv_in_full(tmp_path):
    scores = {"ms_pacman": {CONTROLLED: 200.125, SAVE: 300.0625}}
    write_tables(tmp_path, scores, "")
    with (tmp_path / "table.csv").open(newline="") as file:
        first, *paper = csv.DictReader(file)
    assert (first["source"], first["game"], first[BASELINE]) == ("measured", "ms_pacman", "")
    assert float(first[SAVE]) == 300.0625
    assert float(first["change_percent"]) == pytest.approx(100 * (300.0625 / 200.125 - 1))
    assert float(first[f"{SAVE}_human_percent"]) == human_percent("ms_pacman", 300.0625)
    assert [line["game"] for line in paper] == list(GAMES)
    assert {line["source"] for line in paper} == {"paper"}
    assert float(paper[0][BASELINE]) == 71925.1
