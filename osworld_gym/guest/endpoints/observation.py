"""Endpoints of the screen and the actions: OSWorld's, and ours that wait for a still screen."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ..disk_space import full_place
from ..server.answers import Answer, BadRequest, Table, as_json, as_text, failed, seconds_of
from ..x11.inputs import Inputs
from ..x11.liveness import XServerLiveness
from ..x11.screen import Screen
from ..x11.windows import Windows

QUIET = 0.1  # seconds without a change after which a screen is still
DEADLINE = 5.0  # seconds after which a screen that keeps changing is used as it is
PAINTED = 10.0  # seconds for a program to draw its new window; afterwards a plain window is used as it is
LIMIT = 20.0  # seconds that the actions of one request may take; the remaining ones are skipped
KEYS_KEPT = 512  # idempotency keys remembered
TITLE = 1000  # most characters of a title in a reply's header: a client refuses lines above 64 KiB


class Observing:
    """``/screenshot``, ``/observe``, ``/actions`` and everything else that is read from the X server."""

    def __init__(self, screen: Screen, inputs: Inputs, windows: Windows, liveness: XServerLiveness) -> None:
        self._screen, self._inputs, self._windows, self._liveness = screen, inputs, windows, liveness
        self._acting = threading.Lock()
        self._done: OrderedDict[str, tuple[dict[str, Any], int]] = OrderedDict()

    def routes(self) -> Table:
        return {
            ("GET", "/health"): lambda _: self.health(),
            ("GET", "/screenshot"): lambda _: self.frame({}),
            ("GET", "/platform"): lambda _: as_text("Linux"),
            ("GET", "/cursor_position"): lambda _: as_json(list(self._inputs.pointer())),
            ("GET", "/windows"): lambda _: self._listed(),
            ("POST", "/screen_size"): lambda _: self.screen_size(),
            ("POST", "/observe"): self.observe,
            ("POST", "/actions"): self.actions,
            ("POST", "/seed"): self.seed,
        }

    def _listed(self) -> Answer:
        listed = [window.to_json() for window in self._windows.all()]
        return as_json({"windows": listed, "popups": self._windows.popups()})

    def health(self) -> Answer:
        width, height = self._screen.size
        alive = self._liveness.responds()
        status = {"status": "ok" if alive else "the X server does not answer", "changes": self._screen.changes}
        return as_json(status | {"width": width, "height": height}, 200 if alive else 503)

    def screen_size(self) -> Answer:
        width, height = self._screen.size
        return as_json({"width": width, "height": height})

    def frame(self, headers: Mapping[str, str]) -> Answer:
        """The current screen as PNG; 503 if the X server hangs (stale frame), 507 if a disk is full."""
        if not self._liveness.responds():
            return failed("the X server does not answer, so the frame would be stale", 503)
        if place := full_place():
            return failed(f"no space is left in {place}, so nothing can be saved", 507)
        png, changes, black = self._screen.frame()
        # a window may be black, the background never is
        ours = {"X-Changes": str(changes), "X-Black": str(int(black and not self._windows.all()))}
        return Answer(png, kind="image/png", headers={**headers, **ours})

    def observe(self, body: Mapping[str, Any]) -> Answer:
        """Waits until the screen is still (``quiet``, ``deadline`` in seconds); PNG, pointer, active window title."""
        still = self._screen.wait_still(seconds_of(body, "quiet", QUIET), seconds_of(body, "deadline", DEADLINE))
        if not self._liveness.responds():
            return failed("the X server does not answer, so the frame would be stale", 503)
        x, y = self._inputs.pointer()
        front = next((window for window in self._windows.all() if window.active), None)
        title = "" if front is None else front.title
        headers = {"X-Still": str(int(still)), "X-Cursor": f"{x},{y}", "X-Window": _header(title)}
        return self.frame(headers)

    def seed(self, body: Mapping[str, Any]) -> Answer:
        """Applies an episode's ``seed`` to a desktop that was started in advance."""
        seed = body.get("seed")
        if not isinstance(seed, int):
            raise BadRequest(f"'seed': expected an integer, got {seed!r}")
        self._windows.apply_seed(seed)
        return as_json({"seed": seed})

    def actions(self, body: Mapping[str, Any]) -> Answer:
        """Performs ``actions`` in order, then waits until the reaction is over, or for ``quiet`` if that is given.

        A request whose ``key`` was seen before performs nothing. Actions that have not finished after ``limit`` seconds
        are cut off; ``cut`` in the reply is their number.
        """
        actions, key = body.get("actions"), str(body.get("key", ""))
        if not isinstance(actions, list) or not all(isinstance(action, dict) for action in actions):
            raise BadRequest(f"'actions': expected a list of objects, got {actions!r}")
        quiet, deadline = seconds_of(body, "quiet", QUIET), seconds_of(body, "deadline", DEADLINE)
        with self._acting:
            if key and key in self._done:
                done, status = self._done[key]
                return as_json(done | {"repeated": True}, status)
            until = time.monotonic() + seconds_of(body, "limit", LIMIT)
            done, status = self._perform(actions, key, until)
            if status == 200:
                wait = self._screen.wait_still if "quiet" in body else self._screen.wait_reacted
                done["still"] = wait(quiet, deadline)
            return as_json(done | {"repeated": False}, status)

    def _perform(self, actions: list[dict[str, Any]], key: str, until: float) -> tuple[dict[str, Any], int]:
        done: dict[str, Any] = {"performed": 0, "cut": 0}
        if key:
            self._done[key] = (done, 200)
            if len(self._done) > KEYS_KEPT:
                self._done.popitem(last=False)
        for action in actions:
            try:
                whole = self._inputs.perform(action, until)
            except (ValueError, OverflowError) as error:
                done |= {"status": "error", "message": str(error)}
                if key:
                    self._done[key] = (done, 400)
                return done, 400
            done["performed"] += whole
            if not whole or time.monotonic() >= until:
                done["cut"] = len(actions) - done["performed"]
                return done, 200
            if len(actions) > 1:
                self._screen.wait_reacted(QUIET / 2, 1.0)
        return done, 200


def _header(title: str) -> str:
    """A title encoded for an HTTP header: the inside of a JSON string in ASCII, of its first characters."""
    return json.dumps(title[:TITLE])[1:-1]
