"""The paper's claims about Construction (section 4.2, C.3), tested on measured rows."""

from collections.abc import Sequence

import numpy as np

from save_rl.experiments.comparisons import (
    AT_LEAST,
    FAR,
    Part,
    Sample,
    above,
    combined,
    far_above,
)
from save_rl.report.claims import Claim
from save_rl.report.palette import label
from save_rl.report.results import Row, column, seed_curves, select, values
from save_rl.report.statistics import too_few

LITTLE = 0.25  # "small gains": at most this share of the reward without search
EXPLORED = 0.05  # at this ε and below, training rewards reflect the agent, not exploration
_PAPER_BUDGET = 10
_FIGURE, _ABLATIONS = "section 4.2, Fig. 3a-c", "section 4.2, C.3, Fig. 3d"
_EXPLORATION, _EFFICIENCY = "Fig. C.3", "C.4, Fig. C.4"


def little_gain(before: Sample, after: Sample) -> Part:
    """Test whether search adds little, by the median over seeds of the gain of each."""
    text, seeds = f"{before}, {after}", min(len(before.rewards), len(after.rewards))
    if too_few(before.rewards, after.rewards, at_least=AT_LEAST):
        return Part(text, seeds, None)
    gain = float(np.median(after.rewards - before.rewards))
    text = f"{text}, median gain {gain:+.2f}"
    if before.median <= 0:
        note = f"{before.name} has no reward to compare with."
        return Part(text, seeds, None, note=note)
    return Part(text, seeds, gain <= LITTLE * before.median)


def trained(episodes: int, budget: int) -> str:
    """Return a sentence on the length of training and its search budget, next to the paper's."""
    other = f" Budget {budget}; the paper's is {_PAPER_BUDGET}." * (budget != _PAPER_BUDGET)
    return f"At {episodes:,} episodes of the paper's 1e6.{other}"


class _Task:
    """The measurements on one task, and claims about it."""

    def __init__(self, rows: Sequence[Row], task: str, budget: int):
        self.task, self.budget = task, budget
        self._curves = select(rows, task=task)
        self._rows = select(rows, task=task, metric="test_reward")
        self._episodes = int(column(self._rows, "episodes").min())

    def at(self, agent: str, budget: int | None = None) -> Sample:
        """Return the agent's rewards at a budget, by default that of training."""
        budget = self.budget if budget is None else budget
        rewards = values(self._rows, agent=agent, budget=budget)
        return Sample(f"{label(agent)} at {budget}", rewards)

    def beyond(self, agent: str) -> Sample:
        """Return the agent's rewards at its largest test budget above that of training."""
        tested = {int(row["budget"]) for row in select(self._rows, agent=agent)}  # type: ignore[arg-type]
        larger = [budget for budget in tested if budget > self.budget]
        if not larger:
            return Sample(f"{label(agent)} above {self.budget}", np.zeros(0))
        return self.at(agent, max(larger))

    def others(self) -> list[str]:
        """Return the agents other than SAVE and UCT, in the order of the rows."""
        agents = dict.fromkeys(str(row["agent"]) for row in self._rows)
        return [agent for agent in agents if agent not in ("save", "uct")]

    def uct(self) -> Sample:
        """Return UCT's rewards at its own budget."""
        rows = select(self._rows, agent="uct")
        budget = f" at {rows[0]['budget']}" if rows else ""
        return Sample(label("uct") + budget, values(rows))

    def at_equal_interactions(self, metric: str, *agents: str) -> list[Sample]:
        """Return each agent's metric at the most simulator steps that every seed has reached.

        A seed whose curve starts later is left out.
        """
        rows = [select(self._curves, metric=metric, agent=agent) for agent in agents]
        curves = [seed_curves(of_agent, "interactions") for of_agent in rows]
        ends = [at[-1] for of_agent in curves for at, _ in of_agent]
        common = min(ends, default=0.0)
        samples = []
        for agent, of_agent in zip(agents, curves, strict=True):
            begun = [(np.log(at), values) for at, values in of_agent if at[0] <= common]
            there = [np.interp(np.log(common), at, values) for at, values in begun]
            samples.append(Sample(f"{label(agent)} after {common:,.0f} steps", np.array(there)))
        return samples

    def claim(
        self, id: str, claim: str, where: str, parts: Sequence[Part], note: str = ""
    ) -> Claim:
        """Return a claim about this task, made by `combined`."""
        return combined(
            f"{id}-{self.task}", f"{self.task}: {claim}", where, parts, note=note,
            scale=trained(self._episodes, self.budget),
        )  # fmt: skip


