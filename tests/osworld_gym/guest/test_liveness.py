"""The check that the X server responds, on a real Xvfb: the pointer is in the framebuffer when it returns."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from osworld_gym.guest.x11.screen import Screen
from osworld_gym.guest.x_server import XServer, cookie_entry, write_private

pytestmark = pytest.mark.desktop

FAMILY_LOCAL = 256
NO_OPERATION = b"\x7f\x00\x01\x00"  # a request of 4 bytes without a reply
MANY = 50_000  # requests that keep the X server at one connection, for some milliseconds
REPLY = 32  # bytes
ROUNDS = 5000  # at most: on a loaded machine the X server is often done before the framebuffer is read
ENOUGH = 20  # rounds without the pointer before the check
SIZE = (64, 48)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A started X server; the file with its pixels."""
    made = XServer(str(tmp_path / "x"), SIZE, {"PATH": os.environ["PATH"]})
    try:
        assert select.select([made.pipe], [], [], 60)[0], "not ready in 60 s"
        number = os.read(made.pipe, 16).strip()
        write_private(made.authority, cookie_entry(made.cookie, FAMILY_LOCAL, socket.gethostname().encode(), number))
        monkeypatch.setenv("DISPLAY", f":{number.decode()}")
        monkeypatch.setenv("XAUTHORITY", made.authority)
        yield tmp_path / "x" / "Xvfb_screen0"
    finally:
        os.close(made.pipe)
        made.kill()
        made.wait(60.0)


def test_the_pointer_is_there_after_a_reply_though_the_painter_goes_on(server: Path) -> None:
    from Xlib import Xcursorfont  # the default tests, which collect this file, lack it
    from Xlib.display import Display

    from osworld_gym.guest.x11.liveness import XServerLiveness

    painter, other = Display(), Display()
    screen, liveness = Screen(server, lambda: 0.0), XServerLiveness(other)
    root, font = painter.screen().root, painter.open_font("cursor")
    arrow = font.create_glyph_cursor(font, Xcursorfont.left_ptr, Xcursorfont.left_ptr + 1, (0, 0, 0), (65535,) * 3)
    root.change_attributes(cursor=arrow, background_pixel=0x2E3440)
    painter.sync()
    requests = struct.pack("=BBHIhhHHBBHI", 61, 0, 4, root.id, 0, 0, 0, 0, 38, 0, 2, root.id)  # ClearArea, QueryPointer
    missed, connection = 0, painter.display.socket
    for _ in range(ROUNDS):
        connection.sendall(requests + NO_OPERATION * MANY)
        assert len(connection.recv(REPLY, socket.MSG_WAITALL)) == REPLY  # the background is painted
        missed += not shown(screen)
        assert liveness.responds()
        assert shown(screen)
        if missed == ENOUGH:
            break
    assert missed > 0  # otherwise this test shows nothing
    connection.close()
    other.close()


def shown(screen: Screen) -> bool:
    """Whether there is more than the background's one colour."""
    return screen.image().getcolors(1) is None
