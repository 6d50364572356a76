"""Which tasks are self-rolled again during training."""

import pytest
from cache_traces import make_trace

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.experts.reroll import is_due


@pytest.mark.parametrize(
    ("task_id", "stale_after", "due"),
    [
        ("none", None, True),
        ("none", 5, True),
        ("old", None, False),
        ("old", 9, False),  # sampled 8 optimiser steps ago
        ("old", 8, True),
        ("new", 8, False),
        ("new", 1, False),  # by the current policy
    ],
)
def test_a_task_is_due_without_a_trace_or_with_one_that_is_old(task_id: str, stale_after: int | None, due: bool):
    cache = TaskTraceCache()
    cache.put("old", make_trace("old", version=4))
    cache.put("new", make_trace("new", version=12))
    assert is_due(cache, task_id, 12, stale_after) is due
