"""The run directory: records which process owns which desktops, so that those of a crashed owner can be removed.

``<run directory>/<owner pid>-<start>/<n>.json`` exists as long as desktop n does. Next to it are the folders of bare
desktops, named by their markers, and ``stage``, an empty folder to mount at. The start time distinguishes the owner
from a later process with the same id.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

from osworld_gym.atomic import write_text
from osworld_gym.desktops.local.keeper import cgroups
from osworld_gym.desktops.local.keeper.usage import started
from osworld_gym.guest.process.processes import end_marked

_PATIENCE = 10.0  # seconds for killed processes to end


def run_directory() -> Path:
    """This user's run directory, in the folder for temporary files. Raises OSError if another user created it.

    Other users may traverse it, since root's desktops run as other users, but cannot list it.
    """
    base = Path(tempfile.gettempdir()) / f"osworld-gym-{os.getuid()}"
    base.mkdir(mode=0o711, exist_ok=True)
    status = base.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{base} is not this user's own folder; fix: remove it")
    return base


def owner_folder(owner: int) -> Path:
    """The folder with the records of the process ``owner``."""
    return run_directory() / f"{owner}-{started(owner)}"


class Records:
    """The records of one owner.

    Args:
        owner: the process id of the owner.
    """

    def __init__(self, owner: int) -> None:
        self.folder = owner_folder(owner)
        self.stage = self.folder / "stage"
        for folder in (self.folder, self.stage):
            folder.mkdir(parents=True, exist_ok=True)  # another owner may just have removed the run directory
            folder.chmod(0o711)

    def write(self, number: int, fields: dict[str, Any]) -> None:
        """Records desktop ``number``: ``pids``, ``marker``, ``groups``, which :func:`reap` reads."""
        write_text(self.folder / f"{number}.json", json.dumps(fields), durable=False, mode=0o600)

    def remove(self, number: int, folder: str) -> None:
        """Removes the record of desktop ``number``, which has ended, and its ``folder``, if it has one."""
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        (self.folder / f"{number}.json").unlink(missing_ok=True)

    def close(self) -> None:
        """Removes the owner's folder and, if there is no other owner, the run directory."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another owner is there
            self.folder.parent.rmdir()


def reap(owner: int) -> list[str]:
    """Ends the desktops of owners that have ended, and of an earlier keeper of ``owner``; does not touch others.

    Returns:
        one line of text for each desktop that was found.
    """
    lines = []
    for folder in sorted(run_directory().glob("*-*")):
        pid, _, start = folder.name.partition("-")
        if not (pid.isdigit() and start.isdigit()) or (started(int(pid)) == int(start) and int(pid) != owner):
            continue
        for record in sorted(folder.glob("*.json")):
            try:
                fields = json.loads(record.read_text())
            except (OSError, ValueError):
                continue  # another reaper was faster, or it was not written completely: then nothing had been started
            _end(fields)
            lines.append(f"desktop {record.stem} of process {pid}")
        shutil.rmtree(folder, ignore_errors=True)
    return lines


def _end(fields: dict[str, Any]) -> None:
    """Kills the recorded processes whose start time matches, and removes the groups."""
    pids = [(int(pid), int(start)) for pid, start in fields["pids"]]
    for pid, start in pids:
        if start and started(pid) == start:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    end_marked(fields["marker"])
    groups = [Path(group) for group in fields["groups"]]
    until = time.monotonic() + _PATIENCE
    while not cgroups.remove(groups) and time.monotonic() < until:
        time.sleep(0.01)  # a version 1 group has no event for the exit of its last process
