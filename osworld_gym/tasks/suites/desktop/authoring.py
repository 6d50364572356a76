"""Builders of the suite's tasks, in addition to ``local/builders.py``: files, windows, closed-loop oracle steps."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from osworld_gym.tasks.suites.authoring import DOCUMENTS, Data, keys_step, launch, type_step
from osworld_gym.tasks.task import Task

Part = tuple[str, Sequence[Data]]  #: a subtask and its steps

PICTURES, VIDEOS, MUSIC = "~/Pictures", "~/Videos", "~/Music"
#: Python script; arguments: a path (OSWorld's ``execute`` expands its ``~/``) and base64 text
_WRITE = (
    "import base64, pathlib, sys; p = pathlib.Path(sys.argv[1]); p.parent.mkdir(parents=True, exist_ok=True); "
    "p.write_bytes(base64.b64decode(sys.argv[2]))"
)
#: Python script; argument: a path. Exits when that ZIP file is complete and unchanged for half a second
_AT_REST = """
import os, sys, time, zipfile
end = time.monotonic() + 10
while time.monotonic() < end:
    try:
        if time.time() - os.stat(sys.argv[1]).st_mtime > 0.5 and zipfile.is_zipfile(sys.argv[1]):
            break
    except OSError:
        break
    time.sleep(0.1)
"""
ASKS_FORMAT = ("Confirm File Format", "Keep Current Format")  # titles of LibreOffice's dialog, by version
DIFFICULTIES = ("easy", "medium", "hard")


# --- setup ------------------------------------------------------------------------------------------------------------


def bytes_step(path: str, data: bytes) -> Data:
    """Setup step: writes any file, with a step that OSWorld's server supports as well."""
    text = base64.b64encode(data).decode()
    return {"type": "execute", "parameters": {"command": ["python3", "-c", _WRITE, path, text]}}


def text_step(path: str, text: str) -> Data:
    """Setup step: writes a text file."""
    return {"type": "write_file", "parameters": {"path": path, "content": text}}


def shown(title: str) -> list[Data]:
    """Setup step: waits until a window with this text in its title exists and stops changing."""
    until = {"command": ["wmctrl", "-l"], "until": {"stdout": title}}
    return [{"type": "execute", "parameters": until}, {"type": "sleep", "parameters": {"seconds": 5}}]


def started(title: str, *command: str) -> list[Data]:
    """Setup steps: start a program and wait for the window with this title."""
    return [launch(*command), *shown(title)]


def office(name: str) -> list[Data]:
    """Setup steps: open a document in LibreOffice."""
    return started(f"{name} - LibreOffice", "libreoffice", "--norestore", f"{DOCUMENTS}/{name}")


# --- evaluator --------------------------------------------------------------------------------------------------------


def file_at(path: str) -> Data:
    """Getter of a file's bytes."""
    return {"type": "vm_file", "path": path, "dest": path.rsplit("/", 1)[-1]}


def rule(rules: Any) -> Data:
    """An expected value given in the task file."""
    return {"type": "rule", "rules": rules}


def metric(func: str, result: Data, rules: Any) -> Data:
    """An evaluator of one metric with its expected value in the task file."""
    return {"func": func, "result": result, "expected": rule(rules)}


def output(*command: str) -> Data:
    """Getter of a command's output."""
    return {"type": "vm_command_line", "command": list(command)}


def saved(path: str, evaluator: Data) -> Data:
    """Evaluator of an office document, which waits at most 10 s for the document to be complete and unchanging."""
    return evaluator | {
        "postconfig": [{"type": "execute", "parameters": {"command": ["python3", "-c", _AT_REST, path]}}]
    }


def shell(command: str) -> Data:
    """Getter of a shell command's output."""
    return {"type": "vm_command_line", "command": command, "shell": True}


# --- oracle -----------------------------------------------------------------------------------------------------------


def when(condition: Data, step: Data) -> Data:
    """The step, played once the condition is met."""
    return step | {"when": condition}


def in_window(title: str, step: Data) -> Data:
    """The step, played once a window with this title has the focus."""
    return when({"active": title}, step)


def saved_document(path: str) -> list[Data]:
    """Oracle steps that save an office document in its format; for non-OpenDocument files LibreOffice asks first."""
    asked = [{"active": title} for title in ASKS_FORMAT]
    keep = keys_step("enter", "Keep the format of the file")
    return [
        keys_step("ctrl s", "Save the document"),
        keep | {"when": {"any": [*asked, {"changed": path}]}, "only_if": {"any": asked}},
    ]


def saved_text(name: str) -> Part:
    """Oracle steps that save a text file in the editor."""
    return f"Save {name}", [keys_step("ctrl s", "Save the file")]


def go_to(cell: str) -> list[Data]:
    """Oracle steps that select a cell or a range in Calc."""
    return [
        keys_step("ctrl shift t", "Go to the Name Box"),
        type_step(f"{cell}\n", f"Type {cell} to select it"),
    ]


def play(*parts: Part, end: Data | None = None) -> Data:
    """The oracle's script: steps grouped by subtask; after the last step, the oracle waits for ``end``."""
    steps = [step | {"subtask": subtask} for subtask, steps in parts for step in steps]
    return {"type": "local", "steps": steps} | ({} if end is None else {"end": end})


def cannot(reason: str) -> Data:
    """The oracle of an infeasible task: ``call_user`` as often as an episode tolerates."""
    return play(("Tell the user", [{"do": "fail", "intent": reason}] * 3))


def plan_text(oracle: Mapping[str, Any]) -> str:
    """The numbered plan of a script: its distinct intents, without those of conditional steps (``only_if``)."""
    lines = list(dict.fromkeys(step["intent"] for step in oracle["steps"] if "only_if" not in step))
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def make(
    name: str,
    domain: str,
    instruction: str,
    config: Sequence[Mapping[str, Any]],
    evaluator: Data,
    oracle: Data,
    *,
    difficulty: str = "easy",
    apps: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> Task:
    """A task in OSWorld's format with our keys ``plan`` and ``difficulty``; default of ``apps``: the domain's."""
    infeasible = ("infeasible",) if evaluator["func"] == "infeasible" else ()
    return Task(
        id=f"desktop-{name}",
        instruction=instruction,
        config=tuple(config),
        evaluator=evaluator,
        domain=domain,
        oracle=oracle,
        tags=(difficulty, "gui-oracle", *infeasible, *tags),
        raw={
            "snapshot": domain,
            "related_apps": list(apps or [domain]),
            "source": "osworld_gym",
            "difficulty": difficulty,
            "plan": plan_text(oracle),
        },
    )
