"""R2D2's value rescaling h and its inverse (Kapturowski et al. 2019, section 2.3).

Plain arithmetic, so one definition serves floats, NumPy, JAX and Numba.
"""

from typing import Any

EPSILON = 1e-3


def rescale(x: Any) -> Any:
    """Return `h(x) = sign(x) (√(|x| + 1) - 1) + ε x`, computed without cancellation."""
    return x / ((abs(x) + 1.0) ** 0.5 + 1.0) + EPSILON * x


def unscale(x: Any) -> Any:
    """Return `h⁻¹(x) = sign(x) (z² - 1)` with `z = 2y / (1 + √(1 + 4εy))`, `y = |x| + 1 + ε`."""
    y = abs(x) + 1.0 + EPSILON
    z = 2.0 * y / (1.0 + (1.0 + 4.0 * EPSILON * y) ** 0.5)
    sign = (x > 0) * 1.0 - (x < 0) * 1.0
    return sign * (z - 1.0) * (z + 1.0)
