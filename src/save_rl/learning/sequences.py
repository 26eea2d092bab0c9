"""Episodes cut into the training sequences of R2D2 (Kapturowski et al. 2019).

Training windows of 80 steps begin every 40 steps of an episode, as long as they contain a step that
the window before did not. A sequence is such a window with 40 steps of burn-in before it and the
bootstrap step after it. It never crosses an episode: what lies before the first step or after the
end is zero and masked.

An episode ends by game over (the discount of its last step is 0 and there is nothing to bootstrap
from) or is cut by the time cap (the discount stays 1). In the second case the observation after the
last step follows it, in what is padding otherwise, so that the last steps have a target too.
"""

import zlib
from typing import NamedTuple

import numpy as np

from save_rl.learning.r2d2_settings import ETA, SequenceSettings
from save_rl.rescaling import rescale, unscale

LEAD = 3  # frames before the first step, for its stack of 4
LEVEL = 1  # of zlib


class Shapes(NamedTuple):
    """What one step of an agent looks like."""

    frame: tuple[int, ...] = (84, 84)
    state: tuple[int, ...] = (2, 512)
    actions: int = 18
    searched: bool = True  # there are Q_MCTS and explored actions


class Step(NamedTuple):
    """One lock-step of all lanes, `[lanes, ...]`."""

    frame: np.ndarray  # [lanes, *frame] uint8, the newest one alone
    previous_action: np.ndarray  # [lanes] int32
    previous_reward: np.ndarray  # [lanes] float32
    action: np.ndarray  # [lanes] int32
    reward: np.ndarray  # [lanes] float32, what the action brought
    discount: np.ndarray  # [lanes] float32, 0 at game over, else 1
    q_theta: np.ndarray  # [lanes, A] float32, the network's values when it acted, rescaled
    state: np.ndarray  # [lanes, *state] float32, recurrent state before this step was consumed
    q_mcts: np.ndarray | None = None  # [lanes, A] float32, rescaled
    explored: np.ndarray | None = None  # [lanes, A] bool


class Sequence(NamedTuple):
    """`S` = burn-in + training + 1 steps; in a batch, axis `B` follows time (or comes first).

    The training steps are the valid ones of `[burn_in : -1]`. Where the time cap ended an episode,
    the observation (frame, previous action and reward) after the last valid step is there too, to
    bootstrap from.
    """

    frames: np.ndarray  # [LEAD + S, *frame] uint8; the stack of step i is frames[i : i + 4]
    previous_action: np.ndarray  # [S] int32
    previous_reward: np.ndarray  # [S] float32
    action: np.ndarray  # [S] int32
    reward: np.ndarray  # [S] float32
    discount: np.ndarray  # [S] float32
    valid: np.ndarray  # [S] bool, a step was taken; false at padding
    state: np.ndarray  # [*state] float32, before step 0; zero if that is padding
    priority: np.ndarray  # [] float32, the first one, by the actor's own values
    version: np.ndarray  # [] int64, of the parameters when the sequence was finished
    q_mcts: np.ndarray | None  # [S, A] float32
    explored: np.ndarray | None  # [S, A] bool


def blank(settings: SequenceSettings, shapes: Shapes) -> Sequence:
    """A sequence of zeros."""
    steps = settings.steps
    values = np.zeros((steps, shapes.actions), np.float32)
    return Sequence(
        frames=np.zeros((LEAD + steps, *shapes.frame), np.uint8),
        previous_action=np.zeros(steps, np.int32),
        previous_reward=np.zeros(steps, np.float32),
        action=np.zeros(steps, np.int32),
        reward=np.zeros(steps, np.float32),
        discount=np.zeros(steps, np.float32),
        valid=np.zeros(steps, np.bool_),
        state=np.zeros(shapes.state, np.float32),
        priority=np.zeros((), np.float32),
        version=np.zeros((), np.int64),
        q_mcts=values if shapes.searched else None,
        explored=values.astype(np.bool_) if shapes.searched else None,
    )


