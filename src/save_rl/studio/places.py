"""States of episodes, by the start of an episode and the steps since."""

from typing import Any, NamedTuple

from save_rl.errors import InputError

_MOST = 5_000  # states that are remembered; those of Atari have 30 kB


class Step(NamedTuple):
    """An action, and its luck in a simulator with chance."""

    action: int
    luck: int | None = None


class Place:
    """A state of an episode, and what the step that led to it gave.

    over: why the episode has ended there; '' if it goes on.
    """

    def __init__(self, state: Any, reward: float = 0.0, over: str = ""):
        self.state, self.reward, self.over = state, reward, over
        self.after: dict[Step, Place] = {}


class Places:
    """The places that were visited; simulators are pure, so all others can be reached from there.

    simulator: with levels, its `reset` takes `difficulty` and `curriculum_sample`.
    """

    def __init__(self, simulator: Any):
        self._simulator = simulator
        self._starts: dict[tuple[int, int | None], Place] = {}
        self._count = 0

    def start(self, seed: int, level: int | None) -> Place:
        """Return the start of an episode; forget all others if there are too many places."""
        if self._count > _MOST:
            self._starts, self._count = {}, 0
        place = self._starts.get((seed, level))
        if place is None:
            options = {} if level is None else {"difficulty": level, "curriculum_sample": False}
            place = self._starts[seed, level] = Place(self._simulator.reset(seed, **options))
            self._count += 1
        return place

    def step(self, place: Place, step: Step) -> Place:
        """Return the place after a step."""
        after = place.after.get(step)
        if after is not None:
            return after
        if place.over:
            raise InputError(f"There is no step after the end of an episode ({place.over}).")
        luck = () if step.luck is None else (step.luck,)
        state, reward, terminated, truncated = self._simulator.step(place.state, step.action, *luck)
        over = "terminated" if terminated else "truncated" if truncated else ""
        ending = getattr(state, "ending", "")
        if over and ending and isinstance(ending, str):
            over = ending.replace("_", " ")
        after = place.after[step] = Place(state, float(reward), over)
        self._count += 1
        return after
