"""Calls getters and metrics, and classifies their exceptions: a broken result (score 0) or a broken evaluator.

What the policy breaks scores 0: a file that does not parse as its format is not a solved task. Our own failures are not
scored: missing libraries, a full disk, a gold file that does not load, rules that do not fit their metric.

The classes of exceptions and the order of the checks are the same for our metrics and for OSWorld's.
"""

from __future__ import annotations

import errno
import inspect
import re
import sqlite3
import subprocess
import traceback
from collections.abc import Callable, Mapping
from math import isnan
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from .limits import BrokenResult, RuleError, Unsupported

Value = TypeVar("Value")

#: exceptions of parsers on malformed content; ElementTree's ParseError is a SyntaxError
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, SyntaxError, RecursionError, sqlite3.Error)
#: errors of this machine or its network, not of the content
MACHINE = (ImportError, MemoryError, TimeoutError, ConnectionError, subprocess.SubprocessError)
MACHINE_ERRNO = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.EROFS}
)
ROUNDING = 1e-6  # of a metric's arithmetic
DESCRIBED = 500  # characters of an error's text, which may quote the result
OFFICIAL = "desktop_env"  #: the package of OSWorld's evaluators
#: packages whose exceptions concern the network or a browser
NETWORK = frozenset({"requests", "urllib3", "playwright", "http"})


class Rules(dict[str, Any]):
    """The rules of a task. Reading a missing key raises :class:`RuleError`."""

    def __missing__(self, key: str) -> NoReturn:
        raise RuleError(f"the task's rules lack the key {key!r}; they have: {', '.join(map(str, self)) or 'none'}")


def as_rules(value: Any) -> Any:
    """A copy of ``value`` with every dictionary in it as :class:`Rules`."""
    if isinstance(value, Mapping):
        return Rules({key: as_rules(member) for key, member in value.items()})
    return [as_rules(member) for member in value] if isinstance(value, list) else value


def get_result(getter: Callable[[], Value]) -> Value:
    """The value of a getter that reads the desktop.

    Raises:
        BrokenResult: what it read exists but is malformed.
        Exception: any other exception of the getter.
    """
    try:
        return getter()
    except UNREADABLE as error:
        if _is_machines(error) or isinstance(error, RuleError | re.error | Unsupported):
            raise
        raise BrokenResult(_describe(error)) from error


def call_metric(
    metric: Callable[..., Any], result: Any, expected: tuple[Any, ...], options: Mapping[str, Any], *, gold: bool
) -> float:
    """The score of ``metric(result, *expected, **options)``, in [0, 1]; a negative one is 0.

    Args:
        result: what was read from the desktop.
        expected: the expected value as a tuple of 0 or 1 items.
        gold: whether ``expected`` is the content of gold files. If the metric raises, it is then also called with the
            gold as the result: if that raises too, the evaluator is at fault.

    Raises:
        BrokenResult: the metric raised, and the result is at fault, or it returned NaN or None.
        RuleError: the metric returned more than 1.
        Exception: the metric raised, and the evaluator, its rules, its gold files or this machine are at fault.
    """
    options = as_rules(options)
    inspect.signature(metric).bind(result, *expected, **options)
    try:
        value = metric(result, *expected, **options)
        if value is None:
            raise BrokenResult("the metric returned None, which is no score")
        score = float(value)
    except Exception as error:
        if _is_machines(error) or _is_misspelled(error) or isinstance(error, RuleError | re.error):
            raise
        if gold and not _loads(metric, result, expected[0], options):
            raise RuleError(f"the gold file does not load: {_describe(error)}") from error
        if isinstance(error, BrokenResult):
            raise
        raise BrokenResult(_describe(error)) from error
    if isnan(score):
        raise BrokenResult("the metric returned nan, which is no score")
    if score > 1.0 + ROUNDING:  # of another scale, on which a success would be no score of 1
        raise RuleError(f"the metric returned {score:g}; expected a score in 0..1, where 1 is a success")
    return min(max(score, 0.0), 1.0)


def _loads(metric: Callable[..., Any], result: Any, gold: Any, options: Mapping[str, Any]) -> bool:
    """Whether the metric accepts the gold as the result; True if they differ in form (one file, a list of files)."""
    if isinstance(result, list) != isinstance(gold, list):
        return True
    try:
        metric(gold, gold, **options)
    except Exception:  # noqa: BLE001  any exception means that the gold does not load
        return False
    return True


def _is_misspelled(error: BaseException) -> bool:
    """Whether code names what does not exist: a bug of the evaluator, unless it evaluates text of the result.

    In OSWorld's code it is not: there only an odd result can still lead to such a place.
    """
    if type(error) is not NameError:
        return False
    file = traceback.extract_tb(error.__traceback__)[-1].filename
    return not file.startswith("<") and OFFICIAL not in Path(file).parts


def _is_machines(error: BaseException) -> bool:
    if isinstance(error, MACHINE) or type(error).__module__.partition(".")[0] in NETWORK:
        return True
    if not isinstance(error, OSError):
        return False
    if isinstance(error, FileNotFoundError):  # raised by subprocess: a program is not installed
        return any(frame.filename.endswith("subprocess.py") for frame in traceback.extract_tb(error.__traceback__))
    return error.errno in MACHINE_ERRNO


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:DESCRIBED]}"
