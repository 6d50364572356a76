"""A desktop without room for another process has no output to score: that is the desktop's failure, never a reward."""

from __future__ import annotations

from typing import Any

import pytest
from polling import until

from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason

pytestmark = pytest.mark.desktop

FILL = """
import os, time
while True:
    try:
        child = os.fork()
    except OSError:
        time.sleep(0.01)
        continue
    if child == 0:
        time.sleep(1000)
        os._exit(0)
"""


def forbids(result: dict[str, Any], *steps: dict[str, Any]) -> Task:
    """A task that any output fails, as some of OSWorld's."""
    expected = {"type": "rule", "rules": {"unexpect": [".+"]}}
    return Task("t", "i", (), {"func": "check_list", "result": result, "expected": expected, "postconfig": list(steps)})


KEEP = {"type": "execute", "parameters": {"command": ["echo", "wrong"], "stdout": "kept"}}
TASKS = {
    "stored": forbids({"type": "cache_file", "path": "kept"}, KEEP),
    "program": forbids({"type": "vm_command_line", "command": ["echo", "wrong"]}),
    "shell": forbids({"type": "vm_command_line", "command": "echo wrong", "shell": True}),
    "python": forbids({"type": "vm_command_line", "command": ["python", "-c", "print('wrong')"]}),
}


def test_no_output_of_a_desktop_that_starts_no_process_is_scored() -> None:
    with LocalDesktop(template=None, processes=150) as desktop:
        desktop.reset(0)
        for name, task in TASKS.items():
            assert verify(task, desktop, stop=StopReason.finished).score == 0.0, name
        desktop.setup({"type": "launch", "parameters": {"command": ["python3", "-c", FILL], "window": False}})
        until(lambda: no_room(desktop), "the desktop's limit of processes was not reached")
        for name, task in TASKS.items():
            with pytest.raises(DesktopError, match="Resource temporarily unavailable") as caught:
                verify(task, desktop, stop=StopReason.finished)
            assert caught.value.reason is FailureReason.died, name
        desktop.reset(1)
        assert desktop.run(["echo", "again"]).output == "again\n"


def no_room(desktop: LocalDesktop) -> bool:
    try:
        return desktop.run(["true"]).returncode != 0
    except DesktopError:
        return True
