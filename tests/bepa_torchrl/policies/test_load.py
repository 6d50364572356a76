"""Checkpoints: written atomically, read by transformers and by us; a one-line error if they cannot be used."""

import json
import logging
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import constants, errors
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, LlamaConfig

from bepa_torchrl.checkpoints.hub import is_cached
from bepa_torchrl.failures import BAD_INPUT, exit_code
from bepa_torchrl.policies.transformers.checkpoint import CheckpointError, load_checkpoint
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.testing import picture, small_checkpoint
from osworld_gym.types import PromptContext


@pytest.fixture(scope="module")
def policy():
    return TransformersPolicy(small_checkpoint(), preset="compact", max_new_tokens=8)


@pytest.fixture(scope="module")
def saved(policy, tmp_path_factory):
    return policy.save(tmp_path_factory.mktemp("checkpoints") / "small")


@pytest.fixture
def broken(saved, tmp_path):
    """A copy of a checkpoint to damage."""
    return shutil.copytree(saved, tmp_path / "broken")


def test_round_trip(policy, saved):
    loaded = load_policy(saved, preset="compact", max_new_tokens=8)
    context = [PromptContext("mute", [picture(0)])]
    before, after = (p.sample(p.render(context), [(5,)])[0] for p in (policy, loaded))
    assert before.text == after.text
    assert before.tokens.tolist() == after.tokens.tolist()
    torch.testing.assert_close(after.log_probs, before.log_probs, rtol=0, atol=1e-5)
    assert loaded.sampler.end_token_ids == policy.sampler.end_token_ids
    plain = AutoModelForImageTextToText.from_pretrained(saved).state_dict()
    assert plain.keys() == policy.model.state_dict().keys()
    assert all(torch.equal(plain[name], weight) for name, weight in policy.model.state_dict().items())


def test_loaded_weights_are_aligned_and_not_mapped(policy, saved, tmp_path):
    """safetensors maps the file: addresses follow from offsets in it, and a shorter file would end the process."""
    mapped = AutoModelForImageTextToText.from_pretrained(saved)
    assert any(weight.data_ptr() % 64 for weight in mapped.parameters())
    folder = shutil.copytree(saved, tmp_path / "copy")
    model = load_checkpoint(folder).model
    (folder / "model.safetensors").write_bytes(b"")
    weights = model.state_dict()
    assert all(weight.data_ptr() % 64 == 0 for weight in weights.values())
    assert all(torch.equal(weights[name], weight) for name, weight in policy.model.state_dict().items())
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert tied == model.config.get_text_config().tie_word_embeddings


