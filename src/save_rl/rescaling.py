"""The rescaling of values of R2D2 (Kapturowski et al. 2019): h and its inverse.

Plain arithmetic, so that one definition serves floats, NumPy, JAX and Numba.
"""

from typing import Any

EPSILON = 1e-3


def rescale(x: Any) -> Any:
    """`h(x) = sign(x) (√(|x| + 1) - 1) + ε x`, written without the difference of near numbers."""
    return x / ((abs(x) + 1.0) ** 0.5 + 1.0) + EPSILON * x


def unscale(x: Any) -> Any:
    """`h⁻¹(x)`: with `y = |x| + 1 + ε` and `z = 2y / (1 + √(1 + 4εy))`, `sign(x) (z² - 1)`."""
    y = abs(x) + 1.0 + EPSILON
    z = 2.0 * y / (1.0 + (1.0 + 4.0 * EPSILON * y) ** 0.5)
    sign = (x > 0) * 1.0 - (x < 0) * 1.0
    return sign * (z - 1.0) * (z + 1.0)
