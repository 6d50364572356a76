"""Many desktops: a slow, hung, exited or faulty one neither delays nor affects the others."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.suites.sim.suite import sim_suite
from osworld_gym.testing import CLICK, FINISHED, BlockingDesktop, Fault, ScriptedDesktop, count_task
from osworld_gym.types import Action, StopReason
from osworld_gym.uitars.format import format_response
from osworld_gym.vector import DesktopVector

BOTH = pytest.mark.parametrize("kind", [ScriptedDesktop, BlockingDesktop])


class Factory:
    """Creates desktops with the faults for the first, second, … and keeps them."""

    def __init__(self, kind: type[ScriptedDesktop], *faults: Fault | None) -> None:
        self.kind = kind
        self.plans: Iterator[Fault | None] = iter(faults)
        self.made: list[ScriptedDesktop] = []

    def __call__(self) -> Desktop:
        fault = next(self.plans, None)
        self.made.append(self.kind(*([fault] if fault else [])))
        return self.made[-1]


class GatedDesktop(BlockingDesktop):
    """A desktop that performs actions only once its gate is opened."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate, self.waits = gate, threading.Event()

    def perform(self, actions: list[Action]) -> None:  # type: ignore[override]
        self.waits.set()
        assert self.gate.wait(30)
        super().perform(actions)


def begin_all(vector: DesktopVector) -> None:
    """Resets one after the other, so that desktops are created in the order of the slots."""
    for i in range(len(vector)):
        vector.send_reset(i, count_task(1), seed=i)
        assert [(j, result.stop) for j, result in vector.receive()] == [(i, None)]


@BOTH
def test_each_desktop_has_its_own_episode(kind: type[ScriptedDesktop]) -> None:
    with DesktopVector(Factory(kind), 3) as vector:
        for i in range(3):
            vector.send_reset(i, count_task(i), seed=10 + i)
        frames = {i: result.screenshot.pixels[-1, -1, 0] for i, result in vector.receive(3)}
        assert frames == {0: 10, 1: 11, 2: 12}
        for i in range(3):
            vector.send(i, CLICK)
        vector.receive(3)
        for i in range(3):
            vector.send(i, FINISHED)
        assert {i: result.reward for i, result in vector.receive(3)} == {0: 0.0, 1: 1.0, 2: 0.0}


def test_oracles_solve_simulated_tasks_through_the_text_protocol() -> None:
    tasks = sim_suite().tasks[::9]
    twins = [SimDesktop() for _ in tasks]  # performs the same actions as the vector's desktops: same seed, same screen
    oracles = [make_oracle(task, "native") for task in tasks]
    rewards: dict[int, float] = {}
    with DesktopVector(SimDesktop, len(tasks), EpisodeOptions(max_steps=30)) as vector:
        for i, task in enumerate(tasks):
            vector.send_reset(i, task, seed=i)
            twins[i].reset(i)
            for step in task.config:
                twins[i].setup(step)
        while len(rewards) < len(tasks):
            for i, result in vector.receive():
                assert (result.screenshot.pixels == twins[i].screenshot().pixels).all()
                if result.verdict is not None:
                    rewards[i] = result.verdict.score
                    continue
                step = oracles[i].next_step(twins[i])
                actions = (Action("finished"),) if step is None else step.actions
                twins[i].perform([action for action in actions if action.kind != "finished"])
                vector.send(i, format_response("go on" if step is None else step.intent, actions))
    assert rewards == dict.fromkeys(range(len(tasks)), 1.0)


def test_a_slow_desktop_delays_only_itself() -> None:
    gates = [threading.Event() for _ in range(3)]
    desktops = iter([GatedDesktop(gate) for gate in gates])
    gates[0].set()
    gates[2].set()
    with DesktopVector(lambda: next(desktops), 3) as vector:
        begin_all(vector)
        for i in range(3):
            vector.send(i, CLICK)
        assert {i for i, _ in vector.receive(2)} == {0, 2}
        for i in (0, 2):
            vector.send(i, FINISHED)
        assert {(i, result.reward) for i, result in vector.receive(2)} == {(0, 1.0), (2, 1.0)}
        assert vector.receive(timeout=0.01) == []
        gates[1].set()
        assert [i for i, _ in vector.receive()] == [1]


