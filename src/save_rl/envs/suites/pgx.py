"""Pgx (github.com/sotetsuk/pgx): the games for one player, 2048 and MinAtar.

Options are the arguments of a game's class (`sticky_action_prob`, `use_minimal_action_set`) and
`time_limit`.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from save_rl.envs.suites.common import (
    LONGEST,
    MINATAR_ACTIONS,
    as_arrays,
    check_options,
    find,
    has_chance,
    key_shape,
    load_suite,
    next_luck,
    refuse,
    simple_options,
)
from save_rl.errors import require
from save_rl.types import Array

SUITE = "pgx"
NEEDS_DOWNLOAD: dict[str, str] = {}
# Making these games takes seconds, so they are refused by name.
_PLAYERS = {
    "animal_shogi": 2, "backgammon": 2, "chess": 2, "connect_four": 2, "gardner_chess": 2,
    "go_19x19": 2, "go_9x9": 2, "hex": 2, "kuhn_poker": 2, "leduc_holdem": 2, "othello": 2,
    "shogi": 2, "sparrow_mahjong": 3, "tic_tac_toe": 2,
}  # fmt: skip
_NEVER = np.iinfo(np.int32).max


def known_ids() -> list[str]:
    """Return all ids, also those that can't be played."""
    return list(load_suite(SUITE).available_envs())


class State(NamedTuple):
    """A state of one game: Pgx's, and the key that draws the next outcomes."""

    inner: Any
    key: Any


class Pgx:
    """A game of Pgx for one player, by its id.

    time_limit: steps after which an episode is truncated. Pgx has a limit only in Freeway, whose
    own is the default there.
    """

    def __init__(self, id: str, time_limit: int | None = None, **options: Any):
        pgx = load_suite(SUITE)
        self.id = find(SUITE, id, pgx.available_envs())
        _require_one(id, _PLAYERS.get(id, 1))
        game = pgx.make(id)
        _require_one(id, game.num_players)
        check_options(options, {"time_limit"} | simple_options(type(game)))
        self._game = type(game)(**options) if options else game
        inner = jax.eval_shape(self._game.init, key_shape())
        self.num_actions = int(inner.legal_action_mask.shape[0])
        # Freeway ends when its timer falls below zero, and has no other end. The timer is set so
        # high that it never does, so that a search can look past the limit.
        self._timer = hasattr(inner, "_terminate_timer")
        if time_limit is None:
            time_limit = _timer_of(self._game) if self._timer else LONGEST
        whole = isinstance(time_limit, int) and time_limit > 0
        require(whole, "--env-options", f"time_limit={time_limit}", "a whole number above 0")
        self.time_limit = self.max_steps = time_limit
        if id.startswith("minatar-"):  # where everything is always allowed
            some = self._game.use_minimal_action_set
            used = self._game.minimal_action_set if some else range(self.num_actions)
            self.action_names = [MINATAR_ACTIONS[int(i)] for i in used]
        else:
            self.action_mask = lambda state: state.inner.legal_action_mask
        if id == "2048":
            self.action_names = ["left", "up", "right", "down"]
        action = jax.ShapeDtypeStruct((), np.int32)
        self.stochastic = has_chance(self._game.step, inner, action)

    def reset(self, key: Any) -> State:
        start, luck = jax.random.split(key)
        inner = as_arrays(self._game.init(start))
        if self._timer:
            inner = inner.replace(_terminate_timer=jax.numpy.int32(_NEVER))
        return State(inner, luck if self.stochastic else None)

    def step(self, state: State, action: Any, key: Any = None) -> tuple[State, Any, Any, Any]:
        later, luck = next_luck(state.key, key)
        inner = self._game.step(state.inner, action, luck)
        late = inner._step_count >= self.max_steps
        reward, terminated = inner.rewards[0], inner.terminated
        return State(inner, later), reward, terminated, late & ~terminated

    def observe(self, state: State) -> Array:
        return state.inner.observation

    def render(self, state: State) -> np.ndarray:
        """Draw a state, `[height, width, 3]`; Pgx's own pictures are SVG, which GIFs can't hold."""
        from save_rl.envs.suites.pictures import draw_channels, draw_powers

        seen = np.asarray(state.inner.observation)
        return draw_powers(seen.argmax(-1)) if self.id == "2048" else draw_channels(seen)


def _require_one(id: str, players: int) -> None:
    if players != 1:
        raise refuse(SUITE, id, f"is a game for {players} players, and save_rl plays alone")


def _timer_of(game: Any) -> int:
    """Return the step in which a game's timer falls below zero."""
    return int(game.init(jax.random.PRNGKey(0))._terminate_timer) + 1
