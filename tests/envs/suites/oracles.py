"""Episodes played side by side: through our adapter, and through a suite's own API.

The two share the start, the actions and the luck of every step, and nothing of our code. An oracle
is `start(key) -> state, shown` and `step(state, action, key) -> state, shown`, where `shown` has
what a player sees: observation, mask, reward, terminated, truncated.
"""

import gymnax
import jax
import jumanji
import numpy as np
import pgx
from jumanji.environments.routing.sokoban.generator import ToyGenerator

from save_rl.envs import make


def gymnax_oracle(id, **options):
    env, params = gymnax.make(id)
    params = params.replace(**options)

    def start(key):
        seen, state = env.reset(jax.random.split(key)[0], params)
        return state, {"observation": seen}

    def step(state, action, key):
        _, after, reward, terminated, truncated, info = env.step(key, state, action, params)
        return after, {
            "observation": info["final_observation"], "reward": reward, "terminated": terminated,
            "truncated": truncated & ~terminated,
        }  # fmt: skip

    # gymnax splits the key of a step between the step and the reset after it.
    return start, step, lambda key: jax.random.split(key)[0]


def jumanji_oracle(id, **options):
    """A second environment with a later limit tells whether an end at the limit is one anyway."""
    if options.get("generator") == "toy":
        options = {**options, "generator": ToyGenerator()}
    env = jumanji.make(id, **options)
    spec, limit = env.action_spec, getattr(env, "time_limit", None)
    several = isinstance(spec, jumanji.specs.MultiDiscreteArray)
    sizes = tuple(np.asarray(spec.num_values).tolist()) if several else ()
    later = jumanji.make(id, **{**options, "time_limit": limit + 1}) if limit else env

    def shown(observation):
        paths = jax.tree_util.tree_leaves_with_path(observation)
        parts = {jax.tree_util.keystr(path).removeprefix("."): x for path, x in paths}
        mask = parts.pop("action_mask", None)
        return {**parts, **({} if mask is None else {"mask": mask.reshape(-1)})}

    def start(key):
        state, first = env.reset(key)
        return state, shown(first.observation)

    def step(state, action, key):
        if several:
            action = jax.numpy.stack(jax.numpy.unravel_index(action, sizes)).astype("int32")
        if key is not None:
            state = (
                state._replace(key=key) if hasattr(state, "_replace") else state.replace(key=key)
            )
        after, first = env.step(state, action)
        _, without_limit = later.step(state, action)
        return after, {
            **shown(first.observation), "reward": first.reward,
            "terminated": without_limit.last(), "truncated": first.last() & ~without_limit.last(),
        }  # fmt: skip

    return start, step, lambda key: key


def pgx_oracle(id, **options):
    game = type(pgx.make(id))(**options)
    timed = id == "minatar-freeway"  # whose only end is its timer

    def shown(state):
        return {"observation": state.observation, "mask": state.legal_action_mask}

    def start(key):
        state = game.init(jax.random.split(key)[0])
        return state, shown(state)

    def step(state, action, key):
        after = game.step(state, action, key)
        return after, {
            **shown(after), "reward": after.rewards[0], "truncated": after.terminated & timed,
            "terminated": after.terminated & (not timed),
        }  # fmt: skip

    return start, step, lambda key: key


ORACLES = {"gymnax": gymnax_oracle, "jumanji": jumanji_oracle, "pgx": pgx_oracle}


def looked(env, state):
    seen = env.observe(state)
    shown = dict(seen) if isinstance(seen, dict) else {"observation": seen}
    if hasattr(env, "action_mask"):
        shown["mask"] = env.action_mask(state)
    return shown


def assert_same(ours, theirs, where):
    if "observation" in ours and "observation" not in theirs:  # the only array that was left
        (name,) = set(theirs) - {"mask", "reward", "terminated", "truncated"}
        ours[name] = ours.pop("observation")
    if "mask" not in ours and "mask" in theirs:
        assert np.all(theirs.pop("mask")), where
    if "mask" in ours and not np.any(theirs["mask"]):  # a lost state, or the end
        assert np.all(ours.pop("mask")), where
        del theirs["mask"]
    assert set(ours) == set(theirs), where
    for name, value in ours.items():
        # Two compiled programs round differently; whole numbers must be the same.
        close = {"rtol": 1e-5, "atol": 1e-5} if value.dtype.kind == "f" else {"rtol": 0}
        np.testing.assert_allclose(value, theirs[name], **close, err_msg=f"{name}, {where}")


def side_by_side(suite, id, episodes=2, steps=200, favour=None, luck_shows=True, **options):
    """Play both; assert that they are the same; return the number of ends of each kind.

    The oracle's luck changes from step to step. Ours has the same keys if the adapter says that
    there is chance, and none otherwise: then the luck must not matter. luck_shows: where there is
    chance, other luck must have made a difference. favour: an action to take most of the time.
    """
    env = make(f"{suite}/{id}", **options)
    start, step, luck_of = ORACLES[suite](id, **options)
    start, step = jax.jit(start), jax.jit(step)

    def our_step(state, action, key):
        after, *outcome = env.step(state, action, luck_of(key)) if env.stochastic else env.step(
            state, action
        )  # fmt: skip
        return after, dict(zip(("reward", "terminated", "truncated"), outcome, strict=True)) | (
            looked(env, after)
        )

    our_start = jax.jit(lambda key: (state := env.reset(key), looked(env, state)))
    our_step = jax.jit(our_step)
    rng, ends, moved = np.random.default_rng(0), {"terminated": 0, "truncated": 0}, False
    for episode in range(episodes):
        key = jax.random.PRNGKey(episode)
        (ours, a), (theirs, b) = jax.device_get((our_start(key), start(key)))
        assert_same(a, b, f"{id}, start {episode}")
        for number in range(steps):
            mask = a.get("mask", np.ones(env.num_actions, bool))
            action = np.int32(rng.choice(np.flatnonzero(mask)))
            if favour is not None and rng.random() < 0.9:
                action = np.int32(favour)
            luck = jax.random.fold_in(key, number)
            if env.stochastic and not moved:
                other = jax.device_get(our_step(ours, action, jax.random.fold_in(luck, 1)))[1]
            (ours, a), (theirs, b) = jax.device_get(
                (our_step(ours, action, luck), step(theirs, action, luck))
            )
            if env.stochastic and not moved:
                moved = any(not np.array_equal(a[name], other[name]) for name in a)
            over = bool(a["terminated"] or a["truncated"])
            assert_same(a, b, f"{id}, step {number + 1} of episode {episode}")
            ends["terminated"] += bool(a["terminated"])
            ends["truncated"] += bool(a["truncated"])
            if over:
                break
    assert moved or not (env.stochastic and luck_shows), f"{id}: luck made no difference"
    return ends
