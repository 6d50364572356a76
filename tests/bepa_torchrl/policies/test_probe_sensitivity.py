"""The check after a weight sync, in bfloat16: rounding passes, a wrong matrix of any layer is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from vllm_engine import OPTIONS

from bepa_torchrl.data.prompt import Response
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.scale.engine.errors import WeightSyncError
from bepa_torchrl.scale.engine.weight_sync.probe import (
    PROBE_KEYS,
    PROBE_TOKENS,
    TOLERANCES,
    ProbeResult,
    check_probe,
    probe_prompts,
)
from bepa_torchrl.testing import small_checkpoint

#: one of each kind, the first layer's where there are several
MATRICES = (
    "model.visual.patch_embed.proj.weight",
    "model.visual.blocks.0.attn.qkv.weight",
    "model.visual.blocks.0.attn.proj.weight",
    "model.visual.blocks.0.mlp.down_proj.weight",
    "model.visual.merger.mlp.2.weight",
    "model.language_model.embed_tokens.weight",
    "model.language_model.layers.0.self_attn.q_proj.weight",
    "model.language_model.layers.0.self_attn.v_proj.weight",
    "model.language_model.layers.0.self_attn.o_proj.weight",
    "model.language_model.layers.0.mlp.up_proj.weight",
    "model.language_model.layers.0.mlp.down_proj.weight",
)


def check(engine: TransformersPolicy, trainer: TransformersPolicy) -> None:
    """As after a sync, with the built-in sampler in the engine's place."""
    prompts = probe_prompts(trainer.renderer.processor)
    responses = engine.sample(prompts, PROBE_KEYS, temperature=1.0)
    sampled = [Response("", r.tokens[:PROBE_TOKENS], r.log_probs[:PROBE_TOKENS]) for r in responses]
    with torch.no_grad():
        scored, _ = trainer.response_log_probs(prompts, [response.tokens for response in sampled])
    assert sum(len(response.tokens) for response in sampled) >= 256
    check_probe(ProbeResult(1, "", tuple(sampled), tuple(scored)), None, tolerance=TOLERANCES[torch.bfloat16])


@pytest.mark.slow
def test_a_wrong_matrix_is_noticed_and_rounding_is_not(tmp_path: Path) -> None:
    """Noise of 0.3 standard deviations in one matrix. Norms and biases as small as here hide in bfloat16's rounding."""
    saved = TransformersPolicy(small_checkpoint(), **OPTIONS).save(tmp_path / "trainer")
    engine, trainer = (load_policy(saved, dtype=torch.bfloat16, **OPTIONS) for _ in range(2))
    check(engine, trainer)
    weights = dict(engine.model.named_parameters())
    for name in MATRICES:
        weight, right = weights[name], weights[name].detach().clone()
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            weight.add_((0.3 * right.float().std() * noise).bfloat16())
        engine.encoder.forget()
        with pytest.raises(WeightSyncError, match="differ from the trainer's by a mean of"):
            check(engine, trainer)
        with torch.no_grad():
            weight.copy_(right)
    engine.encoder.forget()
    check(engine, trainer)
