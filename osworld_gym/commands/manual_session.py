"""One desktop under manual control: the commands of ``osworld-gym desktop``, from the terminal and the web page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import DesktopError, ParseError, TaskError
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action, StopReason
from osworld_gym.uitars.parse import parse

SHOWN = 200  # characters of a wrong line that an answer repeats


class ManualSession:
    """A desktop and a task. The commands return a line for the user, also if they fail.

    Args:
        desktop: the desktop, not reset yet.
        task: the task, set up on every reset and scored by :meth:`verify`; None: a desktop without a task.
        seed: seed of the resets.
    """

    def __init__(self, desktop: Desktop, task: Task | None, seed: int) -> None:
        self.desktop, self.task, self.seed = desktop, task, seed
        self._lock = threading.Lock()

    @property
    def instruction(self) -> str:
        """The task's instruction; empty without a task."""
        return self.task.instruction if self.task is not None else ""

    def begin(self) -> None:
        """Resets the desktop and sets up the task.

        Raises:
            DesktopError, TaskError: this failed; after that only :meth:`begin` may be called.
        """
        with self._lock:
            self.desktop.reset(self.seed)
            if self.task is not None:
                prepare(self.task, self.desktop, seed=self.seed)

    def reset(self) -> str:
        """Runs :meth:`begin` and returns its outcome as a line."""

        def begin() -> str:
            self.begin()
            return "a fresh desktop"

        return self._told(begin)

    def act(self, text: str) -> str:
        """Performs actions in the UI-TARS form, points in screen pixels; returns when the screen is still."""
        try:
            actions = parse(text if "Action:" in text else f"Action: {text}").actions
        except ParseError as error:
            return f"not an action ({error.reason}): {_shown(text.strip())}; help shows the form"
        return self._told(lambda: self._perform(actions))

    def _perform(self, actions: Sequence[Action]) -> str:
        with self._lock:
            self.desktop.perform(actions)
        return "performed " + ", ".join(action.kind for action in actions)

    def frame(self) -> bytes:
        """The screen as PNG. Raises DesktopError."""
        with self._lock:
            return self.desktop.screenshot().png

    def shot(self, path: str) -> str:
        """Writes the screen to a file of this machine."""
        try:
            file = Path(path).expanduser()
        except RuntimeError:  # no such user
            return f"shot: expected a file, as /tmp/screen.png, got {path!r}: this machine has no such user"
        if "\0" in path:
            return f"shot: expected a file, as /tmp/screen.png, got {path!r}: no name has a null byte"

        def write() -> str:
            data = self.frame()
            file.write_bytes(data)
            return f"{len(data)} bytes in {path}"

        return self._told(write)

    def verify(self, given_up: bool = False) -> str:
        """The task's score for the desktop's current state; ``given_up``: as if the policy had called the user."""
        task = self.task
        if task is None:
            return "no task: start with --task SUITE:ID"

        def score() -> str:
            with self._lock:
                stop = StopReason.call_user if given_up else StopReason.finished
                verdict = verify(task, self.desktop, stop=stop)
            return f"score {verdict.score:g}: {'success' if verdict.success else 'no success'}"

        return self._told(score)

    def close(self) -> None:
        """Closes the desktop, after the running call of another thread."""
        with self._lock:
            self.desktop.close()

    @staticmethod
    def _told(work: Callable[[], str]) -> str:
        try:
            return work()
        except (DesktopError, TaskError, OSError) as error:
            return f"{type(error).__name__}: {error}"


def _shown(text: str) -> str:
    """The text in quotes; of a long one the beginning, and its length."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}… ({len(text)} characters)"
