"""The types and ranges of the fields of a run's record, checked where it is read. Imports no torch.

A record may be damaged by hand or by a disk. What is checked here is what the commands compute with: a value of another
type would end them with a traceback, one out of its range would be a wrong figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bepa_torchrl.storage.json_lines import RecordError

_LARGEST = 2**63 - 1  #: of an integer, which tables of other programs have room for
SOURCES = ("on_policy", "self_rolled", "converted", "raw_expert")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field may be.

    Args:
        name: as a message says it.
        fits: whether a value is of this kind.
        required: whether the field must be there.
    """

    name: str
    fits: Callable[[Any], bool]
    required: bool = True

    def or_null(self) -> Kind:
        """This kind, or null."""
        return Kind(f"{self.name} or null", lambda value: value is None or self.fits(value), self.required)

    def optional(self) -> Kind:
        """This kind, in a field that need not be there."""
        return Kind(self.name, self.fits, required=False)

    def list_of(self) -> Kind:
        """A list of this kind."""
        return Kind(f"a list, each {self.name}", lambda value: isinstance(value, list) and all(map(self.fits, value)))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST  # a bool is no number


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= 1e300  # neither NaN nor infinity


COUNT = Kind("an integer from 0", _is_count)
INTEGER = Kind("an integer", lambda value: type(value) is int and abs(value) <= _LARGEST)
NUMBER = Kind("a finite number", _is_number)
AMOUNT = Kind("a finite number from 0", lambda value: _is_number(value) and value >= 0)
RATE = Kind("a number in 0..1", lambda value: _is_number(value) and 0 <= value <= 1)
#: of metrics, which are NaN where nothing was measured
MEASURED = Kind("a number", lambda value: type(value) is float or _is_number(value))
MEASURED_RATE = Kind("a number in 0..1", lambda v: (type(v) is float and math.isnan(v)) or RATE.fits(v))
TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
SOURCE = Kind(f"one of {', '.join(SOURCES)}", lambda value: isinstance(value, str) and value in SOURCES)
_PLAIN = Kind("a text, a number or null", lambda value: value is None or isinstance(value, str | int | float))
TALLY = Kind(
    "[successes, episodes]",
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)) and value[0] <= value[1],
)

EPISODE = {
    "id": TEXT,
    "iteration": COUNT.or_null(),
    "group_id": COUNT,
    "slot": COUNT,
    "task_id": TEXT,
    "instruction": TEXT.optional(),
    "source": SOURCE,
    "provenance": OBJECT.or_null(),
    "copied_from": TEXT.or_null(),
    "off_policy": FLAG,
    "replaced": FLAG,
    "trained": FLAG,
    "policy_version": COUNT.or_null(),
    "updates": COUNT.list_of().or_null(),
    "age": INTEGER.or_null(),
    "reward": RATE.or_null(),
    "advantage": NUMBER.or_null(),
    "stop_reason": TEXT,
    "failure": TEXT.or_null(),
    "n_steps": COUNT,
    "replayed_steps": COUNT.or_null().optional(),
    "whole": FLAG,
    "steps": OBJECT.list_of(),
}
_TOKENS = COUNT.list_of().or_null()
_LOG_PROBS = NUMBER.or_null().list_of().or_null()
#: ``log_probs`` of a hosted model's step are null or empty; versions before the loss's log-probs lack those
STEP = {
    "screenshot": TEXT,
    "text": TEXT,
    "tokens": _TOKENS,
    "log_probs": _LOG_PROBS,
    "old_log_probs": _LOG_PROBS.optional(),
    "new_log_probs": _LOG_PROBS.optional(),
    "clipped": _TOKENS.optional(),
}
GROUP = {
    "iteration": COUNT,
    "group_id": COUNT,
    "task_id": TEXT,
    "valid": COUNT.optional(),
    "successes": COUNT.optional(),
    "refreshed": FLAG,
}
PROVENANCE = {
    "expert": TEXT,
    "origin": TEXT,
    "plan": TEXT.or_null(),
    "trace": TEXT.or_null().optional(),
    "attempt": COUNT.or_null().optional(),
    "handover": COUNT.or_null().optional(),
}
TOTALS = dict.fromkeys(("total/seconds", "total/episodes", "total/optimizer_steps"), AMOUNT)
_ITERATION = {"iteration": COUNT, "phase": TEXT}
#: beginnings of the names of metrics that are counts or times
_AMOUNTS = (
    "total/", "seconds_", "groups", "rows", "policy_version", "collect/failed_", "collect/stop_", "collect/retries",
    "collect/groups_", "collect/desktop", "collect/busy_seconds", "collect/queue_", "collect/episodes",
    "collect/steps", "cache/injected", "cache/refreshed", "cache/tasks",
    "train/optimizer_steps",
)  # fmt: skip
_NO_RATES = ("eval/episodes", "eval/failures", "eval/version_lag")


