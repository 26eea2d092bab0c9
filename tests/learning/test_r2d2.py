"""R2D2's equations against loops and numbers by hand, and padding that must not matter."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.errors import InputError
from save_rl.learning import r2d2
from save_rl.learning.exploration import epsilon_ladder
from save_rl.learning.r2d2 import Sequences
from save_rl.networks.recurrent import RecurrentNetwork, stack_frames, unroll

GAMMA = 0.9
ACTIONS = 4
BURN_IN = 4
TRAINING = 6
STEPS = BURN_IN + TRAINING + 1
BATCH = 3
HIDDEN = 64
N = 3
seeds = st.integers(0, 999)

rescale, unscale = jax.jit(r2d2.rescale), jax.jit(r2d2.unscale)
targets = jax.jit(r2d2.n_step_targets, static_argnames="n")
td_errors = jax.jit(r2d2.td_errors)
sequence_priorities = jax.jit(r2d2.sequence_priorities)
importance_weights = jax.jit(r2d2.importance_weights)


def h(x):
    """The textbook form, in float64."""
    x = np.asarray(x, np.float64)
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def h_inverse(x):
    x = np.asarray(x, np.float64)
    root = np.sqrt(1 + 4 * 1e-3 * (np.abs(x) + 1 + 1e-3))
    return np.sign(x) * (((root - 1) / (2 * 1e-3)) ** 2 - 1)


# The value rescaling.


@pytest.mark.parametrize(
    # docs/experiments/atari.md#value-rescaling; errors there are rounded
    ("value", "rescaled", "error"),
    [
        (0.01, 0.0050, 3e-7),
        (1, 0.415, 2e-7),
        (10, 2.33, 1e-6),
        (1_000, 31.6, 1e-4),
        (10_000, 109, 1e-3),
        (100_000, 415, 8e-3),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_rescaling_and_back_is_as_exact_as_documented(value, rescaled, error, sign):
    assert float(rescale(np.float32(sign * value))) == pytest.approx(sign * rescaled, rel=5e-3)
    # A single number can be lucky, so the mean over its neighbours.
    near = np.float32(sign * value * np.linspace(0.99, 1.01, 1001))
    back = np.asarray(unscale(rescale(near)))
    assert np.mean(np.abs(back - near)) < 1.5 * error


@given(st.lists(st.floats(1e-3, 1e6), min_size=8, max_size=8), st.sampled_from([1, -1]))
def test_rescaling_is_h_and_back_its_inverse(values, sign):
    values = sign * np.float32(values)
    np.testing.assert_allclose(rescale(values), h(values), rtol=3e-7)
    np.testing.assert_allclose(unscale(rescale(values)), values, rtol=1e-6, atol=5e-7)
    rescaled = np.float32(h(values))
    np.testing.assert_allclose(unscale(rescaled), h_inverse(rescaled), rtol=5e-7, atol=5e-7)


def test_zero_stays_zero_and_has_a_slope():
    assert float(rescale(0.0)) == float(unscale(0.0)) == 0
    assert float(jax.grad(rescale)(0.0)) == pytest.approx(0.501)


def test_search_results_are_stored_rescaled():
    q = np.array([0.0, 3.0, -8.0])
    np.testing.assert_array_equal(r2d2.to_rescaled(q, "transformed"), q)
    for space in ("mixed", "raw"):
        # √4 - 1 + 0.003, -(√9 - 1) - 0.008
        np.testing.assert_allclose(r2d2.to_rescaled(q, space), [0, 1.003, -2.008], rtol=1e-6)
    with pytest.raises(InputError, match=r"search-space: there is no space of values 'rwa'"):
        r2d2.to_rescaled(q, "rwa")


# Targets and TD errors.


def targets_reference(rewards, discounts, online_q, target_q, valid, n):
    """The equation, for one sequence; NaN at padding."""
    steps = len(rewards)
    result = np.full(steps, np.nan)
    for t in range(steps):
        if not valid[t]:
            continue
        total, factor, s = 0.0, 1.0, t
        while s < t + n and s < steps and valid[s] and factor > 0:
            total += factor * rewards[s]
            factor *= discounts[s]
            s += 1
        if factor > 0:
            best = max(range(ACTIONS), key=lambda a: online_q[s, a])
            total += factor * h_inverse(target_q[s, best])
        result[t] = h(total)
    return result


def make_window(rng, steps, lanes):
    """Windows whose episodes begin late, end early by game over, or are cut; NaN in padding."""
    rewards = rng.normal(scale=5, size=(steps, lanes)).astype(np.float32)
    discounts = np.full((steps, lanes), GAMMA, np.float32)
    valid = np.ones((steps, lanes), bool)
    q, target_q = rng.normal(scale=3, size=(2, steps + 1, lanes, ACTIONS)).astype(np.float32)
    for lane in range(lanes):
        end = rng.integers(1, steps + 1)
        start = rng.integers(0, end) if rng.random() < 0.3 else 0
        over = rng.random() < 0.5
        valid[:start, lane] = valid[end:, lane] = False
        rewards[~valid[:, lane], lane] = discounts[~valid[:, lane], lane] = np.nan
        target_q[end + (not over) :, lane] = np.nan
        if over:
            discounts[end - 1, lane] = 0
    return rewards, discounts, q, target_q, valid


@pytest.mark.parametrize(("steps", "n"), [(80, 5), (7, 1), (4, 6)])
def test_targets_are_their_equation(steps, n):
    @settings(max_examples=25)
    @given(seeds)
    def check(seed):
        window = make_window(np.random.default_rng(seed), steps, 4)
        seen = np.asarray(targets(*window, n=n))
        valid = window[-1]
        for lane in range(4):
            one = [x[:, lane] for x in window]
            expected = targets_reference(*one, n)
            mask = valid[:, lane]
            np.testing.assert_allclose(seen[mask, lane], expected[mask], rtol=2e-5, atol=1e-5)

    check()


def test_targets_by_hand_with_the_end_of_a_game_inside():
    # γ = 1/2 and n = 2. The game ends with the second step, the fourth bootstraps from its next
    # state alone. In the fifth state the online network prefers action 1, which the target network
    # values at h(8) = 2.008; its own best is h(15) = 3.015.
    nan = np.nan
    rewards = np.array([1.0, 2.0, 4.0, 4.0])
    discounts = np.array([0.5, 0.0, 0.5, 0.5])
    online_q = np.array([[nan, nan], [nan, nan], [nan, nan], [nan, nan], [0.0, 1.0]])
    target_q = np.array([[nan, nan], [nan, nan], [nan, nan], [nan, nan], [3.015, 2.008]])
    # 1 + 2/2 = 2; 2; 4 + 4/2 + 8/4 = 8; 4 + 8/2 = 8
    seen = targets(rewards, discounts, online_q, target_q, np.ones(4, bool), n=2)
    np.testing.assert_allclose(seen, [np.sqrt(3) - 0.998, np.sqrt(3) - 0.998, 2.008, 2.008], 1e-5)


def test_targets_by_hand_where_an_episode_was_cut():
    # Two steps were taken; the third observation is the last: 1 + 1/2 (2 + 8/2) = 4, 2 + 8/2 = 6.
    nan = np.nan
    q = np.array([[nan], [nan], [2.008], [nan], [nan]])
    rewards, discounts = np.array([1.0, 2.0, nan, nan]), np.array([0.5, 0.5, nan, nan])
    seen = targets(rewards, discounts, q, q, np.array([1, 1, 0, 0], bool), n=4)
    np.testing.assert_allclose(seen[:2], [np.sqrt(5) - 0.996, np.sqrt(7) - 0.994], 1e-5)


def test_td_errors_are_of_the_action_taken_and_zero_at_padding():
    q = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    actions, valid = np.array([1, 0, 7]), np.array([True, True, False])
    seen = td_errors(q, actions, np.array([2.5, 1.0, np.nan]), valid)
    np.testing.assert_allclose(seen, [0.5, -2.0, 0.0])


def test_no_gradient_passes_through_targets():
    ones = np.ones(3, np.float32)

    def total(online_q, target_q):
        return jnp.sum(targets(ones, ones, online_q, target_q, ones > 0, n=5))

    q = np.arange(8, dtype=np.float32).reshape(4, 2)
    gradients = jax.grad(total, (0, 1))(q, q)
    assert not any(np.any(x) for x in gradients)


# The search's term.

rows = st.lists(st.floats(-8, 8, width=32), min_size=ACTIONS, max_size=ACTIONS).map(np.float32)


@jax.jit
def amortization(q, q_mcts):
    """`((cross-entropy, KL), slopes by q and q_mcts)` of one step."""

    def terms(q, q_mcts):
        cross_entropy, kl = r2d2.amortization_terms(q[None], q_mcts[None], jnp.ones(1, bool))
        return cross_entropy[0], kl[0]

    return jax.value_and_grad(terms, (0, 1), has_aux=True)(q, q_mcts)


@given(rows, rows)
def test_cross_entropy_and_kl_are_their_equations(q, q_mcts):
    (cross_entropy, kl), (slope, of_search) = amortization(q, q_mcts)
    log_p, log_target = (scipy.special.log_softmax(x.astype(float)) for x in (q, q_mcts))
    p, target = np.exp(log_p), np.exp(log_target)
    assert float(cross_entropy) == pytest.approx(-target @ log_p, rel=1e-4, abs=1e-5)
    assert float(kl) == pytest.approx(target @ (log_target - log_p), rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(slope, p - target, atol=1e-5)
    assert abs(np.sum(slope)) < 1e-5
    assert not np.any(of_search)


@given(rows, st.floats(-5, 5))
def test_nothing_is_to_be_learned_where_both_are_equal_up_to_a_constant(q, constant):
    (_, kl), (slope, _) = amortization(q, q + np.float32(constant))
    assert abs(float(kl)) < 2e-5
    np.testing.assert_allclose(slope, 0, atol=2e-6)


# Priorities, weights, exploration.


def test_priorities_by_hand():
    errors = np.array([[1.0, -3.0], [-2.0, 100.0], [0.0, np.nan]])
    valid = np.array([[1, 1], [1, 0], [1, 0]], bool)
    # 0.9 x 2 + 0.1 x 3/3 and 0.9 x 3 + 0.1 x 3
    np.testing.assert_allclose(sequence_priorities(errors, valid), [1.9, 3.0], rtol=1e-6)


def test_a_sequence_without_a_valid_step_has_no_priority():
    assert sequence_priorities(np.ones((3, 1)), np.zeros((3, 1), bool)).tolist() == [0.0]


def test_importance_weights_by_hand():
    # Twice and 32 times as likely as the rarest: 2^-0.6 and 32^-0.6 = 1/8
    weights = importance_weights(np.array([0.02, 0.01, 0.32]))
    np.testing.assert_allclose(weights, [2**-0.6, 1.0, 0.125], rtol=1e-6)


@given(st.lists(st.floats(1e-6, 1), min_size=5, max_size=5), st.integers(1, 100_000))
def test_importance_weights_are_their_equation(probabilities, count):
    p = np.array(probabilities)
    expected = (1 / (count * p)) ** 0.6
    expected /= expected.max()
    np.testing.assert_allclose(importance_weights(p), expected, rtol=1e-5)


@pytest.mark.parametrize("lanes", [16, 256, 1024])
def test_the_ladder_of_epsilon(lanes):
    ladder = epsilon_ladder(lanes)
    assert ladder.shape == (lanes,)
    assert ladder[0] == pytest.approx(0.4, rel=1e-12)
    assert ladder[-1] == pytest.approx(0.4**8, rel=1e-12)
    assert ladder[5] == pytest.approx(0.4 ** (1 + 7 * 5 / (lanes - 1)), rel=1e-12)


def test_a_single_lane_explores():
    assert epsilon_ladder(1).tolist() == [0.4]


# A batch of sequences.


@cache
def make_networks():
    """Online and target network, with biases that are not zero."""
    shapes = eqx.filter_eval_shape(RecurrentNetwork, ACTIONS, jax.random.key(0), "small")

    def make(seed):
        rng = np.random.default_rng(seed)

        def fill(x):
            scale = 1 / np.sqrt(np.prod(x.shape[:-1])) if x.ndim > 1 else 0.0
            return np.float32(rng.normal(scale=0.1 + scale, size=x.shape))

        return jax.tree.map(fill, shapes)

    return make(1), make(2)


def make_batch(rng, starts=(0,) * BATCH, lengths=(STEPS,) * BATCH, over=(False,) * BATCH):
    """Random sequences; lane `b` has valid steps from `starts[b]` to before `lengths[b]`."""
    steps = np.arange(STEPS)[:, None]
    valid = (steps >= np.array(starts)) & (steps < np.array(lengths))
    ends = (steps == np.array(lengths) - 1) & np.array(over)
    shape = (STEPS, BATCH)
    return Sequences(
        frames=rng.integers(256, size=(STEPS + 3, BATCH, 84, 84), dtype=np.uint8),
        previous_action=rng.integers(ACTIONS, size=shape, dtype=np.int32),
        previous_reward=rng.normal(size=shape).astype(np.float32),
        action=rng.integers(ACTIONS, size=shape, dtype=np.int32),
        reward=rng.normal(scale=3, size=shape).astype(np.float32),
        discount=np.where(ends, 0, GAMMA).astype(np.float32),
        valid=valid,
        q_mcts=rng.normal(size=(*shape, ACTIONS)).astype(np.float32),
        state={
            name: (rng.normal(size=(BATCH, HIDDEN)) * (np.array(starts) == 0)[:, None]).astype(
                np.float32
            )
            for name in ("hidden", "cell")
        },
        weight=rng.uniform(0.1, 1, size=BATCH).astype(np.float32),
    )


@eqx.filter_jit
def _learn(network, target, batch, beta_q, beta_a, how):
    def loss(network):
        return r2d2.sequence_loss(network, target, batch, beta_q, beta_a, BURN_IN, N, **how)

    (value, about), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(network)
    return value, about, gradient


def learn(batch, beta_q=1.0, beta_a=10.0, **how):
    """`(loss, about, gradient)` of a batch; β_A is a Python number and so is compiled in."""
    return _learn(*make_networks(), batch, jnp.float32(beta_q), beta_a, how)


@eqx.filter_jit
def loss_alone(network, target, batch, how):
    """`(loss, about)`, which compiles in half the time."""
    return r2d2.sequence_loss(network, target, batch, 1.0, 10.0, BURN_IN, N, **how)


@eqx.filter_jit
def call(network, frames, action, reward, state):
    """A step of one lane, from its last four frames `[4, 84, 84]`."""
    stack = jnp.stack([frames[0], frames[1], frames[2], frames[3]], -1)
    seen = {"frames": stack[None], "action": action[None], "reward": reward[None]}
    return network(seen, state)


def q_of_lane(network, batch, lane):
    """q̃ `[STEPS, A]` of one lane, of its own steps alone and one by one; NaN elsewhere."""
    start, stop = np.flatnonzero(batch.valid[:, lane])[[0, -1]]
    if batch.discount[stop, lane] > 0:
        stop = min(stop + 1, STEPS - 1)
    frames = batch.frames[:, lane].copy()
    if start:
        frames[: start + 3] = 0  # black before an episode
    state = {name: x[lane : lane + 1] for name, x in batch.state.items()}
    result = np.full((STEPS, ACTIONS), np.nan, np.float32)
    for t in range(start, stop + 1):
        led_here = batch.previous_action[t, lane], batch.previous_reward[t, lane]
        q, state = call(network, frames[t : t + 4], *led_here, state)
        result[t] = q[0]
    return result


def mixed_batch(seed=0):
    """A whole window; an episode's beginning; one cut before the end (its last step is 7)."""
    rng = np.random.default_rng(seed)
    return make_batch(rng, starts=(0, BURN_IN, 0), lengths=(STEPS, STEPS, 8))


