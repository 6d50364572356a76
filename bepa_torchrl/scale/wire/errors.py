"""The errors of the wire; those with one argument can be sent between Ray's processes."""

from __future__ import annotations


class ProtocolError(ValueError):
    """The other side cannot be understood or trusted; trying again does not help. The message has the fix."""


class BrokenConnectionError(ConnectionError):
    """No answer, or a damaged one; another attempt may work."""


class TrainerGoneError(ConnectionError):
    """No connection to the trainer for too long."""


class RunEndedError(Exception):
    """The training has ended, or another run has replaced it: there is nothing more to play."""


class Refusal(Exception):
    """A server refuses a request.

    Args:
        kind: name of the error, from which the client makes an exception of its own.
        message: one line.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
