"""The metrics of engines: counts between two reports, and their sum over several engines, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from bepa_torchrl.scale.engine.engine_interface import EngineOutput
from bepa_torchrl.scale.engine.metrics import EngineMetrics, merged


def output(response: int, prompt: int, cached: int) -> EngineOutput:
    return EngineOutput(torch.zeros(response, dtype=torch.int64), torch.zeros(response), prompt, cached)


def test_counts_begin_again_after_a_report() -> None:
    metrics = EngineMetrics()
    metrics.sampled(output(3, 100, 50))
    metrics.sampled(output(4, 60, 30))
    metrics.exited(2)
    metrics.restarted()
    metrics.synced(1.5)
    metrics.synced(0.5)
    metrics.verified([1e-6, 3e-6])
    metrics.verified([2e-6])
    assert metrics.drain() == {
        "engine/prompt_tokens": 160.0,
        "engine/prefix_cache_hit_rate": 0.5,
        "engine/response_tokens": 7.0,
        "engine/restarts": 1.0,
        "engine/turns_retried": 2.0,
        "engine/sync_seconds": 2.0,
        "engine/probe_error_max": 3e-6,
    }
    assert set(metrics.drain().values()) == {0.0}


def test_several_engines_are_added() -> None:
    one, other = EngineMetrics(), EngineMetrics()
    one.sampled(output(1, 100, 80))
    one.verified([1e-6])
    other.sampled(output(2, 300, 60))
    other.verified([5e-6])
    other.restarted()
    total = merged([one.drain(), {}, other.drain()])
    assert total["engine/prefix_cache_hit_rate"] == pytest.approx(140 / 400)
    assert total["engine/prompt_tokens"] == 400
    assert total["engine/response_tokens"] == 3
    assert total["engine/restarts"] == 1
    assert total["engine/probe_error_max"] == 5e-6
    assert merged([{}, {}]) == {}
