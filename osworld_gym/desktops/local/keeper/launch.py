"""Starts a desktop from a plan: the code that the keeper's child runs between fork and exec.

As root: the sources are bind-mounted into a staging folder in a new mount namespace, then the child becomes a user that
owns nothing on this machine, and bubblewrap runs as that user. As any other user: bubblewrap runs as that user, in an
outer user namespace if HOME is an overlay.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from osworld_gym.desktops.local.keeper import mounts

FIRST_DESCRIPTOR = 10  #: number of the first passed descriptor in the desktop
_PARKED = 200  # temporary descriptor numbers, above those of the desktop


@dataclass(frozen=True)
class Plan:
    """One desktop to be started. Plain data, sent to the keeper as JSON.

    ``command`` contains ``@0``, ``@1``, … for the ``sources`` and ``@home`` for the prepared HOME.
    """

    command: list[str]
    env: dict[str, str]
    isolated: bool
    marker: str
    folder: str = ""  #: private folder of a bare desktop, removed at its end
    sources: list[str] = field(default_factory=list)
    template: str = ""  #: template of the HOME that is prepared here; empty if bubblewrap creates HOME
    home: str = "overlay"  #: how a template becomes HOME: ``overlay``, or ``staged`` (a copy made here)
    disk: int = 1 << 30  #: limit of HOME in bytes
    memory: int = 4 << 30  #: limit of all its processes' memory in bytes
    processes: int = 1024  #: limit of processes and threads
    files: int = 4096  #: limit of open files per process
    file_size: int = 1 << 30  #: limit of one file in bytes


def launch(plan: Plan, descriptors: Sequence[int], info: int, stage: Path, user: int, groups: Sequence[Path]) -> None:
    """Replaces this process by the desktop's first process outside the sandbox. Never returns.

    Args:
        plan: the desktop to start.
        descriptors: stdin, stdout, stderr, then those passed on with numbers from :data:`FIRST_DESCRIPTOR`.
        info: descriptor on which bubblewrap reports the process id inside; becomes 3. Not passed to a bare desktop.
        stage: an empty folder to mount at.
        user: as root, the user id to change to; -1: do not change.
        groups: folders of the control groups to enter.
    """
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)  # the keeper's, which is closed here
        _pass(descriptors, info if plan.isolated else -1)
        for group in groups:
            (group / "cgroup.procs").write_text("0")
        _limit(plan)
        os.chdir("/")
        command = prepare(plan, stage, user) if plan.isolated else plan.command
        os.execvpe(command[0], command, plan.env)  # noqa: S606
    except (OSError, subprocess.CalledProcessError) as error:
        os.write(2, f"the desktop could not be started: {error}\n".encode())
    finally:
        os._exit(127)


def _pass(descriptors: Sequence[int], info: int) -> None:
    wanted = {0: descriptors[0], 1: descriptors[1], 2: descriptors[2]} | ({3: info} if info >= 0 else {})
    wanted |= {FIRST_DESCRIPTOR + i: number for i, number in enumerate(descriptors[3:])}
    for i, number in enumerate(wanted.values()):
        os.dup2(number, _PARKED + i, inheritable=False)
    for i, target in enumerate(wanted):
        os.dup2(_PARKED + i, target)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in wanted:
            with suppress(OSError):  # the one with which the folder was listed
                os.close(number)  # whatever its flags: the keeper's own sockets must not enter a desktop


def _limit(plan: Plan) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, wanted in ((resource.RLIMIT_NOFILE, plan.files), (resource.RLIMIT_FSIZE, plan.file_size)):
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def prepare(plan: Plan, stage: Path, user: int) -> list[str]:
    """Mounts the plan's sources and HOME, drops root, returns the command with the real paths. Raises OSError."""
    places = {f"@{i}": source for i, source in enumerate(plan.sources)}
    if user >= 0:
        mounts.unshare(mounts.NEW_MOUNTS)
        mounts.mount_memory(stage, plan.disk + (1 << 20))
        for i, source in enumerate(plan.sources):
            places[f"@{i}"] = str(_bind(Path(source), stage / str(i)))
    elif plan.template:
        mounts.become_owner_of_new_user_namespace()
        mounts.mount_memory(stage, plan.disk)
    if plan.template:
        places["@home"] = str(make_home(Path(plan.template), plan.home, stage, user))
    if user >= 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    return [places.get(part, part) for part in plan.command]


def _bind(source: Path, target: Path) -> Path:
    if source.is_dir():
        target.mkdir()
    else:
        target.touch()
    mounts.bind(source, target)
    return target


def make_home(template: Path, method: str, stage: Path, user: int) -> Path:
    """Creates HOME from a template in ``stage``, owned by ``user`` (-1: this user).

    Raises:
        OSError: a mount failed.
        subprocess.CalledProcessError: the copy failed.
    """
    home = stage / "home"
    home.mkdir(mode=0o700)
    if method == "staged":
        subprocess.run(["cp", "-a", f"{template}/.", str(home)], check=True)
        if user >= 0:
            subprocess.run(["chown", "-R", "-h", f"{user}:{user}", str(home)], check=True)
        return home
    upper, work, lower = stage / "upper", stage / "work", template
    for folder in (upper, work):
        folder.mkdir(mode=0o700)
    if user >= 0:
        os.chown(upper, user, user)
        lower = stage / "lower"
        lower.mkdir()
        mounts.bind_mapped(template, lower, user)
    mounts.overlay(lower, upper, work, home, user=user < 0)
    return home


def why_no_overlay(template: Path, stage: Path, user: int) -> str:
    """Tries an overlay over ``template`` in a child process; returns the error, empty if it works."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, _try_overlay(template, stage, user).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        answer = said.read().decode()
    os.waitpid(child, 0)
    return answer


def _try_overlay(template: Path, stage: Path, user: int) -> str:
    owner = template.stat()
    if user < 0 and (owner.st_uid, owner.st_gid) != (os.getuid(), os.getgid()):
        return f"{template} belongs to user {owner.st_uid}, group {owner.st_gid}"
    try:
        if user >= 0:
            mounts.unshare(mounts.NEW_MOUNTS)
        else:
            mounts.become_owner_of_new_user_namespace()
        mounts.mount_memory(stage, 1 << 20)
        home = make_home(template, "overlay", stage, user)
        if user < 0:
            os.setxattr(stage / "upper", "user.overlay.probe", b"y")  # without user xattrs, removed folders reappear
        os.listdir(home)
    except OSError as error:
        return str(error)
    return ""
