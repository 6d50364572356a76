"""``cluster.address=local``: a run whose rollouts are played by Ray actors gives the synchronous run's results."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from async_runs import ALGO, ASYNC, timeless, work
from built_in_engine import TOKEN, client_of, served
from ray_heads import loaded_machine
from run_metrics import comparable

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
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


def test_a_rollout_service_on_ray_samples_with_an_engine(
    folder: Path, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each version of the weights goes from the trainer to the service, and from there to the engine."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("BEPA_ENGINE_TOKEN", TOKEN.decode())
    for name, value in loaded_machine().items():
        monkeypatch.setenv(name, value)
    own = (*overrides, ALGO, "train.old_log_probs=all")
    straight = work(folder, "own", *own, "eval.every=0")
    with served(tmp_path / "weights") as server:
        engine = ("policy.rollout=vllm", f"policy.engine.url='{server.url}'")
        found = work(folder, "engine", *own, *ASYNC, *engine, "cluster.address=local", "cluster.workers=2")
        assert client_of(server).state()["weights"] is None, "the engine was not ended"
    for one, other in zip(straight, found, strict=True):
        expected, metrics = comparable(timeless(one)), comparable(timeless(other))
        same = expected.keys() & metrics.keys()
        assert same >= {"cache/injected", "collect/success"}
        assert other["engine/response_tokens"] > 0
        assert other["engine/probe_error_max"] < 1e-4
        assert {k: metrics[k] for k in same} == pytest.approx({k: expected[k] for k in same}, rel=1e-3, abs=1e-4)
