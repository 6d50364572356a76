"""Frames of a server that a policy has replaced: what the program that trains could not decode is no screenshot."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image
from replaced_server import KINDS, SIZE, Running

from osworld_gym.desktops.guest_server.desktop import GuestDesktop
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.types import Screenshot


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def header(size: tuple[int, int]) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0))


def png(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND", b"")


ROWS = zlib.compress(b"".join(b"\0" + bytes([9]) * 3 * SIZE[0] for _ in range(SIZE[1])))
LARGE = (4000, 4000)
LIES = {
    "nothing but a header": png(header(SIZE)),
    "no data": png(header(SIZE), chunk(b"IDAT", b"")),
    "other data": png(header(SIZE), chunk(b"IDAT", b"no deflate stream")),
    "cut data": png(header(SIZE), chunk(b"IDAT", ROWS[:20])),
    "another header": png(header(SIZE), header(LARGE), chunk(b"IDAT", zlib.compress(bytes(LARGE[1] * (1 + 3 * 4000))))),
    "bloated": png(header(SIZE), chunk(b"IDAT", ROWS), chunk(b"prVt", bytes(2 << 20))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LIES)
def test_a_frame_that_the_trainer_could_not_decode_is_a_bad_screenshot(
    server: Any, desktop: Running, kind: type[GuestDesktop], name: str
) -> None:
    server.answer = (200, LIES[name])
    with pytest.raises(DesktopError) as caught:
        desktop(kind).screenshot()
    assert caught.value.reason is FailureReason.bad_screenshot


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1"])
def test_frames_of_every_mode_are_accepted(server: Any, desktop: Running, mode: str) -> None:
    buffer = io.BytesIO()
    Image.new(mode, SIZE, 1).save(buffer, "PNG")
    server.answer = (200, buffer.getvalue())
    frame = desktop(GuestDesktop).screenshot()
    assert frame.png == buffer.getvalue()
    assert frame.pixels.shape == (SIZE[1], SIZE[0], 3)


def test_the_pixels_of_such_a_frame_are_a_value_error() -> None:
    for data in LIES.values():
        with pytest.raises(ValueError, match="PNG"):
            _ = Screenshot(png=data).pixels
