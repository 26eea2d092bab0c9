"""The Construction tasks as a pure simulator (docs/construction/index.md#rules-of-an-episode)."""

import threading
from array import array
from math import isfinite
from typing import Any

import numpy as np

from save_rl.envs.construction import geometry, graph, score
from save_rl.envs.construction.box2d import physics
from save_rl.envs.construction.generators import generate, limits, scene_bin
from save_rl.envs.construction.graph import Placement
from save_rl.envs.construction.scene import BOUND_Y, Scene
from save_rl.envs.construction.state import State, block_table
from save_rl.envs.construction.tasks import TASKS, check_difficulty, level_probabilities
from save_rl.errors import InputError, require

MARBLE_TOLERANCE = 1e-4  # square metres of the marble's start that may be covered


class _Randomness(threading.local):
    """A thread's generator of random numbers, seeded for each scene: a new one takes as long as all
    that is drawn from it."""

    def __init__(self) -> None:
        self.generator = np.random.RandomState(0)


_randomness = _Randomness()


class Construction:
    """A task: draws scenes, simulates placements and scores structures.

    task: silhouette, connecting, covering, covering-hard or marble-run.
    difficulty: a level, or the name of a generalization level; default the hardest level.
    curriculum_sample: draw each episode's level from 0 to `difficulty` instead of always
        `difficulty`.
    preset: 'paper' follows the papers, 'released' the published environments where they differ.
    sticky_penalty: cost of a sticky block; default the task's.
    masked: actions are edges from available blocks, and invalid ones raise an error. If false,
        actions are all edges, and an invalid one ends the episode, as in the original.

    A run's curriculum sets the level through the arguments of `reset`; `kind` returns the level of
    an episode. Episodes only ever terminate, at the step limit too, as in the original.
    """

    actions_per_edge = graph.ACTIONS_PER_EDGE

    def __init__(
        self,
        task: str,
        *,
        difficulty: int | str | None = None,
        curriculum_sample: bool = True,
        preset: str = "paper",
        sticky_penalty: float | None = None,
        masked: bool = True,
    ):
        asked = 0 if difficulty is None else difficulty
        level = check_difficulty(task, preset, asked, curriculum_sample)
        hardest = TASKS[task].max_difficulty[preset]
        self.difficulty = hardest if difficulty is None else level
        require(isinstance(masked, bool), "masked", repr(masked), "true or false")
        self.name, self.task, self.preset = task, TASKS[task], preset
        self.curriculum_sample, self.masked = curriculum_sample, masked
        self.sticky_penalty = self.task.sticky_penalty if sticky_penalty is None else sticky_penalty
        number = isinstance(self.sticky_penalty, int | float)
        possible = number and 0 <= self.sticky_penalty < float("inf")
        require(possible, "sticky_penalty", sticky_penalty, "a number, at least 0")
        levels = range(hardest + 1) if isinstance(self.difficulty, int) else [self.difficulty]
        most = [limits(task, preset, level) for level in levels]
        self.max_steps = max(limit.max_steps for limit in most)
        fixed = graph.AVAILABLE + 1 + (task == "marble-run")
        blocks = self.max_steps if self.task.replaced else 0
        self.max_nodes = fixed + blocks + max(limit.obstacles + limit.targets for limit in most)
        senders = graph.AVAILABLE if masked else self.max_nodes
        self.num_actions = senders * (self.max_nodes - 1) * graph.ACTIONS_PER_EDGE
        self._node_masks = np.tri(self.max_nodes + 1, self.max_nodes, -1, bool)  # by nodes in use
        self._action_masks: dict[Any, np.ndarray] = {}  # by all that they depend on
        self._shapes = np.array(self.task.supply.shapes, np.float64)
        self._floor = np.array(self.task.supply.floor)

    def reset(
        self,
        seed: int,
        *,
        difficulty: int | str | None = None,
        curriculum_sample: bool | None = None,
    ) -> State:
        """Draw a scene; the arguments override those of the constructor for this episode."""
        level = self.difficulty if difficulty is None else difficulty
        sample = self.curriculum_sample if curriculum_sample is None else curriculum_sample
        level = check_difficulty(self.name, self.preset, level, sample)
        require(seed >= 0, "seed", seed, "at least 0")
        rng = _randomness.generator
        rng.seed(seed if seed < 2**32 else [seed % 2**32, seed >> 32])
        if sample:
            probabilities = level_probabilities(int(level), self.task.curriculum_p)
            level = int(rng.choice(len(probabilities), p=probabilities))
        return self.start(generate(self.name, level, self.preset, rng))

    def compile_ahead(self) -> None:
        """Compile, or load, the kernels of an episode."""
        above_all = Placement(0, 0.0, BOUND_Y, True)
        state, _, _, _ = self.drop(self.reset(0), above_all)
        self.observe(state)

    def start(self, scene: Scene) -> State:
        """Start an episode in a given scene."""
        if scene.task != self.name:
            raise InputError(f"scene: this is a scene of {scene.task}, not of {self.name}.")
        if graph.node_count(scene, scene.max_steps) > self.max_nodes:
            raise InputError(
                f"scene: level {scene.level!r} does not fit; build the simulator with "
                f"difficulty={scene.level!r}, preset={scene.preset!r}."
            )
        return State(scene)

    def step(self, state: State, action: Any) -> tuple[State, float, bool, bool]:
        """Place a block; return `(state, reward, terminated, truncated)`."""
        self._check(state)
        placement = graph.place(state, *self.decode(int(action)))
        if placement is not None:
            return self._drop(state, placement)
        if self.forbids(state, int(action)):
            raise InputError(f"action: {action} is not possible in this state; see action_mask.")
        return state._replace(ending="invalid_edge"), 0.0, True, False

    def forbids(self, state: State, action: int) -> bool:
        """Test whether the action mask forbids an action."""
        sender, receiver, offset, sticky = self.decode(action)
        if self.masked:
            return graph.place(state, sender, receiver, offset, sticky) is None
        return max(sender, receiver) >= self._used_nodes(state)

    def drop(self, state: State, placement: Placement) -> tuple[State, float, bool, bool]:
        """Place a block anywhere and let everything settle; returns the same as `step`."""
        self._check(state)
        slot, x, y, _ = placement
        if slot not in range(graph.AVAILABLE) or not (isfinite(x) and isfinite(y)):
            raise InputError(f"placement: slot {slot} at ({x}, {y}) is not possible.")
        if slot in graph.taken(state, self.task):
            raise InputError(f"placement: the block of slot {slot} is used up.")
        return self._drop(state, placement)

    def _drop(self, state: State, placement: Placement) -> tuple[State, float, bool, bool]:
        """Place a block; endings are evaluated in the order of
        docs/construction/index.md#rules-of-an-episode, and later ones overwrite earlier ones."""
        slot, x, y, sticky = placement
        scene, task = state.scene, self.task
        steps = state.steps + 1
        used_up = not task.replaced and len(state.blocks) == 6 * graph.BLOCK_BYTES
        ending = "max_steps" if steps >= scene.max_steps or used_up else ""
        if self._overlaps(state, placement):
            blocks = state.blocks + array("f", (slot, sticky, x, y, 0.0)).tobytes()
            after = State(
                scene, blocks, state.contacts, state.bonds, steps, state.progress, "spawn_collision"
            )
            return after, 0.0, True, False
        try:
            arrangement, hit = physics.settle(
                scene, physics.Arrangement(*state[1:4]), slot, sticky, x, y
            )
            if hit or self._marble_blocked(scene, arrangement):
                ending = "obstacle_hit" if hit else "spawn_collision"
                return State(scene, *arrangement, steps, state.progress, ending), 0.0, True, False
            progress = self._score(scene, arrangement)
        except physics.EngineFailure:
            return state._replace(steps=steps, ending="bad_simulation"), 0.0, True, False
        if progress > task.threshold * self.best_progress(scene):
            ending = "complete"
        reward = progress - state.progress - self.sticky_penalty * sticky
        return State(scene, *arrangement, steps, progress, ending), reward, ending != "", False

    def _overlaps(self, state: State, placement: Placement) -> bool:
        """Test whether a new block would overlap something."""
        slot, x, y, _ = placement
        return geometry.spawn_overlap(
            self._shapes, int(slot), float(x), float(y), state.block_array,
            state.scene.obstacle_array, self._floor,
        )  # fmt: skip

    def progress(self, state: State) -> float:
        """Return the score P of a structure before costs; in Marble Run 1 if the marble arrives."""
        return self._score(state.scene, physics.Arrangement(*state[1:4]))

    def _score(self, scene: Scene, arrangement: physics.Arrangement) -> float:
        if scene.marble is not None:
            return float(physics.roll(scene, arrangement, record=False).reached)
        blocks = block_table(arrangement.blocks)
        if self.name == "silhouette":
            return score.silhouette_score(self._shapes, blocks, scene.target_array)
        if self.name == "connecting":
            return score.connecting_score(self._shapes, blocks, scene.target_array)
        return score.covering_score(self._shapes, blocks, scene.obstacle_array)

    def kind(self, state: State) -> tuple[int, int]:
        """Return the level of an episode (-1 outside the numbered ones), and the number of its bin
        in an adaptive curriculum."""
        scene = state.scene
        return scene.level if isinstance(scene.level, int) else -1, scene_bin(scene)

    def solved(self, state: State) -> bool:
        """Test whether the task is complete."""
        return state.ending == "complete"

    def best_progress(self, scene: Scene) -> float:
        """Return P_max, the score of a perfect structure."""
        if self.name in ("covering", "covering-hard"):
            return scene.obstacle_width
        return float(len(scene.targets))

    def roll(self, state: State) -> physics.Rolled:
        """Release the marble of Marble Run over a structure."""
        if state.scene.marble is None:
            raise InputError(f"roll: there is no marble in {state.scene.task}.")
        return physics.roll(state.scene, physics.Arrangement(*state[1:4]))

    def observe(self, state: State) -> dict[str, np.ndarray]:
        """Return `nodes [max_nodes, 18 or 19]` and `node_mask [max_nodes]`."""
        return {
            "nodes": graph.node_features(state, self.max_nodes),
            "node_mask": self._node_masks[self._used_nodes(state)].copy(),
        }

    def action_mask(self, state: State) -> np.ndarray:
        """Return the actions `[num_actions]` that `step` accepts: valid edges; without `masked`,
        existing ones."""
        kind = self._used_nodes(state), graph.taken(state, TASKS[state.scene.task])
        mask = self._action_masks.get(kind)
        if mask is None:
            find = graph.edge_mask if self.masked else graph.existing_edges
            mask = np.repeat(find(state, self.max_nodes), graph.ACTIONS_PER_EDGE)
            self._action_masks[kind] = mask
        return mask.copy()

    def action(self, sender: int, receiver: int, offset: int, sticky: int = 0) -> int:
        """Return the number of an action."""
        edge = sender * (self.max_nodes - 1) + receiver - (receiver > sender)
        return (edge * len(graph.OFFSETS) + offset) * 2 + sticky

    def render(self, state: State) -> np.ndarray:
        """Draw a picture `[480, 480, 3]`."""
        from save_rl.envs.construction.drawing import draw

        return draw(state)

    def decode(self, action: int) -> tuple[int, int, int, int]:
        """Return an action's sender, receiver, offset and sticky flag: the inverse of `action`."""
        if not 0 <= action < self.num_actions:
            highest = self.num_actions - 1
            raise InputError(f"action: {action} is not possible; it must be from 0 to {highest}.")
        edge, rest = divmod(action, graph.ACTIONS_PER_EDGE)
        sender, receiver = divmod(edge, self.max_nodes - 1)
        return sender, receiver + (receiver >= sender), rest >> 1, rest & 1

    def _marble_blocked(self, scene: Scene, arrangement: physics.Arrangement) -> bool:
        """Test whether a block covers the start of the marble, if there is a marble."""
        return scene.marble is not None and geometry.marble_blocked(
            self._shapes, block_table(arrangement.blocks), self._floor, *scene.marble,
            MARBLE_TOLERANCE,
        )  # fmt: skip

    def _used_nodes(self, state: State) -> int:
        return graph.node_count(state.scene, len(state.blocks) // graph.BLOCK_BYTES)

    def _check(self, state: State) -> None:
        if not isinstance(state, State) or state.scene.task != self.name:
            raise InputError(f"state: this is not a state of {self.name}.")
        if state.scene.max_steps > self.max_steps:
            raise InputError(f"state: level {state.scene.level!r} does not fit this simulator.")
        if state.ending:
            raise InputError(
                f"step: this episode is over ({state.ending}); start a new one with reset."
            )
