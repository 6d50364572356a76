"""Short runs with ``collect.mode=async``: their settings, and the lines of their iterations."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from repository import ROOT

from bepa_torchrl.experiment.config import load_config, settings_to_yaml
from bepa_torchrl.experiment.method_process import MethodRun
from bepa_torchrl.experiment.run_record import RunRecord, read_lines

QUICK = ("experiment=smoke", "env.max_steps=2", "policy.max_new_tokens=16", "train.iterations=3", "record.every=0")
ALGO = "algo=level2"  # within two steps nothing is solved, but converted traces are injected
ASYNC = ("collect.mode=async", "eval.every=0")


def work(folder: Path, name: str, *overrides: str) -> list[dict[str, Any]]:
    """Runs a method and returns the lines of its iterations."""
    config = load_config(overrides)
    if not config.resume:
        RunRecord(folder / name).begin(settings_to_yaml(config))
    else:
        (folder / name / "config.yaml").write_text(settings_to_yaml(config))
    assert MethodRun(folder / name).run() == 0
    return [line for line in read_lines(folder / name / "iterations.jsonl") if line["phase"] == "rl"]


def timeless(line: dict[str, Any]) -> dict[str, Any]:
    """Without times, and without what only one of the two collectors can report: the use of desktops, the queue."""
    other = ("second", "staleness", "version_lag", "queue_", "collect/desktops")
    return {key: value for key, value in line.items() if not any(part in key for part in other)}


@contextmanager
def rollout_side(port: int, token: Path, log: Path, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """``bepa rollouts`` in another process, which is killed at the end if it has not ended."""
    command = [sys.executable, "-m", "bepa_torchrl", "rollouts", "--connect", f"127.0.0.1:{port}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, "--token-file", str(token), *settings], stdout=output, stderr=output, env=environment
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
