"""Supervised fine-tuning on traces: ``sft`` and ``sft_self``, and the first phase of ``sft_rl`` and ``sft_self_rl``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tensordict import TensorDictBase
from torch.optim import Optimizer

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data.seeding import Stream, derive_seed
from bepa_torchrl.data.step_rows import is_trained, row_list, stack_rows
from bepa_torchrl.losses import SFTLoss
from bepa_torchrl.policies.base import Learner
from bepa_torchrl.training.finite import STEPS_IN_A_ROW, FiniteSteps
from bepa_torchrl.training.optimization_step import Passes, gradient_step, local_passes


def fine_tune(
    policy: Learner,
    traces: TaskTraceCache,
    optimizer: Optimizer,
    *,
    epochs: int,
    batch: int,
    max_tokens: int,
    clip_norm: float,
    seed: int,
    on_epoch: Callable[[int, dict[str, float]], None],
    passes: Passes = local_passes,
    nonfinite_steps: int = STEPS_IN_A_ROW,
) -> None:
    """Token cross-entropy on every row of the traces that has a loss (TRAINED), ``epochs`` times in a seeded order.

    Args:
        batch: rows per optimiser step.
        max_tokens: tokens per forward and backward pass.
        clip_norm: maximum gradient norm.
        seed: seed of the order of the rows.
        on_epoch: called after each epoch with its number (from 1) and its metrics.
        passes: where micro-batches are computed (:func:`~bepa_torchrl.training.optimization_step.gradient_step`).
        nonfinite_steps: optimiser steps in a row that may have a gradient that is not finite.

    Raises:
        ValueError: ``traces`` is empty.
        NonFiniteError: the gradients of too many steps in a row were not finite.
    """
    every = [row for task_id in sorted(traces.task_ids()) for row in row_list(traces.get_trace(task_id))]
    rows = [row for row in every if is_trained(row)]
    if not rows:
        raise ValueError("no trace to fine-tune on: the expert, or the policy with its plans, solved no training task")
    loss, finite_steps = SFTLoss(policy), FiniteSteps(nonfinite_steps)
    for epoch in range(epochs):
        order = np.random.default_rng(derive_seed(seed, Stream.FINE_TUNING, epoch)).permutation(len(rows))
        outputs: list[float] = []
        skipped = 0.0
        for start in range(0, len(rows), batch):
            part = _rows(rows, order[start : start + batch].tolist())
            step = gradient_step(loss, optimizer, part, max_tokens=max_tokens, clip_norm=clip_norm, passes=passes)
            finite_steps.count(step)
            skipped += step["steps_not_finite"]
            if not step["steps_not_finite"]:
                outputs.append(step["loss"])
                policy.version += 1
        counts = {"sft/optimizer_steps": len(outputs), "sft/optimizer_steps_not_finite": skipped, "rows": len(rows)}
        mean = {"sft/loss": sum(outputs) / len(outputs)} if outputs else {}
        on_epoch(epoch + 1, mean | {name: float(count) for name, count in counts.items()})


def _rows(rows: Sequence[TensorDictBase], positions: Sequence[int]) -> TensorDictBase:
    return stack_rows(rows[i] for i in positions)
