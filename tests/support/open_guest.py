"""A guest without a token, as OSWorld's own client needs it: the address of its server and of its other ports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from osworld_gym.desktops.local.guest_process import GuestProcess, Setting


@dataclass(frozen=True)
class OpenGuest:
    port: int
    chrome: int
    vlc: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def open_guest(
    setting: Setting | None = None, seed: int = 0, width: int = 1280, height: int = 720
) -> Iterator[OpenGuest]:
    process = GuestProcess(setting or Setting())
    try:
        process.start({"width": width, "height": height, "seed": seed, "token": ""})
        yield OpenGuest(process.port, process.forwarded[9222], process.forwarded[8080])
    finally:
        process.end()
