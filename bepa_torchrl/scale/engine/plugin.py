"""vLLM plugin (entry point ``vllm.general_plugins``), loaded by each of vLLM's processes.

- Without a usable torchvision (there is no build of it for CPU torch), vLLM's Qwen-VL models cannot be imported and
  their processors cannot be built: both get transformers' PIL image processor. Our prompts are processed before they
  reach vLLM, so its processors only supply sizes.
- A process that belongs to an engine of ours is killed by the kernel when the process that started it exits.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

#: environment variable with the process id of the engine's owner
OWNER = "BEPA_ENGINE_OWNER"
_PR_SET_PDEATHSIG = 1
_FAST = "transformers.models.qwen2_vl.image_processing_qwen2_vl"
_PIL = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"


def register() -> None:
    """Called by vLLM in each of its processes; idempotent."""
    _exit_with_parent()
    try:
        importlib.import_module(_FAST)
    except (ImportError, RuntimeError):
        _without_torchvision()


def _exit_with_parent() -> None:
    owner = os.environ.get(OWNER)
    if owner is not None and int(owner) != os.getpid() and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _without_torchvision() -> None:
    """Replaces the image processor that requires torchvision, and the processors that require its video processor."""
    pil = importlib.import_module(_PIL)
    sys.modules[_FAST] = pil
    transformers = importlib.import_module("transformers")
    models = "vllm.model_executor.models"
    for module, info, processor in (
        ("qwen2_vl", "Qwen2VLProcessingInfo", "Qwen2VLProcessor"),
        ("qwen2_5_vl", "Qwen2_5_VLProcessingInfo", "Qwen2_5_VLProcessor"),
        ("qwen3_vl", "Qwen3VLProcessingInfo", "Qwen3VLProcessor"),
    ):
        kind = getattr(importlib.import_module(f"{models}.{module}"), info)
        kind.get_hf_processor = _processor_of(getattr(transformers, processor), pil.Qwen2VLImageProcessorPil)


def _processor_of(processor: Any, image_processor: Any) -> Any:
    """A replacement of ``get_hf_processor``: a processor for images only."""

    def get_hf_processor(self: Any, **_kwargs: object) -> Any:
        from transformers import AutoTokenizer
        from transformers.processing_utils import VideosKwargs

        source = self.ctx.model_config.model
        images = image_processor.from_pretrained(source)
        built = processor.__new__(processor)
        built.image_processor, built.tokenizer = images, AutoTokenizer.from_pretrained(source)
        built.video_processor = SimpleNamespace(
            valid_kwargs=VideosKwargs,
            size=images.size,
            patch_size=images.patch_size,
            temporal_patch_size=images.temporal_patch_size,
            merge_size=images.merge_size,
        )
        built.image_token, built.video_token = "<|image_pad|>", "<|video_pad|>"
        return built

    return get_hf_processor
