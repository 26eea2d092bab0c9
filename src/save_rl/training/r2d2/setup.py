"""The agent, its settings and its network, which all parts of R2D2 share."""

from dataclasses import replace

import numpy as np

from save_rl.agents import Agent, get_agent
from save_rl.envs.atari_protocol import SIZE, STACK
from save_rl.envs.layout import Layout
from save_rl.learning.sequences import Shapes
from save_rl.rescaling import unscale
from save_rl.search.rules import Space
from save_rl.training.r2d2.network import Networks
from save_rl.training.settings import TrainSettings

_SPACES = {"transformed": Space.TRANSFORMED, "mixed": Space.MIXED, "raw": Space.PLAIN}


class Setup:
    """An agent, its settings with all defaults filled in, its network and its shapes.

    layout: of the simulators. options: compiler options; only GPUs have some.
    """

    def __init__(
        self, settings: TrainSettings, layout: Layout, options: dict[str, str] | None = None
    ):
        self.agent, self.settings = _filled_in(settings)
        self.r2d2, self.layout = self.settings.r2d2, layout
        beta_q, beta_a = (beta.start for beta in settings.betas)
        self.networks = Networks(
            (beta_q, beta_a), self.r2d2.network, self.r2d2.sequences, layout.num_actions,
            options or {},
        )  # fmt: skip
        shown = {name: shape for name, _, shape in layout.observation}
        self.shapes = Shapes(
            frame=shown["frames"][:2],
            state=(2, self.networks.hidden),
            actions=layout.num_actions,
            searched=self.agent.amortization_loss != "none",
        )
        self.space = _SPACES[self.r2d2.network.search_space]
        self.budget = self.settings.budget if self.agent.search is not None else 0
        """Simulations per decision while training."""

    def points(self, found: np.ndarray) -> np.ndarray:
        """Return the values of a search in game points."""
        rescaled = self.space == Space.TRANSFORMED
        return np.asarray(unscale(found.astype(np.float64))) if rescaled else found


def _filled_in(settings: TrainSettings) -> tuple[Agent, TrainSettings]:
    """Return the agent with the changes of its settings, and the settings with its defaults."""
    agent, given = get_agent(settings.agent), settings.r2d2
    if given.discard_search:
        agent = replace(agent, search=agent.test_search)
    ratio = given.replay.samples_per_insert or agent.samples_per_insert
    replay = replace(given.replay, samples_per_insert=ratio)
    filled = replace(given, replay=replay, refresh=given.refresh or agent.refresh)
    return agent, replace(settings, discount=given.sequences.gamma, r2d2=filled)


def shows_frames(layout: Layout) -> bool:
    """Test whether observations are those of the recurrent network, see `networks.recurrent`."""
    shown = {name: shape for name, _, shape in layout.observation}
    kinds = {name: np.dtype(kind) for name, kind, _ in layout.observation}
    wanted = {"frames": (SIZE, SIZE, STACK), "action": (), "reward": ()}
    return shown == wanted and kinds["frames"] == np.uint8  # replay keeps bytes
