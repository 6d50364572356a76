"""A desktop behind an official OSWorld server, which has no ``/observe``, ``/actions`` or ``/windows`` endpoint.

Instead, actions are sent as pyautogui source, the screen is still when successive frames are equal, and wmctrl lists
the windows. A provider adds start and end and sets ``self._client``, as with
:class:`~osworld_gym.desktops.guest_server.desktop.GuestDesktop`.
"""

from __future__ import annotations

import logging
import re
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from osworld_gym.desktops.guest_server.desktop import (
    ANSWER,
    NOT_FOUND,
    STILL,
    WINDOW,
    WORK,
    GuestDesktop,
    of_guest,
)
from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.desktops.guest_server.official_actions import Batch, Then, action_command, batches
from osworld_gym.desktops.guest_server.stillness import LIST, Ident, Pixels, Process, await_still, read_processes, works
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.types import Action, CommandResult, Screenshot

LOG = logging.getLogger(__name__)
QUIET = 0.25  # seconds without a change after which a screen is still; one frame takes the official server 0.03 to 0.25
IDLE = 3.0  # seconds of idling after which a launched program is assumed to have no window
WINDOWS, BETWEEN = "wmctrl -lGx; xprop -root _NET_ACTIVE_WINDOW", "--- processes ---"
POLL = 0.25  # seconds between two polls of the windows, or of a starting server
BATCH = 60.0  # seconds for one batch of actions; the official server itself ends a command after 120
TYPED = 2000  # most characters typed by one action; pyautogui takes a few milliseconds for each
_ACTIVE = re.compile(r"\b0x([0-9a-fA-F]{1,16})\b")
OVER = (124, 137)  # exit status of coreutils' ``timeout`` at its limit: terminated, killed


def speaks_ours(client: GuestClient, timeout: float = ANSWER) -> bool:
    """Whether the server is ours (``/health`` exists), for :class:`GuestDesktop`, or an official one.

    Raises:
        DesktopError: no server answers.
    """
    reply = client.get("/health", timeout=timeout)
    return reply.ok and reply.body.lstrip().startswith(b"{") and reply.json().get("status") == "ok"


