"""Old log-probs are computed for exactly the rows whose old log-probs the method's loss reads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.data.step_rows import groups_of, row_list, stack_rows
from bepa_torchrl.experiment import factory
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.factory import make_cache, make_trainer
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.methods import METHODS, method_named
from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.old_log_prob import fill_old_log_probs
from bepa_torchrl.testing import LampEnv, ScriptedLearner, SeedKey, lamp_task, lamp_vector
from osworld_gym.types import PromptContext

Position = tuple[int, int, int]
REINFORCED = [name for name, algo in METHODS.items() if algo.rl]
READS_INJECTED = {"bepa", "replacement", "level1", "level2", "arpo"}


def position(row: TensorDictBase) -> Position:
    """Group, slot and step of a row."""
    return int(row[K.GROUP_ID]), int(row[K.SLOT]), int(row[K.STEP])


def one_task_is_solved(key: SeedKey) -> bool:
    """One rollout of task 0 succeeds, none of task 1, so that every kind of injection has its group."""
    return key[2] == 0 and key[3] == 0


@pytest.fixture(scope="module")
def traces() -> TaskTraceCache:
    """A successful trace of each task."""
    tasks = [lamp_task(i) for i in range(2)]
    collector = GroupRolloutCollector(
        LampEnv(lamp_vector(2)), ScriptedLearner(lambda _: True), tasks, groups=2, group_size=2
    )
    cache = TaskTraceCache(traces_per_task=8)
    for group in groups_of(next(iter(collector))):
        cache.put(group[0].task_id, stack_rows(group[0].rows))
    collector.shutdown()
    return cache


def collected(
    name: str, traces: TaskTraceCache, *overrides: str, lora: Lora | None = None, plans: dict[str, str] | None = None
) -> tuple[list[TensorDictBase], set[Position], Any]:
    """The rows of one iteration, the positions of those that were scored, and the trainer."""
    settings = load_config(["algo=" + name, "collect.groups=2", "collect.group_size=3", *overrides])
    algo, policy = method_named(name), ScriptedLearner(one_task_is_solved, lora=lora)
    tasks = [lamp_task(i) for i in range(2)]
    cache = make_cache(settings, algo, traces)
    trainer = make_trainer(settings, algo, policy, LampEnv(lamp_vector(4)), tasks, cache, plans=plans)
    scored: list[Position] = []
    get_dist = policy.get_dist

    def counted(rows: TensorDictBase, *args: Any, **kwargs: Any) -> Any:
        scored.extend(position(row) for row in row_list(rows))
        return get_dist(rows, *args, **kwargs)

    policy.get_dist = counted  # type: ignore[method-assign]
    batch = next(iter(trainer.collector))
    policy.get_dist = get_dist  # type: ignore[method-assign]
    assert plans or len(scored) == len(set(scored))
    return row_list(batch), set(scored), trainer


def read_by(loss: BEPALoss, rows: list[TensorDictBase]) -> set[Position]:
    """The rows whose old log-probs the loss reads: it refuses NaN there."""
    batch = stack_rows(rows)
    batch.set(K.DENOMINATOR, loss.denominators(batch))
    read = set()
    for row in row_list(batch):
        spoilt = row.clone()
        spoilt.set(K.OLD_LOG_PROB, torch.full_like(row.get(K.OLD_LOG_PROB), math.nan))
        try:
            loss(stack_rows([spoilt]))
        except ValueError as error:
            assert "must be finite" in str(error)  # noqa: PT017 - both outcomes are results here
            read.add(position(row))
    return read


@pytest.mark.parametrize("name", REINFORCED)
def test_scored_rows_are_those_that_the_loss_reads(name: str, traces: TaskTraceCache) -> None:
    rows, scored, trainer = collected(name, traces, "train.old_log_probs=all", "train.minibatch_groups=1")
    everything = {position(row) for row in rows}
    injected = {position(row) for row in rows if bool(row[K.OFF_POLICY])}
    assert bool(injected) == (name not in ("grpo", "sft_rl", "sft_self_rl", "prefix"))
    assert scored == read_by(trainer.loss_module, rows)
    assert scored == (everything if name in READS_INJECTED else everything - injected)


@pytest.mark.parametrize("name", REINFORCED)
def test_samplers_log_probs_leave_only_injected_rows_to_score(name: str, traces: TaskTraceCache) -> None:
    rows, scored, trainer = collected(name, traces, "train.old_log_probs=injected", "train.minibatch_groups=1")
    injected = {position(row) for row in rows if bool(row[K.OFF_POLICY])}
    assert scored == read_by(trainer.loss_module, rows) & injected
    assert scored == (injected if name in READS_INJECTED else set())


@pytest.mark.parametrize("name", ["bepa", "luffy", "rl_sft"])
def test_single_optimizer_step_scores_nothing_and_has_the_same_loss(name: str, traces: TaskTraceCache) -> None:
    rows, scored, one = collected(name, traces, "train.old_log_probs=all", "train.minibatch_groups=2")
    assert scored == read_by(one.loss_module, rows) == set()
    others, _, several = collected(name, traces, "train.old_log_probs=all", "train.inner_epochs=2")
    losses = []
    for trainer, part in ((one, rows), (several, others)):
        trainer.stepper.step(trainer, stack_rows(part))
        losses.append(trainer.stepper.drain()["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("override", ["train.inner_epochs=2", "train.minibatch_groups=1"])
def test_several_optimizer_steps_read_stored_log_probs(override: str, traces: TaskTraceCache) -> None:
    _, scored, trainer = collected("grpo", traces, "train.old_log_probs=all", override)
    assert trainer.loss_module.old_policy == "stored"
    assert scored


@pytest.mark.parametrize("lora", [None, Lora(rank=4, alpha=8)], ids=["copy", "adapters"])
def test_the_bases_log_probs_are_stored_with_own_rows_only(
    traces: TaskTraceCache, lora: Lora | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without adapters by a second copy of the model, with them by the policy without them."""
    monkeypatch.setattr(factory, "make_policy", lambda *_, **__: ScriptedLearner(one_task_is_solved))
    overrides = ["loss.kl_weight=0.1", *(["policy.lora.rank=4"] if lora else [])]
    rows, _, trainer = collected("bepa", traces, *overrides, lora=lora)
    base = ScriptedLearner(one_task_is_solved)
    own = [row for row in rows if not bool(row[K.OFF_POLICY])]
    assert len(own) < len(rows)
    assert all(bool(torch.isnan(row[K.BASE_LOG_PROB]).all()) for row in rows if bool(row[K.OFF_POLICY]))
    found = [row[K.BASE_LOG_PROB].clone() for row in own]
    fill_old_log_probs(base, own, max_tokens=8192, key=K.BASE_LOG_PROB)
    for row, values in zip(own, found, strict=True):
        torch.testing.assert_close(values, row[K.BASE_LOG_PROB], atol=1e-5, rtol=0)
    assert trainer.loss_module.kl_weight == 0.1


