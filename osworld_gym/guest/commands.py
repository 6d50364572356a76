"""Commands inside the desktop, by OSWorld's rules. Output goes to files: a child that keeps it open blocks nobody."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

Command = str | Sequence[str]


class Commands:
    """Starts programs with the desktop's environment, in its HOME.

    Args:
        env: the whole environment of every child.
        log: file that takes the output of launched programs.
    """

    def __init__(self, env: dict[str, str], log: Path) -> None:
        self.env, self._log = env, log
        self.home = Path(env["HOME"])
        self._launched: list[subprocess.Popen[bytes]] = []
        self._running: set[int] = set()
        self._lock = threading.Lock()

    def expand(self, path: str) -> Path:
        """``~``, ``$VARS`` and OSWorld's ``/home/user`` → the real path inside this desktop."""
        if path == "~" or path.startswith("~/"):
            path = str(self.home) + path[1:]
        for name in ("HOME", "USER", "XDG_RUNTIME_DIR"):
            path = path.replace(f"${{{name}}}", self.env.get(name, "")).replace(f"${name}", self.env.get(name, ""))
        if path == "/home/user" or path.startswith("/home/user/"):
            path = str(self.home) + path[len("/home/user") :]
        return Path(path)

    def arguments(self, command: Command, shell: bool) -> Command:
        """OSWorld's rule: text without a shell is split like a shell line; a list's items that start ``~/`` expand."""
        if isinstance(command, str):
            return command if shell else shlex.split(command)
        home = str(self.home)
        return [home + part[1:] if part.startswith("~/") else part for part in map(str, command)]

    def execute(self, command: Command, shell: bool, timeout: float) -> tuple[int, str, str]:
        """(exit status, stdout, stderr) of a command run to its end; its children may live on.

        Raises:
            TimeoutError: after ``timeout`` seconds; the command's process group has been killed.
            OSError, ValueError: it cannot be started.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with self._lock:
                child = self._start(command, shell, out, err)
                self._running.add(child.pid)
            try:
                status = child.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                raise TimeoutError(f"{command!r} ran longer than {timeout} seconds") from None
            finally:
                self._running.discard(child.pid)
            out.seek(0)
            err.seek(0)
            return status, out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace")

    def launch(self, command: Command, shell: bool) -> subprocess.Popen[bytes]:
        """Starts a program and returns at once.

        Raises:
            OSError, ValueError: it cannot be started.
        """
        with self._log.open("ab") as log, self._lock:
            child = self._start(command, shell, log, log)
            self._launched.append(child)
        return child

    def _start(self, command: Command, shell: bool, out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
        arguments = self.arguments(command, shell)
        if not arguments:
            raise ValueError("the command is empty")
        if not shell and shutil.which(arguments[0], path=self.env["PATH"]) is None:
            raise FileNotFoundError(f"no program {arguments[0]!r} in this desktop")
        return subprocess.Popen(
            arguments,
            shell=shell,
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )

    def own(self) -> set[int]:
        """Children that this object waits for itself. Launched ones that ended are collected here."""
        with self._lock:
            self._launched = [child for child in self._launched if child.poll() is None]
            return {child.pid for child in self._launched} | self._running
