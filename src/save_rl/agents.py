"""The agents of the paper, as a table of settings.

To add an agent, add a row: the training loops read these settings and never compare names.
"""

from dataclasses import dataclass, replace
from typing import Literal

from save_rl.errors import unknown_name
from save_rl.learning.schedules import LinearSchedule, constant
from save_rl.search.rules import PAPER_RULES, Rule


@dataclass(frozen=True)
class Agent:
    """The settings in which agents differ."""

    name: str
    """Name on the command line."""
    summary: str
    """One line for lists."""
    search: Rule | None = Rule.SAVE
    """Search policy in training; None acts on Qθ without search."""
    test_search: Rule = Rule.SAVE
    """Search policy at test time."""
    prior: Literal["q", "softmax-q", "policy", "logits", "none"] = "q"
    """Prior of the search: Qθ, π = softmax(Qθ), a policy head, its logits, or none."""
    value_loss: Literal["td", "td-value", "return", "none"] = "td"
    """L_Q: Q-learning, regression of V on bootstrapped returns or on the episode's return, or
    none."""
    n_step: int = 1
    """Steps of reward in the targets of L_Q before they bootstrap, unless --n-step says otherwise.
    """
    amortization_loss: Literal[
        "cross-entropy", "explored", "weighted", "l2", "visits", "policy", "none"
    ] = "cross-entropy"
    """L_A: the loss that regresses the network to the search's result. 'explored' and 'weighted'
    look only at actions that were tried."""
    act: Literal["q", "visits", "threshold", "ucb", "softmax", "counts", "gumbel"] = "q"
    """Final action. 'q': highest Q_MCTS among explored actions (ε-greedy in training). 'visits':
    visit counts (sampled in training, highest at test time). 'threshold': as 'q', but a random
    unexplored action where no explored one has a value above 0 (UCT's variant, paper B.2). 'ucb',
    'softmax', 'counts': as 'q' at test time; in training the highest upper bound Q_MCTS + U, a
    sample from softmax(Q_MCTS), or a sample from the visit counts (paper C.4). 'gumbel': the action
    that a Gumbel search chose."""
    root_noise: float = 0.0
    """Weight of the Dirichlet noise in the root's prior in training (paper A.3); scale of the
    noise of a Gumbel search."""
    beta_q: LinearSchedule = constant(0.5)  # noqa: RUF009  # paper B.3 (Tightrope)
    """Weight of L_Q."""
    beta_a: LinearSchedule = constant(0.5)  # noqa: RUF009  # paper B.3 (Tightrope)
    """Weight of L_A."""
    annealed_q: LinearSchedule = constant(0.5)  # noqa: RUF009
    """Weight of L_Q in Construction and Marble Run."""
    annealed_a: LinearSchedule = constant(0.5)  # noqa: RUF009
    """Weight of L_A in Construction and Marble Run."""
    recurrent: bool = False
    """True for R2D2: a recurrent network that learns from sequences of frames."""
    samples_per_insert: float = 0.0
    """Sequences that R2D2 samples per sequence added to replay
    (docs/experiments/atari.md#replay-ratio)."""
    refresh: int = 40  # paper, appendix E
    """Lock-steps between parameter updates of R2D2's actors."""

    @property
    def has_policy(self) -> bool:
        """True if the network has a policy head and a value head, instead of Qθ."""
        return self.prior in ("policy", "logits")

    @property
    def explores(self) -> bool:
        """True if the agent is ε-greedy in training."""
        return self.act in ("q", "threshold")

    @property
    def searches_anywhere(self) -> bool:
        """True if Python simulators have the search of its tests, too."""
        return self.test_search in PAPER_RULES

    @property
    def learns(self) -> bool:
        """True if the agent has parameters to train."""
        return self.value_loss != "none" or self.amortization_loss != "none"


