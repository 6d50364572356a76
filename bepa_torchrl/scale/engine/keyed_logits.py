"""Keyed sampling as a vLLM logits processor, for vLLM's V1 model runner (CPU, and GPU before 0.29).

The engine samples greedily from what the processor leaves: one finite logit per row, at the token that
:func:`bepa_torchrl.policies.keyed_sampling.choose_tokens` selects, with the token's log-prob as its value. The engine
reports processed logits, so it returns exactly these tokens and log-probs, whatever its batches, chunks or restarts.

A request's ``extra_args`` are those of :func:`request_args`; blocked tokens are in the engine's ``additional_config``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from bepa_torchrl.data.seeding import token_uniforms
from bepa_torchrl.policies.keyed_sampling import choose_tokens, force_tokens
from bepa_torchrl.scale.engine.arguments import BLOCKED

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig

KEY, TEMPERATURE = "bepa_key", "bepa_temperature"  #: of ``SamplingParams.extra_args``


def request_args(key: Sequence[int], temperature: float) -> dict[str, Any]:
    """``SamplingParams.extra_args`` of a request: its seed key and temperature."""
    return {KEY: [int(part) for part in key], TEMPERATURE: float(temperature)}


@dataclass(frozen=True, slots=True)
class KeyedRow:
    """A request's temperature and uniforms, float64 ``[max_tokens]``; entry i samples token i."""

    temperature: float
    uniforms: NDArray[np.float64]

    @classmethod
    def of(cls, params: SamplingParams) -> KeyedRow | None:
        """None for a request without a key, which is sampled as usual."""
        extra = params.extra_args or {}
        if KEY not in extra:
            return None
        count, temperature = params.max_tokens or 1, extra[TEMPERATURE]
        return cls(temperature, token_uniforms(extra[KEY], count) if temperature > 0 else np.zeros(count))


def force_keyed(
    logits: torch.Tensor,
    rows: NDArray[np.int64],
    temperatures: NDArray[np.float64],
    points: torch.Tensor,
    blocked: torch.Tensor,
) -> torch.Tensor:
    """Selects a token in some rows of ``logits`` and forces it, in place. Both interfaces call this.

    Args:
        logits: float32 ``[B, V]``.
        rows: int64 ``[b]``, the rows.
        temperatures: float64 ``[b]``.
        points: float64 ``[b]``, the rows' uniforms, on the device of ``logits``.
        blocked: int64 ``[K]``, tokens that are never chosen.
    """
    for temperature in np.unique(temperatures):
        members = torch.from_numpy(np.flatnonzero(temperatures == temperature)).to(logits.device)
        where = torch.from_numpy(rows).to(logits.device)[members]
        tokens, log_probs = choose_tokens(logits[where], points[members], float(temperature), blocked)
        force_tokens(logits, where, tokens, log_probs)
    return logits


class KeyedSampling(LogitsProcessor):
    """The V1 interface: rows are batch positions, the step is the number of output tokens so far."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        del is_pin_memory
        self.blocked = torch.tensor(vllm_config.additional_config[BLOCKED], dtype=torch.int64, device=device)
        self.rows: dict[int, tuple[KeyedRow, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        def new_row(params: SamplingParams, _prompt: Any, output: list[int]) -> tuple[KeyedRow, list[int]] | None:
            row = KeyedRow.of(params)
            return None if row is None else (row, output)  # vLLM appends to this list

        process_dict_updates(self.rows, batch_update, new_row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.rows:
            return logits
        indices = sorted(self.rows)
        requests = [self.rows[index] for index in indices]
        points = [row.uniforms[min(len(output), len(row.uniforms) - 1)] for row, output in requests]
        temperatures = np.asarray([row.temperature for row, _ in requests])
        uniforms = torch.tensor(points, dtype=torch.float64, device=logits.device)
        return force_keyed(logits, np.asarray(indices), temperatures, uniforms, self.blocked)
