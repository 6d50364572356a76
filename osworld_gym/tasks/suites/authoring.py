"""How the tasks of the bundled suites are written: setup steps, evaluators, steps of an oracle, the task itself.

All of it is data in OSWorld's format; the oracle's script is our addition, read by ``oracles/gui_script.py``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from osworld_gym.tasks.task import Task

Data = dict[str, Any]
Part = tuple[str, Sequence[Data]]  #: a subtask and its steps

DOCUMENTS, PICTURES, VIDEOS, MUSIC = "~/Documents", "~/Pictures", "~/Videos", "~/Music"
EDITOR = {"window": "Mousepad", "at": [600, 400]}
FILES_AREA = {"window": "Documents", "at": [700, 250]}
TRASH = "~/.local/share/Trash/files"
LISTING = {"type": "vm_command_line", "command": ["ls", "-R", "-p", DOCUMENTS]}
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


def text_step(path: str, text: str) -> Data:
    """Setup step: writes a text file."""
    return {"type": "write_file", "parameters": {"path": path, "content": text}}


def file_step(name: str, content: str) -> Data:
    """Setup step: writes a text file in the documents folder."""
    return text_step(f"{DOCUMENTS}/{name}", content)


def folder_step(name: str) -> Data:
    """Setup step: makes a folder in the documents folder."""
    return {"type": "execute", "parameters": {"command": ["mkdir", "-p", f"{DOCUMENTS}/{name}"]}}


def launch(*command: str) -> Data:
    """Setup step: starts a program and waits for its window."""
    return {"type": "launch", "parameters": {"command": list(command), "window": True}}


def in_editor(name: str) -> Data:
    """Setup step: opens a document in the editor."""
    return launch("mousepad", f"{DOCUMENTS}/{name}")


def bytes_step(path: str, data: bytes) -> Data:
    """Setup step: writes any file, with a step that OSWorld's server supports as well."""
    text = base64.b64encode(data).decode()
    return {"type": "execute", "parameters": {"command": ["python3", "-c", _WRITE, path, text]}}


def wait_for_window(title: str, *listing: str) -> list[Data]:
    """Setup steps: wait until a window with this text in its title exists and stops changing.

    Args:
        title: a part of the window's title.
        listing: a command that prints the windows' titles; default ``wmctrl -l``.
    """
    until = {"command": list(listing or ("wmctrl", "-l")), "until": {"stdout": title}}
    return [{"type": "execute", "parameters": until}, {"type": "sleep", "parameters": {"seconds": 5}}]


def launch_and_wait(title: str, *command: str) -> list[Data]:
    """Setup steps: start a program and wait for the window with this title."""
    return [launch(*command), *wait_for_window(title)]


def in_office(name: str) -> list[Data]:
    """Setup steps: open a document in LibreOffice."""
    return launch_and_wait(f"{name} - LibreOffice", "libreoffice", "--norestore", f"{DOCUMENTS}/{name}")


MANAGER = launch("pcmanfm", DOCUMENTS)
TERMINAL = launch("xterm", "-e", "bash")


# --- evaluator --------------------------------------------------------------------------------------------------------


def file_at(path: str) -> Data:
    """Getter of a file's bytes."""
    return {"type": "vm_file", "path": path, "dest": path.rsplit("/", 1)[-1]}


def vm_file(name: str) -> Data:
    """Getter of a document's bytes."""
    return file_at(f"{DOCUMENTS}/{name}")


def output(*command: str) -> Data:
    """Getter of a command's output."""
    return {"type": "vm_command_line", "command": list(command)}


def shell(command: str) -> Data:
    """Getter of a shell command's output."""
    return {"type": "vm_command_line", "command": command, "shell": True}


def rule(rules: Any) -> Data:
    """An expected value given in the task file."""
    return {"type": "rule", "rules": rules}


def metric(func: str, result: Data, rules: Any) -> Data:
    """An evaluator of one metric with its expected value in the task file."""
    return {"func": func, "result": result, "expected": rule(rules)}


def lines(name: str, expect: Sequence[str], unexpect: Sequence[str] = ()) -> Data:
    """Evaluator: each regex of ``expect`` matches a line of the file, none of ``unexpect`` does."""
    rules = {"expect": list(expect), "unexpect": list(unexpect)}
    return metric("check_list", vm_file(name), rules)


