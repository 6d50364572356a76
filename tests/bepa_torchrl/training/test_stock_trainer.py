"""TorchRL's Trainer with the project's parts, as docs/torchrl.md says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchrl.collectors import Collector
from torchrl.envs import Compose
from torchrl.trainers import Trainer
from torchrl.trainers.trainers import MixedPrecisionOptimizationStepper

from bepa_torchrl import BEPALoss, GroupRolloutCollector, GroupRows, TaskTraceCache, TraceReplacement
from bepa_torchrl.data import keys as K
from bepa_torchrl.losses import LUFFYLoss, RLSFTLoss
from bepa_torchrl.rollout import OldLogProb
from bepa_torchrl.testing import LampEnv, ScriptedLearner, lamp_task, lamp_vector
from bepa_torchrl.training.optimization_step import GroupStepper, trainable
from osworld_gym.torchrl_env import OSWorldEnv


def optimizer_of(policy: ScriptedLearner) -> torch.optim.Optimizer:
    return torch.optim.SGD(trainable(policy, frozen=["visual"]), 1e-2)


def weights(policy: ScriptedLearner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def test_group_stepper_takes_no_step_on_a_batch_that_completes_no_group() -> None:
    """Two desktops and groups of four, whose episodes have one step: every second batch of two steps has rows."""
    policy = ScriptedLearner(lambda _: False)
    env = OSWorldEnv("sim", 2, split="train", group_size=4, observation="png")
    sizes: list[int] = []
    collector = Collector(
        env,
        policy,
        frames_per_batch=2,
        total_frames=8,
        auto_register_policy_transforms=True,
        postproc=Compose(GroupRows(4), TraceReplacement(TaskTraceCache()), OldLogProb(policy)),
    )
    stepper = GroupStepper(policy, optimizer_of(policy))
    trainer = Trainer(
        collector=collector,
        total_frames=8,
        frame_skip=1,
        optim_steps_per_batch=1,
        loss_module=BEPALoss(policy),
        optimization_stepper=stepper,
        progress_bar=False,
    )
    trainer.register_op("pre_steps_log", lambda rows: sizes.append(len(rows)))
    trainer.train()
    assert sizes == [0, 4, 0, 4]
    assert [output["rows"] for output in stepper.outputs] == [4.0, 4.0]


@pytest.mark.parametrize("kind", [BEPALoss, LUFFYLoss, RLSFTLoss])
def test_the_stepper_of_torchrls_llm_trainers_trains_by_any_loss(kind: Any) -> None:
    """Slot 0 succeeds."""
    policy = ScriptedLearner(lambda key: key[3] == 0)
    loss, before = kind(policy), weights(policy)
    collector = GroupRolloutCollector(
        LampEnv(lamp_vector(2)),
        policy,
        [lamp_task(i) for i in range(2)],
        groups=2,
        group_size=2,
        postproc=Compose(TraceReplacement(TaskTraceCache()), OldLogProb(policy)),
    )
    trainer = Trainer(
        collector=collector,
        total_frames=1,
        frame_skip=1,
        optim_steps_per_batch=1,
        loss_module=loss,
        optimization_stepper=MixedPrecisionOptimizationStepper(optimizer_of(policy)),
        progress_bar=False,
    )
    trainer.register_op("batch_process", lambda rows: rows.set(K.DENOMINATOR, loss.denominators(rows)))
    trainer.train()
    assert not weights(policy).equal(before)
