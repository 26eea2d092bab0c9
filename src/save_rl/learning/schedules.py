"""Settings that change as training goes on."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Linear:
    """Goes from `start` to `end` over the first `episodes` episodes and stays there."""

    start: float
    end: float
    episodes: float

    def at(self, episodes: Any) -> Any:
        """The value after so many episodes; plain arithmetic, so it takes arrays too."""
        done = episodes / self.episodes
        done = done * (done < 1) + 1.0 * (done >= 1)
        return self.start + (self.end - self.start) * done


def constant(value: float) -> Linear:
    """A schedule that never changes."""
    return Linear(value, value, 1)
