"""A local desktop whose guest server is used by other programs: fixed port and token, also after a reset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from osworld_gym.desktops.local.desktop import LocalDesktop

PASSWORD_FILE = ".config/osworld-gym-password"  # read by the desktop's sudo (guest/shims/bin/sudo)


class ServedDesktop(LocalDesktop):
    """The desktop of ``osworld-gym serve``.

    Args:
        width: screen width in pixels.
        height: screen height in pixels.
        port: port of the guest server on 127.0.0.1; 0: a free one, a different one after each reset.
        token: required bearer token of every request; empty: none is required, as on OSWorld's machine.
        client_password: the password that ``sudo`` accepts inside.
        options: further options of :class:`LocalDesktop`.
    """

    def __init__(
        self,
        width: int,
        height: int,
        *,
        port: int,
        token: str,
        client_password: str = LocalDesktop.client_password,
        **options: Any,
    ) -> None:
        super().__init__(width, height, **options)
        self.client_password = client_password
        self._setting = replace(self._setting, port=port)
        self._fixed_token = token

    def reset(self, seed: int) -> None:
        super().reset(seed)
        if self.client_password != LocalDesktop.client_password:
            self.write_file(PASSWORD_FILE, self.client_password.encode())

    def _new_token(self) -> str:
        return self._fixed_token

    @property
    def running(self) -> bool:
        """Whether the desktop is running."""
        process = self._guest_process
        return process is not None and process.running
