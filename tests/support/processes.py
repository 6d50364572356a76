"""The processes below another one. They start and end while a test looks: one that ends meanwhile is left out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psutil

T = TypeVar("T")


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended, also not as a zombie."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def described(pid: int, describe: Callable[[psutil.Process], T], *, recursive: bool = True) -> dict[psutil.Process, T]:
    """What is asked of every descendant, or of every child, of a process."""
    found = {}
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=recursive):
            with suppress(psutil.NoSuchProcess):  # a zombie has neither command line nor environment
                found[process] = describe(process)
    return found


def names(pid: int) -> dict[psutil.Process, str]:
    """The descendants of a process and their names."""
    return described(pid, psutil.Process.name)


def command_lines(pid: int) -> dict[psutil.Process, str]:
    """The descendants of a process and their command lines."""
    return described(pid, lambda process: " ".join(process.cmdline()))
