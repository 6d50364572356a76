"""Control groups of a desktop, version 1 or 2, if this user may create them: limits enforced by the kernel.

They are created below this process's own group, or in the folder named by ``OSWORLD_GYM_CGROUP``: a delegated version 2
group whose children have the memory and pids controllers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

UNIFIED = "unified"  #: name of version 2 among the controllers
#: controller → (file that sets the limit, name of the limit)
_FILES = {
    "memory": (("memory.limit_in_bytes", "memory"),),
    "pids": (("pids.max", "processes"),),
    UNIFIED: (("memory.max", "memory"), ("memory.oom.group", "whole"), ("pids.max", "processes")),
}
_EVENTS = {"memory": "memory.oom_control", UNIFIED: "memory.events"}


@dataclass(frozen=True, slots=True)
class Group:
    """One desktop's groups: controller → folder."""

    folders: Mapping[str, Path]

    @property
    def limits_memory(self) -> bool:
        return not self.folders.keys().isdisjoint(_EVENTS)

    def kills(self) -> int:
        """Number of its processes that the kernel's OOM killer has killed."""
        return sum(
            _field(folder / _EVENTS[name], "oom_kill") for name, folder in self.folders.items() if name in _EVENTS
        )

    def remove(self) -> bool:
        """Removes the groups; False if the kernel still keeps one of them."""
        return remove(self.folders.values())


def make(parents: Mapping[str, Path], name: str, memory: int, processes: int) -> Group:
    """Creates groups under ``parents`` (:func:`find`).

    A controller that cannot be used is left out, so the result may have no groups.

    Args:
        parents: controller → folder in which to create the group.
        name: name of the groups.
        memory: the limit of memory, in bytes.
        processes: limit of the number of processes and threads.
    """
    values: dict[str, str] = {"memory": str(memory), "processes": str(processes), "whole": "1"}
    folders: dict[str, Path] = {}
    for controller, parent in parents.items():
        folder = parent / name
        try:
            folder.mkdir()
            for file, limit in _FILES[controller]:
                if not (folder / file).exists():  # writing would create it in a folder that is not a control group
                    raise FileNotFoundError(folder / file)
                (folder / file).write_text(values[limit])
        except OSError:
            remove([folder])
            continue
        folders[controller] = folder
    return Group(folders)


def remove(folders: Iterable[Path]) -> bool:
    """Removes empty groups; False if one still exists."""
    left = False
    for folder in folders:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            left = True
    return not left


def find(mounts: str | None = None, own: str | None = None, delegated: str | None = None) -> dict[str, Path]:
    """Controller → folder in which this user may create groups. The arguments are for tests.

    Args:
        mounts: the text of ``/proc/self/mounts``.
        own: the text of ``/proc/self/cgroup``.
        delegated: a folder to use instead, as ``OSWORLD_GYM_CGROUP`` does.
    """
    delegated = os.environ.get("OSWORLD_GYM_CGROUP") if delegated is None else delegated
    if delegated:
        return {UNIFIED: Path(delegated)}
    groups = _own(Path("/proc/self/cgroup").read_text() if own is None else own)
    folders: dict[str, Path] = {}
    for line in (Path("/proc/self/mounts").read_text() if mounts is None else mounts).splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup":
            names: list[str] = [name for name in ("memory", "pids") if name in options.split(",")]
        else:
            names = [UNIFIED] if kind == "cgroup2" else []
        for name in names:
            folder = Path(where) / groups.get(name, "/").lstrip("/")
            if os.access(folder, os.W_OK):
                folders[name] = folder
    controllers = _controllers(folders.get(UNIFIED))
    if not {"memory", "pids"} <= controllers:
        folders.pop(UNIFIED, None)
    return folders


def _own(text: str) -> dict[str, str]:
    """Controller → path of this process's group."""
    out: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        out |= dict.fromkeys(names.split(",") if names else [UNIFIED], path)
    return out


def _controllers(folder: Path | None) -> set[str]:
    """The controllers of a version 2 group's children."""
    if folder is None:
        return set()
    try:
        return set((folder / "cgroup.subtree_control").read_text().split())
    except OSError:
        return set()


def _field(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)
