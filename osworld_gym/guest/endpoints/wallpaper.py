"""Endpoints of the wallpaper: GNOME's setting, read and written with gsettings and painted on the root window."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from PIL import Image

from ..process.commands import Commands
from ..server.answers import Answer, Table, as_json, as_text, path_of
from ..x11.windows import Windows
from .files import FileRefused, read_regular

SETTING = ("org.gnome.desktop.background", "picture-uri")
TIMEOUT = 10.0  # seconds for gsettings


class Wallpaper:
    """``/wallpaper`` and ``/setup/change_wallpaper``."""

    def __init__(self, commands: Commands, windows: Windows, size: tuple[int, int]) -> None:
        self._commands, self._windows, self._size = commands, windows, size

    def routes(self) -> Table:
        return {("POST", "/wallpaper"): lambda _: self.get(), ("POST", "/setup/change_wallpaper"): self.change}

    def get(self) -> Answer:
        """The picture file of the setting; before a wallpaper is set, a picture of the plain background.

        OSWorld's machine has a default wallpaper, and its client repeats the request for 15 s if there is none.
        """
        try:
            status, out, _ = self._commands.execute(["gsettings", "get", *SETTING], False, TIMEOUT)
            if status == 0 and (path := _path(out)).exists():
                return Answer(read_regular(path), kind="image/png")
        except (OSError, TimeoutError, FileRefused):
            return as_json({"error": "Wallpaper file not found"}, 404)
        return Answer(self._plain_background(), kind="image/png")

    def _plain_background(self) -> bytes:
        colour, buffer = self._windows.background or 0, io.BytesIO()
        rgb = (colour >> 16 & 255, colour >> 8 & 255, colour & 255)
        Image.new("RGB", self._size, rgb).save(buffer, format="PNG")
        return buffer.getvalue()

    def change(self, body: Mapping[str, Any]) -> Answer:
        path = self._commands.expand(path_of(body, "path"))
        if not path.is_file():
            return as_text(f"File not found: {path}", 404)
        try:
            status, _, err = self._commands.execute(["gsettings", "set", *SETTING, path.as_uri()], False, TIMEOUT)
            if status != 0:
                return as_text(f"Failed to change wallpaper. Error: {err.strip()}", 500)
            with Image.open(path) as picture:
                self._windows.paint_picture(picture.convert("RGB").resize(self._size))
        except (OSError, TimeoutError, ValueError) as error:
            return as_text(f"Failed to change wallpaper. Error: {error}", 500)
        return as_text("Wallpaper changed successfully")


def _path(setting: str) -> Path:
    """The path in gsettings' output, e.g. ``'file:///a%20b.png'``."""
    text = setting.strip().strip("'\"")
    return Path(unquote(text.removeprefix("file://")) if text.startswith("file://") else text)
