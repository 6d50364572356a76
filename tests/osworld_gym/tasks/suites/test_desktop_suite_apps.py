"""Every task of the suite ``desktop`` on the real applications: score 0 untouched, 0 for waiting, 1 with its oracle.

Two desktops run at once; each test waits for its task. A third of the tasks is checked here, the others by
`make nightly`; those of the suite ``local`` are also checked by `make test-desktop`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import replace

import pytest

from bepa_torchrl.experts import plan_from_trace, record_expert
from bepa_torchrl.experts.conversion import convert_trace
from osworld_gym.desktops.home_template import apt
from osworld_gym.desktops.home_template.build import build_template
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.tasks.checks import check_task
from osworld_gym.tasks.suites.desktop.suite import desktop_suite
from osworld_gym.tasks.task import Task

pytestmark = [pytest.mark.apps, pytest.mark.timeout(900)]

DESKTOPS = 2
SEED = 7
TASKS = desktop_suite().tasks
Problems = Future[list[str]]


def check_all(tasks: queue.SimpleQueue[tuple[Task, Problems]]) -> None:
    """Checks tasks on one desktop until the queue is empty."""
    with LocalDesktop() as desktop:
        while True:
            try:
                task, problems = tasks.get_nowait()
            except queue.Empty:
                return
            if not problems.set_running_or_notify_cancel():
                continue
            try:
                problems.set_result(check_task(desktop, task, SEED))
            except Exception as error:  # noqa: BLE001  raised again where the result is read
                problems.set_exception(error)


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Iterator[dict[str, Problems]]:
    """Task id → problems of every selected task."""
    lacking = apt.missing(apt.required())
    assert not lacking, f"these tests require packages; fix: {' '.join([*apt.INSTALL, *lacking])}"
    build_template(lambda: LocalDesktop(1920, 1080, template=None), print)
    specs = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    out: dict[str, Problems] = {
        task.id: Future() for spec in specs if isinstance(task := spec.params.get("task"), Task)
    }
    tasks: queue.SimpleQueue[tuple[Task, Problems]] = queue.SimpleQueue()
    for task in TASKS:
        if task.id in out:
            tasks.put((task, out[task.id]))
    threads = [threading.Thread(target=check_all, args=(tasks,)) for _ in range(DESKTOPS)]
    for thread in threads:
        thread.start()
    yield out
    for problems in out.values():
        problems.cancel()
    for thread in threads:
        thread.join()


def in_this_tier_or_nightly() -> list[object]:
    """Tasks are ordered by application, so every third one is a sample of each."""
    sample = [task.id for task in TASKS if not task.id.startswith("local-")][::3]
    return [pytest.param(task, id=task.id, marks=() if task.id in sample else pytest.mark.nightly) for task in TASKS]


@pytest.mark.parametrize("task", in_this_tier_or_nightly())
def test_a_task_is_sound(task: Task, found: dict[str, Problems]) -> None:
    try:
        assert found[task.id].result(timeout=850) == []
    except CancelledError:
        pytest.fail("the checks ended early")


@pytest.mark.parametrize("name", ["desktop-writer-bold", "desktop-os-infeasible"])
def test_an_oracles_run_becomes_a_trace_with_a_plan(name: str) -> None:
    task = desktop_suite().task(name)
    with LocalDesktop() as desktop:
        trace = record_expert(desktop, task, SEED)
    assert trace.success
    assert convert_trace(trace).faithful
    lines = plan_from_trace(trace).splitlines()
    assert set(lines) & set(task.raw["plan"].splitlines())
    assert all(step.pyautogui for step in trace.steps if step.actions[0].kind != "call_user")


def test_an_unsound_task_is_found() -> None:
    """A task whose evaluator expects another file: the oracle does not score 1."""
    task = desktop_suite().task("desktop-os-link")
    wrong = replace(task, evaluator=task.evaluator | {"result": {"type": "vm_command_line", "command": ["true"]}})
    with LocalDesktop() as desktop:
        assert check_task(desktop, wrong, SEED) == ["the oracle is worth 0 after 2 steps, not 1"]
