"""The calling convention of metrics and getters, and the limits on what they read.

Standard library and Pillow only, and no import of this package: the sidecar process of OSWorld's evaluators imports
this folder too.
"""

from .call import Rules, as_rules, call_metric, get_result
from .files import check_file
from .limits import (
    RUNS_RESULTS,
    BrokenResult,
    Exhausted,
    Limits,
    RuleError,
    Unsupported,
    address_space,
    lift_memory_limit,
    limit_process,
)

__all__ = [
    "RUNS_RESULTS",
    "BrokenResult",
    "Exhausted",
    "Limits",
    "RuleError",
    "Rules",
    "Unsupported",
    "address_space",
    "as_rules",
    "call_metric",
    "check_file",
    "get_result",
    "lift_memory_limit",
    "limit_process",
]