def test_log_probs_with_the_plan_are_those_of_the_prompt_with_it(traces: TaskTraceCache) -> None:
    """Task 0 has a plan, task 1 has none and gets an injected trace; the prompts to train on stay as they are."""
    plans = {"lamp-0": "1. Press the lamp."}
    rows, scored, trainer = collected("bepa", traces, "loss.distill_weight=0.1", plans=plans)
    policy = ScriptedLearner(one_task_is_solved)
    assert {bool(torch.isfinite(row[K.PLAN_LOG_PROB]).all()) for row in rows if row[K.TASK_ID] == "lamp-1"} == {False}
    planned = [row for row in rows if row[K.TASK_ID] == "lamp-0"]
    assert {position(row) for row in planned} <= scored
    first = next(row for row in planned if int(row[K.STEP]) == 0)
    context = PromptContext(first[K.INSTRUCTION], (first[K.SCREENSHOT],), plan=plans["lamp-0"])
    (prompt,) = policy.render([context])
    assert prompt is not None
    with torch.no_grad():
        (by_hand,), _ = policy.response_log_probs([prompt], [first[K.RESPONSE_TOKENS]])
        (without,), _ = policy.response_log_probs(
            [Prompt(first[K.PROMPT_TOKENS], first[K.IMAGES])], [first[K.RESPONSE_TOKENS]]
        )
    torch.testing.assert_close(first[K.PLAN_LOG_PROB], by_hand, atol=1e-5, rtol=0)
    torch.testing.assert_close(without, policy.log_prob(stack_rows([first]))[0].detach(), atol=1e-5, rtol=0)
    assert (without - by_hand).abs().max() > 1e-4
    loss = trainer.loss_module
    assert loss.distill_rows(stack_rows(rows)).tolist() == [row[K.TASK_ID] == "lamp-0" for row in rows]
    with pytest.raises(ValueError, match=r"distill_weight=0\.1 requires the experts' plans, got none"):
        collected("bepa", traces, "loss.distill_weight=0.1")
