"""`save-rl compare`: runs in one table and one picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Compare:
    """Compare runs: a table over seeds, rank tests, and their curves in one picture."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folders of runs of one environment, or folders of such folders; runs that differ only in
    their seeds are one row."""
    out: Path = Path("compare.png")
    """The picture to write."""
    over: tuple[str, ...] = ("episodes", "steps", "simulations", "time")
    """Axes of the curves, a panel each: episodes, steps (real ones), simulations (all simulator
    steps), time."""
    share: float = 0.1
    """Share of the real steps that all seeds have made, the last of which give the table."""

    def run(self) -> None:
        from rich.console import Console

        from save_rl.comparison import compare

        result = compare(*self.runs, out=self.out, over=self.over, share=self.share)
        Console().print(result.table())
        for sentence in result.sentences():
            print(sentence)
        print(f"{self.out}: the curves")
