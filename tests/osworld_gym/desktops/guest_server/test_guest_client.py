"""The guest's HTTP client against a small server that hangs, closes connections and sends invalid replies."""

import json
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from osworld_gym.desktops.guest_server import desktop as desktop_module
from osworld_gym.desktops.guest_server.desktop import GuestDesktop
from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.desktops.local import desktop as local
from osworld_gym.errors import DesktopError, FailureReason, ReplyTooLarge, StepRefused
from osworld_gym.types import Action


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        self.server.seen.append((self.path, self.headers.get("Authorization"), body))
        answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if answer == "hang":
            self.server.release.wait(20)
        if answer in ("hang", "drop"):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        status, content, *pause = answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.server.release.wait(*pause or (0,))
        self.wfile.write(content)

    do_GET = do_POST

    def log_message(self, *args): ...


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.seen, server.answers, server.release = [], [(200, b"{}")], threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def client(server):
    client = GuestClient("127.0.0.1", server.server_address[1], "secret")
    yield client
    client.close()


class Behind(GuestDesktop):
    """A desktop that is already running."""

    def __init__(self, client):
        super().__init__(640, 480)
        self._client = client

    def reset(self, seed): ...
    def close(self): ...


def test_the_token_and_the_fields_travel(server, client):
    assert client.post("/x", {"a": 1}, timeout=5).json() == {}
    assert server.seen == [("/x", "Bearer secret", b'{"a": 1}')]


def test_a_late_answer_is_hung_and_the_next_question_works(server, client):
    server.answers = ["hang", (200, b'{"a": 1}')]
    start = time.monotonic()
    with pytest.raises(DesktopError) as caught:
        client.post("/x", {}, timeout=0.2)
    assert caught.value.reason is FailureReason.hung
    assert time.monotonic() - start < 5
    assert client.get("/y", timeout=5).json() == {"a": 1}


def test_a_broken_connection_is_died_and_only_harmless_questions_are_asked_again(server, client):
    server.answers = ["drop", (200, b'{"a": 1}')]
    assert client.get("/x", timeout=5).json() == {"a": 1}
    server.answers = ["drop", (200, b'{"a": 1}')]
    with pytest.raises(DesktopError) as caught:
        client.post("/execute", {}, timeout=5)
    assert caught.value.reason is FailureReason.died
    assert [path for path, _, _ in server.seen] == ["/x", "/x", "/execute"]


def test_actions_sent_again_carry_the_same_key(server, client):
    server.answers = ["drop", (200, b"{}")]
    Behind(client).perform([Action("click", (1, 2))])
    first, second = (json.loads(body) for _, _, body in server.seen)
    assert first == second
    assert first["key"]
    others = dict.fromkeys(("end", "key", "content", "direction", "clicks"))
    assert first["actions"] == [{"kind": "click", "start": [1, 2], **others}]


def test_a_large_file_may_take_as_long_as_it_needs(server, client, monkeypatch):
    """A limit of 20 s, whatever the size, made tasks with videos impossible on a server behind a slow network."""
    monkeypatch.setattr(desktop_module, "ANSWER", 0.3)
    server.answers = [(200, bytes(1 << 20), 0.6)]
    desktop = Behind(client)
    assert desktop.read_file("/film.mp4") == bytes(1 << 20)
    desktop.write_file("/film.mp4", bytes(1 << 20))
    for small in (lambda: desktop.write_file("/x", b"1"), lambda: desktop.read_file("/x")):
        server.answers = [(200, b"1", 0.6)]
        with pytest.raises(DesktopError, match=r"took longer than 0\.3"):
            small()


def test_nobody_there_is_died():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(DesktopError) as caught:
        GuestClient("127.0.0.1", port).get("/x", timeout=5)
    assert caught.value.reason is FailureReason.died


