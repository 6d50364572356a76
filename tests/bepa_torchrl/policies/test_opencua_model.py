"""OpenCUA's published layout as a policy: names, one-dimensional positions, sampling, saving, errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from opencua_checkpoint import write_opencua_checkpoint
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen2Config, Qwen2Model
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.policies.transformers.checkpoint import CheckpointError
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.scale.engine.errors import check_family
from bepa_torchrl.testing import check_learner, check_renderer, check_sampler, picture
from osworld_gym.action_text import ACTION_TEXTS
from osworld_gym.types import Action, PromptContext

OPTIONS = {"action_text": "opencua", "preset": "action_history", "history": "last_k", "history_images": 2}
TEXTS = tuple(ACTION_TEXTS["opencua"].format_response(f"Step {i}.", [Action("click", start=(i, 2))]) for i in range(3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_opencua_checkpoint(tmp_path_factory.mktemp("published") / "opencua")


@pytest.fixture(scope="module")
def policy(folder: Path) -> TransformersPolicy:
    return load_policy(folder, max_new_tokens=6, **OPTIONS)


@pytest.fixture(scope="module")
def rows(policy: TransformersPolicy) -> tuple[list[Prompt], list[Tensor]]:
    """Three steps of one episode with screenshots of two sizes, the last with two screenshots and a step as text."""
    screens = [picture(0), picture(1, (192, 112)), picture(2)]
    contexts = [PromptContext("mute", screens[: step + 1], TEXTS[:step]) for step in range(3)]
    prompts = [prompt for prompt in policy.render(contexts) if prompt is not None]
    return prompts, [policy.encode_response(text) for text in TEXTS]


def published_log_probs(folder: Path, policy: TransformersPolicy, prompt: Prompt, response: Tensor) -> Tensor:
    """By the two models that the checkpoint wraps, Qwen2 and the vision tower, on the published names."""
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    text = Qwen2Model(Qwen2Config(**config["text_config"]))
    vision = Qwen2_5_VisionTransformerPretrainedModel(Qwen2_5_VLVisionConfig(**config["vision_config"]))
    for prefix, part in (("language_model.model.", text), ("vision_tower.", vision)):
        part.load_state_dict({k.removeprefix(prefix): w for k, w in weights.items() if k.startswith(prefix)})
    ids = torch.cat((prompt.tokens, response))
    patches = [torch.from_numpy(policy.renderer.processor.patcher.patches(image)) for image in prompt.images]
    grids = torch.tensor([policy.renderer.processor.patcher.grid(image) for image in prompt.images])
    features = vision.eval()(torch.cat(patches), grid_thw=grids).pooler_output
    embedded = text.embed_tokens(ids[None])
    embedded[0, ids == config["media_placeholder_token_id"]] = features
    hidden = text.eval()(inputs_embeds=embedded).last_hidden_state[0]  # its positions are 0, 1, 2, …
    logits = hidden @ weights["language_model.lm_head.weight"].T
    return logits[-len(response) - 1 : -1].log_softmax(-1).gather(-1, response[:, None]).squeeze(-1)


def test_log_probs_are_those_of_the_wrapped_models(
    folder: Path, policy: TransformersPolicy, rows: tuple[list[Prompt], list[Tensor]]
) -> None:
    with torch.no_grad():
        found, _ = policy.response_log_probs(*rows)
        for prompt, response, log_probs in zip(*rows, found, strict=True):
            expected = published_log_probs(folder, policy, prompt, response)
            torch.testing.assert_close(log_probs, expected, atol=2e-4, rtol=0)


def test_the_complete_model_has_the_same_positions(
    policy: TransformersPolicy, rows: tuple[list[Prompt], list[Tensor]]
) -> None:
    """transformers' entry points: ``forward`` and ``generate`` compute positions themselves."""
    prompts, responses = rows
    with torch.no_grad():
        found, _ = policy.response_log_probs(prompts, responses)
        for prompt, response, log_probs in zip(prompts, responses, found, strict=True):
            whole = Prompt(torch.cat((prompt.tokens, response)), prompt.images)
            logits = policy.model(**policy.renderer.processor.model_inputs([whole])).logits[0, -len(response) - 1 : -1]
            expected = logits.log_softmax(-1).gather(-1, response[:, None]).squeeze(-1)
            torch.testing.assert_close(log_probs, expected, atol=2e-4, rtol=0)
    sampled = policy.sample(prompts, [(i,) for i in range(len(prompts))], temperature=0)
    blocked = [[token] for token in policy.sampler.blocked_ids]
    for prompt, answer in zip(prompts, sampled, strict=True):
        inputs = policy.renderer.processor.model_inputs([prompt])
        generated = policy.model.generate(**inputs, max_new_tokens=6, do_sample=False, bad_words_ids=blocked)
        assert answer.tokens.tolist() == generated[0, len(prompt.tokens) :].tolist()[: len(answer.tokens)]


