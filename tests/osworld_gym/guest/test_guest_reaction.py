"""When a reaction is over: what a sleeping program waits for, and which of its timers are awaited."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from osworld_gym.guest.process import reaction
from osworld_gym.guest.process.reaction import HORIZON, LIGHT, Reaction, used, wakes

NOW = 1000.0
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls are known by their x86-64 numbers")


def at(line: str, parts: tuple[int, int] = (0, 0)) -> float | None:
    return wakes(1, line.split(), NOW, lambda _pid, _address: parts)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("running", None),
        ("7 0x55 0x3 0x96 0x0 0x0 0x0", NOW + 0.15),  # poll, 150 ms
        ("7 0x55 0x3 0xffffffff 0x0 0x0 0x0", math.inf),  # poll, -1
        ("232 0x4 0x7f 0x100 0xffffffffffffffff 0x0 0x8", math.inf),  # epoll_wait, -1
        ("281 0x4 0x7f 0x100 0x14 0x0 0x8", NOW + 0.02),  # epoll_pwait, 20 ms
        ("271 0x55 0x3 0x0 0x0 0x0 0x0", math.inf),  # ppoll, no timeout
        ("23 0x5 0x7f 0x0 0x0 0x0 0x0", math.inf),  # select, no timeout
        ("61 0xffffffff 0x7f 0x0 0x0 0x0 0x0", math.inf),  # wait4
        ("202 0x55 0x189 0x0 0x0 0x0 0xffffffff", math.inf),  # futex, no timeout
        ("202 0x55 0x81 0x1 0x0 0x0 0x0", None),  # futex, wakes others
        ("999 0x0 0x0 0x0 0x0 0x0 0x0", None),
    ],
)
def test_a_system_call_tells_when_a_program_wakes(line: str, expected: float | None) -> None:
    found = at(line)
    assert found == (expected if expected is None else pytest.approx(expected))


def test_timeouts_in_memory_are_read() -> None:
    assert at("271 0x55 0x3 0x7ffe 0x0 0x0 0x0", (0, 250_000_000)) == pytest.approx(NOW + 0.25)
    assert at("23 0x5 0x7f 0x0 0x0 0x7ffe 0x0", (1, 500_000)) == pytest.approx(NOW + 1.5), "select counts microseconds"
    assert at("230 0x1 0x0 0x7ffe 0x0 0x0 0x0", (2, 0)) == pytest.approx(NOW + 2.0)
    assert at("230 0x1 0x1 0x7ffe 0x0 0x0 0x0", (1003, 0)) == pytest.approx(1003.0), "an absolute time"
    assert at("202 0x55 0x80 0x0 0x7ffe 0x0 0x0", (0, 5_000_000)) == pytest.approx(NOW + 0.005)
    later = time.time() + 3
    found = at("202 0x55 0x189 0x0 0x7ffe 0x0 0xffffffff", (int(later), 0))
    assert found == pytest.approx(time.monotonic() + 3, abs=1.5), "of the system's clock"


@contextmanager
def program(code: str) -> Iterator[int]:
    """A Python program that has printed a line."""
    command = [sys.executable, "-c", f"import time, select\nprint(1, flush=True)\n{code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.kill()


def settled(watched: Reaction, calm: float, deadline: float) -> float | None:
    """Seconds until nothing has happened for ``calm`` seconds; None after ``deadline``."""
    start = time.monotonic()
    while (now := time.monotonic()) - start < deadline:
        if now - watched.calm_since(now) >= calm and watched.complete():
            return now - start
        time.sleep(0.01)
    return None


@on_x86
def test_programs_that_wait_for_input_are_calm() -> None:
    with program("input()") as pid:
        assert settled(Reaction(lambda: [pid], lambda: []), 0.03, 20.0) is not None


@on_x86
def test_a_program_that_has_ended_is_calm() -> None:
    with program("") as pid:
        assert settled(Reaction(lambda: [pid], lambda: []), 0.03, 20.0) is not None, "its parent has not reaped it"


@on_x86
def test_a_running_program_is_never_calm() -> None:
    with program("while True: pass") as pid:
        assert settled(Reaction(lambda: [pid], lambda: []), 0.03, 1.0) is None
        assert settled(Reaction(lambda: [], lambda: [pid]), 0.03, 1.0) is None, "neither is the X server"


@on_x86
def test_a_timer_of_the_last_work_is_awaited() -> None:
    with program("select.poll().poll(200); input()") as pid:
        seconds = settled(Reaction(lambda: [pid], lambda: []), 0.03, 20.0)
    assert seconds is not None
    assert seconds >= 0.18, "the timer fires after 0.2 s; then the program waits for input"


@on_x86
def test_a_timer_that_repeats_is_not_awaited_for_ever() -> None:
    with program("while True: select.poll().poll(150)") as pid:
        seconds = settled(Reaction(lambda: [pid], lambda: []), 0.03, 20.0)
    assert seconds is not None
    assert seconds >= HORIZON - 0.15 - 0.02, "a timer of 0.26 s could hide behind the one of 0.15 s until then"


def test_a_far_timer_is_not_awaited() -> None:
    seen = reaction._Program(NOW, HORIZON)
    seen.due = NOW + 10
    watched = Reaction(lambda: [], lambda: [])
    assert not watched._pending(seen, NOW)
    seen.due = NOW + HORIZON - 0.01
    assert watched._pending(seen, NOW)
    assert not watched._pending(seen, NOW + HORIZON)
    seen.due = None
    assert watched._pending(seen, NOW + 10), "what a program waits for is not known"


def test_a_timer_that_does_nothing_is_not_work() -> None:
    program = reaction._Program(NOW, HORIZON)
    assert program.looked_at(5 * LIGHT, NOW), "what it did before the first look is not known"
    program.due = NOW + 0.1
    assert program.looked_at(6 * LIGHT, NOW + 0.05), "an event woke it before its timer"
    assert program.worked == NOW + 0.05
    program.due = NOW + 0.1
    assert not program.looked_at(6 * LIGHT + LIGHT // 2, NOW + 0.1), "its timer woke it"
    assert program.worked == NOW + 0.05
    program.due = None  # seen while it runs: the same run goes on
    assert not program.looked_at(6 * LIGHT + LIGHT * 3 // 4, NOW + 0.11)
    program.due = None
    assert program.looked_at(7 * LIGHT, NOW + 0.12), "it did something after all"
    assert program.worked == NOW + 0.12


def test_a_new_program_is_not_overlooked() -> None:
    listed: list[int] = []
    watched = Reaction(lambda: list(listed), lambda: [])
    assert watched.complete()
    listed.append(os.getppid())
    assert not watched.complete()
    assert watched.complete()


def test_processor_time_is_that_of_the_process() -> None:
    before = used(os.getpid())
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    after = used(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before >= 15_000_000, "nanoseconds"
    with program("input()") as pid:
        assert used(pid) is not None
    assert used(pid) is None