def test_answers_of_the_wrong_kind(server, client):
    desktop = Behind(client)
    server.answers = [(200, b"not a png")]
    with pytest.raises(DesktopError) as caught:
        desktop.screenshot()
    assert caught.value.reason is FailureReason.bad_screenshot
    server.answers = [(404, b"{}")]
    with pytest.raises(FileNotFoundError):
        desktop.read_file("/x")
    server.answers = [(500, b'{"message": "disk full"}')]
    with pytest.raises(DesktopError, match="write_file: disk full") as caught:
        desktop.write_file("/x", b"")
    assert caught.value.reason is FailureReason.setup_failed
    for body in (b"<html>", b"[]", b"[" * 100_000):
        server.answers = [(200, body)]
        with pytest.raises(DesktopError, match="expected a JSON object"):
            desktop.run("x")
    server.answers = [(500, b'{"message": "no program", "status": "error"}')]
    assert desktop.run("x").returncode == 127
    server.answers = [(500, b'{"message": "late", "timed_out": true}')]
    with pytest.raises(DesktopError) as caught:
        desktop.run("x")
    assert caught.value.reason is FailureReason.hung


def test_what_a_step_cannot_do_and_what_failed(server, client):
    desktop, late = Behind(client), b'{"message": "Failed to find window for x.txt within 60 seconds."}'
    gone = b'{"message": "Application/file not found: /x.txt; no program"}'
    fields = {"open": {"path": "/x.txt"}, "write_file": {"path": "/x.txt", "content": ""}}
    cases = {
        "gone": ("open", (404, gone), StepRefused, "setup_failed"),
        "gone, said by OSWorld's": ("open", (404, b"Application/file not found: /x"), StepRefused, "setup_failed"),
        "late": ("open", (500, late), DesktopError, "setup_failed"),
        "a gateway": ("open", (404, b"<html>"), DesktopError, "setup_failed"),
        "a folder": ("write_file", (500, b'{"error": "Is a directory"}'), StepRefused, "setup_failed"),
        "no room": ("write_file", (507, b'{"error": "No space left on device"}'), DesktopError, "died"),
        "no machine": ("write_file", (502, b"<html>"), DesktopError, "died"),
    }
    for name, (step, answer, kind, reason) in cases.items():
        server.answers = [answer]
        with pytest.raises(DesktopError) as caught:
            desktop.setup({"type": step, "parameters": fields[step]})
        assert (type(caught.value), caught.value.reason.value) == (kind, reason), name


def test_a_desktop_that_was_never_reset():
    desktop = Behind(None)
    with pytest.raises(DesktopError, match="reset it first"):
        desktop.screenshot()


def test_missing_programs_and_modules_are_one_line_with_the_fix(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        DesktopError, match=r"fix: apt-get update && apt-get install -y bubblewrap xvfb openbox dbus-daemon$"
    ) as caught:
        local.LocalDesktop()
    assert caught.value.reason is FailureReason.never_ready
    monkeypatch.setattr(local, "PROGRAMS", {})
    monkeypatch.setattr(local, "MODULES", ("no_such_module",))
    assert local.missing_requirements() == (
        "the local desktop lacks Python modules (no_such_module); fix: pip install 'osworld-gym[guest]'"
    )


def test_a_screen_of_no_size():
    with pytest.raises(ValueError, match="expected 64 to 8192 pixels, got 0×720"):
        local.LocalDesktop(width=0)
    with pytest.raises(ValueError, match=r"expected 64 to 8192 pixels, got 1280\.0×'720'"):
        local.LocalDesktop(1280.0, "720")


def test_options_that_cannot_be_used_are_refused_before_a_reset():
    with pytest.raises(ValueError, match=r"apps: expected a list of commands, got 'xterm'; fix: apps=\['xterm'\]"):
        local.LocalDesktop(apps="xterm")
    for proxy in ("3128", ":3128", "proxy:", "proxy:99999"):
        with pytest.raises(ValueError, match="proxy: expected host:port, as 127"):
            local.LocalDesktop(proxy=proxy)


def test_the_guests_own_imports_stay_out_of_the_host():
    assert "Xlib" not in sys.modules
    assert "pyautogui" not in sys.modules


def test_a_reply_that_is_too_large_is_not_read_and_the_next_request_works(server):
    client = GuestClient("127.0.0.1", server.server_address[1], "secret", most=1000)
    server.answers = [(200, bytes(1001)), (200, bytes(1000))]
    with pytest.raises(ReplyTooLarge, match="POST /file: the reply has more than 1000 bytes"):
        client.post_form("/file", {"file_path": "/a"}, timeout=5)
    assert len(client.post_form("/file", {"file_path": "/a"}, timeout=5).body) == 1000
    client.close()
