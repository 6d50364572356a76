"""Malformed requests: every endpoint answers 400 or another client error, and the server answers the next request."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from typing import Any

import pytest
import requests
from open_guest import OpenGuest, open_guest

from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.guest.ports import SERVER

pytestmark = pytest.mark.desktop

IDLE, IDLE_PROGRAMS = 1000, 3000  # connections from this machine, and from inside
IDLE_INSIDE = f"""
import http.client, socket
held = [socket.create_connection(("127.0.0.1", 5000), 60) for _ in range({IDLE_PROGRAMS})]
connection = http.client.HTTPConnection("127.0.0.1", 5000, timeout=60)
connection.request("GET", "/health")
print(connection.getresponse().status)
"""

WRONG: dict[str, Any] = {
    "null": None,
    "number": 3,
    "negative": -1,
    "huge": 10**400,
    "fraction": 0.5,
    "nul": "a\0b",
    "half a character": "a\ud800b",
    "long name": "n" * 300,
    "long path": "/a" * 4000,
    "empty list": [],
    "list": [None],
    "list with nul": ["echo", "a\0b"],
    "list with half a character": ["echo", "\udfff"],
    "object": {"x": []},
}
#: endpoint → its fields, each of which gets every wrong value
FIELDS = {
    "/execute": ("command", "shell", "timeout"),
    "/setup/execute": ("command", "timeout"),
    "/execute_with_verification": ("command", "verification", "max_wait_time", "check_interval"),
    "/setup/launch": ("command", "deadline"),
    "/run_python": ("code", "timeout"),
    "/run_bash_script": ("script", "timeout", "working_dir"),
    "/list_directory": ("path",),
    "/setup/download_file": ("url", "path", "timeout"),
    "/setup/open_file": ("path", "deadline"),
    "/setup/activate_window": ("window_name", "strict", "by_class"),
    "/setup/close_window": ("window_name",),
    "/window_size": ("app_class_name",),
    "/setup/change_wallpaper": ("path",),
    "/observe": ("quiet", "deadline"),
    "/seed": ("seed",),
    "/actions": ("actions", "key", "quiet", "deadline", "limit"),
}
#: the other fields, such that the request is complete
COMPLETE: dict[str, dict[str, Any]] = {
    "/execute": {"command": ["true"]},
    "/setup/execute": {"command": ["true"]},
    "/execute_with_verification": {"command": ["true"], "max_wait_time": 0, "check_interval": 0},
    "/setup/launch": {"command": ["true"]},
    "/run_python": {"code": "1"},
    "/run_bash_script": {"script": "true"},
    "/setup/download_file": {"url": "http://127.0.0.1:1/", "path": "/tmp/x", "timeout": 1},
    "/setup/open_file": {"path": "/no/such", "deadline": 0.1},
    "/setup/activate_window": {"window_name": "none"},
    "/observe": {"quiet": 0, "deadline": 0},
    "/actions": {"actions": [], "quiet": 0},
}
#: what is a correct request in spite of its odd value, or fails for another reason than its form
MAY_FAIL = {("/setup/download_file", name) for name in ("url", "path", "timeout")} | {
    ("/execute", "command"),  # no such program
    ("/setup/execute", "command"),
    ("/setup/launch", "command"),
    ("/execute_with_verification", "command"),
    ("/execute_with_verification", "verification"),
    ("/execute_with_verification", "check_interval"),
    ("/execute", "timeout"),  # over before the command has ended
    ("/setup/execute", "timeout"),
    ("/run_python", "timeout"),
    ("/run_bash_script", "timeout"),
}
SYSTEM = ("nul", "half a character", "list with nul", "list with half a character")
ACTIONS = {
    "no end": {"kind": "drag", "start": [1, 1]},
    "text as clicks": {"kind": "scroll", "direction": "up", "clicks": "many"},
    "one number": {"kind": "click", "start": [1]},
    "no number": {"kind": "click", "start": []},
    "texts": {"kind": "click", "start": ["a", "b"]},
    "objects": {"kind": "drag", "start": {}, "end": {}},
    "not a number": {"kind": "click", "start": [float("nan"), 0]},
    "huge": {"kind": "hover", "start": [10**400, 0]},
    "no kind": {},
    "other kind": {"kind": ["click"]},
    "number as text": {"kind": "type", "content": 3},
    "list as key": {"kind": "hotkey", "key": ["a"]},
}


@pytest.fixture(scope="module")
def guest() -> Iterator[OpenGuest]:
    with open_guest(width=640, height=480) as made:
        yield made


def post(guest: OpenGuest, path: str, body: object) -> requests.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.post(guest.url + path, data=data, headers={"Content-Type": "application/json"}, timeout=60)


@pytest.mark.parametrize("path", FIELDS)
def test_a_wrong_field_is_the_requests_fault(guest: OpenGuest, path: str) -> None:
    wrong = {}
    for name, (kind, value) in product(FIELDS[path], WRONG.items()):
        reply = post(guest, path, COMPLETE.get(path, {}) | {name: value})
        client = reply.status_code < 500 or ((path, name) in MAY_FAIL and kind not in SYSTEM)
        if not client:
            wrong[name, kind] = (reply.status_code, reply.text[:100])
    assert wrong == {}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_a_wrong_action_is_the_requests_fault(guest: OpenGuest, action: dict[str, Any]) -> None:
    assert post(guest, "/actions", {"actions": [action], "quiet": 0}).status_code == 400


@pytest.mark.parametrize("path", [*FIELDS, "/file", "/setup/upload"])
@pytest.mark.parametrize("body", [b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 10_000])
def test_a_wrong_body_is_the_requests_fault(guest: OpenGuest, path: str, body: bytes) -> None:
    assert post(guest, path, body).status_code == 400


@pytest.mark.parametrize("value", ["nul", "long name", "long path"])
def test_a_wrong_path_in_a_form_is_the_requests_fault(guest: OpenGuest, value: str) -> None:
    path = WRONG[value]
    assert requests.post(f"{guest.url}/file", data={"file_path": path}, timeout=60).status_code == 400
    files = {"file_path": (None, path), "file_data": ("x", b"x")}
    assert requests.post(f"{guest.url}/setup/upload", files=files, timeout=60).status_code == 400
    assert requests.get(f"{guest.url}/health", timeout=60).status_code == 200


def test_thousands_of_idle_connections_keep_nobody_out() -> None:
    """The server's port on this machine, and the one inside, which requires no token."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        with LocalDesktop(640, 480, template=None) as desktop, ExitStack() as stack:
            desktop.reset(0)
            assert desktop.server is not None
            url, token = desktop.server
            address = desktop.forwarded(SERVER)
            assert address is not None
            for _ in range(IDLE):
                stack.enter_context(socket.create_connection(address, 60))
            inside = desktop.run(["python3", "-c", IDLE_INSIDE], timeout=120)
            assert inside.output.split() == ["200"], inside.error
            headers = {"Authorization": f"Bearer {token}"}
            assert requests.get(f"{url}/health", headers=headers, timeout=60).status_code == 200
            assert len(desktop.screenshot().png) > 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
