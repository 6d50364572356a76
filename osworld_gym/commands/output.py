"""How a command ends: its exit status, and a standard output that its reader may close early, as ``head`` does."""

from __future__ import annotations

import contextlib
import os
import select
import sys

FAILED, BAD_INPUT, INFRASTRUCTURE = 1, 2, 3  # exit statuses; 0 means success


def output_closed() -> bool:
    """Flushes standard output and returns whether its reader is gone; further output is then discarded silently."""
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
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)
    os.close(nowhere)
    return True


def printable(text: str) -> str:
    """The text with control characters written as escapes, so that a terminal does not obey them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
