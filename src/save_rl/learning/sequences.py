"""Cutting episodes into R2D2's training sequences (Kapturowski et al. 2019).

Training windows of 80 steps start every 40 steps of an episode, as long as they contain a step that
the previous window did not. A sequence is such a window, preceded by 40 burn-in steps and followed
by the bootstrap step. It never crosses an episode boundary: positions before the first step or
after the end are zero and masked.

An episode ends by game over (the discount of its last step is 0, so nothing is bootstrapped) or is
truncated by the time cap (the discount stays 1). After a truncation, the final observation occupies
the first padding position, so that the last steps have a target too.
"""

import zlib
from typing import NamedTuple

import numpy as np

from save_rl.envs.atari_protocol import STACK
from save_rl.learning.r2d2_settings import ETA, SequenceSettings
from save_rl.rescaling import rescale, unscale

LEAD = STACK - 1  # frames before the first step
LEVEL = 1  # zlib's compression level


class Shapes(NamedTuple):
    """The shapes of one step of an agent."""

    frame: tuple[int, ...]
    state: tuple[int, ...]
    actions: int
    searched: bool  # steps have Q_MCTS


class Step(NamedTuple):
    """One lock-step of all lanes, `[lanes, ...]`."""

    frame: np.ndarray  # [lanes, *frame] uint8, only the newest of the stack
    previous_action: np.ndarray  # [lanes] int32
    previous_reward: np.ndarray  # [lanes] float32
    action: np.ndarray  # [lanes] int32
    reward: np.ndarray  # [lanes] float32, of this action
    discount: np.ndarray  # [lanes] float32, 0 at game over, else 1
    q_theta: np.ndarray  # [lanes, A] float32, the acting network's values, rescaled
    state: np.ndarray  # [lanes, *state] float32, recurrent state before this step
    q_mcts: np.ndarray | None = None  # [lanes, A] float32, rescaled


class Sequence(NamedTuple):
    """`S` = burn-in + training + 1 steps; in a batch, axis `B` follows time (or comes first).

    The training steps are the valid ones of `[burn_in : -1]`. If the time cap truncated the
    episode, the last valid step is followed by the final observation (frame, previous action and
    reward), for bootstrapping.
    """

    frames: np.ndarray  # [LEAD + S, *frame] uint8; the stack of step i is frames[i : i + 4]
    previous_action: np.ndarray  # [S] int32
    previous_reward: np.ndarray  # [S] float32
    action: np.ndarray  # [S] int32
    reward: np.ndarray  # [S] float32
    discount: np.ndarray  # [S] float32
    valid: np.ndarray  # [S] bool, a step was taken; false at padding
    state: np.ndarray  # [*state] float32, before step 0; zero if that is padding
    priority: np.ndarray  # [] float32, initial, from the actor's own values
    q_mcts: np.ndarray | None  # [S, A] float32


def blank(settings: SequenceSettings, shapes: Shapes) -> Sequence:
    """Return a sequence of zeros."""
    steps = settings.steps
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
        q_mcts=np.zeros((steps, shapes.actions), np.float32) if shapes.searched else None,
    )


def changes(frames: np.ndarray) -> np.ndarray:
    """Return frames `[n, ...]`, each but the first XOR its predecessor: zeros compress well."""
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
    """Return rescaled n-step TD errors `[L]`, with one network both selecting and evaluating.

    q: `[L + 1, A]`, the last row for the bootstrap step; targets do not extend past it.
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
    """Return `η max|δ| + (1 - η) mean|δ|` over the training steps (R2D2, section 2.3)."""
    size = np.abs(errors)
    return float(ETA * size.max() + (1.0 - ETA) * size.mean())


class Writer:
    """Cuts the episodes of many lanes into sequences.

    Each lane has a buffer for one sequence. When its bootstrap step arrives, the sequence is copied
    out and the buffer shifts by a period. Recurrent states are kept only for the first steps of
    later sequences.
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
            rows["q_mcts"] = (values, np.float32)
        self._given = tuple(rows)
        rows["valid"] = ((), np.bool_)
        self._rows = {
            name: np.zeros((lanes, self._places, *shape), dtype)
            for name, (shape, dtype) in rows.items()
        }
        begun = (settings.burn_in + settings.train) // settings.period + 1
        self._states = np.zeros((lanes, begun, *shapes.state), np.float32)
        self._age = np.zeros(lanes, np.int64)  # steps of the episode so far
        self._window = np.zeros(lanes, np.int64)  # index of the current window

    def add(
        self, step: Step, over: np.ndarray, last_frame: np.ndarray | None = None
    ) -> list[Sequence]:
        """Add a lock-step; return the sequences that it completes.

        over: `[lanes]`, the episode ends with this step. last_frame: `[lanes, *frame]`, the frame
        after this step; used where the time cap truncates an episode.
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
            finished.append(self._sequence(lane))
            self._move_on(lane)
        place = self._place()
        for lane in np.flatnonzero(over).tolist():
            if last_frame is not None and cut[lane]:
                self._observe(lane, place[lane], last_frame[lane])
            finished.append(self._sequence(lane))
            self._clear(lane)
        return finished

    def drop(self, lanes: np.ndarray) -> None:
        """Discard the current episodes of lanes `[n]` whose simulator has failed."""
        for lane in lanes.tolist():
            self._clear(lane)

    def state(self) -> dict[str, np.ndarray]:
        """Return the buffers of all lanes, for a checkpoint; frames as compressed bytes `[any]`."""
        arrays: dict[str, np.ndarray] = {
            **self._rows, "states": self._states, "age": self._age, "window": self._window,
        }  # fmt: skip
        frames = changes(arrays.pop("frame")[arrays["valid"]])
        packed = np.frombuffer(zlib.compress(frames.data, LEVEL), np.uint8)
        return {"frame": packed, **{name: array.copy() for name, array in arrays.items()}}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from `state`, with the same settings, shapes and lanes."""
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
        """Return the buffer position of each lane's next step."""
        start = self._window * self.settings.period - self.settings.burn_in - LEAD
        return self._age - start

    def _observe(self, lane: int, place: int, frame: np.ndarray) -> None:
        """Add the final observation of a truncated episode.

        The network has not evaluated it; the initial priority uses the values of the step before.
        """
        rows = self._rows
        rows["frame"][lane, place] = frame
        rows["previous_action"][lane, place] = rows["action"][lane, place - 1]
        rows["previous_reward"][lane, place] = rows["reward"][lane, place - 1]
        rows["q_theta"][lane, place] = rows["q_theta"][lane, place - 1]

    def _sequence(self, lane: int) -> Sequence:
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
            q_mcts=rows.get("q_mcts"),
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
