"""The suite ``local``: tasks on real applications (text editor, file manager, terminal), each with verifier and oracle.

Every task creates its files, opens its application, and is verified on real files. No task needs the network.
"""

from __future__ import annotations

from functools import lru_cache

from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.authoring import (
    FILES_AREA,
    MANAGER,
    TERMINAL,
    TRASH,
    Data,
    every,
    file_step,
    folder_step,
    icon,
    in_window,
    keys_step,
    lines,
    listed,
    make_task,
    mouse,
    not_blank,
    prints,
    save_step,
    script,
    type_step,
)
from osworld_gym.tasks.suites.desktop.local_editor import editor_tasks
from osworld_gym.tasks.task import Task

#: setup of a folder with three files, and the names of those that stay as they are
THREE = [file_step(name, f"{name}\n") for name in ("alpha.txt", "beta.txt", "gamma.txt")]
OTHERS = ["alpha.txt", "gamma.txt"]


def _select(name: str) -> Data:
    return mouse("click", icon(name), f"the file {name}", f"Select the file {name}")


def _manager_tasks() -> list[Task]:
    return [*_renaming(), *_new_folder(), *_moving(), *_dragging()]


def _renaming() -> list[Task]:
    """Tasks that rename or delete a file."""
    return [
        make_task(
            "local-files-rename",
            "file_manager",
            "Rename the file beta.txt to summary.txt.",
            [*THREE, MANAGER],
            every(listed([*OTHERS, "summary.txt"], ["beta.txt"]), lines("summary.txt", [r"^beta\.txt$"])),
            script(
                (
                    "Rename the file",
                    [
                        _select("beta.txt"),
                        keys_step("f2", "Open the dialog to rename"),
                        type_step("summary.txt\n", "Type the name summary.txt and confirm", overwrite=True),
                    ],
                )
            ),
        ),
        make_task(
            "local-files-delete",
            "file_manager",
            "Move the file gamma.txt to the trash.",
            [*THREE, MANAGER],
            every(listed(["alpha.txt", "beta.txt"], ["gamma.txt"]), prints(f"ls {TRASH}", "gamma.txt\n")),
            script(("Delete the file", [_select("gamma.txt"), keys_step("delete", "Move it to the trash")])),
        ),
    ]


def _new_folder() -> list[Task]:
    """A task that makes a folder."""
    return [
        make_task(
            "local-files-new-folder",
            "file_manager",
            "Create a folder named Photos in the open folder.",
            [*THREE, MANAGER],
            listed(["\nPhotos/\n", "alpha.txt", "beta.txt", "gamma.txt"]),
            script(
                (
                    "Create the folder",
                    [
                        mouse("right", FILES_AREA, "the empty part of the folder", "Open the menu of the folder"),
                        mouse(
                            "click",
                            {"window": "Documents", "at": [770, 264]},
                            "the menu item Create New...",
                            "Choose Create New",
                        ),
                        mouse(
                            "click",
                            {"window": "Documents", "at": [960, 264]},
                            "the menu item Folder",
                            "Choose Folder",
                        ),
                        type_step("Photos\n", "Type the name Photos and confirm", overwrite=True),
                    ],
                )
            ),
        ),
    ]


def _moving() -> list[Task]:
    """Tasks that move or copy a file."""
    return [
        make_task(
            "local-files-move",
            "file_manager",
            "Move the file alpha.txt into the folder Archive.",
            [folder_step("Archive"), *THREE, MANAGER],
            listed(["Documents:\nArchive/\nbeta.txt\ngamma.txt\n", "Archive:\nalpha.txt"]),
            script(
                ("Cut the file", [_select("alpha.txt"), keys_step("ctrl x", "Cut it")]),
                (
                    "Paste it in the folder",
                    [
                        mouse("double", icon("Archive"), "the folder Archive", "Open the folder Archive"),
                        keys_step("ctrl v", "Paste the file"),
                    ],
                ),
            ),
        ),
        make_task(
            "local-files-copy",
            "file_manager",
            "Copy the file beta.txt into the folder Backup, and keep it here.",
            [folder_step("Backup"), *THREE, MANAGER],
            listed(["Backup:\nbeta.txt", "alpha.txt\nbeta.txt\ngamma.txt"]),
            script(
                ("Copy the file", [_select("beta.txt"), keys_step("ctrl c", "Copy it")]),
                (
                    "Paste it in the folder",
                    [
                        mouse("double", icon("Backup"), "the folder Backup", "Open the folder Backup"),
                        keys_step("ctrl v", "Paste the file"),
                    ],
                ),
            ),
        ),
    ]


def _dragging() -> list[Task]:
    """Tasks that drag a file."""
    return [
        make_task(
            "local-files-drag",
            "file_manager",
            "Drag the file gamma.txt into the folder Inbox.",
            [folder_step("Inbox"), *THREE, MANAGER],
            listed(["Inbox:\ngamma.txt", "alpha.txt\nbeta.txt\n"], ["beta.txt\ngamma.txt"]),
            script(
                (
                    "Drag the file",
                    [
                        {
                            **mouse(
                                "drag", icon("gamma.txt"), "the file gamma.txt", "Drag gamma.txt to the folder Inbox"
                            ),
                            "onto": icon("Inbox"),
                            "goal": "the folder Inbox",
                        }
                    ],
                )
            ),
        ),
    ]


def _other_tasks() -> list[Task]:
    return [
        make_task(
            "local-terminal-write",
            "terminal",
            "Use the terminal to write the word ready into the file Documents/status.txt.",
            [TERMINAL],
            lines("status.txt", ["^ready$"]),
            script(
                (
                    "Run the command",
                    [type_step("echo ready > Documents/status.txt\n", "Type a command that writes ready to the file")],
                )
            ),
        ),
        make_task(
            "local-open-and-edit",
            "multi_apps",
            "Open the file todo.txt from the file manager, add the line 'done' at its end, and save it.",
            [file_step("todo.txt", "sweep\n"), file_step("other.txt", "x\n"), MANAGER],
            every(not_blank("todo.txt", "sweep\ndone\n"), lines("other.txt", ["^x$"], ["done"])),
            script(
                ("Open the file", [mouse("double", icon("todo.txt"), "the file todo.txt", "Open the file todo.txt")]),
                (
                    "Add the line",
                    [
                        in_window("todo.txt", keys_step("ctrl end", "Go to the end of the text")),
                        type_step("done", "Type done"),
                    ],
                ),
                save_step("todo.txt"),
            ),
        ),
    ]


#: tasks of the split held_out
HELD_OUT = ("editor-append", "editor-line-numbers", "files-copy", "files-drag", "editor-unicode")


@lru_cache(maxsize=1)
def local_suite() -> Suite:
    """The suite, with the disjoint splits ``train`` and ``held_out``."""
    tasks = (*editor_tasks(), *_manager_tasks(), *_other_tasks())
    held_out = [f"local-{name}" for name in HELD_OUT]
    train = [task.id for task in tasks if task.id not in held_out]
    return Suite("local", tasks, {"train": train, "held_out": held_out})
