"""The agents of the paper as rows of settings (specification, section 4).

A new agent is a new row here; the loops read the settings and know no names.
"""

from dataclasses import dataclass, replace
from typing import Literal

from save_rl.errors import unknown_name
from save_rl.learning.schedules import Linear, constant
from save_rl.search.rules import Rule


@dataclass(frozen=True)
class Agent:
    """What distinguishes one agent from another."""

    name: str
    """Name on the command line."""
    summary: str
    """One line for lists."""
    search: Rule | None = Rule.SAVE
    """Search policy while training; None acts on Qθ alone."""
    test_search: Rule = Rule.SAVE
    """Search policy while testing."""
    prior: Literal["q", "softmax-q", "policy", "none"] = "q"
    """What the search starts from: Qθ, π = softmax(Qθ), a policy head, or nothing."""
    value_loss: Literal["td", "return", "none"] = "td"
    """L_Q: 1-step Q-learning, regression of V on the episode's return, or none."""
    amortization_loss: Literal["cross-entropy", "l2", "visits", "none"] = "cross-entropy"
    """L_A: how the search's result is regressed back."""
    act: Literal["q", "visits", "threshold", "ucb", "softmax", "counts"] = "q"
    """Final action: highest Q_MCTS among explored actions (ε-greedy in training); visit counts
    (sampled in training, highest in tests); as 'q', but a random unexplored action where no
    explored one is worth more than 0 (UCT's variant, paper B.2); or as 'q' in tests, and in
    training the highest upper bound Q_MCTS + U, a draw from softmax(Q_MCTS), or one from visit
    counts (paper C.4)."""
    root_noise: float = 0.0
    """Share of Dirichlet noise in the root's prior while training (paper A.3)."""
    beta_q: Linear = constant(0.5)  # noqa: RUF009  # paper B.3 (Tightrope)
    """Weight of L_Q."""
    beta_a: Linear = constant(0.5)  # noqa: RUF009  # paper B.3 (Tightrope)
    """Weight of L_A."""
    annealed_q: Linear = constant(0.5)  # noqa: RUF009
    """Weight of L_Q in Construction and Marble Run."""
    annealed_a: Linear = constant(0.5)  # noqa: RUF009
    """Weight of L_A there."""
    recurrent: bool = False
    """Whether it is R2D2: a network with a memory that learns from sequences of frames."""
    samples_per_insert: float = 0.0
    """Sequences that R2D2 draws for each one added (atari_r2d2.md, 3)."""
    refresh: int = 40  # paper, appendix E
    """Lock-steps for which the actors of R2D2 keep their parameters."""

    @property
    def explores(self) -> bool:
        """Whether it leaves its best action with probability ε while training."""
        return self.act in ("q", "threshold")

    @property
    def learns(self) -> bool:
        """Whether training changes anything."""
        return self.value_loss != "none" or self.amortization_loss != "none"


_SAVE = Agent(
    "save",
    "SAVE: search starts from Qθ, its values are regressed back into Qθ",
    annealed_q=Linear(1.0, 0.1, 5e4),  # paper C.1
    annealed_a=Linear(0.0, 4.5, 5e4),  # paper C.1
)
_UCT = Agent(
    "uct",
    "Pure search with random rollouts; learns nothing",
    search=None,
    test_search=Rule.UCT,
    prior="none",
    value_loss="none",
    amortization_loss="none",
)
_R2D2 = Agent(
    "r2d2",
    "R2D2 on Atari: a recurrent Qθ learned from sequences, without search in training",
    search=None,
    amortization_loss="none",
    beta_q=constant(1.0),
    beta_a=constant(0.0),
    recurrent=True,
    samples_per_insert=0.77,  # from R2D2's speeds
    refresh=400,  # R2D2, section 2.3
)
ACTS = ("q", "visits", "threshold", "ucb", "softmax", "counts")
"""Kinds of final actions; kernels know them by their place here."""
_TABLE = (
    _SAVE,
    replace(
        _SAVE,
        name="save-no-amortization",
        summary="SAVE's search and Q-learning, but nothing regressed back",
        amortization_loss="none",
        beta_q=constant(1.0),
        beta_a=constant(0.0),
        annealed_q=constant(1.0),
        annealed_a=constant(0.0),
    ),
    replace(
        _SAVE,
        name="save-l2",
        summary="SAVE with the Euclidean distance as amortization loss",
        amortization_loss="l2",
        beta_a=Linear(0.0, 0.045, 5e4),  # paper C.1
        annealed_a=Linear(0.0, 0.045, 5e4),  # paper C.1
    ),
    replace(
        _SAVE,
        name="save-no-q-learning",
        summary="SAVE with an L2 amortization loss and no Q-learning",
        value_loss="none",
        amortization_loss="l2",
        beta_q=constant(0.0),
        beta_a=constant(0.025),  # paper C.1
        annealed_q=constant(0.0),
        annealed_a=constant(0.025),  # paper C.1
    ),
    replace(
        _SAVE,
        name="save-puct",
        summary="SAVE whose prior enters as the policy softmax(Qθ) of a PUCT search",
        search=Rule.PUCT,
        test_search=Rule.PUCT,
        prior="softmax-q",
        root_noise=0.25,  # paper C.1
    ),
    replace(
        _SAVE,
        name="save-ucb",
        summary="SAVE that explores by the upper bound Q_MCTS + U instead of ε-greedily",
        act="ucb",
    ),
    replace(
        _SAVE,
        name="save-softmax",
        summary="SAVE that explores by draws from softmax(Q_MCTS) instead of ε-greedily",
        act="softmax",
    ),
    replace(
        _SAVE,
        name="save-counts",
        summary="SAVE that explores by draws from its visit counts instead of ε-greedily",
        act="counts",
    ),
    Agent(
        "q-learning",
        "Q-learning without search; at test time SAVE's search on top of Qθ",
        search=None,
        amortization_loss="none",
        beta_q=constant(1.0),
        beta_a=constant(0.0),
        annealed_q=constant(1.0),
        annealed_a=constant(0.0),
    ),
    Agent(
        "puct",
        "AlphaZero-like: policy learned from visit counts, value from returns",
        search=Rule.PUCT,
        test_search=Rule.PUCT,
        prior="policy",
        value_loss="return",
        amortization_loss="visits",
        act="visits",
        root_noise=0.25,  # paper A.3
    ),
    _UCT,
    replace(
        _UCT,
        name="uct-threshold",
        summary="UCT that leaves what it explored when none of it is worth more than 0",
        act="threshold",
    ),
    _R2D2,
    replace(
        _R2D2,
        name="r2d2-controlled",
        summary="R2D2 that replays as often as r2d2-save does, to compare it with",
        samples_per_insert=2.0,
        refresh=40,  # paper, appendix E
    ),
    replace(
        _R2D2,
        name="r2d2-save",
        summary="SAVE on top of R2D2: searches, and regresses their values into the recurrent Qθ",
        search=Rule.SAVE,
        amortization_loss="cross-entropy",
        beta_a=constant(10.0),  # paper, appendix E
        samples_per_insert=2.0,
        refresh=40,  # paper, appendix E
    ),
)
AGENTS: dict[str, Agent] = {agent.name: agent for agent in _TABLE}


def get_agent(name: str, option: str = "--agent") -> Agent:
    """The agent of this name, or an error that names the nearest one."""
    if name not in AGENTS:
        raise unknown_name("agent", name, AGENTS, option)
    return AGENTS[name]
