"""Loads model, tokenizer and image processor from a checkpoint folder or hub name, with checks."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer, GenerationConfig, PretrainedConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils import logging as hf_logging
from transformers.utils.hub import cached_file

from bepa_torchrl.checkpoints.hub import is_repository, not_available
from bepa_torchrl.policies.finite import not_finite
from bepa_torchrl.policies.out_of_memory import placement_advice
from bepa_torchrl.policies.transformers.opencua import model as opencua
from bepa_torchrl.policies.transformers.processor import IMAGE_TOKEN, PromptProcessor

_log = logging.getLogger(__name__)
MODEL_TYPES = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", opencua.MODEL_TYPE)
ATTENTION = ("sdpa", "flash_attention_2")
_QWEN_TOKENS = ("<|vision_start|>", IMAGE_TOKEN, "<|vision_end|>", "<|im_end|>")
#: tokens that the tokenizer must have, that of an image second
_VISION_TOKENS = {
    opencua.MODEL_TYPE: ("<|media_begin|>", opencua.IMAGE_TOKEN, "<|media_end|>", "<|im_end|>"),
}
#: otherwise transformers asks at the terminal whether to run a checkpoint's Python code
_NO_CODE = {"trust_remote_code": False}
_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"


class CheckpointError(ValueError):
    """A checkpoint cannot be used as a policy. One line: what was expected, what was found, how to fix it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint.

    ``end_token_ids``: the end of a response first, then the generation config's others. ``image_token``: what the chat
    template writes for an image.
    """

    model: Any
    tokenizer: Any
    image_processor: Qwen2VLImageProcessorPil
    end_token_ids: tuple[int, ...]
    image_token: str = IMAGE_TOKEN


def load_checkpoint(
    path_or_id: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    attn: str = "sdpa",
) -> Checkpoint:
    """Loads a Qwen2-VL, Qwen2.5-VL, Qwen3-VL or OpenCUA checkpoint. No code of the checkpoint is run.

    Args:
        path_or_id: a folder with config.json, safetensors, tokenizer and preprocessor_config.json, or a hub name. The
            tokenizer of an OpenCUA checkpoint as published is built from its data (:mod:`.opencua.tokenizer`).
        dtype: torch dtype of the weights, or its name (``"bfloat16"``).
        device: device of the weights.
        attn: attention kernels, ``sdpa`` or ``flash_attention_2`` (a GPU and the flash-attn package).

    Raises:
        CheckpointError: files missing, another model class, no vision tower, no image tokens, no usable chat
            template; weights that do not fit config.json (shapes, vocabulary, a tied head) or are not finite, or a
            tokenizer that does not fit them.
        DeviceMemoryError: the device has no room for the weights.
    """
    source = os.fspath(path_or_id)
    if attn not in ATTENTION:
        raise CheckpointError(f"attn={attn!r}: expected one of {', '.join(ATTENTION)}")
    if isinstance(dtype, str):
        dtype = _dtype(dtype)
    _, tokenizer, image_processor, image_token = _load_prompt_parts(source)
    model = _load_model(source, dtype=dtype, attn_implementation=attn)
    _check_fit(source, model, tokenizer, image_processor, image_token)
    ends = _end_token_ids(model.generation_config, tokenizer)
    with placement_advice(model, source, device):
        model = model.to(device).eval()
        copy_to_own_memory(model)
    _check_finite(source, model, dtype)
    return Checkpoint(model, tokenizer, image_processor, ends, image_token)


def load_processor(path_or_id: str | os.PathLike[str]) -> tuple[PromptProcessor, str]:
    """A checkpoint's prompt processor and its model type, without its weights.

    Raises:
        CheckpointError: as :func:`load_checkpoint`, as far as it concerns these files.
    """
    source = os.fspath(path_or_id)
    config, tokenizer, image_processor, image_token = _load_prompt_parts(source)
    try:
        generation = GenerationConfig.from_pretrained(source)
    except OSError:  # the file is optional; transformers then reads the model's config
        generation = GenerationConfig.from_model_config(config)
    ends = _end_token_ids(generation, tokenizer)
    return PromptProcessor(tokenizer, image_processor, ends, image_token), str(config.model_type)


def _load_prompt_parts(source: str) -> tuple[PretrainedConfig, Any, Qwen2VLImageProcessorPil, str]:
    """Config, tokenizer with its chat template, image processor, and the token of an image."""
    config = _load_config(source)
    tokens = _VISION_TOKENS.get(config.model_type, _QWEN_TOKENS)
    tokenizer = _load_tokenizer(source, as_data=tokens is not _QWEN_TOKENS)
    _check_tokens(source, tokenizer, tokens)
    _ensure_chat_template(source, tokenizer, tokens[1])
    return config, tokenizer, _load(Qwen2VLImageProcessorPil, source, "preprocessor_config.json"), tokens[1]


def copy_to_own_memory(model: torch.nn.Module) -> None:
    """Moves parameters and buffers out of the memory-mapped file, one tensor at a time; tied weights stay tied.

    safetensors maps the file into memory, so a tensor's address depends on its offset and is rarely a multiple of 64.
    Vector kernels then take other code paths and round differently: log-probs of equal weights would differ in the last
    bits. Tensors that torch allocates are aligned to 64 bytes. The copy is also unaffected by changes of the file.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hides transformers' progress bars while a checkpoint is read or written."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"dtype={name!r}: expected the name of a torch dtype, such as float32 or bfloat16")
    return dtype


