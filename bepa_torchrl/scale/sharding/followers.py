"""The processes of ranks 1, 2, … on this machine: rank 0 starts them, sends them commands, and notices their exit.

Commands are lines of JSON on a process's standard input. There it can wait for any time while rank 0 collects rollouts:
the end of rank 0 closes the input. Rows and weights are sent by collective operations, which have a timeout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bepa_torchrl.failures import INFRASTRUCTURE
from bepa_torchrl.training.rank_failures import RankLostError

#: seconds in which rank 0 ends by itself after another rank has exited; then its process is ended
_GRACE = 15.0
#: seconds for the other ranks to exit after the last command
_END = 30.0
#: seconds for the last lines of a rank that has exited, if a process of its own holds the pipe
_LAST_LINES = 5.0


class LostRanks:
    """What rank 0 knows of ranks that have exited or do not answer.

    Args:
        name: the name of the run, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._closing, self._one_lost = threading.Event(), threading.Event()
        self._lost: dict[int, str] = {}

    def first(self, seconds: float) -> str | None:
        """How the first rank was lost; None: none is after ``seconds``."""
        if not self._one_lost.wait(seconds):
            return None
        return next(iter(self._lost.values()))

    def ending(self) -> None:
        """From now on the exit of a rank is not reported."""
        self._closing.set()

    def wait_for_end(self, seconds: float) -> bool:
        """Whether :meth:`ending` is called within ``seconds``."""
        return self._closing.wait(seconds)

    def report(self, rank: int, text: str) -> None:
        """A rank is lost: ends this process unless it does so itself, or has called :meth:`ending`, within 15 s."""
        self._lost[rank] = text
        self._one_lost.set()
        if not self._closing.wait(_GRACE):
            sys.stderr.write(f"{self.name}: {text}; {HINT}\n")
            sys.stderr.flush()
            os._exit(INFRASTRUCTURE)


class Followers:
    """Starts and monitors the processes of ranks 1 to ``ranks - 1``.

    If one of them exits before :meth:`close`, this process exits within 15 s: by a RankLostError of :meth:`send` or of
    a collective operation, or at once if it is busy with something else.

    Args:
        command: the command of each process; its environment has RANK and WORLD_SIZE.
        ranks: number of ranks, this process included, at least 2.
        name: the name of the run, for messages.
        environment: further environment variables.
        describe: (exit code) → how a process ended, for messages.
    """

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        *,
        name: str,
        environment: Mapping[str, str],
        describe: Callable[[int], str],
    ) -> None:
        self.name, self.ranks, self._describe = name, ranks, describe
        self._lost = LostRanks(name)
        self._processes = {
            rank: subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment, "RANK": str(rank), "WORLD_SIZE": str(ranks)},
                text=True,
                errors="replace",
            )
            for rank in range(1, ranks)
        }
        self._watchers = [
            threading.Thread(target=self._watch, args=(rank, process), name=f"rank {rank}", daemon=True)
            for rank, process in self._processes.items()
        ]
        for watcher in self._watchers:
            watcher.start()

    def send(self, command: Mapping[str, Any]) -> None:
        """Sends one command to every process.

        Raises:
            RankLostError: one of them has exited.
        """
        line = json.dumps(command) + "\n"
        for rank, process in self._processes.items():
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except OSError as error:
                raise RankLostError(f"rank {rank} of {self.ranks} has exited") from error

    def exited(self, seconds: float) -> str | None:
        """How the first process to exit ended and its last line of output; None: all run after ``seconds``."""
        return self._lost.first(seconds)

    def ending(self) -> None:
        """From now on an exit of a process is not reported."""
        self._lost.ending()

    def close(self, *, kill: bool) -> None:
        """Ends the processes: by the end of their input, or at once with ``kill``."""
        self.ending()
        for process in self._processes.values():
            if kill:
                process.kill()
            with suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for watcher in self._watchers:
            watcher.join()

    def _watch(self, rank: int, process: subprocess.Popen[str]) -> None:
        """Passes the process's errors on; ends this process if that one exits too early."""
        last = deque([""], maxlen=1)
        reader = threading.Thread(target=_pass_on, args=(process, last), name=f"errors of rank {rank}", daemon=True)
        reader.start()
        code = process.wait()
        reader.join(_LAST_LINES)
        error = last[0].removeprefix(f"{self.name}: rank {rank}: ") if code > 0 else ""
        text = f"rank {rank} of {self.ranks} {self._describe(code)}"
        self._lost.report(rank, f"{text}: {error}" if error else text)


def _pass_on(process: subprocess.Popen[str], last: deque[str]) -> None:
    """Passes the process's errors on, until nobody has its pipe any more; keeps the last line."""
    assert process.stderr is not None
    with process.stderr as errors:
        for line in errors:
            sys.stderr.write(line)
            last.append(line.strip() or last[0])


HINT = "go on with resume=true, from the newest checkpoint; train.ranks may be another number"
