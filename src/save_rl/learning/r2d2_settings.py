"""Settings of R2D2, with and without SAVE; imports nothing heavy, so help pages stay fast.

Values are those of Kapturowski et al. (2019) where a comment says "R2D2".
"""

from dataclasses import dataclass, field
from typing import Literal

from save_rl.errors import require

ETA = 0.9  # R2D2, section 2.3
"""Weight of the largest TD error in a sequence's priority; the mean has the rest."""


@dataclass(frozen=True)
class NetworkSettings:
    """The network and its loss; defaults from R2D2's table 2 unless a comment says otherwise."""

    profile: Literal["paper", "small"] = "paper"
    """Layer sizes of the recurrent network; `small` is for CPUs."""
    reward_input: Literal["raw", "tanh", "h"] = "raw"
    """Scaling of the previous reward, an input of the network."""
    search_space: Literal["transformed", "mixed", "raw"] = "transformed"
    """Values that the search averages and compares: both rescaled (`transformed`), plain means
    compared after rescaling (`mixed`), or both plain (`raw`)."""
    learning_rate: float = 1e-4
    """Adam's learning rate for a recurrent agent."""
    clip: float = 40.0  # SEED RL
    """Gradients are clipped to this global norm."""
    over_time: Literal["sum", "mean"] = "sum"
    """Reduction of both losses over the steps of a sequence."""
    weighted_losses: Literal["both", "q"] = "both"
    """Losses that importance weights apply to: both, or only the Q-learning loss."""

    def check(self) -> None:
        at = "--r2d2.network."
        rate, clip = self.learning_rate, self.clip
        require(rate > 0, f"{at}learning-rate", rate, "above 0")
        require(clip > 0, f"{at}clip", clip, "above 0")


@dataclass(frozen=True)
class SequenceSettings:
    """The sequences that episodes are cut into, and their n-step targets."""

    burn_in: int = 40  # R2D2, section 3
    """Burn-in steps, which only warm up the recurrent state."""
    train: int = 80  # R2D2, table 2
    """Training steps per sequence."""
    period: int = 40  # R2D2, section 2.3
    """Steps between the starts of successive sequences."""
    n: int = 5  # R2D2, table 2
    """n of the n-step targets."""
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
        """Length of a sequence: burn-in, training and the bootstrap step."""
        return self.burn_in + self.train + 1


@dataclass(frozen=True)
class ReplaySettings:
    """The size of the replay, its sampling and its rate limit."""

    capacity: int = 100_000  # R2D2, table 2
    """Sequences that the replay holds."""
    capacity_bytes: int = 8 * 2**30
    """Limit on the compressed size of the replay in bytes; the oldest sequences go first."""
    minimum: int = 5_000  # SEED RL's Atari run
    """Sequences to collect before learning starts."""
    batch: int = 64  # R2D2, table 2
    """Sequences per update."""
    samples_per_insert: float | None = None
    """Sequences sampled per sequence added; the default depends on the agent: 0.77 for r2d2, 2 for
    r2d2-controlled and r2d2-save."""
    exponent: float = 0.9  # R2D2, table 2
    """Sampling probabilities are proportional to the priority to this power."""
    threads: int = 4
    """Threads that decompress a batch."""

    def check(self) -> None:
        at = "--r2d2.replay."
        require(self.batch >= 1, f"{at}batch", self.batch, "1 or more")
        room = self.capacity_bytes
        require(room >= 1, f"{at}capacity-bytes", room, "1 or more")
        allowed = f"between 1 and {at}capacity ({self.capacity})"
        require(1 <= self.minimum <= self.capacity, f"{at}minimum", self.minimum, allowed)
        ratio = self.samples_per_insert
        require(ratio is None or ratio > 0, f"{at}samples-per-insert", ratio, "more than 0")
        require(self.exponent >= 0, f"{at}exponent", self.exponent, "0 or more")
        require(self.threads >= 1, f"{at}threads", self.threads, "1 or more")


@dataclass(frozen=True)
class R2D2Settings:
    """Settings of recurrent agents, beside the general ones."""

    network: NetworkSettings = field(default_factory=NetworkSettings)
    """The recurrent network and its loss."""
    sequences: SequenceSettings = field(default_factory=SequenceSettings)
    """The sequences that a recurrent agent learns from."""
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    """The prioritised replay of sequences."""
    refresh: int | None = None
    """Lock-steps between parameter updates of the actors; the default depends on the agent: 400 for
    r2d2, 40 for r2d2-controlled and r2d2-save."""
    target_period: int = 2500  # R2D2, table 2
    """Updates between copies to the target network of a recurrent agent."""
    discard_search: bool = False
    """With r2d2-controlled: search, but discard the result, as the paper's control does: act on the
    network's values and learn nothing from the search."""

    def check(self) -> None:
        """Raise an error for impossible settings, before any work."""
        for part in (self.network, self.sequences, self.replay):
            part.check()
        refresh = self.refresh
        require(refresh is None or refresh >= 1, "--r2d2.refresh", refresh, "1 or more")
        require(self.target_period >= 1, "--r2d2.target-period", self.target_period, "1 or more")
