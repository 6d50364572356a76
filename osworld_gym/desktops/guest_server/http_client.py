"""HTTP client of a guest server: one persistent connection, a deadline per request, failures as DesktopError."""

from __future__ import annotations

import http.client
import io
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any
from urllib.parse import urlencode

from osworld_gym.errors import DesktopError, FailureReason, ReplyTooLarge
from osworld_gym.guest.server.channels import Stream
from osworld_gym.guest.server.deadline_socket import DeadlineSocket
from osworld_gym.types import CommandResult

MAX_ANSWER = 128 << 20  # bytes; a task's largest files are videos and pictures of some tens of megabytes
CHUNK = 1 << 20  # bytes
SLOWEST = 1 << 20  # bytes a second of the slowest network; a file of a task has to get through it
#: bytes of JSON besides its texts: those of lists and objects take up to 30 times as many in memory
MAX_FIELDS = 1 << 20
MAX_MESSAGE = 1000  # characters of an error message, which logs and records keep
_TEXT = re.compile(rb'"(?:[^"\\]++|\\(?s:.)?)*+(?:"|\Z)')  # an open one ends with the body, so that time is linear


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, body and headers (names in lower case) of an HTTP reply."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status == 200

    def json(self) -> dict[str, Any]:
        """The body as a JSON object. Raises DesktopError (``died``) if it is none: the server is not a guest server."""
        fields = self._fields()
        if not isinstance(fields, dict):
            raise DesktopError(FailureReason.died, f"expected a JSON object from the guest, got {self.body[:100]!r}")
        return fields

    def result(self) -> CommandResult:
        """The body as the result of a command. Raises DesktopError (``died``) if it is none."""
        fields = self.json()
        status, output, error = (fields.get(name) for name in ("returncode", "output", "error"))
        if type(status) is not int or not isinstance(output, str) or not isinstance(error, str):
            message = f"expected returncode, output and error of a command, got {self.body[:100]!r}"
            raise DesktopError(FailureReason.died, message)
        return CommandResult(status, output, error)

    @property
    def message(self) -> str:
        """The error message in the body of a failed request, of at most ``MAX_MESSAGE`` characters, all in UTF-8."""
        fields = self._fields()
        given = (fields.get("message") or fields.get("error")) if isinstance(fields, dict) else fields
        text = given if isinstance(given, str) else self.body[: 4 * MAX_MESSAGE].decode("utf-8", "replace")
        return text[:MAX_MESSAGE].encode("utf-8", "replace").decode()

    def _fields(self) -> Any:
        """The body's JSON; None if it is none, or would take many times its bytes in memory."""
        if len(self.body) > MAX_FIELDS and len(_TEXT.sub(b'""', self.body)) > MAX_FIELDS:
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class _Reader(io.BufferedReader):
    """Reads as many bytes as it is asked for, never all there are: a chunk of a reply may state a negative size."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise http.client.HTTPException(f"expected the size of a part of a reply, got {size}")
        return super().read(size)


class _Answer(http.client.HTTPResponse):
    """A reply that is read in parts."""

    def __init__(self, sock: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp = _Reader(self.fp.detach())


class _Connection(http.client.HTTPConnection):
    """A connection whose replies must be complete within a time limit, also if they come in a trickle of bytes."""

    response_class = _Answer

    def __init__(self, host: str, port: int, dial: Callable[[], Stream] | None) -> None:
        super().__init__(host, port)
        self._dial, self._until = dial, inf
        self._open: DeadlineSocket | Stream | None = None  # the same as ``sock``

    def within(self, seconds: float) -> None:
        """Sets the time limit in seconds of the next request and its reply."""
        self.timeout, self._until = seconds, monotonic() + seconds
        if self._open is not None:
            self._open.until = self._until

    def extend(self, seconds: float) -> None:
        """Adds seconds to the time limit of the present reply."""
        self._until += seconds
        if self._open is not None:
            self._open.until = self._until

    def connect(self) -> None:
        if self._dial is not None:
            self._open = self._dial()
        else:
            super().connect()
            self._open = DeadlineSocket.of(self.sock)
        self._open.until = self._until
        self.sock = self._open


class GuestClient:
    """Client of one guest server. Used by one thread at a time. Timeouts are in seconds.

    Every request raises DesktopError: ``hung`` at its timeout, ``died`` if the connection fails, ReplyTooLarge for a
    reply of more than ``most`` bytes.

    Args:
        host: address of the server.
        port: the TCP port of the server.
        token: its bearer token; empty if it requires none.
        dial: opens a connection to the server that is used instead of TCP; None: TCP to ``host`` and ``port``.
        most: bytes of the largest reply that is read.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: str = "",
        dial: Callable[[], Stream] | None = None,
        most: int = MAX_ANSWER,
    ) -> None:
        self._most = most
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection = _Connection(host, port, dial)

    def get(self, path: str, *, timeout: float) -> Reply:
        """GET; sent once more if the connection broke."""
        return self._ask("GET", path, b"", "", timeout, again=True)

    def post(self, path: str, fields: Mapping[str, Any], *, timeout: float, again: bool = False) -> Reply:
        """POST of a JSON object. ``again``: the request is idempotent, so send it once more if the connection broke."""
        return self._ask("POST", path, json.dumps(dict(fields)).encode(), "application/json", timeout, again)

    def put(self, path: str, *, timeout: float) -> Reply:
        """PUT without a body."""
        return self._ask("PUT", path, b"", "", timeout, again=False)

    def post_form(self, path: str, fields: Mapping[str, str], *, timeout: float) -> Reply:
        """POST of an url-encoded form."""
        return self._form(path, fields, timeout)

    def download(self, path: str, fields: Mapping[str, str], *, timeout: float) -> Reply:
        """As :meth:`post_form`, for a file: the body may take a second for ``SLOWEST`` bytes in addition."""
        return self._form(path, fields, timeout, slowest=SLOWEST)

    def _form(self, path: str, fields: Mapping[str, str], timeout: float, slowest: float = inf) -> Reply:
        kind = "application/x-www-form-urlencoded"
        return self._ask("POST", path, urlencode(fields).encode(), kind, timeout, True, slowest)

    def upload(self, path: str, target: str, data: bytes, *, timeout: float) -> Reply:
        """POST of a multipart form with ``file_path`` and ``file_data``, as OSWorld's client sends it.

        The file may take a second for ``SLOWEST`` bytes in addition.
        """
        boundary = secrets.token_hex(16)
        head = 'Content-Disposition: form-data; name="{}"'
        body = b"".join(
            (
                f"--{boundary}\r\n{head.format('file_path')}\r\n\r\n{target}\r\n".encode(),
                f'--{boundary}\r\n{head.format("file_data")}; filename="file"\r\n'.encode(),
                b"Content-Type: application/octet-stream\r\n\r\n" + data + f"\r\n--{boundary}--\r\n".encode(),
            )
        )
        timeout += len(data) / SLOWEST
        return self._ask("POST", path, body, f"multipart/form-data; boundary={boundary}", timeout, True)

    def _ask(
        self, method: str, path: str, body: bytes, kind: str, timeout: float, again: bool, slowest: float = inf
    ) -> Reply:
        headers = self._headers | ({"Content-Type": kind} if kind else {})
        for last in (not again, True):
            try:
                return self._once(method, path, body, headers, timeout, slowest)
            except ReplyTooLarge:
                self.close()
                raise
            except TimeoutError as error:
                self.close()
                raise DesktopError(FailureReason.hung, f"{method} {path} took longer than {timeout:.4g} s") from error
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if last:
                    message = f"{method} {path}: {type(error).__name__}: {error}"
                    raise DesktopError(FailureReason.died, message) from error
        raise AssertionError("unreachable: the last try returns or raises")

    def _once(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], timeout: float, slowest: float
    ) -> Reply:
        self._connection.within(timeout)
        self._connection.request(method, path, body or None, dict(headers))
        answer = self._connection.getresponse()
        parts, size = [], 0
        if (answer.length or 0) > self._most:
            raise self._too_large(method, path)
        self._connection.extend((answer.length or 0) / slowest)
        while part := answer.read(CHUNK):
            parts.append(part)
            size += len(part)
            if size > self._most:
                raise self._too_large(method, path)
        received = {name.lower(): value for name, value in answer.headers.items()}
        return Reply(answer.status, b"".join(parts), received)

    def close(self) -> None:
        """Closes the connection; the next request opens a new one."""
        self._connection.close()

    def _too_large(self, method: str, path: str) -> ReplyTooLarge:
        return ReplyTooLarge(FailureReason.died, f"{method} {path}: the reply has more than {self._most} bytes")
