"""Writes the names of this project's modules that a process has imported to IMPORT_LOG, when it ends."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path


def _write() -> None:
    names = sorted(name for name in sys.modules if name.split(".")[0] in ("bepa_torchrl", "osworld_gym", "recipes"))
    if names:
        Path(os.environ["IMPORT_LOG"], f"{os.getpid()}.txt").write_text("\n".join(names))


if "IMPORT_LOG" in os.environ:
    atexit.register(_write)
