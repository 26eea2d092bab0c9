"""Scores of agents over a suite of environments, and what they say about SAVE."""

from collections.abc import Sequence

import numpy as np

from save_rl.report.aggregates import estimate, interquartile_mean, probability_of_improvement
from save_rl.report.claims import AT_LEAST, Claim
from save_rl.report.palette import label
from save_rl.report.results import Row, values

SAVE = "save"
_WHERE = "not in the paper"


def normalised(rows: Sequence[Row], envs: Sequence[str], agents: Sequence[str]) -> dict:
    """Return scores `[seeds, environments]` by agent.

    0 is random play, 1 the best agent's mean over seeds; environments where no agent is better
    than random play are left out.
    """
    kept = {agent: [] for agent in agents}
    for env in envs:
        found = {agent: values(rows, metric="score", agent=agent, game=env) for agent in agents}
        low = values(rows, metric="score", agent="random", game=env).mean()
        high = max(sample.mean() for sample in found.values())
        if high > low:
            for agent, sample in found.items():
                kept[agent].append((sample - low) / (high - low))
    seeds = len(values(rows, metric="score", agent=agents[0], game=envs[0]))
    return {
        agent: np.stack(columns, 1) if columns else np.zeros((seeds, 0))
        for agent, columns in kept.items()
    }


def suite_claims(
    rows: Sequence[Row], envs: Sequence[str], agents: Sequence[str], steps: int
) -> list[Claim]:
    """Return a claim for every other agent: a run of SAVE is more likely to be the better one.

    It holds if the 95 % interval of that probability, averaged over environments, is above a half.
    """
    scores = normalised(rows, envs, agents)
    if SAVE not in scores:
        return []
    ours = scores[SAVE]
    return [_claim(agent, ours, theirs, steps) for agent, theirs in scores.items() if agent != SAVE]


def _claim(agent: str, ours: np.ndarray, theirs: np.ndarray, steps: int) -> Claim:
    seeds, tasks = ours.shape
    text = f"SAVE is better than {label(agent)} over the suite"
    scale = f"{tasks} environments, {steps:,} real steps each."
    if tasks == 0:
        return Claim(
            f"save-above-{agent}", text, _WHERE, "nobody learned", None, seeds, None, scale
        )
    better = estimate(probability_of_improvement, ours, theirs)
    means = " against ".join(f"{interquartile_mean(x):.2f}" for x in (ours, theirs))
    measured = (
        f"better with probability {better.value:.2f} [{better.low:.2f}, {better.high:.2f}]; "
        f"interquartile means {means}"
    )
    holds, note = bool(better.low > 0.5), scale
    if seeds < AT_LEAST:
        holds, note = None, f"{seeds} seeds; at least {AT_LEAST} are needed to tell. {scale}"
    return Claim(f"save-above-{agent}", text, _WHERE, measured, holds, seeds, None, note)
