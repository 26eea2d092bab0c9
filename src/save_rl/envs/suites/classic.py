"""Pictures of classic control: cart and pole, the car in the valley, the two rods of Acrobot."""

from typing import Any

import numpy as np
from PIL import Image, ImageDraw

SIZE = 320
_GROUND, _BODY, _ROD, _GOAL = (150, 150, 160), (86, 180, 233), (230, 159, 0), (0, 158, 115)
_BACKGROUND = (24, 24, 32)


def draw_classic(name: str, state: Any) -> np.ndarray | None:
    """Draw a state of gymnax's classic control, `[height, width, 3]`; None for anything else."""
    draw = {"CartPole-v1": _cart_pole, "MountainCar-v0": _mountain_car, "Acrobot-v1": _acrobot}
    if name not in draw:
        return None
    picture = Image.new("RGB", (SIZE, SIZE * 3 // 4), _BACKGROUND)
    draw[name](ImageDraw.Draw(picture), state)
    return np.array(picture)


def _cart_pole(brush: Any, state: Any) -> None:
    floor, x = 180, SIZE / 2 + float(state.x) / 2.4 * (SIZE / 2 - 40)
    angle = float(state.theta)  # 0 is upright, positive leans to the right
    brush.line((0, floor, SIZE, floor), _GROUND, 2)
    brush.rectangle((x - 25, floor - 20, x + 25, floor), _BODY)
    brush.line((x, floor - 20, x + 110 * np.sin(angle), floor - 20 - 110 * np.cos(angle)), _ROD, 6)


def _mountain_car(brush: Any, state: Any) -> None:
    def place(position: Any) -> tuple[Any, Any]:
        """The valley is sin(3x), from -1.2 to 0.6."""
        return (position + 1.2) / 1.8 * SIZE, 150 - 80 * np.sin(3 * position)

    valley = np.linspace(-1.2, 0.6, 60)
    brush.line([place(position) for position in valley], _GROUND, 3)
    x, y = place(0.5)
    brush.line((x, y, x, y - 40), _GOAL, 4)
    x, y = place(float(state.position))
    brush.ellipse((x - 9, y - 20, x + 9, y - 2), _BODY)


def _acrobot(brush: Any, state: Any) -> None:
    """The tip wins above the line, a rod's length over the joint; angles are 0 downwards."""
    length, x, y = 55, SIZE / 2, 125
    brush.line((0, y - length, SIZE, y - length), _GOAL, 2)
    angle = 0.0
    for turn, colour in ((state.joint_angle1, _BODY), (state.joint_angle2, _ROD)):
        angle += float(turn)
        end = x + length * np.sin(angle), y + length * np.cos(angle)
        brush.line((x, y, *end), colour, 7)
        brush.ellipse((x - 5, y - 5, x + 5, y + 5), _GROUND)
        x, y = end
