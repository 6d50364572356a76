"""A run's state as Prometheus metrics: a file for the node exporter's textfile collector, and samples for others."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from bepa_torchrl.monitoring.status import run_status
from bepa_torchrl.storage.json_lines import RecordError
from osworld_gym.atomic import write_text

_log = logging.getLogger(__name__)
FILE = "status.prom"  #: in the run's folder
_EVERY = 15.0  #: seconds between two writes of the file
_PREFIX = "bepa_"
#: entry of a method's status → help text; all of them gauges
_GAUGES = {
    "iteration": "iterations trained",
    "iterations": "iterations of the whole training",
    "finished": "1 if the final results are written",
    "seconds": "seconds of training so far",
    "episodes": "rollouts so far",
    "optimizer_steps": "optimiser steps so far",
    "seconds_per_iteration": "over the last iterations",
    "episodes_per_second": "over the last iterations",
    "collecting": "share of the time that the trainer waited for rollouts, over the last iterations",
    "utilisation": "share of that time that an average desktop had a call under way",
    "seconds_left": "estimated seconds of training left",
    "seconds_since_last": "seconds since the last iteration",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric.

    Args:
        name: the name of the metric.
        help: one line on it.
        labels: name to value.
        value: in the unit of the metric.
    """

    name: str
    help: str
    labels: Mapping[str, str]
    value: float


def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
    """The values of a run's status (:func:`bepa_torchrl.monitoring.status.run_status`); unknown ones are left out."""
    run = {"run": Path(status["folder"]).name}
    yield Sample(f"{_PREFIX}running", "1 if a process runs it", run, float(status["running"]))
    for method, state in status["methods"].items():
        labels = run | {"method": method}
        for key, text in _GAUGES.items():
            if state.get(key) is not None:
                yield Sample(f"{_PREFIX}{key}", text, labels, float(state[key]))
        for kind, count in state["failures"].items():
            yield Sample(f"{_PREFIX}failures", "failures so far, by kind", labels | {"kind": kind}, float(count))
        for age, count in state["staleness"].items():
            text = "trained groups, by the batches between their admission and their training"
            yield Sample(f"{_PREFIX}staleness_groups", text, labels | {"batches": age}, float(count))
        for key, value in state["newest"].items():
            name = _PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", key)
            yield Sample(name, f"{key} of the last iteration that has it", labels, float(value))


def method_samples(folder: Path) -> list[Sample]:
    """The samples of one method. Raises as :func:`bepa_torchrl.monitoring.status.run_status`.

    Args:
        folder: the folder of the method, in the run's folder.
    """
    status = run_status(folder.parent)
    own = status | {"methods": {folder.name: status["methods"][folder.name]}}
    return [sample for sample in samples(own) if "method" in sample.labels]


def prometheus_text(status: Mapping[str, Any]) -> str:
    """The run's status in Prometheus' text format, version 0.0.4."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples(status):
        by_name.setdefault(sample.name, []).append(sample)
    lines = []
    for name, family in by_name.items():
        lines += [f"# HELP {name} {family[0].help}", f"# TYPE {name} gauge"]
        for sample in family:
            labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in sample.labels.items())
            lines.append(f"{name}{{{labels}}} {sample.value!r}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class StatusFile:
    """Writes ``status.prom`` into a run's folder, at most every 15 seconds.

    Args:
        folder: the folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._due = 0.0  #: monotonic seconds

    def update(self, *, ended: bool = False) -> None:
        """Writes the file if it is due, or if the run has ended; a failure is logged, it must not end the run."""
        if not ended and monotonic() < self._due:
            return
        self._due = monotonic() + _EVERY
        try:
            status = run_status(self._folder)
            write_text(self._folder / FILE, prometheus_text(status | {"running": not ended}), durable=False)
        except (OSError, RecordError) as error:
            _log.warning("%s is not written: %s", self._folder / FILE, error)
