"""A full disk is the desktop's failure, not the policy's: nothing can be saved, so nothing may be scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.errors import DesktopError, FailureReason, StepRefused
from osworld_gym.guest.disk_space import full_place
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason

FINISHED = "Thought: done\nAction: finished()"
RESULT = {"type": "vm_command_line", "command": ["cat", "/tmp/note.txt"]}
TASK = Task(
    "note",
    "Look.",
    ({"type": "execute", "parameters": {"command": "printf here > /tmp/note.txt", "shell": True}},),
    {"func": "exact_match", "result": RESULT, "expected": {"type": "rule", "rules": {"expected": "here"}}},
)


def test_a_disk_is_not_full_with_free_space_or_missing_or_of_unknown_size(tmp_path: Path) -> None:
    assert full_place([str(tmp_path / "missing"), "/proc", str(tmp_path)]) == ""


@pytest.mark.desktop
@pytest.mark.parametrize("place", ["/home/user", "/tmp", "/dev/shm"])
def test_a_screen_of_a_desktop_with_a_full_disk_is_refused(place: str) -> None:
    with LocalDesktop(template=None, disk=32) as desktop:
        desktop.reset(0)
        desktop.run(f"head -c 1G /dev/zero > {place}/full; true", shell=True)
        for _ in range(2):  # the screenshot that waits, and the immediate one
            with pytest.raises(DesktopError, match=f"no space is left in {place}") as caught:
                desktop.screenshot()
            assert caught.value.reason is FailureReason.died
        desktop.run(["rm", f"{place}/full"])
        assert desktop.screenshot().size == (1280, 720)


@pytest.mark.desktop
def test_an_episode_whose_disk_is_filled_is_not_scored() -> None:
    with LocalDesktop(template=None, disk=32) as desktop:
        episode = Episode(desktop, EpisodeOptions())
        for fill in (False, True):
            assert episode.begin(TASK, 0).stop is None
            if fill:
                desktop.run("head -c 1G /dev/zero > /home/user/full; true", shell=True)
            result = episode.act(FINISHED)
            expected = (StopReason.env_error, FailureReason.died) if fill else (StopReason.finished, None)
            assert (result.stop, result.failure) == expected
            assert (result.verdict is None) == fill


@pytest.mark.desktop
def test_a_file_of_a_step_that_finds_no_space_is_the_desktops_failure_and_one_in_a_folders_place_is_not() -> None:
    with LocalDesktop(template=None, disk=32) as desktop:
        desktop.reset(0)
        desktop.run("mkdir /home/user/check.sh", shell=True)
        with pytest.raises(StepRefused, match="write_file: Failed to upload file: /home/user/check"):
            desktop.write_file("/home/user/check.sh", b"x")
        with pytest.raises(StepRefused, match="open: Application/file not found: /home/user/removed"):
            desktop.setup({"type": "open", "parameters": {"path": "/home/user/removed.txt"}})
        desktop.run("head -c 1G /dev/zero > /home/user/full; true", shell=True)
        with pytest.raises(DesktopError, match="No space left") as caught:
            desktop.write_file("/home/user/other.sh", b"x" * 10_000)
        assert caught.value.reason is FailureReason.died
