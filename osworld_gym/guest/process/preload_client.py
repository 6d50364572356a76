"""Runs ``python -c`` commands fast, by forks of a preloaded Python (``preload_server.py``) started on demand."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from .preload_server import BOOT, REFUSED

NAMES = ("python", "python3")
UNKNOWN = "the preloaded Python exited; the program's exit status is unknown"


class PreloadClient:
    """Runs ``python -c`` commands by forks of one prepared interpreter.

    Args:
        env: the environment of the programs.
        folder: the working directory of the programs.
        log: descriptor of a file for the output of the forking Python.
    """

    def __init__(self, env: dict[str, str], folder: Path, log: int) -> None:
        self._env, self._folder, self._log = env, folder, log
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fits(self, command: Sequence[str]) -> bool:
        """Whether the command is ``python -c <code> ...`` and the desktop's python is the one that runs the guest."""
        if len(command) < 3 or command[0] not in NAMES or command[1] != "-c" or "\0" in command[2]:
            return False
        program = shutil.which(command[0], path=self._env["PATH"])
        here = Path(sys.executable)
        return program is not None and Path(program).parent == here.parent and os.path.samefile(program, here)

    def run(self, command: Sequence[str], out: IO[bytes], err: IO[bytes], timeout: float) -> int:
        """Runs a command that :meth:`fits`; returns its exit status, negative for a signal as in ``subprocess``.

        Raises:
            TimeoutError: after ``timeout`` seconds; the program's process group has been killed.
            NoResult: no process could be made for it, or its exit status is unknown.
        """
        try:
            return self._once(command, out, err, timeout)
        except _NotTaken as error:  # the forking Python exited before it accepted the request: start another one
            self._drop(error.control)
            return self._once(command, out, err, timeout)

    def _once(self, command: Sequence[str], out: IO[bytes], err: IO[bytes], timeout: float) -> int:
        end = time.monotonic() + timeout
        read, write = os.pipe()
        with os.fdopen(read, "rb") as answer:
            try:
                control = self._ask(command, out, err, write)
            finally:
                os.close(write)
            lines = _lines(answer, end)
            if next(lines, None) is None:
                raise _NotTaken(control)
            if (pid := next(lines, None)) is None:
                raise NoResult(UNKNOWN)
            if pid.startswith(REFUSED):
                raise NoResult(f"python could not be started: {pid[1:].decode().strip()}")
            try:
                status = next(lines, None)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(int(pid), signal.SIGKILL)
                raise
            if status is None:
                raise NoResult(UNKNOWN)
            return int(status)

    def _ask(self, command: Sequence[str], out: IO[bytes], err: IO[bytes], answer: int) -> socket.socket:
        """Sends the request; returns the socket on which it was sent."""
        request = json.dumps({"code": command[2], "arguments": list(command[3:]), "folder": str(self._folder)})
        order = os.memfd_create("request")
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            os.write(order, request.encode())
            os.lseek(order, 0, os.SEEK_SET)
            with self._lock:
                control = self._connect()
                try:
                    socket.send_fds(control, [b"x"], [order, nothing, out.fileno(), err.fileno(), answer])
                except BrokenPipeError as error:
                    raise _NotTaken(control) from error
                return control
        finally:
            os.close(order)
            os.close(nothing)

    def _connect(self) -> socket.socket:
        """The socket of a running forking Python, which is started if there is none."""
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        if self._control is not None:
            self._control.close()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = Path(__file__).with_name("preload_server.py")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(script), str(theirs.fileno())],
                env=self._env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        return self._control

    def own(self) -> set[int]:
        """Process ids of the children that this object waits for."""
        process = self._process
        return {process.pid} if process is not None else set()

    def _drop(self, control: socket.socket) -> None:
        """Closes the socket of a forking Python that exited, unless a newer one has replaced it."""
        with self._lock:
            if self._control is control:
                control.close()
                self._control = None


class NoResult(OSError):
    """The desktop, not the program, is to blame: it could not make a process, or the exit status is lost."""


class _NotTaken(NoResult):
    """The forking Python exited before it accepted the request, so nothing was run."""

    def __init__(self, control: socket.socket) -> None:
        super().__init__("the preloaded Python has exited")
        self.control = control


def _lines(answer: IO[bytes], end: float) -> Iterator[bytes]:
    """The lines of a pipe, each as soon as it arrives. Raises TimeoutError at ``end``, in monotonic seconds."""
    text = b""
    while True:
        while b"\n" in text:
            line, _, text = text.partition(b"\n")
            yield line
        ready, _, _ = select.select([answer], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(answer.fileno(), 4096)
        if not part:
            return
        text += part
