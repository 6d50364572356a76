"""The applications of the full desktop: how each is started and recognised. Used by the template, tests and docs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class App:
    """One application.

    Args:
        name: the short name of the application.
        package: Debian package that provides it.
        program: its program on PATH.
        command: program and arguments with which a task starts it.
        title: text in the title of its first window.
        profile: globs of files in HOME that must exist after it has run and ended.
    """

    name: str
    package: str
    program: str
    command: tuple[str, ...]
    title: str
    profile: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether the program is on this machine."""
        return shutil.which(self.program) is not None or Path("/usr/bin", self.program).exists()


_OFFICE = ".config/libreoffice/4/user/registrymodifications.xcu"
_CHROME = ".config/google-chrome"

APPS = (
    App("calc", "libreoffice-calc", "localc", ("libreoffice", "--calc"), "LibreOffice Calc", (_OFFICE,)),
    App("writer", "libreoffice-writer", "lowriter", ("libreoffice", "--writer"), "LibreOffice Writer", (_OFFICE,)),
    App("impress", "libreoffice-impress", "loimpress", ("libreoffice", "--impress"), "LibreOffice Impress", (_OFFICE,)),
    App(
        "chrome",
        "chromium",
        "chromium",
        ("google-chrome",),
        "New Tab",
        (f"{_CHROME}/Default/Preferences", f"{_CHROME}/Local State"),
    ),
    App("gimp", "gimp", "gimp", ("gimp",), "GNU Image Manipulation Program", (".config/GIMP/*/sessionrc",)),
    App("vlc", "vlc", "vlc", ("vlc",), "VLC media player", (".config/vlc/vlcrc",)),
    App(
        "thunderbird",
        "thunderbird",
        "thunderbird",
        ("/usr/bin/thunderbird",),
        "Mozilla Thunderbird",
        (".thunderbird/*/prefs.js", ".thunderbird/*/Mail/Local Folders"),
    ),
    App("nautilus", "nautilus", "nautilus", ("nautilus", "/home/user"), "Home"),
    App("pcmanfm", "pcmanfm", "pcmanfm", ("pcmanfm", "/home/user"), "user"),
    App("gedit", "gedit", "gedit", ("gedit",), "gedit"),
    App("mousepad", "mousepad", "mousepad", ("mousepad",), "Mousepad"),
    App("gnome-terminal", "gnome-terminal", "gnome-terminal", ("gnome-terminal",), "user@user-virtual-machine"),
    App("xterm", "xterm", "xterm", ("xterm",), "xterm"),
)


def installed(apps: Sequence[App] = APPS) -> list[App]:
    """Those of ``apps`` that are installed on this machine."""
    return [app for app in apps if app.installed]
