"""Simulators for tests of worker processes, made there by `tests.envs.pool_simulators:name`.

Sound ones, and some that fail when they are asked to. Also what tests need to watch processes.
Nothing here imports JAX.
"""

import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.worker import REPLY, Lanes, Request

CELLS, LIMIT = 97, 12


class Place(NamedTuple):
    """A moment of an episode; `flaw` is what is wrong with it."""

    cell: int
    steps: int = 0
    flaw: str = ""


class Walk:
    """Hops over 97 cells by arithmetic. Every thirteenth cell ends the episode, 12 steps cut it."""

    num_actions = 5

    def __init__(self, seed: int = 0):
        self.shift = seed

    def reset(self, seed):
        return Place(int(seed) % CELLS)

    def step(self, state, action):
        cell = (state.cell * 5 + action * 31 + self.shift + 1) % CELLS
        over, steps = cell % 13 == 0, state.steps + 1
        return Place(cell, steps), cell / 7 - 6, over, not over and steps >= LIMIT

    def observe(self, state):
        return np.array([state.cell / 3, state.steps / 7])


class Rich(Walk):
    """Shows four things of different types, and forbids every third action."""

    def observe(self, state):
        return {
            "place": np.array([state.cell / 3, state.steps / 7]),
            "count": state.steps,
            "picture": np.full((2, 3), state.cell, np.uint8),
            "near": np.arange(4) == state.cell % 4,
        }

    def action_mask(self, state):
        return (state.cell + np.arange(self.num_actions)) % 3 != 0


class Saved(Walk):
    """A walk whose states are bytes; those of the first cell at the start are zeros."""

    def save_state(self, state):
        return np.array(state[:2], np.uint8)

    def load_state(self, data):
        return Place(*data.tolist())


class Chance(Walk):
    """Where one lands is a matter of luck."""

    stochastic = True

    def step(self, state, action, seed):
        return super().step(state._replace(cell=(state.cell + seed) % CELLS), action)


def _write_down(diary: str, line: str) -> None:
    with open(diary, "a") as file:
        file.write(f"{line}\n")


class Written(Walk):
    """A walk that writes down every step it is asked for."""

    def __init__(self, diary: str):
        super().__init__()
        self._diary = diary

    def step(self, state, action):
        _write_down(self._diary, f"step {state.cell} {action}")
        return super().step(state, action)


class WrittenChance(Written):
    stochastic = True

    def step(self, state, action, seed):
        _write_down(self._diary, f"step {state.cell} {action} {seed}")
        return Walk.step(self, state, action)


class Countdown:
    """Pays the number it stands at; every action takes one away, and at 0 it ends.

    `only`: the one action that is allowed; others raise. `never`: it pays 1 and goes on for ever.
    `cut`: numbers from which the next step is cut off. `flaw`: the number that pays NaN.
    """

    num_actions = 4

    def __init__(self, only: int = -1, never: bool = False, cut: int = -1, flaw: int = -1):
        self.only, self.never, self.cut, self.flaw = only, never, cut, flaw
        if only >= 0:
            self.action_mask = self._action_mask

    def reset(self, seed):
        return int(seed)

    def step(self, state, action):
        if self.only not in (-1, action):
            raise ValueError(f"action {action} is not allowed")
        if self.never:
            return state, 1.0, False, False
        reward = np.nan if state == self.flaw else float(state)
        return state - 1, reward, state == 1, state == self.cut

    def observe(self, state):
        return np.array([state])

    def _action_mask(self, state):
        return np.arange(self.num_actions) == self.only


def raises_on_purpose():
    raise ArithmeticError("the engine is on fire")


def sleeps_for_ever():
    while True:
        time.sleep(0.05)


def spins_for_ever():
    while True:
        pass


def reads_at_zero():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


GO, END = 0, 1
FLAWS = (  # what the actions from 2 on lead to
    "nan reward", "nan seen", "infinite seen", "other shape", "other names", "fractions",
    "long mask", "empty mask", "three", "nothing", "no number", "raise", "leave", "exit",
    "segfault", "sleep", "spin",
)  # fmt: skip
DEEDS = {
    "raise": raises_on_purpose, "leave": sys.exit, "exit": lambda: os._exit(7),
    "segfault": reads_at_zero, "sleep": sleeps_for_ever, "spin": spins_for_ever,
}  # fmt: skip
RAISING_SEED = 1_000_000


