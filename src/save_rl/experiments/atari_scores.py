"""Published Atari scores, and comparisons of scores."""

from collections.abc import Mapping
from typing import NamedTuple

BASELINE, CONTROLLED, SAVE = "r2d2", "r2d2-controlled", "r2d2-save"
COLUMNS = {BASELINE: "Baseline", CONTROLLED: "Controlled", SAVE: "SAVE"}
"""The agents of the paper's Table E.1, and their names there."""
WITHIN = 0.05  # Table E.1 prints scores within this share of the best in bold
Scores = Mapping[str, Mapping[str, float]]
"""`scores[game][agent]`, means over seeds."""


class Known(NamedTuple):
    """Published scores of a game: of random play, of a human, and the paper's three."""

    level: str
    random: float
    human: float
    baseline: float
    controlled: float
    save: float


# Names and the last three: paper, Table E.1. Random play and human: the usual table of 57 games
# (no-op starts, 30 minutes), as in dqn_zoo.
GAMES = {
    "alien": Known("Alien", 227.8, 7127.7, 71925.1, 96013.5, 280227.3),
    "asteroids": Known("Asteroids", 719.1, 47388.7, 251033.3, 266306.7, 274431.7),
    "beam_rider": Known("Beam Rider", 363.9, 16926.5, 96654.4, 113930.6, 195703.8),
    "centipede": Known("Centipede", 2090.9, 12017.0, 517332.2, 562742.3, 767206.6),
    "crazy_climber": Known("Crazy Climber", 10780.5, 35829.4, 311203.8, 271151.5, 324726.4),
    "frostbite": Known("Frostbite", 65.2, 4334.7, 15814.2, 11052.3, 202744.2),
    "gravitar": Known("Gravitar", 173.0, 3351.4, 7854.0, 11314.3, 11484.1),
    "hero": Known("Hero", 1027.0, 30826.4, 30515.9, 44574.3, 44796.0),
    "ms_pacman": Known("Ms. Pacman", 307.3, 6951.6, 25377.4, 27776.3, 47186.0),
    "name_this_game": Known("Name This Game", 2292.3, 8049.0, 45027.1, 40790.0, 58621.1),
    "riverraid": Known("River Raid", 1338.5, 17118.0, 33819.5, 32720.8, 41031.6),
    "space_invaders": Known("Space Invaders", 148.0, 1668.7, 3639.2, 42387.4, 63684.7),
    "up_n_down": Known("Up 'n' Down", 533.4, 11693.2, 563661.0, 568735.6, 585475.6),
    "zaxxon": Known("Zaxxon", 32.5, 9173.3, 116892.6, 73073.1, 213370.4),
}
PUBLISHED: Scores = {
    game: {BASELINE: known.baseline, CONTROLLED: known.controlled, SAVE: known.save}
    for game, known in GAMES.items()
}
"""The paper's Table E.1."""


def level(game: str) -> str:
    """Return a game's name as in the paper's table, or capitalised if it is not there."""
    return GAMES[game].level if game in GAMES else game.replace("_", " ").title()


def change(scores: Mapping[str, float]) -> float | None:
    """Return SAVE's gain over the controlled agent in per cent; None if undefined."""
    save, controlled = scores.get(SAVE), scores.get(CONTROLLED)
    if save is None or controlled is None or controlled <= 0:
        return None
    return 100 * (save / controlled - 1)


def human_percent(game: str, score: float) -> float | None:
    """Return the human-normalised score: random play is 0, a human 100; None if unknown."""
    if game not in GAMES:
        return None
    known = GAMES[game]
    return 100 * (score - known.random) / (known.human - known.random)


def human_scores(scores: Scores) -> dict[str, dict[str, float]]:
    """Return all scores human-normalised; games without reference scores get none."""
    return {
        game: {
            agent: percent
            for agent, score in by_agent.items()
            if (percent := human_percent(game, score)) is not None
        }
        for game, by_agent in scores.items()
    }


def bold(scores: Mapping[str, float]) -> set[str]:
    """Return the agents within 5 % of the best; none if there is only one agent."""
    if len(scores) < 2:
        return set()
    best = max(scores.values())
    return {agent for agent, score in scores.items() if score >= best - WITHIN * abs(best)}
