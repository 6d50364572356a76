"""The settings of the policy: checkpoint, prompts, batches, adapters and the inference engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bepa_torchrl.experiment.settings.kinds import Count, NonNegativeFloat, Positive, PositiveFloat, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """LoRA adapters on the decoder (:mod:`bepa_torchrl.policies.transformers.lora`); requires the extra ``lora``.

    Args:
        rank: rank of the adapters, which are all that is trained; None: full training, without adapters.
        alpha: the adapters' output is multiplied by ``alpha / rank``.
        targets: last parts of the names of the decoder's adapted linear layers.
        adapter: folder of saved adapters to start from, of the same rank, alpha and targets; None: the identity.
    """

    rank: Positive | None = None
    alpha: Positive = 64
    targets: tuple[Text, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    adapter: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The inference engine of ``policy.rollout=vllm`` (docs/vllm.md).

    Args:
        kv_cache_gb: memory of its key-value cache, 10^9 bytes, at least that of one prompt and response of the maximum
            length. This is checked before anything is loaded.
        max_rows: maximum rows that it computes at once; None: the larger of ``env.desktops`` and ``policy.max_rows``.
        devices: GPUs that its processes see, as in CUDA_VISIBLE_DEVICES, such as ``"1"`` or ``"2,3"``; None: those of
            this process, of which it takes the first. Beside several ranks that train meanwhile (``train.ranks``,
            ``collect.mode=async`` without a cluster) it must be others than theirs.
        arguments: further arguments of vLLM's ``AsyncEngineArgs``, such as
            ``policy.engine.arguments.tensor_parallel_size=2``; they replace ours.
        max_restarts: maximum number of restarts after exits of its process, per process of the run.
        tolerance: maximum mean absolute difference of its log-probs to the trainer's after a weight sync, nats; None:
            1e-4 for float32, 0.1 for half precision.
        adapters: how LoRA adapters reach it at a weight sync: ``separate``, alone, on top of the checkpoint's weights;
            ``merged``, with all weights; ``auto``, alone if nothing else is trained and vLLM can have them. In rollout
            services (``collect.mode=async``) always merged.
        weights: how all weights reach it at a weight sync: ``folder``, as a checkpoint that it reads; ``ipc``, from the
            trainer's memory on the same GPU; ``nccl``, from GPU to GPU; ``auto``, the first of ``ipc``, ``nccl`` and
            ``folder`` that is possible. With ``url`` and for adapters alone it is a folder.
        sleep: whether it gives its GPU's memory up while the policy is trained: its key-value cache, and its weights,
            which it is sent again afterwards (with adapters alone they wait in the CPU's memory). Requires an engine
            beside the trainer of one rank, on a GPU, and ``collect.mode=sync``.
        timeout: seconds for its start, for a weight sync, and between two finished responses.
        url: address http://HOST:PORT, or https://, of a ``bepa engine`` on another machine; None: a process of this
            machine.
        token_file: file with the token of that ``bepa engine``; None: the variable BEPA_ENGINE_TOKEN has it.
        tls_ca: file with the certificates, PEM, of which one has signed that of ``url``; None: those of this machine.
    """

    kv_cache_gb: PositiveFloat = 4.0
    max_rows: Positive | None = None
    devices: Text | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    max_restarts: Count = 3
    tolerance: PositiveFloat | None = None
    adapters: Literal["auto", "separate", "merged"] = "auto"
    weights: Literal["auto", "folder", "ipc", "nccl"] = "auto"
    sleep: bool = False
    timeout: PositiveFloat = 600.0
    url: Text | None = None
    token_file: Text | None = None
    tls_ca: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The checkpoint, how it is loaded, and how prompts and batches are formed.

    Args:
        checkpoint: ``tiny``, ``tiny_free``, ``tiny_plans`` or ``tiny_local`` (shipped with the package), a folder, or a
            Hugging Face repository.
        dtype: torch dtype of the weights.
        device: torch device, for example ``cpu`` or ``cuda:0``.
        attn: attention implementation of transformers.
        action_text: the form of prompts and responses, a name of :data:`osworld_gym.action_text.ACTION_TEXTS`, such as
            ``uitars`` or ``qwen3vl`` (docs/qwen3vl.md). With ``opencua`` (docs/opencua.md) prompts repeat past
            responses in a shorter form, so that steps share no forward pass.
        preset: prompt preset of the action text.
        history: the screenshots in the prompt: ``all``; ``evict_block``, k to 2k - 1, of which the oldest k are dropped
            at once; ``last_k``, the newest k, as OSWorld's agent. ``all`` is the cheapest to train, ``last_k`` the
            dearest (:mod:`osworld_gym.uitars.history`).
        history_images: number k of screenshots in the prompt, the current one included; None with ``all``.
        max_prompt_tokens: maximum tokens of a prompt; a longer one ends the episode.
        max_new_tokens: maximum tokens of a response.
        max_batch_tokens: maximum tokens of a forward pass, including padding.
        max_rows: maximum rows of a sampling batch.
        feature_cache_gb: memory for the features of screenshots, 10^9 bytes, on the policy's device; used if the vision
            tower is frozen. A screenshot of 1080p has 20 MB in a 7B: 0.27 holds 13 of them, and 32 desktops with 15
            screenshots each require 9.6 for each screenshot to be encoded once.
        max_vision_patches: maximum patches of a pass through the vision tower, which bounds its memory: without, all
            screenshots of a forward pass go through it at once. A screenshot of 1080p has 10,764 in a Qwen2.5-VL; a
            single one may have more than this.
        head_dtype: in which logits are computed: ``model``, as ``dtype``; ``float32``, also if ``dtype`` is half
            precision, in sampling, scoring and the engine of ``rollout=vllm`` (from vLLM 0.32), whose log-probs then
            differ about half as much. It takes a float32 copy of the output embedding, 2.2 GB for a 7B.
        activation_checkpointing: whether an update recomputes activations in the backward pass instead of keeping them.
            It takes about a third more time and a fraction of the memory, with the same results.
        image_cache_gb: memory of the CPU for screenshots that are decoded and resized, 10^9 bytes; 0: none are kept.
            One of 1920x1080 takes 6.3 MB and its PNG. Each process that prepares screenshots has its own.
        image_threads: threads that decode and resize screenshots ahead of need; 0: none.
        lora: LoRA adapters.
        rollout: what samples responses: ``transformers``, the policy in training; ``vllm``, an inference engine that
            gets its weights before each iteration, with the same tokens (docs/vllm.md).
        engine: the inference engine; read with ``rollout=vllm`` only.
    """

    checkpoint: Text
    dtype: Literal["float32", "bfloat16", "float16"]
    device: Text
    attn: Literal["sdpa", "flash_attention_2"]
    action_text: Text = "uitars"
    preset: Text
    history: Literal["all", "evict_block", "last_k"]
    history_images: Positive | None
    max_prompt_tokens: Positive
    max_new_tokens: Positive
    max_batch_tokens: Positive
    max_rows: Positive
    feature_cache_gb: NonNegativeFloat = 0.27
    max_vision_patches: Positive | None = None
    head_dtype: Literal["model", "float32"] = "model"
    activation_checkpointing: bool
    image_cache_gb: NonNegativeFloat = 0.25
    image_threads: Count = 0
    lora: LoraSettings = field(default_factory=LoraSettings)
    rollout: Literal["transformers", "vllm"] = "transformers"
    engine: EngineSettings = field(default_factory=EngineSettings)