def not_blank(name: str, text: str) -> Data:
    """Evaluator: the lines of the file that are not empty are exactly these, in this order."""
    return metric("compare_config", output("grep", "-v", "^$", f"{DOCUMENTS}/{name}"), {"expected": text})


def listed(include: Sequence[str], exclude: Sequence[str] = ()) -> Data:
    """Evaluator: texts that ``ls -R`` of the documents folder prints, and texts that it does not."""
    rules = {"include": list(include), "exclude": list(exclude)}
    return metric("check_include_exclude", LISTING, rules)


def prints(command: str, text: str) -> Data:
    """Evaluator: a shell command prints exactly this text."""
    return metric("exact_match", shell(command), {"expected": text})


def every(*evaluators: Data) -> Data:
    """Evaluator: the conjunction of the evaluators."""
    return {"conj": "and"} | {key: [e[key] for e in evaluators] for key in ("func", "result", "expected")}


def saved(path: str, evaluator: Data) -> Data:
    """Evaluator of an office document, which waits at most 10 s for the document to be complete and unchanging."""
    return evaluator | {
        "postconfig": [{"type": "execute", "parameters": {"command": ["python3", "-c", _AT_REST, path]}}]
    }


# --- oracle -----------------------------------------------------------------------------------------------------------


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


def save_step(name: str) -> Part:
    """The subtask of saving a text file with Ctrl+S, the last one of most tasks in the editor."""
    return f"Save {name}", [keys_step("ctrl s", "Save the file")]


def go_to(cell: str) -> list[Data]:
    """Oracle steps that select a cell or a range in Calc."""
    return [
        keys_step("ctrl shift t", "Go to the Name Box"),
        type_step(f"{cell}\n", f"Type {cell} to select it"),
    ]


def script(*parts: Part, end: Data | None = None) -> Data:
    """The oracle's script: steps grouped by subtask; after the last step, the oracle waits for ``end``."""
    steps = [step | {"subtask": subtask} for subtask, steps in parts for step in steps]
    return {"type": "local", "steps": steps} | ({} if end is None else {"end": end})


def infeasible_script(reason: str) -> Data:
    """The oracle of an infeasible task: ``call_user`` as often as an episode tolerates."""
    return script(("Tell the user", [{"do": "fail", "intent": reason}] * 3))


# --- task -------------------------------------------------------------------------------------------------------------


def make_task(
    task_id: str,
    domain: str,
    instruction: str,
    config: Sequence[Mapping[str, Any]],
    evaluator: Data,
    oracle: Data,
    *,
    apps: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> Task:
    """A task in OSWorld's format.

    Args:
        task_id: the task's id, which starts with the name of its suite.
        domain: the name of OSWorld's domain, which is the application's.
        instruction: the text for the policy.
        config: the setup steps.
        evaluator: the verifier; of an infeasible task ``{"func": "infeasible"}``.
        oracle: the script that solves the task.
        apps: the applications that the task needs; by default the domain's.
        tags: the task's labels. An infeasible task gets the tag ``infeasible`` in front of them.
    """
    infeasible = ("infeasible",) if evaluator["func"] == "infeasible" else ()
    return Task(
        id=task_id,
        instruction=instruction,
        config=tuple(config),
        evaluator=evaluator,
        domain=domain,
        oracle=oracle,
        tags=(*infeasible, *tags),
        raw={"snapshot": domain, "related_apps": list(apps or [domain]), "source": "osworld_gym"},
    )


def with_plan(task: Task, difficulty: str) -> Task:
    """The task with our keys ``difficulty`` and ``plan`` (from its oracle), and with tags for both."""
    raw = {**task.raw, "difficulty": difficulty, "plan": plan_text(task.oracle or {})}
    return replace(task, raw=raw, tags=(difficulty, "gui-oracle", *task.tags))


def desktop_task(
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
    """A task of the suite ``desktop``: one by :func:`make_task` with a difficulty and a plan."""
    task = make_task(f"desktop-{name}", domain, instruction, config, evaluator, oracle, apps=apps, tags=tags)
    return with_plan(task, difficulty)


def plan_text(oracle: Mapping[str, Any]) -> str:
    """The numbered plan of a script: its distinct intents, without those of conditional steps (``only_if``)."""
    lines = list(dict.fromkeys(step["intent"] for step in oracle["steps"] if "only_if" not in step))
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
