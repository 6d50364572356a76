"""The accessibility reader on a system that lacks its requirements: an error with the fix, no hang, no empty tree."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from osworld_gym.guest.endpoints import accessibility
from osworld_gym.guest.endpoints.accessibility import Accessibility
from osworld_gym.guest.process.commands import Commands


class NoWindows:
    def all(self) -> list[Any]:
        return []


def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> Accessibility:
    """The endpoint with real commands and ``script`` in place of the system's Python; None: no Python."""
    python = tmp_path / "python3"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(stat.S_IRWXU)
    monkeypatch.setattr(accessibility, "PYTHON", str(python))
    monkeypatch.setattr(accessibility, "TREE_TIMEOUT", 0.1)
    monkeypatch.setattr(accessibility, "GRACE", 0.2)
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    return Accessibility(Commands(env, tmp_path / "log"), NoWindows())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "no program"),
        ("echo \"ModuleNotFoundError: No module named 'gi'\" >&2; exit 1", "No module named 'gi'"),
        ("exit 0", "exit status 0"),
        ("sleep 20", "longer than"),
    ],
)
def test_what_is_missing_is_reported_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    start = time.monotonic()
    answer = reader(tmp_path, monkeypatch, script).tree()
    assert answer.status == 500
    message = json.loads(answer.body)["message"]
    assert said in message
    assert "fix: apt-get update && apt-get install -y at-spi2-core" in message
    assert time.monotonic() - start < 10


def test_only_an_incomplete_tree_is_marked_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for truncated, extra in ((True, {"truncated": True}), (False, {})):
        told = json.dumps({"AT": "<desktop-frame/>", "truncated": truncated})
        answer = reader(tmp_path, monkeypatch, f"echo '{told}'").tree()
        assert json.loads(answer.body) == {"AT": "<desktop-frame/>"} | extra


def test_without_a_terminal_in_front_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = reader(tmp_path, monkeypatch, None).terminal()
    assert json.loads(answer.body) == {"output": None, "status": "success"}
