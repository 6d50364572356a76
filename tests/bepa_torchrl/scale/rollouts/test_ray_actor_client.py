"""Calls of actors that do not answer: what is logged while they are waited for, and the error in the end."""

from __future__ import annotations

from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from bepa_torchrl.scale.rollouts import ray_cluster
from bepa_torchrl.scale.rollouts.ray_cluster import ActorClient
from osworld_gym.errors import DesktopError, FailureReason

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


class Method:
    def remote(self, *_: Any) -> str:
        return "reference"


class Actor:
    describe = next_group = Method()


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The deadlines of the calls of ``ray.get``, none of which is answered until 130 s were waited."""
    waited: list[float] = []

    def get(reference: str, *, timeout: float) -> str:
        waited.append(timeout)
        if sum(waited) < 130.0:
            raise GetTimeoutError
        return reference

    monkeypatch.setattr(ray_cluster.ray, "get", get)
    return waited


def test_a_call_that_is_waited_for_is_logged_every_minute(
    waited: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    assert ActorClient(Actor(), 300.0, name="the queue's actor").describe() == "reference"
    assert waited == [60.0, 60.0, 60.0]
    assert [record.getMessage() for record in caplog.records] == [
        f"the queue's actor has not answered describe for {seconds} s; it may be starting again, and is waited for "
        "for 300 s in all"
        for seconds in (60, 120)
    ]


def test_an_actor_without_an_answer_is_an_error_with_its_name_and_the_fix(waited: list[float]) -> None:
    client = ActorClient(Actor(), 85.0, "; look at its log", name="the queue's actor")
    with pytest.raises(DesktopError) as raised:
        client.next_group(5.0)
    assert raised.value.reason is FailureReason.hung
    assert str(raised.value) == "hung: the queue's actor did not answer next_group in 90 s; look at its log"
    assert waited == [60.0, 30.0]


def test_nothing_is_logged_of_an_actor_whose_calls_may_take_long(
    waited: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    assert ActorClient(Actor(), 300.0).describe() == "reference"
    assert waited == [300.0]
    assert not caplog.records
