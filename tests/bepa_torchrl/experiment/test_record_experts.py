"""The oracles of a run's tasks are recorded on several desktops at once, in the order of the tasks."""

from __future__ import annotations

import threading

import pytest

from bepa_torchrl.experiment import expert_traces
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.expert_traces import record_experts
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.suites.sim.suite import sim_suite

TASKS = sim_suite().split("train")[:6]


def test_desktops_work_at_the_same_time_and_a_failed_one_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    together, failures = threading.Barrier(3, timeout=30), iter([True])
    made: list[SimDesktop] = []

    class Slow(SimDesktop):
        """Three must be reset at the same time; the first reset of all fails."""

        blocking = True
        made_ready = waited = False  # the constructor resets, too

        def __init__(self) -> None:
            super().__init__()
            self.made_ready = True
            made.append(self)

        def reset(self, seed: int) -> None:
            if self.made_ready and not self.waited:
                self.waited = True
                together.wait()
                if next(failures, False):
                    raise DesktopError(FailureReason.died, "the first")
            super().reset(seed)

    monkeypatch.setattr(expert_traces, "make_desktop", lambda *_, **__: Slow())
    settings = load_config(["env.desktops=3"])
    traces = record_experts(settings, TASKS)
    assert len(made) == 3
    assert [trace.task_id for trace in traces] == [task.id for task in TASKS]
    assert all(trace.success for trace in traces)


def test_a_desktop_in_this_process_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SimDesktop] = []

    def make(*_: object, **__: object) -> SimDesktop:
        made.append(SimDesktop())
        return made[-1]

    monkeypatch.setattr(expert_traces, "make_desktop", make)
    assert len(record_experts(load_config(), TASKS)) == 6
    assert len(made) == 1
