"""Runs the calls of one desktop, in the caller's thread or on its own; ``vector.py`` manages many workers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from osworld_gym.desktops.base import Desktop
from osworld_gym.episode import Episode, EpisodeOptions, blank, failed
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.types import Screenshot, StepResult, StopReason

logger = logging.getLogger(__name__)

Make = Callable[[], Desktop]
Call = Callable[[Episode], StepResult]
Outcome = StepResult | TaskError
Post = Callable[["DesktopWorker", Outcome], None]


class DesktopWorker:
    """One desktop and its episodes. :meth:`run` is called by one thread at a time and never raises.

    After ``env_error`` the desktop is closed and the next call creates a new one: no state survives a failure.
    """

    def __init__(self, make: Make, options: EpisodeOptions, size: tuple[int, int], desktop: Desktop | None) -> None:
        self._make = make
        self._options = options
        self._size = size
        self.desktop = desktop
        self._episode: Episode | None = None
        self.frame: Screenshot = blank(size)

    def run(self, call: Call) -> Outcome:
        """Runs one call on the episode. Desktop errors become ``env_error``; unexpected exceptions are also logged."""
        try:
            result = call(self._ready())
        except TaskError as error:
            return error
        except DesktopError as error:  # only creating a desktop raises it; an Episode never does
            return failed(self.frame, error)
        except Exception as error:  # a provider violated its contract: only its own row is affected
            logger.exception("a desktop raised an exception other than DesktopError; its episode is masked")
            return failed(self.frame, DesktopError(FailureReason.died, f"{type(error).__name__}: {error}"))
        self.frame = result.screenshot
        return result

    def discard(self) -> None:
        """Closes the desktop; the next :meth:`run` creates a new one."""
        desktop, self.desktop, self._episode = self.desktop, None, None
        if desktop is not None:
            close_quietly(desktop)

    def _ready(self) -> Episode:
        if self._episode is None:
            if self.desktop is None:
                self.desktop = self._make()
            if (size := tuple(self.desktop.screen_size)) != tuple(self._size):
                message = f"expected a screen of {self._size} pixels, as the first desktop's, got {size}"
                raise DesktopError(FailureReason.never_ready, message)
            self._episode = Episode(self.desktop, self._options)
        return self._episode


class ThreadedWorker(DesktopWorker):
    """A worker on its own daemon thread.

    Once abandoned, it posts no more results, and closes its desktop even if that is still being created.
    """

    def __init__(
        self, make: Make, options: EpisodeOptions, size: tuple[int, int], desktop: Desktop | None, post: Post, name: str
    ) -> None:
        super().__init__(make, options, size, desktop)
        self._post = post
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._abandoned = threading.Event()
        self.thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self.thread.start()

    def submit(self, call: Call) -> None:
        self._calls.put(call)

    def finish(self) -> None:
        """Makes the thread close its desktop and exit after its current call."""
        self._calls.put(None)

    def abandon(self) -> threading.Thread:
        """Gives up a hung call: closes the desktop from another thread and returns that thread."""
        self._abandoned.set()
        self._calls.put(None)
        closer = threading.Thread(target=self._close_hung, name=f"{self.thread.name}-closer", daemon=True)
        closer.start()
        return closer

    def _ready(self) -> Episode:
        episode = super()._ready()
        if self._abandoned.is_set():
            raise DesktopError(FailureReason.hung, "given up while the desktop was being created")
        return episode

    def _close_hung(self) -> None:
        desktop = self.desktop
        if desktop is not None:
            close_quietly(desktop)

    def _loop(self) -> None:
        while (call := self._calls.get()) is not None:
            outcome = self.run(call)
            if self._abandoned.is_set():
                break
            self._post(self, outcome)
            if broken(outcome):
                self.discard()
        self.discard()


def close_quietly(desktop: Desktop) -> None:
    """Closes a desktop that may be broken; an exception, which the contract forbids, is logged."""
    try:
        desktop.close()
    except Exception:
        logger.exception("Desktop.close raised; it must never raise")


def broken(outcome: Outcome) -> bool:
    """Whether the desktop must be replaced after this outcome."""
    return isinstance(outcome, StepResult) and outcome.stop is StopReason.env_error
