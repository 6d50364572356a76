"""What a desktop can do as soon as its guest answers."""

from __future__ import annotations

import pytest
import requests
from open_guest import OpenGuest, open_guest
from polling import until

pytestmark = pytest.mark.desktop


def output(guest: OpenGuest, script: str) -> str:
    answer = requests.post(guest.url + "/execute", json={"command": script, "shell": True}, timeout=60)
    assert answer.ok, answer.text
    return str(answer.json()["output"])


def test_programs_that_the_message_bus_starts_get_the_display() -> None:
    with open_guest() as guest:
        chosen = "grep -E '^(DISPLAY|XAUTHORITY)=' | sort"
        found = output(guest, f"tr '\\0' '\\n' < /proc/$(pgrep -xo dbus-daemon)/environ | {chosen}")
        assert found == output(guest, f"env | {chosen}")
        assert found.count("=") == 2


@pytest.mark.parametrize("seed", range(3))
def test_the_window_managers_keys_are_obeyed_at_once(seed: int) -> None:
    """openbox sets its properties on the root window before it grabs its keys."""
    with open_guest(seed=seed) as guest:
        press = {"actions": [{"kind": "hotkey", "key": "ctrl alt t"}]}
        assert requests.post(guest.url + "/actions", json=press, timeout=60).ok
        until(lambda: requests.get(guest.url + "/windows", timeout=30).json()["windows"], "no terminal", 60)
