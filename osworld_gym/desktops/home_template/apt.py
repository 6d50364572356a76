"""The Debian packages of a desktop, from the two lists next to this file, and their installation with apt."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osworld_gym.errors import DesktopError, FailureReason

BASIC = Path(__file__).with_name("apt-packages.txt")  #: X server, editor, file manager, terminal
APPS = Path(__file__).with_name("apt-apps.txt")  #: additional packages of the full desktop
INSTALL = ("apt-get", "install", "-y", "--no-install-recommends")


@dataclass(frozen=True, slots=True)
class Plan:
    """The cost of an installation: packages including dependencies, bytes to download, bytes on disk."""

    packages: tuple[str, ...]
    fetch: int
    disk: int


def required() -> list[str]:
    """The packages of the full desktop."""
    return [line for path in (BASIC, APPS) for line in path.read_text(encoding="utf-8").split()]


def missing(packages: Sequence[str]) -> list[str]:
    """Those of ``packages`` that are not installed.

    Raises:
        DesktopError: ``setup_failed``: there is no dpkg.
    """
    _must_have("dpkg-query")
    asked = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\\n", *packages]
    lines = subprocess.run(asked, capture_output=True, text=True).stdout.splitlines()
    there = {line.split()[0] for line in lines if line.endswith(" installed")}
    return [package for package in packages if package not in there]


def plan(packages: Sequence[str]) -> Plan:
    """The cost of ``apt-get install`` of these packages. Requires no root and changes nothing.

    Raises:
        DesktopError: ``setup_failed``: apt does not know one of them; the message is apt's.
    """
    _must_have("apt-get")
    said = _run([*INSTALL, "--simulate", *packages])
    new = tuple(dict.fromkeys(re.findall(r"^Inst (\S+)", said, re.MULTILINE)))
    facts = _run(["apt-cache", "show", "--no-all-versions", *new]) if new else ""
    fetch = sum(map(int, re.findall(r"^Size: (\d+)", facts, re.MULTILINE)))
    disk = 1024 * sum(map(int, re.findall(r"^Installed-Size: (\d+)", facts, re.MULTILINE)))
    return Plan(new, fetch, disk)


def install(packages: Sequence[str]) -> None:
    """Installs the packages, with apt's output on this terminal. Requires root.

    Raises:
        DesktopError: ``setup_failed``: apt failed.
    """
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    status = subprocess.run([*INSTALL, *packages], env=env).returncode
    if status != 0:
        raise DesktopError(FailureReason.setup_failed, f"apt-get install ended with status {status}")


def _must_have(program: str) -> None:
    if shutil.which(program) is None:
        names = " ".join(required())
        text = f"no {program} here; fix: install the programs of these Debian packages by hand: {names}"
        raise DesktopError(FailureReason.setup_failed, text)


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fix = "; fix: apt-get update" if "Unable to locate" in done.stderr else ""
        raise DesktopError(FailureReason.setup_failed, f"{command[0]}: {done.stderr.strip()}{fix}")
    return done.stdout
