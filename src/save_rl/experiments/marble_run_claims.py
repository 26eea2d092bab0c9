"""The paper's claims about Marble Run (section 4.3, D.7), tested on measured rows."""

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
from save_rl.experiments.construction_claims import trained
from save_rl.report.claims import Claim
from save_rl.report.palette import label
from save_rl.report.results import Row, column, select, values

NEVER = {0.0: 6, 0.04: 5}
"""By glue cost, the level that the paper's Q-learning never reaches."""
UNSTABLE = 4
"""The level from which the paper's Q-learning collapses."""
_LAST = 3  # points at the end of a learning curve
_PAPER_EPISODES = 1_000_000
_OURS = "Physics and preset are this project's."


def main_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the tests that compare agents, each at its training budget (0 without search)."""
    budgets = {row["agent"]: row["budget"] for row in select(rows, metric="final_level")}
    tests = select(rows, metric="test_reward")
    return [row for row in tests if row["budget"] == budgets[row["agent"]]]


def _never(level: int, other: Sample, save: Sample, episodes: int) -> Part:
    """Test that no seed of `other` reached a level; undecided if training was too short."""
    text, seeds = f"{other}, {save}", len(other.rewards)
    if seeds < AT_LEAST:
        return Part(text, seeds, None)
    if other.rewards.max() >= level:
        return Part(text, seeds, False)
    if episodes >= _PAPER_EPISODES or (len(save.rewards) and save.median >= level):
        return Part(text, seeds, True)
    return Part(text, seeds, None, note=f"SAVE has not reached level {level} yet either.")


def _kept(rows: Sequence[Row], agent: str) -> Sample:
    """Return the share of its best reward from level UNSTABLE on that an agent has at the end, for
    the seeds that reached that level."""
    curves = select(rows, agent=agent, metric="level_reward")
    shares = []
    for seed in dict.fromkeys(row["seed"] for row in curves):
        high = [row for row in select(curves, seed=seed) if float(row["level"]) >= UNSTABLE]  # type: ignore[arg-type]
        rewards = values(high)
        if rewards.max(initial=0.0) > 0:
            shares.append(float(rewards[-_LAST:].mean() / rewards.max()))
    name = f"share of its best reward that {label(agent)} keeps from level {UNSTABLE} on"
    return Sample(name, np.array(shares))


def marble_run_claims(rows: Sequence[Row], budget: int) -> list[Claim]:
    """Return the claims of Figures 4, D.2 and D.3 per glue cost; `budget` is that of training."""
    claims = []
    tests, ends = main_rows(rows), select(rows, metric="final_level")
    for cost in dict.fromkeys(column(ends, "sticky_cost").tolist()):
        episodes = int(column(select(ends, sticky_cost=cost), "episodes").min())
        here = select(tests, sticky_cost=cost)
        levels = sorted({int(level) for level in column(here, "level")})

        def at(agent: str, level: int, here: list[Row] = here) -> Sample:
            name = f"{label(agent)} on level {level}"
            return Sample(name, values(here, agent=agent, level=level))

        save, other = (
            Sample(f"final level of {label(agent)}", values(ends, agent=agent, sticky_cost=cost))
            for agent in ("save", "q-learning")
        )

        def claim(
            id: str, text: str, where: str, parts: Sequence[Part], note: str = "",
            cost: float = cost, episodes: int = episodes,
        ) -> Claim:  # fmt: skip
            return combined(
                f"{id}-cost-{cost:g}", f"cost {cost:g}: {text}", where, parts,
                note=f"{note} {_OURS}".strip(), scale=trained(episodes, budget),
            )  # fmt: skip

        claims += [
            claim(
                "save-above-q-learning", "SAVE is above Q-learning without search on every level",
                "section 4.3, Fig. 4a-b",
                [above(at("save", level), at("q-learning", level)) for level in levels],
                "Holds if it does on each of them; no correction for their number.",
            ),
            claim(
                "save-reaches-higher", "SAVE gets to higher levels than Q-learning",
                "section 4.3, D.7, Fig. D.3", [above(save, other)],
            ),
            claim(
                "q-learning-collapses",
                f"Q-learning becomes unstable and collapses around levels {UNSTABLE} and "
                f"{UNSTABLE + 1}, SAVE does not",
                "section 4.3, D.7, Fig. D.2",
                [far_above(*(_kept(select(rows, sticky_cost=cost), agent)
                             for agent in ("save", "q-learning")))],
                f"Holds if Q-learning keeps at most {FAR:.0%} of the share that SAVE keeps.",
            ),
        ]  # fmt: skip
        if cost in NEVER:
            claims.append(
                claim(
                    "q-learning-stays-below",
                    f"Q-learning never makes it to level {NEVER[cost]}",
                    "D.7, Fig. D.3", [_never(NEVER[cost], other, save, episodes)],
                    "Told once SAVE makes it there, or after 1e6 episodes.",
                )
            )  # fmt: skip
    return claims
