"""Tasks in the file manager, the text editor and the terminal."""

from __future__ import annotations

from osworld_gym.tasks.suites.authoring import (
    DOCUMENTS,
    MANAGER,
    TERMINAL,
    Data,
    desktop_task,
    every,
    file_step,
    folder_step,
    icon,
    in_editor,
    in_window,
    keys_step,
    lines,
    listed,
    metric,
    mouse,
    not_blank,
    output,
    prints,
    save_step,
    script,
    shell,
    text_step,
    type_step,
)
from osworld_gym.tasks.task import Task


def place_tasks() -> list[Task]:
    """Three tasks in the file manager, three in the editor, six in the terminal, two of them infeasible."""
    return [*_manager(), *_editor(), *_editor_files(), *_editor_new_file(), *_terminal(), *_terminal_files()]


def _manager() -> list[Task]:
    return [
        desktop_task(
            "files-nested",
            "file_manager",
            "Create a folder named 2024 inside the folder Reports.",
            [folder_step("Reports"), folder_step("Letters"), MANAGER],
            listed(["Reports:\n2024/"], ["Letters:\n2024"]),
            script(
                (
                    "Open the folder",
                    [mouse("double", icon("Reports"), "the folder Reports", "Open the folder Reports")],
                ),
                (
                    "Create the folder",
                    [
                        keys_step("ctrl shift n", "Create a new folder"),
                        type_step("2024\n", "Type the name 2024 and confirm", overwrite=True),
                    ],
                ),
                end={"says": "2024", "command": ["ls", f"{DOCUMENTS}/Reports"]},
            ),
        ),
        desktop_task(
            "files-empty-folder",
            "file_manager",
            "Move all three text files of the open folder into the folder Old, at once.",
            [folder_step("Old"), *(file_step(f"{name}.txt", name) for name in ("one", "two", "three")), MANAGER],
            every(listed(["Old:\none.txt\nthree.txt\ntwo.txt"]), listed(["Documents:\nOld/\n\n"])),
            script(
                (
                    "Cut the files",
                    [
                        mouse("click", icon("one.txt"), "the file one.txt", "Select the first file"),
                        keys_step("shift end", "Select up to the last file"),
                        keys_step("ctrl x", "Cut the files"),
                    ],
                ),
                (
                    "Paste them",
                    [
                        mouse("double", icon("Old"), "the folder Old", "Open the folder Old"),
                        keys_step("ctrl v", "Paste the files"),
                    ],
                ),
                end={"lacks": f"{DOCUMENTS}/two.txt"},
            ),
            difficulty="medium",
        ),
        desktop_task(
            "files-infeasible",
            "file_manager",
            "Let the file manager e-mail the file one.txt to the moon station's fax machine.",
            [file_step("one.txt", "1\n"), MANAGER],
            {"func": "infeasible"},
            script(("Tell the user", [{"do": "fail", "intent": "Say that the file manager sends no fax"}] * 3)),
        ),
    ]


POEM = "roses are red\nviolets are blue\n"


def _editor() -> list[Task]:
    return [
        desktop_task(
            "editor-replace-all",
            "text_editor",
            "Replace every 'cat' by 'dog' in the open file story.txt and save it.",
            [file_step("story.txt", "The cat sat.\nA cat ran.\nNo cat here.\n"), in_editor("story.txt")],
            lines("story.txt", ["^The dog sat", "^A dog ran", "^No dog here"], ["cat"]),
            script(
                (
                    "Replace the word",
                    [
                        keys_step("ctrl r", "Open Find and Replace"),
                        in_window("Replace", type_step("cat", "Type the old word", overwrite=True)),
                        keys_step("tab", "Go to the new word"),
                        type_step("dog", "Type the new word", overwrite=True),
                        keys_step("alt a", "Set the mark at Replace all"),
                        keys_step("alt r", "Choose Replace All"),
                        keys_step("esc", "Close the dialog"),
                    ],
                ),
                save_step("story.txt"),
                end={"says": "dog", "command": ["cat", f"{DOCUMENTS}/story.txt"]},
            ),
            difficulty="medium",
        ),
    ]


def _editor_files() -> list[Task]:
    return [
        desktop_task(
            "editor-copy-between",
            "text_editor",
            "Copy the whole text of poem.txt (open) to the end of book.txt in the same folder, and save book.txt.",
            [file_step("poem.txt", POEM), file_step("book.txt", "My book\n"), in_editor("poem.txt")],
            every(not_blank("book.txt", f"My book\n{POEM}"), lines("poem.txt", ["^roses are red$"])),
            script(
                (
                    "Copy the text",
                    [keys_step("ctrl a", "Select the whole text"), keys_step("ctrl c", "Copy it")],
                ),
                (
                    "Open the other file",
                    [
                        keys_step("ctrl o", "Open the dialog to open a file"),
                        in_window("Open", type_step("/home/user/Documents/book.txt\n", "Type the file's name")),
                    ],
                ),
                (
                    "Paste the text",
                    [
                        in_window("book.txt", keys_step("ctrl end", "Go to the end of the text")),
                        keys_step("ctrl v", "Paste the text"),
                    ],
                ),
                save_step("book.txt"),
                end={"says": "violets", "command": ["cat", f"{DOCUMENTS}/book.txt"]},
            ),
            difficulty="medium",
        ),
    ]


