"""The mean return of the last episodes, beside the progress bar."""

from collections import deque

RECENT = 100
"""Episodes of a rolling mean."""


class RecentReturns:
    """The mean return of a seed's last episodes: `RECENT`, or as many more as a line has."""

    def __init__(self) -> None:
        self._sums: deque[tuple[int, float]] = deque()  # episodes, and the sum of their returns

    def add(self, episodes: int, total: float) -> None:
        """Add the episodes of a line of metrics."""
        if episodes:
            self._sums.append((episodes, total))
        while self._sums and self.episodes - self._sums[0][0] >= RECENT:
            self._sums.popleft()

    @property
    def episodes(self) -> int:
        return sum(count for count, _ in self._sums)

    @property
    def mean(self) -> float:
        return sum(total for _, total in self._sums) / self.episodes
