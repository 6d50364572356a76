"""Rollouts through real connections: the results of lock-step, whatever happens to the connection or the other side."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import trustme
from cut_relay import CutRelay
from lamp_rollouts import Learner, play, wins
from polling import until
from repository import ROOT

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import Turn, episode_rows, row_list, stack_rows
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector, RolloutSeeds
from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector
from bepa_torchrl.scale.rollouts.env_worker import RolloutPlan
from bepa_torchrl.scale.rollouts.queue_service import MAX_WORKERS, QueueService
from bepa_torchrl.scale.rollouts.remote import gateway as gateway_module
from bepa_torchrl.scale.rollouts.remote import queue_server, rollout_side
from bepa_torchrl.scale.rollouts.remote.collector import served_collector
from bepa_torchrl.scale.rollouts.remote.gateway import RolloutGateway
from bepa_torchrl.scale.rollouts.remote.link import TrainerLink
from bepa_torchrl.scale.rollouts.remote.plans import decode_plan
from bepa_torchrl.scale.rollouts.remote.queue_server import QueueServer
from bepa_torchrl.scale.rollouts.remote.weights import PublishedWeights, WeightsTag, decode_weights
from bepa_torchrl.scale.rollouts.task_queue import StaleTicketError
from bepa_torchrl.scale.wire import client as wire_client
from bepa_torchrl.scale.wire.access import Access, Tls
from bepa_torchrl.scale.wire.errors import BrokenConnectionError, ProtocolError, RunEndedError, TrainerGoneError
from bepa_torchrl.testing import LampEnv, lamp_task, lamp_vector, summary
from osworld_gym.errors import FailureReason
from osworld_gym.types import StopReason, Verdict

TOKEN = b"a token of this test"
GROUPS, SIZE = 2, 3
PLAN = RolloutPlan(tuple(lamp_task(n) for n in range(5)), RolloutSeeds(3, "group"), 1.0, 2)
SHOT = b"\x89PNG\r\n\x1a\n"
OUTCOME: dict[str, Any] = {"success": True, "stop": "finished", "failure": None, "versions": [0, 0]}


def at(relay: CutRelay) -> Access:
    return Access(f"http://127.0.0.1:{relay.address[1]}", TOKEN)


def kill(server: QueueServer) -> None:
    """Ends it as the end of its process would: no client gets an answer."""
    server.wire._http.should_exit = server.wire._http.force_exit = True
    server.wire._thread.join(20.0)


def lock_step(count: int) -> list[Any]:
    made = GroupRolloutCollector(
        LampEnv(lamp_vector(4)), Learner(wins), PLAN.tasks, groups=GROUPS, group_size=SIZE, seed=3
    )
    batches = [summary(batch) for batch in islice(made, count)]
    made.shutdown()
    return batches


@contextmanager
def trainer() -> Iterator[tuple[AsyncGroupCollector, CutRelay, list[str]]]:
    """A collector, a relay to it, and its notes. Leases are short, so that lost ones come back soon."""
    notes: list[str] = []
    learner: Any = Learner(wins)
    collector = served_collector(
        LampEnv(lamp_vector(1)),
        learner,
        PLAN.tasks,
        queue=QueueService(batch_groups=GROUPS, max_staleness=0, lease_seconds=2.0, max_attempts=100),
        address=("127.0.0.1", 0),
        token=TOKEN,
        tls=None,
        settings={},
        on_end=lambda: None,
        note=notes.append,
        groups=GROUPS,
        group_size=SIZE,
        seed=3,
        stall_seconds=90.0,
    )
    port = int(notes[0].split(":")[1].split()[0])
    relay = CutRelay(("127.0.0.1", port))
    try:
        yield collector, relay, notes
    finally:
        collector.shutdown()
        relay.close()


def versions_of(collector: AsyncGroupCollector, count: int, after: Callable[[int], None] = lambda _: None) -> list[Any]:
    """The batches, with an update of the weights after each."""
    batches = []
    for number, batch in enumerate(islice(collector, count)):
        batches.append(summary(batch))
        assert collector.last is not None
        assert set(collector.last.version_lags) == {0}  # sampled by the weights that were published before
        collector.rollout_policy.version += 1
        after(number)
    return batches


@pytest.mark.slow
def test_a_connection_that_is_cut_again_and_again_changes_nothing() -> None:
    """The relay cuts each connection within a frame: of the handshake, the plan, weights, leases and results."""
    with trainer() as (collector, relay, notes):
        relay.cut_after = 150
        player = threading.Thread(target=play, args=(at(relay),))
        player.start()
        until(lambda: relay.cuts, "no connection was cut")
        relay.cut_after = 10_000
        assert versions_of(collector, 4) == lock_step(4)
        assert relay.cuts > 2
        relay.cut_after = None
        before = " ".join(notes).count("is connected")
        relay.cut()
        until(lambda: " ".join(notes).count("is connected") > before, "no connection")
        collector.shutdown()
        player.join(60.0)
        assert not player.is_alive()


@pytest.mark.slow
def test_another_process_that_is_cut_off_and_then_killed_changes_nothing(tmp_path: Path) -> None:
    """After the kill this process plays the rest: its leases are those of the other, which expire."""
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    program = [sys.executable, str(Path(__file__).with_name("lamp_rollouts.py"))]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    second: list[threading.Thread] = []
    with trainer() as (collector, relay, _), (tmp_path / "log").open("w") as log:
        child = subprocess.Popen([*program, at(relay).url, str(token)], stdout=log, env=environment)

        def disturb(number: int) -> None:
            if number == 0:
                relay.cut()
            if number == 2:
                assert child.poll() is None
                child.send_signal(signal.SIGKILL)
                second.append(threading.Thread(target=play, args=(at(relay),)))
                second[0].start()

        try:
            assert versions_of(collector, 5, disturb) == lock_step(5)
        finally:
            child.kill()
            child.wait()
        collector.shutdown()
        second[0].join(60.0)
    lines = (tmp_path / "log").read_text().splitlines()
    assert sum(line.startswith("connected") for line in lines) == 2
    assert any(line.startswith("weights of version 2: 0.0 MB") for line in lines)
    assert not second[0].is_alive()


# --- one gateway at a server ------------------------------------------------------------------------------------------


class Served:
    """A queue, weights and a server, as a trainer has them."""

    def __init__(self, run: str = "run", plan: RolloutPlan = PLAN, port: int = 0, lease_seconds: float = 60.0) -> None:
        self.queue = QueueService(batch_groups=1, max_staleness=9, lease_seconds=lease_seconds)
        self.weights, self.notes = PublishedWeights(run), list[str]()
        self.server = QueueServer(
            self.queue, self.weights, plan, {"a": 1}, address=("127.0.0.1", port), token=TOKEN, note=self.notes.append
        )

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()


@pytest.fixture
def gateways() -> Iterator[Callable[..., RolloutGateway]]:
    made: list[RolloutGateway] = []

    def make(served: Served, token: bytes = TOKEN, wait: float = 60.0) -> RolloutGateway:
        made.append(RolloutGateway(Access(served.server.url, token), wait=wait))
        return made[-1]

    yield make
    for gateway in made:
        gateway.close()


Gateways = Callable[..., RolloutGateway]


def test_a_lease_waits_for_the_weights_of_its_admission(gateways: Gateways) -> None:
    with Served() as served:
        gateway = gateways(served)
        assert gateway.lease("w", 1, 0.01) == []
        served.weights.publish([("a", torch.ones(3))], 0)
        found = gateway.next_weights(None, (), 30.0)
        assert found is not None
        assert decode_weights(found, {})[found.names["a"]].tolist() == [1.0, 1.0, 1.0]
        served.weights.publish([("a", torch.zeros(3))], 1)
        served.queue.admit([0, 0], 2)
        assert gateway.next_weights(found.tag, (), 30.0) is not None  # version 1, not loaded yet
        assert gateway.lease("w", 2, 0.1) == []
        assert len(served.queue.describe()["leases"]) == 2  # they are kept for this worker
        assert gateway.lease("w", 2, 0.1) == []
        assert gateway.next_weights(WeightsTag("run", 1), (), 0.1) is None
        leases = gateway.lease("w", 2, 30.0)
        assert [(lease.group, lease.slot, lease.task) for lease in leases] == [(0, 0, [0, 0]), (0, 1, [0, 0])]


def test_a_worker_gets_no_more_leases_than_it_has_desktops_left_when_the_weights_are_loaded(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served() as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.weights.publish([], 1)
        served.queue.admit([0, 0], 3)
        assert gateway.lease("w", 3, 0.1) == []  # three are kept for it, and it closes two desktops meanwhile
        gateway.next_weights(WeightsTag("run", 1), (), 0.0)
        assert [lease.slot for lease in gateway.lease("w", 1, 30.0)] == [0]
        assert [lease.slot for lease in gateway.lease("w", 1, 30.0)] == [1]
        monkeypatch.setattr(gateway_module, "_RENEW_EVERY", 0.0)
        served.queue.release(served.queue.describe()["leases"][0]["worker"], "as if they had expired")
        assert gateway.lease("w", 1, 30.0) == []  # the one that was kept has ended, too
        assert [lease.attempt for lease in gateway.lease("w", 1, 30.0)] == [2]


def played(lease: Any, score: float = 1.0) -> EpisodeResult:
    """An episode of the lease, without rows."""
    job = PLAN.job(lease.group, lease.slot, lease.task)
    return EpisodeResult(job, None, StopReason.finished, Verdict(score))


def failed(lease: Any) -> EpisodeResult:
    """An episode of the lease that failed in every attempt."""
    job = PLAN.job(lease.group, lease.slot, lease.task)
    return EpisodeResult(job, None, StopReason.env_error, None, FailureReason.hung, (FailureReason.died,))


def loaded(gateway: RolloutGateway, served: Served, version: int = 0) -> None:
    served.weights.publish([], version)
    gateway.next_weights(WeightsTag(served.weights.run, version), (), 0.0)


def test_the_late_result_of_a_lease_that_expired_is_refused(gateways: Gateways) -> None:
    with Served(lease_seconds=0.2) as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit([0, 0], 1)
        (late,) = gateway.lease("w", 1, 30.0)
        (second,) = gateway.lease("w", 1, 30.0)  # waits for the expiry
        assert gateway.renew([late.ticket]) == [late.ticket]
        with pytest.raises(StaleTicketError, match="has ended"):
            gateway.complete(late.ticket, played(late))
        assert second.attempt == 2


def test_a_result_reaches_the_queue_once(gateways: Gateways) -> None:
    with Served() as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit([0, 0], 1)
        (lease,) = gateway.lease("w", 1, 30.0)
        assert gateway.renew([lease.ticket]) == []
        gateway.complete(lease.ticket, played(lease))
        with pytest.raises(StaleTicketError):  # as after a reply that was lost
            gateway.complete(lease.ticket, played(lease, 0.0))
        group = served.queue.next_group(1.0)
        assert group is not None
        assert group.results == (played(lease),)


def changed(lease: Any, **changes: Any) -> EpisodeResult:
    """The result of the lease's episode, with another job."""
    return replace(played(lease), job=replace(played(lease).job, **changes))