def _tasks(rows: Sequence[Row], budget: int) -> list[_Task]:
    names = dict.fromkeys(str(row["task"]) for row in select(rows, metric="test_reward"))
    return [_Task(rows, name, budget) for name in names]


def construction_claims(rows: Sequence[Row], budget: int) -> list[Claim]:
    """Return the claims of Figure 3a-c and its text, per task; `budget` is that of training."""
    claims = []
    for task in _tasks(rows, budget):
        save, plain = task.at("save"), task.at("save-no-amortization")
        unsearched = task.at("save-no-amortization", 0)
        claims += [
            task.claim(
                "save-above-no-amortization", "SAVE is above SAVE without amortization loss",
                _FIGURE, [above(save, plain)],
            ),
            task.claim(
                "save-above-q-learning", "SAVE is above Q-learning with the same search",
                _FIGURE, [above(save, task.at("q-learning"))],
            ),
            task.claim(
                "no-amortization-collapses-at-0",
                "without amortization loss the reward falls off dramatically without search",
                _FIGURE, [far_above(plain, unsearched), above(task.at("save", 0), unsearched)],
                f"Holds if it falls to at most {FAR:.0%} and below SAVE.",
            ),
            task.claim(
                "large-budgets-hurt-without-amortization",
                "without amortization loss, budgets far above that of training lower the reward",
                _FIGURE, [above(plain, task.beyond("save-no-amortization"))],
                "The paper says so of covering and covering-hard.",
            ),
            task.claim(
                "search-adds-little-to-q-learning",
                "search on top of Q-learning brings small gains, if any",
                _FIGURE, [little_gain(task.at("q-learning", 0), task.at("q-learning"))],
                f"Holds if the median gain is at most {LITTLE:.0%} of the reward without search.",
            ),
            task.claim(
                "uct-is-poor", "pure search performs poorly", _FIGURE,
                [far_above(save, task.uct())],
                f"Holds if UCT is at most at {FAR:.0%} of SAVE.",
            ),
        ]  # fmt: skip
    return claims


def ablation_claims(rows: Sequence[Row], budget: int) -> list[Claim]:
    """Return the claims of Figure 3d and its text, per task; `budget` is that of training and
    tests."""
    claims = []
    for task in _tasks(rows, budget):
        save = task.at("save")
        claims += [
            task.claim(
                "save-is-best", "SAVE is above each of its variants", _ABLATIONS,
                [above(save, task.at(agent)) for agent in task.others()],
                "Holds if it does against each of them; no correction for their number.",
            ),
            task.claim(
                "l2-below-no-amortization",
                "an L2 amortization loss is worse than none",
                _ABLATIONS, [above(task.at("save-no-amortization"), task.at("save-l2"))],
            ),
            task.claim(
                "no-q-learning-drops", "without the Q-learning loss the reward drops dramatically",
                _ABLATIONS, [far_above(save, task.at("save-no-q-learning"))],
                f"Holds if it falls to at most {FAR:.0%} of SAVE.",
            ),
            task.claim(
                "puct-prior-below", "a PUCT search with the prior softmax(Q) is worse",
                _ABLATIONS, [above(save, task.at("save-puct"))],
            ),
        ]  # fmt: skip
    return claims


def exploration_claims(rows: Sequence[Row], budget: int) -> list[Claim]:
    """Return the claim of Figure C.3, per task; `budget` is that of training and tests."""
    return [
        task.claim(
            "epsilon-greedy-is-best", "ε-greedy exploration is above each of the others",
            _EXPLORATION, [above(task.at("save"), task.at(agent)) for agent in task.others()],
            "Holds if it does against each of them; no correction for their number.",
        )
        for task in _tasks(rows, budget)
    ]  # fmt: skip


def efficiency_claims(rows: Sequence[Row], budget: int) -> list[Claim]:
    """Return the claim of Figure C.4, per task; `budget` is that of training.

    With equal numbers of episodes, the agent that searches has taken more simulator steps, so the
    two are compared at the last step of the other. If SAVE still explores there, being below
    Q-learning is undecided.
    """
    claims = []
    for task in _tasks(rows, budget):
        save, other = task.at_equal_interactions("train_reward", "save", "q-learning")
        epsilon, _ = task.at_equal_interactions("epsilon", "save", "q-learning")
        part = above(save, other)
        if part.holds is False and epsilon.median > EXPLORED:
            note = f"SAVE still explores there: ε is {epsilon.median:.2f}."
            part = part._replace(holds=None, note=note)
        claims.append(
            task.claim(
                "save-more-efficient",
                "SAVE is above Q-learning at equal numbers of interactions, search included",
                _EFFICIENCY, [part], "Rewards of training episodes, exploration included.",
            )
        )  # fmt: skip
    return claims
