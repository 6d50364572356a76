"""A run's metrics at Ray's Prometheus endpoint (with Ray's own extra ``default``)."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator

import pytest
import ray
from ray_heads import loaded_machine

from bepa_torchrl.scale.rollouts import ray_cluster
from bepa_torchrl.scale.rollouts.ray_metrics import export

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400), pytest.mark.filterwarnings("default")]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of the endpoint of a cluster on this machine."""
    for name, value in loaded_machine().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "1000")
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    if ray.is_initialized():
        ray.shutdown()
    ray_cluster.connect(num_cpus=1, object_store_memory=100 << 20, _metrics_export_port=number, log_to_driver=False)
    yield number
    ray.shutdown()


def test_the_endpoint_has_the_newest_values(port: int) -> None:
    for iteration in (2.0, 3.0):
        export([("bepa_iteration", "iterations trained", {"run": "demo", "method": "grpo"}, iteration)])
    end = time.monotonic() + 240.0
    lines: list[str] = []
    while not lines or not lines[0].endswith(" 3.0"):
        assert time.monotonic() < end, lines
        time.sleep(1.0)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as answer:
                text = answer.read().decode()
        except OSError:  # the agent has not started yet
            continue
        lines = [line for line in text.splitlines() if line.startswith("ray_bepa_iteration{")]
    assert len(lines) == 1
    assert 'method="grpo"' in lines[0]
    assert 'run="demo"' in lines[0]
