"""What R2D2 is told, with and without SAVE (atari_r2d2.md, 1); light enough for a help page."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from save_rl.errors import require

ETA = 0.9  # R2D2, section 2.3
"""Share of the largest TD error in a priority; the rest goes to their mean."""


@dataclass(frozen=True)
class NetworkSettings:
    """What the network is and how it learns; all values of R2D2's table 2 unless said."""

    profile: Literal["paper", "small"] = "paper"
    """Sizes of the recurrent network; `small` is for CPUs."""
    reward_input: Literal["raw", "tanh", "h"] = "raw"
    """How the network sees the previous reward."""
    search_space: Literal["transformed", "mixed", "raw"] = "transformed"
    """Values that searches average: rescaled ones as the network's, returns that are compared
    rescaled, or returns."""
    learning_rate: float = 1e-4
    """Adam's learning rate for a recurrent agent."""
    clip: float = 40.0  # SEED RL
    """Largest norm of a gradient."""
    over_time: Literal["sum", "mean"] = "sum"
    """How the losses of the steps of a sequence are put together, both alike."""
    weighs: Literal["both", "q"] = "both"
    """Which losses the importance weights of sequences apply to: both, or Q-learning's alone."""

    def check(self) -> None:
        at = "--r2d2.network."
        rate, clip = self.learning_rate, self.clip
        require(rate > 0, f"{at}learning-rate", rate, "above 0")
        require(clip > 0, f"{at}clip", clip, "above 0")


@dataclass(frozen=True)
class SequenceSettings:
    """How episodes are cut, and what targets are made of."""

    burn_in: int = 40  # R2D2, section 3
    """Steps that only warm up the recurrent state."""
    train: int = 80  # R2D2, table 2
    """Steps of a sequence that are trained on."""
    period: int = 40  # R2D2, section 2.3
    """Steps between the starts of two neighbouring windows."""
    n: int = 5  # R2D2, table 2
    """Steps of reward in a target."""
    gamma: float = 0.997  # R2D2, table 2
    """Discount per step of a recurrent agent, in its search too."""

    def check(self) -> None:
        at = "--r2d2.sequences."
        require(self.burn_in >= 0, f"{at}burn-in", self.burn_in, "0 or more")
        require(self.train >= 1, f"{at}train", self.train, "1 or more")
        allowed = f"between 1 and {at}train ({self.train}), so that no step is left out"
        require(1 <= self.period <= self.train, f"{at}period", self.period, allowed)
        require(self.n >= 1, f"{at}n", self.n, "1 or more")
        require(0 <= self.gamma <= 1, f"{at}gamma", self.gamma, "between 0 and 1")

    @property
    def steps(self) -> int:
        """Steps of a sequence: burn-in, training and the bootstrap step."""
        return self.burn_in + self.train + 1


@dataclass(frozen=True)
class ReplaySettings:
    """How much is kept, what is drawn and how fast."""

    capacity: int = 100_000  # R2D2, table 2
    """Sequences to keep."""
    capacity_bytes: int = 8 * 2**30
    """Bytes that compressed sequences may take; the oldest go first."""
    minimum: int = 5_000  # SEED RL's Atari run
    """Sequences to collect before learning."""
    batch: int = 64  # R2D2, table 2
    """Sequences of one update."""
    samples_per_insert: float | None = None
    """Sequences drawn for each one added; default the agent's: 0.77 for r2d2, 2 for
    r2d2-controlled and r2d2-save."""
    tolerance: Annotated[float, tyro.conf.Suppress] = 0.1
    """How far either side may run ahead, as a share of samples_per_insert times minimum."""
    exponent: float = 0.9  # R2D2, table 2
    """Probabilities go with the priority to this power."""
    threads: int = 4
    """Threads that unpack a batch."""

    def check(self) -> None:
        at = "--r2d2.replay."
        require(self.batch >= 1, f"{at}batch", self.batch, "1 or more")
        room = self.capacity_bytes
        require(room >= 1, f"{at}capacity-bytes", room, "1 or more")
        allowed = f"between 1 and {at}capacity ({self.capacity})"
        require(1 <= self.minimum <= self.capacity, f"{at}minimum", self.minimum, allowed)
        ratio = self.samples_per_insert
        require(ratio is None or ratio > 0, f"{at}samples-per-insert", ratio, "more than 0")
        require(self.tolerance >= 0, f"{at}tolerance", self.tolerance, "0 or more")
        require(self.exponent >= 0, f"{at}exponent", self.exponent, "0 or more")
        require(self.threads >= 1, f"{at}threads", self.threads, "1 or more")


@dataclass(frozen=True)
class R2D2Settings:
    """What recurrent agents are told beside the general settings."""

    network: NetworkSettings = field(default_factory=NetworkSettings)
    """The recurrent network and how it learns."""
    sequences: SequenceSettings = field(default_factory=SequenceSettings)
    """How episodes are cut into what a recurrent agent learns from."""
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    """The replay of sequences."""
    refresh: int | None = None
    """Lock-steps for which actors keep their parameters; default the agent's: 400 for r2d2, 40 for
    r2d2-controlled and r2d2-save."""
    target_period: int = 2500  # R2D2, table 2
    """Updates between copies to the target network of a recurrent agent."""
    discards: bool = False
    """With r2d2-controlled: search all the same, then act on the network alone and learn nothing
    from it, as the paper's control does."""

    def check(self) -> None:
        """Refuse impossible settings before any work."""
        for part in (self.network, self.sequences, self.replay):
            part.check()
        refresh = self.refresh
        require(refresh is None or refresh >= 1, "--r2d2.refresh", refresh, "1 or more")
        require(self.target_period >= 1, "--r2d2.target-period", self.target_period, "1 or more")
