"""The folder of a training run, as far as readers of logs can mistake it for one: traces, and rows of cached traces."""

from __future__ import annotations

from pathlib import Path

from bepa_torchrl.experts.recording import Episode, record_all
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.tasks.suites.sim.suite import sim_suite


def recorded_expert(folder: Path) -> None:
    """One recording, as ``bepa record`` and a run's preparation write them."""
    task = sim_suite().split("train")[0]
    assert record_all(folder, [Episode(task, "expert", 0)], SimDesktop, desktops=1).episodes == 1


def training_run(folder: Path) -> Path:
    """Writes the files of a run with the method ``bepa``, trained to its end; returns its folder."""
    recorded_expert(folder / "prepared" / "experts")
    method = folder / "bepa"
    for cache in (folder / "prepared" / "converted", method / "checkpoints" / "iteration-1" / "components" / "0-cache"):
        rows = cache / "traces" / "000000"
        rows.mkdir(parents=True)
        (cache / "images").mkdir()
        (rows / "rows.json").write_text("[]")
        (rows / "tensors.safetensors").write_bytes(b"")
    (method / "policy").mkdir()
    for path in (folder / "config.yaml", method / "config.yaml"):
        path.write_text("name: check\n")
    (folder / "overrides.json").write_text("[]")
    return folder
