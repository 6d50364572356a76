"""Shows the progress of the preparation's stages, with an estimated end.

On a terminal a bar is redrawn; otherwise (log file, pipe) a line is printed every so often.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from bepa_torchrl.monitoring.status import duration

_EVERY = 30.0  #: seconds between two lines
_DAY = 20 * 3600.0  #: seconds after which an end is given with its date


class ConsoleProgress:
    """Shows one stage after the other; a context manager. May be called from several threads.

    Args:
        console: where it is shown.
        every: seconds between two lines, if the console is no terminal.
        clock: seconds.
        now: the time of day.
    """

    def __init__(
        self,
        console: Console,
        *,
        every: float = _EVERY,
        clock: Callable[[], float] = monotonic,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.console, self._every, self._clock, self._now = console, every, clock, now
        left = TextColumn("{task.fields[left]}")
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), left, console=console
        )
        self._bar: TaskID | None = None
        self._name, self._total, self._done, self._before = "", 0, 0, 0
        self._started = self._printed = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> ConsoleProgress:
        if self.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.console.is_terminal:
            self._bars.stop()

    def note(self, line: str) -> None:
        """Prints a line about what happens next."""
        self.console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)

    def begin(self, name: str, total: int, done: int) -> None:
        """A stage of ``total`` units begins, of which ``done`` were finished by an earlier process."""
        with self._lock:
            self._name, self._total, self._done, self._before = name, total, done, done
            self._started = self._printed = self._clock()
            if done:
                self.note(f"{name}: {done} of {total} were finished before")
            if self.console.is_terminal:
                if self._bar is not None:
                    self._bars.remove_task(self._bar)
                self._bar = self._bars.add_task(name, total=total, completed=done, left="")

    def advance(self) -> None:
        """One more unit is finished."""
        with self._lock:
            self._done += 1
            now = self._clock()
            left = self._left(now)
            if self._bar is not None:
                self._bars.update(self._bar, completed=self._done, left=left)
            elif now - self._printed >= self._every:
                self._printed = now
                self.note(f"{self._name}: {self._done} of {self._total}{left and ', '}{left}")

    def _left(self, now: float) -> str:
        """Rate and estimated end; empty for a finished stage."""
        rate = (self._done - self._before) / max(now - self._started, 1e-9)
        if self._done >= self._total:
            return ""
        seconds = (self._total - self._done) / rate
        end = self._now() + timedelta(seconds=seconds)
        pace = f"{rate:.2f} per s" if rate >= 0.1 else f"{60 * rate:.2f} per min"
        return f"{pace}, about {duration(seconds)} left, until {end:{'%d %b %H:%M' if seconds > _DAY else '%H:%M'}}"
