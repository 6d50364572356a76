"""Replies of a server that a policy has replaced: bounded in memory, and errors of a desktop, whatever they are."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from replaced_server import KINDS, Running

from osworld_gym.desktops.guest_server.desktop import GuestDesktop
from osworld_gym.desktops.guest_server.http_client import MAX_FIELDS, MAX_MESSAGE, GuestClient, Reply
from osworld_gym.desktops.guest_server.official_desktop import OfficialDesktop, read_windows
from osworld_gym.desktops.guest_server.stillness import read_processes
from osworld_gym.desktops.remote.desktop import Server, screen_of
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.types import Action, CommandResult

# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [b"-1", b"-5"])
def test_a_chunk_of_a_negative_size_is_not_read(size: bytes) -> None:
    """http.client reads a chunk of -1 byte until the connection ends, past every limit."""
    sent = []

    def serve(listener: socket.socket) -> None:
        for _ in range(2):  # the request is sent twice
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                try:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n")
                    while len(sent) < 400:
                        connection.sendall(bytes(1 << 20))
                        sent.append(1)
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        with pytest.raises(DesktopError, match="expected the size of a part of a reply") as caught:
            GuestClient("127.0.0.1", listener.getsockname()[1], most=1 << 20).get("/json/list", timeout=30)
    assert caught.value.reason is FailureReason.died
    assert len(sent) < 100


def test_a_chunked_reply_is_read() -> None:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        client = GuestClient("127.0.0.1", listener.getsockname()[1])
        assert client.get("/", timeout=30).body == b"abcde"
        client.close()


def test_a_message_is_cut_before_it_is_kept(server: Any, desktop: Running) -> None:
    server.answer = (503, json.dumps({"message": "half \ud800 " + "A" * (8 << 20)}).encode())
    with pytest.raises(DesktopError) as caught:
        desktop(GuestDesktop).screenshot()
    assert len(str(caught.value)) < MAX_MESSAGE + 100
    assert "half ? AAA" in caught.value.message
    assert Reply(500, json.dumps({"message": ["a"] * MAX_MESSAGE}).encode()).message.startswith('{"message": ["a", ')


def test_json_that_takes_many_times_its_bytes_is_not_parsed() -> None:
    lists = b'{"output": "", "error": "", "returncode": 0, "x": [' + b"[]," * (MAX_FIELDS // 3) + b"[]]}"
    with pytest.raises(DesktopError, match="expected a JSON object from the guest"):
        Reply(200, lists).json()
    texts = {"output": '[{,":\\' * (MAX_FIELDS // 4), "error": "", "returncode": 0}  # of a command that prints them
    assert Reply(200, json.dumps(texts).encode()).result().output == texts["output"]
    for open_text in (b'"' + b'\\"' * MAX_FIELDS, b'"a\\' * MAX_FIELDS):  # quadratic, if each is sought to the end
        assert Reply(200, open_text).message


# --- fields ---------------------------------------------------------------------------------------------------------

RESULTS = (
    b"{}",
    b'{"returncode": "0", "output": "", "error": ""}',
    b'{"returncode": 1e999, "output": "", "error": ""}',
    b'{"returncode": 0, "output": 5, "error": ""}',
    b'{"returncode": 0, "output": "", "error": null}',
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", RESULTS)
def test_what_is_no_result_of_a_command_is_died(
    server: Any, desktop: Running, kind: type[GuestDesktop], body: bytes
) -> None:
    server.answer = (200, body)
    running = desktop(kind)
    calls: tuple[Callable[[], CommandResult], ...] = (
        lambda: running.run("true"),
        lambda: running.execute("true", shell=True),
    )
    for call in calls:
        with pytest.raises(DesktopError) as caught:
            call()
        assert caught.value.reason is FailureReason.died


@pytest.mark.parametrize("cut", ["1e999", "-1", "2", '"1"', "true", "null"])
def test_the_number_of_actions_that_were_cut_is_one(server: Any, desktop: Running, cut: str) -> None:
    server.answer = (200, f'{{"cut": {cut}}}'.encode())
    running = desktop(GuestDesktop)
    with pytest.raises(DesktopError, match="expected how many of 1 actions"):
        running.perform([Action("click", start=(1, 1))])
    assert running.cut_actions == 0


@pytest.mark.parametrize("body", [b"{}", b'{"windows": 3, "popups": null}', b'{"windows": [1], "popups": [[]]}'])
def test_what_is_no_list_of_windows_is_died(server: Any, desktop: Running, body: bytes) -> None:
    server.answer = (200, body)
    running = desktop(GuestDesktop)
    for call in (running.windows, running.popups):
        with pytest.raises(DesktopError, match="expected a list of objects"):
            call()


def test_an_error_of_an_action_may_be_anything(server: Any, desktop: Running) -> None:
    server.answer = (200, b'{"returncode": 1, "error": 5}')
    with pytest.raises(DesktopError, match="could not act: 5"):
        desktop(OfficialDesktop).perform([Action("click", start=(1, 1))])


@pytest.mark.parametrize("body", [b"{}", b'{"width": "x", "height": 1}', b'{"width": 1e999, "height": 1}'])
def test_a_screen_without_a_size(server: Any, body: bytes) -> None:
    server.answer = (200, body)
    with pytest.raises(DesktopError, match="expected two numbers"):
        screen_of(Server("127.0.0.1", server.server_address[1], "", {}))


def test_titles_cannot_break_the_list_of_windows() -> None:
    """A window's title may have line ends, and what xprop prints."""
    sound = "0x01 0 5 6 70 80 term.Term host Terminal"
    titles = "0x02 0 1 2 3 4 a.A host x\nno window at all 1 2 3 4 5\n_NET_ACTIVE_WINDOW 0xzz\n0x3 0 1 2 " + "9" * 5000
    listing = f"{titles} 4 b.B host y\n{sound}\n_NET_ACTIVE_WINDOW(WINDOW): window id # 0x01\n"
    windows = read_windows(listing)
    assert [window["id"] for window in windows] == [2, 1]
    assert [window["active"] for window in windows] == [False, True]
    assert windows[1]["title"] == "Terminal"


def test_names_cannot_break_the_list_of_processes() -> None:
    fields = "S 1 1 1 0 -1 4194560 1 0 0 0 {} 2 3 4 20 0 1 0 8841 1"
    lines = [f"7 (sh) {fields.format(1)}", f"8 (a) {fields.format('x')}", f"{'9' * 5000} (b) {fields.format(1)}"]
    assert list(read_processes("\n".join(lines))) == [(7, 8841)]
