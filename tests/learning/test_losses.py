"""The loss terms against numbers worked out by hand, with and without masked actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from save_rl.learning import losses

ACTIONS = 6
INF = np.inf
LOG3 = np.log(3.0)

rows = st.lists(st.floats(-8, 8, width=32), min_size=ACTIONS, max_size=ACTIONS).map(np.float32)
mask_rows = st.lists(st.booleans(), min_size=ACTIONS, max_size=ACTIONS).filter(any).map(np.array)


td_target, double_q_target, cross_entropy, amortization_loss, l2_amortization_loss = (
    jax.jit(loss)
    for loss in (
        losses.td_target,
        losses.double_q_target,
        losses.cross_entropy,
        losses.amortization_loss,
        losses.l2_amortization_loss,
    )
)


def value_and_slope(loss, *arguments):
    return jax.jit(jax.value_and_grad(loss))(*arguments)


def masked_gradient(loss):
    """d loss / d head, where a mask lies over the head as in `training.device`."""

    def of_head(head, mask, *arguments):
        return loss(jnp.where(mask, head, -jnp.inf), *arguments)

    return jax.jit(jax.value_and_grad(of_head))


def masked_softmax(values, mask):
    return scipy.special.softmax(np.where(mask, values.astype(float), -INF))


def test_td_target_bootstraps_from_the_best_next_action():
    # 1 + 0.9 x max(0.5, -1, 2) = 2.8
    target = td_target(np.float32(1.0), np.float32(0.9), np.float32([0.5, -1.0, 2.0]))
    assert float(target) == pytest.approx(2.8)


def test_td_target_ignores_masked_actions():
    # 0.2 + 0.5 x max(-3, -1) = -0.3
    target = td_target(np.float32(0.2), np.float32(0.5), np.float32([-3.0, -INF, -1.0]))
    assert float(target) == pytest.approx(-0.3)


def test_td_target_of_a_terminal_step_is_its_reward_even_where_nothing_is_allowed_next():
    assert float(
        td_target(np.float32(0.7), np.float32(0.0), np.float32([5.0, -INF]))
    ) == pytest.approx(0.7)
    assert float(
        td_target(np.float32(0.7), np.float32(0.0), np.float32([-INF, -INF]))
    ) == pytest.approx(0.7)


def test_double_q_values_the_best_action_of_one_network_by_the_other():
    # The network that learns prefers the first action (masked ones aside), worth 0.5 to the other.
    online, target = np.float32([3.0, 1.0, -INF]), np.float32([0.5, 2.0, -INF])
    found = double_q_target(np.float32(1.0), np.float32(0.9), target, online)
    assert float(found) == pytest.approx(1.45)  # Q-learning: 1 + 0.9 x 2 = 2.8
    over = double_q_target(np.float32(0.7), np.float32(0.0), target - INF, online - INF)
    assert float(over) == pytest.approx(0.7)


def test_td_loss():
    # ½ (2.5 - 2)² = 0.125; the slope is -(2.5 - 2) at the action taken, and 0 elsewhere
    q = np.float32([1.0, 2.0, -INF])
    loss, slope = value_and_slope(losses.td_loss, q, 1, np.float32(2.5))
    assert float(loss) == pytest.approx(0.125)
    np.testing.assert_allclose(slope, [0.0, -0.5, 0.0], atol=1e-7)


def test_td_loss_does_not_move_its_target():
    assert (
        float(
            jax.jit(jax.grad(losses.td_loss, argnums=2))(np.float32([1.0, 2.0]), 1, np.float32(2.5))
        )
        == 0.0
    )


def test_return_loss():
    # ½ (1 - 0.25)² = 0.28125, with slope 0.25 - 1
    loss, slope = value_and_slope(losses.return_loss, np.float32(0.25), np.float32(1.0))
    assert float(loss) == pytest.approx(0.28125)
    assert float(slope) == pytest.approx(-0.75)


def test_cross_entropy():
    # softmax(0, log 3) = (¼, ¾): -½ log ¼ - ½ log ¾
    expected = 0.5 * np.log(4) + 0.5 * np.log(4 / 3)
    logits, target = np.float32([0.0, LOG3, -INF]), np.float32([0.5, 0.5, 0.0])
    assert float(cross_entropy(logits, target)) == pytest.approx(expected, rel=1e-6)
    assert float(cross_entropy(logits[:2], target[:2])) == pytest.approx(expected, rel=1e-6)


def test_amortization_loss():
    # softmax(Qθ) = (¼, ¾) and softmax(Q_MCTS) = (¾, ¼): -¾ log ¼ - ¼ log ¾
    expected = 0.75 * np.log(4) + 0.25 * np.log(4 / 3)
    q, q_mcts = np.float32([0.0, LOG3, -INF]), np.float32([LOG3, 0.0, -INF])
    assert float(amortization_loss(q, q_mcts)) == pytest.approx(expected, rel=1e-6)
    # A temperature of 2 halves both: twice the values give the same loss.
    assert float(amortization_loss(2 * q, 2 * q_mcts, 2.0)) == pytest.approx(expected, rel=1e-6)


def test_what_the_search_says_of_masked_actions_does_not_matter():
    q = np.float32([0.5, -INF, 1.0])
    for loss in (amortization_loss, l2_amortization_loss):
        values = [float(loss(q, np.float32([2.0, m, 0.0]))) for m in (-INF, 0.0, 100.0)]
        assert np.all(np.isfinite(values))
        assert values[0] == values[1] == values[2]


def test_amortization_over_explored_actions_alone():
    # Tried: the first two, softmax(Q_MCTS) = (¾, ¼), softmax(Qθ) = (¼, ¾), as above; the third has
    # the highest Qθ and was not tried, the fourth is masked.
    q, q_mcts = np.float32([0.0, LOG3, 9.0, -INF]), np.float32([LOG3, 0.0, -INF, -INF])
    loss, slope = value_and_slope(losses.explored_amortization_loss, q, q_mcts)
    assert float(loss) == pytest.approx(0.75 * np.log(4) + 0.25 * np.log(4 / 3), rel=1e-6)
    np.testing.assert_allclose(slope, [0.25 - 0.75, 0.75 - 0.25, 0.0, 0.0], atol=1e-6)
    # Of a single action nothing can be compared.
    loss, slope = value_and_slope(
        losses.explored_amortization_loss, q, np.float32([2.0, *[-INF] * 3])
    )
    assert float(loss) == 0.0
    np.testing.assert_array_equal(slope, np.zeros(4))


def test_amortization_weighted_by_visits():
    # Shares ¾ and ¼, errors 2 and -4: ½ (¾ x 4 + ¼ x 16) = 3.5; slopes -¾ x 2 and ¼ x 4.
    q, q_mcts = np.float32([1.0, 5.0, 7.0, -INF]), np.float32([3.0, 1.0, 7.5, -INF])
    loss, slope = value_and_slope(
        losses.weighted_amortization_loss, q, q_mcts, np.float32([6.0, 2.0, 0.0, 0.0])
    )
    assert float(loss) == pytest.approx(3.5)
    np.testing.assert_allclose(slope, [-1.5, 1.0, 0.0, 0.0], atol=1e-6)


def test_l2_amortization_loss():
    # The difference is (3, 4): norm 5, slope -(3, 4) / 5
    q, q_mcts = np.float32([1.0, 2.0, -INF]), np.float32([4.0, 6.0, -INF])
    loss, slope = value_and_slope(losses.l2_amortization_loss, q, q_mcts)
    assert float(loss) == pytest.approx(5.0)
    np.testing.assert_allclose(slope, [-0.6, -0.8, 0.0], atol=1e-6)


def test_l2_amortization_loss_is_flat_where_both_agree():
    q = np.float32([1.0, -2.0, -INF])
    loss, slope = value_and_slope(losses.l2_amortization_loss, q, q)
    assert float(loss) == 0.0
    np.testing.assert_array_equal(slope, np.zeros(3))


@pytest.mark.parametrize(
    "loss", [losses.cross_entropy, losses.amortization_loss, losses.l2_amortization_loss]
)
def test_the_target_of_the_search_is_a_constant(loss):
    q, target = np.float32([0.5, 0.1, 1.0]), np.float32([0.7, 0.2, 0.1])
    np.testing.assert_array_equal(jax.jit(jax.grad(loss, argnums=1))(q, target), np.zeros(3))


gradients = {
    loss: masked_gradient(loss)
    for loss in (
        losses.td_loss,
        losses.cross_entropy,
        losses.amortization_loss,
        losses.l2_amortization_loss,
    )
}


@given(q=rows, q_mcts=rows, mask=mask_rows)
def test_amortization_pulls_one_softmax_to_the_other(q, q_mcts, mask):
    loss, slope = gradients[losses.amortization_loss](q, mask, np.where(mask, q_mcts, -INF))
    p, target = masked_softmax(q, mask), masked_softmax(q_mcts, mask)
    np.testing.assert_allclose(slope, p - target, atol=2e-6)
    assert float(loss) == pytest.approx(scipy.special.xlogy(target, p)[mask].sum() * -1, abs=2e-5)


@given(q=rows, q_mcts=rows, temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_temperature_divides_values_and_slope(q, q_mcts, temperature):
    everything = np.ones(ACTIONS, bool)
    _, slope = gradients[losses.amortization_loss](q, everything, q_mcts, temperature)
    expected = (
        scipy.special.softmax(q.astype(float) / temperature)
        - scipy.special.softmax(q_mcts.astype(float) / temperature)
    ) / temperature
    np.testing.assert_allclose(slope, expected, atol=4e-6)


@given(head=rows, visits=rows, mask=mask_rows)
def test_cross_entropy_to_visit_frequencies(head, visits, mask):
    frequencies = np.where(mask, np.abs(visits) + 1, 0)
    frequencies = (frequencies / frequencies.sum()).astype(np.float32)
    _, slope = gradients[losses.cross_entropy](head, mask, frequencies)
    np.testing.assert_allclose(slope, masked_softmax(head, mask) - frequencies, atol=2e-6)


@given(q=rows, q_mcts=rows, mask=mask_rows)
def test_l2_pulls_straight_at_the_search(q, q_mcts, mask):
    loss, slope = gradients[losses.l2_amortization_loss](q, mask, np.where(mask, q_mcts, -INF))
    difference = np.where(mask, q.astype(float) - q_mcts, 0.0)
    norm = np.sqrt((difference**2).sum())
    assert float(loss) == pytest.approx(norm, rel=1e-5, abs=1e-12)
    assert np.all(np.isfinite(slope))
    if norm > 1e-12:  # squares of smaller differences vanish in single precision
        np.testing.assert_allclose(slope, difference / norm, atol=1e-5)


@given(q=rows, target=st.floats(-8, 8, width=32), mask=mask_rows, data=st.data())
def test_td_moves_nothing_but_the_action_taken(q, target, mask, data):
    action = data.draw(st.sampled_from(np.flatnonzero(mask).tolist()))
    _, slope = gradients[losses.td_loss](q, mask, action, target)
    expected = np.zeros(ACTIONS)
    expected[action] = float(q[action]) - target
    np.testing.assert_allclose(slope, expected, atol=1e-5)


@given(x=rows)
def test_safe_norm_is_the_euclidean_norm(x):
    norm = np.sqrt((x.astype(float) ** 2).sum())
    assert float(losses.safe_norm(jnp.asarray(x))) == pytest.approx(norm, rel=1e-5, abs=1e-12)
