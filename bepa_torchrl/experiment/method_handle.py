"""Starts and monitors a method's process: logs its output to ``log.txt``, explains its exit in one line."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

#: environment variable with the process id of the launcher
LAUNCHER = "BEPA_LAUNCHER"
NOTICE = "notice: "  #: lines of a method's output with this prefix are shown to the user
_PR_SET_PDEATHSIG = 1
_HINTS = {
    signal.SIGKILL: "killed from outside, or by the system when memory ran out: then lower train.max_tokens",
    signal.SIGBUS: "a file in memory could not be written or read: is the disk full?",
    signal.SIGXFSZ: "a file would be larger than the limit (ulimit -f)",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code aborted",
}


class MethodChild:
    """Starts a method's process and reads its output.

    The output is read through a pipe, so that errors reach the user even if ``log.txt`` cannot be written.

    Args:
        folder: the method's folder.
        threads: CPU threads of its numerical libraries.
        on_ray: whether it connects to a Ray cluster.
    """

    def __init__(self, folder: Path, *, threads: int, on_ray: bool = False) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        environment[LAUNCHER] = str(os.getpid())
        command = [sys.executable, "-u", "-m", "bepa_torchrl.experiment.method_process", str(folder)]
        self.name, self.log, self._on_ray = folder.name, folder / "log.txt", on_ray
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        self._lines: deque[str] = deque(maxlen=200)
        self._notices: deque[str] = deque()
        self._reader = threading.Thread(target=self._read, name=f"output of {self.name}", daemon=True)
        self._reader.start()

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None if the process is still running; -n: ended by signal n."""
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(timeout=seconds)
            self._reader.join(timeout=5.0)  # a grandchild may hold the pipe open
            return code
        return None

    def notices(self) -> list[str]:
        """The method's notices for the user since the last call."""
        lines = []
        while self._notices:
            lines.append(f"{self.name}: {self._notices.popleft()}")
        return lines

    def lost_ray(self) -> bool:
        """Whether it has ended without an error of its own, with code 1, as Ray ends a process whose node is gone."""
        return self._on_ray and self.process.returncode == 1 and not self._own_lines()

    def failure(self) -> str:
        """One line on why the process ended, with the path of its log."""
        code, where = self.process.returncode, f"(log: {self.log})"
        if code < 0:
            return f"{self.name}: {exit_text(code)} {where}"
        if self.lost_ray():
            problem = "ended by Ray, whose node on this machine (its raylet) or head has exited"
            return f"{self.name}: {problem} {where}"
        lines = self._own_lines() or [line for line in self._lines if line.strip()]
        return f"{lines[-1]} {where}" if lines else f"{self.name}: ended with code {code} and no output {where}"

    def _own_lines(self) -> list[str]:
        return [line for line in self._lines if line.startswith(f"{self.name}: ")]

    def interrupt(self) -> None:
        """Asks the process to end as with Ctrl-C; :meth:`wait` returns when it has."""
        self.process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Ends the process by SIGTERM, after 5 s by SIGKILL."""
        self.process.terminate()
        if self.wait(5.0) is None:
            self.process.kill()
            self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with suppress(OSError):
            self.log.touch()
        with self.process.stdout as output:
            for data in output:
                line = data.decode("utf-8", errors="replace").rstrip("\n")
                self._lines.append(line)
                if line.startswith(NOTICE):
                    self._notices.append(line.removeprefix(NOTICE))
                with suppress(OSError), self.log.open("ab") as log:  # the disk may be full; the line is kept in memory
                    log.write(data)


def exit_text(code: int) -> str:
    """How a process ended: its exit code, or (-n) the signal and its likely cause."""
    if code >= 0:
        return f"ended with code {code}"
    number = signal.Signals(-code)
    return f"ended by signal {number.name}" + (f" ({_HINTS[number]})" if number in _HINTS else "")


def interrupt_once() -> None:
    """Makes the first SIGINT raise KeyboardInterrupt and later ones do nothing, so that the shutdown is completed.

    On Ctrl-C the process may get two: the terminal's and the launcher's.
    """

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


def end_with_launcher() -> None:
    """Makes the kernel kill this process when the launcher that started it exits for any reason.

    Does nothing without a launcher. SIGKILL is safe, since keepers clean up desktops and files are written atomically;
    it also works on a stopped process.

    Raises:
        SystemExit: the launcher has already exited.
        OSError: prctl failed.
    """
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is None:
        return
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(launcher):  # it exited before the request was made
        sys.exit(f"the program that started this process (process {launcher}) has exited; go on with resume=true")
