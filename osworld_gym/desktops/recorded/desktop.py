"""RecordedDesktop: shows what was recorded on another desktop. Runs in process, without programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.recorded.graph import Recording, RecordingError, State, acting, key_of
from osworld_gym.errors import TaskError
from osworld_gym.types import Action, CommandResult, Screenshot

STEP = "recorded"  #: the type of its only setup step
SCORE_FILE = "/score.json"  #: the verdict that was recorded for the current state
IMAGES = "images"


def recording_path(folder: Path, task_id: str) -> Path:
    """The file of a task's recording."""
    return folder / "recordings" / f"{task_id}.json"


class RecordedDesktop(Desktop):
    """The recordings of tasks as a desktop; it has no shell.

    The setup step ``{"type": "recorded", "parameters": {"task": id}}`` shows the first screen of one of the task's
    recorded seeds. Actions that were recorded in the current state lead to the state after them; all others do nothing:
    what they would have done is not known. ``/score.json`` has what the verifier gave in the current state. Before the
    setup the screen is black.

    Args:
        folder: the recordings (:class:`osworld_gym.desktops.recorded.recorder.Recorder`).
        width, height: pixels of the screen; those of the recordings.
    """

    has_shell = False
    blocking = False

    def __init__(self, folder: str, width: int = 640, height: int = 360) -> None:
        self._folder, self._size = Path(folder).expanduser(), (int(width), int(height))
        self._known: dict[str, Recording] = {}
        self._frames: dict[str, Screenshot] = {}
        self.unknown_actions = 0  #: calls of :meth:`perform` that were not recorded, over the object's lifetime
        self.reset(0)

    @property
    def screen_size(self) -> tuple[int, int]:
        return self._size

    def reset(self, seed: int) -> None:
        self._seed = seed
        self._states: list[State] = []
        self._at = 0
        self._files: dict[str, bytes] = {}

    def screenshot(self) -> Screenshot:
        if not self._states:
            return Screenshot(pixels=np.zeros((self._size[1], self._size[0], 3), np.uint8))
        name = self._states[self._at].screen
        if name not in self._frames:
            self._frames[name] = Screenshot(png=(self._folder / IMAGES / f"{name}.png").read_bytes())
        return self._frames[name]

    def perform(self, actions: Sequence[Action]) -> None:
        found = acting(actions)
        if not self._states or not found:
            return
        if not self._go(found):
            self.unknown_actions += 1
            if len(found) > 1:  # not recorded in one call; each may have been by itself
                for action in found:
                    self._go([action])

    def _go(self, actions: Sequence[Action]) -> bool:
        after = self._states[self._at].after.get(key_of(actions, self._size))
        self._at = self._at if after is None else after
        return after is not None

    def setup(self, step: Mapping[str, Any]) -> None:
        """Accepts one step, ``{"type": "recorded", "parameters": {"task": id}}``."""
        task = (step.get("parameters") or {}).get("task")
        if step.get("type") != STEP or not isinstance(task, str):
            raise TaskError(f"a recorded desktop requires setup steps of type {STEP!r} with a task, got {step!r}")
        if task not in self._known:
            self._known[task] = self._load(task)
        seeds = self._known[task].seeds
        self._states = seeds[sorted(seeds)[self._seed % len(seeds)]]
        self._at = 0

    def _load(self, task: str) -> Recording:
        try:
            found = Recording.load(recording_path(self._folder, task))
        except RecordingError as error:
            raise TaskError(str(error)) from error
        if found.size != self._size:
            raise TaskError(f"task {task!r} was recorded on a screen of {found.size} pixels, not of {self._size}")
        return found

    def read_file(self, path: str) -> bytes:
        """``/score.json`` contains the recorded score; other files are those written by :meth:`write_file`."""
        if path == SCORE_FILE and self._states:
            return json.dumps({"score": float(self._states[self._at].score)}).encode()
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]

    def write_file(self, path: str, data: bytes) -> None:
        if path == SCORE_FILE:
            raise PermissionError(f"{SCORE_FILE} is read-only: it has the recorded score")
        self._files[path] = bytes(data)

    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        raise NotImplementedError(f"a recorded desktop has no shell (asked for {command!r}, {shell=}, {timeout=})")

    def close(self) -> None:
        self._files.clear()
