"""TraceReplacement on rows in any order: grouped by id, checked, and never injected where a rollout succeeded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cache_traces import make_trace
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples
from tensordict import TensorDictBase

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import groups_of, int_entry, row_list, stack_rows
from bepa_torchrl.rollout.old_log_prob import OldLogProb
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.training.optimization_step import minibatches


def episode(group: int, slot: int, outcome: str, steps: int, *, task: int | None = None) -> list[TensorDictBase]:
    """Rows of one episode; outcome ``+`` success, ``-`` failure, ``x`` desktop failure."""
    trace = make_trace(f"task-{group if task is None else task}", steps, mark=slot, ret=float(outcome == "+"))
    rows = row_list(trace)
    for row in rows:
        row.set(K.GROUP_ID, torch.tensor(group))
        row.set(K.SLOT, torch.tensor(slot))
        if outcome == "x":
            row.set_non_tensor(K.STOP_REASON, "env_error")
    return rows


def rows_of(outcomes: list[str]) -> list[TensorDictBase]:
    """One group per entry, in order; episodes of 1 to 3 steps."""
    return [
        row
        for group, slots in enumerate(outcomes)
        for slot, outcome in enumerate(slots)
        for row in episode(group, slot, outcome, 1 + (group + slot) % 3)
    ]


def replacement(groups: int, **options: Any) -> TraceReplacement:
    cache = TaskTraceCache()
    for group in range(groups):
        cache.put(f"task-{group}", make_trace(f"task-{group}", 2, mark=9, source="self_rolled"))
    return TraceReplacement(cache, **options)


def table(batch: TensorDictBase) -> list[tuple[Any, ...]]:
    return [
        (
            *(int_entry(row, key) for key in (K.GROUP_ID, K.SLOT, K.STEP)),
            *(row[key] for key in (K.TASK_ID, K.SOURCE)),
            round(float(row.get(K.ADVANTAGE)), 5),
            bool(row.get(K.OFF_POLICY)),
        )
        for row in row_list(batch)
    ]


outcomes_of_groups = st.lists(st.text("+-x", min_size=1, max_size=4), min_size=1, max_size=4)


@examples(40)
@given(outcomes=outcomes_of_groups, data=st.data())
def test_the_order_of_rows_changes_nothing(outcomes: list[str], data: st.DataObject) -> None:
    rows = rows_of(outcomes)
    order = data.draw(st.permutations(range(len(rows))))
    expected = replacement(len(outcomes))
    shuffled = replacement(len(outcomes))
    wanted = table(expected(stack_rows(rows_of(outcomes))))
    assert table(shuffled(stack_rows(rows[i] for i in order))) == wanted
    assert shuffled.reports == expected.reports
    assert shuffled.cache is not None
    assert expected.cache is not None
    assert shuffled.cache.stats() == expected.cache.stats()


@examples(40)
@given(outcomes=outcomes_of_groups, data=st.data())
def test_every_group_is_finalised_by_the_rule(outcomes: list[str], data: st.DataObject) -> None:
    """If all of two or more failed, one trace is injected, the only success; else none. Advantages sum to 0."""
    rows = rows_of(outcomes)
    order = data.draw(st.permutations(range(len(rows))))
    finalised = {g[0].group_id: g for g in groups_of(replacement(len(outcomes))(stack_rows(rows[i] for i in order)))}
    for group, slots in enumerate(outcomes):
        valid = slots.replace("x", "")
        if not valid:
            assert group not in finalised
            continue
        members = finalised[group]
        assert len(members) == len(valid)
        injected = [bool(member.rows[0].get(K.OFF_POLICY)) for member in members]
        traces = 1 if len(valid) > 1 and "+" not in valid else 0
        assert sum(injected) == traces
        assert sum(member.reward for member in members) == valid.count("+") + traces
        assert sum(float(member.rows[0].get(K.ADVANTAGE)) for member in members) == pytest.approx(0.0, abs=1e-5)
        for member in members:
            assert [int_entry(row, K.STEP) for row in member.rows] == list(range(len(member.rows)))


def test_interleaved_groups_stay_two_groups() -> None:
    """Rows of groups 0, 1, 0, 1: group 0 has a success, so that only group 1 gets its trace."""
    rows = [
        row for parts in (episode(0, 0, "-", 1), episode(1, 0, "-", 1), episode(0, 1, "+", 1), episode(1, 1, "-", 1))
        for row in parts
    ]  # fmt: skip
    transform = replacement(2)
    transform(stack_rows(rows))
    assert [(r.group_id, r.valid, r.successes, r.injected) for r in transform.reports] == [
        (0, 2, 1, None),
        (1, 2, 0, "self_rolled"),
    ]


def test_batch_of_desktop_failures_only_is_an_empty_batch() -> None:
    transform = replacement(2)
    out = OldLogProb(policy=None)(transform(stack_rows(rows_of(["xx", "x"]))))  # type: ignore[arg-type]
    assert out.batch_size == torch.Size([0])
    assert list(minibatches(out, None)) == list(minibatches(out, 2)) == []
    assert [(report.valid, report.injected) for report in transform.reports] == [(0, None), (0, None)]


def changed(rows: list[TensorDictBase], index: int, key: str, value: int) -> list[TensorDictBase]:
    rows[index].set(key, torch.tensor(value))
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda: episode(0, 0, "-", 1) + episode(0, 1, "-", 1, task=5), "group 0 has rows of 2 tasks, 'task-0' and"),
        (lambda: episode(0, 0, "-", 3)[:2], r"slot 0: expected the whole episode.*got steps \[0, 1\] with n_steps \[3"),
        (lambda: episode(0, 0, "-", 3)[1:], r"got steps \[1, 2\]"),
        (lambda: episode(0, 0, "-", 1) + episode(0, 0, "-", 1), r"got steps \[0, 0\].*unique slots"),
        (lambda: changed(episode(0, 0, "-", 2), 1, K.N_STEPS, 4), r"n_steps \[2, 4\]"),
    ],
)
def test_rows_of_incomplete_groups_are_refused_before_the_cache_changes(rows: Any, message: str) -> None:
    transform = replacement(1)
    with pytest.raises(ValueError, match=message):
        transform(stack_rows([*episode(7, 0, "+", 1), *rows()]))
    assert transform.cache is not None
    assert transform.cache.stats()["refreshes"] == 0


def test_rows_without_their_ids_are_refused() -> None:
    (row,) = episode(0, 0, "-", 1)
    with pytest.raises(KeyError, match="missing: n_steps"):
        replacement(1)(stack_rows([row.exclude(K.N_STEPS)]))
