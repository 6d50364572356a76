"""The process that runs our getters and metrics: one request per line on stdin, one reply per line on stdout.

``own_pool.py`` runs it as a module. Whatever parses what the policy left behind runs here, within limits of memory and
CPU time. The desktop is in the other process, which answers ``{"call", "arguments"}`` (``served_desktop.py``). Replies:
``{"ready"}`` once at the start, ``{"score"}``, or by exception ``{"broken"}``, ``{"exhausted"}``, ``{"desktop"}``,
``{"task"}``, ``{"error"}``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from functools import reduce
from typing import IO, Any

from osworld_gym.errors import DesktopError, ReplyTooLarge, TaskError
from osworld_gym.tasks.evaluation.check import Check, our_score
from osworld_gym.tasks.evaluation.getters import GETTERS
from osworld_gym.tasks.evaluation.metrics import METRICS
from osworld_gym.tasks.evaluation.sidecar.blobs import read_blob
from osworld_gym.tasks.evaluation.sidecar.calling import (
    BrokenResult,
    Exhausted,
    Limits,
    address_space,
    lift_memory_limit,
    limit_process,
)
from osworld_gym.tasks.evaluation.sidecar.served_desktop import ServedDesktop, ServedFiles, raised
from osworld_gym.tasks.setup.run import TaskRun
from osworld_gym.tasks.task import Task

Fields = dict[str, Any]


class Evaluations:
    """Answers the requests of the other process until it closes the pipe."""

    def __init__(self, questions: IO[str], replies: IO[str]) -> None:
        self._questions, self._replies = questions, replies
        self._base = address_space()

    def run(self) -> None:
        self._say({"ready": True})
        while line := self._questions.readline():
            self._say(self._reply(json.loads(line)))

    def _reply(self, question: Fields) -> Fields:
        try:
            limits = Limits(**question["limits"])
            limit_process(limits, self._base)
            return {"score": self._score(question, limits)}
        except MemoryError:
            lift_memory_limit()
            return {"exhausted": "the evaluator reached its limit of memory"}
        except (Exhausted, ReplyTooLarge) as error:
            return {"exhausted": str(error)}
        except BrokenResult as error:
            return {"broken": str(error)}
        except DesktopError as error:
            return {"desktop": [error.reason.value, error.message]}
        except TaskError as error:
            return {"task": str(error)}
        except Exception as error:  # noqa: BLE001  process boundary: any exception is reported to the pool
            return {"error": f"{type(error).__name__}: {error}"}

    def _score(self, question: Fields, limits: Limits) -> float:
        check = Check(**question["check"])
        METRICS.replace(check.func, _named(question["metric"]))
        for kind, name in question["getters"].items():
            GETTERS.replace(kind, _named(name))
        outputs = {name: read_blob(blob) for name, blob in question["outputs"].items()}
        task = Task.from_json(question["task"])
        run = TaskRun(task, ServedDesktop(self._call), ServedFiles(self._call), outputs, question["seed"])
        return our_score(run, check, limits)

    def _call(self, name: str, *arguments: Any) -> Any:
        """The answer of the other process to one call."""
        self._say({"call": name, "arguments": arguments})
        answer: Mapping[str, Any] = json.loads(self._questions.readline())
        return raised(*answer["raised"]) if "raised" in answer else answer["value"]

    def _say(self, fields: Fields) -> None:
        self._replies.write(json.dumps(fields) + "\n")
        self._replies.flush()


def _named(reference: str) -> Any:
    """The function ``module:qualified.name``."""
    module, _, name = reference.partition(":")
    return reduce(getattr, name.split("."), importlib.import_module(module))


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a metric prints goes to the log, not into the replies
    Evaluations(sys.stdin, out).run()
