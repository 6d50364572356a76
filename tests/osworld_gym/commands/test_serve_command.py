"""`osworld-gym serve`: a guest server for another harness, and the errors for a wrong port or screen."""

from __future__ import annotations

import io
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import requests
from PIL import Image

from osworld_gym import cli
from osworld_gym.commands import install
from osworld_gym.guest.process.processes import marked


@contextmanager
def serve(*options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Starts the command; yields it and the lines that it printed, by the text before their colon."""
    command = [sys.executable, "-m", "osworld_gym.cli", "serve", "--screen", "640x480", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, told(process)
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    lines = []
    while not lines or "is ready" not in lines[-1]:
        line = process.stdout.readline()
        assert line, f"it ended after {lines}"
        lines.append(line.strip())
    return dict(line.split(": ", 1) for line in lines[:-1])


def marker_of(url: str, **headers: str) -> str:
    command = {"command": "echo $OSWORLD_GYM_DESKTOP", "shell": True}
    return str(requests.post(f"{url}/execute", json=command, headers=headers, timeout=30).json()["output"]).strip()


@pytest.mark.desktop
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_without_a_token_answers_and_ends_cleanly(number: signal.Signals) -> None:
    with serve("--no-token") as (process, lines):
        url = lines["server"]
        frame = Image.open(io.BytesIO(requests.get(f"{url}/screenshot", timeout=30).content))
        assert frame.size == (640, 480)
        assert requests.get(f"{url}/platform", timeout=30).text == "Linux"
        marker = marker_of(url)
        assert len(marked(marker)) > 0
        process.send_signal(number)
        assert process.wait(20) == 0
        assert marked(marker) == []


@pytest.mark.desktop
def test_a_token_is_required_unless_switched_off() -> None:
    with serve() as (_, lines):
        url = lines["server"]
        assert requests.get(f"{url}/screenshot", timeout=30).status_code == 401
        header = {"Authorization": f"Bearer {lines['token']}"}
        assert requests.get(f"{url}/screenshot", headers=header, timeout=30).status_code == 200


@pytest.mark.desktop
def test_sighup_makes_the_desktop_new_on_the_same_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serve("--no-token", "--port", str(port)) as (process, lines):
        url = lines["server"]
        assert url == f"http://127.0.0.1:{port}"
        first = marker_of(url)
        process.send_signal(signal.SIGHUP)
        assert told(process)["server"] == url
        assert marker_of(url) != first


@pytest.mark.desktop
def test_a_desktop_that_ends_by_itself_ends_the_command() -> None:
    with serve("--no-token") as (process, lines):
        command = {"command": ["pkill", "-KILL", "Xvfb"]}
        with suppress(requests.ConnectionError):  # the desktop may end before it has answered
            requests.post(f"{lines['server']}/execute", json=command, timeout=30)
        assert process.wait(20) == 3


# --- errors for wrong arguments, without a desktop ------------------------------------------------------------------


@pytest.mark.parametrize("command", ["serve", "desktop"])
def test_a_busy_port_is_named_with_the_fix(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert cli.main([command, "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 is in use; fix: another --port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["serve", "--port", "99999"], "expected a port from 1 to 65535, or 0 for a free one, got '99999'"),
        (["desktop", "--port", "99999"], "expected a port from 1 to 65535"),
        (["serve", "--port", "http"], "got 'http'"),
        (["serve", "--screen", "1920"], "expected WIDTHxHEIGHT in pixels, as 1920x1080, got '1920'"),
        (["tasks", "official", "--screen", "1920"], "expected WIDTHxHEIGHT in pixels, as 1920x1080, got '1920'"),
    ],
)
def test_a_wrong_argument_is_one_line(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    assert expected in capsys.readouterr().err


def test_doctor_names_a_remote_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OSWORLD_SERVER_URL", "http://127.0.0.1:9")
    assert cli.main(["doctor", "--provider", "remote"]) == 3
    said = capsys.readouterr().out
    assert re.search(r"http://127\.0\.0\.1:9 does not answer .*; fix: start a server there", said)
    assert "export OSWORLD_SERVER_URL=" in said


def test_install_desktop_checks_python_before_it_asks_apt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "MODULES", ("os", "no_such_module"))
    monkeypatch.setattr(install.apt, "missing", lambda _: pytest.fail("apt was asked first"))
    assert cli.main(["install-desktop", "--yes"]) == 3
    assert "lacks no_such_module, which the desktops require; fix: pip install 'osworld-gym[guest]'" in (
        capsys.readouterr().err
    )
