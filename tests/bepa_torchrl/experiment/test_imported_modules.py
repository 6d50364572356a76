"""What ``bepa train`` imports on the simulated desktop, in all of its processes: nothing of ``scale/``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from smallest_run import smallest_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
#: of both packages, in all processes together; raise it only for what every run uses
MOST_LINES = 34_000


def lines_of(name: str) -> int:
    path = ROOT / name.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return len(file.read_text(encoding="utf-8").splitlines())


def test_a_run_on_the_simulated_desktop_imports_nothing_of_scale(tmp_path: Path) -> None:
    log = tmp_path / "imports"
    log.mkdir()
    paths = os.pathsep.join([str(ROOT / "tests" / "support" / "import_log"), str(ROOT)])
    command = [sys.executable, "-m", "bepa_torchrl", "train", *smallest_run(tmp_path), "name=imports"]
    environment = os.environ | {"PYTHONPATH": paths, "IMPORT_LOG": str(log)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    processes = [set(file.read_text().splitlines()) for file in log.iterdir()]
    assert len(processes) >= 2  # the launcher and the method
    names = set().union(*processes)
    assert "bepa_torchrl.training.trainer" in names
    outside = ("bepa_torchrl.scale", "bepa_torchrl.sizing", "bepa_torchrl.experts.readers")
    outside += ("bepa_torchrl.evaluation.web", "recipes")
    assert sorted(name for name in names if name.startswith(outside)) == []
    lines = sum(map(lines_of, names))
    assert lines < MOST_LINES, f"{lines} lines in {len(names)} modules:\n" + "\n".join(sorted(names))
