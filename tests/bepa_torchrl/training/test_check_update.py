"""The check at every update: whole groups, as they were finalised, whose advantages sum to 0."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list, stack_rows
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.testing import LampEnv, ScriptedLearner, lamp_task, lamp_vector
from bepa_torchrl.training.optimization_step import minibatches
from bepa_torchrl.training.trainer import BEPATrainer


def first_of_even_tasks(key: tuple[int, ...]) -> bool:
    """In iteration 0 slot 0 of every task succeeds; later those of even tasks do."""
    return key[3] == 0 and (key[1] == 0 or key[2] % 2 == 0)


def batches(replacement: TraceReplacement, count: int = 1) -> TensorDictBase:
    """The last of so many batches of three groups of three episodes; iteration 0 fills the cache."""
    learner, env = ScriptedLearner(first_of_even_tasks), LampEnv(lamp_vector(4))
    tasks = [lamp_task(number) for number in range(3)]
    made = GroupRolloutCollector(env, learner, tasks, groups=3, group_size=3, seed=1, postproc=replacement)
    found = list(islice(made, count))[-1]
    made.shutdown()
    return found


GRPO: dict[str, Any] = {"injection": "never", "refresh": False}


@pytest.mark.parametrize(
    "options",
    [
        GRPO,
        {},
        {"weight": "need"},
        {"std": "bessel"},
        {"std": "none"},
        {"injection": "always", "refresh": True},
        {"injection": "additional", "refresh": True},
    ],
    ids=str,
)
def test_the_batches_of_every_method_pass(options: dict[str, Any]) -> None:
    replacement = TraceReplacement(None if options == GRPO else TaskTraceCache(), **options)
    batch = batches(replacement, 2)
    injected = any(report.injected for report in replacement.reports)
    assert injected == (options != GRPO)
    for rows in (batch, *minibatches(batch, 1), *minibatches(batch, 2)):
        replacement.check_whole_groups(rows)


def without(rows: TensorDictBase, key: str, value: int) -> TensorDictBase:
    return stack_rows(row for row in row_list(rows) if int(row[key]) != value)


def test_a_group_that_lost_an_episode_is_refused() -> None:
    replacement = TraceReplacement(None, **GRPO)
    batch = without(batches(replacement), K.SLOT, 1)
    with pytest.raises(RuntimeError, match=r"group 0: expected its 3 episodes in the update, got slots \[0, 2\]"):
        replacement.check_whole_groups(batch)


def test_an_episode_that_lost_a_step_is_refused() -> None:
    replacement = TraceReplacement(None, **GRPO)
    batch = without(batches(replacement), K.STEP, 1)
    with pytest.raises(
        RuntimeError, match=r"group 0, slot 0: expected all 2 steps with one advantage .* got steps \[0\]"
    ):
        replacement.check_whole_groups(batch)


def test_a_group_of_another_batch_is_refused() -> None:
    replacement = TraceReplacement(None, **GRPO)
    batch = batches(replacement)
    replacement.reports = replacement.reports[1:]
    with pytest.raises(RuntimeError, match=r"group 0: expected its None episodes in the update"):
        replacement.check_whole_groups(batch)


def test_advantages_that_do_not_sum_to_0_are_refused_before_the_step() -> None:
    """sqrt(2) - 1/sqrt(2) - 1/sqrt(2) = 0; with 0.01 more in one episode it is not."""
    replacement = TraceReplacement(None, **GRPO)
    batch = batches(replacement)
    trainer = BEPATrainer.__new__(BEPATrainer)
    trainer.replacement, trainer.minibatch_groups = replacement, None
    trainer._split(batch)
    trainer._restart(batch)
    assert trainer._next_minibatch(batch).shape == batch.shape
    for row in row_list(batch):
        if int(row[K.SLOT]) == 0 and int(row[K.GROUP_ID]) == 1:
            row.set(K.ADVANTAGE, row[K.ADVANTAGE] + torch.tensor(0.01))
    trainer._split(batch)
    trainer._restart(batch)
    with pytest.raises(RuntimeError, match=r"group 1: expected advantages that add up to 0 over episodes, got 0\.01 ="):
        trainer._next_minibatch(batch)