def flawed(flaw: str) -> int:
    """The action that leads to a flaw."""
    return 2 + FLAWS.index(flaw)


class Faulty:
    """Counts up: action 0 goes on, 1 ends the episode, and every other one is a flaw of its own.

    It shows the process that it runs in. `diary`: a file where it writes what it is about to do.
    """

    num_actions = 2 + len(FLAWS)

    def __init__(self, diary: str = ""):
        self._diary = diary or os.devnull

    def reset(self, seed):
        if seed == RAISING_SEED:
            raises_on_purpose()
        return Place(int(seed))

    def step(self, state, action):
        after = Place(state.cell + 1, state.steps + 1, "" if action < 2 else FLAWS[action - 2])
        if after.flaw in DEEDS:
            _write_down(self._diary, f"{os.getpid()} {after.flaw}")
            DEEDS[after.flaw]()
        reward = {"nan reward": np.nan, "no number": None}.get(after.flaw, state.cell / 3)
        if after.flaw == "three":
            return after, reward, False
        if after.flaw == "nothing":
            return None
        return after, reward, action == END, False

    def observe(self, state):
        place = np.array([state.cell / 3, state.steps])
        if state.flaw in ("nan seen", "infinite seen"):
            place[1] = np.nan if state.flaw == "nan seen" else -np.inf
        if state.flaw == "other shape":
            place = place[:1]
        worker = os.getpid() + 0.5 if state.flaw == "fractions" else os.getpid()
        seen = {"place": place, "worker": worker}
        return {"places": place} if state.flaw == "other names" else seen

    def action_mask(self, state):
        mask = np.ones(self.num_actions + (state.flaw == "long mask"), np.bool_)
        return mask & (state.flaw != "empty mask")


class Chatty(Walk):
    """Prints more than a pipe holds."""

    def step(self, state, action):
        print("blah " * 20_000)
        return super().step(state, action)


class Looking(Walk):
    """Shows what its process is like, after some linear algebra."""

    def observe(self, state):
        square = np.ones((300, 300))
        return {
            "jax": "jax" in sys.modules,
            "threads": len(os.listdir("/proc/self/task")) if (square @ square).any() else 0,
            "libraries": int(os.environ.get("OMP_NUM_THREADS", "0")),
            "worker": os.getpid(),
        }


class Helped(Walk):
    """Every step starts a process of its own, and pays its number."""

    def step(self, state, action):
        helper = subprocess.Popen(["sleep", "60"])
        return state, float(helper.pid), False, False


class Forking(Faulty):
    """A worker that makes it forks or starts a process, which ends when this file is there."""

    def __init__(self, home: int, end: str, forks: bool):
        super().__init__()
        if os.getpid() == home:
            return
        if not forks:
            code = f"while [ ! -e {end} ]; do sleep 0.1; done"
            self._helper = subprocess.Popen(["sh", "-c", code], close_fds=False)
        elif os.fork() == 0:
            wait_until(lambda: os.path.exists(end))
            os._exit(0)


class Compiling(Walk):
    """It has kernels to compile, which takes until there is a file of this name."""

    def __init__(self, end: str):
        super().__init__()
        self._end = end

    def compile_ahead(self) -> None:
        wait_until(lambda: os.path.exists(self._end))


class Trapped(Chance):
    """A walk to train on. A file named `trap` catches the one step that finds it first.

    The file says what happens then; it is renamed to `trap` and the number of the process. The
    trap lies in the steps of the search alone if `search`. `last`: all episodes raise at this step.
    """

    def __init__(self, seed: int = 0, trap: str = "", search: bool = False, last: int = -1):
        super().__init__(seed)
        self._trap, self._search, self._last = trap, search, last

    def reset(self, seed):
        return Place(1 + int(seed) % 12)

    def _fall(self) -> None:
        caught = f"{self._trap}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._trap, caught)
            DEEDS[Path(caught).read_text()]()

    def step(self, state, action, seed):
        searches = sys._getframe(1).f_code is Lanes._try.__code__
        if self._trap and self._search == searches:
            self._fall()
        if state.steps + 1 == self._last:
            raises_on_purpose()
        return super().step(state, action, seed if searches else 0)


