"""Our client for official servers, on recorded replies: the requests it sends, and that none is sent twice."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from osworld_gym.desktops.guest_server import official_desktop
from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.desktops.guest_server.official_actions import MARKER, OWN_KEYS, action_command, batches
from osworld_gym.desktops.guest_server.official_desktop import OfficialDesktop, read_windows, speaks_ours
from osworld_gym.desktops.guest_server.stillness import Process, await_still, differ, read_processes
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.types import Action

ANSWERS = json.loads((Path(__file__).parent / "data" / "official_server_answers.json").read_text())["answers"]


def png(size: tuple[int, int] = (640, 480), colour: tuple[int, int, int] = (9, 9, 9)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


class Server(ThreadingHTTPServer):
    """Serves recorded replies; ``plan``: path → variants of the reply, in order (``drop``: closes the connection)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.seen: list[tuple[str, bytes]] = []
        self.plan: dict[str, list[str]] = {}
        self.frames = [png()]

    def bodies(self, path: str) -> list[Any]:
        return [json.loads(body) for name, body in self.seen if name == f"POST {path}"]


class Request(BaseHTTPRequestHandler):
    """Like Flask's development server: HTTP/1.0, one connection per request."""

    server: Server

    def do_POST(self) -> None:
        name = f"{self.command} {self.path}"
        self.server.seen.append((name, self.rfile.read(int(self.headers.get("Content-Length", 0)))))
        plan = self.server.plan.get(self.path, [])
        what = plan.pop(0) if plan else ""
        if what == "drop":
            self.connection.shutdown(socket.SHUT_RDWR)
            return None
        if name == "GET /screenshot" and not what:
            frames = self.server.frames
            return self._send(200, "image/png", frames.pop(0) if len(frames) > 1 else frames[0])
        answer = ANSWERS[f"{name} {what}".strip()]
        body = json.dumps(answer["json"]) if "json" in answer else answer["text"]
        return self._send(answer["status"], answer["type"], body.encode())

    do_GET = do_POST

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


class Machine(OfficialDesktop):
    """A machine that is already running."""

    def __init__(self, port: int) -> None:
        super().__init__(640, 480)
        self._client = GuestClient("127.0.0.1", port)

    def reset(self, seed: int) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def machine(server: Server) -> Machine:
    return Machine(server.server_address[1])


def test_whose_server_it_is(server: Server) -> None:
    assert not speaks_ours(GuestClient("127.0.0.1", server.server_address[1]))
    server.server_close()
    server.shutdown()
    with pytest.raises(DesktopError):
        speaks_ours(GuestClient("127.0.0.1", server.server_address[1]), timeout=5)


def test_an_action_is_one_command(server: Server, machine: Machine) -> None:
    machine.perform(
        [Action("click", start=(-9, 1e9)), Action("type", content="it's ok\nfine"), Action("hotkey", key="esc")]
    )
    (sent,) = server.bodies("/execute")
    program, option, source = sent["command"]
    assert (program, option, sent["shell"]) == ("python3", "-c", False)
    for line in (
        "pyautogui.FAILSAFE = False",
        "pyautogui.click(0, 479, button='left')",
        'pyautogui.write("it\'s ok", ',
    ):
        assert line in source
    compile(source, "<sent>", "exec")


def test_what_pyautogui_cannot_type_gets_its_keys_in_a_command_before(server: Server, machine: Machine) -> None:
    actions = [Action("click", start=(1, 1)), Action("type", content="naïve\ta<b\n"), Action("click", start=(2.5, 2.4))]
    machine.perform(actions)
    sources = [sent["command"][2] for sent in server.bodies("/execute")]
    for source in sources:
        compile(source, "<sent>", "exec")
    wanted = ["write('na'", "in 'ï'", "in 'ï'", "write('ve'"]
    assert [part in source for part, source in zip(wanted, sources, strict=True)] == [True] * 4
    assert ["in wanted if True" in source for source in sources] == [False, False, True, False]
    for part in ("press('tab')", "write('a'", "hotkey('shift', ',')", "write('b'", "press('enter')", "click(3, 2, "):
        assert part in sources[3]
    assert not any("'v'" in source for source in sources)  # a terminal does not paste at ctrl+v


