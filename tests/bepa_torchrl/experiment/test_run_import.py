"""``import=[module]`` in whole runs: every process of a run has the module's provider and method."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray_heads import loaded_machine
from repository import ROOT

MODULE = """
import os
import sys
from pathlib import Path

from bepa_torchrl.methods import METHODS, Method
from osworld_gym.desktops import PROVIDERS, SimDesktop


class OwnDesktop(SimDesktop):
    pass


PROVIDERS["own"] = OwnDesktop
METHODS["own"] = Method("own", "on-policy rollouts")
Path("FOLDER", f"{os.getpid()}.process").write_text(" ".join(sys.orig_argv))
"""
SETTINGS = (
    "import=[module_of_own]",
    "env.provider=own",
    "algo=own",
    "compare=[]",
    "name=x",
    "experiment=smoke",
    "env.max_steps=2",
    "policy.max_new_tokens=16",
    "eval.every=0",
)


def processes(folder: Path, *settings: str) -> list[str]:
    """Runs ``bepa train`` in an empty folder; the command lines of the processes that have imported the module."""
    (folder / "module_of_own.py").write_text(MODULE.replace("FOLDER", str(folder)))
    environment = os.environ | loaded_machine() | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bepa_torchrl", "train", *SETTINGS, *settings]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=550, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "runs" / "x" / "own" / "results.json").is_file()
    return [path.read_text() for path in folder.glob("*.process")]


@pytest.mark.slow
def test_the_method_and_its_ranks(tmp_path: Path) -> None:
    found = processes(tmp_path, "train.ranks=2")
    for program in ("bepa_torchrl train", "experiment.method_process", "experiment.ranks"):
        assert [line for line in found if program in line], f"{program} has not imported the module: {found}"


@pytest.mark.ray
def test_workers_and_services_on_ray(tmp_path: Path) -> None:
    found = processes(tmp_path, "collect.mode=async", "cluster.address=local", "cluster.workers=2", "env.desktops=4")
    workers = [line for line in found if "default_worker.py" in line]
    assert len(workers) >= 3, f"two workers and a rollout service have not imported the module: {found}"
