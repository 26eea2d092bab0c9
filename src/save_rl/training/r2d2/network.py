"""R2D2's network for training: it evaluates search nodes, which carry its recurrent state, and is
updated from sequences of steps. Its parameters have a seed axis of length 1.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from save_rl.learning.r2d2 import Sequences, importance_weights, sequence_loss
from save_rl.learning.r2d2_settings import NetworkSettings, SequenceSettings
from save_rl.learning.sequence_replay import SequenceSample
from save_rl.networks.recurrent import RecurrentNetwork
from save_rl.rescaling import unscale
from save_rl.search.simulators import Question, Rows
from save_rl.training.learner import Learner, is_array
from save_rl.types import Array

_SMALLEST_BATCH = 8


class RecurrentEvaluator:
    """The recurrent network as an evaluator of searches, with a state for every node of every lane.

    lanes: of the search. `use` sets the parameters. The states stay on the device: `[lanes + 1,
    serials, 2, H]`, hidden state and cell; the last lane is for padding. `before [lanes + 1, 2, H]`
    are the states before the roots; a search does not change them.
    """

    def __init__(self, networks: "Networks", lanes: int, budget: int):
        self._networks, self._lanes = networks, lanes
        self._leaves: list[Any] = []
        shape = (2, networks.hidden)
        self._memory = jnp.zeros((lanes + 1, budget + 1, *shape))
        self.before = jnp.zeros((lanes + 1, *shape))
        self._root_q = np.zeros((lanes, networks.actions), np.float32)
        self._asked: list[tuple[np.ndarray, Any]] = []  # values not yet copied to `_root_q`

    def use(self, params: Any) -> "RecurrentEvaluator":
        """Use these parameters `[1, ...]` (or a list of them) from now on; return itself."""
        self._leaves = [jnp.asarray(x) for x in jax.tree.leaves(params)]
        return self

    @property
    def root_q(self) -> np.ndarray:
        """Rescaled Q-values `[lanes, A]` of the last roots."""
        for lanes, q in self._asked:
            self._root_q[lanes] = np.asarray(q)[: len(lanes)]
        self._asked.clear()
        return self._root_q

    def ask(self, question: Question) -> Rows:
        """Start evaluating some states; see `search.simulators.Evaluator`."""
        lanes = question.lanes - question.first
        size = max(_SMALLEST_BATCH, 1 << (len(lanes) - 1).bit_length())

        def pad(x: np.ndarray, value: int = 0) -> np.ndarray:
            more = size - len(x)
            return np.concatenate([x, np.full((more, *x.shape[1:]), value, x.dtype)]) if more else x

        q, prior, value, self._memory = self._networks.evaluate(
            self._leaves, self._memory, self.before,
            jax.tree.map(pad, question.observation), pad(lanes, self._lanes),
            pad(question.parents), pad(question.serials),
        )  # fmt: skip
        if question.of_roots:
            self._asked.append((lanes, q))
        prior.copy_to_host_async()
        value.copy_to_host_async()
        return Rows(question.rows, prior, value, question.start)

    def commit_step(self, fresh: np.ndarray) -> None:
        """Advance all lanes by a step from their roots; those that are `fresh` `[lanes]` start an
        episode next and forget."""
        _ = self.root_q  # copies all pending values
        forgets = np.append(fresh, True)
        self.before = jnp.where(forgets[:, None, None], 0.0, self._memory[:, 0])


class Networks:
    """The network of an agent as compiled functions of lists of parameters `[1, ...]`.

    betas: β_Q and β_A. cut: settings of its sequences. options: compiler options.
    """

    def __init__(
        self, betas: tuple[float, float], settings: NetworkSettings, cut: SequenceSettings,
        actions: int, options: dict[str, str],
    ):  # fmt: skip
        def make(key: Array) -> RecurrentNetwork:
            return RecurrentNetwork(actions, key, settings.profile, settings.reward_input)

        self._make, self.actions = make, actions
        self._static = eqx.partition(make(jax.random.PRNGKey(0)), is_array)[1]
        self._optimiser = optax.chain(
            optax.clip_by_global_norm(settings.clip),
            optax.adam(settings.learning_rate, eps=1e-3),  # R2D2, table 2
        )
        example = jax.eval_shape(self.initial, jax.random.PRNGKey(0))
        of_params = jax.tree.structure(example.params)
        self.structure = jax.tree.structure((example.params, example.optimiser))
        self.hidden = example.params.lstm.hidden.shape[1]
        raw = settings.search_space != "transformed"

        def evaluate(
            leaves: list[Array], memory: Array, before: Array, observation: Any, lanes: Array,
            parents: Array, serials: Array,
        ) -> Any:  # fmt: skip
            network = self.network(jax.tree.unflatten(of_params, leaves))
            of_roots = (serials == 0)[:, None, None]
            came = jnp.where(of_roots, before[lanes], memory[lanes, parents])
            q, state = network(observation, {"hidden": came[:, 0], "cell": came[:, 1]})
            after = jnp.stack([state["hidden"], state["cell"]], 1)
            prior = unscale(q) if raw else q
            return q, prior, unscale(jnp.max(q, -1)), memory.at[lanes, serials].set(after)

        def update(leaves: list[Array], target: list[Array], batch: Sequences) -> Any:
            params, optimiser = _first(jax.tree.unflatten(self.structure, leaves))
            frozen = self.network(jax.tree.unflatten(of_params, target))

            def loss(params: Any) -> Any:
                return sequence_loss(
                    eqx.combine(params, self._static), frozen, batch, *betas, cut.burn_in, cut.n,
                    over_time=settings.over_time, weighted_losses=settings.weighted_losses,
                    raw=settings.search_space == "raw",
                )  # fmt: skip

            (_, about), gradient = jax.value_and_grad(loss, has_aux=True)(params)
            changes, optimiser = self._optimiser.update(gradient, optimiser)
            after = _with_seed_axis((optax.apply_updates(params, changes), optimiser))
            return jax.tree.leaves(after), about

        self.evaluate = jax.jit(evaluate, donate_argnums=1, compiler_options=options or None)
        self.update = jax.jit(update, compiler_options=options or None)

    def network(self, params: Any) -> RecurrentNetwork:
        """Return the network with these parameters `[1, ...]`."""
        return eqx.combine(_first(params), self._static)

    def initial(self, key: Array) -> Learner:
        """Return an untrained learner `[1, ...]`."""
        params = eqx.partition(self._make(key), is_array)[0]
        return _with_seed_axis(Learner(params, params, self._optimiser.init(params)))


def _first(tree: Any) -> Any:
    """Return the arrays of the one seed."""
    return jax.tree.map(lambda x: x[0], tree)


def _with_seed_axis(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x)[None], tree)


def to_batch(sample: SequenceSample, gamma: float) -> Sequences:
    """Convert a sample of the replay to a batch for the learner."""
    s = sample.sequences
    return Sequences(
        frames=s.frames,
        previous_action=s.previous_action,
        previous_reward=s.previous_reward,
        action=s.action,
        reward=s.reward,
        discount=np.float32(gamma) * s.discount,
        valid=s.valid,
        q_mcts=s.q_mcts,
        state={"hidden": s.state[:, 0], "cell": s.state[:, 1]},
        weight=np.asarray(importance_weights(sample.probability), np.float32),
    )
