"""The Construction tasks as Gymnasium environments; `save_rl.envs.gym` registers them."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from save_rl.envs.construction import absolute, graph
from save_rl.envs.construction.box2d.physics import LOST
from save_rl.envs.construction.drawing import draw, image_observation
from save_rl.envs.construction.scene import Scene
from save_rl.envs.construction.simulator import Construction
from save_rl.envs.construction.state import State
from save_rl.errors import InputError, unknown_name

INTERFACES = ("graph", "absolute")
_RESET_OPTIONS = {"difficulty", "curriculum_sample", "scene"}


class ConstructionEnv(gymnasium.Env[Any, Any]):
    """A Construction task.

    interface 'graph': the observation is a graph padded to fixed shapes (`nodes`, `node_mask`,
        `edges`, `edge_mask`, `globals`, `senders`, `receivers`, `n_node`, `n_edge`) with an
        `action_mask`; an action is one number that encodes an edge, one of 15 offsets and sticky.
        An action that the mask forbids ends the episode with reward 0 (`invalid_edge`).
    interface 'absolute': the observation is a 64 x 64 picture; an action is four numbers: selector
        (-7 to 7 along the row of blocks below the floor), x, y, and sticky (if above 0).

    `difficulty`, `curriculum_sample`, `preset`, `sticky_penalty` and `masked` are those of
    `Construction`. `reset` takes `options` with `difficulty`, `curriculum_sample` or a `scene` to
    replay. `info` has `termination_reason` ('' while the episode runs), `score`, `progress` (the
    score as a share of the best possible), `sticky_count`, `steps`, `level` and, with the graph
    interface, `action_mask`.
    """

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self, task: str, render_mode: str | None = None, interface: str = "graph", **options: Any
    ):
        if interface not in INTERFACES:
            raise unknown_name("interface", interface, INTERFACES, "interface")
        self.simulator = Construction(task, **options)
        self.interface, self.render_mode = interface, render_mode
        self.state = self.simulator.reset(0)
        self._cursor: tuple[float, float, float] | None = None
        self._window: Any = None
        nodes = self.simulator.max_nodes
        edges = nodes * (nodes - 1)
        self._senders, self._receivers = graph.edge_lists(nodes)
        if interface == "absolute":
            self.action_space = spaces.Box(absolute.LOW, absolute.HIGH, dtype=np.float32)
            self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
            return
        self.action_space = spaces.Discrete(self.simulator.num_actions)
        features = graph.feature_count(task)
        unit = {"low": 0.0, "high": 1.0, "dtype": np.float32}
        self.observation_space = spaces.Dict(
            nodes=spaces.Box(-LOST, LOST, (nodes, features), np.float32),
            node_mask=spaces.MultiBinary(nodes),
            edges=spaces.Box(shape=(edges, 1), **unit),
            edge_mask=spaces.MultiBinary(edges),
            globals=spaces.Box(shape=(1, 1), **unit),
            senders=spaces.Box(0, nodes - 1, (edges,), np.int32),
            receivers=spaces.Box(0, nodes - 1, (edges,), np.int32),
            n_node=spaces.Box(0, nodes, (1,), np.int32),
            n_edge=spaces.Box(0, edges, (1,), np.int32),
            action_mask=spaces.MultiBinary(self.simulator.num_actions),
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        options = dict(options or {})
        for name in options:
            if name not in _RESET_OPTIONS:
                raise unknown_name("option", name, _RESET_OPTIONS, "options")
        scene = options.pop("scene", None)
        if scene is not None and options:
            raise InputError("options: a scene brings its level; leave difficulty and curriculum.")
        if scene is not None and not isinstance(scene, Scene):
            raise InputError("options: the scene must be a Scene, as env.unwrapped.state.scene.")
        self._cursor = None
        if scene is not None:
            self.state = self.simulator.start(scene)
        else:
            drawn = int(self.np_random.integers(2**31))
            self.state = self.simulator.reset(drawn, **options)
        self._show()
        observation = self._observation()
        return observation, self._info(observation)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.interface == "absolute":
            result = absolute.step(self.simulator, self.state, action)
            self._cursor = (float(action[0]), float(action[1]), float(action[2]))
        elif not self.state.ending and self.simulator.forbids(self.state, int(action)):
            result = self.state._replace(ending="invalid_edge"), 0.0, True, False
        else:
            result = self.simulator.step(self.state, int(action))
        self.state, reward, terminated, truncated = result
        self._show()
        observation = self._observation()
        return observation, float(reward), terminated, truncated, self._info(observation)

    def render(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return draw(self.state, cursor=self._cursor) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        if self._window:
            import matplotlib.pyplot as plt

            plt.close(self._window.figure)
            self._window = None

    def _observation(self) -> Any:
        if self.interface == "absolute":
            return image_observation(self.state, self._cursor)
        observation = self.simulator.observe(self.state)
        used = observation["node_mask"]
        count, edges = int(used.sum()), len(self._senders)
        return {
            "nodes": observation["nodes"],
            "node_mask": used.astype(np.int8),
            "edges": np.zeros((edges, 1), np.float32),
            "edge_mask": (used[self._senders] & used[self._receivers]).astype(np.int8),
            "globals": np.zeros((1, 1), np.float32),
            "senders": self._senders.copy(),
            "receivers": self._receivers.copy(),
            "n_node": np.array([count], np.int32),
            "n_edge": np.array([count * (count - 1)], np.int32),
            "action_mask": self.simulator.action_mask(self.state).astype(np.int8),
        }

    def _info(self, observation: Any) -> dict[str, Any]:
        state: State = self.state
        info: dict[str, Any] = {
            "termination_reason": state.ending,
            "score": state.progress,
            "progress": state.progress / self.simulator.best_progress(state.scene),
            "sticky_count": state.sticky_count,
            "steps": state.steps,
            "level": state.scene.level,
        }
        if self.interface == "graph":
            info["action_mask"] = observation["action_mask"].copy()
        return info

    def _show(self) -> None:
        """Draw into the window in mode 'human'; without a screen, warn once."""
        if self.render_mode != "human" or self._window is False:
            return
        import matplotlib
        import matplotlib.pyplot as plt

        if matplotlib.get_backend().lower() not in map(str.lower, interactive_backends()):
            gymnasium.logger.warn("render_mode 'human' found no display and shows nothing.")
            self._window = False
            return
        frame = draw(self.state, cursor=self._cursor)
        if self._window is None:
            plt.ion()
            figure, axes = plt.subplots(figsize=(5, 5))
            axes.set_axis_off()
            figure.tight_layout(pad=0)
            self._window = axes.imshow(frame)
        self._window.set_data(frame)
        plt.pause(1 / self.metadata["render_fps"])


def interactive_backends() -> list[str]:
    """Return the names of matplotlib's back ends that can open a window."""
    from matplotlib.backends.registry import BackendFilter, backend_registry

    return backend_registry.list_builtin(BackendFilter.INTERACTIVE)
