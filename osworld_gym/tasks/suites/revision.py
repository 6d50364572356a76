"""The git revision of a checkout that tasks are read from."""

from __future__ import annotations

import subprocess
from pathlib import Path

ANSWER = 10.0  # seconds


def git_revision(folder: Path) -> str:
    """The commit that a checkout is at (hexadecimal); empty if the folder is none, or git is not installed.

    Changes that are not committed do not show here; they do in the tasks' content hashes.
    """
    if not (folder / ".git").exists():
        return ""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
