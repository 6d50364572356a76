"""OldLogProb: log-probs of injected traces (or of all rows) under the policy before this iteration's updates.

See docs/definitions.md, "Log-probs and ratios". Runs after
:class:`~bepa_torchrl.rollout.trace_replacement.TraceReplacement`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torchrl.envs.transforms import Transform

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.packing import MAX_TOKENS, pack_rows
from bepa_torchrl.data.step_rows import contexts_of, episodes_of, int_entry, is_trained, row_list, stack_rows
from bepa_torchrl.policies.base import Sampler
from bepa_torchrl.policies.out_of_memory import token_budget_advice
from osworld_gym.counts import check_count

ROWS = ("injected", "sampled", "all", "none")


class OldLogProb(Transform):
    """Fills OLD_LOG_PROB with the log-probs under the current weights; call it before they are updated.

    Injected episodes first get the prompts that they are trained with: rendered again from their screenshots and
    responses, without the expert's plan; the response tokens are unchanged. Their ratio is then 1 at the first
    optimiser step. Rows that are not trained on (TRAINED) are not scored.

    Args:
        policy: has ``render``, and ``get_dist`` that returns log-probs (TorchRL's convention for actors).
        rows: which rows are scored: ``injected``; ``all``, where the sampler's log-probs differ from the trainer's
            (half precision, another engine); ``sampled``: all but injected ones, for losses that do not read those of
            injected rows (LUFFY, RL+SFT); ``none``: for ``old_policy="current"``. Prompts of injected episodes are
            rendered in each case.
        max_tokens: tokens per forward pass (:func:`bepa_torchrl.data.packing.pack_rows`).
        fill: sets the log-probs, called as :func:`fill_old_log_probs`, its default; on several ranks
            :meth:`bepa_torchrl.scale.sharding.leader.Leader.fill_old_log_probs`.

    Raises:
        ValueError: an unknown ``rows``, a ``max_tokens`` that is no integer of at least 1, or (from ``forward``) an
            injected episode that does not fit the model.
        TokenBudgetError: from ``forward``: a row is longer than ``max_tokens``, or the device is out of memory.
    """

    def __init__(
        self,
        policy: Sampler,
        *,
        rows: str = "injected",
        max_tokens: int = MAX_TOKENS,
        fill: Callable[..., None] | None = None,
    ) -> None:
        super().__init__()
        if rows not in ROWS:
            raise ValueError(f"rows must be one of {', '.join(ROWS)}; got {rows!r}")
        check_count("max_tokens", max_tokens)
        self._policy = (
            policy,
        )  # in a tuple, so that the transform does not register the module and save or move its weights
        self.rows, self.max_tokens = rows, max_tokens
        self._fill = fill_old_log_probs if fill is None else fill

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the same batch with OLD_LOG_PROB set in the rows that ``rows`` selects."""
        (policy,) = self._policy
        scored: list[TensorDictBase] = []
        for episode in episodes_of(tensordict):
            injected = bool(episode.rows[0].get(K.OFF_POLICY))
            if injected:
                render_plan_free(policy, episode.rows)
            if self.rows in ("all", "injected" if injected else "sampled"):
                scored.extend(row for row in episode.rows if is_trained(row))
        self._fill(policy, scored, max_tokens=self.max_tokens)
        return tensordict


def render_plan_free(policy: Sampler, rows: Sequence[TensorDictBase]) -> None:
    """Sets the prompts of one episode's rows, in step order, to those without a plan.

    Raises:
        ValueError: a prompt does not fit the model.
    """
    for row, prompt in zip(rows, policy.renderer.render(contexts_of(rows)), strict=True):
        if prompt is None:
            raise ValueError(
                f"the trace of task {row[K.TASK_ID]!r} does not fit the model at step {int_entry(row, K.STEP)}; "
                "raise the policy's prompt limit or leave the trace out"
            )
        row.set(K.PROMPT_TOKENS, prompt.tokens)
        row.set_non_tensor(K.IMAGES, prompt.images)


@torch.no_grad()
def fill_old_log_probs(
    policy: Any, rows: Sequence[TensorDictBase], *, max_tokens: int, key: NestedKey = K.OLD_LOG_PROB
) -> None:
    """Sets ``key`` ``[L]`` float32, nats, of every row to its log-probs under the policy's current weights.

    Raises:
        TokenBudgetError: a row is longer than ``max_tokens``, or the device is out of memory.
    """
    for pack in pack_rows(rows, max_tokens):
        part = stack_rows(rows[i] for i in pack.rows)
        tokens = part.get(K.RESPONSE_TOKENS, as_padded_tensor=True, padding_side="left", padding_value=0)
        with token_budget_advice(pack):
            dist = policy.get_dist(part)
            log_probs = dist.log_prob(tokens).to(torch.float32)
        for row, values, mask in zip(row_list(part), log_probs, dist.mask, strict=True):
            row.set(key, values[mask].cpu())
