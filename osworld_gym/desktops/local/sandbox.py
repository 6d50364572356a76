"""The sandbox of a local desktop: a bubblewrap command line. Requires no root.

It has its own user, process, network, IPC and host name namespaces. ``/usr``, parts of ``/etc`` and this Python are
read-only; ``/tmp``, ``/home/user``, ``/run`` and ``/dev/shm`` are memory file systems of limited size; nothing else of
the machine is visible, and system calls that leave the namespaces are refused (``system_calls.py``). Everything ends
with the guest, which is process 1 inside, so no cleanup is required.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from osworld_gym.desktops.local.system_calls import refused_calls

UID = 1000
HOME = "/home/user"
FOLDER = "/run/osworld"
RUNTIME = f"/run/user/{UID}"
GUEST = "/opt/osworld_guest"
HOSTNAME = "user-virtual-machine"
TEMPLATE = "/opt/osworld_template"  # path inside of the read-only template, if HOME is a copy made inside
INFO = 3  # descriptor on which bubblewrap reports the process id of process 1 inside
SMALL = 16 << 20  # bytes of the memory file systems for sockets and logs

#: folders and files of the machine that programs inside may read; missing ones are left out
READABLE = (
    *("/etc/X11", "/etc/alternatives", "/etc/bash.bashrc", "/etc/dbus-1", "/etc/fonts", "/etc/glvnd", "/etc/gtk-2.0"),
    *("/etc/gtk-3.0", "/etc/inputrc", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/locale.alias"),
    *("/etc/magic", "/etc/magic.mime", "/etc/mime.types", "/etc/os-release", "/etc/profile", "/etc/terminfo"),
    *("/etc/xdg", "/var/cache/fontconfig"),
    # applications; not /etc/chromium, Debian's first-run settings, which Google Chrome does not have
    *("/etc/chromium.d", "/etc/gimp", "/etc/java-17-openjdk", "/etc/libreoffice", "/etc/mailcap", "/etc/openal"),
    *("/etc/papersize", "/etc/pulse", "/etc/python3.11", "/etc/shells", "/etc/ssl/certs", "/etc/thunderbird"),
    *("/etc/localtime", "/var/lib/aspell", "/var/lib/ghostscript", "/var/lib/libreoffice", "/var/spool/libreoffice"),
)

#: files created inside: path → content
FILES = {
    "/etc/passwd": f"user:x:{UID}:{UID}:user:{HOME}:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "/etc/group": f"user:x:{UID}:\nnogroup:x:65534:\n",
    "/etc/hosts": f"127.0.0.1 localhost {HOSTNAME}\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/machine-id": "0" * 31 + "1\n",
}


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A command line that the keeper runs (``keeper/launch.py``).

    ``command`` contains ``@i`` for ``sources[i]``, since root first has to mount them where an ordinary user may read
    them, and ``@home`` for a HOME that the keeper prepares. ``descriptors`` are inherited by the command; :meth:`close`
    them once it runs.
    """

    command: tuple[str, ...]
    sources: tuple[str, ...]
    descriptors: tuple[int, ...]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Home:
    """How ``/home/user`` is created.

    Args:
        template: the folder with its initial content; None: empty.
        method: ``overlay`` (mounted by the keeper), ``copy`` (copied inside), ``staged`` (copied by the keeper).
    """

    template: Path | None = None
    method: Literal["overlay", "copy", "staged"] = "copy"

    @property
    def prepared(self) -> bool:
        """Whether the keeper creates it, outside the sandbox."""
        return self.template is not None and self.method != "copy"


