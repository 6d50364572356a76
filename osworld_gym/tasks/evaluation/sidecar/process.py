"""One evaluator process: requests and replies are lines of JSON on its stdin and stdout, each within a deadline.

How the process ends states whose failure it is. It exceeds its limit of CPU time, or crashes on what it reads: the
result is at fault. It is killed from outside or exits: this machine is.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import IO, Any

from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.evaluation.sidecar.calling import Exhausted

START = 180.0  # seconds for the imports (1 to 10 s on an idle machine)
MAX_LINE = 8 << 20  # bytes of one reply
#: signals that a process causes itself, by what it reads
CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
BUSY = 0.5  # of the deadline: with that much CPU time the process was working, and not waiting or starved

Fields = dict[str, Any]
Serve = Callable[[str, Sequence[Any]], Fields]


class Sidecar:
    """One evaluator process. Used by one thread at a time.

    Args:
        name: what runs in it, for error messages.
        command: the program of the sidecar and its arguments.
        env: the environment of the sidecar.
        folder: the working directory of the sidecar.
        fix: the end of the error message when it cannot start.

    Raises:
        DesktopError: (any method) ``evaluator_failed``: it failed to start, exited, or exceeded the deadline; the
            process has been ended.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], folder: Path, fix: str = "") -> None:
        self._name = name
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in end()
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**env, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            cwd=folder,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._exit, self._ended, self._rest = os.pidfd_open(self._process.pid), False, b""
        self.ready = self._receive(START, time.monotonic() + START)
        if not self.ready["ready"]:
            self.end()
            message = f"importing {name} failed: {self.ready['error']}{fix and f'; {fix}'}"
            raise DesktopError(FailureReason.evaluator_failed, message)

    def ask(self, question: Mapping[str, Any], deadline: float, serve: Serve | None = None) -> Fields:
        """Sends one request and returns the reply, within ``deadline`` seconds.

        Args:
            question: the question, as JSON.
            deadline: seconds, those of ``serve`` included; a call of ``serve`` is not interrupted.
            serve: answers the calls ``(name, arguments)`` that the process makes before it replies.

        Raises:
            Exhausted: the process exceeded its limit of CPU time, crashed, or worked until the deadline.
        """
        end, used = time.monotonic() + deadline, self._cpu()
        try:
            self._send(question, deadline, end)
            while "call" in (reply := self._receive(deadline, end, used)):
                assert serve is not None, "this process makes no calls"
                self._send(serve(reply["call"], reply["arguments"]), deadline, end)
        except BrokenPipeError as error:
            raise self._exited() from error
        except BaseException:  # the process is in the middle of a request
            self.end()
            raise
        if "exhausted" in reply:
            self.end()
            raise Exhausted(reply["exhausted"])
        return reply

    @property
    def alive(self) -> bool:
        return not self._ended and not _ready(self._exit, select.POLLIN, 0.0)

    def end(self) -> None:
        """Ends the process and what it started. May be called twice."""
        if self._ended:
            return
        self._ended = True
        with suppress(ProcessLookupError):  # not reaped before, so that the number is its own or nobody's
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self._exit)
        self._log.close()

    def _send(self, message: Mapping[str, Any], deadline: float, end: float) -> None:
        assert self._process.stdin is not None
        rest, descriptor = memoryview(json.dumps(message).encode() + b"\n"), self._process.stdin.fileno()
        while rest:
            if not _ready(descriptor, select.POLLOUT, end - time.monotonic()):
                raise self._late(deadline)
            rest = rest[os.write(descriptor, rest) :]

    def _receive(self, deadline: float, end: float, used: float = inf) -> Fields:
        assert self._process.stdout is not None
        descriptor, parts = self._process.stdout.fileno(), [self._rest]
        while b"\n" not in parts[-1]:
            if not _ready(descriptor, select.POLLIN, end - time.monotonic()):
                if self._cpu() - used >= BUSY * deadline:
                    self.end()
                    raise Exhausted(f"the evaluator worked on it for more than {deadline:g} s")
                raise self._late(deadline)
            parts.append(os.read(descriptor, 1 << 16))
            if not parts[-1]:
                raise self._exited()
            if len(parts) > MAX_LINE >> 16:
                raise self._failed(f"replied with more than {MAX_LINE} bytes")
        line, self._rest = b"".join(parts).split(b"\n", 1)
        reply: Fields = json.loads(line)
        return reply

    def _cpu(self) -> float:
        """Seconds of CPU time that the process has used; 0 where the system does not state it."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime

    def _late(self, deadline: float) -> DesktopError:
        return self._failed(f"took longer than {deadline:g} s")

    def _exited(self) -> Exception:
        """The error for a process that is ending by itself."""
        if not _ready(self._exit, select.POLLIN, 5.0):
            return self._failed("closed its output")
        status = self._status()
        if status == -signal.SIGXCPU:
            self.end()
            return Exhausted("the evaluator reached its limit of CPU time")
        if -status in CRASHES:
            self.end()
            return Exhausted(f"the evaluator crashed on it ({signal.Signals(-status).name})")
        return self._failed(f"process exited ({status})")

    def _status(self) -> int:
        """How the process ended, as of ``Popen.returncode``, without removing its number; -9 if another has."""
        try:
            result = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return -signal.SIGKILL
        assert result is not None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def _failed(self, what: str) -> DesktopError:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        self.end()
        message = f"{self._name}: {what}; last line of its log: {lines[-1] if lines else 'none'}"
        return DesktopError(FailureReason.evaluator_failed, message)


def _ready(descriptor: int, event: int, seconds: float) -> bool:
    """Whether the descriptor has the event (or was closed at the other end) within the time."""
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))
