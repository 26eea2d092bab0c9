"""`save-rl studio`: look at runs in a browser."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Studio:
    """Look at runs, episodes and experiments in the browser; changes none of them."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder with runs and experiments, at any depth."""
    port: int = 7283  # S-A-V-E on the keys of a telephone
    """Port of the page; 0 for any that is free."""
    host: str = "127.0.0.1"
    """Address to listen on. Other machines can reach the page only if this is changed; they then
    need the token that is part of the printed address."""
    browser: bool = True
    """Open the page in a browser; the address is printed in any case."""
    trust: bool = False
    """Allow episodes to import the package.module:factory that a run's folder names."""

    def run(self) -> None:
        from save_rl.studio.serve import serve

        serve(
            self.folder, host=self.host, port=self.port, browser=self.browser,
            trust=self.trust,
        )  # fmt: skip