def check_fields(where: str, data: Any, kinds: Mapping[str, Kind]) -> None:
    """Checks fields of an object.

    Args:
        where: the file, and the place in it.
        data: the object; fields without a kind are not looked at.
        kinds: by name.

    Raises:
        RecordError: no object, or the first field that is missing or of another kind.
    """
    if not isinstance(data, dict):
        raise RecordError(f"{where}: expected an object, got {_shown(data)}; restore the file")
    for name, kind in kinds.items():
        if name not in data:
            if kind.required:
                raise RecordError(f"{where}: field {name!r} is missing, expected {kind.name}; restore the file")
        elif not kind.fits(data[name]):
            raise RecordError(
                f"{where}: field {name!r}: expected {kind.name}, got {_shown(data[name])}; restore the file"
            )


def check_episode(where: str, line: Mapping[str, Any]) -> None:
    """Checks an episode of the newest version of the record, with its steps. Raises RecordError."""
    check_fields(where, line, EPISODE)
    if "outcome" not in line:  # which an evaluation's have; those belong to no iteration
        check_fields(where, line, {"iteration": COUNT})
    if line["provenance"] is not None:
        check_provenance(f"{where}: field 'provenance'", line["provenance"])
    for number, step in enumerate(line["steps"]):
        place = f"{where}: step {number}"
        check_fields(place, step, STEP)
        tokens, log_probs = step["tokens"] or (), step["log_probs"] or ()
        if log_probs and len(log_probs) != len(tokens):
            raise RecordError(
                f"{place}: field 'log_probs': expected one for each of {len(tokens)} tokens, got {len(log_probs)}; "
                "restore the file"
            )


def check_provenance(where: str, data: Any) -> None:
    """Checks the expert's run that a trace goes back to. Raises RecordError."""
    check_fields(where, data, PROVENANCE)
    check_fields(where, data, dict.fromkeys(data, _PLAIN))
    if data["plan"] is not None:
        check_fields(where, data, {"attempt": COUNT})


def check_metrics(where: str, line: Mapping[str, Any]) -> None:
    """Checks a line of ``iterations.jsonl``; a metric that was not measured may be NaN or null. Raises RecordError."""
    check_fields(where, line, _ITERATION)
    check_fields(where, line, {name: _metric(name) for name in line if name not in _ITERATION})


def _metric(name: str) -> Kind:
    if name == "collect/success" or (name.startswith("eval/") and not name.startswith(_NO_RATES)):
        return MEASURED_RATE.or_null()
    return AMOUNT if name.startswith(_AMOUNTS) else MEASURED.or_null()


def check_results(path: Path, results: Mapping[str, Any]) -> None:
    """Checks what is read of a method's ``results.json``. Raises RecordError."""
    check_fields(str(path), results, dict.fromkeys(("settings", "success", "counts", "tasks"), OBJECT.optional()))
    check_fields(f"{path}: settings", results.get("settings", {}), {"iterations": COUNT.optional()})
    check_modes(f"{path}: success", results.get("success", {}), RATE.or_null())
    check_modes(f"{path}: counts", results.get("counts", {}), TALLY)


def check_modes(where: str, modes: Any, kind: Kind) -> None:
    """Checks an object of evaluations by mode, each with values of one kind. Raises RecordError."""
    check_fields(where, modes, dict.fromkeys(modes if isinstance(modes, dict) else (), OBJECT))
    for mode, values in modes.items():
        check_fields(f"{where}: {mode}", values, dict.fromkeys(values, kind))


def _shown(value: Any) -> str:
    """The beginning of a value in one line."""
    text = "a number of more than 30 digits" if type(value) is int and abs(value) > 10**30 else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
