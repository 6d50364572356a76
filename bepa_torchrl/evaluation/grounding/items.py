"""Items of grounding suites: an image, an instruction, and the region in which a click is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from osworld_gym.types import Point

Groups = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels of the image, borders included."""

    left: float
    top: float
    right: float
    bottom: float

    def contains(self, point: Point) -> bool:
        x, y = point
        return self.left <= x <= self.right and self.top <= y <= self.bottom


@dataclass(frozen=True, slots=True)
class Polygon:
    """A polygon in pixels of the image, by its corners; borders included."""

    corners: tuple[Point, ...]

    def contains(self, point: Point) -> bool:
        x, y = point
        inside = False
        for (x1, y1), (x2, y2) in zip(self.corners, (*self.corners[1:], self.corners[0]), strict=True):
            if _on_segment(point, (x1, y1), (x2, y2)):
                return True
            if (y1 > y) != (y2 > y) and x < (x2 - x1) * (y - y1) / (y2 - y1) + x1:
                inside = not inside
        return inside


def _on_segment(point: Point, one: Point, other: Point) -> bool:
    (x, y), (x1, y1), (x2, y2) = point, one, other
    cross = (x - x1) * (y2 - y1) - (y - y1) * (x2 - x1)
    return cross == 0 and min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2)


@dataclass(frozen=True, slots=True)
class Item:
    """One question of a grounding suite.

    Args:
        id: unique in the suite.
        image: file of the screenshot.
        instruction: what is to be clicked.
        region: where the click must be; None: nothing in the image fits, and the right answer is a refusal.
        groups: name of a division → the item's part of it, such as ``platform`` → ``web``, or its several parts; for
            the tables.
    """

    id: str
    image: Path
    instruction: str
    region: Box | Polygon | None
    groups: Groups = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """One question of MMBench-GUI L1: options, of which one letter is right.

    Args:
        id: unique in the suite.
        image: file of the screenshot.
        question: its text.
        options: letter → text, in order.
        answer: the right letter.
        groups: as of :class:`Item`; ``difficulty`` and ``platform``.
    """

    id: str
    image: Path
    question: str
    options: Mapping[str, str]
    answer: str
    groups: Groups = field(default_factory=dict)


def polygon_of(numbers: Sequence[float]) -> Polygon:
    """A polygon from a flat list x, y, x, y, …. Raises ValueError for less than three corners, or an odd number."""
    if len(numbers) < 6 or len(numbers) % 2:
        raise ValueError(f"a polygon has at least three corners x, y; got {len(numbers)} numbers")
    return Polygon(tuple(zip(map(float, numbers[::2]), map(float, numbers[1::2]), strict=True)))
