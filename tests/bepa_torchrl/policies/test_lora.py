"""LoRA adapters: they start as the identity, alone are trained, and are saved, loaded, merged and synchronised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.experiment.config import ConfigError, load_config
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.policies.transformers.lora import Lora, adapter_weights, load_adapter
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.storage.state import load_state, save_state
from bepa_torchrl.testing import check_learner, check_sampler, picture, small_checkpoint
from bepa_torchrl.training.checkpoint import CheckpointError, PolicyWeights
from bepa_torchrl.training.optimization_step import parameter_groups, trainable
from bepa_torchrl.training.precision import make_adamw
from osworld_gym import extras
from osworld_gym.types import PromptContext

LORA = Lora(rank=4, alpha=8)
FAMILIES = ("qwen2_5_vl", "qwen3_vl")


def make(lora: Lora | None = LORA, *, family: str = "qwen2_5_vl", **options: Any) -> TransformersPolicy:
    checkpoint = small_checkpoint(spread=0.1, family=family)
    return TransformersPolicy(checkpoint, preset="compact", max_new_tokens=5, lora=lora, **options)


def rows(policy: TransformersPolicy) -> tuple[list[Prompt], list[Tensor]]:
    prompts = policy.render([PromptContext(word, [picture(i)]) for i, word in enumerate(("mute", "open the trash"))])
    tokens = [policy.encode_response(text) for text in ("Thought: click mute\nAction: wait()", "mute")]
    return [prompt for prompt in prompts if prompt is not None], tokens


def log_probs(policy: TransformersPolicy) -> Tensor:
    with torch.no_grad():
        return torch.cat(policy.response_log_probs(*rows(policy))[0])


def test_as_base_scores_as_without_adapters_and_ends() -> None:
    policy = trained()
    before = log_probs(policy)
    with policy.as_base():
        torch.testing.assert_close(log_probs(policy), log_probs(make(None)), atol=1e-5, rtol=0)
    assert torch.equal(log_probs(policy), before)
    assert (before - log_probs(make(None))).abs().max() > 1e-3
    assert all(weight.requires_grad for weight in trainable(policy))
    steps(policy, make_adamw(trainable(policy), lr=0.02), 1)
    with pytest.raises(ValueError, match="as_base requires adapters"):
        make(None).as_base()


def steps(policy: TransformersPolicy, optimizer: torch.optim.Optimizer, count: int) -> None:
    """Raises the log-probs of the rows."""
    for _ in range(count):
        optimizer.zero_grad()
        (-torch.cat(policy.response_log_probs(*rows(policy))[0]).mean()).backward()
        optimizer.step()


def trained(**options: Any) -> TransformersPolicy:
    policy = make(**options)
    steps(policy, make_adamw(trainable(policy), lr=0.02), 3)
    return policy


def close(given: Tensor, expected: Tensor) -> bool:
    return torch.allclose(given, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_start_as_the_identity_and_alone_are_trained(family: str) -> None:
    base, policy = make(None, family=family), make(family=family)
    assert close(log_probs(policy), log_probs(base))
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    parameters = trainable(policy)
    layers, linears = len(policy.model.model.language_model.layers), 7
    assert len(parameters) == layers * linears * 2
    steps(policy, make_adamw(parameters, lr=0.02), 3)
    moved = {name for name, parameter in policy.named_parameters() if not torch.equal(parameter, before[name])}
    assert len(moved) == len(parameters)
    assert all(".language_model." in name and ".lora_" in name for name in moved)
    assert not close(log_probs(policy), log_probs(base))


def test_a_layer_adds_its_product_scaled_by_alpha_over_rank() -> None:
    policy = make(Lora(rank=2, alpha=6, targets=("o_proj",)))
    layer = policy.model.model.language_model.layers[0].self_attn.o_proj
    x, a, b = torch.randn(3, layer.in_features), torch.randn(2, layer.in_features), torch.randn(layer.out_features, 2)
    layer.lora_A["default"].weight.data.copy_(a)
    layer.lora_B["default"].weight.data.copy_(b)
    weight = layer.base_layer.weight.detach()
    with torch.no_grad():
        assert torch.allclose(layer(x), x @ weight.T + 3 * (x @ a.T) @ b.T, atol=1e-4)
    merged = dict(policy.named_weights())["model.language_model.layers.0.self_attn.o_proj.weight"]
    assert torch.allclose(merged, weight + 3 * b @ a, atol=1e-5)
    assert len(adapter_weights(policy.model)) == 2 * len(policy.model.model.language_model.layers)


def test_the_same_seed_gives_the_same_adapters_and_keeps_the_global_state() -> None:
    torch.manual_seed(3)
    first, second, other = make(seed=1), make(seed=1), make(seed=2)
    weights = [adapter_weights(policy.model) for policy in (first, second, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert any(not torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    small_checkpoint()  # sets the global seed
    expected = torch.rand(1)
    make(seed=5)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_policy_is_a_merged_checkpoint_with_its_adapters(tmp_path: Path, family: str) -> None:
    policy = trained(family=family)
    expected = log_probs(policy)
    folder = policy.save(tmp_path / "policy")
    assert close(log_probs(policy), expected)
    merged = load_policy(folder, preset="compact")
    assert not adapter_weights(merged.model)
    assert close(log_probs(merged), expected)
    plain, info = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    assert type(plain) is type(policy.model)
    again = make(Lora(LORA.rank, LORA.alpha, adapter=folder / "adapter"), family=family, seed=9)
    assert close(log_probs(again), expected)


def test_peft_reads_the_saved_adapters(tmp_path: Path) -> None:
    from peft import PeftModel

    policy = trained()
    folder = policy.save(tmp_path / "policy")
    base = make(None)
    base.model = PeftModel.from_pretrained(base.model, str(folder / "adapter")).get_base_model()
    base.scorer.model = base.encoder.model = base.model
    assert close(log_probs(base), log_probs(policy))


def test_other_policies_take_the_merged_weights() -> None:
    policy, engine = trained(), make(None)
    assert not close(log_probs(engine), log_probs(policy))
    engine.load_weights(policy.named_weights(), version=3)
    assert close(log_probs(engine), log_probs(policy))
    assert {name for name, _ in policy.named_weights()} == {name for name, _ in engine.named_weights()}


def test_loaded_weights_replace_base_and_adapters() -> None:
    policy, other = trained(), make(None)
    policy.load_weights(other.named_weights(), version=7)
    assert close(log_probs(policy), log_probs(other))
    assert policy.version == 7


def test_it_samples_and_learns() -> None:
    policy = trained()
    check_sampler(policy)
    check_learner(policy, policy)


def test_gradients_are_the_same_with_activation_checkpointing() -> None:
    def gradients(**options: Any) -> list[Tensor]:
        policy = trained()
        again = make(**options)
        again.model.load_state_dict(policy.model.state_dict())
        (-torch.cat(again.response_log_probs(*rows(again))[0]).mean()).backward()
        return [parameter.grad for parameter in trainable(again) if parameter.grad is not None]

    kept, recomputed = gradients(), gradients(activation_checkpointing=True)
    assert len(kept) == len(recomputed) > 0
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(kept, recomputed, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_equals_uninterrupted_and_saves_the_adapters_only(tmp_path: Path, dtype: torch.dtype) -> None:
    def start(seed: int) -> tuple[TransformersPolicy, torch.optim.Optimizer]:
        checkpoint = small_checkpoint(spread=0.1)
        checkpoint.model.to(dtype)
        policy = TransformersPolicy(checkpoint, preset="compact", lora=LORA, seed=seed)
        return policy, make_adamw(trainable(policy), lr=0.01)

    whole, optimizer = start(0)
    steps(whole, optimizer, 4)
    first, optimizer = start(0)
    steps(first, optimizer, 2)
    for name in ("weights", "optimizer"):
        (tmp_path / name).mkdir()
    PolicyWeights(first).dump(tmp_path / "weights")
    save_state(tmp_path / "optimizer", optimizer.state_dict())
    size = (tmp_path / "weights" / "model.safetensors").stat().st_size
    assert size < 0.5 * sum(weight.nbytes for _, weight in first.named_weights())
    second, optimizer = start(8)
    PolicyWeights(second).load(tmp_path / "weights")
    optimizer.load_state_dict(load_state(tmp_path / "optimizer"))
    steps(second, optimizer, 2)
    assert close(log_probs(second), log_probs(whole))
    with pytest.raises(CheckpointError, match="damaged, or of another model"):
        PolicyWeights(make(None)).load(tmp_path / "weights")
    with pytest.raises(CheckpointError, match=r"expected \d+ adapter weights, found"):
        PolicyWeights(make(Lora(rank=3, alpha=8))).load(tmp_path / "weights")


def test_the_settings_make_adapters_on_the_shipped_checkpoint() -> None:
    settings = load_config(["policy.lora.rank=2", "policy.lora.alpha=4"])
    policy = make_policy(settings, seed=0)
    names = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert names
    assert all(".lora_" in name for name in names)
    with pytest.raises(ValueError, match=r"optimizer\.vision_lr=0.1 requires a trained vision tower"):
        parameter_groups(policy, lr=0.1, vision_lr=0.1)


def test_settings_without_a_rank_have_no_adapters() -> None:
    assert load_config().policy.lora.rank is None
    with pytest.raises(ConfigError, match=r"policy\.lora\.adapter requires adapters; set policy\.lora\.rank"):
        load_config(["policy.lora.adapter=folder"])


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "qkv", "proj"])
def test_unknown_targets_are_refused(target: str) -> None:
    with pytest.raises(ValueError, match=rf"policy\.lora\.targets: '{target}' is no linear layer.*it has down_proj"):
        make(Lora(rank=2, alpha=2, targets=("q_proj", target)))


def test_adapters_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path) -> None:
    folder = trained().save(tmp_path / "policy") / "adapter"
    policy = make()
    before = log_probs(policy)
    for lora, message in (
        (Lora(rank=3, alpha=8), "r=4 instead of 3"),
        (Lora(rank=4, alpha=4), "lora_alpha=8 instead of 4"),
        (Lora(rank=4, alpha=8, targets=("q_proj",)), "weights do not fit"),
    ):
        with pytest.raises(ValueError, match=message):
            load_adapter(make(lora).model, folder)
    with pytest.raises(ValueError, match="expected adapters in PEFT's format"):
        load_adapter(policy.model, tmp_path)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8, "use_dora": True}))
    with pytest.raises(ValueError, match="use_dora=True instead of False"):
        load_adapter(policy.model, folder)
    assert torch.equal(log_probs(policy), before)


def test_without_peft_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.EXTRAS, "lora", ("no_such_module_here",))
    with pytest.raises(ImportError, match=r"policy\.lora requires .*pip install 'osworld-gym\[lora\]'"):
        make()
