"""Starts the X server with few imports, so that it starts while the rest of the guest is imported.

The X server takes about as long to be ready as Python takes for the guest's other modules, and the window manager can
start only then. Hence this module imports nothing that the interpreter has not loaded already.
"""

from __future__ import annotations

import _thread
import os
import sys

_FAMILY_WILD = 0xFFFF  #: address family of an Xauthority entry: any address
PROGRAM = "Xvfb"


def cookie_entry(cookie: bytes, family: int, address: bytes, number: bytes) -> bytes:
    """One MIT-MAGIC-COOKIE-1 entry of an Xauthority file: big-endian family, length-prefixed fields."""
    entry = family.to_bytes(2, "big")
    for part in (address, number, b"MIT-MAGIC-COOKIE-1", cookie):
        entry += len(part).to_bytes(2, "big") + part
    return entry


def write_private(path: str, data: bytes) -> None:
    """Writes a file that only this user may read."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)


class XServer:
    """Xvfb, as a child of this process; the constructor does not wait for it.

    Args:
        folder: the desktop's private folder, created if missing: for the framebuffer, the cookie and the log.
        size: (width, height) of the screen in pixels.
        env: the environment of the X server.
    """

    def __init__(self, folder: str, size: tuple[int, int], env: dict[str, str]) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.cookie = os.urandom(16)
        self.authority = f"{folder}/xauthority"
        write_private(self.authority, cookie_entry(self.cookie, _FAMILY_WILD, b"", b""))
        self.pipe, write = os.pipe()  #: to which it writes its display number when it is ready
        self.pid = 0  #: process id; 0 if the program is missing
        self._status: int | None = None
        self._lock = _thread.allocate_lock()
        os.set_inheritable(write, True)
        try:
            self.pid = self._spawn(folder, _command(folder, size, self.authority, write), env)
        except FileNotFoundError:
            self._status = 127
        finally:
            os.close(write)

    def _spawn(self, folder: str, command: list[str], env: dict[str, str]) -> int:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, f"{folder}/{PROGRAM}.log", append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # posix_spawn: subprocess takes longer to import than this takes to run
        return os.posix_spawnp(PROGRAM, command, env, file_actions=files, setsid=True)

    def poll(self) -> int | None:
        """Its exit status, negative for a signal, 0 if another call has reaped it; None while it runs."""
        with self._lock:
            if self._status is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # by process.processes.end_tree
                    pid, status = self.pid, 0
                self._status = os.waitstatus_to_exitcode(status) if pid else None
            return self._status

    def wait(self, timeout: float) -> int:
        """Its exit status when it has ended. Raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        import select
        import subprocess

        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            select.select([ended], [], [], timeout)
            os.close(ended)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(PROGRAM, timeout)
        return status

    def kill(self) -> None:
        """Ends it at once."""
        if self.poll() is None:
            os.kill(self.pid, 9)


def keep_descriptors() -> None:
    """Stops children that posix_spawn starts from inheriting this process's open files and sockets."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > sys.stderr.fileno():
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                continue  # the one with which the folder was listed


def _command(folder: str, size: tuple[int, int], authority: str, pipe: int) -> list[str]:
    screen = ["-screen", "0", f"{size[0]}x{size[1]}x24", "-fbdir", folder]
    options = ["-nolisten", "tcp", "-noreset", "-maxclients", "512", "-auth", authority]
    options += ["-extension", "GLX"]  # off: Mesa takes a third of the start and 55 MB; programs draw without it
    return [PROGRAM, "-displayfd", str(pipe), *screen, *options]
