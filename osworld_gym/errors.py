"""The package's errors: a desktop failed, a task is wrong, a response cannot be parsed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum


class FailureReason(StrEnum):
    """How the infrastructure failed. An episode with a failure is masked; it is never scored."""

    never_ready = "never_ready"  #: the desktop did not answer before its deadline
    died = "died"  #: the desktop or its guest server has exited
    hung = "hung"  #: a call exceeded its deadline
    bad_screenshot = "bad_screenshot"  #: empty, truncated or of the wrong size
    setup_failed = "setup_failed"  #: a setup step of the task raised or timed out
    evaluator_failed = "evaluator_failed"  #: a getter or metric raised or timed out


class OSWorldGymError(Exception):
    """Base class of the package's errors."""


class DesktopError(OSWorldGymError):
    """A desktop failed; ``reason`` is the kind of failure. It must be reset or replaced before it is used again."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(f"{reason.value}: {message}")
        self.reason, self.message = reason, message


class ReplyTooLarge(DesktopError):
    """A file or a command's output on the desktop is larger than what is read from one. The desktop goes on."""


class StepRefused(DesktopError):
    """The desktop answered that the file of a setup step is missing or cannot be written. The desktop goes on."""


class TaskError(OSWorldGymError):
    """A task file, task id, suite or split is wrong. The message names the file and key, and how to fix it."""


class ExtensionError(OSWorldGymError, ValueError):
    """A user's module or entry point cannot be used. The message names the module or the distribution."""


class ParseError(OSWorldGymError):
    """A model's response cannot be parsed into actions. ``reason`` is a short, stable text, ``text`` the response."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text[:200]!r}")
        self.reason = reason
        self.text = text


_HINTS = 3  #: names in a hint, at most


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint `` (did you mean 'train.iterations'?)`` for an error message; empty if no known name is similar.

    Names with this last part come first (``lr``: ``optimizer.lr`` or ``sft.lr``), then those that begin with the name
    (``a100``: ``a100_40`` or ``a100_80``), then the most similar one.

    Args:
        name: the name that was given.
        known: the accepted names. Dotted names are also compared by their last part alone.
    """
    names = list(known)
    last_part = name.rsplit(".", 1)[-1]
    by_last_part: dict[str, list[str]] = {}
    for each in names:
        by_last_part.setdefault(each.rsplit(".", 1)[-1], []).append(each)
    close = by_last_part.get(name) or [each for each in names if name and each.startswith(name)]
    close = close or difflib.get_close_matches(name, names, n=1)
    if not close and (parts := difflib.get_close_matches(last_part, by_last_part, n=1)):
        close = by_last_part[parts[0]]
    hint = " or ".join(map(repr, close[:_HINTS]))
    return f" (did you mean {hint}?)" if hint else ""
