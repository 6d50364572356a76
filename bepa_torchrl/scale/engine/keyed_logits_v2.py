"""Keyed sampling for vLLM's V2 model runner, the default on GPUs from 0.29 on.

Not run with an engine yet: V2 requires Triton, which has no CPU backend. Its arithmetic is that of the V1 interface
(:func:`.keyed_logits.force_keyed`), and a test calls it with the arguments that vLLM 0.32 documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor

from bepa_torchrl.scale.engine.arguments import BLOCKED, MAX_TOKENS
from bepa_torchrl.scale.engine.keyed_logits import KeyedRow, force_keyed

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext, LogitsProcRequestState


class KeyedSamplingV2(LogitsProcessor):
    """The V2 interface: requests have slots; the step of a row is its position after the prompt."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        extra, device, slots = vllm_config.additional_config, req_states.device, req_states.max_num_reqs
        self.req_states = req_states
        self.blocked = torch.tensor(extra[BLOCKED], dtype=torch.int64, device=device)
        self.temperatures = np.full(slots, np.nan)  # NaN: a request without a key
        self.uniforms = torch.zeros((slots, extra[MAX_TOKENS]), dtype=torch.float64, device=device)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        row = KeyedRow.of(sampling_params)
        self.temperatures[req_idx] = np.nan if row is None else row.temperature
        if row is not None:
            self.uniforms[req_idx, : len(row.uniforms)] = torch.from_numpy(row.uniforms)
        return row is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        slots = ctx.expanded_idx_mapping.long()
        steps = (ctx.pos + 1 - self.req_states.prompt_len.gpu[slots]).clamp(0, self.uniforms.shape[1] - 1)
        temperatures = self.temperatures[ctx.idx_mapping_np]
        rows = np.flatnonzero(~np.isnan(temperatures))
        points = self.uniforms[slots, steps.long()][torch.from_numpy(rows).to(logits.device)]
        return force_keyed(logits, rows, temperatures[rows], points, self.blocked)
