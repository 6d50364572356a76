"""Both logits-processor interfaces select the same tokens; the V2 interface is called as vLLM documents it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate

from bepa_torchrl.data.seeding import token_uniforms
from bepa_torchrl.policies.keyed_sampling import choose_tokens
from bepa_torchrl.scale.engine.arguments import BLOCKED, MAX_TOKENS
from bepa_torchrl.scale.engine.keyed_logits import KeyedSampling, request_args
from bepa_torchrl.scale.engine.keyed_logits_v2 import KeyedSamplingV2

pytestmark = pytest.mark.vllm

CONFIG: Any = SimpleNamespace(additional_config={BLOCKED: [0, 3], MAX_TOKENS: 8})
CPU = torch.device("cpu")


def params(row: int, temperature: float) -> SamplingParams:
    return SamplingParams(max_tokens=8, extra_args=request_args((5, row), temperature))


#: temperature and number of sampled tokens of each request
REQUESTS = ((1.0, 0), (2.0, 3), (0.0, 1), (1.0, 7))


def expected(logits: torch.Tensor) -> tuple[list[int], list[float]]:
    found = []
    for row, (temperature, step) in enumerate(REQUESTS):
        point = torch.tensor([token_uniforms((5, row), 8)[step]])
        token, log_prob = choose_tokens(logits[row : row + 1], point, temperature, torch.tensor([0, 3]))
        found.append((int(token), float(log_prob)))
    return [token for token, _ in found], [value for _, value in found]


def check(forced: torch.Tensor, logits: torch.Tensor) -> None:
    tokens, log_probs = expected(logits)
    assert forced.argmax(-1).tolist() == tokens
    assert forced.max(-1).values.tolist() == pytest.approx(log_probs)
    assert int(forced.isfinite().sum()) == len(REQUESTS)


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(len(REQUESTS), 11, generator=torch.Generator().manual_seed(0)) * 3


def test_v1(logits: torch.Tensor) -> None:
    processor = KeyedSampling(CONFIG, CPU, False)
    outputs: list[list[int]] = [[] for _ in REQUESTS]
    added = [(row, params(row, temperature), [1], outputs[row]) for row, (temperature, _) in enumerate(REQUESTS)]
    processor.update_state(BatchUpdate(len(added), removed=[], added=added, moved=[]))
    for row, (_, step) in enumerate(REQUESTS):
        outputs[row].extend([9] * step)  # vLLM appends the sampled tokens
    check(processor.apply(logits.clone()), logits)
    assert not processor.is_argmax_invariant()


def test_v2_with_rows_in_another_order_than_slots(logits: torch.Tensor) -> None:
    slots = [6, 1, 4, 2]
    prompt_len = torch.tensor([10, 11, 12, 13, 14, 15, 16])
    states: Any = SimpleNamespace(device=CPU, max_num_reqs=7, prompt_len=SimpleNamespace(gpu=prompt_len))
    processor = KeyedSamplingV2(CONFIG, states)
    for row, (temperature, _) in enumerate(REQUESTS):
        assert processor.add_request(slots[row], params(row, temperature))
    position = [int(prompt_len[slot]) - 1 + step for slot, (_, step) in zip(slots, REQUESTS, strict=True)]
    context: Any = SimpleNamespace(
        expanded_idx_mapping=torch.tensor(slots, dtype=torch.int32),
        idx_mapping_np=np.array(slots),
        pos=torch.tensor(position),
    )
    check(processor.apply(logits.clone(), context), logits)


def test_v2_leaves_other_requests_alone(logits: torch.Tensor) -> None:
    """A slot that is used again by a request without a key."""
    states: Any = SimpleNamespace(device=CPU, max_num_reqs=4, prompt_len=SimpleNamespace(gpu=torch.ones(4)))
    processor = KeyedSamplingV2(CONFIG, states)
    for slot in range(4):
        processor.add_request(slot, params(slot, 1.0))
        assert not processor.add_request(slot, SamplingParams(max_tokens=8))
    context: Any = SimpleNamespace(
        expanded_idx_mapping=torch.arange(4), idx_mapping_np=np.arange(4), pos=torch.zeros(4)
    )
    assert torch.equal(processor.apply(logits.clone(), context), logits)