def test_dtype_by_name(saved):
    assert load_checkpoint(saved, dtype="bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(CheckpointError, match="torch dtype"):
        load_checkpoint(saved, dtype="float99")


def test_nothing_is_overwritten_and_nothing_half_written(policy, saved, tmp_path, monkeypatch):
    with pytest.raises(FileExistsError, match="not overwritten"):
        policy.save(saved)

    def full_disk(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(policy.renderer.processor.tokenizer, "save_pretrained", full_disk)
    with pytest.raises(OSError, match="No space"):
        policy.save(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def error_of(path, **options):
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert exit_code(caught.value) == BAD_INPUT
    return message


def test_no_such_folder(tmp_path):
    assert "no such folder" in error_of(tmp_path / "nothing")


@pytest.fixture
def repository(saved, tmp_path, monkeypatch):
    """A repository in the hub's local cache, in offline mode: its name, and the folder of its files."""
    files = tmp_path / "hub" / "models--owner--small" / "snapshots" / "abc"
    shutil.copytree(saved, files)
    (files.parents[1] / "refs").mkdir()
    (files.parents[1] / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return "owner/small", files


def test_a_repository_is_loaded_from_the_cache(repository, policy):
    name, files = repository
    loaded = load_checkpoint(name)
    weights = policy.model.state_dict()
    assert all(torch.equal(weights[key], weight) for key, weight in loaded.model.state_dict().items())
    assert is_cached(name)
    (files / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors", "b": "more"}}')
    assert not is_cached(name)
    (files / "model.safetensors.index.json").unlink()
    (files / "model.safetensors").unlink()
    assert not is_cached(name)
    assert error_of(name).endswith("; fix: `hf download owner/small` gets all files")
    (files / "config.json").unlink()
    assert "not in the local Hugging Face cache, and offline mode is on" in error_of(name)


REFUSED: Any = SimpleNamespace(headers={}, request=None)  # the part of a response that these errors read


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.LocalEntryNotFoundError("x"), "and the hub could not be reached (no route); fix: `hf download no/mo"),
        (errors.RepositoryNotFoundError("x", response=REFUSED), "the hub has no such repository, or it is a private"),
        (errors.GatedRepoError("x", response=REFUSED), "accepted accounts only; fix: ask for access at https://hugg"),
        (errors.RemoteEntryNotFoundError("x", response=REFUSED), "the hub's repository has no config.json"),
    ],
)
def test_why_a_repository_cannot_be_had(error, said, tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise error from OSError("no route")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert said in error_of("no/model")


def test_a_name_that_the_hub_does_not_accept():
    assert "no such folder, and no name of a hub repository" in error_of("no/model..name")


def test_unknown_attention(saved):
    assert "sdpa" in error_of(saved, attn="eager")


def test_another_model_class(tmp_path):
    LlamaConfig().save_pretrained(tmp_path)
    assert "got 'llama'" in error_of(tmp_path)


def test_a_tokenizer_without_image_tokens(broken):
    path = broken / "tokenizer.json"
    path.write_text(path.read_text().replace("<|image_pad|>", "<|other|>"))
    config = broken / "tokenizer_config.json"
    config.write_text(config.read_text().replace("<|image_pad|>", "<|other|>"))
    assert "no image tokens (<|image_pad|>)" in error_of(broken)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config.json", "config.json could not be read"),
        ("tokenizer.json", "tokenizer"),
        ("preprocessor_config.json", "preprocessor_config.json could not be read"),
        ("model.safetensors", "weights"),
    ],
)
def test_missing_files(broken, name, words):
    (broken / name).unlink()
    assert words in error_of(broken)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "preprocessor_config.json", "model.safetensors"])
def test_truncated_files(broken, name):
    path = broken / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "could not be read" in error_of(broken)


def test_a_checkpoint_with_a_hole(broken):
    """transformers would initialise it at random and continue."""
    path = broken / "model.safetensors"
    weights = load_file(path)
    hole = next(name for name in weights if name.endswith("layers.0.mlp.up_proj.weight"))
    del weights[hole]
    save_file(weights, path, metadata={"format": "pt"})
    assert "1 weights are missing, such as model.language_model.layers.0.mlp.up_proj.weight" in error_of(broken)


def test_processor_of_another_patch_size(broken):
    path = broken / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"patch_size": 14}))
    assert "patch_size is 14 in the processor, 8 in the model" in error_of(broken)


# --- config.json, tokenizer and weights that do not fit each other ------------------------------------------------


def change_config(folder, **values):
    """Sets values of config.json; those of the decoder in its text_config, too."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config |= {key: value for key, value in values.items() if key != "vocab_size"}
    config["text_config"] |= {key: value for key, value in values.items() if key in config["text_config"]}
    path.write_text(json.dumps(config))


def change_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def resize(rows):
    """The embedding with a number of rows more, or fewer."""

    def change(weights):
        old = weights["model.embed_tokens.weight"]
        new = torch.zeros(len(old) + rows, old.shape[1])
        new[: len(old)] = old[: len(new)]
        weights["model.embed_tokens.weight"] = new

    return change


@pytest.fixture
def quiet(caplog):
    """transformers' own warnings, which have a table with a line per weight, are not shown."""
    logger = logging.getLogger("transformers")  # does not propagate
    logger.addHandler(caplog.handler)
    yield
    logger.removeHandler(caplog.handler)
    assert caplog.get_records("call") == []


def test_another_image_token(broken, policy):
    change_config(broken, image_token_id=policy.renderer.processor.image_token_id + 1)
    message = error_of(broken)
    assert "<|image_pad|> is 5 in the processor, 6 in the model; use the tokenizer, preprocessor_config.json" in message


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("vision", [{}, None])
def test_no_vision_config(broken, vision):
    """transformers has a default, the tower of a 7B."""
    change_config(broken, vision_config=vision)
    assert "config.json has no vision_config; expected the config of a vision-language model" in error_of(broken)


