"""Training rows on the pretend accelerator, as after ``rows.to(device)``; called in a process of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from pretend_device import DEVICE, on_device, pretend_device
from tensordict import TensorDict, TensorDictBase, lazy_stack

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list, stack_rows
from bepa_torchrl.losses import BEPALoss, LUFFYLoss, RLSFTLoss, SFTLoss
from bepa_torchrl.testing import ScriptedLearner, picture
from bepa_torchrl.training.optimization_step import GroupStepper
from osworld_gym.types import PromptContext

_TEXT = "Thought: done\nAction: finished()"


def _rows(policy: ScriptedLearner) -> TensorDictBase:
    """Three groups ``[6]``: an injected trace and a failure, one success in two, no success."""
    (prompt,) = [p for p in policy.render([PromptContext("open the trash", [picture(1)], [])]) if p is not None]
    rows = []
    for group, slot, value in ((0, 0, 1.0), (0, 1, -1.0), (1, 0, 1.0), (1, 1, -1.0), (2, 0, 0.0), (2, 1, 0.0)):
        tokens = policy.encode_response(_TEXT)[slot:]
        row = TensorDict(
            {
                K.GROUP_ID: torch.tensor(group),
                K.SLOT: torch.tensor(slot),
                K.STEP: torch.tensor(0),
                K.N_STEPS: torch.tensor(1),
                K.POLICY_VERSION: torch.tensor(0),
                K.PROMPT_TOKENS: prompt.tokens,
                K.RESPONSE_TOKENS: tokens,
                K.OLD_LOG_PROB: torch.full((len(tokens),), -5.0),
                K.BASE_LOG_PROB: torch.full((len(tokens),), -5.5),
                K.PLAN_LOG_PROB: torch.full((len(tokens),), -4.5),
                K.ADVANTAGE: torch.full((1, 1), value),
                K.RETURN: torch.tensor([float(value > 0)]),
                K.OFF_POLICY: torch.tensor([(group, slot) == (0, 0)]),
            }
        )
        row.set_non_tensor(K.TASK_ID, f"task-{group}")
        row.set_non_tensor(K.IMAGES, prompt.images)
        rows.append(row)
    return stack_rows(rows)


def _partly_moved(rows: TensorDictBase) -> TensorDictBase:
    """All but the first row on the device, as after a trace from the cache has replaced a row of a collector's."""
    first, *others = row_list(rows)
    return lazy_stack([first.clone(), *(row.clone().to(DEVICE).clear_device_() for row in others)])


def check_rows_on_device(_folder: Path) -> None:
    """Denominators, weights and optimiser steps are those of the same rows on the CPU."""
    with pretend_device():
        torch.gpu.synchronize = lambda *_: None  # type: ignore[attr-defined]  # tensordict waits for copies
        policy = ScriptedLearner(lambda _: False)
        rows = _rows(policy)
        terms: dict[str, Any] = {"anchor_weight": 0.1, "kl_weight": 0.1, "distill_weight": 0.1}
        losses = (BEPALoss(policy, **terms), LUFFYLoss(policy), RLSFTLoss(policy), SFTLoss(policy))
        for loss in losses:
            for moved in (rows.to(DEVICE), _partly_moved(rows)):
                assert on_device(row_list(moved)[1][K.GROUP_ID])
                assert torch.equal(loss.denominators(moved), loss.denominators(rows))
                if isinstance(loss, BEPALoss):
                    assert torch.equal(loss.anchor_weights(moved), loss.anchor_weights(rows))
                    assert torch.equal(loss.distill_weights(moved), loss.distill_weights(rows))
                    assert torch.equal(loss.rows_with_terms(moved), loss.rows_with_terms(rows))
        for kind in (losses[0], BEPALoss(policy)):  # the second leaves rows out
            expected = _two_steps(policy, kind, rows.clone())
            for moved in (rows.to(DEVICE), _partly_moved(rows)):
                assert _two_steps(policy, kind, moved) == expected


def _two_steps(policy: ScriptedLearner, loss: BEPALoss, rows: TensorDictBase) -> list[dict[str, float]]:
    """Scalars of two steps that do not change the weights, on the same rows."""
    stepper = GroupStepper(policy, torch.optim.SGD(policy.parameters(), lr=0.0))
    policy.version = 0
    for _ in range(2):
        stepper.step(cast(Any, SimpleNamespace(loss_module=loss)), rows)
    assert all(row[K.UPDATES].tolist() == [1, 2] for row in row_list(rows))
    return stepper.outputs
