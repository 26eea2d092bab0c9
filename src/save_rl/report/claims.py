"""The paper's claims, each with our measurement and a verdict."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from save_rl.files import write_atomically
from save_rl.report.statistics import greater_p, too_few

if TYPE_CHECKING:
    from rich.console import Console

AT_LEAST = 5  # seeds on each side; the smallest possible p-value of 5 against 5 is 1/252


@dataclass(frozen=True)
class Claim:
    """One claim of the paper and our result."""

    id: str
    """Short, stable name for scripts."""
    claim: str
    """The paper's claim, in a sentence."""
    where: str
    """Section or figure of the paper."""
    measured: str
    """Our measurement."""
    holds: bool | None
    """None if the scale is too small to tell."""
    seeds: int
    """Seeds of the measurement, of the side with fewer."""
    p_value: float | None = None
    """p-value of the rank test, if there is one."""
    note: str = ""
    """Caveats for the reader."""


def compare(
    id: str,
    claim: str,
    where: str,
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    *,
    names: tuple[str, str] = ("a", "b"),
    alpha: float = 0.05,
    note: str = "",
) -> Claim:
    """Return the claim that `a` (N,) tends to be larger than `b` (M,), one value per seed.

    It holds if the one-sided Mann-Whitney p-value is below `alpha`; None if the data cannot tell.
    """
    seeds = min(len(a), len(b))
    measured = f"median {_median(a)} ({names[0]}) against {_median(b)} ({names[1]})"
    obstacle = ""
    if too_few(a, b, at_least=AT_LEAST):
        obstacle = f"{seeds} seeds; at least {AT_LEAST} of each are needed to tell."
    elif not (np.isfinite(a).all() and np.isfinite(b).all()):
        obstacle = "Some seeds have no finite value."
    if obstacle:
        note = f"{obstacle} {note}".strip()
        return Claim(id, claim, where, measured, None, seeds, None, note)
    p_value = greater_p(a, b)
    return Claim(id, claim, where, measured, p_value < alpha, seeds, p_value, note)


def write_claims(path: str | Path, claims: Iterable[Claim]) -> None:
    """Write claims as a JSON list; raise an error for numbers that are not finite."""
    entries = [asdict(claim) for claim in claims]
    text = json.dumps(entries, indent=2, allow_nan=False, ensure_ascii=False)
    write_atomically(path, text + "\n")


def verdict(claim: Claim) -> str:
    """Return the verdict on a claim in words."""
    if claim.holds is None:
        return "too small to tell"
    return "holds" if claim.holds else "does not hold"


def print_claims(claims: Iterable[Claim], console: "Console") -> None:
    """Print each claim with its verdict in words and, below it, the measurement."""
    from rich.padding import Padding
    from rich.text import Text

    styles = {"holds": "green", "does not hold": "red", "too small to tell": "yellow"}
    console.print("Claims", style="bold")
    for claim in claims:
        word = verdict(claim)
        facts = [claim.where, f"{claim.seeds} seed{'s' * (claim.seeds != 1)}"]
        if claim.p_value is not None:
            facts.append(f"p {_p_value(claim.p_value)}")
        console.print(Text.assemble((f"{word:>17}  ", styles[word]), claim.claim))
        console.print(Padding(Text(f"{claim.measured} ({', '.join(facts)})"), (0, 0, 0, 19)))
        if claim.note:
            console.print(Padding(Text(claim.note, "dim"), (0, 0, 0, 19)))


def _median(sample: Sequence[float] | np.ndarray) -> str:
    return f"{np.median(sample):.3g}" if len(sample) else "unknown"


def _p_value(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.3f}"
