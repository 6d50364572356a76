"""vLLM opens the checkpoint that a sharded policy exports, and has the log-probs of training in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from process_groups import errors_of, run_ranks
from sharded_training import made_batches, made_policy, optimizer_of, train, train_and_export

from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.scale.engine.engine_interface import EngineRow
from bepa_torchrl.scale.engine.sampler import engine_spec
from bepa_torchrl.scale.engine.weight_sync.probe import PROBE_KEYS, probe_prompts
from bepa_torchrl.training.optimization_step import local_passes

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("options", [{}, {"lora": Lora(rank=4, alpha=8)}], ids=["whole", "adapters"])
def test_the_export_of_two_ranks_has_the_log_probs_of_one_process(options: dict[str, Any], tmp_path: Path) -> None:
    """The engine reads the folder itself; prompts have no, one and two images."""
    from bepa_torchrl.scale.engine.engine import Engine

    assert run_ranks(train_and_export, 2, tmp_path, options, deadline=600.0) == [0, 0], errors_of(tmp_path)
    alone = made_policy(**options)
    prompts = probe_prompts(alone.renderer.processor)
    spec = engine_spec(alone, kv_cache_gb=0.25, max_rows=4, adapters=None)
    engine = Engine(replace(spec, dtype="float32"), on_cpu=True)
    try:
        engine.start(tmp_path / "exported")
        outputs = engine.generate([EngineRow(p, key, 1.0, 6) for p, key in zip(prompts, PROBE_KEYS, strict=True)])
    finally:
        engine.stop()
    assert difference(alone, prompts, outputs) > 1e-3, "training changed nothing"
    train(alone, optimizer_of(alone), made_batches(alone), local_passes)
    assert difference(alone, prompts, outputs) < 1e-4


def difference(policy: Any, prompts: list[Any], outputs: list[Any]) -> float:
    """The largest between the engine's log-probs and a policy's, nats."""
    with torch.no_grad():
        scored, _ = policy.response_log_probs(prompts, [output.tokens for output in outputs])
    return max((output.log_probs - own).abs().max().item() for output, own in zip(outputs, scored, strict=True))
