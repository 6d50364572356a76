"""Our client for official servers on a running server: our guest, which has the same protocol, or an official one."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest
from open_guest import OpenGuest, open_guest
from polling import until

from osworld_gym.desktops.checks import run_checks
from osworld_gym.desktops.guest_server import official_desktop
from osworld_gym.desktops.guest_server.desktop import GuestDesktop
from osworld_gym.desktops.guest_server.http_client import GuestClient, Reply
from osworld_gym.desktops.guest_server.official_desktop import OfficialDesktop, speaks_ours
from osworld_gym.desktops.remote.desktop import RemoteDesktop
from osworld_gym.types import Action

#: requirements of the contract that pyautogui on an official server cannot meet
KNOWN: dict[str, str] = {}


class OfficialLocal(OfficialDesktop):
    """A guest on this machine, used through the official protocol only."""

    def __init__(self) -> None:
        super().__init__(1280, 720)
        self._guests: AbstractContextManager[OpenGuest] | None = None

    def reset(self, seed: int) -> None:
        self.close()
        self._guests = open_guest(seed=seed)
        self._client = GuestClient("127.0.0.1", self._guests.__enter__().port)

    def close(self) -> None:
        guests, client, self._guests, self._client = self._guests, self._client, None, None
        if client is not None:
            client.close()
        if guests is not None:
            guests.__exit__(None, None, None)


@pytest.fixture
def desktop() -> Iterator[OfficialLocal]:
    with OfficialLocal() as made:
        made.reset(1)
        yield made


@pytest.mark.apps
def test_the_contract_holds_by_the_official_protocol_alone() -> None:
    results = run_checks(OfficialLocal, KNOWN)
    print("\n".join(f"{result.outcome:7} {result.seconds:6.1f} s  {result.name}" for result in results))
    assert [f"{result.name}: {result.detail}" for result in results if result.outcome == "failed"] == []


@pytest.mark.apps
def test_text_arrives_and_the_clipboards_daemon_blocks_nobody(desktop: OfficialLocal) -> None:
    assert speaks_ours(desktop._guest)
    desktop.write_file("/home/user/typed.txt", b"")
    desktop.setup({"type": "open", "parameters": {"path": "/home/user/typed.txt"}})
    text = "it's <plain> \\n text\nand Größe 你好"
    start = time.monotonic()
    desktop.perform([Action("type", content=text), Action("hotkey", key="ctrl s")])
    assert time.monotonic() - start < 40
    assert desktop.read_file("/home/user/typed.txt").decode().rstrip("\n") == text
    assert [window["active"] for window in desktop.windows()] == [True]
    desktop.setup({"type": "close_window", "parameters": {"window_name": "typed.txt"}})
    assert desktop.windows() == []


@pytest.mark.desktop
@pytest.mark.parametrize("program", ["xterm", "mousepad"])
def test_any_character_reaches_a_terminal_and_an_editor(
    desktop: OfficialLocal, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also more different characters than get key codes at a time, twice the same, and none that pyautogui types."""
    monkeypatch.setattr(official_desktop, "WORK", 300.0)  # on a busy machine it takes more than a step's limit
    path = "/home/user/typed.txt"
    line = "wc -l < Größe.txt >> «naïve» 你好🙂你 Привет, мир — ξένος"
    command = {
        "xterm": ["xterm", "-u8", "-e", "sh", "-c", f"cat > {path}"],
        "mousepad": ["mousepad", path],
    }[program]
    desktop.write_file(path, b"")
    GuestDesktop.launch(desktop, command, shell=False, window=True)  # needs no wmctrl
    desktop.wait_still(5.0)
    end = "ctrl d" if program == "xterm" else "ctrl s"
    desktop.perform([Action("type", content=f"{line}\r\nnext < one\n"), Action("hotkey", key=end)])
    wanted = f"{line}\nnext < one\n"
    until(lambda: desktop.read_file(path).decode() == wanted, f"expected {wanted!r}, got {desktop.read_file(path)!r}")


@pytest.mark.apps
def test_the_first_frame_after_a_slow_start_has_the_window(
    desktop: OfficialLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An official server only starts the program; ours would wait for the window itself, so a shell starts it."""
    client = desktop._guest
    send = client.post

    def post(path: str, fields: Mapping[str, Any], **options: Any) -> Reply:
        if path == "/setup/launch":
            command = f"setsid {shlex.join(fields['command'])} >/dev/null 2>&1 &"
            return send("/execute", {"command": command, "shell": True}, **options)
        return send(path, fields, **options)

    monkeypatch.setattr(client, "post", post)
    slow = "python3 -c 'import time; end = time.monotonic() + 6\nwhile time.monotonic() < end: pass'; exec xterm"
    desktop.setup({"type": "launch", "parameters": {"command": ["sh", "-c", slow]}})
    assert [window["name"] for window in desktop.windows()] == ["xterm.XTerm"]
    start = time.monotonic()
    desktop.setup({"type": "launch", "parameters": {"command": ["sleep", "600"]}})
    assert 3 <= time.monotonic() - start < 30


@pytest.mark.apps
def test_a_marker_is_left_by_the_last_action_only(desktop: OfficialLocal) -> None:
    for x in (10, 20, 30):
        desktop.perform([Action("click", start=(x, 10))])
    listed = desktop.run("ls -A /tmp | grep -c osworld-gym-action", shell=True)
    assert listed.output == "1\n"


@pytest.mark.official
def test_a_live_official_server() -> None:
    """Only reads, and moves the pointer: the machine may be in use."""
    url = os.environ.get("OSWORLD_SERVER_URL")
    if not url:
        pytest.skip("OSWORLD_SERVER_URL names no server, as in http://host:5000")
    with RemoteDesktop([url], allow_dirty=True) as desktop:
        desktop.reset(0)
        assert desktop.screenshot().size == desktop.screen_size
        assert desktop.run(["printf", "%s", "a b"]).output == "a b"
        with pytest.raises(FileNotFoundError):
            desktop.read_file("/no/such/file")
        desktop.perform([Action("hotkey", key="shift")])
        assert desktop.screenshot().pixels.any()
