"""DesktopUse: how busy the desktops of a vector were in a period, and how often they failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from osworld_gym.errors import FailureReason
from osworld_gym.vector import DesktopVector


@dataclass(frozen=True, slots=True)
class DesktopUse:
    """The work of the desktops of a vector in a period.

    Args:
        desktops: their number.
        busy_seconds: seconds of all calls, summed over desktops.
        failures: failed attempts at an episode, by reason; none of them is a reward, and most were tried again.
    """

    desktops: int
    busy_seconds: float
    failures: Mapping[FailureReason, int]

    @classmethod
    def of(cls, vector: DesktopVector) -> DesktopUse:
        """Their work until now."""
        return cls(len(vector), vector.busy_seconds, Counter(vector.failures))

    def since(self, earlier: DesktopUse) -> DesktopUse:
        """Their work between ``earlier`` and this."""
        failures = Counter(self.failures)
        failures.subtract(earlier.failures)
        return DesktopUse(self.desktops, self.busy_seconds - earlier.busy_seconds, failures)

    def metrics(self) -> dict[str, float]:
        """``desktops``, ``busy_seconds`` and ``failed_<reason>`` for every reason."""
        return {"desktops": float(self.desktops), "busy_seconds": self.busy_seconds, **failure_metrics(self.failures)}


def failure_metrics(failures: Mapping[FailureReason, int]) -> dict[str, float]:
    """``failed_<reason>`` for every reason."""
    return {f"failed_{reason.value}": float(failures.get(reason, 0)) for reason in FailureReason}