def over_batch(seed=0):
    """A game that ends in the window; one that begins and ends there; one that begins."""
    rng = np.random.default_rng(seed)
    starts, lengths = (0, BURN_IN, BURN_IN), (STEPS - 2, BURN_IN + 2, STEPS)
    return make_batch(rng, starts, lengths, over=(True, True, False))


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (mixed_batch, {}),
        (over_batch, {}),
        (mixed_batch, {"over_time": "mean", "weighted_losses": "q", "raw": True}),
        *(
            pytest.param(mixed_batch, how, marks=pytest.mark.slow)
            for how in ({"over_time": "mean"}, {"weighted_losses": "q"}, {"raw": True})
        ),
    ],
)
def test_the_loss_is_its_equation(make, how):
    batch = make()
    network, target = make_networks()
    total, sums, count = 0.0, dict.fromkeys(("loss_q", "loss_a", "kl", "error", "q"), 0.0), 0
    value, about = loss_alone(network, target, batch, how) if how else learn(batch)[:2]
    # The values that softmaxes are made of, in rescaled units or in points.
    points = h_inverse if "raw" in how else lambda x: x
    for lane in range(BATCH):
        window = slice(BURN_IN, STEPS - 1)
        online_q, target_q = (q_of_lane(x, batch, lane)[BURN_IN:] for x in (network, target))
        valid, action, reward, discount, q_mcts = (
            x[window, lane]
            for x in (batch.valid, batch.action, batch.reward, batch.discount, batch.q_mcts)
        )
        goals = targets_reference(reward, discount, online_q, target_q, valid, N)
        sizes = []
        for t in np.flatnonzero(valid):
            error = goals[t] - online_q[t, action[t]]
            p = scipy.special.softmax(points(q_mcts[t]))
            log_p = scipy.special.log_softmax(points(online_q[t]))
            step = {
                "loss_q": error**2 / 2,
                "loss_a": -p @ log_p,
                "kl": p @ (np.log(p) - log_p),
                "error": abs(error),
                "q": online_q[t, action[t]],
            }
            weight_a = 1 if "weighted_losses" in how else batch.weight[lane]
            both = batch.weight[lane] * step["loss_q"] + weight_a * 10 * step["loss_a"]
            total += both / (valid.sum() if "over_time" in how else 1)
            sums = {name: sums[name] + x for name, x in step.items()}
            sizes.append(abs(error))
        count += len(sizes)
        priority = 0.9 * max(sizes) + 0.1 * sum(sizes) / len(sizes)
        assert float(about["priorities"][lane]) == pytest.approx(priority, rel=1e-3)
    assert float(value) == pytest.approx(total / BATCH, rel=1e-4)
    for name, x in sums.items():
        assert float(about[name]) == pytest.approx(x / count, rel=1e-3, abs=1e-5)


