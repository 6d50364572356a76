"""Requests and replies of an endpoint: typed access to a request's fields; replies as status, body, content type."""

from __future__ import annotations

import email.message
import email.parser
import json
import math
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

PARTS = 64  # most parts of one multipart form
LONGEST = 3600.0  # longest time in seconds that a request may ask for
NO_RESULT = 507  # HTTP status: the desktop has no room for a command or a file, or an exit status is lost
LONGEST_PATH, LONGEST_NAME = 3072, 255  # bytes; Linux has 4095 for a path with HOME in it, and 255


class Answer(NamedTuple):  # dataclasses import inspect, which delays every start by milliseconds
    """Status, body and content type of one HTTP reply."""

    body: bytes
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = MappingProxyType({})


Endpoint = Callable[[Mapping[str, Any]], Answer]
#: (method, path) → the function that handles it, called with the body's fields
Table = dict[tuple[str, str], Endpoint]


class BadRequest(Exception):
    """The request is wrong; the message is returned with status 400."""


def as_json(value: Any, status: int = 200) -> Answer:
    return Answer(json.dumps(value).encode(), status)


def as_text(text: str, status: int = 200) -> Answer:
    return Answer(text.encode("utf-8", "replace"), status, kind="text/html; charset=utf-8")


def failed(message: str, status: int = 500) -> Answer:
    """A failure in the format of OSWorld's server."""
    return as_json({"status": "error", "message": message}, status)


def command_of(body: Mapping[str, Any], key: str = "command") -> str | list[str]:
    """A command: text or a list of texts, as a program's arguments may be."""
    command = body.get(key, [])
    if not isinstance(command, str | list) or not all(isinstance(part, str) for part in command):
        raise BadRequest(f"{key!r}: expected text or a list of texts, got {command!r}")
    for part in [command] if isinstance(command, str) else command:
        _check_system_text(key, part)
    return command


def path_of(body: Mapping[str, Any], key: str) -> str:
    """A path as a file system may have one."""
    path = text_of(body, key)
    if len(_check_system_text(key, path)) > LONGEST_PATH:
        raise BadRequest(f"{key!r}: expected a path of at most {LONGEST_PATH} bytes, got {len(path)} characters")
    if (name := max((os.fsencode(part) for part in path.split("/")), key=len))[LONGEST_NAME:]:
        raise BadRequest(f"{key!r}: expected names of at most {LONGEST_NAME} bytes, got one of {len(name)}")
    return path


def _check_system_text(key: str, text: str) -> bytes:
    """The bytes of a text that is passed to the system, which has neither NUL nor half a character."""
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise BadRequest(f"{key!r}: expected text of whole characters, got {text[error.start]!r} in it") from error
    if b"\0" in data:
        raise BadRequest(f"{key!r}: expected text without NUL, got {text[:100]!r}")
    return data


def text_of(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{key!r}: expected text, got {value!r}")
    return value


def flag_of(body: Mapping[str, Any], key: str) -> bool:
    """The truth value of a flag, as in OSWorld's server: any non-empty text is true (task files contain "true")."""
    return bool(body.get(key, False))


def seconds_of(body: Mapping[str, Any], key: str, default: float) -> float:
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST:
        raise BadRequest(f"{key!r}: expected 0 to {LONGEST:g} seconds, got {value!r}")
    assert math.isfinite(value)
    return float(value)


def multipart_fields(kind: str, body: bytes) -> dict[str, Any]:
    """The fields of a multipart form: texts as str, files as bytes, without transfer decoding.

    Args:
        kind: the Content-Type header with the form's boundary.
        body: the request's body.

    Raises:
        BadRequest: the boundary is missing, a part has no headers or no end, or there are too many parts.
    """
    header = email.message.Message()
    header["Content-Type"] = kind
    boundary = header.get_boundary()
    if not boundary:
        raise BadRequest(f"Content-Type: expected a multipart form with a boundary, got {kind!r}")
    mark = b"--" + boundary.encode("latin-1", "replace")
    fields: dict[str, Any] = {}
    at = 0 if body.startswith(mark) else body.find(b"\r\n" + mark) + 2
    if at == 1:
        raise BadRequest("the form's boundary does not occur in it")
    for _ in range(PARTS):
        at += len(mark)
        if body[at : at + 2] == b"--":
            return fields
        end, head_end = body.find(b"\r\n" + mark, at), body.find(b"\r\n\r\n", at)
        if end < 0 or not 0 <= head_end <= end:
            raise BadRequest("the form ends within a part")
        _add_part(fields, body[at + 2 : head_end], body, head_end + 4, end)
        at = end + 2
    raise BadRequest(f"expected a form of at most {PARTS} parts, got more")


def _add_part(fields: dict[str, Any], head: bytes, body: bytes, start: int, end: int) -> None:
    headers = email.parser.HeaderParser().parsestr(head.decode("utf-8", "replace"))
    name = headers.get_param("name", header="content-disposition")
    if not isinstance(name, str):
        return
    data = body[start:end]
    fields[name] = data if headers.get_filename() is not None else data.decode("utf-8", "replace")
