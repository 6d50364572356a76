"""NaN and infinity stay out of the weights: steps are not taken, runs end, checkpoints are not written."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import groups_of, row_list, stack_rows
from bepa_torchrl.failures import BAD_INPUT, exit_code
from bepa_torchrl.losses import BEPALoss, LUFFYLoss, RLSFTLoss, SFTLoss
from bepa_torchrl.policies.finite import NonFiniteError, check_finite, is_finite
from bepa_torchrl.policies.transformers.checkpoint import CheckpointError
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.testing import LampEnv, ScriptedLearner, lamp_task, lamp_vector, small_checkpoint
from bepa_torchrl.training import checkpoint
from bepa_torchrl.training.checkpoint import Checkpoints, PolicyWeights
from bepa_torchrl.training.optimization_step import GroupStepper, gradient_step, trainable
from bepa_torchrl.training.precision import make_adamw
from bepa_torchrl.training.supervised import fine_tune


def learner(dtype: torch.dtype = torch.float32) -> ScriptedLearner:
    policy = ScriptedLearner(lambda key: key[3] == 0)
    policy.model.to(dtype)
    return policy


def batch_of(policy: ScriptedLearner) -> TensorDictBase:
    """Three rollouts of a task, one of them a success, with old and rollout log-probs of the policy itself."""
    replacement = TraceReplacement(None, injection="never", refresh=False)
    env = LampEnv(lamp_vector(3))
    batch = next(iter(GroupRolloutCollector(env, policy, [lamp_task(0)], groups=1, group_size=3, postproc=replacement)))
    for row in row_list(batch):
        row.set(K.ROLLOUT_LOG_PROB, row[K.OLD_LOG_PROB].clone())
    return batch


def shifted(batch: TensorDictBase, key: Any, by: float) -> TensorDictBase:
    """The batch with another value for every token of its first row."""
    rows = [row.copy() for row in row_list(batch)]
    rows[0].set(key, rows[0][key] + by)
    return stack_rows(rows)


def weights_of(policy: ScriptedLearner) -> list[torch.Tensor]:
    return [p.detach().clone() for p in policy.parameters()]


LOSSES: dict[str, Callable[[ScriptedLearner], Any]] = {
    "bepa": lambda p: BEPALoss(p),
    "bepa, step": lambda p: BEPALoss(p, unit="step"),
    "bepa, dual clip": lambda p: BEPALoss(p, dual_clip=3.0),
    "bepa, token weights": lambda p: BEPALoss(p, rollout_correction="token"),
    "bepa, sequence weights, step": lambda p: BEPALoss(p, rollout_correction="sequence", unit="step"),
    "luffy": lambda p: LUFFYLoss(p),
    "luffy, released": lambda p: LUFFYLoss(p, preset="released", max_length=100),
    "rl_sft": lambda p: RLSFTLoss(p),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("by", [-100.0, 100.0])
def test_extreme_log_ratios_give_a_finite_step(name: str, by: float) -> None:
    """An old log-prob that is 100 nats a token off: exp(100) is no float32."""
    policy = learner()
    batch = shifted(batch_of(policy), K.OLD_LOG_PROB, by)
    output = gradient_step(LOSSES[name](policy), torch.optim.AdamW(policy.parameters(), lr=1e-4), batch)
    assert output["steps_not_finite"] == 0.0
    assert math.isfinite(output["loss"])
    assert all(torch.isfinite(weight).all() for weight in policy.parameters())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", [K.OLD_LOG_PROB, K.ROLLOUT_LOG_PROB])
@pytest.mark.parametrize("level", ["measure", "token", "sequence"])
def test_log_probs_that_are_not_finite_are_refused_by_row(value: float, key: Any, level: str) -> None:
    policy = learner()
    batch = shifted(batch_of(policy), key, value)
    before = weights_of(policy)
    with pytest.raises(
        ValueError, match=r"must be finite on responses; it is not on task .* group 0 slot \d step \d: what"
    ):
        gradient_step(
            BEPALoss(policy, rollout_correction=level), torch.optim.AdamW(policy.parameters(), lr=1e-4), batch
        )
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def spoiled(policy: ScriptedLearner) -> Any:
    """From now on one weight's gradient is infinite."""
    weight = trainable(policy)[-1]
    return weight.register_hook(lambda gradient: gradient + math.inf)


OPTIMIZERS = [
    (torch.float32, "adamw"),
    (torch.bfloat16, "adamw"),
    (torch.float32, "adamw_8bit"),
    (torch.bfloat16, "adamw_8bit"),
]