def _load(kind: Any, source: str, expected: str, **options: Any) -> Any:
    """``kind.from_pretrained`` with one-line errors."""
    try:
        return kind.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, HFValidationError, SafetensorError) as error:
        whole = f"; fix: `hf download {source}` gets all files" if is_repository(source) else ""
        raise CheckpointError(f"{source}: {expected} could not be read: {_first_line(error)}{whole}") from error


def _load_tokenizer(source: str, *, as_data: bool) -> Any:
    """The tokenizer; ``as_data``: it may be published as data for a tokenizer that is Python code of the checkpoint."""
    if as_data:
        from bepa_torchrl.policies.transformers.opencua.tokenizer import has_ranks, load_tokenizer
    if not as_data or not has_ranks(source):
        return _load(AutoTokenizer, source, "a tokenizer (tokenizer.json, tokenizer_config.json)", **_NO_CODE)
    try:
        return load_tokenizer(source)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the tokenizer could not be built: {_first_line(error)}") from error


def _load_model(source: str, **options: Any) -> Any:
    """Loads the model; raises where transformers would initialise weights at random, or leave a head untied."""
    # checked here, with one-line errors
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True, **_NO_CODE}
    with no_progress_bars(), _no_loading_report():
        model, info = _load(AutoModelForImageTextToText, source, "weights (model.safetensors)", **options)
    _check_shapes(source, info["mismatched_keys"])
    missing = sorted(map(str, info["missing_keys"]))
    if missing:
        tied = "; if the head is the embedding, set tie_word_embeddings to true in config.json"
        raise CheckpointError(
            f"{source}: {len(missing)} weights are missing, such as {missing[0]}; expected a complete checkpoint"
            f"{tied if missing == [_HEAD] else ''}"
        )
    _check_head(source, model)
    unused = sorted(map(str, info["unexpected_keys"]))
    if unused:
        _log.warning("%s: %d weights are not used by the model, such as %s", source, len(unused), unused[0])
    return model


@contextmanager
def _no_loading_report() -> Iterator[None]:
    """Hides transformers' warnings of weights that do not fit, tables among them; the checks here raise instead."""
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_no_report)
    try:
        yield
    finally:
        logger.removeFilter(_no_report)


def _no_report(record: logging.LogRecord) -> bool:
    return not any(text in record.getMessage() for text in ("LOAD REPORT", "tied weights mapping"))


