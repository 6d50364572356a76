"""``cluster.address=local``: a run whose rollouts are played by Ray actors gives the synchronous run's results."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ray_heads import loaded_machine
from test_run_async import ALGO, ASYNC, folder, overrides, timeless, work

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
__all__ = ["folder", "overrides"]  # fixtures
ROOT = Path(__file__).parents[3]


def test_the_run_on_ray_is_the_synchronous_one(
    folder: Path,
    overrides: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for name, value in loaded_machine().items():
        monkeypatch.setenv(name, value)
    straight = work(folder, "sync", *overrides, ALGO, "eval.every=0")
    cluster = ("cluster.address=local", "cluster.workers=2", "env.desktops=4")
    found = work(folder, "ray", *overrides, ALGO, *ASYNC, *cluster)
    assert [line["iteration"] for line in found] == [1, 2, 3]
    for one, other in zip(straight, found, strict=True):
        assert timeless(other) == pytest.approx(timeless(one), abs=1e-4)
        assert other["collect/staleness_max"] == 0.0
