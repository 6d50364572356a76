"""The arguments with which vLLM starts; imports no vLLM."""

from __future__ import annotations

import os
from typing import Any

from packaging.version import Version

from bepa_torchrl.scale.engine.engine_interface import EngineSpec
from bepa_torchrl.scale.engine.errors import EngineVersionError, engine_version

BLOCKED, MAX_TOKENS = "bepa_blocked_ids", "bepa_max_tokens"  #: of ``additional_config``
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  #: with which vLLM can be started, for adapters of at most this rank
HEAD_DTYPE = Version("0.32")  #: first version whose ``head_dtype`` was read to apply to a generating model's head
FREE_SHARE = 0.01  #: share of the GPU's memory that must be free when an engine starts
_PROCESSOR = "bepa_torchrl.scale.engine.keyed_logits:KeyedSampling"
_PROCESSOR_V2 = "bepa_torchrl.scale.engine.keyed_logits_v2:KeyedSamplingV2"


def engine_arguments(spec: EngineSpec, *, on_cpu: bool) -> dict[str, Any]:
    """Arguments of ``AsyncEngineArgs`` that fit a policy's model, prompts and sampling.

    vLLM's default ``gpu_memory_utilization`` of 0.92 makes an engine refuse to start unless that share of the GPU is
    free, which it never is next to the trainer. With ``kv_cache_memory_bytes`` the share is used for nothing else (read
    in ``gpu_worker.py`` of 0.27.1 and 0.32.0), so a small one is passed.
    """
    arguments = {
        "dtype": spec.dtype,
        "max_model_len": spec.window,
        "max_num_seqs": spec.max_rows,
        "kv_cache_memory_bytes": int(spec.kv_cache_gb * 1e9),
        "enable_prefix_caching": True,
        "enforce_eager": on_cpu,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logits",  # the logits processor's values: log-probs at the sampling temperature
        "logits_processors": [_PROCESSOR if on_cpu else processor_for_gpu()],
        "additional_config": {BLOCKED: list(spec.blocked_ids), MAX_TOKENS: spec.max_new_tokens},
        "limit_mm_per_prompt": {"image": 999, "video": 0},
        "skip_mm_profiling": True,
        "mm_processor_cache_gb": 0,
        "disable_log_stats": True,
    }
    if spec.lora_rank:  # of the targets alone: vLLM would prepare the head, too, and has a limit of tokens there
        rank = next(rank for rank in LORA_RANKS if rank >= spec.lora_rank)
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
        arguments["lora_target_modules"] = list(spec.lora_targets)
    if spec.head_dtype and spec.head_dtype != spec.dtype:
        check_head(engine_version())
        arguments["hf_overrides"] = {"head_dtype": spec.head_dtype}
    if not on_cpu:
        arguments["gpu_memory_utilization"] = FREE_SHARE
    if engine_version().release >= (0, 28):  # patches are normalised by us: the engine would normalise them again
        arguments["mm_device_do_normalize"] = False
    return arguments


def check_head(installed: Version) -> None:
    """Raises EngineVersionError for a vLLM that computes logits in the model's dtype only."""
    if installed < HEAD_DTYPE:
        raise EngineVersionError(
            f"policy.head_dtype=float32 with policy.rollout=vllm requires vLLM {HEAD_DTYPE} or later, found "
            f"{installed}; fix: pip install 'vllm>={HEAD_DTYPE}', or policy.head_dtype=model"
        )


def processor_for_gpu() -> str:
    """The logits processor for the model runner that vLLM uses on a GPU: V2 from 0.29 on, unless disabled."""
    v2 = engine_version().release >= (0, 29) and os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "1") != "0"
    return _PROCESSOR_V2 if v2 else _PROCESSOR
