"""An engine that keeps its old weights is noticed after a small step, with the tolerance of bfloat16.

The server is real; behind it is the built-in sampler instead of vLLM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from built_in_engine import BuiltInEngine, access_to, served
from vllm_engine import OPTIONS

from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.scale.engine.errors import WeightSyncError
from bepa_torchrl.scale.engine.sampler import VLLMSampler
from bepa_torchrl.scale.engine.weight_sync.probe import TOLERANCES
from bepa_torchrl.testing import small_checkpoint


class StaleEngine(BuiltInEngine):
    """Says that it has loaded new weights, and goes on with the first ones."""

    def reload(self, model: Path) -> None:
        self.loads.append(model.name)


def trainer_of(dtype: torch.dtype, folder: Path) -> TransformersPolicy:
    """Loaded, as in a run: its rotary frequencies stay float32."""
    saved = TransformersPolicy(small_checkpoint(), **OPTIONS).save(folder / "trainer")
    return load_policy(saved, dtype=dtype, **OPTIONS)


def step(trainer: TransformersPolicy, rate: float) -> None:
    """Every weight moves by the rate, up or down, as by Adam; in bfloat16 most of them stay where they are."""
    generator = torch.Generator().manual_seed(trainer.version)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.add_(rate * torch.randn(weight.shape, generator=generator).sign().to(weight.dtype))
    trainer.encoder.forget()
    trainer.version += 1


def moved(policy: VLLMSampler) -> float:
    """How far the trainer's log-probs of the probe's last responses are from what they were then, nats."""
    before: Any = policy._verified
    with torch.no_grad():
        now, _ = policy.trainer.response_log_probs(policy._probes, [response.tokens for response in before.sampled])
    return max((a - b).abs().max().item() for a, b in zip(now, before.scored, strict=True))


@pytest.mark.parametrize(
    ("dtype", "rate"),
    [
        (torch.float32, 1e-6),
        pytest.param(torch.float32, 1e-5, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, 1e-6, marks=pytest.mark.slow),
    ],
)
def test_a_stale_engine_is_noticed_after_a_small_step(dtype: torch.dtype, rate: float, tmp_path: Path) -> None:
    tolerance = TOLERANCES[torch.bfloat16]
    with served(tmp_path / "weights", kind=StaleEngine) as server:
        trainer = trainer_of(dtype, tmp_path)
        policy = VLLMSampler(trainer, access=access_to(server), start_timeout=20.0, tolerance=tolerance)
        policy.sync()
        trainer.version += 1  # equal weights: nothing is wrong with an engine that does not change
        policy.sync()
        step(trainer, rate)
        if dtype == torch.float32:
            assert 0 < moved(policy) < 0.1 * tolerance  # not by the difference of the log-probs alone
        with pytest.raises(
            WeightSyncError, match=r"did not change the engine's log-probs, .* of version 1|differ from"
        ):
            policy.sync()
        policy.close()


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_an_engine_that_loads_them_passes(dtype: torch.dtype, tmp_path: Path) -> None:
    with served(tmp_path / "weights") as server:
        trainer = trainer_of(dtype, tmp_path)
        policy = VLLMSampler(trainer, access=access_to(server), start_timeout=20.0)
        for rate in (0.0, 1e-6, 1e-5, 0.0, 1e-6):
            step(trainer, rate)
            policy.sync()
            assert policy.version == trainer.version
        policy.close()