def soil(batch, rng):
    """The batch with other values wherever padding is; NaN and impossible ones among them."""
    dirty = make_batch(rng)
    needed = batch.valid.copy()  # observations: the last of a cut episode is no padding
    needed[1:] |= batch.valid[:-1] & (batch.discount[:-1] > 0)

    def mix(keep, clean, other):
        return np.where(keep.reshape(*keep.shape, *(1,) * (clean.ndim - 2)), clean, other)

    frames = batch.frames.copy()
    frames[3:] = mix(needed, frames[3:], dirty.frames[3:])
    return batch._replace(
        frames=frames,
        previous_action=mix(needed, batch.previous_action, 99),
        previous_reward=mix(needed, batch.previous_reward, np.float32(np.nan)),
        action=mix(batch.valid, batch.action, rng.choice([-50, 2, 50])),
        reward=mix(batch.valid, batch.reward, np.float32(rng.choice([np.nan, 1e30]))),
        discount=mix(batch.valid, batch.discount, np.float32(rng.choice([0, 1, np.nan]))),
        q_mcts=mix(batch.valid, batch.q_mcts, np.float32(rng.choice([np.nan, np.inf, 9]))),
    )


@settings(max_examples=8)
@given(st.sampled_from([mixed_batch, over_batch]), seeds)
def test_what_is_in_padding_changes_no_bit(make, seed):
    batch = make(seed)
    runs = [learn(x) for x in (batch, soil(batch, np.random.default_rng(seed + 1)))]
    jax.tree.map(np.testing.assert_array_equal, *runs)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(runs[1]))


