"""The scale of the coordinates in an expert's text, checked against the executed code, which has screen pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from osworld_gym.types import Point
from osworld_gym.uitars.coords import ImageScaling

MAX_PIXELS = 3.0  #: median distance above which a scale does not fit

Size = tuple[int, int]
#: name → from a point of the text and the screen's (width, height) to screen pixels
SCALES: dict[str, Callable[[Point, Size], Point]] = {
    "screen pixels": lambda point, _: point,
    "resized pixels": ImageScaling().to_screen,  # 1932 x 1092 for a screen of 1920 x 1080
    "thousandths": ImageScaling(relative=1000).to_screen,
    "0-999": ImageScaling(relative=999).to_screen,
    "fractions": ImageScaling(relative=1).to_screen,
}


@dataclass(frozen=True, slots=True)
class Said:
    """The points of one step: as its text says them, as they were executed (screen pixels), and the screen's size."""

    text: tuple[Point, ...]
    executed: tuple[Point, ...]
    size: Size


def distances(steps: Sequence[Said], scale: str) -> list[float]:
    """The distance in pixels of each point of the texts from the executed one.

    Points are compared in order; where a step has another number of them, each with the nearest executed one.
    """
    gaps = []
    for step in steps:
        points = [SCALES[scale](point, step.size) for point in step.text]
        if len(points) == len(step.executed):
            gaps += [math.dist(*pair) for pair in zip(points, step.executed, strict=True)]
        elif step.executed:
            gaps += [min(math.dist(point, other) for other in step.executed) for point in points]
    return gaps


def scale_problem(steps: Sequence[Said], allowed: Sequence[str]) -> str:
    """Why the texts' coordinates are in none of the allowed scales; empty if they are, or if there are none."""
    by_scale = {scale: median(gaps) for scale in SCALES if (gaps := distances(steps, scale))}
    known = {scale: by_scale[scale] for scale in allowed if scale in by_scale}
    if not known or min(known.values()) <= MAX_PIXELS:
        return ""
    own, best = next(iter(known)), min(by_scale, key=by_scale.__getitem__)
    fits = f"{best} would fit: name the family that has it" if by_scale[best] <= MAX_PIXELS else "no known scale fits"
    return (
        f"read as {own}, the coordinates of its texts are {known[own]:.0f} pixels from the executed ones (median of "
        f"{len(distances(steps, own))}, at most {MAX_PIXELS:.0f}); {fits}"
    )
