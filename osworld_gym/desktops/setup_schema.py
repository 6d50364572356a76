"""The setup steps' parameters as a table, and the check of a step against it.

OSWorld passes parameters on unchecked, so that a mistake in a task file is found only when the step runs, or never.
Here a file is checked when it is loaded; the message names the file, the position in it, and what was expected.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osworld_gym.errors import TaskError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its allowed types, and whether it is required."""

    kinds: tuple[type, ...]
    required: bool = False


_FLAG = Parameter((bool, str))  # OSWorld passes shell on to Python: any string that is not empty is true
_COMMAND = Parameter((str, list), required=True)
_TEXT = Parameter((str,), required=True)
_LIST = Parameter((list,), required=True)
_OUTPUT = Parameter((str,))
_TABLE = Parameter((dict,))
_EXECUTE = {"command": _COMMAND, "shell": _FLAG, "stdout": _OUTPUT, "stderr": _OUTPUT, "until": Parameter((dict,))}
_WINDOW = {"window_name": _TEXT, "strict": _FLAG, "by_class": _FLAG}

SIM = "sim"  #: the step of the simulated desktop
#: step → parameter → requirements. Steps of one provider only (``sim``) are not listed; the provider checks them.
STEPS: dict[str, dict[str, Parameter]] = {
    "arrange": {"files": _TABLE, "folders": Parameter((list,)), "others": _TABLE, "menu": _TABLE},
    "download": {"files": _LIST},
    "upload_file": {"files": _LIST},
    "write_file": {"path": _TEXT, "content": _TEXT},
    "launch": {"command": _COMMAND, "shell": _FLAG, "window": Parameter((bool,))},
    "open": {"path": _TEXT},
    "execute": _EXECUTE,
    "command": _EXECUTE,
    "sleep": {"seconds": Parameter((int, float, str), required=True)},
    "activate_window": _WINDOW,
    "close_window": _WINDOW,
    "chrome_open_tabs": {"urls_to_open": _LIST},
    "chrome_close_tabs": {"urls_to_close": _LIST},
    "open_site": {"url": _TEXT},
    "update_browse_history": {"history": _LIST},
    "change_wallpaper": {"path": _TEXT},
    "googledrive": {"settings_file": Parameter((str,)), "operation": _LIST, "args": _LIST},
    "login": {"settings_file": Parameter((str,)), "platform": _TEXT},
}

#: the members of a list of objects: step → parameter → keys that each must have, with their types
MEMBERS: dict[tuple[str, str], dict[str, tuple[type, ...]]] = {
    ("download", "files"): {"url": (str,), "path": (str,)},
    ("upload_file", "files"): {"local_path": (str,), "path": (str,)},
    ("update_browse_history", "history"): {
        "url": (str,),
        "title": (str,),
        "visit_time_from_now_in_seconds": (int, float),
    },
}

#: keys of a setup step, and of a command's ``until``
STEP_KEYS = ("type", "parameters")
UNTIL_KEYS = ("returncode", "stdout", "stderr")
#: how similar an unknown key is to a known one, in [0, 1], to be taken for a mistake (``params``: ``parameters``)
SIMILAR = 0.75


def check_step(step: Any, where: str) -> None:
    """Checks one setup step; ``where`` is its position, for error messages.

    Raises:
        TaskError: not a step, its type or a key is misspelled, or a parameter is missing, unknown or of the wrong type.
    """
    if not isinstance(step, Mapping) or not isinstance(step.get("type"), str):
        raise TaskError(f"{where}: expected an object with a string 'type', got {step!r}")
    check_spelling(step, STEP_KEYS, where)
    name, parameters = step["type"], step.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise TaskError(f"{where}: setup step {name!r}: 'parameters' must be an object, got {parameters!r}")
    if name in STEPS:
        _check_parameters(name, parameters, where)
    elif name != SIM and (close := difflib.get_close_matches(name.lower(), [*STEPS, SIM], n=1, cutoff=SIMILAR)):
        raise TaskError(
            f"{where}: unknown setup step {name!r} (did you mean {close[0]!r}?); known: {', '.join([SIM, *STEPS])}; "
            "fix, for a step of a provider of your own: a name that is less similar"
        )


def check_spelling(given: Iterable[str], known: Sequence[str], where: str) -> None:
    """Checks the keys of an object that may have keys of its own, as OSWorld's files have.

    Raises:
        TaskError: an unknown key looks like a known one, so that what it says would have no effect.
    """
    for key in given:
        close = difflib.get_close_matches(str(key).lower(), known, n=1, cutoff=SIMILAR) if key not in known else ()
        if close:
            raise TaskError(
                f"{where}: unknown key {key!r} (did you mean {close[0]!r}?); known: {', '.join(known)}; fix, for a key "
                "of your own: a name that is less similar"
            )


def _check_parameters(name: str, parameters: Mapping[str, Any], where: str) -> None:
    table = STEPS[name]
    unknown = sorted(set(parameters) - set(table))
    if unknown:
        known = ", ".join(table)
        raise TaskError(f"{where}: setup step {name!r}: unknown parameters: {', '.join(unknown)}; known: {known}")
    for key, expected in table.items():
        if key not in parameters and not expected.required:
            continue
        if not isinstance(parameters.get(key), expected.kinds):
            got = repr(parameters[key]) if key in parameters else "nothing"
            raise TaskError(
                f"{where}: setup step {name!r}: parameter {key!r} must be {_names(expected.kinds)}, got {got}"
            )
        _check_members(name, key, parameters[key], where)
    unknown = sorted(set(parameters.get("until") or ()) - set(UNTIL_KEYS))
    if unknown:
        known = ", ".join(UNTIL_KEYS)
        raise TaskError(f"{where}: setup step {name!r}: 'until' has no {', '.join(unknown)}; known: {known}")


def _check_members(name: str, key: str, value: Any, where: str) -> None:
    for member in value if (name, key) in MEMBERS else ():
        for field, kinds in MEMBERS[name, key].items():
            if not isinstance(member, Mapping) or not isinstance(member.get(field), kinds):
                raise TaskError(
                    f"{where}: setup step {name!r}: each of {key!r} requires {field!r} ({_names(kinds)}), "
                    f"got {member!r}"
                )


def _names(kinds: Sequence[type]) -> str:
    return " or ".join(kind.__name__ for kind in kinds)
