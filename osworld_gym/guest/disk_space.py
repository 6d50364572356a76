"""Detects a full disk in the desktop: nothing can be saved then, an infrastructure failure, not the policy's."""

from __future__ import annotations

import os
from collections.abc import Iterable

PLACES = ("/home/user", "/tmp", "/dev/shm")  # each a memory file system of limited size, in the sandbox
SCANT = 1 << 16  # bytes: with less than this left, a document may not be saved completely


def full_place(places: Iterable[str] = PLACES) -> str:
    """The first of these folders whose file system has no space left; empty when there is none."""
    for place in places:
        try:
            space = os.statvfs(place)
        except FileNotFoundError:
            continue  # a bare desktop's HOME is elsewhere
        if space.f_blocks and space.f_bavail * space.f_frsize < SCANT:
            return place
    return ""
