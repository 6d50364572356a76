"""Dynamic sampling: further groups in the place of those without a signal, in the batch and in the denominators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchrl.envs.transforms import Compose

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import groups_of, row_list, stack_rows
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.rollout.dynamic_sampling import GroupsWithSignal, has_signal
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.injection import Injection
from bepa_torchrl.rollout.task_schedule import TaskSchedule
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.testing import LampEnv, ScriptedPolicy, SeedKey, lamp_task, lamp_vector

#: successes of three rollouts → whether there is a signal (without a trace, with one), per kind of injection
TABLE = {
    (True, False, False): dict.fromkeys(Injection, (True, True)),
    (True, True, True): {
        Injection.never: (False, False),
        Injection.on_failure: (False, False),
        Injection.always: (False, False),
        Injection.additional: (False, True),
    },
    (False, False, False): {
        Injection.never: (False, False),
        Injection.on_failure: (False, True),
        Injection.always: (False, True),
        Injection.additional: (False, True),
    },
}


@pytest.mark.parametrize("injection", list(Injection))
def test_which_groups_have_a_signal(injection: Injection) -> None:
    for successes, expected in TABLE.items():
        found = tuple(has_signal(successes, injection, has_trace=trace) for trace in (False, True))
        assert found == expected[injection], successes


def test_a_trace_does_not_replace_the_only_rollout() -> None:
    assert not has_signal([False], Injection.on_failure, has_trace=True)


def odd_tasks(key: SeedKey) -> bool:
    """Tasks 1 and 3 are solved by slot 0 alone; task 0 by none, task 2 by all."""
    return key[3] == 0 if key[2] % 2 else key[2] == 2


def collected(further: int, *, groups: int = 2, injection: Injection = Injection.never) -> tuple[Any, Any, Any]:
    """The batch of the first iteration, its collector and the replacement; tasks in the order 0, 2, 1, 3."""
    replacement = TraceReplacement(TaskTraceCache(), injection=injection, refresh=True)
    collector = GroupRolloutCollector(
        LampEnv(lamp_vector(3)),
        ScriptedPolicy(odd_tasks),
        [lamp_task(i) for i in range(4)],
        groups=groups,
        group_size=3,
        further=further,
        has_signal=lambda _, successes: has_signal(successes, injection, has_trace=False),
        postproc=Compose(replacement, GroupsWithSignal(groups)) if further else replacement,
    )
    collector.schedule._queue.extend([0, 2, 1, 3])
    batch = next(iter(collector))
    collector.shutdown()
    return batch, collector, replacement


def test_further_groups_take_the_place_of_those_without_a_signal() -> None:
    """0 and 2 have none; 1 and 3 take their places. All four are reported, and 2's success enters the cache."""
    batch, collector, replacement = collected(further=2)
    assert [group[0].task_id for group in groups_of(batch)] == ["lamp-1", "lamp-3"]
    assert all(bool(row[K.ADVANTAGE] != 0) for row in row_list(batch))
    metrics = collector.last.metrics()
    names = ("episodes", "groups_without_signal", "groups_further", "episodes_further")
    assert [metrics[name] for name in names] == [12.0, 2.0, 2.0, 6.0]
    assert [report.task_id for report in replacement.reports] == ["lamp-0", "lamp-2", "lamp-1", "lamp-3"]
    assert sorted(replacement.cache.task_ids()) == ["lamp-1", "lamp-2", "lamp-3"]
    loss = BEPALoss(torch.nn.Module())  # type: ignore[arg-type]
    groups = [
        sum(len(row[K.RESPONSE_TOKENS]) for episode in group for row in episode.rows) for group in groups_of(batch)
    ]
    assert sorted(set(loss.denominators(batch).flatten().tolist())) == sorted({2.0 * tokens for tokens in groups})


def test_the_bound_leaves_a_smaller_batch() -> None:
    batch, collector, _ = collected(further=1)
    assert [group[0].task_id for group in groups_of(batch)] == ["lamp-1"]
    metrics = collector.last.metrics()
    assert (metrics["groups_without_signal"], metrics["groups_further"]) == (2.0, 1.0)


def test_no_task_is_played_twice_in_an_iteration() -> None:
    """Three groups, of which one has a signal; there is one other task, whatever the bound."""
    batch, collector, _ = collected(further=9, groups=3)
    assert [group[0].task_id for group in groups_of(batch)] == ["lamp-1", "lamp-3"]
    assert collector.last.metrics()["groups_further"] == 1.0


def test_without_the_setting_nothing_is_left_out_and_no_metric_is_added() -> None:
    batch, collector, _ = collected(further=0)
    assert [group[0].task_id for group in groups_of(batch)] == ["lamp-0", "lamp-2"]
    assert "groups_further" not in collector.last.metrics()


def test_a_batch_without_any_signal_stays_as_it_would_be() -> None:
    batch, _, _ = collected(further=2)
    rows = [row.clone() for row in row_list(batch)]
    for row in rows:
        row.set(K.ADVANTAGE, torch.zeros(1, 1))
    every = GroupsWithSignal(1)(stack_rows(rows))
    assert [group[0].task_id for group in groups_of(every)] == ["lamp-1"]


def test_a_batch_has_no_more_groups_than_its_number() -> None:
    """As when a group without a signal gets one, by a trace that came after it."""
    batch, _, _ = collected(further=2)
    assert [group[0].task_id for group in groups_of(GroupsWithSignal(1)(batch))] == ["lamp-1"]


def test_a_schedule_puts_off_tasks_that_the_batch_has() -> None:
    schedule = TaskSchedule(4, seed=0)
    first = schedule.next_batch(2)
    more = schedule.next_batch(2, without=first)
    assert sorted(first + more) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="requires 3 different tasks, there are 2"):
        schedule.next_batch(3, without=first)


def test_further_groups_require_a_rule() -> None:
    with pytest.raises(ValueError, match="further=1 requires has_signal"):
        GroupRolloutCollector(
            LampEnv(lamp_vector(1)), ScriptedPolicy(odd_tasks), [lamp_task(0)], groups=1, group_size=2, further=1
        )