@BOTH
def test_a_failed_desktop_is_replaced_and_its_siblings_continue(kind: type[ScriptedDesktop]) -> None:
    factory = Factory(kind, None, Fault("perform", 1, "died"))
    with DesktopVector(factory, 2) as vector:
        vector.send_reset(0, count_task(1), 0)
        vector.receive()
        vector.send_reset(1, count_task(1), 0)
        vector.receive()
        for i in range(2):
            vector.send(i, CLICK)
        results = dict(vector.receive(2))
        assert results[0].stop is None
        assert (results[1].stop, results[1].failure) == (StopReason.env_error, FailureReason.died)
        with pytest.raises(RuntimeError, match="no episode"):
            vector.send(1, CLICK)
        vector.send_reset(1, count_task(0), 5)
        assert vector.receive()[0][1].stop is None
        vector.send(1, FINISHED)
        assert vector.receive()[0][1].reward == 1.0
        assert len(factory.made) == 3
        assert factory.made[1].closed == 1
        assert factory.made[0].closed == 0
    assert all(desktop.closed for desktop in factory.made)


KINDS = ["died", "never_ready", "setup_failed", "evaluator_failed", "bug"]
METHODS = ["reset", "setup", "screenshot", "perform", "read_file"]


@pytest.mark.parametrize("seed", range(3))
def test_whatever_fails_every_episode_ends_once_and_rightly(seed: int) -> None:
    rng = random.Random(seed)
    made: list[ScriptedDesktop] = []

    def make() -> Desktop:
        kinds = [*KINDS, "hang"] if rng.random() < 0.3 else KINDS
        faults = [Fault(rng.choice(METHODS), rng.randint(1, 6), rng.choice(kinds))] if rng.random() < 0.4 else []
        if rng.random() < 0.2:
            faults.append(Fault("screenshot", rng.randint(1, 6), rng.choice(["torn", "small"])))
        made.append(BlockingDesktop(*faults))
        return made[-1]

    task = count_task(4, config=[{"type": "count", "parameters": {"count": 2}}])
    script = [CLICK, CLICK, FINISHED]
    begun, ended = 0, Counter[str]()
    with DesktopVector(make, 8, deadline=1.0) as vector:
        steps = [0] * 8
        for i in range(8):
            vector.send_reset(i, task, i)
            begun += 1
        while results := vector.receive():
            for i, result in results:
                if result.stop is None:
                    vector.send(i, script[steps[i]])
                    steps[i] += 1
                    continue
                masked = result.stop is StopReason.env_error
                assert (result.verdict is None, result.failure is not None) == (masked, masked)
                assert masked or (result.stop, result.reward) == (StopReason.finished, 1.0)
                ended[result.stop.value] += 1
                if begun < 60:
                    vector.send_reset(i, task, i)
                    begun, steps[i] = begun + 1, 0
    assert sum(ended.values()) == begun == 60
    assert min(ended["finished"], ended["env_error"]) > 0
    assert all(desktop.closed for desktop in made)


@BOTH
def test_an_undeclared_exception_is_masked_too(kind: type[ScriptedDesktop], caplog: pytest.LogCaptureFixture) -> None:
    with DesktopVector(Factory(kind, Fault("perform", 1, "bug")), 1) as vector:
        begin_all(vector)
        vector.send(0, CLICK)
        ((_, result),) = vector.receive()
        assert (result.stop, result.failure) == (StopReason.env_error, FailureReason.died)
        assert "ZeroDivisionError" in result.info["failure"]
        assert "an exception other than DesktopError" in caplog.text


def test_a_result_arrives_though_who_is_shown_the_screenshot_fails(caplog: pytest.LogCaptureFixture) -> None:
    """Else the receiver would wait without an end for a thread that has ended."""
    with DesktopVector(Factory(BlockingDesktop), 1) as vector:
        vector.on_screenshot = lambda _: 1 // 0
        for _ in range(2):  # the thread goes on, too
            vector.send_reset(0, count_task(1), 0)
            ((_, result),) = vector.receive(timeout=20.0)
            assert not result.done
    assert "on_screenshot raised; the result of desktop 0" in caplog.text


@BOTH
def test_a_desktop_that_cannot_be_made_again_is_an_env_error_until_it_can(kind: type[ScriptedDesktop]) -> None:
    refusals = iter([False, True, False])

    def make() -> Desktop:
        if next(refusals):
            raise DesktopError(FailureReason.never_ready, "no port")
        return kind(Fault("setup", 1, "setup_failed"))

    broken = count_task(1, config=[{"type": "count", "parameters": {"count": 1}}])
    with DesktopVector(make, 1) as vector:
        reasons = []
        for task in (broken, count_task(1), count_task(1)):
            vector.send_reset(0, task, 0)
            reasons.append(vector.receive()[0][1].failure)
    assert reasons == [FailureReason.setup_failed, FailureReason.never_ready, None]


