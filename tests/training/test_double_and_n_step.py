"""Double Q-learning with n-step targets, update by update, by the same equations on both paths."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import save_rl
from save_rl.errors import InputError
from save_rl.learning import host_replay, replay
from save_rl.learning.replay import n_step_transitions
from save_rl.training.settings import TrainSettings
from tests.training import test_device, test_host, test_sorted_updates
from tests.training.test_device import MaskedMaze, assert_same, is_same, maze
from tests.training.test_host import make  # noqa: F401  # a fixture
from tests.training.test_sorted_updates import programs, trainer  # noqa: F401

N = 3


def literal_loss(network, target_network, batch):
    """Mean of ½ (R + γⁿ Q_target(s', argmax_b Qθ(s', b)) - Qθ(s, a))², one by one."""
    q = network(jnp.asarray(batch.observation))[0]
    after = jnp.asarray(batch.next_observation)
    online, target = network(after)[0], target_network(after)[0]
    total = 0.0
    for i, action in enumerate(batch.action.tolist()):
        allowed = np.flatnonzero(batch.next_mask[i])
        best = allowed[jnp.argmax(online[i][allowed])]
        goal = batch.reward[i] + batch.discount[i] * target[i][best]
        total += 0.5 * (jax.lax.stop_gradient(goal) - q[i][action]) ** 2
    return total / len(batch.action)


def check_updates(network, before, after, batches):
    """Two updates were two steps of Adam, the second from the parameters after the first."""
    params, optimiser, sums = before.learner.params, before.learner.optimiser, 0.0
    assert not is_same(before.learner.target, params)
    for number in range(2):
        batch = jax.tree.map(lambda x: np.asarray(x[number]), batches)  # noqa: B023
        loss, gradient = jax.value_and_grad(
            lambda p: literal_loss(network(p), network(before.learner.target), batch)  # noqa: B023
        )(params)
        changes, optimiser = optax.adam(1e-3).update(gradient, optimiser)
        params, sums = optax.apply_updates(params, changes), sums + loss
    assert after.stats.loss_q - before.stats.loss_q == pytest.approx(float(sums), rel=1e-3)
    assert_same(after.learner.optimiser, jax.tree.map(np.asarray, optimiser), rtol=2e-3, atol=1e-7)
    assert_same(after.learner.params, jax.tree.map(np.asarray, params), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_updates_in_jax_environments():
    env = maze(2, ends=0.15, limit=4, kind=MaskedMaze)
    made = test_device.program("q-learning", [env], double_q=True, n_step=N, target_period=4)
    states = [test_device.of_seed(state, 0) for state in test_device.history(made, [env], 6)]
    before, after = states[-2:]
    key = jax.random.split(before.key, 4)[3]
    batches, _, _ = replay.sample(after.replay, key, 5, 80, (2, 8), N)
    # Some have all their steps, some fewer; some end in a terminal state.
    assert {0.0, 0.729} < {round(x, 4) for x in np.asarray(batches.discount).ravel().tolist()}
    check_updates(made.network, before, after, batches)


@pytest.mark.slow  # the same losses; test_n_step.py has the chains
def test_updates_over_simulators(make, monkeypatch):  # noqa: F811
    made = make(
        "q-learning", env={"masked": True, "limit": 4}, batch=8, replay_ratio=2, target_period=3,
        double_q=True, n_step=N,
    )  # fmt: skip
    drawn, draw = [], host_replay.draw
    monkeypatch.setattr(host_replay, "draw", lambda *given: drawn.append(draw(*given)) or drawn[-1])
    states, _ = test_host.history(made, 5)
    ring = states[-2].replay
    chains = host_replay.chain(ring, drawn[-1], N)
    assert (chains >= 0).all(-1).any()
    assert (chains < 0).any()
    batches = n_step_transitions(jax.tree.map(lambda x: x[0], ring.data), chains[0])
    mask, next_mask = (np.unpackbits(np.asarray(x), -1, 5).astype(bool)
                       for x in (batches.mask, batches.next_mask))  # fmt: skip
    batches = batches._replace(mask=mask, next_mask=next_mask)
    before, after = (test_host.of_seed(state, 0) for state in states[-2:])
    check_updates(made.learning.network, before, after, batches)


@pytest.mark.slow
@pytest.mark.parametrize(
    "trainer", [{"agent": "q-learning", "double_q": True, "n_step": 2}], indirect=True
)
def test_parts_of_a_sorted_batch_add_up_to_the_batch(trainer, programs):  # noqa: F811
    """Also where the network that learns looks at the next graphs."""
    test_sorted_updates.check_parts(trainer, programs)


def test_a_checkpoint_holds_what_links_transitions(make):  # noqa: F811
    names = [
        {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(template)}
        for template in (make("q-learning", n_step=n).template() for n in (None, 2))
    ]
    assert names[1] - names[0] == {".replay.following", ".replay.latest"}
    assert names[0] < names[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agent": "puct", "n_step": 3}, "--n-step: 3 has no effect on 'puct'; leave it out."),
        ({"agent": "puct", "double_q": True},
         "--double-q: True has no effect on 'puct'; leave it out."),
        ({"agent": "gumbel", "double_q": True},
         "--double-q: True has no effect on 'gumbel'; leave it out."),
        ({"agent": "save-no-q-learning", "n_step": 2},
         "--n-step: 2 has no effect on 'save-no-q-learning'; leave it out."),
        ({"agent": "r2d2", "n_step": 3},
         "--n-step: 3 has no effect on 'r2d2'; use --r2d2.sequences.n."),
        ({"agent": "r2d2", "double_q": True},
         "--double-q: True has no effect on 'r2d2'; leave it out."),
        ({"n_step": 0}, "--n-step: 0 is not possible; it must be from 1 to 62, the steps of a lane "
         "that --replay holds."),
        ({"n_step": 63}, "--n-step: 63 is not possible; it must be from 1 to 62, the steps of a "
         "lane that --replay holds."),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_refused(settings, message):
    with pytest.raises(InputError) as caught:
        TrainSettings(**settings).check()
    assert str(caught.value) == message


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["q-learning", "save"])
def test_runs_learn_with_both(tmp_path, agent):
    result = save_rl.train(
        "tightrope", agent=agent, out=tmp_path, episodes=2000, epsilon_episodes=1000, n_step=3,
        double_q=True, env_options={"reward": "dense", "terminal": 50}, device="cpu",
        progress=False,
    )  # fmt: skip
    tested = save_rl.evaluate(result.path, (0,), 20)
    assert tested[0].returns.mean() > 0.9
