"""Nodes whose workers fail in a row are left out for a while; a success or time ends the count."""

from __future__ import annotations

import pytest

from bepa_torchrl.scale.rollouts.pool.nodes import MAX_FAILURES, NodeFailures


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_node_is_left_out_after_failures_in_a_row_and_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    nodes = NodeFailures(forgive_after=600.0, clock=clock)
    for number in range(MAX_FAILURES):
        assert nodes.left_out() == {}
        nodes.failed("bad", f"problem {number}")
    nodes.failed("other", "once")
    assert nodes.left_out() == {"bad": "problem 2"}
    (report,) = [record.getMessage() for record in caplog.records]
    assert report == (
        "node bad is left out for 10 minutes: 3 workers in a row could not start, or had no desktop that works; the "
        "last one problem 2"
    )
    clock.now = 599.0
    assert nodes.left_out() == {"bad": "problem 2"}
    clock.now = 600.0
    assert nodes.left_out() == {}


def test_unrelated_failures_over_weeks_leave_no_node_out() -> None:
    clock = Clock()
    nodes = NodeFailures(forgive_after=600.0, clock=clock)
    for _ in range(5 * MAX_FAILURES):
        nodes.failed("good", "a full disk")
        clock.now += 600.0
    assert nodes.left_out() == {}


def test_a_success_ends_the_count() -> None:
    nodes = NodeFailures()
    for _ in range(5):
        for _ in range(MAX_FAILURES - 1):
            nodes.failed("good", "a short outage")
        nodes.succeeded("good")
    assert nodes.left_out() == {}