def one_row(lease: Any, key: str, value: Any) -> EpisodeResult:
    """The result of the lease's episode, with another entry in its only row."""
    result = result_of(lease, SHOT)
    row_list(result.rows)[0].set(key, value)
    return result


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda _: OUTCOME, "expected an episode of group 0, got the outcome of one of an evaluation"),
        (lambda lease: changed(lease, slot=7), "result of slot 0 of group 0, .*, got one of slot 7 of group 0"),
        (lambda lease: changed(lease, group_id=3), "got one of slot 0 of group 3"),
        (lambda lease: changed(lease, task=PLAN.tasks[1]), "task lamp-0, with its seeds, got one .*, task lamp-1"),
        (lambda lease: changed(lease, key=(1, 2, 3)), "with its seeds"),
        (lambda lease: one_row(lease, K.GROUP_ID, torch.tensor(1)), "row 0 to be one of its episode, got group_id 1"),
        (lambda lease: one_row(lease, K.N_STEPS, torch.tensor(2)), "got n_steps 2"),
        (
            lambda lease: one_row(lease, K.RETURN, torch.tensor([torch.nan])),
            "finite numbers as return of row 0, got nan",
        ),
        (
            lambda lease: one_row(lease, K.ROLLOUT_LOG_PROB, torch.tensor([-0.5, torch.nan])),
            "finite numbers as log_probs.rollout of row 0, got nan at 1",
        ),
        (lambda lease: one_row(lease, K.ROLLOUT_LOG_PROB, torch.full((2,), torch.nan)), "log_probs.rollout of row 0"),
        (lambda lease: one_row(lease, K.OLD_LOG_PROB, torch.tensor([-torch.inf, -0.5])), "response of row 0, got -inf"),
        (
            lambda lease: one_row(lease, K.OLD_LOG_PROB, torch.tensor([-0.5, torch.nan])),
            "response of row 0, got nan at 1",
        ),
        (lambda lease: played(lease, float("inf")), "finite number as the verdict's score, got inf"),
        (lambda lease: replace(played(lease), rows=stack_rows([])), "rows of an episode with a response, got 0"),
        (lambda lease: replace(played(lease), replayed=1), "at most 0 replayed steps, got 1"),
        (lambda lease: replace(played(lease), stop=StopReason.env_error), "got none with env_error"),
        (lambda lease: replace(played(lease), failure=FailureReason.hung), "got hung with finished"),
        (lambda lease: failed(lease), "expected 'fail' with env_error only, got 'complete'"),
    ],
)
def test_what_is_not_the_result_of_its_lease_is_refused_and_its_slot_played_again(
    gateways: Gateways, wrong: Callable[[Any], Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Served() as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit([0, 0], 1)
        (lease,) = gateway.lease("w", 1, 30.0)
        with pytest.raises(StaleTicketError):  # the refusal has ended the lease
            gateway.complete(lease.ticket, wrong(lease))
        assert re.search(problem, caplog.text), caplog.text
        (again,) = gateway.lease("w", 1, 30.0)
        assert again.attempt == 2
        gateway.complete(again.ticket, result_of(again, SHOT))
        group = served.queue.next_group(0.0)
        assert group is not None
        assert (group.results[0].job, group.reasons) == (played(again).job, {})


def test_old_log_probs_may_be_unknown(gateways: Gateways) -> None:
    """As those of a response to a prompt with a plan."""
    with Served() as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit([0, 0], 1)
        (lease,) = gateway.lease("w", 1, 30.0)
        gateway.complete(lease.ticket, one_row(lease, K.OLD_LOG_PROB, torch.full((2,), torch.nan)))
        assert served.queue.next_group(0.0) is not None


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"success": True}, "with failure, stop, success, versions, these differ: failure, stop, versions"),
        (OUTCOME | {"task_id": "t"}, "these differ: task_id"),
        (OUTCOME | {"success": 1}, "expected true or false as success, got '1'"),
        (OUTCOME | {"stop": "won"}, "'won' is not a valid StopReason"),
        (OUTCOME | {"stop": "env_error", "failure": "hung"}, "no success of an episode that ended with env_error"),
        (OUTCOME | {"versions": [1]}, "no versions or the first and the last one, got '.1.'"),
        (EpisodeResult(PLAN.job(0, 0, [0, 0]), None, StopReason.finished, Verdict(1.0)), "got an episode of a group"),
    ],
)
def test_what_is_not_the_outcome_of_an_evaluations_episode_is_refused(
    gateways: Gateways, wrong: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Served() as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit_evaluation([0, 0], 1)
        (lease,) = gateway.lease("w", 1, 30.0)
        with pytest.raises(StaleTicketError):
            gateway.complete(lease.ticket, wrong)
        assert re.search(problem, caplog.text), caplog.text
        (again,) = gateway.lease("w", 1, 30.0)
        gateway.complete(again.ticket, OUTCOME)
        evaluation = served.queue.next_evaluation(0.0)
        assert evaluation is not None
        assert evaluation.results == (OUTCOME,)


def test_a_failure_of_another_slot_does_not_end_as_the_result_of_this_one(gateways: Gateways) -> None:
    """Its lease ends nevertheless, so that the slot is played again."""
    with Served() as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit([0, 0], 1)
        for wrong in (lambda lease: replace(failed(lease), job=changed(lease, slot=7).job), played):
            (lease,) = gateway.lease("w", 1, 30.0)
            with pytest.raises(ProtocolError):
                gateway.fail(lease.ticket, "w: hung in every attempt", wrong(lease))
        (lease,) = gateway.lease("w", 1, 30.0)
        assert lease.attempt == 3


def test_the_trainer_gets_its_batch_although_the_first_results_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refused results cost their slots one attempt each, and nothing else."""
    monkeypatch.setattr(rollout_side, "_WORKER_POLL", 0.2)  # which the end waits for
    with trainer() as (collector, relay, _):
        wrong, refused = RolloutGateway(at(relay), wait=60.0), list[str]()

        def send_wrong_results() -> None:
            tag = None
            while tag is None and (found := wrong.next_weights(None, (), 30.0)) is not None:
                tag = found.tag
            wrong.next_weights(tag, (), 0.0)
            for lease in wrong.lease("wrong", GROUPS * SIZE, 30.0):
                with suppress(StaleTicketError):
                    wrong.complete(lease.ticket, OUTCOME)
                refused.append(lease.ticket)
            wrong.close()
            play(at(relay))

        player = threading.Thread(target=send_wrong_results)
        player.start()
        assert versions_of(collector, 1) == lock_step(1)
        assert collector.queue.describe()["requeued"] >= len(refused) > 0
        collector.shutdown()
        player.join(60.0)
        assert not player.is_alive()


def test_what_cannot_be_sent_ends_its_lease_with_the_reason(gateways: Gateways) -> None:
    with Served() as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit([0, 0], 1)
        for attempt in range(1, 6):
            (lease,) = gateway.lease("w", 1, 30.0)
            assert lease.attempt == attempt
            gateway.complete(lease.ticket, {"outcome": float("nan")})
        group = served.queue.next_group(1.0)
        assert group is not None
        assert group.results == (None,)
        assert "JSON compliant" in group.reasons[0]


def test_an_episode_that_failed_crosses_with_its_reason_and_goes_to_another_worker(gateways: Gateways) -> None:
    with Served() as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit([0, 0], 1)
        assert gateway.lease("b", 0, 0.0) == []  # a worker that will be there soon
        (lease,) = gateway.lease("a", 1, 30.0)
        gateway.fail(lease.ticket, "a: hung in every attempt", failed(lease))
        assert gateway.lease("a", 1, 0.0) == []
        (lease,) = gateway.lease("b", 1, 30.0)
        gateway.fail(lease.ticket, "b: hung in every attempt", failed(lease))
        group = served.queue.next_group(30.0)
        assert group is not None
        assert group.results == (failed(lease),)
        assert group.failures == {0: (failed(lease),)}
        assert group.reasons[0].startswith("b: hung in every attempt (attempt 2")


def test_workers_that_wait_for_leases_do_not_hold_up_results(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many workers wait for leases as the server has threads for them."""
    monkeypatch.setattr(queue_server, "_WAITING", 3)
    monkeypatch.setattr(queue_server, "_REQUESTS", 1)
    with Served() as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit([0, 0], 1)
        (lease,) = gateway.lease("w", 1, 30.0)
        waits, asked = threading.Event(), []
        inner = served.queue.lease

        def lease_once(worker: str, limit: int, timeout: float) -> Any:
            asked.append(worker)
            waits.wait(60.0)
            return inner(worker, limit, timeout)

        served.queue.lease = lease_once  # type: ignore[method-assign]
        threads = [threading.Thread(target=gateway.lease, args=(f"w{number}", 1, 0.2)) for number in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: len(asked) == 3, "not all of them wait")
        gateway.complete(lease.ticket, played(lease))
        assert served.queue.next_group(0.0) is not None
        waits.set()
        for thread in threads:
            thread.join(60.0)


def test_the_server_has_a_thread_for_every_worker_that_the_queue_serves() -> None:
    """The page on clusters states the same number."""
    assert queue_server._WAITING > MAX_WORKERS
    assert f"at most {MAX_WORKERS} workers" in (ROOT / "docs" / "cluster-nodes.md").read_text(encoding="utf-8")


def test_leases_of_a_worker_that_has_exited_are_released(gateways: Gateways) -> None:
    with Served() as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit([0, 0], 2)
        assert len(gateway.lease("w", 2, 30.0)) == 2
        assert gateway.release("other", "it has exited") == 0
        assert gateway.release("w", "it has exited") == 2


def test_what_desktops_are_needed_for_crosses_and_so_do_those_that_are_closed(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "_PATIENCE", 0.1)
    with Served() as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit([0, 0], 3)
        assert len(gateway.lease("w", 2, 30.0)) == 2
        demand = gateway.demand()
        assert demand is not None
        assert demand[:2] == (2, 1)
        assert demand.busy_seconds > 0.0
        assert served.queue.describe()["desktops"] == 2
        gateway.resize("w", 1)
        assert served.queue.describe()["desktops"] == 1
    assert gateway.demand() is None  # nothing is known without a trainer


def test_a_trainer_that_is_started_again_refuses_old_leases_and_sends_its_weights(gateways: Gateways) -> None:
    with Served("first") as served:
        gateway = gateways(served)
        assert gateway.run()["settings"] == {"a": 1}
        assert decode_plan(gateway.run()["plan"]) == PLAN
        loaded(gateway, served, 4)
        served.queue.admit([0, 0], 1)
        (old,) = gateway.lease("w", 1, 30.0)
        port = served.server.address[1]
        kill(served.server)
    with Served("second", port=port) as served:
        served.weights.publish([("a", torch.ones(1))], 4)
        found = gateway.next_weights(WeightsTag("first", 4), (), 30.0)  # the same version, perhaps of another update
        assert found is not None
        assert found.tag == ("second", 4)
        served.queue.admit([0, 0], 1)
        assert gateway.lease("w", 1, 0.1) == []  # those weights are not loaded
        with pytest.raises(StaleTicketError, match="of another process of the trainer"):
            gateway.complete(old.ticket, {"outcome": 1})
        assert gateway.renew([old.ticket]) == [old.ticket]
        gateway.next_weights(found.tag, (), 0.0)
        (new,) = gateway.lease("w", 1, 30.0)
        assert new.ticket != old.ticket


def test_a_resumed_trainer_gives_no_lease_before_it_has_published_weights(gateways: Gateways) -> None:
    with Served("first") as served:
        gateway = gateways(served)
        loaded(gateway, served)
        served.queue.admit([0, 0], 2)
        state, port = served.queue.state_dict(), served.server.address[1]
        kill(served.server)
    with Served("second", port=port) as served:
        served.queue.load_state_dict(state)  # its slots wait at once; weights come with the first iteration
        assert gateway.lease("w", 2, 0.1) == []
        assert served.queue.describe()["leases"] == []
        loaded(gateway, served)
        leases = gateway.lease("w", 2, 30.0)
        assert [lease.attempt for lease in leases] == [1, 1]


def test_another_run_at_the_same_address_is_not_played(gateways: Gateways) -> None:
    with Served("first") as served:
        gateway = gateways(served)
        gateway.demand()  # any answer, as also to a gateway that is an actor and is not asked for the plan
        port = served.server.address[1]
        kill(served.server)
        other = RolloutPlan(PLAN.tasks, RolloutSeeds(4, "group"), 1.0, 2)
        with Served("second", other, port=port), pytest.raises(RunEndedError, match="another run listens"):
            gateway.next_weights(None, (), 30.0)


def test_the_end_of_the_run_and_a_trainer_that_is_gone(gateways: Gateways) -> None:
    with Served() as served:
        gateway = gateways(served)
        gateway.run()
    with pytest.raises(RunEndedError, match="the training has ended"):
        gateway.next_weights(None, (), 1.0)
    assert gateway.lease("w", 1, 0.01) == []
    assert gateway.renew(["run:0-1"]) == []
    with pytest.raises(StaleTicketError, match="could not be sent"):
        gateway.complete("run:0-1", {})
    gone = gateways(served, wait=0.1)
    with pytest.raises(TrainerGoneError, match=r"no trainer at 127\.0\.0\.1:\d+ for 0\.1 s"):
        gone.next_weights(None, (), 1.0)


def test_a_trainer_is_waited_for_as_long_as_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a request for the weights has time when there is a connection; a wrong address is noted at once."""
    monkeypatch.setattr(gateway_module, "_WEIGHTS_PATIENCE", 0.1)
    with Served() as served:
        url = served.server.url
    notes = list[str]()
    gateway = RolloutGateway(Access(url, TOKEN), wait=2.0, note=notes.append)
    with pytest.raises(TrainerGoneError, match=r"no trainer at 127\.0\.0\.1:\d+ for 2 s"):
        gateway.run()
    gateway.close()
    (note,) = notes
    assert re.fullmatch(rf"no connection yet: no answer from {url}: .*; tried again for up to 2 s", note)


def test_weights_and_results_cross_with_tls_and_what_is_known_crosses_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first screenshot of a group's episodes is the same, and so is a tensor that an update did not change."""
    authority, sent = trustme.CA(), list[int]()
    made = authority.issue_cert("127.0.0.1")
    made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    tls = Tls(tmp_path / "both.pem", tmp_path / "both.pem")
    queue, weights = QueueService(batch_groups=1, max_staleness=9), PublishedWeights("run")
    server = QueueServer(queue, weights, PLAN, {}, address=("127.0.0.1", 0), token=TOKEN, tls=tls, note=print)
    gateway = RolloutGateway(Access(server.url, TOKEN, authority.cert_pem.bytes().decode()))
    whole = torch.randn(300_000)
    weights.publish([("a", whole), ("b", torch.ones(1))], 0)
    first = gateway.next_weights(None, (), 30.0)
    assert first is not None
    held = decode_weights(first, {})
    assert torch.equal(held[first.names["a"]], whole)
    weights.publish([("a", whole), ("b", torch.zeros(1))], 1)
    second = gateway.next_weights(first.tag, held.keys(), 30.0)
    assert second is not None
    assert second.tensors.keys() == {second.names["b"]}
    gateway.next_weights(second.tag, (), 0.0)

    pack = wire_client.pack
    monkeypatch.setattr(wire_client, "pack", lambda fields: sent.append(len(fields.get("blobs", ()))) or pack(fields))
    queue.admit([0, 0], 2)
    leases = gateway.lease("w", 2, 30.0)
    shots = [b"\x89PNG\r\n\x1a\n" + bytes([number]) for number in range(3)]
    for lease, second_shot in zip(leases, shots[1:], strict=True):
        gateway.complete(lease.ticket, result_of(lease, shots[0], second_shot))
    group = queue.next_group(1.0)
    assert group is not None
    assert [row_list(result.rows)[1][K.IMAGES] for result in group.results] == [tuple(shots[:2]), (shots[0], shots[2])]
    assert sent[-2:] == [2, 1]
    gateway.close()
    server.close()


def result_of(lease: Any, *shots: bytes) -> EpisodeResult:
    """An episode whose prompts show all screenshots so far."""
    response = Response("r", torch.arange(2), torch.full((2,), -0.5))
    turns = [Turn(shot, Prompt(torch.arange(4), shots[: step + 1]), response) for step, shot in enumerate(shots)]
    job = PLAN.job(lease.group, lease.slot, lease.task)
    rows = episode_rows(
        turns,
        task_id=job.task.id,
        instruction="i",
        group_id=job.group_id,
        slot=job.slot,
        source=K.Source.on_policy,
        policy_version=1,
        reward=1.0,
        stop=StopReason.finished,
        plan_free=True,
    )
    return EpisodeResult(job, rows, StopReason.finished, Verdict(1.0))


def test_a_wrong_token_and_an_unknown_request_are_refused(gateways: Gateways) -> None:
    with Served() as served:
        with pytest.raises(ProtocolError, match="another token than the server's; give both sides the same"):
            gateways(served, token=b"another token of it").run()
        # noted after the refusal is sent
        until(lambda: "is refused: a wrong token" in " ".join(served.notes), "no note of the refusal")
        link = TrainerLink(Access(served.server.url, TOKEN), wait=30.0, note=print)
        with pytest.raises(ProtocolError, match="unknown request POST 'exec'; known: run, lease"):
            link.request("exec", {}, patience=30.0)
        with pytest.raises(ProtocolError, match="KeyError: 'worker'"):
            link.request("lease", {}, patience=30.0)
        link.close()


def test_a_queue_that_fails_is_asked_again_until_patience_ends() -> None:
    with Served() as served:

        def broken(*_: Any) -> Any:
            raise OSError("no such actor")

        served.weights.publish([], 0)
        served.queue.lease = broken  # type: ignore[method-assign]
        link = TrainerLink(Access(served.server.url, TOKEN), wait=30.0, note=print)
        with pytest.raises(BrokenConnectionError, match="OSError: no such actor"):
            link.request("lease", {"worker": "w", "limit": 1, "timeout": 0.0}, patience=1.2)
        link.close()


def test_an_address_that_is_in_use_is_named() -> None:
    with Served() as served, pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1:\d+ .*set cluster\.listen"):
        Served(port=served.server.address[1])
