"""The warm pool and admission control: prepared in advance, bounded, typed failures, nothing left running."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.checks import run_checks
from osworld_gym.desktops.local.admission import Admission
from osworld_gym.desktops.pool import PooledDesktop, WarmPool
from osworld_gym.desktops.remote.desktop import RemoteDesktop
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.testing import CLICK, FINISHED, BlockingDesktop, Fault, count_task
from osworld_gym.types import Action, StopReason
from osworld_gym.vector import DesktopVector


class SlowDesktop(BlockingDesktop):
    """A desktop that takes a while in ``prepare`` or, if not prepared, in ``reset``."""

    def __init__(self, *faults: Fault, seconds: float = 0.2) -> None:
        super().__init__(*faults)
        self.seconds, self.prepared = seconds, False

    def prepare(self) -> None:
        self._fault("prepare")
        time.sleep(self.seconds)
        self.prepared = True

    def reset(self, seed: int) -> None:
        if not self.prepared:
            self.prepare()
        self.prepared = False
        super().reset(seed)


class Factory:
    """Creates desktops, thread-safe, and keeps them for inspection. ``faults``: the faults of the first ones."""

    def __init__(self, *faults: tuple[Fault, ...], seconds: float = 0.2) -> None:
        self.made: list[SlowDesktop] = []
        self._faults, self._seconds, self._lock = list(faults), seconds, threading.Lock()

    def __call__(self) -> Desktop:
        with self._lock:
            desktop = SlowDesktop(*(self._faults.pop(0) if self._faults else ()), seconds=self._seconds)
            self.made.append(desktop)
        return desktop


def soon(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.005)
    return holds()


class SimOnThread(SimDesktop):
    """The simulated desktop as a blocking provider, to run the contract's checks through the pool."""

    blocking = True


def test_the_pool_keeps_the_contract() -> None:
    pool = WarmPool(SimOnThread, 2)
    try:
        assert [r for r in run_checks(pool.desktop) if r.outcome != "passed"] == []
    finally:
        pool.close()


@pytest.mark.parametrize("kind", [PooledDesktop, RemoteDesktop])
def test_a_desktop_in_front_of_another_forwards_every_method(kind: type[Desktop]) -> None:
    """A method with a default that is not forwarded would do nothing, silently."""
    methods = {name for name, value in vars(Desktop).items() if callable(value) and name[0] != "_"}
    assert methods - set(vars(kind)) - {"prepare"} == set()


def test_a_pooled_desktop_waits_and_counts_what_was_cut() -> None:
    class Cutting(BlockingDesktop):
        waited: ClassVar[list[float]] = []

        def perform(self, actions: Sequence[Action]) -> None:
            super().perform(actions)
            self.cut_actions += 1

        def wait_still(self, deadline: float) -> None:
            self.waited.append(deadline)

    pool = WarmPool(Cutting, 1)
    with pool.desktop() as desktop:
        for seed in (1, 2):
            desktop.reset(seed)
            desktop.perform([Action("wait")])
        desktop.wait_still(0.5)
    pool.close()
    assert (desktop.cut_actions, Cutting.waited) == (2, [0.5])


def test_a_ready_desktop_is_handed_out_at_once_and_takes_its_seed() -> None:
    factory = Factory(seconds=0.3)
    pool = WarmPool(factory, 1)
    desktop = pool.desktop()
    assert soon(lambda: pool.ready == 1)
    (first,) = factory.made
    desktop.reset(5)
    assert first._calls == {"prepare": 1, "reset": 1}, "prepared once, before it was asked for"
    direct = SlowDesktop(seconds=0)
    direct.reset(5)
    assert (desktop.screenshot().pixels == direct.screenshot().pixels).all()
    desktop.close()
    pool.close()
    assert all(made.closed for made in factory.made)


def test_used_desktops_are_prepared_again_instead_of_new_ones() -> None:
    factory = Factory(seconds=0.0)
    pool = WarmPool(factory, 2)
    desktops = [pool.desktop() for _ in range(3)]
    for seed in range(20):
        for desktop in desktops:
            desktop.reset(seed)
            desktop.write_file("/left", b"x")
    assert len(factory.made) <= 3 + 2
    for desktop in desktops:
        desktop.close()
    pool.close()
    assert all(made.closed for made in factory.made)


def test_a_failed_start_is_counted_and_another_desktop_takes_its_place() -> None:
    factory = Factory((Fault("prepare", 1, "never_ready"),), (Fault("prepare", 1, "bug"),), seconds=0.0)
    pool = WarmPool(factory, 1)
    desktop = pool.desktop()
    desktop.reset(0)
    # the third may be ready before the second has failed
    assert soon(lambda: pool.failures == {FailureReason.never_ready: 1, FailureReason.died: 1}), pool.failures
    assert soon(lambda: all(made.closed > 0 for made in factory.made[:2]))
    desktop.close()
    pool.close()


