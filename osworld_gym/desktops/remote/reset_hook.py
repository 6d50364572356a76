"""Resets a desktop on another machine with a hook that the user provides, and checks that the hook worked.

We cannot reset a desktop that we did not start. The hook, a command or a URL, must return only when the old desktop no
longer answers; a marker file written to the old desktop must not exist on the new one. It is written again just before
the hook is called: a policy can remove it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from typing import IO, Any
from urllib.parse import urlsplit

import requests

from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.errors import DesktopError, FailureReason

MARK = "/home/user/.osworld-gym-used"
_USED = b"used\n"  #: what the marker contains
_SAID = 300  #: characters of what a hook has said, in an error
_READ = 4 * _SAID  #: bytes that are read of them
_PART = 16  #: bytes of an answer that are awaited before the deadline is looked at: they may come one at a time
_USER = re.compile(r"//[^/?#\s]*@")
_QUERY = re.compile(r"\?[^\s'\")]*")
_KILL_SECONDS = 5.0  #: for a command to end after it was killed


@dataclass(frozen=True, slots=True)
class Hook:
    """The user's hook that replaces a server's desktop by a new one.

    Args:
        action: a URL (``http://``, ``https://``), which gets a POST with JSON ``{"server", "seed"}``, or a command,
            split as by a shell, with ``OSWORLD_SERVER_URL`` and ``OSWORLD_SEED`` in its environment.
        deadline: seconds that it may take, the whole answer included; the command and its children are killed then,
            unless they have left its process group.

    Raises:
        ValueError: the action is neither a URL with a host nor a command.
    """

    action: str
    deadline: float

    def __post_init__(self) -> None:
        if not isinstance(self.action, str):
            raise ValueError(f"reset_by: expected a command or URL as text, got {self.action!r}")
        try:
            usable = bool(urlsplit(self.action).hostname if self._is_url else shlex.split(self.action))
        except ValueError as error:  # open quotes or brackets
            raise ValueError(f"reset_by: expected a command or URL, got another text: {error}") from error
        if not usable:
            raise ValueError("reset_by: expected a command or URL, got none")

    @property
    def _is_url(self) -> bool:
        return self.action.startswith(("http://", "https://"))

    @property
    def name(self) -> str:
        """The action for error messages: a URL without its user, password and query, which may be secret."""
        return _without_secrets(self.action) if self._is_url else repr(self.action)

    def call(self, url: str, seed: int) -> None:
        """Runs the hook. Raises DesktopError (``never_ready``) if it fails or exceeds its deadline."""
        if self._is_url:
            return self._post(url, seed)
        env = os.environ | {"OSWORLD_SERVER_URL": url, "OSWORLD_SEED": str(seed)}
        try:
            status, said = _run(shlex.split(self.action), env, self.deadline)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise DesktopError(FailureReason.never_ready, f"reset command {self.name}: {error}") from error
        if status != 0:
            message = f"reset command {self.name} ended with status {status}; its output: {said}"
            raise DesktopError(FailureReason.never_ready, message)

    def _post(self, url: str, seed: int) -> None:
        """Waits for the whole answer in another thread, since ``requests`` limits only each of its parts."""
        answers: SimpleQueue[tuple[int, str] | Exception] = SimpleQueue()
        arguments = (self.action, {"server": url, "seed": seed}, self.deadline, answers)
        end = monotonic() + self.deadline
        threading.Thread(target=_answer, args=arguments, name="reset URL", daemon=True).start()
        answer: tuple[int, str] | Exception | None = None
        with suppress(Empty):
            answer = answers.get(timeout=self.deadline)
        failed = isinstance(answer, (OSError, ValueError))  # as are all errors of requests and urllib3
        if answer is None or (failed and monotonic() >= end):  # one of its parts may have timed out just before
            message = f"reset URL {self.name} timed out: no whole answer in {self.deadline:g} s"
            raise DesktopError(FailureReason.never_ready, message)
        if failed:
            message = f"reset URL {self.name}: {_without_secrets(str(answer))}"
            raise DesktopError(FailureReason.never_ready, message)
        if isinstance(answer, Exception):
            raise answer
        status, text = answer
        if status >= 400:
            raise DesktopError(FailureReason.never_ready, f"reset URL {self.name} answered {status}: {text}")


def _run(command: list[str], env: dict[str, str], deadline: float) -> tuple[int, str]:
    """The exit status of a command and the end of its output; programs that it leaves running are not waited for.

    Raises:
        subprocess.TimeoutExpired: after ``deadline`` seconds; its process group has been killed.
        OSError: it cannot be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        try:
            status = child.wait(deadline)
        except BaseException:
            with suppress(ProcessLookupError, PermissionError):  # those of another user cannot be killed
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_KILL_SECONDS)
            raise
        return status, _end_of(err) or _end_of(out) or "nothing"


def _end_of(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - _READ))
    return output.read(_READ).decode("utf-8", "replace").strip()[-_SAID:]


def _answer(
    action: str, body: dict[str, Any], deadline: float, answers: SimpleQueue[tuple[int, str] | Exception]
) -> None:
    """Puts the status and the beginning of a URL's answer into ``answers`` at its end, or the error."""
    end = monotonic() + deadline
    try:
        with requests.post(action, json=body, timeout=deadline, stream=True) as answer:
            text = b""
            for part in answer.iter_content(_PART):
                text += part[: _READ - len(text)]
                if monotonic() > end:
                    return  # nobody waits any more
            answers.put((answer.status_code, text.decode("utf-8", "replace")[:_SAID]))
    except Exception as error:  # noqa: BLE001  raised by the thread that waits
        answers.put(error)


def _without_secrets(text: str) -> str:
    """A text without the users, passwords and queries of the URLs in it."""
    return _QUERY.sub("", _USER.sub("//", text))


def leave_mark(desktop: Desktop) -> None:
    """Writes the marker file that marks a desktop as used."""
    desktop.write_file(MARK, _USED)


def mark_what_answers(client: GuestClient, deadline: float) -> None:
    """Writes the marker file to the desktop that a hook is to replace; does nothing if none answers in time.

    Args:
        client: its server.
        deadline: seconds to wait for an answer.
    """
    with suppress(DesktopError):
        client.upload("/setup/upload", MARK, _USED, timeout=deadline)


def require_no_mark(desktop: Desktop, hook: str) -> None:
    """Raises DesktopError (``setup_failed``) if the marker file exists, so the desktop was not replaced by ``hook``."""
    try:
        desktop.read_file(MARK)
    except FileNotFoundError:
        return
    except OSError as error:  # a folder in its place, or a server that fails
        message = f"{hook}: whether it made a new desktop cannot be told: {error}"
        raise DesktopError(FailureReason.setup_failed, message) from error
    message = f"{hook} did not make a new desktop: {MARK} of the earlier one is still there"
    raise DesktopError(FailureReason.setup_failed, message)
