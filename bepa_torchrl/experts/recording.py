"""Records oracles on many desktops in parallel: the data of cloning, cached on disk.

An episode is a task, a style of its oracle and a seed. Its trace is stored under a name with a hash of everything that
determines it (the task's content, style, seed, screen size, format), so that a second run records only what is missing
or has changed, also after a kill: a trace file is complete or absent. Plans are not part of a recording; they only
change the prompt (``plan_from_trace`` of a trace of the style ``expert``).
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bepa_torchrl.experts.recorder import record_expert
from bepa_torchrl.experts.trace import SCHEMA, ExpertTrace, load_trace, save_trace, trace_path
from bepa_torchrl.storage.lock import locked
from osworld_gym.atomic import remove_leftovers
from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.task import Task

MAX_STEPS = 30  #: steps after which an oracle's episode is verified


@dataclass(frozen=True)
class Episode:
    """One episode to record: a task, the style of its oracle (``expert`` or ``native``), the desktop's seed."""

    task: Task
    style: str
    seed: int

    def name(self, screen: tuple[int, int]) -> str:
        """The recording's name on a screen of (width, height) pixels, with a hash of what determines its content."""
        content = [SCHEMA, self.task.id, self.task.content_hash, self.style, self.seed, *screen]
        return f"{self.style}-{self.seed:05d}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]}"

    def path(self, folder: Path, screen: tuple[int, int]) -> Path:
        """The trace's file."""
        return trace_path(folder, self.name(screen), self.task.id)


@dataclass
class Recorded:
    """The result of :func:`record_all`.

    Args:
        cached: episodes that were on disk already.
        episodes: episodes recorded now.
        turns: their number of steps.
        seconds: wall time of the run.
        unsolved: names of the episodes whose oracle did not succeed; they are not stored.
        failures: desktop failures by reason; each was tried again on a new desktop.
        lost: names of the episodes whose every attempt ended with a desktop failure.
    """

    cached: int = 0
    episodes: int = 0
    turns: int = 0
    seconds: float = 0.0
    unsolved: list[str] = field(default_factory=list)
    failures: Counter[FailureReason] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.turns / self.seconds if self.seconds else 0.0
        text = f"{self.episodes} episodes recorded, {self.cached} were there; {self.turns} turns, {rate:.1f} turns/s"
        failed = ", ".join(f"{reason} {count}" for reason, count in sorted(self.failures.items()))
        return text + (f"; desktop failures: {failed}" if failed else "")


def record_all(
    folder: Path,
    episodes: Iterable[Episode],
    make_desktop: Callable[[], Desktop],
    *,
    desktops: int = 8,
    attempts: int = 3,
    note: Callable[[str], None] = lambda _: None,
) -> Recorded:
    """Records the episodes that ``folder`` does not have yet.

    Args:
        folder: where traces and images are stored; created if missing. One process at a time may write to it.
        episodes: what to record.
        make_desktop: creates one desktop; called on each of the threads.
        desktops: number of desktops in parallel.
        attempts: attempts per episode that a desktop failure may cost.
        note: called with one line per stored episode, on any thread.

    Raises:
        FolderInUseError: another process is writing to the folder.
        DesktopError: no desktop can be created.
        TaskError: a task is wrong or has no oracle.
        ValueError: ``desktops`` or ``attempts`` is below 1.
        OSError: the disk is full, or not writable. What has been recorded stays.
    """
    if desktops < 1 or attempts < 1:
        raise ValueError(f"record_all: expected desktops and attempts of at least 1, got {desktops} and {attempts}")
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with locked(folder):
        for below in (folder / "images", *(folder / "traces").glob("*")):
            remove_leftovers(below)
        with make_desktop() as first:
            screen = first.screen_size
        paths = {episode.path(folder, screen): episode for episode in episodes}
        missing = [episode for path, episode in paths.items() if not path.exists()]
        run = _Run(folder, missing, make_desktop, screen, attempts, note)
        run.done.cached = len(paths) - len(missing)
        run.work(min(desktops, len(missing)))
    run.done.seconds = time.monotonic() - start
    return run.done


def load_recordings(folder: Path, episodes: Sequence[Episode], screen: tuple[int, int]) -> Iterator[ExpertTrace]:
    """The traces of those episodes that are recorded, in their order.

    Raises:
        TraceError: a file is damaged.
    """
    for episode in episodes:
        path = episode.path(folder, screen)
        if path.exists():
            yield load_trace(path)


class _Run:
    """The threads of one run: each has a desktop and takes the next episode until none is left."""

    def __init__(
        self,
        folder: Path,
        missing: Sequence[Episode],
        make_desktop: Callable[[], Desktop],
        screen: tuple[int, int],
        attempts: int,
        note: Callable[[str], None],
    ) -> None:
        self._folder, self._make, self._screen = folder, make_desktop, screen
        self._left = deque((episode, attempts) for episode in missing)
        self._note, self._lock, self._stopped = note, threading.Lock(), threading.Event()
        self._error: BaseException | None = None
        self.done = Recorded()

    def work(self, count: int) -> None:
        """Runs ``count`` threads to their end; raises the first thread's error."""
        threads = [threading.Thread(target=self._thread, name=f"record-{i}") for i in range(count)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self._stopped.set()  # after an interrupt, each thread ends with its episode
        if self._error is not None:
            raise self._error

    def _thread(self) -> None:
        try:
            while self._left and not self._stopped.is_set():
                with self._make() as desktop:
                    self._until_failure(desktop)
        except BaseException as error:  # noqa: BLE001  raised again on the caller's thread
            self._error = self._error or error
            self._stopped.set()

    def _until_failure(self, desktop: Desktop) -> None:
        """Records episodes on one desktop; returns when none is left, or when the desktop has failed."""
        while not self._stopped.is_set():
            with self._lock:
                if not self._left:
                    return
                episode, attempts = self._left.popleft()
            try:
                trace = record_expert(
                    desktop,
                    episode.task,
                    episode.seed,
                    style=episode.style,
                    name=episode.name(self._screen),
                    max_steps=MAX_STEPS,
                )
            except DesktopError as error:
                self._failed(episode, attempts - 1, error)
                return
            if trace.success:
                save_trace(trace, self._folder)
            self._count(trace)

    def _failed(self, episode: Episode, attempts: int, error: DesktopError) -> None:
        with self._lock:
            self.done.failures[error.reason] += 1
            if attempts:
                self._left.append((episode, attempts))
            else:
                self.done.lost.append(f"{episode.task.id} {episode.name(self._screen)}: {error}")

    def _count(self, trace: ExpertTrace) -> None:
        with self._lock:
            if trace.success:
                self.done.episodes += 1
                self.done.turns += len(trace.steps)
            else:
                self.done.unsolved.append(f"{trace.task_id} {trace.expert}")
        if trace.success:
            self._note(f"{trace.task_id} {trace.expert}: {len(trace.steps)} turns")
