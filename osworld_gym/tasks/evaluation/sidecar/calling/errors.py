"""The errors of getters and metrics that have a meaning of their own."""

from __future__ import annotations


class BrokenResult(Exception):
    """What was read from the desktop is unreadable, for the reason in the message. It scores 0."""


class Exhausted(BrokenResult):
    """What was read from the desktop exceeds a limit of the evaluators. It scores 0 and is counted separately."""


class RuleError(ValueError):
    """A task's rules do not fit their metric. The evaluator's fault, never the result's."""
