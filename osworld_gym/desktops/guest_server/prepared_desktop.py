"""Base of providers that start a new guest on every reset, also in advance, before its seed is known."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from numbers import Integral

from osworld_gym.desktops.guest_server.desktop import GuestDesktop
from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.ports import SERVER
from osworld_gym.guest.process.program_clock import RATE, check_rate

MEMORY = 256  # MiB that a desktop requires without applications
SMALLEST, LARGEST = 64, 8192  # limits of the screen's width and height in pixels


class PreparedDesktop(GuestDesktop):
    """Owns a guest: started by :meth:`reset` or :meth:`prepare`, ended by :meth:`close`.

    A subclass starts and ends guests. :meth:`close` may be called from another thread at any time; a running reset then
    ends what it has started and raises DesktopError (``never_ready``).

    Args:
        width: screen width in pixels.
        height: screen height in pixels.
        apps: commands started on every reset; each one's window is awaited.
        office_clock: how many times as fast as time LibreOffice's clock runs, if libfaketime is installed.

    Raises:
        ValueError: the screen is smaller than 64 or larger than 8192 pixels, ``apps`` is one command instead of a list,
            or the clock's rate is not 1 to 10.
    """

    def __init__(
        self, width: int, height: int, apps: Sequence[str | Sequence[str]], office_clock: float = RATE
    ) -> None:
        if not all(isinstance(side, Integral) and SMALLEST <= side <= LARGEST for side in (width, height)):
            raise ValueError(f"width and height: expected {SMALLEST} to {LARGEST} pixels, got {width!r}×{height!r}")
        if isinstance(apps, str):
            raise ValueError(f"apps: expected a list of commands, got {apps!r}; fix: apps=[{apps!r}]")
        check_rate(office_clock)
        super().__init__(int(width), int(height))
        self._apps, self._office_clock = tuple(apps), office_clock
        self._token, self._prepared = "", False
        self._closings = 0  # number of close() calls, so that a running reset notices one

    # --- implemented by a provider ----------------------------------------------------------------------------------

    @abstractmethod
    def _turn(self) -> AbstractContextManager[None]:
        """Waits until this machine can start one more desktop. Raises DesktopError (``never_ready``)."""

    @abstractmethod
    def _start(self, order: dict[str, object]) -> GuestClient:
        """Starts a guest and returns its client. Raises DesktopError, with nothing left running."""

    @abstractmethod
    def _let_go(self) -> Callable[[], None]:
        """Starts ending the running guest, if any; the returned function waits until it has ended. Neither raises."""

    # --- the contract -----------------------------------------------------------------------------------------------

    def reset(self, seed: int) -> None:
        closings = self._closings
        prepared, self._prepared = self._prepared, False
        if not (prepared and self._reseed(seed)):
            self._begin(seed, closings)
        self._check_open(closings)

    def prepare(self) -> None:
        closings = self._closings
        self._prepared = False
        self._begin(0, closings)
        self._prepared = True
        self._check_open(closings)

    def _begin(self, seed: int, closings: int) -> None:
        """Starts a new guest and opens ``apps``."""
        self._drop_client()
        ended = self._let_go()
        width, height = self.screen_size
        try:
            with self._turn():
                self._check_open(closings)
                self._token = self._new_token()
                order = {"width": width, "height": height, "seed": seed, "token": self._token}
                self._client = self._start(order | {"office_clock": self._office_clock})
                self._unsettled = False
                for command in self._apps:
                    self.launch(command, shell=False, window=True)
        finally:
            ended()

    def _new_token(self) -> str:
        return secrets.token_hex(16)

    def _check_open(self, closings: int) -> None:
        """Raises DesktopError if :meth:`close` was called since ``closings`` was read, leaving nothing running."""
        if self._closings != closings:
            self._end()
            raise DesktopError(FailureReason.never_ready, "the desktop was closed while it was being reset")

    @property
    def server(self) -> tuple[str, str] | None:
        address = self.forwarded(SERVER)
        return None if address is None else (f"http://{address[0]}:{address[1]}", self._token)

    def close(self) -> None:
        self._closings += 1
        self._end()

    def _end(self) -> None:
        self._prepared = False
        ended = self._let_go()  # first, so that a running call on another thread fails now
        self._drop_client()
        ended()

    def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
