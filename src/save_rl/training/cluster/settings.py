"""What a run on a cluster can be told beside its training settings; light, for help pages."""

from dataclasses import dataclass
from typing import Literal

from save_rl.agents import Agent
from save_rl.errors import require


@dataclass(frozen=True)
class ClusterSettings:
    """Who acts, and how far ahead of the learner."""

    actors: int = 2
    """Processes that act; those that find no free core wait for one, also on nodes to come."""
    refresh: int | None = None
    """Rounds for which actors keep their parameters, default 1, or what --r2d2.refresh says; in a
    round every lane makes a step on average."""
    ahead: int = 2
    """Steps that an actor may be asked for before the learner has taken in the first of them."""
    synchronous: bool = False
    """Wait for every actor in every round; with one actor the run is that of one machine, bit for
    bit."""

    inference: Literal["actors", "learner"] = "actors"
    """Where searches ask the network: in every actor, on its core, or in one process beside the
    learner, with its GPU, in batches of all actors."""

    def check(self, lanes: int, agent: Agent) -> None:
        """Refuse impossible settings before any work."""
        allowed = f"between 1 and --lanes ({lanes}), as every actor has one at least"
        require(1 <= self.actors <= lanes, "--cluster.actors", self.actors, allowed)
        kept = self.refresh
        require(kept is None or kept >= 1, "--cluster.refresh", kept, "1 or more")
        require(self.ahead >= 1, "--cluster.ahead", self.ahead, "1 or more")
        answered = self.inference == "actors" or not agent.recurrent
        allowed = f"'actors' for '{agent.name}', whose lanes remember"
        require(answered, "--cluster.inference", repr(self.inference), allowed)
