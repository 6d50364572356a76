"""Metrics of an optimiser step cover all of its rows, or have a name that states which."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import groups_of, row_list, stack_rows
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.testing import LampEnv, ScriptedLearner, SeedKey, lamp_task, lamp_vector
from bepa_torchrl.training.optimization_step import GroupStepper, gradient_step, has_signal, sampled_by
from bepa_torchrl.training.step_metrics import over_all_rows, rows_with_signal

#: three on-policy tokens with ratios 2, 0.5 and 1, and one injected token with ratio 1; one of the four is clipped
MEASURED = {
    "loss_objective": 0.7,
    "clip_fraction": 1 / 4,
    "kl_approx": ((2 - 1 - log(2)) + (0.5 - 1 - log(0.5)) + 0) / 3,
    "ESS": 4.5**2 / (4 * (4 + 0.25 + 1 + 1)),
    "units": 4.0,
    "units_off_policy": 1.0,
    "off_policy_fraction": 1 / 4,
    "ratio_mean_on_policy": 3.5 / 3,
    "ratio_max_on_policy": 2.0,
    "ratio_mean_off_policy": 1.0,
    "ratio_max_off_policy": 1.0,
    "log_prob_on_policy": -0.5,
    "log_prob_off_policy": -2.0,
}


def skipped_rows() -> TensorDictBase:
    """Two rows without advantage: five sampled tokens and three injected ones."""
    rows = [
        TensorDict({K.RESPONSE_TOKENS: torch.zeros(length, dtype=torch.int64), K.OFF_POLICY: torch.tensor([off])})
        for length, off in ((5, False), (3, True))
    ]
    return stack_rows(rows)


def test_ratio_one_of_skipped_tokens_enters_at_the_old_policy() -> None:
    """12 tokens in all, 8 of them on policy; sum r = 4.5 + 8, sum r^2 = 6.25 + 8."""
    assert over_all_rows(MEASURED, skipped_rows(), unit="token", at_old_policy=True) == pytest.approx(
        {
            "loss_objective": 0.7,
            "clip_fraction": 1 / 12,
            "kl_approx": 0.5 / 8,
            "ESS": 12.5**2 / (12 * 14.25),
            "units": 12.0,
            "units_off_policy": 4.0,
            "off_policy_fraction": 4 / 12,
            "ratio_mean_on_policy": 8.5 / 8,
            "ratio_max_on_policy": 2.0,
            "ratio_mean_off_policy": 1.0,
            "ratio_max_off_policy": 1.0,
        }
    )


def test_after_an_update_only_what_is_known_exactly_is_over_all_rows() -> None:
    """A step is one unit: 4 measured units and 2 skipped ones. Ratios of the skipped rows are not known."""
    assert over_all_rows(MEASURED, skipped_rows(), unit="step", at_old_policy=False) == pytest.approx(
        {
            "loss_objective": 0.7,
            "clip_fraction": 1 / 6,
            "units": 6.0,
            "units_off_policy": 2.0,
            "off_policy_fraction": 2 / 6,
        }
    )
    assert rows_with_signal(MEASURED)["kl_approx_rows_with_signal"] == MEASURED["kl_approx"]
    assert "clip_fraction_rows_with_signal" not in rows_with_signal(MEASURED)


def one_of_three_in_even_tasks(key: SeedKey) -> bool:
    """Task 1 has no success, so that its rows have no signal."""
    return key[2] % 2 == 0 and key[3] == 0


@pytest.fixture
def policy() -> ScriptedLearner:
    return ScriptedLearner(one_of_three_in_even_tasks)


@pytest.fixture
def batch(policy: ScriptedLearner) -> TensorDictBase:
    replacement = TraceReplacement(None, injection="never", refresh=False)
    tasks = [lamp_task(i) for i in range(3)]
    env = LampEnv(lamp_vector(4))
    return next(iter(GroupRolloutCollector(env, policy, tasks, groups=3, group_size=3, postproc=replacement)))


def step(policy: ScriptedLearner, rows: TensorDictBase, **options: Any) -> dict[str, float]:
    """The scalars of a step with learning rate 0."""
    return gradient_step(BEPALoss(policy), torch.optim.SGD(policy.parameters(), lr=0.0), rows, **options)


def test_first_step_has_the_metrics_of_a_pass_over_all_rows(policy: ScriptedLearner, batch: TensorDictBase) -> None:
    keep = has_signal(batch, BEPALoss(policy))
    assert sum(keep) < len(keep)
    computed = step(policy, batch)
    known = step(policy, batch, keep=keep, at_old_policy=sampled_by(batch, policy.version))
    names = computed.keys() - {"rows_computed", "tokens_computed", "micro_batches", "log_prob_on_policy"}
    assert {n: known[n] for n in names} == pytest.approx({n: computed[n] for n in names}, rel=1e-4, abs=1e-5)
    assert "log_prob_on_policy" not in known
    assert known["units"] > sum(
        len(r[K.RESPONSE_TOKENS]) for r, wanted in zip(row_list(batch), keep, strict=True) if wanted
    )


def test_later_steps_name_their_denominator(policy: ScriptedLearner, batch: TensorDictBase) -> None:
    """Old log-probs 0.1 nats too low on every row stand for moved weights: every ratio is e^0.1."""
    for row in row_list(batch):
        row.set(K.OLD_LOG_PROB, row.get(K.OLD_LOG_PROB) - 0.1)
    assert sampled_by(batch, policy.version)
    assert not sampled_by(batch, policy.version + 1)
    later = step(policy, batch, keep=has_signal(batch, BEPALoss(policy)), at_old_policy=False)
    assert "kl_approx" not in later
    assert later["kl_approx_rows_with_signal"] == pytest.approx(0.1**2 / 2, rel=0.1)
    everything = step(policy, batch)
    for name in ("units", "clip_fraction", "off_policy_fraction", "units_off_policy"):
        assert later[name] == pytest.approx(everything[name])


def test_iteration_leaves_out_what_one_of_its_steps_does_not_know(
    policy: ScriptedLearner, batch: TensorDictBase
) -> None:
    class Trainer:
        loss_module = BEPALoss(policy)

    stepper = GroupStepper(policy, torch.optim.SGD(policy.parameters(), lr=1e-3))
    stepper.step(Trainer(), batch)  # type: ignore[arg-type]
    first = stepper.drain()
    assert first["kl_approx"] == pytest.approx(0.0, abs=1e-6)
    assert len(list(groups_of(batch))) == 3
    policy.version = 0
    for _ in range(2):  # the second one has other weights than the batch's policy
        stepper.step(Trainer(), batch)  # type: ignore[arg-type]
    both = stepper.drain()
    assert both["optimizer_steps"] == 2.0
    assert "kl_approx" not in both
    assert "kl_approx_rows_with_signal" in both
    assert both["units"] == first["units"]
