"""A desktop behind our guest server: the Desktop contract except start and end, which each provider adds."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.guest_server.http_client import GuestClient, Reply
from osworld_gym.desktops.guest_server.setup_steps import run_step
from osworld_gym.errors import DesktopError, FailureReason, StepRefused
from osworld_gym.types import Action, CommandResult, Screenshot
from osworld_gym.uitars.keys import is_key, split_keys

LOG = logging.getLogger(__name__)
ANSWER = 20.0  # seconds that the guest may take in addition to the time limit of the request
STILL = 5.0  # seconds after which a screen that keeps changing is used as it is
WINDOW = 60.0  # seconds for the window of a file or program to show
COMMAND = 120.0  # seconds for a command of a setup step
SEED = 20.0  # seconds for a prepared desktop to apply a seed
WORK = 20.0  # seconds for the actions of one step; those that take longer are cut off
#: HTTP statuses with which a guest server says, in JSON, that a file cannot be read or a command not be started
REFUSED = frozenset({400, 403, 404})
#: how both guest servers begin the answer (status 404) for a file to open that is not there
NOT_FOUND = "Application/file not found:"
BROKEN = 500  # the same; older official servers say it in HTML
FULL = 507  # HTTP status with which the guest reports a full disk, or no room for a command's process


def of_guest(path: str, reply: Reply) -> Reply:
    """The reply to a request about a file or a command, if the guest gave it: what it refuses may be the policy's.

    Raises:
        DesktopError: ``died``: of something else, e.g. a gateway whose machine is gone (502, 503), a wrong token
            (401), or a desktop that has no room for another process (507).
    """
    if reply.ok or reply.status == BROKEN:
        return reply
    if reply.status in REFUSED:
        reply.json()  # raises if the guest did not write it
        return reply
    raise DesktopError(FailureReason.died, f"{path}: status {reply.status}, {reply.message}")


def _guest_keys(keys: str | None) -> str | None:
    """Keys by the names that a guest knows: ``Ctrl+C`` as ``ctrl c``, as on the other providers."""
    if keys is None or all(map(is_key, keys.split())):
        return keys
    return " ".join(split_keys(keys))


class GuestDesktop(Desktop):
    """Calls the guest through ``self._client``, which the provider sets in :meth:`reset`.

    It is also the :class:`~osworld_gym.desktops.guest_server.setup_steps.SetupTarget` of the setup steps, whose
    failures are ``setup_failed``.
    """

    def __init__(self, width: int, height: int) -> None:
        self._size = (width, height)
        self._client: GuestClient | None = None
        self._unsettled = False

    @property
    def screen_size(self) -> tuple[int, int]:
        return self._size

    @property
    def _guest(self) -> GuestClient:
        if self._client is None:
            raise DesktopError(FailureReason.died, "no desktop is running; reset it first")
        return self._client

    # --- the contract -----------------------------------------------------------------------------------------------

    def screenshot(self) -> Screenshot:
        """The current frame; after setup steps and commands, the first frame of a still screen."""
        if self._unsettled:
            reply = self._guest.post("/observe", {"deadline": STILL}, timeout=STILL + ANSWER, again=True)
            self._unsettled = False
        else:
            reply = self._guest.get("/screenshot", timeout=ANSWER)
        return self._sound(reply)

    def _sound(self, reply: Reply) -> Screenshot:
        """The frame of a reply.

        Raises:
            DesktopError: ``bad_screenshot``: stale, truncated, of another size or black. ``died``: a disk is full.
        """
        if not reply.ok:
            reason = FailureReason.died if reply.status == FULL else FailureReason.bad_screenshot
            raise DesktopError(reason, f"status {reply.status}: {reply.message}")
        frame = Screenshot(png=reply.body)
        try:
            size = frame.size
            if size == self.screen_size:
                frame.check()
        except ValueError as error:
            raise DesktopError(FailureReason.bad_screenshot, str(error)) from error
        if size != self.screen_size or reply.headers.get("x-black") == "1":
            problem = "it is black" if size == self.screen_size else f"it has {size}"
            raise DesktopError(
                FailureReason.bad_screenshot, f"expected a frame of {self.screen_size} pixels; {problem}"
            )
        return frame

    def perform(self, actions: Sequence[Action]) -> None:
        # a repeated request has the same key, so that no action is performed twice
        fields = {"key": secrets.token_hex(8), "deadline": STILL, "limit": WORK}
        order = fields | {"actions": [asdict(action) | {"key": _guest_keys(action.key)} for action in actions]}
        reply = self._guest.post("/actions", order, timeout=ANSWER + STILL + WORK, again=True)
        self._unsettled = False
        if not reply.ok:
            raise DesktopError(FailureReason.died, f"the guest refused actions: {reply.message}")
        cut = reply.json().get("cut", 0)
        if type(cut) is not int or not 0 <= cut <= len(actions):
            message = f"cut: expected how many of {len(actions)} actions, got {str(cut)[:100]}"
            raise DesktopError(FailureReason.died, message)
        if cut:
            self.cut_actions += cut
            LOG.warning("%d of %d actions were cut off after %g s", cut, len(actions), WORK)

    def setup(self, step: Mapping[str, Any]) -> None:
        self._unsettled = True
        run_step(self, step)

    def read_file(self, path: str) -> bytes:
        reply = of_guest("/file", self._guest.download("/file", {"file_path": path}, timeout=ANSWER))
        if reply.status == 404:
            raise FileNotFoundError(path)
        if not reply.ok:
            raise OSError(f"{path}: {reply.message}")
        return reply.body

    def write_file(self, path: str, data: bytes) -> None:
        reply = of_guest("write_file", self._guest.upload("/setup/upload", path, data, timeout=ANSWER))
        self._done("write_file", reply, refused=not reply.ok)

    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        """See :meth:`Desktop.run`. A command that cannot be started returns status 127, as in a shell."""
        self._unsettled = True
        fields = {"command": command if isinstance(command, str) else list(command), "shell": shell, "timeout": timeout}
        reply = of_guest("/execute", self._guest.post("/execute", fields, timeout=timeout + ANSWER))
        if reply.json().get("timed_out"):
            raise DesktopError(FailureReason.hung, reply.message)
        return reply.result() if reply.ok else CommandResult(127, "", reply.message)

    def _reseed(self, seed: int) -> bool:
        """Applies a seed to a prepared desktop; False if it has ended meanwhile."""
        try:
            return self._guest.post("/seed", {"seed": seed}, timeout=SEED, again=True).ok
        except DesktopError:
            return False

    # --- setup steps ------------------------------------------------------------------------------------------------

    def execute(self, command: str | Sequence[str], *, shell: bool) -> CommandResult:
        fields = {"command": command if isinstance(command, str) else list(command), "shell": shell, "timeout": COMMAND}
        reply = self._guest.post("/setup/execute", fields, timeout=COMMAND + ANSWER)
        self._done("execute", reply)
        return reply.result()

    def launch(self, command: str | Sequence[str], *, shell: bool, window: bool | None) -> None:
        fields = {"command": command if isinstance(command, str) else list(command), "shell": shell, "window": window}
        self._done("launch", self._guest.post("/setup/launch", fields, timeout=WINDOW + ANSWER))

    def open_file(self, path: str) -> None:
        reply = self._guest.post("/setup/open_file", {"path": path, "deadline": WINDOW}, timeout=WINDOW + ANSWER)
        self._done("open", reply, refused=reply.message.startswith(NOT_FOUND))

    def activate_window(self, name: str, *, strict: bool, by_class: bool) -> None:
        fields = {"window_name": name, "strict": strict, "by_class": by_class}
        self._done("activate_window", self._guest.post("/setup/activate_window", fields, timeout=ANSWER))

    def close_window(self, name: str, *, strict: bool, by_class: bool) -> None:
        fields = {"window_name": name, "strict": strict, "by_class": by_class}
        self._done("close_window", self._guest.post("/setup/close_window", fields, timeout=ANSWER))

    def wait_still(self, deadline: float) -> None:
        fields = {"quiet": min(0.5, deadline), "deadline": deadline}
        self._done("sleep", self._guest.post("/observe", fields, timeout=deadline + ANSWER, again=True))

    def windows(self) -> list[dict[str, Any]]:
        """Every window as ``{"id", "title", "name", "x", "y", "width", "height", "active"}``, in pixels. Privileged."""
        return self._listed("windows")

    def popups(self) -> list[dict[str, Any]]:
        """Every open menu, the topmost last, as ``{"x", "y", "width", "height"}`` in screen pixels. Privileged."""
        return self._listed("popups")

    def _listed(self, kind: str) -> list[dict[str, Any]]:
        reply = self._guest.get("/windows", timeout=ANSWER)
        if not reply.ok:
            raise DesktopError(FailureReason.died, f"windows: {reply.message}")
        listed = reply.json().get(kind)
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise DesktopError(FailureReason.died, f"{kind}: expected a list of objects, got {reply.body[:100]!r}")
        return listed

    def _done(self, step: str, reply: Reply, *, refused: bool = False) -> None:
        if not reply.ok:
            kind = StepRefused if refused else DesktopError
            raise kind(FailureReason.setup_failed, f"{step}: {reply.message}")
