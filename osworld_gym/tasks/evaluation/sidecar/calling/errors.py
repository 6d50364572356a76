"""The errors of getters and metrics that have a meaning of their own."""

from __future__ import annotations

#: OSWorld's metrics that import Python files of the desktop, which are the policy's, into their own process on the host
RUNS_RESULTS = frozenset({"check_python_file_by_test_suite"})


class BrokenResult(Exception):
    """What was read from the desktop is unreadable, for the reason in the message. It scores 0."""


class Exhausted(BrokenResult):
    """What was read from the desktop exceeds a limit of the evaluators. It scores 0 and is counted separately."""


class RuleError(ValueError):
    """A task's rules do not fit their metric. The evaluator's fault, never the result's."""
