"""The Desktop contract: the class that a provider implements. ``checks.py`` tests it for any provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from osworld_gym.types import Action, CommandResult, Screenshot


class Desktop(ABC):
    """One desktop that a policy can act on. Used by one thread at a time.

    Every method returns within its deadline (seconds) and raises :class:`osworld_gym.DesktopError` if the desktop
    exited, hung or never became ready. After a DesktopError only :meth:`reset` and :meth:`close` may be called.
    Paths are paths inside the desktop, relative to the user's home; coordinates are screen pixels, with (0, 0) at the
    top left. :meth:`close` may be called from another thread during a call, which then fails.
    """

    #: whether :meth:`run` and :meth:`launch` work (the simulated desktop has no shell)
    has_shell: bool = True
    #: whether calls block on I/O, so that parallel desktops require threads; False: in-process and fast
    blocking: bool = True
    #: names of ``uitars.keys.NAMED_KEYS`` for which this desktop has no use: they do nothing
    unused_keys: frozenset[str] = frozenset()
    #: password of the account inside, for commands with ``sudo``: OSWorld's
    client_password: str = "password"
    #: number of actions cut off because their step took too long, over the object's lifetime
    cut_actions: int = 0
    #: seconds that :meth:`reset` may take by the provider's own options, where that may be longer than other calls
    reset_limit: float = 0.0

    @property
    @abstractmethod
    def screen_size(self) -> tuple[int, int]:
        """(width, height) in pixels; constant over the object's lifetime."""

    @abstractmethod
    def reset(self, seed: int) -> None:
        """Restores the initial state: nothing of an earlier episode remains. The same seed yields the same screen."""

    def prepare(self) -> None:  # noqa: B027  optional: does nothing by default
        """Does the part of the next :meth:`reset` that requires no seed in advance, so that the reset is fast.

        Raises DesktopError as :meth:`reset` does. Called by the warm pool, on a separate thread.
        """

    @abstractmethod
    def screenshot(self) -> Screenshot:
        """The current frame, of :attr:`screen_size`."""

    @abstractmethod
    def perform(self, actions: Sequence[Action]) -> None:
        """Turns actions (screen pixels) into input events and returns when the screen is still, or at the deadline.

        ``wait`` waits for the screen; ``finished`` and ``call_user`` do nothing here. Any string and any finite
        coordinate is accepted: points outside the screen are moved to its edge, unknown keys do nothing. Actions that
        take too long (a text of 100,000 characters) are cut off and counted in :attr:`cut_actions`: the policy caused
        that, so the episode goes on and is scored.
        """

    def wait_still(self, deadline: float) -> None:  # noqa: B027  optional: nothing moves on a desktop without programs
        """Waits until the screen has been still for a while, at most ``deadline`` seconds."""

    @abstractmethod
    def setup(self, step: Mapping[str, Any]) -> None:
        """Runs one OSWorld setup step ``{"type": ..., "parameters": {...}}``.

        Raises:
            TaskError: the provider does not know the step, or its parameters are wrong.
            DesktopError: ``setup_failed``: the step itself failed.
        """

    @abstractmethod
    def read_file(self, path: str) -> bytes:
        """The file's bytes. Raises FileNotFoundError if it does not exist."""

    @abstractmethod
    def write_file(self, path: str, data: bytes) -> None:
        """Writes or replaces the file and creates its parent folders."""

    @abstractmethod
    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        """Runs a command to its end. A non-zero status is a result, not an error; ``timeout`` is in seconds.

        Raises:
            DesktopError: ``hung``: the command ran longer than ``timeout``.
            NotImplementedError: ``has_shell`` is False.
        """

    @property
    def server(self) -> tuple[str, str] | None:
        """(URL, bearer token or "") of this desktop's OSWorld guest server; None if it has none."""
        return None

    def forwarded(self, port: int) -> tuple[str, int] | None:
        """(host, port) on this machine that is forwarded to a TCP port of the desktop: 9222 (Chrome) or 8080 (VLC).

        None if the provider does not forward it.
        """
        del port
        return None

    @abstractmethod
    def close(self) -> None:
        """Ends everything that this desktop started. Never raises; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