@pytest.mark.parametrize(("dtype", "kind"), OPTIMIZERS)
def test_a_step_whose_gradient_is_not_finite_is_not_taken(
    dtype: torch.dtype, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    policy = learner(dtype)
    batch = batch_of(policy)
    loss, optimizer = BEPALoss(policy), make_adamw(trainable(policy), kind=kind, lr=1e-3)
    gradient_step(loss, optimizer, batch)
    before = weights_of(policy)
    state = {k: v.clone() for k, v in flat(optimizer.state_dict()).items()}
    hook = spoiled(policy)
    with caplog.at_level(logging.WARNING):
        output = gradient_step(loss, optimizer, batch)
    hook.remove()
    assert output["steps_not_finite"] == 1.0
    assert not math.isfinite(output["grad_norm"])
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    assert all(torch.equal(value, state[name]) for name, value in flat(optimizer.state_dict()).items())
    (record,) = [r for r in caplog.records if "not taken" in r.getMessage()]
    assert "importance ratio up to" in record.getMessage()
    assert "slot 0 step 0" in record.getMessage()
    gradient_step(loss, optimizer, batch)  # the next one is
    assert not all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def flat(state: dict[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}/")
        elif isinstance(value, torch.Tensor):
            found[f"{prefix}{key}"] = value
    return found


def test_supervised_steps_are_checked_as_well() -> None:
    policy = learner()
    batch = batch_of(policy)
    before = weights_of(policy)
    hook = spoiled(policy)
    output = gradient_step(SFTLoss(policy), torch.optim.AdamW(policy.parameters(), lr=1e-3), batch)
    hook.remove()
    assert output["steps_not_finite"] == 1.0
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


class _Trainer:
    def __init__(self, loss: Any) -> None:
        self.loss_module = loss


def test_a_run_ends_after_too_many_in_a_row() -> None:
    """Two are tolerated: the third ends it; a step between them begins the count again."""
    policy = learner()
    batch = batch_of(policy)
    stepper = GroupStepper(policy, torch.optim.AdamW(policy.parameters(), lr=1e-4), nonfinite_steps=2)
    trainer: Any = _Trainer(BEPALoss(policy))
    version = policy.version
    hook = spoiled(policy)
    stepper.step(trainer, batch)
    stepper.step(trainer, batch)
    hook.remove()
    stepper.step(trainer, batch)
    assert policy.version == version + 1
    metrics = stepper.drain()
    assert (metrics["optimizer_steps"], metrics["optimizer_steps_not_finite"]) == (1.0, 2.0)
    assert math.isfinite(metrics["grad_norm"])
    hook = spoiled(policy)
    stepper.step(trainer, batch)
    stepper.step(trainer, batch)
    with pytest.raises(
        NonFiniteError, match=r"3 optimiser steps in a row was not finite \(train\.nonfinite_steps=2"
    ) as error:
        stepper.step(trainer, batch)
    hook.remove()
    assert exit_code(error.value) == BAD_INPUT


def test_minibatches_without_a_signal_do_not_interrupt_the_count() -> None:
    policy = learner()
    batch = batch_of(policy)
    without = stack_rows([row.copy() for row in row_list(batch)])
    for row in row_list(without):
        row.set(K.ADVANTAGE, torch.zeros(1, 1))
    stepper = GroupStepper(policy, torch.optim.AdamW(policy.parameters(), lr=1e-4), nonfinite_steps=1)
    trainer: Any = _Trainer(BEPALoss(policy))
    hook = spoiled(policy)
    stepper.step(trainer, batch)
    stepper.step(trainer, without)
    with pytest.raises(NonFiniteError, match="2 optimiser steps in a row"):
        stepper.step(trainer, batch)
    hook.remove()


@pytest.mark.parametrize(
    "make",
    [lambda p: BEPALoss(p), lambda p: BEPALoss(p, old_policy="current"), LUFFYLoss, RLSFTLoss],
    ids=["stored", "current", "luffy", "rl_sft"],
)
def test_log_probs_of_the_current_weights_that_are_nan_are_a_step_that_is_not_taken(make: Any) -> None:
    """Whether the row has old log-probs or, injected or with ``current``, none that are read."""
    policy = learner()
    batch = batch_of(policy)
    first = row_list(batch)[0]
    first.set(K.OFF_POLICY, torch.tensor([True]))
    scored = policy.get_dist

    def spoil(rows: TensorDictBase, logits_key: str = "logits") -> Any:
        found = scored(rows, logits_key=logits_key)
        nan = torch.tensor([bool(row[K.OFF_POLICY]) for row in row_list(rows)])[:, None]
        log_prob = found.log_prob

        def of(tokens: torch.Tensor) -> torch.Tensor:
            return torch.where(nan, math.nan, log_prob(tokens))

        found.log_prob = of
        return found

    policy.get_dist = spoil
    before = weights_of(policy)
    output = gradient_step(make(policy), torch.optim.AdamW(policy.parameters(), lr=1e-4), batch)
    assert output["steps_not_finite"] == 1.0
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


@pytest.mark.parametrize("where", ["weights", "moments"])
def test_a_checkpoint_that_is_not_finite_is_not_written(where: str, tmp_path: Path) -> None:
    policy = learner()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    stepper = GroupStepper(policy, optimizer)
    gradient_step(BEPALoss(policy), optimizer, batch_of(policy))
    saved = Checkpoints(tmp_path, keep=1)
    components = {"weights": PolicyWeights(policy), "stepper": stepper}
    saved.save(components, step=1)
    weight = trainable(policy)[0]
    spoil = weight if where == "weights" else next(iter(optimizer.state.values()))["exp_avg"]
    with torch.no_grad():
        spoil.view(-1)[0] = math.inf
    with pytest.raises(NonFiniteError, match="elements that are not finite"):
        saved.save(components, step=2)
    saved.remove_leftovers()
    found = saved.recover()
    assert found is not None
    assert found.step == 1
    assert [step for step, _ in saved.paths()] == [1]


def test_what_counts_as_finite() -> None:
    assert is_finite(torch.tensor([1e38, 3e38]))  # their sum is no float32
    assert is_finite(torch.full((4,), 60000.0, dtype=torch.float16))
    assert is_finite(torch.zeros(0))
    assert is_finite(torch.tensor([1, 2]))
    assert not is_finite(torch.tensor([1.0, math.nan]))
    assert not is_finite(torch.tensor([math.inf, -math.inf]))
    with pytest.raises(NonFiniteError, match=r"the policy's weights: 1 tensors have .* such as b; go on"):
        check_finite([("a", torch.ones(1)), ("b", torch.tensor([math.nan]))], "the policy's weights")


def test_a_step_whose_loss_is_not_finite_is_not_taken() -> None:
    """Also if its gradient is; and the loss that is returned is no sum without the micro-batch that is NaN."""
    policy = learner()
    optimizer = torch.optim.AdamW(trainable(policy), lr=1e-3)
    before = weights_of(policy)

    def passes(*_: Any) -> tuple[list[dict[str, float]], dict[str, float]]:
        for weight in trainable(policy):
            weight.grad = torch.ones_like(weight)
        return [{"loss_objective": math.nan}, {"loss_objective": 1.0}], {}

    output = gradient_step(BEPALoss(policy), optimizer, batch_of(policy), passes=passes)
    assert output["steps_not_finite"] == 1.0
    assert math.isnan(output["loss"])
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    assert not optimizer.state


def test_fine_tuning_counts_steps_that_are_not_taken() -> None:
    """Without a step there is no loss to record, rather than NaN, which JSON does not have."""
    policy = learner()
    traces, episode = TaskTraceCache(), next(groups_of(batch_of(policy)))[0]
    traces.put(episode.task_id, stack_rows(episode.rows))
    lines: list[dict[str, float]] = []
    hook = spoiled(policy)
    fine_tune(
        policy,
        traces,
        torch.optim.AdamW(trainable(policy), lr=1e-3),
        epochs=1,
        batch=16,
        max_tokens=4096,
        clip_norm=1.0,
        seed=0,
        on_epoch=lambda _, metrics: lines.append(metrics),
    )
    hook.remove()
    rows = float(len(episode.rows))
    assert lines == [{"sft/optimizer_steps": 0.0, "sft/optimizer_steps_not_finite": 1.0, "rows": rows}]


def test_a_checkpoint_that_is_not_finite_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that an earlier version wrote is damaged, so that the one before it is used."""
    policy, saved = learner(), Checkpoints(tmp_path, keep=2)
    saved.save({"weights": PolicyWeights(policy)}, step=1)
    trainable(policy)[0].data.view(-1)[0] = math.nan
    monkeypatch.setattr(checkpoint, "check_finite", lambda *_: None)
    saved.save({"weights": PolicyWeights(policy)}, step=2)
    found = saved.recover()
    assert found is not None
    assert found.step == 1
    assert "iteration-000000000002 is damaged (1 of its tensors are not finite" in found.notes[0]


def test_a_policy_that_is_not_finite_is_neither_exported_nor_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = TransformersPolicy(small_checkpoint(spread=0.1), preset="compact")
    trainable(policy)[0].data.view(-1)[0] = math.inf
    with pytest.raises(NonFiniteError, match=r"folder is not written: 1 tensors have elements that are not finite"):
        policy.save(tmp_path / "folder")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("bepa_torchrl.policies.transformers.policy.check_finite", lambda *_: None)
    folder = policy.save(tmp_path / "folder")
    with pytest.raises(CheckpointError, match=r"folder: 1 weights have elements that are not finite in torch.float32"):
        load_policy(folder, preset="compact")
