"""From a point to a pixel: the one rounding that every provider uses."""

from __future__ import annotations

import math


def pixel(point: tuple[float, float]) -> tuple[int, int]:
    """The nearest pixel of a point (x, y); halves are rounded up: (960.6, 0.5) → (961, 1).

    Raises:
        ValueError, OverflowError: a coordinate is not finite.
    """
    return math.floor(float(point[0]) + 0.5), math.floor(float(point[1]) + 0.5)


def pixel_inside(point: tuple[float, float], size: tuple[int, int]) -> tuple[int, int]:
    """The nearest pixel of a screen of ``size`` (width, height); coordinates outside it, and NaN, are its edge."""
    x, y = (max(0.0, min(side - 1.0, float(value))) for value, side in zip(point, size, strict=True))
    return pixel((x, y))
