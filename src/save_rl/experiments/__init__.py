"""The paper's figures and tables by name; each writes results.csv, figure.png and claims.json."""

from typing import NamedTuple


class Entry(NamedTuple):
    """A named experiment: its file and name there, the figures it reproduces, a line for lists."""

    source: str
    paper: str
    summary: str


EXPERIMENTS = {
    "tightrope-tabular": Entry(
        "tightrope_tabular:TIGHTROPE_TABULAR",
        "Fig. 2a-c",
        "SAVE, PUCT, UCT and Q-learning with tables, over terminal actions and budgets",
    ),
    "tightrope-network": Entry(
        "tightrope_network:TIGHTROPE_NETWORK",
        "Fig. 2d",
        "learning curves of SAVE, Q-learning and PUCT with MLPs",
    ),
    "construction": Entry(
        "construction:CONSTRUCTION",
        "Fig. 3a-c",
        "SAVE with and without amortization and Q-learning, over tasks and budgets",
    ),
    "construction-ablations": Entry(
        "construction:ABLATIONS",
        "Fig. 3d, C.1, C.2",
        "variants of SAVE on covering: curves, and rewards over budgets",
    ),
    "construction-exploration": Entry(
        "construction:EXPLORATION",
        "Fig. C.3",
        "four exploration strategies of SAVE in training, on covering",
    ),
    "construction-efficiency": Entry(
        "construction:EFFICIENCY",
        "Fig. C.4",
        "SAVE and Q-learning on covering, over all simulator steps",
    ),
    "marble-run": Entry(
        "marble_run:MARBLE_RUN",
        "Fig. 4, D.2, D.3",
        "SAVE and Q-learning over levels, with free and costly sticky blocks",
    ),
    "atari": Entry(
        "atari:ATARI",
        "Fig. 5, E.1, Table E.1",
        "R2D2 with and without SAVE on 14 Atari games",
    ),
    "minatar": Entry(
        "suites:MINATAR_SUITE",
        "not in it",
        "SAVE, its ablation, Q-learning, PUCT and Gumbel AlphaZero on MinAtar",
    ),
    "jax-suite": Entry(
        "suites:JAX_SUITE",
        "not in it",
        "the same agents on twelve other JAX environments",
    ),
}
SCALES = ("smoke", "small", "paper")
