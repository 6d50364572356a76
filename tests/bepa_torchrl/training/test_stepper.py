"""The optimiser step: micro-batches are summed, rows without advantage are skipped without effect."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import groups_of, row_list, stack_rows
from bepa_torchrl.evaluation.divergence import injected_divergence
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.old_log_prob import fill_old_log_probs
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.testing import LampEnv, ScriptedLearner, lamp_task, lamp_vector
from bepa_torchrl.training.optimization_step import GroupStepper, gradient_step, has_signal, minibatches, trainable


def first_slot_of_even_tasks(key: tuple[int, ...]) -> bool:
    """Tasks 0 and 2 have one success in three, task 1 none, so that its advantages are 0."""
    return key[2] % 2 == 0 and key[3] == 0


@pytest.fixture(scope="module")
def learner() -> ScriptedLearner:
    return ScriptedLearner(first_slot_of_even_tasks)


@pytest.fixture
def batch(learner: ScriptedLearner) -> TensorDictBase:
    replacement = TraceReplacement(None, injection="never", refresh=False)
    tasks = [lamp_task(i) for i in range(3)]
    env = LampEnv(lamp_vector(4))
    return next(iter(GroupRolloutCollector(env, learner, tasks, groups=3, group_size=3, postproc=replacement)))


def gradient(learner: ScriptedLearner, rows: TensorDictBase, **options: Any) -> tuple[torch.Tensor, dict[str, float]]:
    """The whole gradient as one vector, from a step with learning rate 0."""
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.0)
    output = gradient_step(BEPALoss(learner), optimizer, rows, clip_norm=1e9, **options)
    return torch.cat([p.grad.flatten() for p in learner.parameters() if p.grad is not None]), output


def test_minibatches_hold_whole_groups(batch: TensorDictBase) -> None:
    parts = list(minibatches(batch, 2))
    assert [[g[0].group_id for g in groups_of(part)] for part in parts] == [[0, 1], [2]]
    assert [len(list(groups_of(part))) for part in minibatches(batch, None)] == [3]
    assert sum(part.shape[0] for part in parts) == batch.shape[0] == 3 * 3 + 2


def test_any_token_budget_gives_the_same_gradient(learner: ScriptedLearner, batch: TensorDictBase) -> None:
    whole, output = gradient(learner, batch)
    longest = max(len(row[K.PROMPT_TOKENS]) + len(row[K.RESPONSE_TOKENS]) for row in row_list(batch))
    for budget, micro_batches in ((longest, 11.0), (4 * longest, 3.0)):
        split, other = gradient(learner, batch, max_tokens=budget)
        assert other["micro_batches"] == micro_batches
        torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-7)
        assert other["loss"] == pytest.approx(output["loss"], abs=1e-6)
        assert other["units"] == output["units"]
    assert whole.norm() > 0


def test_rows_without_advantage_are_skipped_exactly(learner: ScriptedLearner, batch: TensorDictBase) -> None:
    keep = has_signal(batch, BEPALoss(learner))
    failed = {g[0].group_id for g in groups_of(batch) if all(e.reward == 0 for e in g)}
    assert len(failed) == 1
    assert keep == [int(row[K.GROUP_ID]) not in failed for row in row_list(batch)]
    everything, _ = gradient(learner, batch)
    skipped, output = gradient(learner, batch, keep=keep)
    torch.testing.assert_close(skipped, everything, rtol=1e-4, atol=1e-7)
    assert (output["rows"], output["rows_computed"]) == (11.0, 8.0)


def test_the_anchor_is_computed_and_does_not_depend_on_the_budget(batch: TensorDictBase) -> None:
    """Without advantages only the anchor has a gradient: the successes of tasks 0 and 2, one row each."""
    learner = ScriptedLearner(first_slot_of_even_tasks)
    loss = BEPALoss(learner, anchor_weight=0.5)
    rows = stack_rows(row.clone() for row in row_list(batch))
    rows.set(K.ADVANTAGE, torch.zeros(len(rows), 1, 1))
    keep = has_signal(rows, loss)
    anchor = [bool(row.get(K.RETURN) == 1) for row in row_list(rows)]
    assert keep == anchor
    longest = max(len(row[K.PROMPT_TOKENS]) + len(row[K.RESPONSE_TOKENS]) for row in row_list(rows))
    found = []
    for options in ({}, {"keep": keep}, {"keep": keep, "max_tokens": longest}):
        optimizer = torch.optim.SGD(learner.parameters(), lr=0.0)
        output = gradient_step(loss, optimizer, rows, clip_norm=1e9, **options)  # type: ignore[arg-type]
        vector = torch.cat([p.grad.flatten() for p in learner.parameters() if p.grad is not None])
        found.append((vector, output))
    for vector, output in found:
        torch.testing.assert_close(vector, found[0][0], rtol=1e-4, atol=1e-7)
        assert output["loss"] == output["loss_anchor"] == pytest.approx(found[0][1]["loss_anchor"], abs=1e-6)
        tokens = sum(len(row[K.RESPONSE_TOKENS]) for row, used in zip(row_list(rows), anchor, strict=True) if used)
        assert output["units_anchor"] == tokens
    assert found[0][0].norm() > 0
    assert [output["rows_computed"] for _, output in found] == [
        float(len(rows)),
        float(sum(anchor)),
        float(sum(anchor)),
    ]
    assert not any(has_signal(rows, BEPALoss(learner)))


def test_terms_are_computed_on_own_rows_without_an_advantage(batch: TensorDictBase) -> None:
    """With the base's log-probs the policy's own, the divergence and its gradient are 0: only the entropy is left."""
    learner = ScriptedLearner(first_slot_of_even_tasks)
    rows = stack_rows(row.clone() for row in row_list(batch))
    rows.set(K.ADVANTAGE, torch.zeros(len(rows), 1, 1))
    fill_old_log_probs(learner, row_list(rows), max_tokens=8192, key=K.BASE_LOG_PROB)
    longest = max(len(row[K.PROMPT_TOKENS]) + len(row[K.RESPONSE_TOKENS]) for row in row_list(rows))
    found = []
    for options in ({"kl_weight": 0.5}, {"entropy_weight": 0.1}):
        for budget in (8192, longest):
            loss, optimizer = BEPALoss(learner, **options), torch.optim.SGD(learner.parameters(), lr=0.0)
            keep = has_signal(rows, loss)
            assert all(keep)
            output = gradient_step(loss, optimizer, rows, keep=keep, max_tokens=budget, clip_norm=1e9)
            found.append((torch.cat([p.grad.flatten() for p in learner.parameters() if p.grad is not None]), output))
    for vector, output in found[:2]:
        assert vector.abs().max() < 1e-5
        assert output["kl_to_ref"] == pytest.approx(0.0, abs=1e-6)
    for vector, output in found[2:]:
        torch.testing.assert_close(vector, found[-1][0], rtol=1e-4, atol=1e-6)
        assert output["loss"] == pytest.approx(found[-1][1]["loss_entropy"], abs=1e-6)
    assert found[-1][0].norm() > 1e-3


def test_denominator_counts_skipped_rows(learner: ScriptedLearner, batch: TensorDictBase) -> None:
    """Z_group * G_step with G_step = 3, the group without advantage included."""
    gradient(learner, batch, keep=has_signal(batch, BEPALoss(learner)))
    for group in groups_of(batch):
        expected = 3.0 * sum(episode.tokens for episode in group)
        assert all(row[K.DENOMINATOR].tolist() == [expected] for episode in group for row in episode.rows)


def test_ratio_is_one_at_the_first_step(learner: ScriptedLearner, batch: TensorDictBase) -> None:
    _, output = gradient(learner, batch)
    assert output["ratio_mean_on_policy"] == pytest.approx(1.0, abs=1e-5)
    assert output["clip_fraction"] == 0.0


class _Trainer:
    def __init__(self, loss: BEPALoss) -> None:
        self.loss_module = loss


def test_stepper_moves_weights_counts_versions_and_resumes(batch: TensorDictBase) -> None:
    policy = ScriptedLearner(first_slot_of_even_tasks)
    parameters = trainable(policy, frozen=["visual"])
    visual = [p.clone() for n, p in policy.named_parameters() if "visual" in n]
    before = [p.detach().clone() for p in parameters]
    stepper = GroupStepper(policy, torch.optim.AdamW(parameters, lr=1e-3), clip_norm=0.5)
    out = stepper.step(_Trainer(BEPALoss(policy)), batch)  # type: ignore[arg-type]
    assert out["grad_norm"] > 0
    assert policy.version == 1
    assert any(not torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    after = [p for n, p in policy.named_parameters() if "visual" in n]
    assert all(torch.equal(a, b) for a, b in zip(visual, after, strict=True))
    metrics = stepper.drain()
    assert (metrics["optimizer_steps"], metrics["rows_computed"]) == (1.0, 8.0)
    twin = GroupStepper(policy, torch.optim.AdamW(parameters, lr=5.0))
    twin.load_state_dict(stepper.state_dict())
    assert twin.optimizer.param_groups[0]["lr"] == 1e-3
    assert twin.optimizer.state[parameters[0]]["step"] == 1


def test_step_without_any_signal_is_not_taken(learner: ScriptedLearner, batch: TensorDictBase) -> None:
    for row in row_list(batch):
        row[K.ADVANTAGE] = torch.zeros(1, 1)
    parameters = trainable(learner)
    before = [p.detach().clone() for p in parameters]
    stepper = GroupStepper(learner, torch.optim.AdamW(parameters, lr=1.0))
    stepper.step(_Trainer(BEPALoss(learner)), batch)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    assert learner.version == 0
    assert stepper.drain() == {
        "optimizer_steps": 0.0,
        "optimizer_steps_without_signal": 1.0,
        "optimizer_steps_not_finite": 0.0,
    }


def test_unknown_frozen_part_is_refused(learner: ScriptedLearner) -> None:
    with pytest.raises(ValueError, match="frozen='vision_tower' matches no parameter name"):
        trainable(learner, frozen=["vision_tower"])


def test_rows_know_their_updates_and_what_the_loss_computed(batch: TensorDictBase) -> None:
    """Two steps on all rows; those without an advantage are in them, but the loss does not compute them."""
    policy = ScriptedLearner(first_slot_of_even_tasks)
    stepper = GroupStepper(policy, torch.optim.SGD(trainable(policy), lr=1e-3))
    loss = BEPALoss(policy, keep_tokens=True)
    for _ in range(2):
        stepper.step(_Trainer(loss), batch)  # type: ignore[arg-type]
    for row in row_list(batch):
        assert row[K.UPDATES].tolist() == [1, 2]
        if bool(row[K.ADVANTAGE] == 0):
            assert K.LOG_PROB not in row
            continue
        assert row[K.LOG_PROB].shape == row[K.CLIPPED].shape == row[K.RESPONSE_TOKENS].shape
        torch.testing.assert_close(row[K.LOG_PROB], row[K.OLD_LOG_PROB], atol=0.1, rtol=0.0)
        assert not torch.equal(row[K.LOG_PROB], row[K.OLD_LOG_PROB])
        assert not row[K.CLIPPED].any()


def test_a_loss_writes_nothing_into_its_rows_unless_told_to(batch: TensorDictBase) -> None:
    policy = ScriptedLearner(first_slot_of_even_tasks)
    GroupStepper(policy, torch.optim.SGD(trainable(policy), lr=1e-3)).step(_Trainer(BEPALoss(policy)), batch)  # type: ignore[arg-type]
    assert all(K.LOG_PROB not in row for row in row_list(batch))


def test_the_distance_of_injected_traces_by_hand() -> None:
    """The injected tokens have p = e^-3 and 1, the sampled ones 1: half are below 0.2."""

    def row(off_policy: bool, log_prob: list[float]) -> TensorDict:
        data = {K.OFF_POLICY: torch.tensor([off_policy]), K.ROLLOUT_LOG_PROB: torch.tensor(log_prob)}
        return TensorDict(data | ({K.LOG_PROB: torch.tensor(log_prob)} if off_policy else {}))

    found = injected_divergence(stack_rows([row(True, [-3.0, 0.0]), row(False, [0.0])]))
    js = (0.5 * math.log(2) + 0.5 * math.log(2 / 3) + math.log(4 / 3)) / 2
    assert found == {"injected/tail_mass": 0.5, "injected/js": pytest.approx(js, abs=1e-9)}
    assert injected_divergence(stack_rows([row(False, [0.0])])) == {}
