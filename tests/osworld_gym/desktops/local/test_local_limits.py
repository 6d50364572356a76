"""A policy's endless input on a local desktop."""

from __future__ import annotations

import time

import pytest

from osworld_gym.desktops.guest_server import desktop as guest_server_desktop
from osworld_gym.desktops.guest_server.desktop import ANSWER, STILL, WORK
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.types import Action

pytestmark = pytest.mark.desktop


def test_a_screen_of_4k_pixels_has_room_for_its_framebuffer() -> None:
    with LocalDesktop(3840, 2160, template=None) as desktop:
        desktop.reset(0)
        assert desktop.screenshot().size == (3840, 2160)


# --- time limit of a step ---------------------------------------------------------------------------------------------


def test_a_text_of_100_000_characters_is_cut_off_and_the_desktop_goes_on() -> None:
    with LocalDesktop(640, 400, template=None) as desktop:
        desktop.reset(0)
        desktop.launch(["xterm", "-e", "cat > /tmp/typed"], shell=False, window=True)
        start = time.monotonic()
        desktop.perform([Action("type", content="0123456789" * 10_000), Action("hotkey", key="ctrl d")])
        assert time.monotonic() - start < WORK + STILL + ANSWER / 2
        assert desktop.cut_actions in (0, 1, 2)  # a fast machine types them all
        assert desktop.screenshot().size == (640, 400)


def test_many_slow_actions_are_cut_off_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_server_desktop, "WORK", 1.0)
    with LocalDesktop(640, 400, template=None) as desktop:
        desktop.reset(0)
        start = time.monotonic()
        desktop.perform([Action("wait")] * 60)
        assert time.monotonic() - start < 15
        assert 50 < desktop.cut_actions < 60


def test_a_sleep_after_keys_waits_for_a_still_screen() -> None:
    """An evaluator sleeps a fixed time after its keystrokes, which is too short on a loaded machine."""
    flicker = "while true; do printf '%s\\n' $RANDOM; sleep 0.02; done"
    script = "import pyautogui, time; s = time.monotonic(); time.sleep(0.1); print(time.monotonic() - s)"
    with LocalDesktop(640, 400, template=None) as desktop:
        desktop.reset(0)
        still = float(desktop.run(["python", "-c", script]).output)
        desktop.launch(["xterm", "-e", "bash", "-c", flicker], shell=False, window=True)
        moving = float(desktop.run(["python", "-c", script]).output)
        plain = float(desktop.run(["python", "-c", script.replace("pyautogui, ", "")]).output)
    assert 0.1 <= still < 3
    assert moving > 4.5  # the guest's limit of five seconds
    assert 0.1 <= plain < 2
