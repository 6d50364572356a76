"""GroupRolloutCollector: complete groups of one policy version, tasks without replacement, failed groups requeued."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import groups_of, row_list
from bepa_torchrl.rollout import group_collector
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.task_schedule import TaskSchedule
from bepa_torchrl.testing import LampEnv, ScriptedPolicy, lamp_task, lamp_vector, summary
from osworld_gym.errors import DesktopError, FailureReason


def collector_of(policy: ScriptedPolicy, *, tasks: int = 4, num: int = 3, **options: Any) -> GroupRolloutCollector:
    settings: dict[str, Any] = {"groups": 2, "group_size": 3, "seed": 5} | options
    return GroupRolloutCollector(LampEnv(lamp_vector(num)), policy, [lamp_task(i) for i in range(tasks)], **settings)


def batches(collector: GroupRolloutCollector, count: int) -> list[Any]:
    iterator = iter(collector)
    return [next(iterator) for _ in range(count)]


def test_batch_is_whole_groups_in_group_slot_step_order() -> None:
    collector = collector_of(ScriptedPolicy(lambda key: key[3] == 2))
    (batch,) = batches(collector, 1)
    found = [(int(r[K.GROUP_ID]), int(r[K.SLOT]), int(r[K.STEP])) for r in row_list(batch)]
    assert found == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 2, 1), (1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 2, 1)]
    for group in groups_of(batch):
        assert len({episode.task_id for episode in group}) == 1
        assert [episode.reward for episode in group] == [0.0, 0.0, 1.0]
    assert collector.last is not None
    metrics = collector.last.metrics()
    assert metrics["success"] == pytest.approx(1 / 3)
    assert (metrics["entropy"], metrics["log_prob_success"]) == (0.5, -0.5)
    assert (metrics["episodes"], metrics["steps"], metrics["stop_finished"]) == (6.0, 8.0, 6.0)
    collector.shutdown()


def test_an_epoch_plays_every_task_once_and_group_ids_never_repeat() -> None:
    collector = collector_of(ScriptedPolicy(lambda _: False))
    groups = [g for batch in batches(collector, 4) for g in groups_of(batch)]
    tasks = [g[0].task_id for g in groups]
    assert sorted(tasks[:4]) == sorted(tasks[4:]) == [f"lamp-{i}" for i in range(4)]
    assert [g[0].group_id for g in groups] == list(range(8))
    collector.shutdown()


@pytest.mark.parametrize(("env_seed", "different"), [("group", 1), ("slot", 3)])
def test_env_seed_is_shared_by_the_group_or_differs_per_slot(env_seed: str, different: int) -> None:
    collector = collector_of(ScriptedPolicy(lambda _: False), env_seed=env_seed)
    (batch,) = batches(collector, 1)
    for group in groups_of(batch):
        assert len({episode.rows[0][K.SCREENSHOT] for episode in group}) == different
    collector.shutdown()


def test_number_of_desktops_changes_nothing() -> None:
    wins = lambda key: (key[1] + key[2] + key[3]) % 2 == 0  # noqa: E731
    one, many = (collector_of(ScriptedPolicy(wins), num=num) for num in (1, 6))
    first, second = batches(one, 3), batches(many, 3)
    assert [summary(b) for b in first] == [summary(b) for b in second]
    assert [r[K.SCREENSHOT] for b in first for r in row_list(b)] == [
        r[K.SCREENSHOT] for b in second for r in row_list(b)
    ]


def test_restored_collector_goes_on_like_the_uninterrupted_one() -> None:
    wins = lambda key: (key[1] + key[2] + key[3]) % 2 == 0  # noqa: E731
    whole = collector_of(ScriptedPolicy(wins))
    expected = [summary(b) for b in batches(whole, 5)]
    first = collector_of(ScriptedPolicy(wins))
    batches(first, 3)
    state = first.state_dict()
    second = collector_of(ScriptedPolicy(wins))
    second.load_state_dict(state)
    assert [summary(b) for b in batches(second, 2)] == expected[3:]


def test_group_with_one_valid_rollout_is_requeued_and_counted() -> None:
    """Task 0 always breaks its desktop: its group is requeued; after four attempts it is left out for the epoch."""
    tasks = [lamp_task(0, infected=True), lamp_task(1), lamp_task(2)]
    policy = ScriptedPolicy(lambda _: True)
    collector = GroupRolloutCollector(LampEnv(lamp_vector(2)), policy, tasks, groups=2, group_size=2, seed=1, retries=0)
    seen = []
    for _, batch in zip(range(6), collector, strict=False):
        assert collector.last is not None
        seen.append((len(list(groups_of(batch))), collector.last.requeued))
        assert "lamp-0" not in {row[K.TASK_ID] for row in row_list(batch)}
    assert all(groups == 2 - len(back) for groups, back in seen)
    assert sum(bool(back) for _, back in seen) >= 4
    assert collector.requeues[0] == sum(bool(back) for _, back in seen)


def test_a_group_that_was_collected_gives_its_task_all_attempts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that loses a group now and then is never left out: four attempts in a row are."""
    collector = GroupRolloutCollector(
        LampEnv(lamp_vector(2)), ScriptedPolicy(lambda _: True), [lamp_task(0)], groups=1, group_size=2
    )
    play, lost = group_collector.run_episodes, Counter[int]()

    def lose_every_second(*given: Any, **options: Any) -> list[EpisodeResult]:
        results = play(*given, **options)
        if collector.iteration % 2:
            return results
        lost["groups"] += 1
        return [replace(result, rows=None, failure=FailureReason.died) for result in results]

    monkeypatch.setattr(group_collector, "run_episodes", lose_every_second)
    for iteration in range(10):
        if iteration % 2:
            collector.rollout()
            assert collector.requeues == {}
        else:
            with pytest.raises(DesktopError):
                collector.rollout()
            assert collector.requeues == {0: 1}
    assert lost["groups"] == 5


