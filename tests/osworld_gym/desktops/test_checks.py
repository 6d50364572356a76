"""The contract checks: correct desktops pass, and each check fails on a desktop that violates its rule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from osworld_gym.desktops.checks import DESKTOP_CHECKS, KNOWN_DIFFERENCES, MAKE_CHECKS, run_checks
from osworld_gym.desktops.registry import PROVIDERS, make_desktop
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.testing import Fault, ScriptedDesktop
from osworld_gym.types import Action, CommandResult, Screenshot


def failures(kind: type[ScriptedDesktop] | type[SimDesktop]) -> list[str]:
    return [result.name for result in run_checks(kind) if result.outcome == "failed"]


@pytest.mark.parametrize("kind", [ScriptedDesktop, SimDesktop])
def test_sound_desktops_pass(kind: type[ScriptedDesktop]) -> None:
    results = run_checks(kind)
    assert [(result.name, result.detail) for result in results if result.outcome != "passed"] == []
    assert len(results) == len(DESKTOP_CHECKS) + len(MAKE_CHECKS)


class FloatFrames(ScriptedDesktop):
    def screenshot(self) -> Screenshot:
        return Screenshot(pixels=super().screenshot().pixels.astype(np.float32))  # type: ignore[arg-type]


class Unseeded(ScriptedDesktop):
    shades = itertools.count()

    def reset(self, seed: int) -> None:  # noqa: ARG002
        super().reset(next(self.shades))


class Dirty(ScriptedDesktop):
    def reset(self, seed: int) -> None:
        files = self._files
        super().reset(seed)
        self._files = files


class Strict(ScriptedDesktop):
    """Rejects input that the contract allows: ``refuses`` names the kind of input."""

    refuses = ""

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if self.refuses == "points" and action.start and not 0 <= action.start[0] < 48:
                raise ValueError(f"outside: {action.start}")
            if self.refuses == "keys" and "no_such_key" in (action.key or ""):
                raise KeyError(action.key)
            if self.refuses == "text":
                (action.content or "").encode("ascii")
            if self.refuses == "kinds" and action.kind == "call_user":
                raise ValueError(action.kind)
        super().perform(actions)


class StrictPoints(Strict):
    refuses = "points"


class StrictKeys(Strict):
    refuses = "keys"


class StrictText(Strict):
    refuses = "text"


class StrictKinds(Strict):
    refuses = "kinds"


class RoundsDown(SimDesktop):
    def perform(self, actions: Sequence[Action]) -> None:
        super().perform([replace(a, start=a.start and (a.start[0] // 1, a.start[1] // 1)) for a in actions])


class ForgetsThePointer(SimDesktop):
    def perform(self, actions: Sequence[Action]) -> None:
        super().perform([replace(a, start=a.start or (0.0, 0.0)) for a in actions])


class HasNoMenuKey(SimDesktop):
    unused_keys = frozenset({"menu"})  # its name is apps


class UsesAnUnusedKey(SimDesktop):
    unused_keys = frozenset({"win"})


class Appends(ScriptedDesktop):
    def write_file(self, path: str, data: bytes) -> None:
        self._files[path] = self._files.get(path, b"") + data


class EmptyForMissing(ScriptedDesktop):
    def read_file(self, path: str) -> bytes:
        return self._files.get(path, b"none")


class AnySetup(ScriptedDesktop):
    def setup(self, step: Mapping[str, Any]) -> None:
        self.log.append(step["type"])


class Shell(ScriptedDesktop):
    """A shell with constant output and without timeouts."""

    has_shell = True

    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        return CommandResult(0, f"{command} {shell} {math.floor(timeout)}", "")


class Shared(ScriptedDesktop):
    disk: dict[str, bytes] = {}  # noqa: RUF012 (the defect)

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._files = self.disk
        self._files.pop("/tmp/earlier/episode.txt", None)


class CloseOnce(ScriptedDesktop):
    def close(self) -> None:
        super().close()
        if self.closed > 1:
            raise RuntimeError("already closed")


KEYS_AND_POINTS = ["points_are_rounded", "every_named_key_is_performed_or_unused"]
AT_POINTER = "actions_without_a_point_begin_at_the_pointer"
INPUT = [*KEYS_AND_POINTS, "buttons_and_wheel_clicks_are_performed", AT_POINTER]


@pytest.mark.parametrize(
    ("kind", "failing"),
    [
        (Unseeded, ["same_seed_gives_the_same_screen", "points_are_rounded", "a_line_end_is_one_enter", AT_POINTER]),
        (ForgetsThePointer, [AT_POINTER]),
        (StrictPoints, ["points_outside_the_screen_are_accepted"]),
        (StrictKeys, ["unknown_keys_do_nothing"]),
        (RoundsDown, ["points_are_rounded"]),
        (HasNoMenuKey, KEYS_AND_POINTS[1:]),
        (UsesAnUnusedKey, KEYS_AND_POINTS[1:]),
        (StrictText, ["any_text_can_be_typed"]),
        (StrictKinds, ["every_desktop_action_is_performed"]),
        (Appends, ["files_come_back_as_written"]),
        (AnySetup, ["an_unknown_setup_step_is_a_task_error"]),
        (Shell, [*INPUT, "run_gives_status_and_output", "run_ends_at_its_timeout"]),
        (Shared, ["desktops_are_apart"]),
        (CloseOnce, ["desktops_are_apart", "close_can_be_called_twice"]),
        (Dirty, ["reset_leaves_nothing"]),
        (EmptyForMissing, ["reset_leaves_nothing", "a_missing_file_is_file_not_found", "desktops_are_apart"]),
    ],
)
def test_each_check_fails_on_the_desktop_that_breaks_its_rule(
    kind: type[ScriptedDesktop] | type[SimDesktop], failing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osworld_gym.desktops.checks.INPUT_LOG_SECONDS", 1)  # no real program has to start
    assert failures(kind) == failing


def test_frames_of_the_wrong_type_fail() -> None:
    assert "screenshot_has_the_size_of_the_screen" in failures(FloatFrames)


def test_an_exception_is_one_checks_line_and_the_others_run() -> None:
    results = run_checks(lambda: ScriptedDesktop(Fault("perform", 1, "bug")))
    assert [result.name for result in results if result.outcome == "failed"] == ["same_seed_gives_the_same_screen"]
    assert "ZeroDivisionError" in results[1].detail


def test_known_differences_are_lines_with_their_reason() -> None:
    results = run_checks(Unseeded, known={"same_seed_gives_the_same_screen": "it shows a clock"})
    (line,) = [result for result in results if result.outcome == "known"]
    assert line.detail.startswith("it shows a clock (")
    stale = run_checks(ScriptedDesktop, known={"same_seed_gives_the_same_screen": "it shows a clock"})
    assert [result.outcome for result in stale].count("failed") == 1
    with pytest.raises(ValueError, match="no_such_check"):
        run_checks(ScriptedDesktop, known={"no_such_check": "?"})


def test_known_differences_name_providers_and_checks() -> None:
    names = {check.__name__ for check in (*DESKTOP_CHECKS, *MAKE_CHECKS)}
    assert set(KNOWN_DIFFERENCES) <= set(PROVIDERS)
    assert all(set(lines) <= names and all(lines.values()) for lines in KNOWN_DIFFERENCES.values())


def test_the_registry_names_what_is_known() -> None:
    assert make_desktop("sim", tiles=(9, 8)).screen_size == (144, 128)
    with pytest.raises(ValueError, match=r"'sym'.*did you mean .sim.*known: .*local.*sim"):
        make_desktop("sym")
    with pytest.raises(ValueError, match=r"has no option tyles; it has: tiles"):
        make_desktop("sim", tyles=(9, 8))