def only(batch, lane, **changes):
    """The batch where this lane alone counts."""
    return batch._replace(weight=np.eye(BATCH, dtype=np.float32)[lane], **changes)


def change(batch, name, t, lane, amount):
    x = getattr(batch, name).copy()
    x[t, lane] += amount
    return batch._replace(**{name: x})


def differs(first, second):
    return any(
        np.any(a != b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


def test_the_first_steps_of_an_episode_are_trained():
    batch = only(mixed_batch(), lane=1)
    assert not batch.valid[:BURN_IN, 1].any()
    first_only = batch._replace(valid=batch.valid & (np.arange(STEPS) == BURN_IN)[:, None])
    _, _, gradient = learn(first_only)
    assert all(np.any(x) for x in jax.tree.leaves(gradient.convolutions))
    assert differs(learn(change(batch, "reward", BURN_IN, 1, 5.0))[2], learn(batch)[2])


def test_steps_of_the_burn_in_and_the_bootstrap_step_have_no_loss_of_their_own():
    batch = mixed_batch()
    before = learn(batch)
    for t in (0, BURN_IN - 1, STEPS - 1):
        for name in ("reward", "q_mcts", "action"):
            after = learn(change(batch, name, t, 0, 1))
            jax.tree.map(np.testing.assert_array_equal, after, before)


@eqx.filter_jit
def r2d2_gradient(network, target, batch):
    """`(loss, gradient)` of R2D2 for a batch without padding; the burn-in is done beforehand."""
    seen = {
        "frames": stack_frames(batch.frames),
        "action": batch.previous_action,
        "reward": batch.previous_reward,
    }
    first, rest = (
        {name: x[part] for name, x in seen.items()}
        for part in (slice(BURN_IN), slice(BURN_IN, None))
    )
    action, reward, discount, valid = (
        x[BURN_IN:-1] for x in (batch.action, batch.reward, batch.discount, batch.valid)
    )
    states = [unroll(x, first, batch.state, batch.valid[:BURN_IN])[1] for x in (network, target)]
    target_q, _ = unroll(target, rest, states[1], batch.valid[BURN_IN:])

    def loss(network):
        q, _ = unroll(network, rest, states[0], batch.valid[BURN_IN:])
        goals = r2d2.n_step_targets(reward, discount, q, target_q, valid, N)
        errors = r2d2.td_errors(q[:-1], action, goals, valid)
        return jnp.mean(batch.weight * jnp.sum(jnp.square(errors) / 2, 0))

    return eqx.filter_value_and_grad(loss)(network)


def assert_close(first, second):
    """Gradients are equal up to rounding, measured by their largest number."""
    largest = max(np.abs(x).max() for x in jax.tree.leaves(second))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * largest),
        first,
        second,
    )


