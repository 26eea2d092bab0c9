"""Colour, marker and label of each agent in all figures and tables."""

from collections.abc import Iterable
from typing import NamedTuple


class Look(NamedTuple):
    """An agent's label, line colour and marker."""

    label: str
    colour: str
    marker: str


# Okabe and Ito's colours for colour-blind readers, without their yellow (faint on white);
# agents without learning are grey.
LOOKS: dict[str, Look] = {
    "save": Look("SAVE", "#D55E00", "o"),
    "q-learning": Look("Q-learning", "#0072B2", "s"),
    "puct": Look("PUCT", "#009E73", "^"),
    "puct-td": Look("PUCT, TD values", "#228833", "3"),
    "gumbel": Look("Gumbel AlphaZero", "#117733", "*"),
    "uct": Look("UCT", "#333333", "D"),
    "uct-threshold": Look("UCT, threshold", "#BBBBBB", "d"),
    "save-no-amortization": Look("SAVE, no amortization", "#E69F00", "v"),
    "save-no-amortization-annealed": Look("SAVE, no amortization, β_Q annealed", "#DDAA33", "1"),
    "save-l2": Look("SAVE, L2 loss", "#56B4E9", "P"),
    "save-no-q-learning": Look("SAVE, no Q-learning", "#CC79A7", "X"),
    "save-amortization-only": Look("SAVE, only amortization", "#AA3377", "x"),
    "save-puct": Look("SAVE, PUCT prior", "#661100", "<"),
    "save-puct-visits": Look("SAVE, PUCT prior, acts on counts", "#994455", "2"),
    "save-ucb": Look("SAVE, UCB", "#332288", ">"),
    "save-softmax": Look("SAVE, softmax", "#44AA99", "p"),
    "save-counts": Look("SAVE, visit counts", "#882255", "h"),
    "save-explored": Look("SAVE, explored actions", "#EE7733", "8"),
    "save-visit-weighted": Look("SAVE, weighted by visits", "#CC3311", "H"),
    "r2d2": Look("R2D2", "#6699CC", "s"),
    "r2d2-controlled": Look("R2D2, controlled", "#004488", "D"),
    "r2d2-save": Look("R2D2 with SAVE", "#BB5566", "o"),
}
_SPARE = ("#999933", "#88CCEE", "#AA4499", "#DDCC77")


def label(agent: str) -> str:
    """Return the agent's name as in the paper; unknown names are returned unchanged."""
    return LOOKS[agent].label if agent in LOOKS else agent


def looks(agents: Iterable[str]) -> dict[str, Look]:
    """Return the look of each agent, in the order in which they are drawn and listed.

    Known agents come first, in the order of `LOOKS`; others share the spare colours.
    """
    named = set(agents)
    known = {agent: look for agent, look in LOOKS.items() if agent in named}
    others = enumerate(sorted(named - set(known)))
    return known | {agent: Look(agent, _SPARE[i % len(_SPARE)], ">") for i, agent in others}
