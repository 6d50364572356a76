"""Finds the home template: a HOME in which every application has run once, so that none shows first-run dialogs.

``osworld-gym install-desktop`` creates it (``build.py``). Its version is a hash of the applications' package versions
and of the files that it is built from, so an outdated template is not found.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import osworld_gym.guest
from osworld_gym.desktops.home_template.applications import installed
from osworld_gym.folders import data_folder

#: the files that a template is built from, apart from the packages
_RECIPE = (
    *(Path(__file__).with_name(f"{part}.py") for part in ("applications", "settings", "build")),
    Path(osworld_gym.guest.__file__).with_name("home.py"),
)


@dataclass(frozen=True, slots=True)
class Template:
    """A finished template.

    Args:
        path: the folder with the content of ``/home/user``; must not be modified.
        version: 16 hexadecimal digits, the same on every machine with the same packages.
    """

    path: Path
    version: str


def find_template() -> Template | None:
    """This machine's template; None if none has been built for the applications' current versions."""
    version = template_version()
    path = template_folder(version) / "home"
    return Template(path, version) if path.is_dir() else None


def template_folder(version: str) -> Path:
    """The folder of the template of that version, with ``home`` and ``manifest.json``; it may not exist."""
    return data_folder("template", version)


def template_version() -> str:
    """The version of the template that this machine's applications require."""
    digest = hashlib.sha256()
    for name, version in packages().items():
        digest.update(f"{name} {version}\n".encode())
    for part in _RECIPE:
        digest.update(part.read_bytes())
    return digest.hexdigest()[:16]


def packages() -> Mapping[str, str]:
    """Application → version of its Debian package; without dpkg, the size and date of its program."""
    return {app.name: _version(app.package, app.program) for app in installed()}


@cache
def _version(package: str, program: str) -> str:
    if shutil.which("dpkg-query") is not None:
        asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
        if asked.returncode == 0:
            return asked.stdout
    path = shutil.which(program)
    if path is None:
        return "unknown"
    status = Path(path).resolve().stat()
    return f"{status.st_size}-{int(status.st_mtime)}"
