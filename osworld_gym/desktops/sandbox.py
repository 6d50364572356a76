"""The sandbox of a local desktop: a bubblewrap command line. No root needed.

Own user, process, network, IPC and host-name namespaces; ``/usr``, a choice of ``/etc`` and this Python are read-only,
``/tmp``, ``/home/user`` and ``/run`` are empty memory file systems, nothing else of the machine is there. All of it
ends with the guest, which is process 1 inside: nothing has to be cleaned up afterwards.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

UID = 1000
HOME = "/home/user"
FOLDER = "/run/osworld"
RUNTIME = f"/run/user/{UID}"
GUEST = "/opt/osworld_guest"
HOSTNAME = "user-virtual-machine"
SIZE = 1 << 30  # bytes that each memory file system may hold

#: folders and files of the machine that programs inside may read; those that are not there are left out
READABLE = (
    *("/etc/X11", "/etc/alternatives", "/etc/bash.bashrc", "/etc/dbus-1", "/etc/fonts", "/etc/glvnd", "/etc/gtk-2.0"),
    *("/etc/gtk-3.0", "/etc/inputrc", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/locale.alias"),
    *("/etc/magic", "/etc/magic.mime", "/etc/mime.types", "/etc/os-release", "/etc/profile", "/etc/terminfo"),
    *("/etc/xdg", "/var/cache/fontconfig"),
    # applications; not /etc/chromium, Debian's first-run choices, which Google Chrome does not have
    *("/etc/chromium.d", "/etc/gimp", "/etc/java-17-openjdk", "/etc/libreoffice", "/etc/mailcap", "/etc/openal"),
    *("/etc/papersize", "/etc/pulse", "/etc/python3.11", "/etc/shells", "/etc/ssl/certs", "/etc/thunderbird"),
    *("/etc/localtime", "/var/lib/aspell", "/var/lib/ghostscript", "/var/lib/libreoffice", "/var/spool/libreoffice"),
)

#: files made for the inside
FILES = {
    "/etc/passwd": f"user:x:{UID}:{UID}:user:{HOME}:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "/etc/group": f"user:x:{UID}:\nnogroup:x:65534:\n",
    "/etc/hosts": f"127.0.0.1 localhost {HOSTNAME}\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/machine-id": "0" * 31 + "1\n",
}


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A command line, and the descriptors that it must inherit; :meth:`close` them once it runs."""

    command: tuple[str, ...]
    descriptors: tuple[int, ...]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def sandbox(command: Sequence[str], guest: Path, env: Mapping[str, str], info: int, modules: Sequence[str]) -> Sandbox:
    """Wraps ``command``, which becomes process 1 inside.

    Args:
        command: what to run; the guest's folder is at :data:`GUEST`.
        guest: the guest's folder on this machine.
        env: its whole environment.
        info: descriptor on which bubblewrap writes JSON with the outer process id (``child-pid``).
        modules: Python modules that must be found inside.
    """
    files = {path: _memory_file(text) for path, text in FILES.items()}
    options = ["bwrap", "--unshare-all", "--unshare-user", "--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL"]
    options += ["--hostname", HOSTNAME, "--as-pid-1", "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/usr", "/usr"]
    options += _system_folders()
    for path in READABLE:
        options += ["--ro-bind-try", path, path]
    for path, descriptor in files.items():
        options += ["--ro-bind-data", str(descriptor), path]
    for path, mode in (("/tmp", "1777"), (FOLDER, "0700"), (RUNTIME, "0700"), (HOME, "0755")):
        options += ["--perms", mode, "--size", str(SIZE), "--tmpfs", path]
    extra = _python_folders(modules)
    for path in _outermost([*_prefixes(), *extra]):
        options += ["--ro-bind", path, path]
    options += ["--ro-bind", str(guest), GUEST, "--clearenv"]
    for name, value in {**env, **({"PYTHONPATH": ":".join(extra)} if extra else {})}.items():
        options += ["--setenv", name, value]
    options += ["--info-fd", str(info), "--remount-ro", "/", "--", *command]
    return Sandbox(tuple(options), (*files.values(), info))


def _memory_file(text: str) -> int:
    descriptor = os.memfd_create("osworld-gym")
    os.write(descriptor, text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _system_folders() -> Iterator[str]:
    """``/bin``, ``/lib`` and the like: links into /usr on today's systems, folders on older ones."""
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)


def _prefixes() -> list[str]:
    """Where this Python lives, outside of /usr."""
    return [path for path in {sys.prefix, sys.base_prefix} if not f"{path}/".startswith("/usr/")]


def _python_folders(modules: Sequence[str]) -> list[str]:
    """Folders with the guest's modules that this Python's prefixes do not hold (a user's own site-packages)."""
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
    """The paths without those inside another one."""
    return [p for p in dict.fromkeys(paths) if not any(p != q and f"{p}/".startswith(f"{q}/") for q in paths)]
