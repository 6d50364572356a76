"""The settings of the policy: checkpoint, prompts, batches, adapters and the inference engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bepa_torchrl.experiment.settings.bounds import Count, Positive, PositiveFloat


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """LoRA adapters on the decoder (:mod:`bepa_torchrl.policies.transformers.lora`); requires the extra ``lora``.

    Args:
        rank: rank of the adapters, the only trained parameters then; None: full training, without adapters.
        alpha: the adapters' output is multiplied by ``alpha / rank``.
        targets: last parts of the names of the decoder's adapted linear layers.
        adapter: folder of saved adapters to start from, of the same rank, alpha and targets; None: the identity.
    """

    rank: Positive | None
    alpha: Positive
    targets: tuple[str, ...]
    adapter: str | None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The inference engine of ``policy.rollout=vllm`` (docs/vllm.md).

    Args:
        kv_cache_gb: memory of its key-value cache, 10^9 bytes; at least that of one prompt and response of the maximum
            length, which is checked before anything is loaded.
        max_rows: maximum rows that it computes at once; None: the larger of ``env.desktops`` and ``policy.max_rows``.
        devices: the GPUs that its processes see, as CUDA_VISIBLE_DEVICES of this machine, such as ``"1"`` or ``"2,3"``;
            None: those that this process sees, of which it takes the first.
        arguments: further arguments of vLLM's ``AsyncEngineArgs``, such as ``tensor_parallel_size``; they replace ours.
        max_restarts: maximum number of restarts after exits of its process, per process of the run.
        tolerance: maximum mean absolute difference of its log-probs to the trainer's after a weight sync, nats; None:
            1e-4 for float32, 0.1 for half precision.
        adapters: how LoRA adapters reach it at a weight sync: ``separate``, alone, on top of the checkpoint's weights;
            ``merged``, with all weights; ``auto``, alone if nothing else is trained and vLLM can have them. In rollout
            services (``collect.mode=async``) always merged.
        timeout: seconds for its start, for a weight sync, and between two finished responses.
        url: ``http://HOST:PORT`` of a ``bepa engine`` on another machine; None: a process of this machine.
        token_file: file with the token of that ``bepa engine``; None: the variable BEPA_ENGINE_TOKEN has it.
    """

    kv_cache_gb: PositiveFloat
    max_rows: Positive | None
    devices: str | None
    arguments: Mapping[str, Any]
    max_restarts: Count
    tolerance: PositiveFloat | None
    adapters: Literal["auto", "separate", "merged"]
    timeout: PositiveFloat
    url: str | None
    token_file: str | None


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The checkpoint, how it is loaded, and how prompts and batches are formed.

    Args:
        checkpoint: ``tiny`` or ``tiny_local`` (shipped with the package), a folder, or a Hugging Face repository.
        dtype: torch dtype of the weights.
        device: torch device, for example ``cpu`` or ``cuda:0``.
        attn: attention implementation of transformers.
        action_text: the form of prompts and responses (:data:`osworld_gym.action_text.ACTION_TEXTS`): ``uitars``;
            ``qwen3vl``, calls of the tool ``computer_use``; or ``opencua``, whose prompts repeat past responses in a
            shorter form, so that steps share no forward pass.
        preset: a prompt preset of the action text.
        history: the screenshots in the prompt: ``all``; ``evict_block``, k to 2k - 1, of which the oldest k are dropped
            at once; ``last_k``, the newest k, as OSWorld's agent. ``all`` is the cheapest to train, ``last_k`` the
            dearest (:mod:`osworld_gym.uitars.history`).
        history_images: k, the current screenshot included; None with ``all``.
        max_prompt_tokens: maximum tokens of a prompt; a longer one ends the episode.
        max_new_tokens: maximum tokens of a response.
        max_batch_tokens: maximum tokens of a forward pass, including padding.
        max_rows: maximum rows of a sampling batch.
        activation_checkpointing: whether an update recomputes activations in the backward pass instead of keeping them:
            about a third more time, a fraction of the memory, the same results.
        lora: LoRA adapters.
        rollout: what samples responses: ``transformers``, the policy in training; ``vllm``, an inference engine that
            gets its weights before each iteration, with the same tokens.
        engine: the inference engine; read with ``rollout=vllm`` only.
    """

    checkpoint: str
    dtype: Literal["float32", "bfloat16", "float16"]
    device: str
    attn: Literal["sdpa", "flash_attention_2"]
    action_text: Literal["uitars", "opencua", "qwen3vl"]
    preset: str
    history: Literal["all", "evict_block", "last_k"]
    history_images: Positive | None
    max_prompt_tokens: Positive
    max_new_tokens: Positive
    max_batch_tokens: Positive
    max_rows: Positive
    activation_checkpointing: bool
    lora: LoraSettings
    rollout: Literal["transformers", "vllm"]
    engine: EngineSettings