_SAVE = Agent(
    "save",
    "SAVE: search starts from Qθ, and Qθ is regressed to the search's values",
    annealed_q=LinearSchedule(1.0, 0.1, 5e4),  # paper C.1
    annealed_a=LinearSchedule(0.0, 4.5, 5e4),  # paper C.1
)
_SAVE_PUCT = replace(
    _SAVE,
    name="save-puct",
    summary="SAVE with a PUCT search whose policy prior is softmax(Qθ)",
    search=Rule.PUCT,
    test_search=Rule.PUCT,
    prior="softmax-q",
    root_noise=0.25,  # paper C.1
)
_PUCT = Agent(
    "puct",
    "AlphaZero-like: policy learned from visit counts, value from returns",
    search=Rule.PUCT,
    test_search=Rule.PUCT,
    prior="policy",
    value_loss="return",
    amortization_loss="visits",
    act="visits",
    root_noise=0.25,  # paper A.3
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
    "R2D2 on Atari: learns a recurrent Qθ from sequences, without search in training",
    search=None,
    amortization_loss="none",
    beta_q=constant(1.0),
    beta_a=constant(0.0),
    recurrent=True,
    samples_per_insert=0.77,  # from R2D2's speeds
    refresh=400,  # R2D2, section 2.3
)
ACTS = ("q", "visits", "threshold", "ucb", "softmax", "counts", "gumbel")
"""Kinds of final actions; the kernels identify each by its index here."""
_TABLE = (
    _SAVE,
    replace(
        _SAVE,
        name="save-no-amortization",
        summary="SAVE's search and Q-learning, without an amortization loss",
        amortization_loss="none",
        beta_q=constant(1.0),
        beta_a=constant(0.0),
        annealed_q=constant(1.0),
        annealed_a=constant(0.0),
    ),
    replace(
        _SAVE,
        name="save-no-amortization-annealed",
        summary="The same, with the weight of Q-learning that SAVE has",
        amortization_loss="none",
        beta_a=constant(0.0),
        annealed_a=constant(0.0),
    ),
    replace(
        _SAVE,
        name="save-l2",
        summary="SAVE with an L2 amortization loss",
        amortization_loss="l2",
        beta_a=LinearSchedule(0.0, 0.045, 5e4),  # paper C.1
        annealed_a=LinearSchedule(0.0, 0.045, 5e4),  # paper C.1
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
        name="save-amortization-only",
        summary="SAVE's cross-entropy without Q-learning: only differences of values are learned",
        value_loss="none",
        beta_q=constant(0.0),
        annealed_q=constant(0.0),
        annealed_a=constant(4.5),  # not in the paper; nothing else is learned, so not annealed
    ),
    _SAVE_PUCT,
    replace(
        _SAVE_PUCT,
        name="save-puct-visits",
        summary="The same, acting on visit counts as PUCT does instead of ε-greedily",  # paper C.1
        act="visits",
    ),
    replace(
        _SAVE,
        name="save-ucb",
        summary="SAVE that explores with the upper bound Q_MCTS + U instead of ε-greedily",
        act="ucb",
    ),
    replace(
        _SAVE,
        name="save-softmax",
        summary="SAVE that explores by sampling softmax(Q_MCTS) instead of ε-greedily",
        act="softmax",
    ),
    replace(
        _SAVE,
        name="save-counts",
        summary="SAVE that explores by sampling its visit counts instead of ε-greedily",
        act="counts",
    ),
    replace(
        _SAVE,
        name="save-explored",
        summary="SAVE whose amortization loss compares only actions that the search tried",
        amortization_loss="explored",
    ),
    replace(
        _SAVE,
        name="save-visit-weighted",
        summary="SAVE whose amortization loss is squared, weighted by the visits of each action",
        amortization_loss="weighted",
    ),
    Agent(
        "q-learning",
        "Q-learning without search in training; SAVE's search on Qθ at test time",
        search=None,
        amortization_loss="none",
        beta_q=constant(1.0),
        beta_a=constant(0.0),
        annealed_q=constant(1.0),
        annealed_a=constant(0.0),
    ),
    _PUCT,
    replace(
        _PUCT,
        name="puct-td",
        summary="PUCT whose values are learned from 1-step TD targets",  # paper A.3
        value_loss="td-value",
    ),
    Agent(
        "gumbel",
        "Gumbel AlphaZero: policy and value learned from a search made for small budgets",
        search=Rule.GUMBEL,
        test_search=Rule.GUMBEL,
        prior="logits",
        value_loss="td-value",
        n_step=5,  # as MuZero Reanalyze; not tuned here
        amortization_loss="policy",
        act="gumbel",
        root_noise=1.0,  # Danihelka et al. 2022
    ),
    _UCT,
    replace(
        _UCT,
        name="uct-threshold",
        summary="UCT that tries an unexplored action if no explored one has a value above 0",
        act="threshold",
    ),
    _R2D2,
    replace(
        _R2D2,
        name="r2d2-controlled",
        summary="R2D2 with the replay ratio of r2d2-save, for a fair comparison",
        samples_per_insert=2.0,
        refresh=40,  # paper, appendix E
    ),
    replace(
        _R2D2,
        name="r2d2-save",
        summary="SAVE on R2D2: searches, and regresses the recurrent Qθ to the search's values",
        search=Rule.SAVE,
        amortization_loss="cross-entropy",
        beta_a=constant(10.0),  # paper, appendix E
        samples_per_insert=2.0,
        refresh=40,  # paper, appendix E
    ),
)
AGENTS: dict[str, Agent] = {agent.name: agent for agent in _TABLE}


def get_agent(name: str, option: str = "--agent") -> Agent:
    """Return the agent of this name, or raise an error that suggests the nearest name."""
    if name not in AGENTS:
        raise unknown_name("agent", name, AGENTS, option)
    return AGENTS[name]


def usual_budget(agent: Agent, trained: int) -> int:
    """Return the budget of a loaded agent that was trained with `trained`, unless told another."""
    return trained if agent.searches_anywhere else 0


def target_rows(agent: Agent) -> tuple[int, int]:
    """Return what an agent's amortization loss needs of the search, in rows of one number per
    action: those of Q_MCTS, and those of visits or probabilities, which come after them.

    'visits' and 'policy': the search's policy (visit frequencies for PUCT). 'explored': Q_MCTS,
    -inf for actions that were not tried. 'weighted': Q_MCTS, then the visits.
    """
    rows = {"none": (0, 0), "visits": (0, 1), "policy": (0, 1), "weighted": (1, 1)}
    return rows.get(agent.amortization_loss, (1, 0))


def target_width(agent: Agent, num_actions: int) -> int:
    """Return the numbers per transition of `target_rows`."""
    return sum(target_rows(agent)) * num_actions