def _editor_new_file() -> list[Task]:
    return [
        desktop_task(
            "editor-new-file",
            "text_editor",
            "Write 'eggs' and 'flour' on two lines of a new file, and save it as cake.txt in Documents.",
            [file_step("notes.txt", "x\n"), in_editor("notes.txt")],
            not_blank("cake.txt", "eggs\nflour\n"),
            script(
                (
                    "Write the file",
                    [
                        keys_step("ctrl n", "Open a new file"),
                        in_window("Untitled", type_step("eggs\nflour", "Type the two lines")),
                    ],
                ),
                (
                    "Save it",
                    [
                        keys_step("ctrl s", "Open the dialog to save"),
                        in_window(
                            "Save", type_step("/home/user/Documents/cake.txt", "Type the file's name", overwrite=True)
                        ),
                        keys_step("alt s", "Choose Save"),
                    ],
                ),
                end={"file": f"{DOCUMENTS}/cake.txt"},
            ),
        ),
    ]


LOGS = [file_step(f"log{i}.txt", "error\n" * i + "fine\n") for i in (1, 2, 3)]


def _command(
    name: str,
    instruction: str,
    config: list[Data],
    evaluator: Data,
    *typed: str,
    end: Data,
    difficulty: str = "easy",
) -> Task:
    """A terminal task, whose oracle types the lines one after another."""
    steps = [type_step(f"{line}\n", f"Type the command {line.split()[0]}") for line in typed]
    return desktop_task(
        name,
        "os",
        instruction,
        [*config, TERMINAL],
        evaluator,
        script(("Use the terminal", steps), end=end),
        difficulty=difficulty,
        apps=("os", "terminal"),
    )


def _terminal() -> list[Task]:
    return [
        _command(
            "os-count",
            "Count the lines with the word error in all logs of Documents; write the number into Documents/count.txt.",
            LOGS,
            not_blank("count.txt", "6\n"),
            "cat Documents/log*.txt | grep -c error > Documents/count.txt",
            "cat Documents/count.txt",
            end={"file": f"{DOCUMENTS}/count.txt"},
        ),
        _command(
            "os-archive",
            "Pack the folder Documents/trip into the archive trip.tar.gz in your home folder.",
            [text_step(f"{DOCUMENTS}/trip/day1.txt", "rain\n"), text_step(f"{DOCUMENTS}/trip/day2.txt", "sun\n")],
            metric(
                "check_list",
                output("tar", "tzf", "~/trip.tar.gz"),
                {"expect": [r"(^|/)trip/day1\.txt$", r"(^|/)trip/day2\.txt$"], "unexpect": []},
            ),
            "tar czf trip.tar.gz -C Documents trip",
            "ls -l trip.tar.gz",
            end={"file": "~/trip.tar.gz"},
        ),
        _command(
            "os-permissions",
            "Make the file Documents/run.sh executable for its owner, and for nobody else.",
            [file_step("run.sh", "#!/bin/sh\necho hello\n")],
            metric("exact_match", shell("stat -c %A ~/Documents/run.sh | cut -c4,7,10"), {"expected": "x--\n"}),
            "chmod u+x,go-x Documents/run.sh",
            "ls -l Documents",
            end={"says": "^.rwx", "command": ["stat", "-c", "%A", f"{DOCUMENTS}/run.sh"]},
        ),
    ]


def _terminal_files() -> list[Task]:
    return [
        _command(
            "os-rename-many",
            "Rename all files of Documents that end with .txt so that they end with .bak instead.",
            LOGS,
            every(
                metric(
                    "check_list",
                    output("ls", "-1", DOCUMENTS),
                    {"expect": [f"^log{i}.bak$" for i in (1, 2, 3)], "unexpect": [r"\.txt$"]},
                ),
                prints("cd ~/Documents && grep -c error log?.bak", "log1.bak:1\nlog2.bak:2\nlog3.bak:3\n"),
            ),
            "cd Documents",
            'for f in *.txt; do mv "$f" "${f%.txt}.bak"; done',
            "ls",
            end={"file": f"{DOCUMENTS}/log3.bak"},
            difficulty="medium",
        ),
        _command(
            "os-link",
            "Create a symbolic link named latest in the home folder that points to Documents/v2.",
            [folder_step("v1"), folder_step("v2")],
            metric(
                "check_list",
                output("readlink", "-f", "~/latest"),
                {"expect": ["^/home/user/Documents/v2$"], "unexpect": []},
            ),
            "ln -s Documents/v2 latest",
            "ls -l latest",
            end={"says": "v2", "command": ["readlink", "~/latest"]},
        ),
        desktop_task(
            "os-infeasible",
            "os",
            "Use the terminal to add four more cores to this machine's processor.",
            [TERMINAL],
            {"func": "infeasible"},
            script(("Tell the user", [{"do": "fail", "intent": "Say that a command cannot add cores"}] * 3)),
            apps=("os", "terminal"),
        ),
    ]
