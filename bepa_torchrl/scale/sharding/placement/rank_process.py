"""A rank's process: started, read, signalled and ended; the class is the Ray actor of a rank.

The rank is a process of its own, so that it has signals, threads and exit code as by torchrun; the kernel ends it with
the actor. The actor of rank 0 also has the store over which the ranks find each other.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import IO, TYPE_CHECKING

from bepa_torchrl.scale.sharding.placement.bundles import child_environment

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

#: lines that are kept until they are asked for; the oldest ones are left out
_LINES = 10_000
#: seconds in which a file of another machine gets visible on a shared disk
_VISIBLE = 5.0
#: seconds for the last lines of a process that has ended, if a process of its own holds the pipe
_LAST_LINES = 5.0
_KILL = 10.0
_SIOCGIFADDR = 0x8915
Line = tuple[str, str]  #: ``out`` or ``err``, and the line without its end


class RankProcess:
    """One rank's process on this machine. Methods may be called from several threads.

    Args:
        launcher: environment variable in which the process gets this one's id; it must then ask the kernel to be ended
            with it.
    """

    def __init__(self, launcher: str) -> None:
        self._launcher = launcher
        self._lines: deque[Line] = deque(maxlen=_LINES)
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._problem: OSError | None = None
        self._store: Store | None = None

    def sees(self, marker: str, text: str, folder: str) -> str | None:
        """What this machine does not see of another one's disk; None: all.

        Args:
            marker: path of a file.
            text: what is in it.
            folder: path of a folder.
        """
        end = monotonic() + _VISIBLE
        while not (found := _reads(marker, text)) and monotonic() < end:
            sleep(0.2)
        if not found:
            return str(Path(marker).parent)
        return None if Path(folder).is_dir() else folder

    def serve(self, address: str) -> int:
        """Serves the store of all ranks at an address of this machine; returns its port.

        Raises:
            OSError: the address is not this machine's.
        """
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        listener = socket.create_server((address, 0))
        port: int = listener.getsockname()[1]
        self._store = TCPStore(
            address,
            port,
            is_master=True,
            timeout=timedelta(seconds=60.0),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return port

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
        """Starts the process: this machine's Python with the arguments.

        Args:
            arguments: of Python.
            environment: in addition to this process's.
            folder: in which it starts.

        Raises:
            OSError: it cannot be started.
        """
        started = threading.Event()
        whole = child_environment({**environment, self._launcher: str(os.getpid())})
        # the kernel ends the process with the thread that started it: this one waits for its end
        thread = threading.Thread(target=self._run, args=(arguments, whole, folder, started), daemon=True)
        thread.start()
        started.wait()
        if self._problem is not None:
            raise self._problem

    def poll(self, seconds: float) -> tuple[list[Line], int | None]:
        """Waits up to ``seconds`` for output or the end.

        Returns:
            The lines since the last call, and the exit code; None: it runs; -n: ended by signal n.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._code is not None, seconds)
            lines = list(self._lines)
            self._lines.clear()
            return lines, self._code

    def signal(self, number: int) -> None:
        """Sends a signal to the process, if it runs."""
        if self._process is not None and self._code is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def lost(self, rank: int, text: str, store: Mapping[str, int | str]) -> bool:
        """Tells this process, which is rank 0, that another rank is lost; whether it trains and so hears it.

        Args:
            rank: the other rank.
            text: how it ended.
            store: ``ranks``, ``host``, ``port`` and ``attempt`` of the job.
        """
        from bepa_torchrl.scale.sharding.torchrun import TorchrunJob

        job = TorchrunJob(0, int(store["ranks"]), 0, 1, str(store["host"]), int(store["port"]), int(store["attempt"]))
        return job.report_exit(rank, text)

    def end(self) -> None:
        """Kills the process and those that it has started, and waits for its end."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL)

    def _run(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: str, started: threading.Event
    ) -> None:
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=folder,
                start_new_session=True,  # Ctrl-C reaches it from the program that has placed it
            )
        except OSError as error:
            self._problem = error
            return
        finally:
            started.set()
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=self._read, args=(name, pipe), daemon=True)
            for name, pipe in (("out", process.stdout), ("err", process.stderr))
        ]
        for reader in readers:
            reader.start()
        code = process.wait()
        for reader in readers:
            reader.join(_LAST_LINES)
        with self._changed:
            self._code = code
            self._changed.notify_all()

    def _read(self, name: str, pipe: IO[bytes]) -> None:
        with pipe:
            for data in pipe:
                with self._changed:
                    self._lines.append((name, data.decode("utf-8", errors="replace").rstrip("\r\n")))
                    self._changed.notify_all()


def _reads(path: str, text: str) -> bool:
    try:
        return Path(path).read_text(encoding="utf-8") == text
    except OSError:
        return False


def interface_of(address: str) -> str | None:
    """The name of this machine's network interface with an IPv4 address; None: it has none, or is not Linux."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None
