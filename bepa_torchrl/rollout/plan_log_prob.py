"""PlanLogProb: log-probs of the policy's own rows with the expert's plan in the prompt, for gated plan distillation.

SDAR (arXiv:2605.15155). Runs after :class:`~bepa_torchrl.rollout.trace_replacement.TraceReplacement`, before the
weights are updated: with one optimiser step per batch the log-probs are those of the weights in training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs.transforms import Transform

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.packing import MAX_TOKENS
from bepa_torchrl.data.step_rows import contexts_of, episodes_of, is_trained
from bepa_torchrl.policies.base import Sampler
from bepa_torchrl.rollout.old_log_prob import fill_old_log_probs


class PlanLogProb(Transform):
    """Sets PLAN_LOG_PROB ``[L]`` float32, nats, of every row.

    It is NaN on rows without a plan, which have no term: of tasks without one, injected or replayed rows, and those
    whose prompt does not fit the model with the plan.

    Args:
        policy: has ``render``, and ``get_dist`` that returns log-probs.
        plans: task id → the expert's plan.
        max_tokens: tokens per forward pass (:func:`bepa_torchrl.data.packing.pack_rows`).
        fill: sets the log-probs, called as :func:`~bepa_torchrl.rollout.old_log_prob.fill_old_log_probs`, its default.

    ``forward`` raises as ``fill`` does.
    """

    def __init__(
        self,
        policy: Sampler,
        plans: Mapping[str, str],
        *,
        max_tokens: int = MAX_TOKENS,
        fill: Callable[..., None] | None = None,
    ) -> None:
        super().__init__()
        self._policy = (policy,)  # in a tuple, so that the transform does not register the module
        self.plans, self.max_tokens = dict(plans), max_tokens
        self._fill = fill_old_log_probs if fill is None else fill

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The same batch ``[R]``, with PLAN_LOG_PROB in every row."""
        (policy,) = self._policy
        scored: list[tuple[TensorDictBase, TensorDictBase]] = []
        for episode in episodes_of(tensordict):
            for row in episode.rows:
                row.set(K.PLAN_LOG_PROB, torch.full((len(row[K.RESPONSE_TOKENS]),), torch.nan))
            plan = self.plans.get(episode.task_id)
            if plan is not None and not bool(episode.rows[0].get(K.OFF_POLICY)):
                scored += planned_rows(policy, episode.rows, plan)
        self._fill(policy, [planned for _, planned in scored], max_tokens=self.max_tokens, key=K.PLAN_LOG_PROB)
        for row, planned in scored:
            row.set(K.PLAN_LOG_PROB, cast(Tensor, planned.get(K.PLAN_LOG_PROB)))
        return tensordict


def planned_rows(
    policy: Sampler, rows: Sequence[TensorDictBase], plan: str
) -> list[tuple[TensorDictBase, TensorDictBase]]:
    """Each row of an episode that is trained on, with a copy whose prompt contains the plan; only those that fit."""
    contexts = [replace(context, plan=plan) for context in contexts_of(rows)]
    pairs: list[tuple[TensorDictBase, Any]] = list(zip(rows, contexts, strict=True))
    kept = [(row, context) for row, context in pairs if is_trained(row)]
    out = []
    for (row, _), prompt in zip(kept, policy.renderer.render([context for _, context in kept]), strict=True):
        if prompt is not None:
            planned = row.select(K.TASK_ID, K.GROUP_ID, K.SLOT, K.STEP, K.RESPONSE_TOKENS)
            planned.set(K.PROMPT_TOKENS, prompt.tokens)
            planned.set_non_tensor(K.IMAGES, prompt.images)
            out.append((row, planned))
    return out
