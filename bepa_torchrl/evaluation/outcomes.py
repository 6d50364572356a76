"""The episodes of an evaluation as plain records: ``results.jsonl``, one line per task and pass.

There are three outcomes, which are never mixed: the policy succeeded, the policy failed, or there is no result, since
the infrastructure failed, the judge did, or the task cannot be executed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from bepa_torchrl.storage.json_lines import RecordError, json_line, read_lines
from bepa_torchrl.storage.record_fields import AMOUNT, COUNT, FLAG, NUMBER, TEXT, check_fields
from osworld_gym.atomic import write_text
from osworld_gym.tasks.task import Task

NOT_JUDGED = "not judged"  #: reason of an episode that was played, and is scored by a judge, which was not asked
RESULTS = "results.jsonl"
FACTS = "facts.json"


class Result(StrEnum):
    """The outcome of one episode."""

    success = "success"  #: the verifier's score is 1
    failure = "failure"  #: the verifier's score is less, or the policy ended its own desktop
    no_result = "no_result"  #: nothing is known about the policy


@dataclass(frozen=True, slots=True)
class Outcome:
    """One episode, or the lack of one.

    Args:
        task: id of the task.
        domain: the domain of the task.
        attempt: number of the pass over all tasks, from 0.
        result: success, failure or no result.
        score: the verifier's, in [0, 1]; None without a result.
        feasible: whether the task can be done; of the others, the right answer is that it cannot.
        stop: why the episode ended, a :class:`osworld_gym.types.StopReason`; empty if nobody knows.
        reason: why there is no result, or why what the policy left behind could not be read.
        retried: how often the episode was started again after an infrastructure failure.
        steps: responses of the policy.
        seconds: duration of the episode; 0 if nobody knows.
    """

    task: str
    domain: str
    attempt: int
    result: Result
    score: float | None
    feasible: bool = True
    stop: str = ""
    reason: str = ""
    retried: int = 0
    steps: int = 0
    seconds: float = 0.0


_KINDS = {
    "task": TEXT,
    "domain": TEXT,
    "attempt": COUNT,
    "score": NUMBER.or_null(),
    "feasible": FLAG.optional(),
    "stop": TEXT.optional(),
    "reason": TEXT.optional(),
    "retried": COUNT.optional(),
    "steps": COUNT.optional(),
    "seconds": AMOUNT.optional(),
}


def is_feasible(task: Task) -> bool:
    """Whether a task can be done: OSWorld's evaluator ``infeasible`` expects that the policy says that it cannot."""
    return task.evaluator.get("func") != "infeasible"


def write_outcomes(folder: Path, outcomes: Iterable[Outcome], facts: Mapping[str, Any]) -> None:
    """Writes ``results.jsonl`` and ``facts.json`` (how they were measured) into an existing folder."""
    write_text(folder / FACTS, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    write_text(folder / RESULTS, "".join(json_line(asdict(outcome)) for outcome in outcomes))


def read_outcomes(folder: Path) -> tuple[list[Outcome], dict[str, Any]]:
    """What :func:`write_outcomes` has written.

    Raises:
        RecordError: the folder has no complete evaluation, lines of another version, or a damaged one: a field of
            another type, a pass of a task twice, an incomplete last line.
    """
    path = folder / RESULTS
    if not path.is_file():
        raise RecordError(f"{folder}: expected the folder of an evaluation, it has no {RESULTS}; see bepa eval --out")
    known = {field.name for field in fields(Outcome)}
    outcomes: list[Outcome] = []
    passes: set[tuple[str, int]] = set()
    lines = read_lines(path)
    if len(lines) < len(path.read_bytes().splitlines()):  # it is written as a whole
        raise RecordError(f"{path}: the last line is incomplete; restore the file")
    for number, line in enumerate(lines, start=1):
        try:
            outcomes.append(Outcome(**{**line, "result": Result(line["result"])}))
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{path}:{number}: expected the keys {', '.join(sorted(known))}: {error}") from error
        check_fields(f"{path}: line {number}", line, _KINDS)
        if (of := (line["task"], line["attempt"])) in passes:
            raise RecordError(
                f"{path}: line {number}: expected each pass of a task once, got pass {of[1]} of {of[0]!r} twice; "
                "restore the file"
            )
        passes.add(of)
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{folder / FACTS} cannot be read ({error}); evaluate again with another --out") from error
    if not isinstance(facts, dict):
        got = type(facts).__name__
        raise RecordError(f"{folder / FACTS}: expected a JSON object, got {got}; evaluate again with another --out")
    return outcomes, facts


def by_task(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """The episodes that have a result, by task; tasks without one are left out."""
    tasks: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.result is not Result.no_result:
            tasks.setdefault(outcome.task, []).append(outcome)
    return tasks


def successes(outcomes: Sequence[Outcome]) -> list[float]:
    """1.0 for each success and 0.0 for each failure."""
    return [float(outcome.result is Result.success) for outcome in outcomes]
