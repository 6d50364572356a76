"""The local suite's tasks in the text editor."""

from __future__ import annotations

from osworld_gym.tasks.suites.authoring import (
    EDITOR,
    every,
    file_step,
    in_editor,
    keys_step,
    lines,
    make_task,
    mouse,
    not_blank,
    save_step,
    script,
    type_step,
    vm_file,
)
from osworld_gym.tasks.task import Task

#: the step before any typing
FOCUS = mouse("click", EDITOR, "the text of the editor", "Click into the text")


def editor_tasks() -> list[Task]:
    """Tasks that write, append, change, delete, save as, change a setting, type non-ASCII text; one is infeasible."""
    return [*_writing(), *_changing(), *_through_menus(), *_unusual()]


def _writing() -> list[Task]:
    """Tasks that write into the file."""
    return [
        make_task(
            "local-editor-write",
            "text_editor",
            "Write the line 'Call Anna at noon' in the open file notes.txt and save it.",
            [file_step("notes.txt", ""), in_editor("notes.txt")],
            lines("notes.txt", [r"^Call Anna at noon$"]),
            script(
                ("Write the line", [FOCUS, type_step("Call Anna at noon", "Type the line Call Anna at noon")]),
                save_step("notes.txt"),
            ),
        ),
        make_task(
            "local-editor-append",
            "text_editor",
            "Add 'bread' as the last line of the open shopping list and save it.",
            [file_step("shopping.txt", "milk\neggs\n"), in_editor("shopping.txt")],
            not_blank("shopping.txt", "milk\neggs\nbread\n"),
            script(
                ("Go to the end", [FOCUS, keys_step("ctrl end", "Go to the end of the text")]),
                ("Add the line", [type_step("bread", "Type bread")]),
                save_step("shopping.txt"),
            ),
        ),
    ]


def _changing() -> list[Task]:
    """Tasks that change or delete existing text."""
    return [
        make_task(
            "local-editor-config",
            "text_editor",
            'Set "theme" to "dark" in the open file config.json and save it; leave the rest as it is.',
            [file_step("config.json", '{\n  "theme": "light",\n  "size": 12\n}\n'), in_editor("config.json")],
            {
                "func": "check_json",
                "result": vm_file("config.json"),
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
            script(
                (
                    "Select the old value",
                    [
                        keys_step("ctrl f", "Open the search bar"),
                        type_step("light\n", "Search for light"),
                        keys_step("esc", "Close the search bar"),
                    ],
                ),
                ("Type the new value", [type_step("dark", "Type dark over the selected word")]),
                save_step("config.json"),
            ),
        ),
        make_task(
            "local-editor-delete-line",
            "text_editor",
            "Delete the first line of the open file tasks.txt and save it.",
            [file_step("tasks.txt", "obsolete\nwater the plants\npay the rent\n"), in_editor("tasks.txt")],
            lines("tasks.txt", [r"^water the plants$", r"^pay the rent$"], ["obsolete", "^$"]),
            script(
                (
                    "Delete the line",
                    [
                        keys_step("ctrl home", "Go to the start of the text"),
                        keys_step("shift down", "Select the first line"),
                        keys_step("delete", "Delete the selected line"),
                    ],
                ),
                save_step("tasks.txt"),
            ),
        ),
    ]


def _through_menus() -> list[Task]:
    """Tasks that save under a new name or change a setting."""
    return [
        make_task(
            "local-editor-save-as",
            "text_editor",
            "Save the open file draft.txt as final.txt in the same folder, and keep draft.txt.",
            [file_step("draft.txt", "The end.\n"), in_editor("draft.txt")],
            every(lines("final.txt", [r"^The end\.$"]), lines("draft.txt", [r"^The end\.$"])),
            script(
                (
                    "Save under a new name",
                    [
                        keys_step("ctrl shift s", "Open the dialog to save as"),
                        type_step("final.txt", "Type the name final.txt", overwrite=True),
                        mouse("click", {"window": "Save As", "at": [-50, -24]}, "the button Save", "Choose Save"),
                    ],
                )
            ),
        ),
        make_task(
            "local-editor-line-numbers",
            "text_editor",
            "Hide the line numbers in the text editor.",
            [file_step("notes.txt", "one\ntwo\n"), in_editor("notes.txt")],
            {
                "func": "check_list",
                "result": {"type": "vm_file", "path": "~/.config/glib-2.0/settings/keyfile", "dest": "keyfile"},
                "expected": {"type": "rule", "rules": {"expect": ["^show-line-numbers=false$"]}},
            },
            script(
                (
                    "Change the view",
                    [
                        mouse("click", {"window": "Mousepad", "at": [163, 12]}, "the menu View", "Open the menu View"),
                        mouse(
                            "click",
                            {"window": "Mousepad", "at": [212, 87]},
                            "the menu item Line Numbers",
                            "Choose Line Numbers",
                        ),
                    ],
                )
            ),
        ),
    ]


def _unusual() -> list[Task]:
    """A task with non-ASCII text and an infeasible one."""
    return [
        make_task(
            "local-editor-unicode",
            "text_editor",
            "Write 'Grüße aus 東京' in the open file card.txt and save it.",
            [file_step("card.txt", ""), in_editor("card.txt")],
            lines("card.txt", ["^Grüße aus 東京$"]),
            script(
                ("Write the line", [FOCUS, type_step("Grüße aus 東京", "Type Grüße aus 東京")]),
                save_step("card.txt"),
            ),
        ),
        make_task(
            "local-editor-infeasible",
            "text_editor",
            "Make the text editor read the open file aloud with its built-in voice.",
            [file_step("notes.txt", "one\ntwo\n"), in_editor("notes.txt")],
            {"func": "infeasible"},
            script(("Tell the user", [{"do": "fail", "intent": "Say that the editor has no voice"}] * 3)),
        ),
    ]
