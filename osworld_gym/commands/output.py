"""How a command ends: its exit status, and a standard output that its reader may close early, as ``head`` does."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import select
import sys
from collections.abc import Callable

FAILED, BAD_INPUT, INFRASTRUCTURE, INTERRUPTED = 1, 2, 3, 130  # exit statuses; 0 means success

_ESCAPES = "osworld_gym.escapes"


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Characters that an encoding lacks as JSON writes them, so that JSON stays readable: a handler of the codec."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def finished(program: Callable[[], int], name: str) -> int:
    """Runs a program, writes what is left of its output, and returns its exit status.

    Ctrl-C is one line and 130. An output that cannot be written, as on a full disk, is one line and 3. What the
    output's encoding lacks (a locale without UTF-8) is written as JSON's escapes.

    Args:
        program: returns its exit status; expected errors are its own to handle.
        name: the beginning of the line on standard error.
    """
    if sys.stdout is None:  # closed by the caller: ``osworld-gym doctor >&-``
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 used until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error(_ESCAPES, _escaped)
        with contextlib.suppress(OSError):  # it flushes, too
            sys.stdout.reconfigure(errors=_ESCAPES)
    try:
        status = program()
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        status = INTERRUPTED
    finally:
        problem = _refused()
    if problem is None or status:
        return status
    print(f"{name}: standard output: {problem}", file=sys.stderr)
    return INFRASTRUCTURE


def _refused() -> OSError | None:
    """Flushes standard output; returns the error if it takes nothing, after which further output is discarded."""
    try:
        output_closed()
    except OSError as error:
        _discard(sys.stdout.fileno())  # or the interpreter tries to write it again
        return error
    return None


def output_closed() -> bool:
    """Flushes standard output and returns whether its reader is gone; further output is then discarded silently.

    Raises:
        OSError: the output cannot be written for another reason.
    """
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file: replaced by a buffer, or closed
        return False
    poll = select.poll()
    poll.register(output, 0)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    _discard(output)
    return True


def _discard(output: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)
    os.close(nowhere)


def printable(text: str) -> str:
    """The text with control characters written as escapes, so that a terminal does not obey them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
