"""Builders of the local suite's tasks: setup steps, evaluators, oracle scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from osworld_gym.tasks.task import Task

Data = dict[str, Any]

DOCUMENTS = "~/Documents"
EDITOR = {"window": "Mousepad", "at": [600, 400]}
FILES_AREA = {"window": "Documents", "at": [700, 250]}
LISTING = {"type": "vm_command_line", "command": ["ls", "-R", "-p", DOCUMENTS]}


# --- setup ------------------------------------------------------------------------------------------------------------


def file_step(name: str, content: str) -> Data:
    """Setup step: writes a file in the documents folder."""
    return {"type": "write_file", "parameters": {"path": f"{DOCUMENTS}/{name}", "content": content}}


def folder_step(name: str) -> Data:
    """Setup step: makes a folder in the documents folder."""
    return {"type": "execute", "parameters": {"command": ["mkdir", "-p", f"{DOCUMENTS}/{name}"]}}


def launch(*command: str) -> Data:
    """Setup step: starts a program and waits for its window."""
    return {"type": "launch", "parameters": {"command": list(command), "window": True}}


def in_editor(name: str) -> Data:
    """Setup step: opens a document in the editor."""
    return launch("mousepad", f"{DOCUMENTS}/{name}")


MANAGER = launch("pcmanfm", DOCUMENTS)
TERMINAL = launch("xterm", "-e", "bash")


# --- evaluator --------------------------------------------------------------------------------------------------------


def vm_file(name: str) -> Data:
    """Getter of a document's bytes."""
    return {"type": "vm_file", "path": f"{DOCUMENTS}/{name}", "dest": name}


def lines(name: str, expect: Sequence[str], unexpect: Sequence[str] = ()) -> Data:
    """Evaluator: each regex of ``expect`` matches a line of the file, none of ``unexpect`` does."""
    rules = {"expect": list(expect), "unexpect": list(unexpect)}
    return {"func": "check_list", "result": vm_file(name), "expected": {"type": "rule", "rules": rules}}


def listed(include: Sequence[str], exclude: Sequence[str] = ()) -> Data:
    """Evaluator: texts that ``ls -R`` of the documents folder prints, and texts that it does not."""
    rules = {"include": list(include), "exclude": list(exclude)}
    return {"func": "check_include_exclude", "result": LISTING, "expected": {"type": "rule", "rules": rules}}


def every(*evaluators: Data) -> Data:
    """Evaluator: the conjunction of the evaluators."""
    return {"conj": "and"} | {key: [e[key] for e in evaluators] for key in ("func", "result", "expected")}


# --- oracle scripts (read by oracles/gui_script.py) -------------------------------------------------------------------


def icon(name: str, folder: str = DOCUMENTS) -> Data:
    """The position of a file's icon in the file manager."""
    return {"icon": name, "folder": folder}


def mouse(do: str, on: Data, what: str, intent: str) -> Data:
    """A mouse step: ``click``, ``double``, ``right`` or ``drag``."""
    return {"do": do, "on": on, "what": what, "intent": intent}


def keys_step(keys: str, intent: str) -> Data:
    """A step that presses keys together."""
    return {"do": "keys", "keys": keys, "intent": intent}


def type_step(text: str, intent: str, *, overwrite: bool = False) -> Data:
    """A step that types a text; ``overwrite``: in place of the old text."""
    return {"do": "type", "text": text, "overwrite": overwrite, "intent": intent}


def script(*parts: tuple[str, Sequence[Data]]) -> Data:
    """An oracle script from (subtask, steps) pairs."""
    return {"type": "local", "steps": [step | {"subtask": subtask} for subtask, steps in parts for step in steps]}


def save_step(name: str) -> tuple[str, list[Data]]:
    """The subtask of saving a file with Ctrl+S, the last one of most tasks."""
    return f"Save {name}", [keys_step("ctrl s", "Save the file")]


def make_task(
    name: str, domain: str, instruction: str, config: Sequence[Mapping[str, Any]], evaluator: Data, oracle: Data
) -> Task:
    """A task in OSWorld's format; an infeasible one has the tag ``infeasible``."""
    return Task(
        id=f"local-{name}",
        instruction=instruction,
        config=tuple(config),
        evaluator=evaluator,
        domain=domain,
        oracle=oracle,
        tags=("infeasible",) if evaluator["func"] == "infeasible" else (),
        raw={"snapshot": domain, "related_apps": [domain], "source": "osworld_gym"},
    )