def test_multimodal_positions_would_be_another_model(
    policy: TransformersPolicy, rows: tuple[list[Prompt], list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trap: read as a Qwen2.5-VL, the checkpoint would run and be wrong."""
    with torch.no_grad():
        right, _ = policy.response_log_probs(*rows)
        monkeypatch.setattr(policy.model.config, "model_type", "qwen2_5_vl")
        monkeypatch.setattr(policy.model.model.language_model.rotary_emb, "mrope_section", [4, 4, 4])
        wrong, _ = policy.response_log_probs(*rows)
    assert max(float((a - b).abs().max()) for a, b in zip(right, wrong, strict=True)) > 0.01


@pytest.mark.parametrize("train_vision", [True, False])
def test_it_keeps_the_contract(folder: Path, train_vision: bool) -> None:
    policy = load_policy(folder, max_new_tokens=6, train_vision=train_vision, **OPTIONS)
    check_renderer(policy.renderer)
    check_sampler(policy)
    check_learner(policy, policy)


def test_gradients_reach_every_weight(folder: Path, rows: tuple[list[Prompt], list[Tensor]]) -> None:
    policy = load_policy(folder, activation_checkpointing=True, **OPTIONS)
    log_probs, _ = policy.response_log_probs(*rows)
    torch.cat(log_probs).sum().backward()
    assert [name for name, weight in policy.named_parameters() if weight.grad is None] == []


def test_a_saved_policy_has_the_published_names_and_no_code(
    folder: Path, policy: TransformersPolicy, rows: tuple[list[Prompt], list[Tensor]], tmp_path: Path
) -> None:
    saved = policy.save(tmp_path / "saved")
    files = [safe_open(each / "model.safetensors", "pt") for each in (folder, saved)]
    assert set(files[0].keys()) == set(files[1].keys())
    config = json.loads((saved / "config.json").read_text())
    assert (config["model_type"], config["text_config"]["model_type"]) == ("opencua", "qwen2")
    assert "mrope_section" not in json.dumps(config)
    assert not list(saved.glob("*.py"))
    loaded = load_policy(saved, max_new_tokens=6, **OPTIONS)
    again = loaded.render([PromptContext("mute", [picture(0)])])[0]
    assert again is not None
    assert torch.equal(again.tokens, rows[0][0].tokens)
    with torch.no_grad():
        expected, found = (each.response_log_probs(*rows)[0] for each in (policy, loaded))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_points_are_pixels_of_the_resized_image(policy: TransformersPolicy) -> None:
    assert policy.image_scaling.relative is None
    assert policy.image_scaling.model_size((128, 128)) == (128, 128)


def test_its_special_tokens_are_never_sampled_nor_read_in_a_text(policy: TransformersPolicy) -> None:
    tokenizer = policy.renderer.processor.tokenizer
    names = ["<|im_user|>", "<|media_placeholder|>", "<|media_begin|>"]
    reserved = [name for name in tokenizer.get_vocab() if name.startswith("<|reserved_token_")]
    ids = set(tokenizer.convert_tokens_to_ids([*names, *reserved]))
    assert len(ids) == 4
    assert ids <= set(policy.sampler.blocked_ids)
    (prompt,) = policy.render([PromptContext(f"type {names[0]}{names[1]}", [picture(0)])])
    assert prompt is not None
    assert int((prompt.tokens == policy.renderer.processor.image_token_id).sum()) == 64
    assert int((prompt.tokens == tokenizer.convert_tokens_to_ids(names[0])).sum()) == 1


def test_an_engine_is_refused_in_one_line(policy: TransformersPolicy) -> None:
    with pytest.raises(ValueError, match=r"^policy\.rollout=vllm samples .* got an OpenCUA checkpoint; fix: "):
        check_family(policy.model.config.model_type)
    check_family("qwen2_5_vl")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: (f / "tokenization_opencua.py").unlink(),
            r"could not be built: .* no tokenization_opencua",
        ),
        (lambda f: (f / "tiktoken.model").unlink(), "a tokenizer .* could not be read"),
        (
            lambda f: _without(f, "vision_tower.patch_embed.proj.weight"),
            "1 weights are missing, such as",
        ),
        (lambda f: _replace(f / "tokenizer_config.json", "media_placeholder", "picture"), "has no image tokens"),
        (lambda f: _replace(f / "config.json", '"opencua"', '"llama"'), "got 'llama'"),
        (lambda f: _replace(f / "config.json", '"opencua"', '"other"'), "config.json could not be read"),
    ],
)
def test_bad_checkpoints_are_one_line(folder: Path, tmp_path: Path, damage: object, message: str) -> None:
    """None of them runs the checkpoint's Python code, or asks whether to."""
    shutil.copytree(folder, tmp_path / "copy")
    damage(tmp_path / "copy")  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=message) as caught:
        load_policy(tmp_path / "copy", **OPTIONS)
    assert "\n" not in str(caught.value)
    assert "was run" not in str(caught.value)


def _without(folder: Path, name: str) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors")


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
