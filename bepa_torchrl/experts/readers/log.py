r"""Reads ``traj.jsonl``: JSON lines, in which one file may hold several runs and one step several lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.trace import TraceError, parse_json

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a log.

    Args:
        steps: the lines of each step; they have the same ``step_num``.
        notes: lines without an action, such as the first line of a human's log.
        error: the text of the runner's ``{"Error": ...}`` line, which ends a run; empty if there is none.
    """

    steps: tuple[tuple[Line, ...], ...]
    notes: tuple[Line, ...] = ()
    error: str = ""

    @property
    def ended(self) -> bool:
        """Whether the agent ended it, or the environment. One that neither did was interrupted, or had no step left."""
        return bool(self.steps) and any(_ends(line) for line in self.steps[-1])


def read_attempts(path: Path) -> list[Attempt]:
    """The runs of a log, in order; at least one.

    Raises:
        TraceError: the file is not readable, or a line is not a JSON object of a known kind; the message names it.
    """
    attempts = [_attempt(lines) for lines in _split(list(read_lines(path)))]
    if not attempts:
        raise TraceError(f"{path}: the log has no step")
    return attempts


def read_lines(path: Path) -> Iterator[tuple[str, Line]]:
    """(file and number, object) of each line that is not empty, as :func:`each_line`.

    Raises:
        TraceError: the file is not readable as UTF-8, or a line is not a JSON object.
    """
    for where, line in each_line(path):
        if isinstance(line, TraceError):
            raise line
        yield where, line


def each_line(path: Path) -> Iterator[tuple[str, Line | TraceError]]:
    r"""(file and number, object or what is wrong with it) of each line that is not empty.

    Lines end at ``\n`` only, not at other separators. A file that cannot be read is one error.
    """
    try:
        with path.open("rb") as file:  # iterating over bytes splits at \n only
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    yield f"{path}:{number}", _object(raw, f"{path}:{number}")
    except OSError as error:
        yield f"{path}", TraceError(f"{path}: not a readable log ({error.strerror})")


def _object(raw: bytes, where: str) -> Line | TraceError:
    try:
        line = parse_json(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return TraceError(f"{where}: not a JSON line, so the log was cut off or damaged ({error})")
    if not isinstance(line, dict):
        return TraceError(f"{where}: expected a JSON object, got {type(line).__name__}")
    return line


def _split(lines: Sequence[tuple[str, Line]]) -> list[list[tuple[str, Line]]]:
    """The lines of each run: a new one begins where the steps' numbers start again, or after a run's end.

    Notes are of the run of the step that they precede; the last ones of a log, of its last run.
    """
    runs: list[list[tuple[str, Line]]] = []
    notes: list[tuple[str, Line]] = []
    before: Line | None = None
    for where, line in lines:
        if _is_note(line):
            notes.append((where, line))
            continue
        if before is None or _begins(before, line):
            runs.append([])
        runs[-1] += [*notes, (where, line)]
        notes, before = [], line
    if notes and (before is None or "Error" in before):
        runs.append([])
    return [*runs[:-1], runs[-1] + notes] if runs else []


def _is_note(line: Line) -> bool:
    return not line.keys() & {"step_num", "action", "response", "Error"}


def _begins(before: Line, line: Line) -> bool:
    if "Error" in before:
        return True
    number, last = line.get("step_num"), before.get("step_num")
    if not isinstance(number, int) or not isinstance(last, int):
        return False
    if number != last:
        return number < last
    other_response = "response" in line and line["response"] != before.get("response")
    return other_response or _ends(before)


def _ends(line: Line) -> bool:
    return line.get("done") is True or line.get("action") in ("DONE", "FAIL")


def _attempt(lines: Sequence[tuple[str, Line]]) -> Attempt:
    steps: list[list[Line]] = []
    notes: list[Line] = []
    number: Any = None
    error = ""
    for where, line in lines:
        if "Error" in line:
            error = str(line["Error"]) or "unknown error"
        elif "action" in line:
            if number is None or line.get("step_num") != number:
                steps.append([])
            number = line.get("step_num")
            steps[-1].append(line)
        elif _is_note(line):
            notes.append(line)
        else:
            raise TraceError(f"{where}: expected the key 'action', got {', '.join(sorted(line)[:8])}")
    return Attempt(tuple(tuple(step) for step in steps), tuple(notes), error)