def test_a_text_is_typed_in_pieces_of_few_different_characters() -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 2 * OWN_KEYS + 1))) * 2 + "\x07\ud800"
    planned = batches([Action("type", content=text)], (640, 480))
    assert "".join(action.content or "" for batch in planned for action in batch.actions) == text[:-2]
    assert all(len(set(batch.own_keys)) <= OWN_KEYS for batch in planned)
    assert [len(batch.actions) for batch in planned] == [0, 1] * (len(planned) // 2)


def test_an_action_sent_again_carries_the_same_marker_and_the_next_one_another(
    server: Server, machine: Machine
) -> None:
    server.plan["/execute"] = ["drop"]
    machine.perform([Action("click", start=(1, 2))])
    machine.perform([Action("click", start=(1, 2))])
    first, again, other = (sent["command"][2] for sent in server.bodies("/execute"))
    assert first == again
    assert other != first
    key = first.split(MARKER)[1].split("'")[0]
    assert f"os.path.exists('{MARKER}{key}')" in other  # the next action removes the marker of this one


def test_the_source_acts_once_and_gives_its_pipes_to_nobody(tmp_path: Path) -> None:
    """Runs the command of an official server with a fake input module that leaves a process."""
    daemon = "open('daemons', 'a').write(f\"{subprocess.Popen(['sleep', '40']).pid} \")"
    fake = f"import subprocess\ndef hotkey(*a):\n    {daemon}\n    open('keys', 'a').write('x')\n"
    (tmp_path / "pyautogui.py").write_text(fake)
    (batch,) = batches([Action("hotkey", key="esc")], (640, 480))
    source = action_command(batch, "key", "")[2].replace(MARKER, f"{tmp_path}/marker-")
    runs = [
        subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, timeout=20, check=False)
        for _ in range(2)
    ]
    for pid in (tmp_path / "daemons").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    assert [run.returncode for run in runs] == [0, 0]
    assert (tmp_path / "keys").read_text() == "x"
    broken = source.replace("pyautogui.hotkey", "pyautogui.nothing").replace("marker-", "other-")
    told = subprocess.run([sys.executable, "-c", broken], cwd=tmp_path, capture_output=True, timeout=20, check=False)
    assert (told.returncode, b"has no attribute 'nothing'" in told.stderr) == (1, True)


def test_waits_are_waited_for_here_and_nothing_is_sent_for_nothing(server: Server, machine: Machine) -> None:
    machine.perform([Action("wait"), Action("finished"), Action("call_user")])
    assert server.bodies("/execute") == []
    machine.perform([Action("click", start=(1, 1)), Action("wait"), Action("click", start=(2, 2))])
    assert len(server.bodies("/execute")) == 2


@pytest.mark.parametrize("what", ["failing", "not found", "too long"])
def test_an_action_that_fails_is_died(server: Server, machine: Machine, what: str) -> None:
    server.plan["/execute"] = [what]
    with pytest.raises(DesktopError, match="could not act") as caught:
        machine.perform([Action("click", start=(1, 2))])
    assert caught.value.reason is FailureReason.died
    assert len(server.bodies("/execute")) == 1


def test_frames(server: Server, machine: Machine) -> None:
    assert machine.screenshot().size == (640, 480)
    server.plan["/screenshot"] = ["failing"]
    assert machine.screenshot().size == (640, 480)  # one invalid frame is requested again
    bad = {"torn": png()[:-20], "empty": b"", "black": png(colour=(0, 0, 0)), "small": png((64, 48))}
    for name, frame in bad.items():
        server.frames = [frame]
        with pytest.raises(DesktopError) as caught:
            machine.screenshot()
        assert (name, caught.value.reason) == (name, FailureReason.bad_screenshot)
    server.plan["/screenshot"] = ["failing", "failing"]
    with pytest.raises(DesktopError, match="Can't connect to display"):
        machine.screenshot()


