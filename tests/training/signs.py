"""One-step episodes that show which action pays, in several ways: in JAX and in Python."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

ACTIONS = 3


def _shown(kind: str, sign: Any, xp: Any) -> Any:
    """What the sign looks like."""
    flags = xp.arange(ACTIONS) == sign
    picture = xp.zeros((6, 5, ACTIONS), xp.uint8) + flags.astype(xp.uint8) * 255
    if kind == "vector":
        return flags.astype(xp.float32)
    if kind == "picture":
        return picture
    if kind == "graph":
        return {"nodes": flags.astype(xp.float32)[:, None], "node_mask": xp.arange(ACTIONS) < 9}
    if kind == "nested":
        return {"a": {"b": flags.astype(xp.float32)}, "c": picture}
    return {"picture": picture, "clue": xp.asarray(sign, xp.int32), "flags": flags}


class JaxSigns(NamedTuple):
    kind: Any = "vector"
    num_actions = ACTIONS

    def reset(self, key):
        return jax.random.randint(key, (), 0, ACTIONS)

    def step(self, state, action):
        return state, (action == state).astype(jnp.float32), jnp.bool_(True), jnp.bool_(False)

    def observe(self, state):
        return _shown(self.kind, state, jnp)


class Signs:
    num_actions = ACTIONS

    def __init__(self, kind: str = "vector"):
        self._kind = kind

    def reset(self, seed):
        return int(np.random.default_rng(seed).integers(ACTIONS))

    def step(self, state, action):
        return state, float(action == state), True, False

    def observe(self, state):
        return _shown(self._kind, state, np)
