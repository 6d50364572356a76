"""``osworld-gym desktop``: terminal commands and web page, on a simulated and on a real desktop."""

from __future__ import annotations

import io
import os
import pty
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from PIL import Image, ImageChops

from osworld_gym.cli import main
from osworld_gym.commands.desktop_page import Page
from osworld_gym.commands.manual_session import ManualSession
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.tasks.suites.registry import load_suite

DEADLINE = 60.0


@pytest.fixture
def page() -> Iterator[Page]:
    task = load_suite("sim").tasks[0]
    session = ManualSession(SimDesktop(), task, seed=3)
    session.begin()
    with Page(session, 0) as page:
        yield page
        page.shutdown()
    session.close()


def test_page_shows_the_screen_and_takes_actions(page: Page) -> None:
    shown = requests.get(page.address, timeout=DEADLINE)
    assert page.session.task is not None
    assert shown.status_code == 200
    assert page.session.task.instruction.split()[0] in shown.text
    frame = requests.get(page.address + "frame", timeout=DEADLINE)
    assert Image.open(io.BytesIO(frame.content)).size == page.session.desktop.screen_size
    reply = requests.post(page.address + "act", json={"text": "click(start_box='(5,5)')"}, timeout=DEADLINE)
    assert reply.json() == {"said": "performed click"}
    assert requests.post(page.address + "verify", data="{}", timeout=DEADLINE).json()["said"].startswith("score 0")


def test_page_requires_its_secret_and_known_commands(page: Page) -> None:
    root = page.address.removesuffix(f"{page.secret}/")
    for path in ("", "frame", "x/frame", f"{page.secret}x/frame"):
        assert requests.get(root + path, timeout=DEADLINE).status_code == 404
    assert requests.post(root + "act", json={"text": "wait()"}, timeout=DEADLINE).status_code == 404
    assert requests.post(page.address + "run", data="{}", timeout=DEADLINE).status_code == 404
    for body in ("", "[]", "{}", "nonsense"):
        assert requests.post(page.address + "act", data=body, timeout=DEADLINE).status_code == 400
    assert requests.post(page.address + "act", data="x" * 200_000, timeout=DEADLINE).status_code == 413


def test_words_that_are_no_action_do_nothing_and_say_so(page: Page) -> None:
    before = page.session.frame()
    assert page.session.act("delete everything").startswith("not an action")
    assert page.session.frame() == before


def test_giving_up_scores_zero_on_a_task_that_can_be_done(page: Page) -> None:
    assert page.session.verify(given_up=True) == "score 0: no success"


def test_what_cannot_be_opened_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["desktop", "--provider", "sim", "--task", "sim:nothing-of-that-name"]) == 2
    assert "nothing-of-that-name" in capsys.readouterr().err
    assert main(["desktop", "--provider", "sim", "--task", "sim"]) == 2
    assert "SUITE:ID" in capsys.readouterr().err


def _talk(arguments: list[str], lines: list[str]) -> str:
    """Runs the command in a new terminal, types the lines, returns its complete output."""
    master, slave = pty.openpty()
    program = [sys.executable, "-m", "osworld_gym.cli", "desktop", *arguments]
    with subprocess.Popen(program, stdin=slave, stdout=slave, stderr=slave, close_fds=True) as child:
        os.close(slave)
        os.write(master, "".join(f"{line}\n" for line in [*lines, "quit"]).encode())
        shown = b""
        while part := _read(master):
            shown += part
        assert child.wait(DEADLINE) == 0, shown.decode()
    os.close(master)
    return shown.decode()


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # the other end of the terminal is closed
        return b""


def test_lines_of_a_terminal(tmp_path: Path) -> None:
    file = tmp_path / "shot.png"
    shown = _talk(["--provider", "sim"], ["click(start_box='(9,9)')", f"shot {file}", "verify", "help", "hop()"])
    assert re.search(r"http://127\.0\.0\.1:\d+/\S+/ shows it", shown)
    assert "performed click" in shown
    assert "no task: start with --task" in shown
    assert "not an action" in shown
    with Image.open(file) as image:
        assert image.size[0] > 0


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"shot /tmp/a\0b", "no name has a null byte"),
        (b"shot ~nobody-of-this-name/a.png", "no such user"),
        (b"\xff\xfe", "not an action (bad_call)"),
        (b"x" * 300_000, "(300000 characters)"),
    ],
    ids=["null-byte", "unknown-user", "no-text", "long"],
)
def test_a_wrong_line_does_not_end_the_desktop(
    line: bytes, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = io.TextIOWrapper(io.BytesIO(line + b"\nwait()\n"), encoding="utf-8")  # strict, as in most locales
    monkeypatch.setattr(sys, "stdin", typed)
    assert main(["desktop", "--provider", "sim"]) == 0
    shown = capsys.readouterr().out
    assert answer in shown
    assert shown.endswith("performed wait\n")
    assert len(shown) < 2000


def test_a_closed_standard_input_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["desktop", "--provider", "sim"]) == 0


def _exchange(page: Page, head: str, body: bytes = b"", *, leave: bool = False) -> bytes:
    """Sends one request and returns the answer; ``leave``: resets the connection instead of reading it."""
    with socket.create_connection(("127.0.0.1", page.server_address[1]), timeout=DEADLINE) as connection:
        connection.sendall(f"{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode("latin-1") + body)
        if leave:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return b""
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_requests_of_strangers_and_a_browser_that_leaves_print_nothing(
    page: Page, capfd: pytest.CaptureFixture[str]
) -> None:
    _exchange(page, f"POST /{page.secret}/act", b"Content-Length: 50\r\n\r\nabc", leave=True)
    nested = b'{"text": ' + b"[" * 40_000 + b"]" * 40_000 + b"}"
    reply = _exchange(page, f"POST /{page.secret}/act", b"Content-Length: %d\r\n\r\n" % len(nested) + nested)
    assert reply.startswith(b"HTTP/1.1 400")
    for length in (b"\xb2", b"9" * 5000):
        reply = _exchange(page, "POST /act", b"Content-Length: %s\r\n\r\n" % length)
        assert reply.startswith(b"HTTP/1.1 413")
    assert requests.get(page.address, timeout=DEADLINE).status_code == 200
    assert capfd.readouterr().err == ""


@pytest.mark.desktop
def test_a_real_desktop_is_moved_by_hand(tmp_path: Path) -> None:
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    keys = ["hotkey(key='ctrl alt t')", "wait()"]
    shown = _talk(["--width", "800", "--height", "600"], [f"shot {one}", *keys, f"shot {two}", "reset"])
    assert "800×600" in shown
    assert "a fresh desktop" in shown
    assert shown.count("performed") == 2
    with Image.open(one) as before, Image.open(two) as after:
        assert before.size == after.size == (800, 600)
        box = ImageChops.difference(before.convert("RGB"), after.convert("RGB")).getbbox()
    assert box is not None
    assert (box[2] - box[0]) * (box[3] - box[1]) > 800 * 600 / 2, "ctrl+alt+t opened no terminal"
