"""Nodes: which have desktops, and which are left out since their workers fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

_log = logging.getLogger(__name__)
MAX_FAILURES = 3  #: workers of a node in a row that could not start, or whose desktops all failed
FORGIVE_SECONDS = 3600.0


@dataclass(slots=True)
class _Failures:
    count: int
    last: float  #: monotonic seconds
    problem: str


class NodeFailures:
    """Counts the failures of nodes, in a row.

    A node is left out after :data:`MAX_FAILURES`, and tried again after a while: what was wrong with it may have been
    put right. A success ends the count, and so does the same time without a failure.

    Args:
        forgive_after: seconds after the last failure at which it is forgotten.
        clock: monotonic seconds.
    """

    def __init__(self, *, forgive_after: float = FORGIVE_SECONDS, clock: Callable[[], float] = monotonic) -> None:
        self._forgive_after, self._clock = forgive_after, clock
        self._nodes: dict[str, _Failures] = {}

    def failed(self, node: str, problem: str) -> None:
        """A worker of this node could not start, or its desktops failed."""
        self._forgive()
        failures = self._nodes.setdefault(node, _Failures(0, 0.0, problem))
        failures.count, failures.last, failures.problem = failures.count + 1, self._clock(), problem
        if failures.count == MAX_FAILURES:
            _log.error(
                "node %s is left out for %.0f minutes: %d workers in a row could not start, or had no desktop that "
                "works; the last one %s",
                node,
                self._forgive_after / 60,
                MAX_FAILURES,
                problem,
            )

    def succeeded(self, node: str) -> None:
        """A worker of this node has played an episode."""
        self._nodes.pop(node, None)

    def left_out(self) -> dict[str, str]:
        """Node → its last problem, of the nodes that get no worker now."""
        self._forgive()
        return {node: failures.problem for node, failures in self._nodes.items() if failures.count >= MAX_FAILURES}

    def _forgive(self) -> None:
        now = self._clock()
        for node in [node for node, failures in self._nodes.items() if now - failures.last >= self._forgive_after]:
            del self._nodes[node]
