"""Settings that change during training."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LinearSchedule:
    """A linear schedule from `start` to `end` over the first `episodes` episodes, then constant."""

    start: float
    end: float
    episodes: float

    def at(self, episodes: Any) -> Any:
        """Return the value after this many episodes; plain arithmetic, so arrays work too."""
        done = episodes / self.episodes
        done = done * (done < 1) + 1.0 * (done >= 1)
        return self.start + (self.end - self.start) * done


def constant(value: float) -> LinearSchedule:
    """Return a constant schedule."""
    return LinearSchedule(value, value, 1)
