"""The paper's figures and tables by name; each writes results.csv, figure.png and claims.json."""

from typing import NamedTuple


class Entry(NamedTuple):
    """A named experiment: what it reproduces, and a line for lists."""

    paper: str
    summary: str


EXPERIMENTS = {
    "tightrope-tabular": Entry(
        "Fig. 2a-c", "SAVE, PUCT, UCT and Q-learning with tables, over terminal actions and budgets"
    ),
    "tightrope-network": Entry("Fig. 2d", "learning curves of SAVE, Q-learning and PUCT with MLPs"),
}
SCALES = ("smoke", "small", "paper")
