"""Bounds of numbers in the settings, as annotations of their types. Imports neither torch nor Hydra."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Lower bound of a number in the settings, inclusive."""

    minimum: float

    def __contains__(self, value: float) -> bool:
        return value >= self.minimum

    def __str__(self) -> str:
        return f"of at least {self.minimum:g}"


@dataclass(frozen=True, slots=True)
class Above:
    """Lower bound of a number in the settings, exclusive."""

    bound: float

    def __contains__(self, value: float) -> bool:
        return value > self.bound

    def __str__(self) -> str:
        return f"above {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Below:
    """Bounds of a number in the settings: at least 0, and below this."""

    bound: float

    def __contains__(self, value: float) -> bool:
        return 0 <= value < self.bound

    def __str__(self) -> str:
        return f"of at least 0 and below {self.bound:g}"


Positive = Annotated[int, AtLeast(1)]
Count = Annotated[int, AtLeast(0)]
PositiveFloat = Annotated[float, Above(0)]
NonNegativeFloat = Annotated[float, AtLeast(0)]
Decay = Annotated[float, Below(1)]
