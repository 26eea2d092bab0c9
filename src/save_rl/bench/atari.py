"""Simulations per second of Atari games, next to a bare loop over the emulator.

A simulation restores a state, repeats an action for four frames, makes a picture and saves the
state. The bare loop does just that, with the same picture, but no states, observations or checks.

The speed-up from several workers is measured next to that of as many processes with a bare loop
each: the most that cores with shared clock, caches and memory can give.
"""

import contextlib
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

from save_rl.bench import median_seconds
from save_rl.envs.atari import Atari, AtariState
from save_rl.envs.atari.emulator import Emulator
from save_rl.envs.atari.frames import pushed
from save_rl.envs.atari_protocol import REPEAT
from save_rl.envs.pool import Pool, Source
from save_rl.errors import RunError, require

GAMES = ("ms_pacman", "frostbite", "crazy_climber", "up_n_down")  # the last two: fast and slow
LANES = 32
WORKERS_GAME = "ms_pacman"
BUDGET = 10  # consecutive simulations; paper, appendix E


def _moments(sim: Atari, count: int) -> list[AtariState]:
    """Return states of a random game, 20 steps apart."""
    rng, state, found = np.random.default_rng(0), sim.reset(0), []
    while len(found) < count:
        for _ in range(20):
            state, _, over, _ = sim.step(state, int(rng.integers(sim.num_actions)))
            state = sim.reset(len(found)) if over else state
        found.append(state)
    return found


class _Bare:
    """The minimal simulation in Python: only the calls of the emulator."""

    def __init__(self, game: str):
        loaded = Emulator(game)
        self._ale, self._columns = loaded._ale, loaded._columns
        self._one, self._two = loaded._screens

    def __call__(self, core: Any, stack: np.ndarray, action: int) -> tuple[Any, np.ndarray, int]:
        ale, reward = self._ale, 0
        ale.restoreState(core)
        for frame in range(REPEAT):
            reward += ale.act(action)
            if ale.game_over():
                break
            if frame == REPEAT - 2:
                ale.getScreenGrayscale(self._two)
        ale.getScreenGrayscale(self._one)
        return ale.cloneState(), pushed(stack, self._one, self._two, self._columns), reward


def _lanes(states: list[AtariState], pool: Pool, actions: list[int]) -> Callable[[], None]:
    """Return a function that steps every lane of a pool without workers."""
    assert pool._local is not None
    for lane, state in enumerate(states):
        pool._local.place(lane, state)
    nodes, wanted = np.zeros(len(states), np.int64), np.array(actions)

    def trip() -> None:
        pool.step(0, nodes, wanted, 1)
        pool.receive(0)

    return trip


def _game(game: str, repeats: int) -> dict[str, Any]:
    sim, bare = Atari(game), _Bare(game)
    states = _moments(sim, LANES)
    actions = [lane % sim.num_actions for lane in range(LANES)]
    cases = list(zip(states, actions, strict=True))
    for state, action in cases:  # check for equal results
        after, reward, over, _ = sim.step(state, action)
        core, stack, gained = bare(state.core, state.stack, action)
        same = after.core == core and reward == gained
        if not same or not (over or np.array_equal(after.stack, stack)):
            raise AssertionError("the loops end in different places")
    parts = [(state.core, state.stack, action) for state, action in cases]
    with Pool([sim], [LANES]) as pool:
        seconds = median_seconds(
            {
                "lanes": _lanes(states, pool, actions),
                "step": lambda: [sim.step(state, action) for state, action in cases],
                "bare loop": lambda: [bare(*part) for part in parts],
            },
            repeats,
        )
    return {
        "game": game,
        "simulations_per_second": {name: round(LANES / s) for name, s in seconds.items()},
        "ratio_to_bare_loop": {
            name: round(seconds["bare loop"] / seconds[name], 3) for name in ("lanes", "step")
        },
    }


def _two_groups(pool: Pool) -> Callable[[], None]:
    """Return a function that runs `BUDGET` simulations in every lane as a search does: it receives
    one group's results while the other group is simulated."""
    nodes = [0 * group.lanes for group in pool.groups]
    actions = [group.lanes % pool.layout.num_actions for group in pool.groups]
    both = range(len(pool.groups))
    for group in both:
        pool.reset(group, pool.groups[group].lanes, pool.groups[group].lanes)

    def search() -> None:
        for group in both:
            pool.step(group, nodes[group], actions[group], 1)
        for new in range(1, BUDGET + 1):
            for group in both:
                pool.receive(group)
                if new < BUDGET:
                    pool.step(group, nodes[group], actions[group], new + 1)

    return search


def serve_bare(game: str) -> None:
    """Run `BUDGET` bare simulations of every lane for each line on standard input."""
    sim, bare = Atari(game), _Bare(game)
    starts = [sim.reset(lane) for lane in range(LANES)]
    for _ in sys.stdin:
        for _ in range(BUDGET):
            for lane, state in enumerate(starts):
                bare(state.core, state.stack, lane % sim.num_actions)
        print(flush=True)


@contextlib.contextmanager
def _bare_loops(game: str, number: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that makes the first n processes run all their bare simulations."""
    code = f"from save_rl.bench.atari import serve_bare; serve_bare({game!r})"
    with contextlib.ExitStack() as stack:
        pipes: Any = []
        for _ in range(number):
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            pipes.append((stack.enter_context(process).stdin, process.stdout))

        def ask(first: int) -> None:
            for there, _ in pipes[:first]:
                there.write(b"\n")
                there.flush()
            for _, back in pipes[:first]:
                if not back.readline():
                    raise RunError("a process with a bare loop has ended; see its output above.")

        yield ask


def _workers(repeats: int, workers: int) -> dict[str, Any]:
    """Compare one worker process with several (16 lanes each), and one bare loop with several."""
    sim, source = Atari(WORKERS_GAME), Source(f"atari/{WORKERS_GAME}", 0, {})
    lanes = LANES * workers // 2
    with (
        Pool([sim], [LANES // 2] * 2, workers=1, sources=[source]) as one,
        Pool([sim], [lanes // 2] * 2, workers=workers, sources=[source]) as all_of_them,
        _bare_loops(WORKERS_GAME, workers) as bare,
    ):
        seconds = median_seconds(
            {
                "one worker": _two_groups(one),
                "workers": _two_groups(all_of_them),
                "one bare loop": lambda: bare(1),
                "bare loops": lambda: bare(workers),
            },
            repeats,
        )
    made = {"one worker": LANES, "workers": lanes, "one bare loop": LANES}
    made["bare loops"] = LANES * workers
    rates = {name: BUDGET * made[name] / s for name, s in seconds.items()}
    gain = rates["workers"] / rates["one worker"]
    possible = rates["bare loops"] / rates["one bare loop"]
    return {
        "game": WORKERS_GAME,
        "workers": workers,
        "simulations_per_second": {name: round(rate) for name, rate in rates.items()},
        "gain_of_workers": round(gain, 2),
        "gain_of_bare_loops": round(possible, 2),
        "share_of_what_is_possible": round(rates["workers"] / rates["bare loops"], 2),
    }


def bench_atari(repeats: int = 60, workers: int = 2) -> dict[str, Any]:
    """Measure simulations per second on one core, and with several workers."""
    require(workers >= 2, "--workers", workers, "at least 2")
    return {
        "device": f"{platform.machine()}, one core, ale-py {version('ale-py')}",
        "lanes": LANES,
        "cases": [_game(game, repeats) for game in GAMES],
        "in_workers": _workers(max(repeats // 3, 1), workers),
    }
