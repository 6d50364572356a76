"""Routing: an episode stays where its prefix is, unless that service is far more loaded than others, or lost."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from polling import until

from benchmarks.routing import Load, simulate
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.rollout.group_collector import RolloutSeeds
from bepa_torchrl.scale.engine.errors import EngineError
from bepa_torchrl.scale.rollouts.env_worker import EnvWorker, RolloutPlan
from bepa_torchrl.scale.rollouts.queue_service import QueueService
from bepa_torchrl.scale.rollouts.rollout_service import RolloutService
from bepa_torchrl.scale.rollouts.routing import LATE_SECONDS, Service, ServiceRouter, choose, routing_metrics
from bepa_torchrl.testing import ScriptedPolicy, lamp_task, lamp_vector
from osworld_gym.errors import DesktopError, FailureReason


@pytest.mark.parametrize(
    ("loads", "home", "preferred", "slack", "expected"),
    [
        ([3, 0, 2], None, 1, 2, 1),  # the first turn: the group's service
        ([3, 0, 2], None, 0, 2, 1),  # which has 3 more than the least loaded one, and may have 2
        ([2, 0, 2], None, 0, 2, 0),
        ([5, 1, 3], 0, 2, 4, 0),  # 4 more: just allowed
        ([6, 1, 3], 0, 2, 4, 2),  # not any more: the group's service has others of the group
        ([6, 1, 6], 0, 2, 4, 1),  # neither: the least loaded one
        ([None, 4, 1], 0, 1, 4, 1),  # home is away
        ([2, None, 1], None, 1, 4, 2),  # the group's service is away: the next one, for all of the group
        ([4, 1, 1, 1], 0, 2, 0, 2),  # of equal loads the first from the group's service on
        ([1, 1], 1, 0, 0, 1),
        ([None, None], 0, 1, 4, None),
    ],
)
def test_the_service_of_a_turn(
    loads: Sequence[int | None], home: int | None, preferred: int, slack: int, expected: int | None
) -> None:
    assert choose(loads, home=home, preferred=preferred, slack=slack) == expected


class FakeService:
    """A service whose load is set by the test; ``failing`` is what its calls raise."""

    def __init__(self) -> None:
        self.load: int | None = 0
        self.answers = True
        self.failing: Exception | None = None
        self.turns = self.asked = 0

    def service(self) -> Service:
        client: Any = _FakeClient(self)
        return Service(client, self.requests)

    def exit(self, back: float = float("inf")) -> None:
        """Exits, and answers again at a time."""
        self.failing, self.load = DesktopError(FailureReason.died, "an actor has exited"), None
        self._back = back

    def pass_time(self, now: float) -> None:
        if self.failing is not None and now >= self._back:
            self.failing, self.load = None, 0

    def requests(self) -> Future[int | None]:
        report: Future[int | None] = Future()
        if self.answers:
            report.set_result(self.load)
        return report


class _FakeClient:
    def __init__(self, service: FakeService) -> None:
        self._service = service

    def render(self, contexts: Sequence[Any]) -> list[Prompt | None]:
        return [Prompt(torch.tensor([1]), ()) for _ in contexts]

    def sample(self, prompts: Sequence[Prompt], keys: Any, temperature: float) -> tuple[list[Response], int]:
        del keys, temperature
        self._service.asked += 1
        if self._service.failing is not None:
            raise self._service.failing
        self._service.turns += 1
        return [Response("", torch.tensor([1]), torch.tensor([0.0])) for _ in prompts], 0


def make_router(number: int, slack: int = 2) -> tuple[list[FakeService], ServiceRouter, list[float]]:
    services, now = [FakeService() for _ in range(number)], [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds
        for each in services:
            each.pass_time(now[0])

    router = ServiceRouter(
        [each.service() for each in services], slack=slack, seconds=100.0, clock=lambda: now[0], pause=pause
    )
    return services, router, now


def play_turn(client: Any) -> None:
    prompts = client.render([None])
    client.sample(prompts, [(0,)], 1.0)


def look(router: ServiceRouter, now: list[float]) -> None:
    """Two placements a while apart: the first asks for reports, the second has them."""
    for _ in range(2):
        now[0] += 2.0
        router.place(0, None)


def test_groups_are_spread_and_an_episode_stays() -> None:
    services, router, _ = make_router(3)
    for episode in [router.episode(group) for group in range(6)]:
        for _ in range(3):
            play_turn(episode)
    assert [each.turns for each in services] == [6, 6, 6]
    assert router.moved == 0


def test_an_episode_moves_when_its_service_is_far_more_loaded_by_others() -> None:
    services, router, now = make_router(2)
    episode = router.episode(0)
    play_turn(episode)
    services[0].load = 2
    look(router, now)
    play_turn(episode)
    assert [each.turns for each in services] == [2, 0]  # 2 more are allowed
    services[0].load = 3
    look(router, now)
    play_turn(episode)
    play_turn(episode)
    assert [each.turns for each in services] == [2, 2]
    assert router.moved == 1


def test_own_requests_count_at_once_and_not_twice() -> None:
    services, router, now = make_router(2)
    for _ in range(3):
        router.began(0)
    assert router.place(0, None) == 1  # no report was needed
    services[0].load = 3  # the report counts the worker's own three
    look(router, now)
    router.ended(0)
    assert router.place(0, None) == 0  # 2 remain, which is allowed; counted twice it would be 5


def test_the_episodes_of_a_lost_service_move_and_come_back_with_new_groups() -> None:
    services, router, now = make_router(2)
    episode = router.episode(0)
    play_turn(episode)
    services[0].failing = DesktopError(FailureReason.died, "an actor has exited")
    play_turn(episode)
    play_turn(episode)
    assert ([each.turns for each in services], router.moved) == ([1, 2], 1)
    services[0].failing = services[0].load = None  # started again, without weights
    look(router, now)
    play_turn(router.episode(2))
    assert [each.turns for each in services] == [1, 3]
    services[0].load = 0
    look(router, now)
    play_turn(router.episode(4))
    assert [each.turns for each in services] == [2, 3]


def test_a_failed_engine_counts_as_lost() -> None:
    services, router, _ = make_router(2)
    services[0].failing = EngineError("exited too often")
    play_turn(router.episode(0))
    assert [each.turns for each in services] == [0, 1]


@pytest.mark.parametrize("concurrent", [True, False])
def test_turns_that_come_after_an_engine_has_failed_are_answered_by_another_service(concurrent: bool) -> None:
    """Each worker has a router of its own: that of the second has heard nothing of the failure yet."""
    real = [RolloutService(_Failing(concurrent)), RolloutService(ScriptedPolicy(lambda _: True))]
    try:
        for _ in range(2):
            services = [Service(each, Future[int | None]) for each in real]
            prompts = [Prompt(torch.tensor([1]), ())]
            episode: Any = ServiceRouter(services).episode(0)
            episode.render([])
            assert len(episode.sample(prompts, [(0, 0)], 1.0)[0]) == 1
        assert real[0].failure() == "EngineError: exited too often"
        assert real[1].drain_answered() == 2
    finally:
        for each in real:
            each.close()


class _Failing(ScriptedPolicy):
    """An engine that has failed for good."""

    def __init__(self, concurrent: bool) -> None:
        super().__init__(lambda _: True)
        self.concurrent = concurrent

    def sample(self, *_: Any, **__: Any) -> list[Response]:
        raise EngineError("exited too often")

    def sync(self) -> None: ...

    def drain_metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


@pytest.mark.parametrize("first", [0, 1])
def test_when_all_are_lost_the_call_waits_for_the_first_that_is_back(first: int) -> None:
    """The other one may be on a node that is gone for good."""
    services, router, now = make_router(2)
    episode = router.episode(1)
    play_turn(episode)
    services[first].exit(back=30.0)
    services[1 - first].exit()
    play_turn(episode)
    assert services[first].turns == 1 + (first == 1)
    assert [each.asked for each in services] == ([2, 2] if first == 0 else [1, 3])
    assert 30.0 <= now[0] <= 33.0
    play_turn(episode)
    assert services[first].turns == 2 + (first == 1)


def test_when_all_are_lost_for_long_it_is_an_error_of_the_infrastructure() -> None:
    services, router, now = make_router(2)
    for each in services:
        each.exit()
    with pytest.raises(DesktopError) as raised:
        play_turn(router.episode(0))
    assert raised.value.reason is FailureReason.died
    assert str(raised.value) == (
        "died: none of 2 rollout services has answered for 100 s; "
        "the last one that was asked: died: an actor has exited"
    )
    assert 100.0 <= now[0] <= 102.0


def test_a_call_that_hangs_is_not_repeated_elsewhere() -> None:
    services, router, _ = make_router(2)
    services[0].failing = DesktopError(FailureReason.hung, "no answer")
    with pytest.raises(DesktopError, match="no answer"):
        play_turn(router.episode(0))
    assert services[1].turns == 0


def test_a_service_without_reports_is_away_until_one_comes() -> None:
    services, router, now = make_router(2)
    services[0].answers = False
    look(router, now)
    assert router.place(0, 0) == 0
    now[0] += LATE_SECONDS
    assert router.place(0, 0) == 1


def test_no_services_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ServiceRouter([])


def test_a_service_reports_its_requests_and_counts_its_turns() -> None:
    service = RolloutService(ScriptedPolicy(lambda _: True), require_weights=True)
    try:
        assert service.requests() is None  # it has no weights
        service.load_weights([], 0)
        assert service.requests() == 0
        service.sample([Prompt(torch.tensor([1]), ())], [(0,)], 1.0)
        assert (service.drain_answered(), service.drain_answered()) == (1, 0)
    finally:
        service.close()


def test_a_worker_plays_its_episodes_at_several_services() -> None:
    real = [RolloutService(ScriptedPolicy(lambda _: True)) for _ in range(2)]

    def reported(service: RolloutService) -> Future[int | None]:
        report: Future[int | None] = Future()
        report.set_result(service.requests())
        return report

    services = [Service(each, lambda each=each: reported(each)) for each in real]  # type: ignore[misc]
    queue = QueueService(batch_groups=2, max_staleness=0)
    plan = RolloutPlan((lamp_task(0),), RolloutSeeds(3, "group"), 1.0, 0)
    for _ in range(2):
        queue.admit([0, 0], 2)
    router = ServiceRouter(services)
    worker = EnvWorker("node", queue, router, plan, lambda: lamp_vector(1), desktops=2, poll=0.1)
    try:
        until(lambda: queue.finished_groups() == 2, "both groups were not played")
        assert worker.state().moved == router.moved == 0
        assert min(each.drain_answered() for each in real) > 0
    finally:
        worker.stop(10.0)
        for each in real:
            each.close()


def test_metrics() -> None:
    assert routing_metrics([7], 0) == {}
    assert routing_metrics([7, 3, 5], 2) == {
        "engine/turns_of_least": 3.0,
        "engine/turns_of_most": 7.0,
        "engine/turns_moved": 2.0,
    }


def test_engines_of_unlike_speed_are_loaded_by_it_and_prefixes_are_kept() -> None:
    """One of three engines is three times slower; 48 desktops, half of them of one worker."""
    load = Load(engines=3, slow=3.0, desktops=(24, 8, 8, 8), groups=16)
    affinity, at_random, fixed = (simulate(load, kind) for kind in ("affinity", "random", "fixed"))
    slow, *others = affinity.turns
    assert slow < 0.75 * min(others)  # the slow one gets less,
    assert max(others) < 1.2 * min(others)  # and the others as much as each other
    assert affinity.moved < 0.1 * sum(affinity.turns)
    assert affinity.recomputed < 0.2 * at_random.recomputed
    assert affinity.seconds < min(at_random.seconds, fixed.seconds)
