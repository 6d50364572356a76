"""Runs commands in the desktop, by OSWorld's rules. Output goes to files: a child that keeps it open cannot block."""

from __future__ import annotations

import errno
import os
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from .preload_client import NoResult, PreloadClient

Command = str | Sequence[str]
OUTPUT_LIMIT = 64 << 20  # bytes returned of each stream; the rest is dropped
#: errors of a desktop without room for another process or its output
NO_ROOM = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})


class Commands:
    """Starts programs with the desktop's environment, in its HOME.

    Args:
        env: the complete environment of every child.
        log: file for the output of launched programs.
    """

    def __init__(self, env: dict[str, str], log: Path) -> None:
        self.env = env
        # opened once: a program could put a pipe in its place, and opening that would wait for a reader
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.home = Path(env["HOME"])
        self._launched: list[subprocess.Popen[bytes]] = []
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._python = PreloadClient(env, self.home, self._log)

    def expand(self, path: str) -> Path:
        """``~``, ``$VARS`` and OSWorld's ``/home/user`` → the absolute path inside this desktop.

        A relative path is relative to HOME, where OSWorld's server runs.
        """
        if path == "~" or path.startswith("~/"):
            path = str(self.home) + path[1:]
        for name in ("HOME", "USER", "XDG_RUNTIME_DIR"):
            path = path.replace(f"${{{name}}}", self.env.get(name, "")).replace(f"${name}", self.env.get(name, ""))
        if path == "/home/user" or path.startswith("/home/user/"):
            path = str(self.home) + path[len("/home/user") :]
        return self.home / path

    def arguments(self, command: Command, shell: bool) -> Command:
        """OSWorld's rule: without a shell, text is split as a shell does; a leading ``~/`` of an item is expanded."""
        if isinstance(command, str):
            if shell:
                return command
            command = shlex.split(command)
        return [str(self.home) + part[1:] if part.startswith("~/") else part for part in command]

    def execute(
        self, command: Command, shell: bool, timeout: float, folder: Path | None = None, merged: bool = False
    ) -> tuple[int, str, str]:
        """Runs a command to its end; returns (exit status, stdout, stderr). Its children may go on running.

        Args:
            command: program and arguments, or one text, by OSWorld's rule (:meth:`arguments`).
            shell: whether a shell runs it, by OSWorld's rule (:meth:`arguments`).
            timeout: seconds after which the command is killed.
            folder: working directory; None: HOME.
            merged: whether stderr is merged into stdout.

        Raises:
            TimeoutError: after ``timeout`` seconds; the command's process group has been killed.
            OSError, ValueError: it cannot be started.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                status = self._run(command, shell, timeout, out, out if merged else err, folder or self.home)
            except TimeoutError:
                raise TimeoutError(f"{command!r} ran longer than {timeout} seconds") from None
            return status, _text(out), _text(err)

    def _run(self, command: Command, shell: bool, timeout: float, out: IO[bytes], err: IO[bytes], folder: Path) -> int:
        arguments = self.arguments(command, shell)
        if not shell and folder == self.home and self._python.fits(arguments):
            return self._python.run(arguments, out, err, timeout)
        with self._lock:
            child = self._start(arguments, shell, out, err, folder)
            self._running.add(child.pid)
        try:
            return _await_end(child, timeout)
        except TimeoutError:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        finally:
            self._running.discard(child.pid)

    def launch(self, command: Command, shell: bool) -> subprocess.Popen[bytes]:
        """Starts a program and returns at once.

        Raises:
            OSError, ValueError: it cannot be started.
        """
        with self._lock:
            child = self._start(self.arguments(command, shell), shell, self._log, self._log, self.home)
            self._launched.append(child)
        return child

    def launched(self) -> list[int]:
        """Process ids of the launched programs that still run."""
        with self._lock:
            return [child.pid for child in self._launched if child.poll() is None]

    def _start(
        self, arguments: Command, shell: bool, out: IO[bytes] | int, err: IO[bytes] | int, folder: Path
    ) -> subprocess.Popen[bytes]:
        if not arguments and arguments != "":  # an empty line is a valid shell script, as on OSWorld's server
            raise ValueError("the command is empty: expected a program and its arguments")
        if not shell and shutil.which(arguments[0], path=self.env["PATH"]) is None:
            raise FileNotFoundError(f"no program {arguments[0]!r} in this desktop's PATH")
        return subprocess.Popen(
            arguments,
            shell=shell,
            env=self.env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )

    def forking(self) -> set[int]:
        """Process id of the Python that forks for commands, if it was started. It denies tracing and draws nothing."""
        return self._python.own()

    def own(self) -> set[int]:
        """Process ids of the children that this object waits for. Reaps launched programs that have ended."""
        with self._lock:
            self._launched = [child for child in self._launched if child.poll() is None]
            return {child.pid for child in self._launched} | self._running | self._python.own()


def is_desktops(error: Exception) -> bool:
    """Whether the desktop, not the command, is to blame that :meth:`Commands.execute` has no result."""
    return isinstance(error, NoResult) or (isinstance(error, OSError) and error.errno in NO_ROOM)


def _await_end(child: subprocess.Popen[bytes], timeout: float) -> int:
    """Waits for the child's exit event; ``Popen.wait(timeout)`` would poll."""
    watch = os.pidfd_open(child.pid)
    try:
        if not select.select([watch], [], [], timeout)[0]:
            raise TimeoutError
    finally:
        os.close(watch)
    return child.wait()


def _text(file: IO[bytes]) -> str:
    r"""The output with all line ends as ``\n``, as OSWorld's server returns it."""
    file.seek(0)
    return file.read(OUTPUT_LIMIT).decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
