"""A guest that is ending answers nothing: what its killed commands return is no result, but a DesktopError."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from polling import until

from osworld_gym.desktops.guest_server.http_client import GuestClient, Reply
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.desktops.local.guest_process import GuestProcess, Setting
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.server.answers import as_json
from osworld_gym.guest.server.forward import shut
from osworld_gym.guest.server.web import GuestServer

WAIT = 60.0  # seconds
COMMANDS = 8  # at once, so that some would be answered before the guest's own end


class Ending:
    """A guest server whose desktop ends when the test says so; ``/command`` runs until it is ended."""

    def __init__(self) -> None:
        self.began, self.killed = threading.Event(), threading.Event()
        self.is_ending = False
        table = {("POST", "/command"): lambda _: self._run(), ("GET", "/health"): lambda _: as_json({})}
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(listener.getsockname()[1])
        self.listener = listener.dup()
        GuestServer(table, "", lambda: self.is_ending).listen(listener)

    def _run(self):  # type: ignore[no-untyped-def]
        self.began.set()
        assert self.killed.wait(WAIT)
        return as_json({"status": "success", "output": "", "error": "", "returncode": 0})


@pytest.fixture
def guest() -> Iterator[Ending]:
    made = Ending()
    yield made
    made.killed.set()
    shut(made.listener)
    made.listener.close()


def post(port: int, path: str, fields: dict[str, object]) -> Reply | DesktopError:
    client = GuestClient("127.0.0.1", port)
    try:
        return client.post(path, fields, timeout=WAIT)
    except DesktopError as error:
        return error
    finally:
        client.close()


def test_a_command_that_ends_with_the_desktop_has_no_result(guest: Ending) -> None:
    with ThreadPoolExecutor() as pool:
        said = pool.submit(post, guest.port, "/command", {})
        assert guest.began.wait(WAIT)
        guest.is_ending = True
        guest.killed.set()
        end = said.result(WAIT)
    assert isinstance(end, DesktopError)
    assert end.reason is FailureReason.died


def test_a_command_that_ended_before_has_its_result(guest: Ending) -> None:
    guest.killed.set()
    end = post(guest.port, "/command", {})
    assert isinstance(end, Reply)
    assert end.json()["returncode"] == 0


def test_a_later_request_is_not_answered_either(guest: Ending) -> None:
    guest.is_ending = True
    client = GuestClient("127.0.0.1", guest.port)
    with pytest.raises(DesktopError, match="died: GET /health"):  # also at the second try, which GET makes
        client.get("/health", timeout=WAIT)
    client.close()


def owner_closes(process: GuestProcess) -> None:
    assert process._guest is not None
    process._guest._drop()


def guest_is_terminated(process: GuestProcess) -> None:
    assert process.inside is not None
    os.kill(process.inside, signal.SIGTERM)


@pytest.mark.desktop
@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "bare"])
@pytest.mark.parametrize("end", [owner_closes, guest_is_terminated])
def test_commands_of_an_ending_desktop_have_no_result(end: Callable[[GuestProcess], None], isolated: bool) -> None:
    process = GuestProcess(Setting(isolated=isolated))
    try:
        process.start({"width": 640, "height": 480, "seed": 0, "token": ""})
        with ThreadPoolExecutor(COMMANDS) as pool:
            line = {"command": "touch ~/began-$$; sleep 600", "shell": True, "timeout": 600}
            said = [pool.submit(post, process.port, "/execute", line) for _ in range(COMMANDS)]
            look = {"command": "ls ~ | grep -c began", "shell": True}

            def began() -> bool:
                reply = post(process.port, "/execute", look)
                return isinstance(reply, Reply) and reply.json()["output"] == f"{COMMANDS}\n"

            until(began, "the commands did not start")
            end(process)
            ends = [each.result(WAIT) for each in said]
        assert [each.json() for each in ends if isinstance(each, Reply)] == []
        assert {each.reason for each in ends if isinstance(each, DesktopError)} == {FailureReason.died}
    finally:
        process.end()


@pytest.mark.desktop
def test_a_desktop_whose_x_server_was_killed_has_no_result() -> None:
    with LocalDesktop(640, 480, template=None) as desktop:
        desktop.reset(0)
        with pytest.raises(DesktopError) as caught:
            desktop.run("pkill -9 Xvfb; sleep 600", shell=True, timeout=600)
        assert caught.value.reason is FailureReason.died
