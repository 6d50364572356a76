"""Conversion between model pixels and screen pixels, with Qwen's smart_resize.

Qwen2.5-VL's coordinates are pixels of the image after its resizing, so they depend on ``factor``, ``min_pixels`` and
``max_pixels``: the image processor, an inference server and this module must use the same values. Qwen2-VL's (UI-TARS
1.0) and Qwen3-VL's are thousandths of the image's width and height.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from osworld_gym.types import Action, Point

MAX_RATIO = 200  #: maximum aspect ratio, as in Qwen's processor
#: families whose points are fractions of the image, and the denominator (Qwen2-VL's report, arXiv:2409.12191;
#: Qwen3-VL's 2d_grounding cookbook)
RELATIVE_COORDINATES = {"qwen2_vl": 1000, "qwen3_vl": 1000}


@lru_cache(maxsize=256)
def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Size (height, width) in pixels of the image that the model sees: multiples of ``factor``, area within the limits.

    The rule of Qwen2-VL's image processor: round each side to the nearest multiple; if the area is then too large (too
    small), scale both sides by the square root of the ratio and round down (up).

    Raises:
        ValueError: a side is below 1 pixel, or the aspect ratio is above ``MAX_RATIO``.
    """
    if min(height, width) < 1:
        raise ValueError(f"smart_resize requires sides of at least 1 pixel, got {width}x{height}")
    if max(height, width) > MAX_RATIO * min(height, width):
        raise ValueError(f"smart_resize requires an aspect ratio of at most {MAX_RATIO}, got {width}x{height}")
    h = max(factor, round(height / factor) * factor)
    w = max(factor, round(width / factor) * factor)
    if h * w > max_pixels:
        scale = math.sqrt(height * width / max_pixels)
        return (
            max(factor, math.floor(height / scale / factor) * factor),
            max(factor, math.floor(width / scale / factor) * factor),
        )
    if h * w < min_pixels:
        scale = math.sqrt(min_pixels / (height * width))
        return math.ceil(height * scale / factor) * factor, math.ceil(width * scale / factor) * factor
    return h, w


@dataclass(frozen=True, slots=True)
class ImageScaling:
    """The image processor's resize parameters, and the conversion of points. Sizes are (width, height), points (x, y).

    The defaults are those of OSWorld's UI-TARS-1.5 adapter. Points are not clamped to the screen; a desktop does that.

    Args:
        factor: the sides of a resized image are multiples of it.
        min_pixels: minimum area of a resized image.
        max_pixels: maximum area of a resized image.
        relative: None: a model's point is in pixels of the resized image; otherwise in fractions 1 / ``relative`` of
            its width and height (Qwen2-VL and Qwen3-VL: 1000).

    Raises:
        ValueError: ``factor`` or ``relative`` is below 1, or not 0 <= ``min_pixels`` <= ``max_pixels``.
    """

    factor: int = 28
    min_pixels: int = 100 * 28 * 28
    max_pixels: int = 16384 * 28 * 28
    relative: int | None = None

    def __post_init__(self) -> None:
        if self.relative is not None and self.relative < 1:
            raise ValueError(f"ImageScaling requires relative >= 1 or None, got {self.relative}")
        if self.factor < 1 or not 0 <= self.min_pixels <= self.max_pixels:
            raise ValueError(f"ImageScaling requires factor >= 1 and 0 <= min_pixels <= max_pixels, got {self}")

    def model_size(self, screen_size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of the image that the model sees of a screen."""
        width, height = screen_size
        h, w = smart_resize(height, width, self.factor, self.min_pixels, self.max_pixels)
        return w, h

    def _extent(self, screen_size: tuple[int, int]) -> tuple[int, int]:
        """Coordinates of the lower right corner, as the model writes them."""
        return self.model_size(screen_size) if self.relative is None else (self.relative, self.relative)

    def to_screen(self, point: Point, screen_size: tuple[int, int]) -> Point:
        """Converts a point from the model's coordinates to screen pixels."""
        w, h = self._extent(screen_size)
        return point[0] * screen_size[0] / w, point[1] * screen_size[1] / h

    def to_model(self, point: Point, screen_size: tuple[int, int]) -> Point:
        """Converts a point from screen pixels to the model's coordinates."""
        w, h = self._extent(screen_size)
        return point[0] * w / screen_size[0], point[1] * h / screen_size[1]

    def action_to_screen(self, action: Action, screen_size: tuple[int, int]) -> Action:
        """The action with its points in screen pixels."""
        if action.start is None and action.end is None:
            return action
        start = None if action.start is None else self.to_screen(action.start, screen_size)
        end = None if action.end is None else self.to_screen(action.end, screen_size)
        return replace(action, start=start, end=end)

    def action_to_model(self, action: Action, screen_size: tuple[int, int]) -> Action:
        """The action with its points in the model's coordinates."""
        if action.start is None and action.end is None:
            return action
        start = None if action.start is None else self.to_model(action.start, screen_size)
        end = None if action.end is None else self.to_model(action.end, screen_size)
        return replace(action, start=start, end=end)
