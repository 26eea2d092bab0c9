"""The paper's claims about Atari (section 4.4, appendix E), tested on measured rows."""

from collections.abc import Sequence
from dataclasses import replace

from save_rl.experiments.atari_scores import BASELINE, CONTROLLED, GAMES, SAVE
from save_rl.experiments.comparisons import (
    AT_LEAST,
    ENOUGH,
    FAR,
    Part,
    Sample,
    above,
    combined,
    far_above,
)
from save_rl.report.claims import Claim
from save_rl.report.palette import label
from save_rl.report.results import Row, column, select, values

CLEAR = ("frostbite", "alien", "zaxxon")
"""Games on which SAVE has "particularly high performance"."""
_PAPER_BUDGET = 10
_MAIN, _APPENDIX = "section 4.4, Fig. 5, Table E.1", "section 4.4, E.2, Table E.1"


def not_below(a: Sample, b: Sample) -> Part:
    """Test whether `a` outperforms or equals `b`: it is above in a rank test, or not below in one.

    The p-value is that of `a` being above. With fewer than ENOUGH seeds, not being below is
    undecided.
    """
    part = above(a, b)
    if part.seeds < AT_LEAST or part.holds:
        return part
    if above(b, a).holds:
        return part._replace(holds=False, note="")
    if part.seeds < ENOUGH:
        note = f"Neither is above the other, but {part.seeds} seeds are too few to call them equal."
        return part._replace(holds=None, note=note)
    return part._replace(holds=True)


def atari_claims(rows: Sequence[Row], budget: int, wanted: int) -> list[Claim]:
    """Return the claims of Figure 5 and Table E.1, for the games that have rows.

    budget: of searches in training. wanted: training episodes to average for a score.
    """
    games = [game for game in GAMES if select(rows, game=game)]
    others = [game for game in GAMES if game not in games]

    def at(agent: str, game: str) -> Sample:
        name = f"{label(agent)} on {game}"
        return Sample(name, values(rows, metric="score", agent=agent, game=game))

    def claim(
        id: str, text: str, where: str, parts: Sequence[Part], on: Sequence[str], note: str = "",
        most: bool = False,
    ) -> Claim:  # fmt: skip
        scale = _scale([row for row in rows if row["game"] in on], budget, wanted)
        return combined(id, text, where, parts, note=note, scale=scale, most=most)

    per_game = {game: not_below(at(SAVE, game), at(CONTROLLED, game)) for game in games}
    not_run = f"Not run: {', '.join(others)}." if others else ""
    overall = claim(
        "save-not-below-controlled", "SAVE outperforms or equals controlled R2D2 in all games",
        _MAIN, [*per_game.values()], games,
        f"Holds if it does in each of them; no correction for their number. {not_run}".strip(),
    )  # fmt: skip
    if overall.holds and others:
        overall = replace(overall, holds=None)
    baseline = claim(
        "save-above-baseline", "SAVE outperforms the baseline version of R2D2", _APPENDIX,
        [above(at(SAVE, game), at(BASELINE, game)) for game in games], games,
        f"Holds if it does in most of the games that were run. {not_run}".strip(), most=True,
    )  # fmt: skip
    return [
        overall,
        *(
            claim(
                f"save-not-below-controlled-{game}",
                f"{game}: SAVE outperforms or equals controlled R2D2", _MAIN, [part], [game],
            )
            for game, part in per_game.items()
        ),
        *(
            claim(
                f"clear-gain-{game}", f"{game}: SAVE has particularly high performance", _MAIN,
                [far_above(at(SAVE, game), at(CONTROLLED, game))] if game in games else [], [game],
                f"Holds if controlled R2D2 is at most at {FAR:.0%} of SAVE.",
            )
            for game in CLEAR
        ),
        baseline,
    ]  # fmt: skip


def shortfall(rows: Sequence[Row], wanted: int) -> str:
    """Return a sentence about runs with fewer episodes than a score should average, or ''."""
    counts = column(select(rows, metric="episodes"), "value")
    if not (counts < wanted).any():
        return ""
    return (
        f"In {(counts < wanted).sum()} of {len(counts)} runs fewer than {wanted:,} episodes ended, "
        f"in one {counts.min():,.0f}; their scores are means over all that did, from the "
        "beginning on."
    )


def _scale(rows: Sequence[Row], budget: int, wanted: int) -> str:
    """Return sentences on the length of training and other differences from the paper."""
    if not rows:
        return "Not run."
    frames = int(column(select(rows, metric="episodes"), "frames").min())
    searches = f"Budget {budget}; the paper's is {_PAPER_BUDGET}." * (budget != _PAPER_BUDGET)
    notes = (f"At {frames:,} frames; the paper does not give its number.", searches)
    return " ".join(filter(None, (*notes, shortfall(rows, wanted))))
