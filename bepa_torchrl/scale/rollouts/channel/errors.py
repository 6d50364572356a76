"""The errors of the channel, with one argument each, so that they can be sent between Ray's processes."""

from __future__ import annotations


class ProtocolError(ValueError):
    """The other side cannot be understood or trusted; trying again does not help. The message has the fix."""


class BrokenConnectionError(ConnectionError):
    """The connection has ended, or what came through it was damaged; another connection may work."""


class TrainerGoneError(ConnectionError):
    """No connection to the trainer for too long."""


class RunEndedError(Exception):
    """The training has ended, or another run has replaced it: there is nothing more to play."""