def test_burning_in_matters_but_gets_no_gradient():
    batch = make_batch(np.random.default_rng(5))
    value, _, gradient = learn(batch, beta_a=0.0)
    assert_close((value, gradient), r2d2_gradient(*make_networks(), batch))
    changed = change(batch, "previous_reward", 0, 0, 3.0)
    assert differs(gradient, learn(changed, beta_a=0.0)[2])


@eqx.filter_jit
def burn_in(network, batch):
    """`(q, last state)` of the first steps."""
    seen = {
        "frames": stack_frames(batch.frames)[:BURN_IN],
        "action": batch.previous_action[:BURN_IN],
        "reward": batch.previous_reward[:BURN_IN],
    }
    return unroll(network, seen, batch.state, batch.valid[:BURN_IN])


def test_a_sequence_may_begin_with_its_training_steps():
    network, _ = make_networks()
    batch = make_batch(np.random.default_rng(6))
    _, state = burn_in(network, batch)
    steps = {k: x[BURN_IN:] for k, x in batch._asdict().items() if k not in ("state", "weight")}
    loss = eqx.filter_jit(r2d2.sequence_loss)
    whole = loss(network, network, batch, 1.0, 10.0, BURN_IN, N)
    later = Sequences(**steps, state=state, weight=batch.weight)
    later = loss(network, network, later, 1.0, 10.0, 0, N)
    assert_close(later, whole)


def test_without_its_term_the_search_is_not_looked_at():
    batch = mixed_batch()
    with_search = learn(batch, beta_a=0.0)
    assert not {"kl", "loss_a"} & set(with_search[1])
    baseline = learn(batch._replace(q_mcts=None), beta_a=0.0)
    jax.tree.map(np.testing.assert_array_equal, with_search, baseline)


def test_the_search_teaches_advantages_not_the_value():
    _, _, gradient = learn(mixed_batch(), beta_q=0.0)
    largest = max(np.abs(x).max() for x in jax.tree.leaves(gradient.advantage))
    assert largest > 0.1
    for x in jax.tree.leaves(gradient.value):
        assert np.abs(x).max() < 1e-5 * largest