def test_the_first_desktop_that_cannot_be_made_is_reported_at_once() -> None:
    def make() -> Desktop:
        raise DesktopError(FailureReason.never_ready, "Xvfb is not installed")

    with pytest.raises(DesktopError, match="Xvfb"):
        DesktopVector(make, 2)


@pytest.mark.parametrize("method", ["reset", "perform", "read_file"])
def test_a_hung_call_is_given_up_at_its_deadline(method: str) -> None:
    factory = Factory(BlockingDesktop, Fault(method, 1, "hang"))
    with DesktopVector(factory, 2, deadline=1.5) as vector:
        vector.send_reset(0, count_task(1), 0)
        if method != "reset":
            assert vector.receive()[0][1].stop is None
        vector.send_reset(1, count_task(1), 0)
        assert [(i, r.stop) for i, r in vector.receive()] == [(1, None)]
        if method != "reset":
            vector.send(0, CLICK if method == "perform" else FINISHED)
        ((i, result),) = vector.receive()
        assert (i, result.stop, result.failure) == (0, StopReason.env_error, FailureReason.hung)
        vector.send_reset(0, count_task(0), 0)
        assert vector.receive()[0][1].stop is None
        vector.send(0, FINISHED)
        assert vector.receive()[0][1].reward == 1.0
    assert [desktop.closed > 0 for desktop in factory.made] == [True] * 3


@pytest.mark.parametrize("warm", [0, 1])
def test_a_desktop_says_itself_that_it_is_not_ready_if_its_options_allow_more_time_than_a_call(warm: int) -> None:
    class Booting(BlockingDesktop):
        reset_limit = 60.0

        def reset(self, seed: int) -> None:
            del seed
            self._closing.wait(0.6)
            raise DesktopError(FailureReason.never_ready, "the machine did not boot")

        def prepare(self) -> None:
            self._closing.wait(0.6)

    with DesktopVector(Booting, 1, deadline=0.2, warm=warm) as vector:
        vector.send_reset(0, count_task(0), 0)
        ((_, result),) = vector.receive()
    assert result.failure is FailureReason.never_ready
    assert "did not boot" in str(result.info["failure"])


def test_a_desktop_that_hangs_while_it_is_made_is_closed_when_it_arrives() -> None:
    gate = threading.Event()
    made: list[ScriptedDesktop] = []
    late_closed = threading.Event()

    class Late(BlockingDesktop):
        def close(self) -> None:
            super().close()
            late_closed.set()

    def make() -> Desktop:
        if len(made) == 1:
            made.append(Late())
            assert gate.wait(30)
            return made[1]
        made.append(BlockingDesktop())
        return made[-1]

    with DesktopVector(make, 2, deadline=1.5) as vector:
        vector.send_reset(1, count_task(1), 0)
        assert vector.receive()[0][1].failure is FailureReason.hung
        vector.send_reset(1, count_task(1), 0)
        assert vector.receive()[0][1].stop is None
        gate.set()
        assert late_closed.wait(10)
        assert made[1].performed == []


@BOTH
def test_a_wrong_task_is_raised_to_the_caller_and_no_result_is_lost(kind: type[ScriptedDesktop]) -> None:
    wrong = count_task(1, config=[{"type": "teleport"}])
    with DesktopVector(Factory(kind), 3) as vector:
        for i, task in enumerate([count_task(1), wrong, count_task(1)]):
            vector.send_reset(i, task, 0)
        seen: list[int] = []
        raised: list[str] = []
        while len(seen) + len(raised) < 3:
            try:
                seen += [i for i, _ in vector.receive(3)]
            except TaskError as error:
                raised.append(str(error))
        assert sorted(seen) == [0, 2]
        assert len(raised) == 1
        assert "teleport" in raised[0]
        vector.send_reset(1, count_task(1), 0)
        assert vector.receive()[0][1].stop is None


@BOTH
def test_drain_makes_every_desktop_free_again(kind: type[ScriptedDesktop]) -> None:
    with DesktopVector(Factory(kind), 3) as vector:
        for i, task in enumerate([count_task(1), count_task(1, config=[{"type": "teleport"}]), count_task(1)]):
            vector.send_reset(i, task, 0)
        vector.drain()
        assert vector.receive() == []
        begin_all(vector)


