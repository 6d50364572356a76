"""Limits of one evaluation: what a file may unpack to, what the process that reads it may use; and their errors."""

from __future__ import annotations

import resource
from dataclasses import dataclass, fields
from pathlib import Path

#: OSWorld's metrics that import Python files of the desktop, which are the policy's, into their own process on the host
RUNS_RESULTS = frozenset({"check_python_file_by_test_suite"})


class BrokenResult(Exception):
    """A result is unreadable, for the reason in the message. It scores 0."""


class Exhausted(BrokenResult):
    """A result exceeds a limit of the evaluators. It scores 0 and is counted separately."""


class Unsupported(AttributeError):
    """OSWorld's code uses an attribute that its evaluators' process lacks. Never the result's fault."""


class RuleError(ValueError):
    """A task's rules do not fit their metric. The evaluator's fault, never the result's."""


FILE_SIZE = 256 << 20  # bytes of a file that the process writes: more than it reads from a desktop


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that one metric with its getters may use. A result that needs more scores 0: the policy made it.

    Args:
        cpu: seconds of CPU time; the system rounds it up to a second.
        memory: bytes of address space beyond what the process has after its imports.
        unpacked: bytes of all files of an archive or document, nested ones included.
        members: number of these files.
        nesting: how many archives may be inside each other.
        pixels: width times height of an image.

    Raises:
        ValueError: a limit is not positive.
    """

    cpu: float = 60.0
    memory: int = 2 << 30
    unpacked: int = 256 << 20
    members: int = 10_000
    nesting: int = 3
    pixels: int = 1 << 26

    def __post_init__(self) -> None:
        for limit in fields(self):
            if getattr(self, limit.name) <= 0:
                raise ValueError(f"Limits.{limit.name}: expected more than 0, got {getattr(self, limit.name)}")


def limit_process(limits: Limits, base: int) -> None:
    """Sets this process's soft limits of CPU time, counted from now, and of address space, ``base`` bytes included.

    At its limit of memory an allocation raises MemoryError; at its limit of CPU time the process ends by SIGXCPU.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + limits.cpu) + 1
    _soft(resource.RLIMIT_CPU, seconds)
    _soft(resource.RLIMIT_AS, base + limits.memory)
    _soft(resource.RLIMIT_FSIZE, FILE_SIZE)
    _soft(resource.RLIMIT_CORE, 0)


def lift_memory_limit() -> None:
    """Removes the soft limit of address space, so that a failure can be reported."""
    resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)


def address_space() -> int:
    """Bytes of this process's address space; 0 where the system does not state it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _soft(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