@pytest.mark.usefixtures("quiet")
def test_a_config_of_another_vocabulary_than_the_weights(broken, policy):
    """Either the config was changed, or the embedding was resized without it."""
    tokens = len(policy.renderer.processor.tokenizer)
    for rows in (8, -8):
        change_config(broken, vocab_size=tokens + rows)
        assert (
            f"config.json has vocab_size={tokens + rows}, model.language_model.embed_tokens.weight has {tokens} rows; "
            f"set vocab_size to {tokens} in config.json"
        ) in error_of(broken)
    change_config(broken, vocab_size=tokens)
    for added, rows in ((8, tokens + 8), (-16, tokens - 8)):
        change_weights(broken, resize(added))
        assert f"vocab_size={tokens}, model.language_model.embed_tokens.weight has {rows} rows" in error_of(broken)


def test_a_resized_vocabulary(broken, policy):
    """Rows without a token are never sampled; a tokenizer with more tokens than rows is refused."""
    tokens = len(policy.renderer.processor.tokenizer)
    change_weights(broken, resize(8))
    change_config(broken, vocab_size=tokens + 8)
    assert set(range(tokens, tokens + 8)) <= set(load_policy(broken, preset="compact").sampler.blocked_ids)
    change_weights(broken, resize(-16))
    change_config(broken, vocab_size=tokens - 8)
    message = error_of(broken)
    assert f"the tokenizer has {tokens} tokens, the model only {tokens - 8}; use the model's own tokenizer" in message


@pytest.mark.usefixtures("quiet")
def test_weights_of_other_sizes_than_the_config_says(broken):
    change_config(broken, intermediate_size=128)  # of 3 layers: two matrices from it, one to it
    expected = "9 weights have other shapes than config.json says, such as model.language_model.layers.0.mlp.down_proj"
    message = error_of(broken)
    assert expected in message
    assert ": expected [96, 128], got [96, 256]; use the config.json with which" in message


@pytest.mark.usefixtures("quiet")
def test_a_head_in_the_weights_that_the_config_says_is_the_embedding(broken):
    """transformers would leave it untied, and save a config that says it is tied."""
    change_weights(broken, lambda weights: weights.update({"lm_head.weight": weights["model.embed_tokens.weight"] + 1}))
    assert "config.json has tie_word_embeddings=true, but lm_head.weight of the weights is not the" in error_of(broken)
    change_config(broken, tie_word_embeddings=False)
    model = load_checkpoint(broken).model
    assert torch.equal(model.lm_head.weight, model.get_input_embeddings().weight + 1)
    change_weights(broken, lambda weights: weights.update({"lm_head.weight": weights["model.embed_tokens.weight"] + 0}))
    change_config(broken, tie_word_embeddings=True)
    model = load_checkpoint(broken).model
    assert model.lm_head.weight is model.get_input_embeddings().weight


@pytest.mark.usefixtures("quiet")
def test_an_untied_head_that_is_missing(broken):
    change_config(broken, tie_word_embeddings=False)
    message = error_of(broken)
    assert "1 weights are missing, such as lm_head.weight; expected a complete checkpoint" in message
    assert message.endswith("if the head is the embedding, set tie_word_embeddings to true in config.json")


def test_weights_that_the_model_has_no_place_for_are_named(broken, caplog):
    change_weights(broken, lambda weights: weights.update({"model.norm.scale": torch.zeros(2)}))
    load_checkpoint(broken)
    assert "1 weights are not used by the model, such as model.language_model.norm.scale" in caplog.text


def test_template_of_older_checkpoints(broken):
    """chat_template.json, as Qwen2.5-VL was published; without any template: an error."""
    template = (broken / "chat_template.jinja").read_text()
    (broken / "chat_template.jinja").unlink()
    assert "writes no <|image_pad|>" in error_of(broken)
    (broken / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert load_checkpoint(broken).tokenizer.chat_template == template