@BOTH
def test_receive_never_waits_for_nothing(kind: type[ScriptedDesktop]) -> None:
    with DesktopVector(Factory(kind), 2) as vector:
        assert vector.receive() == []
        vector.send_reset(0, count_task(1), 0)
        assert len(vector.receive(min_count=2)) == 1


@BOTH
@pytest.mark.parametrize("misuse", [lambda v: v.send(0, CLICK), lambda v: v.send_end(0, StopReason.context_full)])
def test_responses_before_a_reset_are_refused(
    kind: type[ScriptedDesktop], misuse: Callable[[DesktopVector], None]
) -> None:
    with DesktopVector(Factory(kind), 1) as vector, pytest.raises(RuntimeError, match="no episode"):
        misuse(vector)


@BOTH
def test_one_call_at_a_time(kind: type[ScriptedDesktop]) -> None:
    with DesktopVector(Factory(kind), 1) as vector:
        vector.send_reset(0, count_task(1), 0)
        with pytest.raises(RuntimeError, match="busy"):
            vector.send_reset(0, count_task(1), 0)
        vector.receive()
        vector.send(0, CLICK)
        vector.receive()
        vector.send_end(0, StopReason.context_full)
        assert vector.receive()[0][1].reward == 1.0
    for use in (lambda: vector.send_reset(0, count_task(1), 0), lambda: vector.send(0, CLICK)):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    vector.close()


def test_close_ends_threads_and_desktops_that_are_under_way() -> None:
    factory = Factory(BlockingDesktop, Fault("perform", 1, "hang"))
    vector = DesktopVector(factory, 2, EpisodeOptions(max_steps=3), deadline=60)
    threads = [slot.worker.thread for slot in vector._slots]  # type: ignore[attr-defined]
    begin_all(vector)
    vector.send(0, CLICK)
    vector.close()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert all(desktop.closed for desktop in factory.made)


@pytest.mark.parametrize("use", [DesktopVector.receive, DesktopVector.drain])
def test_closing_from_another_thread_ends_a_wait(use: Callable[[DesktopVector], object]) -> None:
    factory = Factory(BlockingDesktop, Fault("perform", 1, "hang"))
    vector = DesktopVector(factory, 1, deadline=60)
    begin_all(vector)
    vector.send(0, CLICK)
    closing = threading.Timer(0.2, vector.close)
    closing.start()
    start = monotonic()
    with pytest.raises(RuntimeError, match="closed: create a new environment"):
        use(vector)
    assert monotonic() - start < 30
    closing.join(60)
    with pytest.raises(RuntimeError, match="closed"):
        use(vector)  # nor does one wait that begins later


def test_the_seconds_of_finished_calls_are_summed_over_desktops() -> None:
    gate = threading.Event()
    desktops: list[GatedDesktop] = []

    def make() -> GatedDesktop:
        desktops.append(GatedDesktop(gate))
        return desktops[-1]

    with DesktopVector(make, 2) as vector:
        begin_all(vector)
        before, start = vector.busy_seconds, monotonic()
        for i in range(2):
            vector.send(i, CLICK)
        assert all(desktop.waits.wait(60) for desktop in desktops)
        threading.Timer(0.2, gate.set).start()
        vector.receive(2)
        passed = monotonic() - start
        assert 0.4 <= vector.busy_seconds - before <= 2 * passed  # both waited for the gate, at the same time
        idle = vector.busy_seconds
        threading.Event().wait(0.05)
        assert vector.busy_seconds == idle


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_may_not_use_the_desktops_of_its_parent() -> None:
    """Their threads do not exist in it: it would wait for the whole deadline. Closing there leaves them alone."""

    def use(vector: DesktopVector) -> None:
        with pytest.raises(RuntimeError, match="belongs to the process that created it; fix: create the environment"):
            vector.send_reset(0, count_task(1), seed=0)
        vector.close()
        os._exit(0)

    factory = Factory(BlockingDesktop)
    with DesktopVector(factory, 1) as vector:
        child = multiprocessing.get_context("fork").Process(target=use, args=(vector,))
        child.start()
        child.join(60.0)
        assert child.exitcode == 0
        begin_all(vector)
        assert factory.made[0].closed == 0
