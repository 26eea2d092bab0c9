"""Tables of scores on Atari in the layout of the paper's Table E.1."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

from save_rl.experiments.atari_scores import (
    COLUMNS,
    GAMES,
    PUBLISHED,
    Scores,
    bold,
    change,
    human_scores,
    level,
)
from save_rl.files import write_atomically


def missing(scores: Scores) -> str:
    """Return a sentence that names the paper's agents and games without a score, or ''."""
    agents = [agent for agent in COLUMNS if not any(agent in found for found in scores.values())]
    games = [game for game in GAMES if not scores.get(game)]
    parts = [f"{COLUMNS[agent]} ({agent})" for agent in agents] + games
    return f"Without a score: {', '.join(parts)}." if parts else ""


def write_tables(folder: Path, scores: Scores, about: str) -> None:
    """Write `table.md` and `table.csv`; `about` is a sentence that defines the scores."""
    human = human_scores(scores)
    text = [
        "# Scores on Atari",
        " ".join(filter(None, (about, missing(scores)))),
        "Bold scores are within 5 % of the best of a game. % Change is that of SAVE over "
        "Controlled; its last two rows are the median and mean of the column.",
        _score_table(scores),
        "## Relative to a human",
        "Per cent: 0 is random play, 100 a human.",
        _human_table(human, human_scores({game: PUBLISHED.get(game, {}) for game in scores})),
        "## The paper's Table E.1",
        "Means over 3 seeds of the last 2e4 training episodes; it does not say after how many "
        "frames.",
        _score_table(PUBLISHED),
    ]
    write_atomically(folder / "table.md", "\n\n".join(text) + "\n")
    write_atomically(folder / "table.csv", _csv(scores))


def _score_table(scores: Scores) -> str:
    """Return a table in the layout of Table E.1."""
    rows = [["Level", *COLUMNS.values(), "% Change"]]
    for game, found in scores.items():
        best = bold(found)
        cells = [f"**{_cell(found[a])}**" if a in best else _cell(found.get(a)) for a in COLUMNS]
        rows.append([level(game), *cells, _cell(change(found), " %")])
    for name, summary in (("Median", median), ("Mean", fmean)):
        middles = [_over(summary, _column(scores, agent)) for agent in COLUMNS]
        changes = [percent for found in scores.values() if (percent := change(found)) is not None]
        rows.append([name, *map(_cell, middles), _cell(_over(summary, changes), " %")])
    return _markdown(rows)


def _human_table(scores: Scores, published: Scores) -> str:
    """Return a table of our scores and the paper's on the same games, side by side."""
    names = [*COLUMNS.values()]
    rows = [["Level", "Random", "Human", *names, *(f"paper: {name}" for name in names)]]
    for game, found in scores.items():
        known = GAMES.get(game)
        facts = [_cell(known.random), _cell(known.human)] if known else ["–", "–"]
        cells = [*map(found.get, COLUMNS), *map(published[game].get, COLUMNS)]
        rows.append([level(game), *facts, *(_cell(cell, digits=0) for cell in cells)])
    for name, summary in (("Median", median), ("Mean", fmean)):
        columns = [_column(table, agent) for table in (scores, published) for agent in COLUMNS]
        rows.append([name, "", "", *(_cell(_over(summary, one), digits=0) for one in columns)])
    return _markdown(rows)


def _csv(scores: Scores) -> str:
    """Return all numbers in full precision, ours and the paper's."""
    agents = [*COLUMNS]
    columns = ["source", "game", *agents, "change_percent", "random", "human"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *(f"{agent}_human_percent" for agent in agents)])
    for source, table in (("measured", scores), ("paper", PUBLISHED)):
        human = human_scores(table)
        for game, found in table.items():
            known = GAMES.get(game)
            facts = [known.random, known.human] if known else ["", ""]
            cells = [found.get(agent, "") for agent in agents]
            percent = change(found)
            cells += ["" if percent is None else percent, *facts]
            writer.writerow([source, game, *cells, *(human[game].get(a, "") for a in agents)])
    return text.getvalue()


def _column(scores: Scores, agent: str) -> list[float]:
    return [found[agent] for found in scores.values() if agent in found]


def _over(summary: Callable[[list[float]], float], values: list[float]) -> float | None:
    return summary(values) if values else None


def _cell(value: float | None, unit: str = "", digits: int = 1) -> str:
    return "–" if value is None else f"{value:z.{digits}f}{unit}"


def _markdown(rows: Iterable[Sequence[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" + "|---:" * (head.count("|") - 2) + "|", *body])