def test_the_screen_is_awaited_after_an_action(server: Server, machine: Machine) -> None:
    server.frames = [png(colour=(i + 1, 0, 0)) for i in range(6)]
    machine.perform([Action("click", start=(1, 2))])
    assert len(server.frames) == 1  # every change was observed
    assert machine.screenshot().pixels[0, 0].tolist() == [6, 0, 0]


def test_commands(server: Server, machine: Machine) -> None:
    server.plan["/execute"] = ["output"]
    assert machine.run("uname -s").output == "Linux\n"
    machine.run(["echo", "a b"], timeout=3)
    machine.run("echo $HOME | cat", shell=True)
    sent = [body["command"] for body in server.bodies("/execute")]
    assert sent[0] == ["timeout", "--kill-after=1", "30", "uname", "-s"]
    assert sent[1] == ["timeout", "--kill-after=1", "3", "echo", "a b"]
    assert sent[2] == ["timeout", "--kill-after=1", "30", "/bin/sh", "-c", "echo $HOME | cat"]
    server.plan["/execute"] = ["not found"]
    assert machine.run("x").returncode == 127
    server.plan["/execute"] = ["over"]
    assert machine.run("exit 124", shell=True).returncode == 124  # not a timeout: it returned at once
    for what, timeout in (("over", 0.0), ("too long", 30.0)):
        server.plan["/execute"] = [what]
        with pytest.raises(DesktopError) as caught:
            machine.run("x", timeout=timeout)
        assert caught.value.reason is FailureReason.hung


def test_files(server: Server, machine: Machine) -> None:
    assert machine.read_file("/home/user/x") == b"content"
    server.plan["/file"] = ["missing"]
    with pytest.raises(FileNotFoundError):
        machine.read_file("/home/user/x")
    machine.write_file("/home/user/x", b"bytes")
    (form,) = (body for name, body in server.seen if name == "POST /setup/upload")
    assert b'name="file_path"\r\n\r\n/home/user/x\r\n' in form
    assert b"\r\n\r\nbytes\r\n" in form
    server.plan["/setup/upload"] = ["failing"]
    with pytest.raises(DesktopError, match="Permission denied") as caught:
        machine.write_file("/root/x", b"")
    assert caught.value.reason is FailureReason.setup_failed


def test_setup_steps(server: Server, machine: Machine) -> None:
    server.plan["/execute"] = ["", "windows"]  # no window, then two
    machine.setup({"type": "launch", "parameters": {"command": ["google-chrome"], "window": True}})
    machine.setup({"type": "open", "parameters": {"path": "/home/user/x.xlsx"}})
    machine.setup({"type": "activate_window", "parameters": {"window_name": "x", "strict": True}})
    machine.setup({"type": "close_window", "parameters": {"window_name": "x"}})
    machine.setup({"type": "sleep", "parameters": {"seconds": 0.1}})
    machine.setup({"type": "execute", "parameters": {"command": "true"}})
    paths = [name.split()[1] for name, _ in server.seen if name != "GET /screenshot" and name != "POST /execute"]
    wanted = ["launch", "open_file", "activate_window", "close_window", "execute"]
    assert paths == [f"/setup/{name}" for name in wanted]
    for path, kind, parameters in (
        ("/setup/launch", "launch", {"command": ["nothing"], "window": False}),
        ("/setup/open_file", "open", {"path": "/no/such.xlsx"}),
    ):
        server.plan[path] = ["failing"]
        with pytest.raises(DesktopError) as caught:
            machine.setup({"type": kind, "parameters": parameters})
        assert caught.value.reason is FailureReason.setup_failed


class Launched(Machine):
    """A machine whose windows and processes are scripted; the last listing is repeated."""

    def __init__(self, port: int, *listings: tuple[int, str, int]) -> None:
        super().__init__(port)
        self.listings = [(0, "S", 0), *listings]  # windows; state and ticks of the launched program

    def _listed_programs(self) -> tuple[list[dict[str, Any]], dict[tuple[int, int], Process]]:
        count, state, ticks = self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]
        old = {(1, 1): Process("R", len(self.listings))}  # what ran before always works
        return [{"id": i} for i in range(count)], old | ({(7, 5): Process(state, ticks)} if ticks else {})