def changes(frames: np.ndarray) -> np.ndarray:
    """Frames `[n, ...]`, each but the first XOR the one before: mostly zeros, to be compressed."""
    change = frames.copy()
    change[1:] ^= frames[:-1]
    return change


def td_errors(
    q: np.ndarray,
    action: np.ndarray,
    reward: np.ndarray,
    discount: np.ndarray,
    settings: SequenceSettings,
) -> np.ndarray:
    """Rescaled n-step TD errors `[L]` of one network, which both chooses and values.

    q: `[L + 1, A]`, the last for the bootstrap step; targets that would reach past it stop there.
    """
    t, length = np.arange(len(action)), len(action)
    end = np.minimum(t + settings.n, length)
    target = unscale(q.max(-1).astype(np.float64))[end]
    for k in reversed(range(settings.n)):
        i = np.minimum(t + k, length - 1)
        longer = reward[i] + settings.gamma * discount[i] * target
        target = np.where(t + k < length, longer, target)
    return rescale(target) - q[t, action]


def priority(errors: np.ndarray) -> float:
    """`η max|δ| + (1 - η) mean|δ|` of the trained steps (R2D2, section 2.3)."""
    size = np.abs(errors)
    return float(ETA * size.max() + (1.0 - ETA) * size.mean())


class Writer:
    """Cuts the episodes of many lanes.

    Each lane has the room of one sequence, laid out as the window that it fills: when the bootstrap
    step arrives, the sequence is copied out and the room moves on by a period. Recurrent states are
    kept for those steps alone that later sequences begin with.
    """

    def __init__(self, settings: SequenceSettings, shapes: Shapes, lanes: int):
        settings.check()
        self.settings = settings
        self._places = LEAD + settings.steps
        values = (shapes.actions,)
        rows = {
            "frame": (shapes.frame, np.uint8),
            "previous_action": ((), np.int32),
            "previous_reward": ((), np.float32),
            "action": ((), np.int32),
            "reward": ((), np.float32),
            "discount": ((), np.float32),
            "q_theta": (values, np.float32),
        }
        if shapes.searched:
            rows |= {"q_mcts": (values, np.float32), "explored": (values, np.bool_)}
        self._given = tuple(rows)
        rows["valid"] = ((), np.bool_)
        self._rows = {
            name: np.zeros((lanes, self._places, *shape), dtype)
            for name, (shape, dtype) in rows.items()
        }
        begun = (settings.burn_in + settings.train) // settings.period + 1
        self._states = np.zeros((lanes, begun, *shapes.state), np.float32)
        self._age = np.zeros(lanes, np.int64)  # steps of the episode so far
        self._window = np.zeros(lanes, np.int64)  # number of the window that is filled

    def add(
        self,
        step: Step,
        over: np.ndarray,
        version: int,
        last_frame: np.ndarray | None = None,
    ) -> list[Sequence]:
        """Take a lock-step; returns the sequences that it finished.

        over: `[lanes]`, the episode ends with this step. version: of the parameters that acted.
        last_frame: `[lanes, *frame]`, the picture after this step; looked at where the time cap
        ended an episode.
        """
        cut = over & (step.discount > 0)
        if np.any((step.discount == 0) & ~over):
            raise ValueError("a discount of 0 in an episode that goes on")
        if last_frame is None and np.any(cut):
            raise ValueError("an episode was cut by the time cap, but there is no last_frame")
        lanes, place = np.arange(len(over)), self._place()
        for name in self._given:
            self._rows[name][lanes, place] = getattr(step, name)
        self._rows["valid"][lanes, place] = True
        first, phase = np.divmod(self._age + self.settings.burn_in, self.settings.period)
        begins = np.flatnonzero(phase == 0)
        self._states[begins, first[begins] % self._states.shape[1]] = step.state[begins]
        self._age += 1
        finished = []
        for lane in np.flatnonzero(place == self._places - 1).tolist():
            finished.append(self._sequence(lane, version))
            self._move_on(lane)
        place = self._place()
        for lane in np.flatnonzero(over).tolist():
            if last_frame is not None and cut[lane]:
                self._observe(lane, place[lane], last_frame[lane])
            finished.append(self._sequence(lane, version))
            self._clear(lane)
        return finished

    def drop(self, lanes: np.ndarray) -> None:
        """Forget the episodes of lanes `[n]` whose simulator has failed."""
        for lane in lanes.tolist():
            self._clear(lane)

    def state(self) -> dict[str, np.ndarray]:
        """All that the lanes hold, for a checkpoint; frames as bytes `[any]`, compressed."""
        arrays: dict[str, np.ndarray] = {
            **self._rows, "states": self._states, "age": self._age, "window": self._window,
        }  # fmt: skip
        frames = changes(arrays.pop("frame")[arrays["valid"]])
        packed = np.frombuffer(zlib.compress(frames.data, LEVEL), np.uint8)
        return {"frame": packed, **{name: array.copy() for name, array in arrays.items()}}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on where `state` was taken, with the same settings, shapes and lanes."""
        rows = self._rows["frame"]
        packed = np.frombuffer(zlib.decompress(state["frame"].data), np.uint8)
        rows[...] = 0
        rows[state["valid"]] = np.bitwise_xor.accumulate(packed.reshape(-1, *rows.shape[2:]))
        for name, array in self._rows.items():
            if name != "frame":
                array[...] = state[name]
        self._states[...] = state["states"]
        self._age[...], self._window[...] = state["age"], state["window"]

    def _place(self) -> np.ndarray:
        """Where the next step of each lane goes."""
        start = self._window * self.settings.period - self.settings.burn_in - LEAD
        return self._age - start

    def _observe(self, lane: int, place: int, frame: np.ndarray) -> None:
        """Add the observation after the last step of an episode that was cut.

        The network has not seen it. For the first priority its values are taken to be those of the
        step before.
        """
        rows = self._rows
        rows["frame"][lane, place] = frame
        rows["previous_action"][lane, place] = rows["action"][lane, place - 1]
        rows["previous_reward"][lane, place] = rows["reward"][lane, place - 1]
        rows["q_theta"][lane, place] = rows["q_theta"][lane, place - 1]

    def _sequence(self, lane: int, version: int) -> Sequence:
        settings, window = self.settings, int(self._window[lane])
        rows = {k: x[lane, LEAD:].copy() for k, x in self._rows.items() if k != "frame"}
        begin = settings.burn_in
        end = begin + int(rows["valid"][begin:-1].sum())
        errors = td_errors(
            rows["q_theta"][begin : end + 1],
            rows["action"][begin:end],
            rows["reward"][begin:end],
            rows["discount"][begin:end],
            settings,
        )
        state = self._states[lane, window % self._states.shape[1]].copy()
        if window * settings.period < settings.burn_in:
            state[...] = 0.0
        return Sequence(
            frames=self._rows["frame"][lane].copy(),
            previous_action=rows["previous_action"],
            previous_reward=rows["previous_reward"],
            action=rows["action"],
            reward=rows["reward"],
            discount=rows["discount"],
            valid=rows["valid"],
            state=state,
            priority=np.asarray(priority(errors), np.float32),
            version=np.asarray(version, np.int64),
            q_mcts=rows.get("q_mcts"),
            explored=rows.get("explored"),
        )

    def _move_on(self, lane: int) -> None:
        period = self.settings.period
        for array in self._rows.values():
            array[lane, :-period] = array[lane, period:]
            array[lane, -period:] = 0
        self._window[lane] += 1

    def _clear(self, lane: int) -> None:
        for array in self._rows.values():
            array[lane] = 0
        self._age[lane], self._window[lane] = 0, 0
