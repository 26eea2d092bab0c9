"""The paper's figures and tables by name; each writes results.csv, figure.png and claims.json."""

from typing import NamedTuple


class Entry(NamedTuple):
    """A named experiment: the figures it reproduces, and a line for lists."""

    paper: str
    summary: str


EXPERIMENTS = {
    "tightrope-tabular": Entry(
        "Fig. 2a-c", "SAVE, PUCT, UCT and Q-learning with tables, over terminal actions and budgets"
    ),
    "tightrope-network": Entry("Fig. 2d", "learning curves of SAVE, Q-learning and PUCT with MLPs"),
    "construction": Entry(
        "Fig. 3a-c", "SAVE with and without amortization and Q-learning, over tasks and budgets"
    ),
    "construction-ablations": Entry(
        "Fig. 3d, C.1, C.2", "variants of SAVE on covering: curves, and rewards over budgets"
    ),
    "construction-exploration": Entry(
        "Fig. C.3", "four exploration strategies of SAVE in training, on covering"
    ),
    "construction-efficiency": Entry(
        "Fig. C.4", "SAVE and Q-learning on covering, over all simulator steps"
    ),
    "marble-run": Entry(
        "Fig. 4, D.2, D.3", "SAVE and Q-learning over levels, with free and costly sticky blocks"
    ),
    "atari": Entry("Fig. 5, E.1, Table E.1", "R2D2 with and without SAVE on 14 Atari games"),
}
SCALES = ("smoke", "small", "paper")
