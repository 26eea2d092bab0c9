"""Learning from transitions: the replay of all seeds, and the updates of a lock-step."""

import math
from typing import Any

import jax
import numpy as np

from save_rl.agents import get_agent, target_rows, target_width
from save_rl.envs.layout import Layout
from save_rl.learning import host_replay
from save_rl.learning.host_replay import HostReplay
from save_rl.learning.replay import Transition
from save_rl.training.host.ahead import Ahead, shapes
from save_rl.training.host.collector import Experience
from save_rl.training.host.updates import UpdatePrograms, Updates
from save_rl.training.learner import Learner, Learning
from save_rl.training.networks import maker_of
from save_rl.training.settings import TrainSettings
from save_rl.types import Simulator

_PARTS = 4  # parts of a batch of graphs on a CPU


class HostLearner:
    """Learns from transitions: replay and updates of all seeds.

    options: compiler options; only GPUs have some.
    """

    def __init__(
        self, learning: Learning, settings: TrainSettings, layout: Layout, graphs: bool,
        options: dict[str, str], ahead: Ahead | None = None,
    ):  # fmt: skip
        self.learning, self.settings, self._layout = learning, settings, layout
        self._initial = jax.jit(jax.vmap(lambda seed: learning.initial(jax.random.PRNGKey(seed))))
        parts = math.gcd(settings.batch, _PARTS) if graphs and not options else 0
        masked = layout.num_actions if layout.masked else 0
        self.programs = UpdatePrograms(learning, masked, options, parts, ahead)

    def close(self) -> None:
        """End the thread."""
        self.programs.close()

    def initial(self) -> Learner:
        """Return untrained learners of all seeds."""
        return self._initial(np.array(self.settings.seeds))

    def replay(self) -> HostReplay:
        """Return an empty replay."""
        return host_replay.empty(self._example(), self.settings.replay, self._linked)

    def shapes(self) -> tuple[Learner, HostReplay]:
        """Return learners and replay as shapes and dtypes, without memory for them."""
        capacity, seeds = self.settings.replay, len(self.settings.seeds)
        data = jax.eval_shape(lambda: host_replay.empty_data(self._example(), capacity))
        small = shapes(host_replay.nothing(seeds, capacity, self._linked))
        return jax.eval_shape(self.initial), small._replace(data=data)

    @property
    def _linked(self) -> int:
        """Lanes whose transitions are linked, for n-step transitions."""
        return self.settings.lanes if self.settings.horizon > 1 else 0

    def _example(self) -> Transition:
        """Return a transition of zeros of every seed, packed."""
        s, layout = self.settings, self._layout
        seeds = len(s.seeds)
        agent = self.learning.agent
        values, visits = target_rows(agent)
        target = np.zeros((seeds, 1, target_width(agent, layout.num_actions)), np.float32)
        bits = -(-layout.num_actions // 8) if layout.masked else 0
        seen = jax.tree.map(lambda x: np.zeros((seeds, 1, *x.shape), x.dtype), layout.example())
        number, mask = np.zeros((seeds, 1), np.float32), np.zeros((seeds, 1, bits), np.uint8)
        return Transition(
            observation=seen,
            action=number.astype(np.int32),
            reward=number,
            discount=number,
            next_observation=seen,
            target=host_replay.pack_target(target, values, values + visits),
            mask=mask,
            next_mask=mask,
        )

    def updates(
        self, state: Any, random: list[np.random.Generator], running: np.ndarray
    ) -> Updates:
        """Return the updates of a lock-step, ready to run beside it."""
        s = self.settings
        active = running & (state.replay.added >= max(s.min_replay, 1))
        slots = host_replay.draw(state.replay, random, (s.updates_per_step, s.batch))
        return Updates(self.programs, state.learner, state.replay, slots, state.episodes, active)

    def record(
        self, replay: HostReplay, experience: Experience, running: np.ndarray, first: int = 0
    ) -> HostReplay:
        """Add the experience of lanes to replay. first: index of the first lane."""
        track = self.learning.agent.value_loss == "return"
        return host_replay.add(
            replay, experience.transitions, experience.sizes, experience.moved, experience.over,
            self.settings.discount, track, first, running, experience.episode_step == 0,
        )  # fmt: skip


def make_learning(settings: TrainSettings, simulator: Simulator, seen: Any = None) -> Learning:
    """Return losses and updates of the agent and the network of these settings.

    seen: an example of an observation; default one of the simulator.
    """
    agent = get_agent(settings.agent)
    if seen is None:
        seen = Layout.of(simulator).example()
    return Learning(agent, settings, maker_of(settings, seen, simulator))