def _check_shapes(source: str, mismatched: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> None:
    """Raises CheckpointError if there is a weight (name, shape in the file, shape by config.json)."""
    wrong = sorted((name, list(stored), list(expected)) for name, stored, expected in mismatched)
    if not wrong:
        return
    name, stored, expected = wrong[0]
    if all(n.endswith((_HEAD, _EMBEDDING)) and s[1:] == e[1:] for n, s, e in wrong):
        raise CheckpointError(
            f"{source}: config.json has vocab_size={expected[0]}, {name} has {stored[0]} rows; set vocab_size to "
            f"{stored[0]} in config.json, or resize the model (resize_token_embeddings) and save it again"
        )
    raise CheckpointError(
        f"{source}: {len(wrong)} weights have other shapes than config.json says, such as {name}: expected {expected}, "
        f"got {stored}; use the config.json with which these weights were saved"
    )


def _check_finite(source: str, model: Any, dtype: torch.dtype) -> None:
    """Raises CheckpointError if a weight is NaN or infinite."""
    bad = not_finite(model.named_parameters())
    if bad:
        raise CheckpointError(
            f"{source}: {len(bad)} weights have elements that are not finite in {dtype}, such as {bad[0]}; use an "
            "earlier checkpoint, or a dtype with a larger range (bfloat16, float32)"
        )


def _check_head(source: str, model: Any) -> None:
    """Raises CheckpointError if the head is not the embedding, which transformers allows if the weights have both."""
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    if model.config.tie_word_embeddings and head is not embedding:
        raise CheckpointError(
            f"{source}: config.json has tie_word_embeddings=true, but {_HEAD} of the weights is not the embedding; set "
            f"tie_word_embeddings to false in config.json and its text_config, or remove {_HEAD} from the weights"
        )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _load_config(source: str) -> PretrainedConfig:
    """The config of a vision-language model that can be loaded."""
    if is_repository(source):
        problem = not_available(source)
        if problem is not None:
            raise CheckpointError(f"{source}: {problem}")
    elif os.sep in source and not Path(source).is_dir():
        raise CheckpointError(f"{source}: no such folder; pass a checkpoint folder or the name of a hub repository")
    config = _load(AutoConfig, source, "config.json", **_NO_CODE)
    if config.model_type not in MODEL_TYPES:
        raise CheckpointError(
            f"{source}: expected a vision-language model of type {', '.join(MODEL_TYPES)}, got {config.model_type!r}"
        )
    if not PretrainedConfig.get_config_dict(source)[0].get("vision_config"):  # transformers has a default, a 7B's
        raise CheckpointError(
            f"{source}: config.json has no vision_config; expected the config of a vision-language model, with the "
            "sizes of its vision tower: use the config.json with which these weights were saved"
        )
    if getattr(config.text_config, "use_sliding_window", False):
        raise CheckpointError(f"{source}: sliding-window attention is not supported; set use_sliding_window to false")
    return cast(PretrainedConfig, config)


def _check_tokens(source: str, tokenizer: Any, tokens: Sequence[str]) -> None:
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in tokens if token not in vocabulary]
    if missing:
        family = "a Qwen2.5-VL" if tokens is _QWEN_TOKENS else "an OpenCUA"
        raise CheckpointError(
            f"{source}: the tokenizer has no image tokens ({', '.join(missing)}); "
            f"expected the tokenizer of {family} checkpoint"
        )


def _ensure_chat_template(source: str, tokenizer: Any, image_token: str) -> None:
    """Uses chat_template.json, where older checkpoints keep the template for images, if the tokenizer's has none."""
    if _shows_images(tokenizer, image_token):
        return
    try:
        path = cached_file(source, "chat_template.json", _raise_exceptions_for_missing_entries=False)
    except OSError:
        path = None
    if path is not None:
        tokenizer.chat_template = json.loads(Path(path).read_text(encoding="utf-8"))["chat_template"]
    if not _shows_images(tokenizer, image_token):
        raise CheckpointError(
            f"{source}: the chat template writes no {image_token} for an image; expected chat_template.jinja of a "
            "vision-language checkpoint"
        )


def _shows_images(tokenizer: Any, image_token: str) -> bool:
    if not tokenizer.chat_template:
        return False
    probe = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    text = tokenizer.apply_chat_template(probe, tokenize=False, add_generation_prompt=True)
    return bool(text.count(image_token) == 1)


def _check_fit(
    source: str, model: Any, tokenizer: Any, image_processor: Qwen2VLImageProcessorPil, image_token: str
) -> None:
    """Checks that image processor, tokenizer and model agree on patch sizes and the image token."""
    vision = model.config.vision_config
    pairs = {
        "patch_size": (image_processor.patch_size, vision.patch_size),
        "merge_size": (image_processor.merge_size, vision.spatial_merge_size),
        "temporal_patch_size": (image_processor.temporal_patch_size, vision.temporal_patch_size),
        image_token: (tokenizer.convert_tokens_to_ids(image_token), model.config.image_token_id),
    }
    for name, (processor_value, model_value) in pairs.items():
        if processor_value != model_value:
            raise CheckpointError(
                f"{source}: {name} is {processor_value} in the processor, {model_value} in the model; use "
                "the tokenizer, preprocessor_config.json and config.json of one checkpoint"
            )
    rows = model.get_output_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise CheckpointError(
            f"{source}: the tokenizer has {len(tokenizer)} tokens, the model only {rows}; use the model's own "
            f"tokenizer, or resize the model to {len(tokenizer)} tokens (resize_token_embeddings) and save it again"
        )


def _end_token_ids(generation: GenerationConfig | None, tokenizer: Any) -> tuple[int, ...]:
    """``<|im_end|>``, then the generation config's end tokens (``<|endoftext|>`` in Qwen's)."""
    ends: list[int] = [int(tokenizer.convert_tokens_to_ids("<|im_end|>"))]
    configured: int | Sequence[int] | None = None if generation is None else generation.eos_token_id
    if configured is None:
        configured = []
    ends += [configured] if isinstance(configured, int) else [int(i) for i in configured]
    return tuple(dict.fromkeys(ends))
