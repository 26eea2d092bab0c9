"""Options of a run on a cluster beside its training settings; imports little, for help pages."""

from dataclasses import dataclass
from typing import Literal

from save_rl.agents import Agent
from save_rl.errors import require


@dataclass(frozen=True)
class ClusterSettings:
    """The actors, and how far they run ahead of the learner."""

    actors: int = 2
    """Actor processes; one without a free core waits for one, also on nodes that join later."""
    refresh: int | None = None
    """Rounds between parameter updates of the actors, default 1, or --r2d2.refresh; in a round
    every lane makes one step on average."""
    ahead: int = 2
    """Steps that an actor may be asked for before the learner has received the first of them."""
    synchronous: bool = False
    """Wait for every actor in every round; with one actor, and while nothing dies, the run equals
    one without a cluster."""

    inference: Literal["actors", "learner"] = "actors"
    """Where searches evaluate the network: in every actor, on its core, or in one process beside
    the learner, on its GPU, in batches of all actors."""

    def check(self, lanes: int, agent: Agent, reward_scale: float) -> None:
        """Refuse impossible settings before any work."""
        allowed = f"between 1 and --lanes ({lanes}), as every actor has one at least"
        require(1 <= self.actors <= lanes, "--cluster.actors", self.actors, allowed)
        kept = self.refresh
        require(kept is None or kept >= 1, "--cluster.refresh", kept, "1 or more")
        require(self.ahead >= 1, "--cluster.ahead", self.ahead, "1 or more")
        answered = self.inference == "actors" or not agent.recurrent
        allowed = f"'actors' for '{agent.name}', whose lanes remember"
        require(answered, "--cluster.inference", repr(self.inference), allowed)
        fits = self.inference == "actors" or reward_scale > 0
        allowed = "'actors' with --reward-scale 0, as only actors know what was measured"
        require(fits, "--cluster.inference", repr(self.inference), allowed)
