"""Bounds of numbers in the settings, as annotations of their types. Imports neither torch nor Hydra."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Lower bound of a number in the settings, inclusive."""

    minimum: float


@dataclass(frozen=True, slots=True)
class Above:
    """Lower bound of a number in the settings, exclusive."""

    bound: float


Positive = Annotated[int, AtLeast(1)]
Count = Annotated[int, AtLeast(0)]
PositiveFloat = Annotated[float, Above(0)]
NonNegativeFloat = Annotated[float, AtLeast(0)]
