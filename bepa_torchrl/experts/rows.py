"""Builds rows (``keys.py``) from expert traces and self-rollouts, with prompts that contain no plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.provenance import Provenance, mark
from bepa_torchrl.data.step_rows import Turn, contexts_of, episode_rows, row_list, stack_rows, step_contexts
from bepa_torchrl.experts.conversion import Converted, Pair
from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from bepa_torchrl.policies.base import ModelSampler
from osworld_gym.types import PromptContext, StopReason


def trace_rows(
    policy: ModelSampler,
    task_id: str,
    instruction: str,
    pairs: Sequence[Pair],
    *,
    source: K.Source = K.Source.converted,
    group_id: int = 0,
    slot: int = 0,
    reward: float = 1.0,
) -> TensorDictBase:
    """A converted or raw trace as a lazy stack ``[S]`` of rows.

    Both log-probs are NaN, since the policy did not sample these tokens.

    Raises:
        TraceError: a prompt exceeds the policy's context length, or ``pairs`` is empty.
    """
    if not pairs:
        raise TraceError(f"trace of {task_id!r}: has no response to make rows from")
    screenshots = [png for png, _ in pairs]
    texts = [text for _, text in pairs]
    encoded = [policy.renderer.encode_response(text) for text in texts]
    prompts = _fitting(policy, step_contexts(instruction, screenshots, texts, encoded), task_id)
    turns = []
    for (png, text), tokens, prompt in zip(pairs, encoded, prompts, strict=True):
        unknown = torch.full((tokens.shape[-1],), torch.nan, dtype=torch.float32)
        turns.append(Turn(png, prompt, Response(text, tokens, unknown)))
    return episode_rows(
        turns,
        task_id=task_id,
        instruction=instruction,
        group_id=group_id,
        slot=slot,
        source=source,
        policy_version=policy.version,
        reward=reward,
        stop=StopReason.finished,
        plan_free=False,
    )


def converted_cache(
    policy: ModelSampler, converted: Sequence[tuple[ExpertTrace, Converted]]
) -> tuple[TaskTraceCache, list[str]]:
    """D_conv as a cache, with provenance, and why traces were left out: they exceed the policy's context length.

    A task's trace is the first that fits.
    """
    cache, left_out = TaskTraceCache(), []
    for trace, result in converted:
        if cache.contains(trace.task_id):
            continue
        try:
            rows = trace_rows(policy, trace.task_id, trace.instruction, result.pairs)
        except TraceError as error:
            left_out.append(str(error))
            continue
        cache.put(trace.task_id, mark(rows, Provenance(trace.expert, trace.origin, trace=trace.content_hash)))
    return cache, left_out


def plan_free_rows(policy: ModelSampler, rows: TensorDictBase) -> TensorDictBase:
    """The rows ``[S]`` of a self-rolled episode with prompts without the plan; responses keep their sampled token ids.

    ROLLOUT_LOG_PROB is as sampled (with the plan); OLD_LOG_PROB is NaN until it is computed.

    Raises:
        TraceError: a prompt exceeds the policy's context length.
    """
    old = row_list(rows)
    prompts = _fitting(policy, contexts_of(old), cast(str, old[0][K.TASK_ID]))
    new = []
    for row, prompt in zip(old, prompts, strict=True):
        fresh = row.clone(recurse=False)
        fresh.set(K.PROMPT_TOKENS, prompt.tokens)
        fresh.set_non_tensor(K.IMAGES, prompt.images)
        fresh.set(K.OLD_LOG_PROB, torch.full_like(cast(Tensor, row.get(K.OLD_LOG_PROB)), torch.nan))
        new.append(fresh)
    return stack_rows(new)


def _fitting(policy: ModelSampler, contexts: Sequence[PromptContext], task_id: str) -> list[Prompt]:
    prompts = []
    for step, prompt in enumerate(policy.renderer.render(contexts)):
        if prompt is None:
            raise TraceError(f"trace of {task_id!r}: the prompt of step {step} does not fit the policy's context")
        prompts.append(prompt)
    return prompts