def sandbox(
    command: Sequence[str],
    guest: Path,
    env: Mapping[str, str],
    modules: Sequence[str],
    *,
    home: Home,
    disk: int,
    processes: int,
    framebuffer: int,
    first: int,
) -> Sandbox:
    """Wraps ``command``, which becomes process 1 inside.

    Args:
        command: the command; inside, the guest's folder is at :data:`GUEST`.
        guest: the guest's folder on this machine.
        env: the command's complete environment.
        modules: Python modules that must be available inside.
        home: how HOME is created.
        disk: size limit in bytes of each of HOME, ``/tmp`` and ``/dev/shm``.
        processes: limit of the processes and threads of the user inside.
        framebuffer: bytes of the screen, which the X server keeps in a file in :data:`FOLDER`.
        first: number of the first inherited descriptor in the new process.
    """
    sources: list[str] = []

    def source(path: str) -> str:
        sources.append(path)
        return f"@{len(sources) - 1}"

    files = {path: _memory_file(text.encode()) for path, text in FILES.items()}
    descriptors = list(files.values())
    options = ["bwrap", "--unshare-all", "--unshare-user", "--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL"]
    options += ["--hostname", HOSTNAME, "--as-pid-1", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
    options += ["--perms", "1777", "--size", str(disk), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    options += ["--ro-bind", "/usr", "/usr", *_system_folders()]
    for path in READABLE:
        options += ["--ro-bind-try", path, path]
    for i, path in enumerate(files):
        options += ["--ro-bind-data", str(first + i), path]
    if refused := refused_calls():
        options += ["--seccomp", str(first + len(descriptors))]
        descriptors.append(_memory_file(refused))
    ours = SMALL + framebuffer
    for path, mode, size in (("/tmp", "1777", disk), (FOLDER, "0700", ours), (RUNTIME, "0700", SMALL)):
        options += ["--perms", mode, "--size", str(size), "--tmpfs", path]
    options += ["--bind", "@home", HOME] if home.prepared else ["--perms", "0755", "--size", str(disk), "--tmpfs", HOME]
    command = [*_process_limit(processes), *command]
    if home.template is not None and not home.prepared:
        options += ["--ro-bind", source(str(home.template)), TEMPLATE]
        command = ["/bin/sh", "-c", f'cp -a {TEMPLATE}/. {HOME}/ && exec "$@"', "sh", *command]
    extra = _python_folders(modules)
    for path in _outermost([*_prefixes(), *extra]):
        options += ["--ro-bind", source(path), path]
    options += ["--ro-bind", source(str(guest)), GUEST, "--clearenv"]
    for name, value in {**env, **({"PYTHONPATH": ":".join(extra)} if extra else {})}.items():
        options += ["--setenv", name, value]
    options += ["--info-fd", str(INFO), "--remount-ro", "/", "--", *command]
    return Sandbox(tuple(options), tuple(sources), tuple(descriptors))


def _process_limit(number: int) -> list[str]:
    """``prlimit`` command prefix for the inside; empty before Linux 5.14, which does not count per user namespace."""
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    if release < (5, 14):
        return []
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    number = number if hard == resource.RLIM_INFINITY else min(number, hard)
    return ["prlimit", f"--nproc={number}:{number}", "--"]


def _memory_file(data: bytes) -> int:
    descriptor = os.memfd_create("osworld-gym")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _system_folders() -> Iterator[str]:
    """Options for ``/bin``, ``/lib`` etc., which are links into /usr on current systems and folders on older ones."""
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        path = Path(name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), name)
        elif path.is_dir():
            yield from ("--ro-bind", name, name)


def _prefixes() -> list[str]:
    """Installation folders of this Python outside /usr."""
    return [path for path in {sys.prefix, sys.base_prefix} if not f"{path}/".startswith("/usr/")]


def _python_folders(modules: Sequence[str]) -> list[str]:
    """Folders with the guest's modules outside this Python's prefixes (e.g. a user's site-packages)."""
    out = []
    for name in modules:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin) if spec is not None and spec.origin is not None else None
        if origin is None:
            continue
        folder = str(origin.parent.parent if origin.name == "__init__.py" else origin.parent)
        if folder not in out and not any(f"{folder}/".startswith(f"{held}/") for held in ("/usr", *_prefixes())):
            out.append(folder)
    return out


def _outermost(paths: Sequence[str]) -> list[str]:
    """The paths that are not inside another one of them."""
    return [p for p in dict.fromkeys(paths) if not any(p != q and f"{p}/".startswith(f"{q}/") for q in paths)]
