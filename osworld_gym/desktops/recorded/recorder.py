"""Records a task on a real desktop: whatever an oracle or a policy plays there adds states to the recording."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from osworld_gym.atomic import write_bytes
from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.recorded.desktop import IMAGES
from osworld_gym.desktops.recorded.graph import Recording, State, acting, has_keys, key_of
from osworld_gym.types import Action, CommandResult, Screenshot


class Recorder:
    """Collects one task's states; desktops on several threads may add to it.

    Args:
        folder: where the images are written.
        size: (width, height) of the screen in pixels.
        known: an earlier recording of the same task, to which states are added; None: there is none.

    ``repeated`` counts recorded actions that were performed again, ``differing`` those after which the screen was
    another one than recorded: the recording keeps the first. ``other_starts`` counts the episodes of a known seed that
    began with another screen than recorded, of which nothing is kept.
    """

    def __init__(self, folder: Path, size: tuple[int, int], known: Recording | None = None) -> None:
        self.recording = known or Recording(size)
        self.repeated = self.differing = self.other_starts = 0
        self._folder, self._lock = folder, threading.Lock()
        (folder / IMAGES).mkdir(parents=True, exist_ok=True)

    def arrive(
        self, seed: int, before: int | None, key: str, frame: Screenshot, score: Callable[[], float]
    ) -> int | None:
        """The index of the state that a desktop has reached; a new one is added.

        Args:
            seed: the desktop's.
            before: index of the state in which actions were performed; None: the desktop is as after the setup.
            key: of these actions, see :func:`.graph.key_of`.
            frame: the screen now.
            score: verifies the desktop now; it is not called for a known state.

        Returns:
            None if the state is known with another screen: what follows would not belong to the recorded state.
        """
        name = hashlib.sha256(frame.pixels.tobytes()).hexdigest()[:32]
        with self._lock:
            states = self.recording.seeds.get(seed, [])
            known = (0 if states else None) if before is None else states[before].after.get(key)
            if known is not None:
                same = states[known].screen == name
                self._count(same, start=before is None)
                return known if same else None
        value = score()  # takes a while: not under the lock
        path = self._folder / IMAGES / f"{name}.png"
        if not path.exists():
            write_bytes(path, frame.png)
        with self._lock:
            return self._add(seed, before, key, State(name, float(value)))

    def _count(self, same: bool, *, start: bool) -> None:
        if start:
            self.other_starts += not same
        else:
            self.repeated += 1
            self.differing += not same

    def _add(self, seed: int, before: int | None, key: str, state: State) -> int | None:
        """Adds a state, unless another desktop has been faster; a mouse that changed nothing leads back."""
        states = self.recording.seeds.setdefault(seed, [])
        if before is None:
            if not states:
                states.append(state)
            return 0 if states[0].screen == state.screen else None
        here = states[before]
        if key not in here.after:
            if (state.screen, state.score) == (here.screen, here.score) and not has_keys(key):
                here.after[key] = before
            else:
                here.after[key] = len(states)
                states.append(state)
        found = here.after[key]
        return found if states[found].screen == state.screen else None


class RecordingDesktop(Desktop):
    """A desktop whose episodes of one task are recorded.

    Args:
        inner: the desktop that is acted on; it is closed with this one.
        recorder: of the task.
        score: the task's verdict on the desktop in its current state, in [0, 1]; it must not change what a policy sees.
    """

    def __init__(self, inner: Desktop, recorder: Recorder, score: Callable[[Desktop], float]) -> None:
        self._inner, self._recorder, self._score = inner, recorder, score
        self.has_shell, self.blocking, self.unused_keys = inner.has_shell, inner.blocking, inner.unused_keys
        self.client_password = inner.client_password
        self._seed, self._key, self._new = 0, "", True
        self._lost = True  # until the first reset

    @property
    def inner(self) -> Desktop:
        """The desktop that is acted on, for oracles, which read more of it than the contract has."""
        return self._inner

    @property
    def screen_size(self) -> tuple[int, int]:
        return self._inner.screen_size

    def reset(self, seed: int) -> None:
        self._lost = True  # if the reset fails
        self._inner.reset(seed)
        self._seed, self._key, self._lost, self._new = seed, "", False, True
        self._at: int | None = None

    def prepare(self) -> None:
        self._inner.prepare()

    def screenshot(self) -> Screenshot:
        """The frame; the first one after the reset or after actions is recorded with its score."""
        frame = self._inner.screenshot()
        if self._new and not self._lost:
            before, self._lost = self._at, True  # if the verification fails
            self._at = self._recorder.arrive(self._seed, before, self._key, frame, lambda: self._score(self._inner))
            self._new, self._lost = False, self._at is None
        return frame

    def perform(self, actions: Sequence[Action]) -> None:
        found = acting(actions)
        if found:
            self._lost = self._lost or self._new  # a state without a screenshot cannot be recorded
            self._key, self._new = key_of(found, self.screen_size), True
        self._inner.perform(actions)
        self.cut_actions = self._inner.cut_actions

    def wait_still(self, deadline: float) -> None:
        self._inner.wait_still(deadline)

    def setup(self, step: Mapping[str, Any]) -> None:
        self._inner.setup(step)

    def read_file(self, path: str) -> bytes:
        return self._inner.read_file(path)

    def write_file(self, path: str, data: bytes) -> None:
        self._inner.write_file(path, data)

    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        return self._inner.run(command, shell=shell, timeout=timeout)

    @property
    def server(self) -> tuple[str, str] | None:
        return self._inner.server

    def forwarded(self, port: int) -> tuple[str, int] | None:
        return self._inner.forwarded(port)

    def close(self) -> None:
        self._inner.close()
