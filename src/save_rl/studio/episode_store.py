"""Played episodes in memory: steps as compressed JSON, pictures as PNG; the oldest are dropped."""

import json
import threading
import zlib
from collections import OrderedDict
from typing import Any

from save_rl.errors import RunError

MOST_BYTES = 256 * 2**20
_MOST_EPISODES = 50


class StoredEpisode:
    """An episode, as far as it was played.

    settings: what it was asked for. steps: of each state but the last, the decision there. rewards:
    of these steps. over: why it ended; '' while it is being played.
    """

    def __init__(self, number: int, run: str, settings: dict[str, Any]):
        self.number, self.run, self.settings = number, run, settings
        self.steps: list[bytes] = []
        self.rewards: list[float] = []
        self.pictures: list[bytes] = []
        self.taken: list[list[Any]] = []  # action and luck
        self.over, self.last_text, self.bytes = "", "", 0

    def summary(self) -> dict[str, Any]:
        """Return all but the steps."""
        return {
            "episode": self.number, "run": self.run, "settings": self.settings,
            "rewards": self.rewards, "over": self.over, "states": len(self.pictures),
            "last_text": self.last_text, "pictures": any(self.pictures),
        }  # fmt: skip

    def step(self, number: int) -> dict[str, Any]:
        """Return the record of a step."""
        return json.loads(zlib.decompress(self.steps[number]))


class Store:
    """The episodes that were played last, as many as fit."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self._most, self._lock = most_bytes, threading.Lock()
        self._episodes: OrderedDict[int, StoredEpisode] = OrderedDict()

    def begin(self, number: int, run: str, settings: dict[str, Any]) -> StoredEpisode:
        """Return a new episode."""
        episode = StoredEpisode(number, run, settings)
        with self._lock:
            self._episodes[number] = episode
            while len(self._episodes) > _MOST_EPISODES:
                self._episodes.popitem(last=False)
        return episode

    def get(self, number: int) -> StoredEpisode | None:
        """Return an episode, which thereby stays longer."""
        with self._lock:
            if number in self._episodes:
                self._episodes.move_to_end(number)
            return self._episodes.get(number)

    def of_run(self, run: str) -> list[StoredEpisode]:
        """Return the episodes of a run, the newest first."""
        with self._lock:
            found = [episode for episode in self._episodes.values() if episode.run == run]
        return sorted(found, key=lambda episode: -episode.number)

    def drop(self, number: int) -> None:
        """Forget an episode."""
        with self._lock:
            self._episodes.pop(number, None)

    def add(self, episode: StoredEpisode, record: dict[str, Any], picture: bytes) -> None:
        """Add a step, or the end, of an episode."""
        if "over" in record:
            episode.over, episode.last_text = record["over"], record["text"]
            size = 0
        else:
            step = zlib.compress(json.dumps(record).encode(), 1)
            episode.steps.append(step)
            episode.rewards.append(record["reward"])
            episode.taken.append(record["step"])
            size = len(step)
        if episode.pictures and episode.pictures[-1] == picture:
            picture = episode.pictures[-1]  # once in memory
        else:
            size += len(picture)
        episode.pictures.append(picture)
        episode.bytes += size
        self._make_room(episode)

    def _make_room(self, needed: StoredEpisode) -> None:
        """Drop the oldest episodes until the others fit; never the one that is needed."""
        with self._lock:
            total = sum(episode.bytes for episode in self._episodes.values())
            for number, episode in list(self._episodes.items()):
                if total <= self._most:
                    return
                if episode is not needed:
                    total -= episode.bytes
                    del self._episodes[number]
        if total > self._most:
            raise RunError(
                f"This episode needs more memory than the studio has for episodes "
                f"({self._most >> 20} MB); play fewer steps."
            )