class Counting(Lanes):
    """Lanes that know one more request, with one more array: they count what was asked of them."""

    COUNT = 9
    FIELDS = (("counted", "<i8", (2,)),)  # requests, and what the last one brought

    def run(self, request: Request, low: int, high: int) -> list[tuple[int, str]]:
        if request.command != self.COUNT:
            return super().run(request, low, high)
        self._arrays["counted"][low:high] += 1, 0
        self._arrays["counted"][low:high, 1] = request.budget + 100 * request.new
        self._arrays.reward[low:high] = request.c
        return [(low, "ValueError: too many\n")] if request.rule else []


class Talkative(Lanes):
    """Lanes that fail with as many bytes of text as asked for."""

    FAIL = 9

    def run(self, request: Request, low: int, high: int) -> list[tuple[int, str]]:
        if request.command != self.FAIL:
            return super().run(request, low, high)
        around = REPLY.size + len(json.dumps([[low, ""]]))
        return [(low, "x" * (request.budget - around))]


class NotHere(Walk):
    """Can be made by one process alone."""

    def __init__(self, home: int, how: str):
        super().__init__()
        if os.getpid() != home:
            DEEDS[how]()


def walk(seed: int = 0) -> Walk:
    return Walk(seed)


def rich(seed: int = 0) -> Rich:
    return Rich(seed)


def chance(seed: int = 0) -> Chance:
    return Chance(seed)


def written(diary: str, luck: bool) -> Written:
    return WrittenChance(diary) if luck else Written(diary)


def countdown(only: int = -1, never: bool = False, cut: int = -1, flaw: int = -1) -> Countdown:
    return Countdown(only, never, cut, flaw)


def faulty(diary: str = "") -> Faulty:
    return Faulty(diary)


def chatty() -> Chatty:
    return Chatty()


def looking() -> Looking:
    return Looking()


def helped() -> Helped:
    return Helped()


def trapped(seed: int = 0, trap: str = "", search: bool = False, last: int = -1) -> Trapped:
    return Trapped(seed, trap, search, last)


def not_here(home: int, how: str) -> NotHere:
    return NotHere(home, how)


def forking(home: int, end: str, forks: bool) -> Forking:
    return Forking(home, end, forks)


def compiling(end: str) -> Compiling:
    return Compiling(end)


def starts_workers(home: int) -> Walk:
    """What a script does that trains when it is imported; here it goes no deeper."""
    from save_rl.envs.pool import Pool, Source

    if os.getpid() != home:
        source = Source("tests.envs.pool_simulators:walk", 0, {})
        Pool([walk()], [1], workers=1, sources=[source]).close()
    return walk()


def wait_until(what: Callable[[], Any], limit: float = 1200) -> Any:
    """Ask again and again; returns the first answer that is true. `limit` ends what hangs."""
    end = time.monotonic() + limit
    while not (answer := what()):
        assert time.monotonic() < end, f"waited {limit} s in vain"
        time.sleep(0.01)
    return answer


def _stat(pid: int) -> list[str]:
    """State, parent and further fields of a process; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def has_ended(pid: int) -> bool:
    """Whether a process has closed all it had; that its parent knows of it is not needed."""
    return _stat(pid)[:1] in ([], ["Z"], ["X"])


def have_ended(pids: Iterable[int]) -> bool:
    """Wait until all these processes have ended."""
    wait_until(lambda: all(map(has_ended, pids)))
    return True


def workers(word: str = "") -> list[int]:
    """All workers that have this word in what they were told."""
    found = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_text() if path.name.isdigit() else ""
            if "save_rl.envs.worker" in command and word in command:
                found.append(int(path.name))
    return sorted(found)


def wait_until_idle(pid: int) -> None:
    """Wait until a process sleeps and goes on sleeping: it waits for something."""
    calm = 0

    def look() -> bool:
        nonlocal calm
        calm = calm + 1 if _stat(pid)[:1] == ["S"] else 0
        return calm == 10

    wait_until(look)
