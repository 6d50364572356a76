"""How the end of a method's process is explained: its own error, or that Ray has ended it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bepa_torchrl.experiment.method_handle import MethodChild

OWN = "m: ZeroDivisionError: a bug"
WARNING = "  warnings.warn('resource_tracker: There appear to be %d '"  #: the tracker's last words, after Ray's _exit


@pytest.mark.parametrize(
    ("lines", "code", "on_ray", "lost", "told"),
    [
        ([WARNING], 1, True, True, "m: ended by Ray, whose node on this machine (its raylet) or head has exited ("),
        ([], 1, True, True, "m: ended by Ray"),
        ([WARNING], 1, False, False, WARNING),
        ([OWN, WARNING], 1, True, False, OWN),
        (["m: died: no desktop"], 3, True, False, "m: died: no desktop"),
        ([], 3, True, False, "m: ended with code 3 and no output"),
    ],
)
def test_a_process_that_ended_without_an_error_of_its_own_was_ended_by_ray(
    lines: list[str],
    code: int,
    on_ray: bool,
    lost: bool,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = tmp_path / "python"
    script.write_text("\n".join(["#!/bin/sh", "cat <<'END'", *lines, "END", f"exit {code}"]))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    folder = tmp_path / "m"
    folder.mkdir()
    child = MethodChild(folder, threads=1, on_ray=on_ray)
    assert child.wait(30.0) == code
    assert child.lost_ray() is lost
    assert child.failure().startswith(told)
    assert child.failure().endswith(f"(log: {folder / 'log.txt'})")
