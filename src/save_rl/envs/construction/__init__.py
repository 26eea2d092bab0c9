"""The Construction suite: five physical building tasks on Box2D.

`save_rl.make("covering", difficulty=2)` or `Construction("covering", difficulty=2)`.
"""

from functools import partial

from save_rl.envs.construction.graph import Placement
from save_rl.envs.construction.scene import Scene
from save_rl.envs.construction.simulator import Construction
from save_rl.envs.construction.state import State
from save_rl.envs.construction.tasks import TASKS, Task

__all__ = ["Construction", "State", "Scene", "Placement", "TASKS", "Task"]

silhouette = partial(Construction, "silhouette")
connecting = partial(Construction, "connecting")
covering = partial(Construction, "covering")
covering_hard = partial(Construction, "covering-hard")
marble_run = partial(Construction, "marble-run")
