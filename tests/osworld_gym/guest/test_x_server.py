"""The guest's X server as a child process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from osworld_gym.guest.x_server import XServer

pytestmark = pytest.mark.desktop


def start(folder: Path) -> XServer:
    server = XServer(str(folder / "x"), (64, 48), {"PATH": os.environ["PATH"]})
    assert select.select([server.pipe], [], [], 60)[0], "not ready in 60 s"
    assert int(os.read(server.pipe, 16)) >= 0
    os.close(server.pipe)
    return server


def test_its_end_is_known_also_when_another_call_has_reaped_it(tmp_path: Path) -> None:
    server = start(tmp_path)
    assert server.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        server.wait(0.0)
    os.kill(server.pid, signal.SIGTERM)
    os.waitpid(server.pid, 0)  # as end_tree does
    assert server.poll() == 0
    assert server.wait(1.0) == 0
    server.kill()  # nothing to do


def test_a_kill_is_its_status(tmp_path: Path) -> None:
    server = start(tmp_path)
    server.kill()
    assert server.wait(60.0) == -signal.SIGKILL


def test_a_missing_program_has_the_shells_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    server = XServer(str(tmp_path / "x"), (64, 48), {})
    assert server.poll() == server.wait(1.0) == 127
    server.kill()
    os.close(server.pipe)