def launched(
    monkeypatch: pytest.MonkeyPatch, server: Server, window: bool | None, *listings: tuple[int, str, int]
) -> Launched:
    monkeypatch.setattr(official_desktop, "POLL", 0.05)
    monkeypatch.setattr(official_desktop, "IDLE", 0.4)
    monkeypatch.setattr(official_desktop, "WINDOW", 2.0)
    machine = Launched(server.server_address[1], *listings)
    machine.launch(["soffice"], shell=False, window=window)
    return machine


def test_the_window_of_a_program_that_still_works_is_awaited(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """A cold start: 25 listings take longer than the 0.4 s after which an idle program is given up."""
    computing = [(0, "S", ticks) for ticks in range(1, 13)]
    reading = [(0, "D", 12)] * 13
    machine = launched(monkeypatch, server, None, *computing, *reading, (1, "S", 12))
    assert machine.listings == [(1, "S", 12)]


@pytest.mark.parametrize("listings", [[], [(0, "S", 3)]], ids=["ended", "idle"])
def test_a_program_without_a_window_is_not_awaited_for_long(
    monkeypatch: pytest.MonkeyPatch, server: Server, listings: list[tuple[int, str, int]]
) -> None:
    start = time.monotonic()
    launched(monkeypatch, server, None, *listings)
    assert time.monotonic() - start > 0.4
    assert len(server.bodies("/setup/launch")) == 1
    with pytest.raises(DesktopError, match="showed no window in 2 s"):
        launched(monkeypatch, server, True, *listings)


def test_processes_are_read_from_stat() -> None:
    rest = "1 7 7 0 -1 4194304 100 0 0 0 12 3 4 1 20 0 1 0 8841 2 3 4"
    listing = f"7 (a) R (b) S {rest}\n8 (cat) R 1\nno process\n"
    assert read_processes(listing) == {(7, 8841): Process("S", 20)}


def test_windows(server: Server, machine: Machine) -> None:
    server.plan["/execute"] = ["windows"]
    windows = machine.windows()
    assert [window["title"] for window in windows] == ["Terminal", "Größe 1.xlsx - LibreOffice Calc", "@!0,0;BDHF"]
    assert [window["active"] for window in windows] == [False, True, False]
    assert windows[1] | {"title": ""} == {
        "id": 0x2200003, "title": "", "name": "libreoffice.libreoffice-calc",
        "x": 70, "y": 64, "width": 1850, "height": 1016, "active": True,
    }  # fmt: skip
    assert read_windows("Cannot get client list properties.\n") == []


def test_a_machine_that_is_not_ready_yet(server: Server, machine: Machine) -> None:
    server.plan["/screenshot"] = ["failing"] * 5
    machine._await_ready(30)
    server.frames = [png(colour=(0, 0, 0))]
    start = time.monotonic()
    with pytest.raises(DesktopError, match="all black") as caught:
        machine._await_ready(0.5)
    assert caught.value.reason is FailureReason.never_ready
    assert time.monotonic() - start < 10


def test_stillness() -> None:
    still = np.zeros((60, 100, 3), np.uint8)
    caret, word = still.copy(), still.copy()
    caret[5:40, 20:22] = 255
    word[5:20, 20:60] = 255
    assert not differ(still, still.copy())
    assert not differ(still, caret)
    assert differ(still, word)
    assert differ(still, np.zeros((60, 101, 3), np.uint8))
    blinking = iter([still, caret] * 1000)
    assert await_still(lambda: next(blinking), quiet=0.2, deadline=20)
    moving = iter([still, word] * 1000)
    start = time.monotonic()
    assert not await_still(lambda: next(moving), quiet=0.2, deadline=0.5)
    assert 0.5 <= time.monotonic() - start < 5