class OfficialDesktop(GuestDesktop):
    """Uses the official protocol through ``self._client``, which the provider sets in ``reset``.

    Args:
        width: screen width in pixels.
        height: screen height in pixels; a frame of another size is ``bad_screenshot``.
    """

    def __init__(self, width: int, height: int) -> None:
        super().__init__(width, height)
        self._last_key = ""

    # --- the contract -----------------------------------------------------------------------------------------------

    def screenshot(self) -> Screenshot:
        """The current frame; after setup steps and commands, the first frame of a still screen."""
        if self._unsettled:
            self.wait_still(STILL)
            self._unsettled = False
        return self._frame()

    def _frame(self) -> Screenshot:
        """One frame; requested once more if it is incomplete, black or of the wrong size."""
        problem = ""
        for _ in range(2):
            reply = self._guest.get("/screenshot", timeout=ANSWER)
            frame = Screenshot(png=reply.body)
            try:
                if reply.ok and frame.size == self.screen_size and frame.pixels.any():
                    return frame
                problem = f"{frame.size} pixels, all black" if frame.size == self.screen_size else f"{frame.size}"
            except ValueError as error:
                problem = str(error) if reply.ok else reply.message
        raise DesktopError(FailureReason.bad_screenshot, f"expected {self.screen_size} pixels; {problem}")

    def perform(self, actions: Sequence[Action]) -> None:
        """See :meth:`Desktop.perform`. A repeated request has the same key, so no action is performed twice."""
        until, cut = time.monotonic() + WORK, [len(action.content or "") > TYPED for action in actions].count(True)
        shorter = [replace(action, content=action.content and action.content[:TYPED]) for action in actions]
        planned = batches(shorter, self.screen_size)
        for i, batch in enumerate(planned):
            if time.monotonic() >= until:
                cut += sum(len(late.actions) for late in planned[i:])
                break
            self._act(batch)
            self._await_still(2 * QUIET if batch.then is Then.waited else QUIET, STILL)
        self._unsettled = False
        if cut := min(cut, len(actions)):  # a text may be several batches
            self.cut_actions += cut
            LOG.warning("%d of %d actions were cut off: %g s, %d characters each", cut, len(actions), WORK, TYPED)

    def _act(self, batch: Batch) -> None:
        key = secrets.token_hex(8)
        command = action_command(batch, key, self._last_key)
        if not command:
            return
        self._last_key = key
        self._guest.close()  # the server may have closed an idle connection, which would cause a repeated request
        fields = {"command": command, "shell": False}
        reply = self._guest.post("/execute", fields, timeout=BATCH, again=True)
        if not reply.ok or reply.json().get("returncode") != 0:
            said = reply.json().get("error", "") if reply.ok else reply.message
            raise DesktopError(FailureReason.died, f"the server could not act: {str(said).strip()[-300:]}")

    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        """See :meth:`Desktop.run`. Status 127: the command cannot be started. ``timeout`` of coreutils limits it."""
        self._unsettled = True
        limit = ["timeout", "--kill-after=1", f"{timeout:g}"]
        script = command if isinstance(command, str) else command[0]
        plain = shlex.split(command) if isinstance(command, str) else list(command)
        fields = {"command": [*limit, *(["/bin/sh", "-c", script] if shell else plain)], "shell": False}
        start = time.monotonic()
        limited = fields | {"timeout": timeout + ANSWER / 2}
        reply = of_guest("/execute", self._guest.post("/execute", limited, timeout=timeout + ANSWER))
        if not reply.ok and "timed out" in reply.message:
            raise DesktopError(FailureReason.hung, reply.message)
        if not reply.ok:
            return CommandResult(127, "", reply.message)
        result = reply.result()
        if result.returncode in OVER and time.monotonic() - start >= timeout:
            raise DesktopError(FailureReason.hung, f"{command!r} ran longer than {timeout:g} s")
        return result

    # --- setup steps ------------------------------------------------------------------------------------------------

    def launch(self, command: str | Sequence[str], *, shell: bool, window: bool | None) -> None:
        """Starts a program and waits for its window. ``window=None``: as long as the program works, if none comes."""
        before = self._listed_programs() if window is not False else None
        fields = {"command": command if isinstance(command, str) else list(command), "shell": shell}
        self._done("launch", self._guest.post("/setup/launch", fields, timeout=WINDOW + ANSWER))
        if before is None:
            return
        if not self._await_window(*before, demanded=bool(window)) and window:
            raise DesktopError(FailureReason.setup_failed, f"launch: {command!r} showed no window in {WINDOW:g} s")
        self.wait_still(STILL)

    def _await_window(self, windows: list[dict[str, Any]], processes: dict[Ident, Process], *, demanded: bool) -> bool:
        """Waits for another window than these; False after ``WINDOW`` seconds, or earlier unless it is demanded."""
        known, last = {seen["id"] for seen in windows}, processes
        worked = start = time.monotonic()
        while True:
            windows, now = self._listed_programs()
            if any(seen["id"] not in known for seen in windows):
                return True
            moment = time.monotonic()
            if works(processes, last, now):
                worked = moment
            if moment - start >= WINDOW or (not demanded and moment - worked >= IDLE):
                return False
            last = now
            time.sleep(POLL)  # the protocol has no event for windows

    def open_file(self, path: str) -> None:
        """Opens a file; the server replies once a title contains the file's name, so also waits for a still screen."""
        reply = self._guest.post("/setup/open_file", {"path": path}, timeout=WINDOW + ANSWER)
        self._done("open", reply, refused=reply.message.startswith(NOT_FOUND))
        self.wait_still(STILL)

    def wait_still(self, deadline: float) -> None:
        self._await_still(quiet=min(QUIET, deadline), deadline=deadline)

    def _await_still(self, quiet: float, deadline: float) -> bool:
        def pixels() -> Pixels:
            return self._frame().pixels

        return await_still(pixels, quiet, deadline)

    def windows(self) -> list[dict[str, Any]]:
        """Every window, as in :meth:`GuestDesktop.windows`, from wmctrl and xprop in the desktop. Privileged."""
        return read_windows(self._said_by(WINDOWS))

    def _listed_programs(self) -> tuple[list[dict[str, Any]], dict[Ident, Process]]:
        windows, _, processes = self._said_by(f"{WINDOWS}; echo {BETWEEN}; {LIST}").partition(BETWEEN)
        return read_windows(windows), read_processes(processes)

    def _said_by(self, script: str) -> str:
        reply = self._guest.post("/execute", {"command": script, "shell": True}, timeout=ANSWER, again=True)
        if not reply.ok:
            raise DesktopError(FailureReason.died, f"windows: {reply.message}")
        return str(reply.json().get("output", ""))

    # --- for providers ----------------------------------------------------------------------------------------------

    def _answers(self) -> bool:
        """Whether the server still returns a complete frame of the right size."""
        try:
            self._frame()
        except DesktopError:
            return False
        return True

    def _await_ready(self, deadline: float) -> None:
        """Waits until the server returns a complete frame of the right size.

        Raises:
            DesktopError: ``never_ready`` after ``deadline`` seconds, with the last error.
        """
        end = time.monotonic() + deadline
        while True:
            try:
                self._frame()
                return
            except DesktopError as error:
                if time.monotonic() >= end:
                    raise DesktopError(FailureReason.never_ready, f"not within {deadline:g} s; last: {error}") from None
            time.sleep(POLL)  # a server that is not running yet has no event to wait for


def read_windows(listing: str) -> list[dict[str, Any]]:
    """Parses the output of ``wmctrl -lGx`` followed by that of ``xprop -root _NET_ACTIVE_WINDOW`` into windows.

    Programs choose their titles: what a line end in one makes of a line is ignored.
    """
    listed, found, front = listing.rpartition("_NET_ACTIVE_WINDOW")
    listed, last = (listed, _ACTIVE.search(front)) if found else (listing, None)
    active = int(last[1], 16) if last else 0
    out = []
    for line in listed.splitlines():
        fields = line.split(None, 8)
        if len(fields) < 8:
            continue
        try:
            ident, (x, y, width, height) = int(fields[0], 16), map(int, fields[2:6])
        except ValueError:
            continue
        box = {"x": x, "y": y, "width": width, "height": height}
        title = fields[8] if len(fields) > 8 else ""
        out.append({"id": ident, "title": title, "name": fields[6], **box, "active": ident == active})
    return out