def test_a_taker_waits_until_its_deadline_and_gets_the_reason() -> None:
    factory = Factory(*[(Fault("prepare", 1, "setup_failed"),)] * 50, seconds=0.0)
    pool = WarmPool(factory, 1, deadline=0.5)
    with pytest.raises(DesktopError, match="the last failure: setup_failed: planned") as caught:
        pool.desktop().reset(0)
    assert caught.value.reason is FailureReason.never_ready
    pool.close()
    assert all(made.closed for made in factory.made)


def begin_reset(desktop: Desktop) -> tuple[threading.Thread, list[DesktopError]]:
    """A thread that resets the desktop, and the errors that it got."""
    seen: list[DesktopError] = []

    def reset() -> None:
        try:
            desktop.reset(0)
        except DesktopError as error:
            seen.append(error)

    thread = threading.Thread(target=reset)
    thread.start()
    return thread, seen


def waits_in_pool(thread: threading.Thread) -> bool:
    """Whether a function of the pool's module is on the thread's stack."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and not frame.f_code.co_filename.endswith("/pool.py"):
        frame = frame.f_back
    return frame is not None


def test_a_taker_that_is_closed_meanwhile_waits_no_longer() -> None:
    prepared = threading.Event()

    class Unprepared(BlockingDesktop):
        def prepare(self) -> None:
            assert prepared.wait(120)

    pool = WarmPool(Unprepared, 1)
    desktop = pool.desktop()
    thread, seen = begin_reset(desktop)
    assert soon(lambda: waits_in_pool(thread))
    desktop.close()
    thread.join(60)
    prepared.set()
    assert not thread.is_alive()
    assert seen[0].reason is FailureReason.never_ready
    pool.close()


def test_a_desktop_that_takes_long_to_close_holds_no_other_up() -> None:
    may_prepare, may_close = threading.Event(), threading.Event()
    may_prepare.set()

    class Slow(BlockingDesktop):
        waits = False

        def prepare(self) -> None:
            assert may_prepare.wait(120)

        def close(self) -> None:
            if self.waits:
                assert may_close.wait(120)
            super().close()

    pool = WarmPool(Slow, 1)
    used, given_up, other = (pool.desktop() for _ in range(3))
    used.reset(0)
    assert soon(lambda: pool.ready == 1)
    may_prepare.clear()
    pool.desktop().reset(0)
    waiting, _ = begin_reset(given_up)
    assert soon(lambda: pool._starting == 2)
    given_up.close()  # the desktop that was for it will be one too many
    waiting.join(60)
    may_prepare.set()
    assert soon(lambda: pool.ready == 2)
    assert isinstance(used.inner, Slow)
    used.inner.waits = True
    closing, _ = begin_reset(used)  # its desktop is not needed any more
    assert soon(lambda: pool.ready == 1)
    taking, seen = begin_reset(other)
    taking.join(10)
    held_up = taking.is_alive()
    may_close.set()
    for thread in (taking, closing):
        thread.join(60)
    pool.close()
    assert not held_up
    assert seen == []


def test_a_vector_with_a_warm_pool_plays_and_counts_its_failures() -> None:
    died, hung = (Fault("perform", 1, "died"),), (Fault("perform", 1, "hang"),)
    factory = Factory((), died, hung, seconds=0.01)
    with DesktopVector(factory, 2, EpisodeOptions(max_steps=2), deadline=1.5, warm=2) as vector:
        stops: list[StopReason | None] = []
        for seed in range(6):
            for i in range(2):
                vector.send_reset(i, count_task(1), seed)
            running = [i for i, result in vector.receive(2) if not result.done]
            for i in running:
                vector.send(i, CLICK)
            running = [i for i, result in vector.receive(2) if not (stops.append(result.stop) or result.done)]
            for i in running:
                vector.send(i, FINISHED)
            assert all(result.reward == 1.0 for _, result in vector.receive(2))
        assert stops.count(StopReason.env_error) == 2
        assert vector.failures == {FailureReason.died: 1, FailureReason.hung: 1}
    assert all(made.closed for made in factory.made)


def test_warm_is_refused_for_a_desktop_in_this_process() -> None:
    with pytest.raises(ValueError, match="needs no warm pool"):
        DesktopVector(SimDesktop, 2, warm=1)


# --- close() and deadlines during a reset -----------------------------------------------------------------------------


class GuestCount:
    """Counts running guests, and lets a test pause the start of a guest."""

    def __init__(self) -> None:
        self.running = 0
        self.lock = threading.Lock()
        self.seeding, self.go_on = threading.Event(), threading.Event()

    def count(self, change: int) -> None:
        with self.lock:
            self.running += change


class RestartingDesktop(BlockingDesktop):
    """Like a real provider: a prepared guest that ended before its reset is replaced by a new one."""

    def __init__(self, machine: GuestCount) -> None:
        super().__init__()
        self._machine, self._runs, self._prepared = machine, False, False

    def prepare(self) -> None:
        self._start()
        self._prepared = True

    def reset(self, seed: int) -> None:
        if self._prepared and not self._machine.seeding.is_set():
            self._machine.seeding.set()
            self._machine.go_on.wait(10)
        if not (self._prepared and self._runs):
            self._start()
        self._prepared = False
        super().reset(seed)

    def _start(self) -> None:
        self._end()
        self._machine.count(1)
        self._runs = True

    def _end(self) -> None:
        if self._runs:
            self._machine.count(-1)
        self._runs = False

    def close(self) -> None:
        self._end()


def test_a_desktop_closed_while_it_gets_its_seed_leaves_nothing_running() -> None:
    """Regression: close() ended the guest, but reset() then started another one that was never ended."""
    machine = GuestCount()
    pool = WarmPool(lambda: RestartingDesktop(machine), 1)
    desktop = pool.desktop()
    thread, seen = begin_reset(desktop)
    assert machine.seeding.wait(60)
    desktop.close()
    machine.go_on.set()
    thread.join(60)
    pool.close()
    assert [error.reason for error in seen] == [FailureReason.never_ready]
    assert machine.running == 0


def test_a_call_given_up_while_its_desktop_gets_its_seed_leaves_nothing_running() -> None:
    machine = GuestCount()
    with DesktopVector(lambda: RestartingDesktop(machine), 1, deadline=0.3, warm=1) as vector:
        vector.send_reset(0, count_task(1), 0)
        assert vector.receive(1)[0][1].failure is FailureReason.hung
        machine.go_on.set()
    assert soon(lambda: machine.running == 0), machine.running


# --- admission -------------------------------------------------------------------------------------------------------

GIB = 1 << 30


class Machine:
    """A machine with a fixed amount of memory, of which each start immediately uses its share."""

    def __init__(self, free: int, running: int = 1) -> None:
        self.free, self.running = free, running


def test_at_most_so_many_start_at_a_time_and_all_get_their_turn() -> None:
    admission = Admission(2, free=lambda: 64 * GIB, running=lambda: 1)
    most, lock, done = [0], threading.Lock(), []

    def begin() -> None:
        with admission.start(256):
            with lock:
                most[0] = max(most[0], admission.starting)
            time.sleep(0.02)
        done.append(1)

    threads = [threading.Thread(target=begin) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(done), most[0], admission.starting) == (16, 2, 0)


def test_a_start_waits_for_memory_and_goes_when_it_is_there() -> None:
    machine = Machine(free=GIB // 4)
    admission = Admission(2, reserve=512, free=lambda: machine.free, running=lambda: 1)
    started = threading.Event()

    def begin() -> None:
        with admission.start(256):
            started.set()

    thread = threading.Thread(target=begin)
    thread.start()
    assert not started.wait(0.3)
    machine.free = 2 * GIB
    assert started.wait(60)
    thread.join(60)


def test_memory_that_is_never_free_is_reported_as_never_ready() -> None:
    admission = Admission(2, reserve=512, deadline=0.3, free=lambda: GIB // 4, running=lambda: 1)
    wanted = "256 MiB of memory are available, 768 MiB are required"
    with pytest.raises(DesktopError, match=wanted) as caught, admission.start(256):
        raise AssertionError("it must not start")
    assert caught.value.reason is FailureReason.never_ready
    assert admission.starting == 0


def test_a_crowded_machine_starts_one_at_a_time_but_does_start() -> None:
    admission = Admission(4, free=lambda: 64 * GIB, running=lambda: 10_000)
    most, threads = [0], []

    def begin() -> None:
        with admission.start(256):
            most[0] = max(most[0], admission.starting)
            time.sleep(0.02)

    for _ in range(6):
        threads.append(threading.Thread(target=begin))
        threads[-1].start()
    for thread in threads:
        thread.join(60)
    assert most[0] == 1


def test_a_start_that_fails_gives_its_turn_back() -> None:
    admission = Admission(1, deadline=1.0, free=lambda: 64 * GIB, running=lambda: 1)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="broken"), admission.start(1):
            raise RuntimeError("broken")
    assert admission.starting == 0