def test_no_valid_group_at_all_is_an_infrastructure_error() -> None:
    tasks = [lamp_task(0, infected=True), lamp_task(1, infected=True)]
    env = LampEnv(lamp_vector(2))
    collector = GroupRolloutCollector(env, ScriptedPolicy(lambda _: True), tasks, groups=2, group_size=2, retries=0)
    with pytest.raises(DesktopError, match="setup_failed: no group of 2 had two valid rollouts"):
        batches(collector, 1)


def test_smaller_group_where_a_slot_is_kept_free() -> None:
    collector = collector_of(ScriptedPolicy(lambda _: True), size_of=lambda task: 2 if task.id == "lamp-1" else 3)
    sizes = {g[0].task_id: len(g) for batch in batches(collector, 2) for g in groups_of(batch)}
    assert sizes == {"lamp-0": 3, "lamp-1": 2, "lamp-2": 3, "lamp-3": 3}


def test_postproc_gets_the_whole_batch() -> None:
    def mark(batch: Any) -> Any:
        assert len(list(groups_of(batch))) == 2
        for row in row_list(batch):
            row[K.ADVANTAGE] = torch.zeros(1, 1)
        return batch

    (batch,) = batches(collector_of(ScriptedPolicy(lambda _: True), postproc=mark), 1)
    assert all(row[K.ADVANTAGE].shape == (1, 1) for row in row_list(batch))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 1}, "group_size: expected an integer >= 2, since one rollout has no group .*, got 1"),
        ({"group_size": 2.0}, "group_size: expected an integer >= 2, .*, got 2.0"),
        ({"groups": 0}, "groups: expected an integer >= 1, got 0"),
        ({"groups": True}, "groups: expected an integer >= 1, got True"),
        ({"retries": -1}, "retries: expected an integer >= 0, got -1"),
        ({"retries": 1.5}, "retries: expected an integer >= 0, got 1.5"),
        ({"further": 0.5}, "further: expected an integer >= 0, got 0.5"),
        ({"seed": "1"}, "seed: expected an integer >= 0, got '1'"),
        ({"groups": 5}, "5 groups require 5 different tasks, got 4; lower collect.groups"),
        ({"env_seed": "task"}, "env_seed must be 'group' or 'slot', got 'task'"),
        ({"tasks": 0}, "no task left"),
    ],
)
def test_bad_settings_are_refused_with_a_fix(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        collector_of(ScriptedPolicy(lambda _: True), **options)


def test_a_seed_after_the_construction_is_refused() -> None:
    """As of ``Trainer(seed=...)``: the seeds of the rollouts would not change."""
    with pytest.raises(NotImplementedError, match=r"constructor's seed, which is 5, got seed=3 .* seed=3, and a Train"):
        collector_of(ScriptedPolicy(lambda _: True)).set_seed(3)


def test_schedule_never_deals_a_task_twice_in_a_batch() -> None:
    schedule = TaskSchedule(5, seed=3)
    dealt = [schedule.next_batch(3) for _ in range(10)]
    assert all(len(set(batch)) == 3 for batch in dealt)
    counts = [sum(n in batch for batch in dealt) for n in range(5)]
    assert counts == [6] * 5


def test_schedule_of_another_run_is_refused() -> None:
    with pytest.raises(ValueError, match="this schedule has 4 tasks and seed 1, the checkpoint's has 5 and 1"):
        TaskSchedule(4, 1).load_state_dict(TaskSchedule(5, 1).state_dict())
