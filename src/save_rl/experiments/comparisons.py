"""Comparisons over few seeds, for claims about agents that train for long."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from save_rl.report.claims import Claim
from save_rl.report.statistics import greater_p, too_few

AT_LEAST = 3  # seeds on each side; 3 against 3 reach p = 0.05 if all of one are above the other
ENOUGH = 5  # seeds from which a non-significant difference counts as no difference
FAR = 0.5  # "dramatically": at most this share of the other median


class Part(NamedTuple):
    """One of the comparisons of a claim."""

    measured: str
    seeds: int
    holds: bool | None
    p_value: float | None = None
    note: str = ""
    """Why the verdict is open, if not for lack of seeds."""


class Sample(NamedTuple):
    """An agent's rewards, one per seed."""

    name: str
    rewards: np.ndarray

    def __str__(self) -> str:
        if not len(self.rewards):
            return f"{self.name} not measured"
        low, high = _number(self.rewards.min()), _number(self.rewards.max())
        return f"{self.name}: {_number(self.median)} [{low}, {high}]"

    @property
    def median(self) -> float:
        return float(np.median(self.rewards))


def above(a: Sample, b: Sample) -> Part:
    """Test whether `a` tends to be above `b`: one-sided rank test at 5 %.

    With fewer than ENOUGH seeds, a non-significant difference of the medians is undecided.
    """
    text, seeds = f"{a} against {b}", min(len(a.rewards), len(b.rewards))
    if too_few(a.rewards, b.rewards, at_least=AT_LEAST):
        return Part(text, seeds, None)
    p_value = greater_p(a.rewards, b.rewards)
    if p_value > 0.05 + 1e-9 and seeds < ENOUGH and a.median > b.median:
        note = f"The medians differ, but {seeds} seeds are too few for the test."
        return Part(text, seeds, None, p_value, note)
    return Part(text, seeds, p_value <= 0.05 + 1e-9, p_value)


def far_above(a: Sample, b: Sample) -> Part:
    """Test `above`, and that the median of `b` is at most FAR times that of `a`."""
    part = above(a, b)
    if part.seeds < AT_LEAST:
        return part
    if a.median <= 0:
        return part._replace(holds=None, note=f"{a.name} has no reward to compare with.")
    return part if b.median <= FAR * a.median else part._replace(holds=False)


def combined(
    id: str, claim: str, where: str, parts: Sequence[Part], *, note: str = "", scale: str = "",
    most: bool = False,
) -> Claim:  # fmt: skip
    """Return a claim that holds if all its parts hold; its p-value is the largest of theirs.

    scale: a sentence on the length of training. most: the claim holds if more than half of its
    parts do, and has no p-value.
    """
    seeds = min((part.seeds for part in parts), default=0)
    holds = _verdict([part.holds for part in parts], most) if seeds >= AT_LEAST else None
    p_values = [part.p_value for part in parts if part.p_value is not None and not most]
    notes = [note]
    if seeds < AT_LEAST:
        number = f"{seeds} seed{'s' * (seeds != 1)}"
        notes.append(f"{number}; at least {AT_LEAST} of each are needed to tell.")
    elif holds is None:
        notes += dict.fromkeys(part.note for part in parts)
    notes.append(scale)
    measured = "; ".join(part.measured for part in parts)
    return Claim(
        id=id,
        claim=claim,
        where=where,
        measured=f"medians [min, max]: {measured}" if measured else "not measured",
        holds=holds,
        seeds=seeds,
        p_value=max(p_values) if p_values and seeds >= AT_LEAST else None,
        note=" ".join(filter(None, notes)),
    )


def _verdict(parts: Sequence[bool | None], most: bool) -> bool | None:
    """Test whether all parts hold, or more than half of them; None if undecided."""
    needed = len(parts) // 2 + 1 if most else len(parts)
    if parts.count(True) >= needed:
        return True
    return None if len(parts) - parts.count(False) >= needed else False


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"
