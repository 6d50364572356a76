"""The suite ``local``: tasks on real applications (text editor, file manager, terminal), each with verifier and oracle.

Every task makes its files, opens its application, and is verified on real files. Nothing needs the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task

Data = dict[str, Any]

DOCUMENTS = "~/Documents"
EDITOR = {"window": "Mousepad", "at": [600, 400]}
FILES_AREA = {"window": "Documents", "at": [700, 250]}
LISTING = {"type": "vm_command_line", "command": ["ls", "-R", "-p", DOCUMENTS]}


# --- setup ------------------------------------------------------------------------------------------------------------


def _file(name: str, content: str) -> Data:
    return {"type": "write_file", "parameters": {"path": f"{DOCUMENTS}/{name}", "content": content}}


def _folder(name: str) -> Data:
    return {"type": "execute", "parameters": {"command": ["mkdir", "-p", f"{DOCUMENTS}/{name}"]}}


def _launch(*command: str) -> Data:
    return {"type": "launch", "parameters": {"command": list(command), "window": True}}


def _editor(name: str) -> Data:
    return _launch("mousepad", f"{DOCUMENTS}/{name}")


_MANAGER = _launch("pcmanfm", DOCUMENTS)
_TERMINAL = _launch("xterm", "-e", "bash")


# --- evaluator --------------------------------------------------------------------------------------------------------


def _vm_file(name: str) -> Data:
    return {"type": "vm_file", "path": f"{DOCUMENTS}/{name}", "dest": name}


def _lines(name: str, expect: Sequence[str], unexpect: Sequence[str] = ()) -> Data:
    """Each regex of ``expect`` matches a line of the file, none of ``unexpect`` does."""
    rules = {"expect": list(expect), "unexpect": list(unexpect)}
    return {"func": "check_list", "result": _vm_file(name), "expected": {"type": "rule", "rules": rules}}


def _listed(include: Sequence[str], exclude: Sequence[str] = ()) -> Data:
    """What ``ls -R`` of the documents shows and does not show."""
    rules = {"include": list(include), "exclude": list(exclude)}
    return {"func": "check_include_exclude", "result": LISTING, "expected": {"type": "rule", "rules": rules}}


def _all(*evaluators: Data) -> Data:
    """Every one of them must hold."""
    return {"conj": "and"} | {key: [e[key] for e in evaluators] for key in ("func", "result", "expected")}


# --- oracle scripts (read by local_oracle.py) -------------------------------------------------------------------------


def _icon(name: str, folder: str = DOCUMENTS) -> Data:
    return {"icon": name, "folder": folder}


def _mouse(do: str, on: Data, what: str, intent: str) -> Data:
    return {"do": do, "on": on, "what": what, "intent": intent}


def _keys(keys: str, intent: str) -> Data:
    return {"do": "keys", "keys": keys, "intent": intent}


def _type(text: str, intent: str, *, overwrite: bool = False) -> Data:
    return {"do": "type", "text": text, "overwrite": overwrite, "intent": intent}


def _script(*parts: tuple[str, Sequence[Data]]) -> Data:
    """Steps grouped by the subtask that they serve."""
    return {"type": "local", "steps": [step | {"subtask": subtask} for subtask, steps in parts for step in steps]}


def _save(name: str) -> tuple[str, list[Data]]:
    return f"Save {name}", [_keys("ctrl s", "Save the file")]


# --- tasks ------------------------------------------------------------------------------------------------------------


def _task(
    name: str, domain: str, instruction: str, config: Sequence[Mapping[str, Any]], evaluator: Data, oracle: Data
) -> Task:
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


def _editor_tasks() -> list[Task]:
    focus = _mouse("click", EDITOR, "the text of the editor", "Click into the text")
    return [
        _task(
            "editor-write",
            "text_editor",
            "Write the line 'Call Anna at noon' in the open file notes.txt and save it.",
            [_file("notes.txt", ""), _editor("notes.txt")],
            _lines("notes.txt", [r"^Call Anna at noon$"]),
            _script(
                ("Write the line", [focus, _type("Call Anna at noon", "Type the line Call Anna at noon")]),
                _save("notes.txt"),
            ),
        ),
        _task(
            "editor-append",
            "text_editor",
            "Add 'bread' as the last line of the open shopping list and save it.",
            [_file("shopping.txt", "milk\neggs\n"), _editor("shopping.txt")],
            {
                "func": "compare_config",
                "result": {"type": "vm_command_line", "command": ["grep", "-v", "^$", f"{DOCUMENTS}/shopping.txt"]},
                "expected": {"type": "rule", "rules": {"expected": "milk\neggs\nbread\n"}},
            },
            _script(
                ("Go to the end", [focus, _keys("ctrl end", "Go to the end of the text")]),
                ("Add the line", [_type("bread", "Type bread")]),
                _save("shopping.txt"),
            ),
        ),
        _task(
            "editor-config",
            "text_editor",
            'Set "theme" to "dark" in the open file config.json and save it; leave the rest as it is.',
            [_file("config.json", '{\n  "theme": "light",\n  "size": 12\n}\n'), _editor("config.json")],
            {
                "func": "check_json",
                "result": _vm_file("config.json"),
                "expected": {
                    "type": "rule",
                    "rules": {
                        "expect": [
                            {"key": ["theme"], "method": "eq", "ref": "dark"},
                            {"key": ["size"], "method": "eq", "ref": 12},
                        ]
                    },
                },
            },
            _script(
                (
                    "Select the old value",
                    [
                        _keys("ctrl f", "Open the search bar"),
                        _type("light\n", "Search for light"),
                        _keys("esc", "Close the search bar"),
                    ],
                ),
                ("Type the new value", [_type("dark", "Type dark over the selected word")]),
                _save("config.json"),
            ),
        ),
        _task(
            "editor-delete-line",
            "text_editor",
            "Delete the first line of the open file tasks.txt and save it.",
            [_file("tasks.txt", "obsolete\nwater the plants\npay the rent\n"), _editor("tasks.txt")],
            _lines("tasks.txt", [r"^water the plants$", r"^pay the rent$"], ["obsolete"]),
            _script(
                (
                    "Delete the line",
                    [
                        _keys("ctrl home", "Go to the start of the text"),
                        _keys("shift down", "Select the first line"),
                        _keys("delete", "Delete the selected line"),
                    ],
                ),
                _save("tasks.txt"),
            ),
        ),
        _task(
            "editor-save-as",
            "text_editor",
            "Save the open file draft.txt as final.txt in the same folder, and keep draft.txt.",
            [_file("draft.txt", "The end.\n"), _editor("draft.txt")],
            _all(_lines("final.txt", [r"^The end\.$"]), _lines("draft.txt", [r"^The end\.$"])),
            _script(
                (
                    "Save under a new name",
                    [
                        _keys("ctrl shift s", "Open the dialog to save as"),
                        _type("final.txt", "Type the name final.txt", overwrite=True),
                        _mouse("click", {"window": "Save As", "at": [-50, -24]}, "the button Save", "Choose Save"),
                    ],
                )
            ),
        ),
        _task(
            "editor-line-numbers",
            "text_editor",
            "Hide the line numbers in the text editor.",
            [_file("notes.txt", "one\ntwo\n"), _editor("notes.txt")],
            {
                "func": "check_list",
                "result": {"type": "vm_file", "path": "~/.config/glib-2.0/settings/keyfile", "dest": "keyfile"},
                "expected": {"type": "rule", "rules": {"expect": ["^show-line-numbers=false$"]}},
            },
            _script(
                (
                    "Change the view",
                    [
                        _mouse("click", {"window": "Mousepad", "at": [163, 12]}, "the menu View", "Open the menu View"),
                        _mouse(
                            "click",
                            {"window": "Mousepad", "at": [212, 87]},
                            "the menu item Line Numbers",
                            "Choose Line Numbers",
                        ),
                    ],
                )
            ),
        ),
        _task(
            "editor-unicode",
            "text_editor",
            "Write 'Grüße aus 東京' in the open file card.txt and save it.",
            [_file("card.txt", ""), _editor("card.txt")],
            _lines("card.txt", ["^Grüße aus 東京$"]),
            _script(
                ("Write the line", [focus, _type("Grüße aus 東京", "Type Grüße aus 東京")]),
                _save("card.txt"),
            ),
        ),
        _task(
            "editor-infeasible",
            "text_editor",
            "Make the text editor read the open file aloud with its built-in voice.",
            [_file("notes.txt", "one\ntwo\n"), _editor("notes.txt")],
            {"func": "infeasible"},
            _script(("Tell the user", [{"do": "fail", "intent": "Say that the editor has no voice"}] * 3)),
        ),
    ]


def _manager_tasks() -> list[Task]:
    def select(name: str) -> Data:
        return _mouse("click", _icon(name), f"the file {name}", f"Select the file {name}")

    three = [_file(name, f"{name}\n") for name in ("alpha.txt", "beta.txt", "gamma.txt")]
    others = ["alpha.txt", "gamma.txt"]
    return [
        _task(
            "files-rename",
            "file_manager",
            "Rename the file beta.txt to summary.txt.",
            [*three, _MANAGER],
            _all(_listed([*others, "summary.txt"], ["beta.txt"]), _lines("summary.txt", [r"^beta\.txt$"])),
            _script(
                (
                    "Rename the file",
                    [
                        select("beta.txt"),
                        _keys("f2", "Open the dialog to rename"),
                        _type("summary.txt\n", "Type the name summary.txt and confirm", overwrite=True),
                    ],
                )
            ),
        ),
        _task(
            "files-delete",
            "file_manager",
            "Move the file gamma.txt to the trash.",
            [*three, _MANAGER],
            _listed(["alpha.txt", "beta.txt"], ["gamma.txt"]),
            _script(("Delete the file", [select("gamma.txt"), _keys("delete", "Move it to the trash")])),
        ),
        _task(
            "files-new-folder",
            "file_manager",
            "Create a folder named Photos in the open folder.",
            [*three, _MANAGER],
            _listed(["Photos/", "alpha.txt", "beta.txt", "gamma.txt"]),
            _script(
                (
                    "Create the folder",
                    [
                        _mouse("right", FILES_AREA, "the empty part of the folder", "Open the menu of the folder"),
                        _mouse(
                            "click",
                            {"window": "Documents", "at": [770, 264]},
                            "the menu item Create New...",
                            "Choose Create New",
                        ),
                        _mouse(
                            "click",
                            {"window": "Documents", "at": [960, 264]},
                            "the menu item Folder",
                            "Choose Folder",
                        ),
                        _type("Photos\n", "Type the name Photos and confirm", overwrite=True),
                    ],
                )
            ),
        ),
        _task(
            "files-move",
            "file_manager",
            "Move the file alpha.txt into the folder Archive.",
            [_folder("Archive"), *three, _MANAGER],
            _all(
                _listed(["Archive:\nalpha.txt", "beta.txt", "gamma.txt"]),
                _listed([], ["alpha.txt\nbeta.txt"]),
            ),
            _script(
                ("Cut the file", [select("alpha.txt"), _keys("ctrl x", "Cut it")]),
                (
                    "Paste it in the folder",
                    [
                        _mouse("double", _icon("Archive"), "the folder Archive", "Open the folder Archive"),
                        _keys("ctrl v", "Paste the file"),
                    ],
                ),
            ),
        ),
        _task(
            "files-copy",
            "file_manager",
            "Copy the file beta.txt into the folder Backup, and keep it here.",
            [_folder("Backup"), *three, _MANAGER],
            _listed(["Backup:\nbeta.txt", "alpha.txt\nbeta.txt\ngamma.txt"]),
            _script(
                ("Copy the file", [select("beta.txt"), _keys("ctrl c", "Copy it")]),
                (
                    "Paste it in the folder",
                    [
                        _mouse("double", _icon("Backup"), "the folder Backup", "Open the folder Backup"),
                        _keys("ctrl v", "Paste the file"),
                    ],
                ),
            ),
        ),
        _task(
            "files-drag",
            "file_manager",
            "Drag the file gamma.txt into the folder Inbox.",
            [_folder("Inbox"), *three, _MANAGER],
            _listed(["Inbox:\ngamma.txt", "alpha.txt\nbeta.txt\n"], ["beta.txt\ngamma.txt"]),
            _script(
                (
                    "Drag the file",
                    [
                        {
                            **_mouse(
                                "drag", _icon("gamma.txt"), "the file gamma.txt", "Drag gamma.txt to the folder Inbox"
                            ),
                            "onto": _icon("Inbox"),
                            "goal": "the folder Inbox",
                        }
                    ],
                )
            ),
        ),
    ]


def _other_tasks() -> list[Task]:
    return [
        _task(
            "terminal-write",
            "terminal",
            "Use the terminal to write the word ready into the file Documents/status.txt.",
            [_TERMINAL],
            _lines("status.txt", ["^ready$"]),
            _script(
                (
                    "Run the command",
                    [_type("echo ready > Documents/status.txt\n", "Type a command that writes ready to the file")],
                )
            ),
        ),
        _task(
            "open-and-edit",
            "multi_apps",
            "Open the file todo.txt from the file manager, add the line 'done' at its end, and save it.",
            [_file("todo.txt", "sweep\n"), _file("other.txt", "x\n"), _MANAGER],
            _all(_lines("todo.txt", ["^sweep$", "^done$"]), _lines("other.txt", ["^x$"], ["done"])),
            _script(
                ("Open the file", [_mouse("double", _icon("todo.txt"), "the file todo.txt", "Open the file todo.txt")]),
                ("Add the line", [_keys("ctrl end", "Go to the end of the text"), _type("done", "Type done")]),
                _save("todo.txt"),
            ),
        ),
    ]


#: tasks kept from training
HELD_OUT = ("editor-append", "editor-line-numbers", "files-copy", "files-drag", "editor-unicode")


@lru_cache(maxsize=1)
def local_suite() -> Suite:
    """The suite, with the disjoint splits ``train`` and ``held_out``."""
    tasks = (*_editor_tasks(), *_manager_tasks(), *_other_tasks())
    held_out = [f"local-{name}" for name in HELD_OUT]
    train = [task.id for task in tasks if task.id not in held_out]
    return Suite("local", tasks, {"train": train, "held_out": held_out})
