"""Tasks in Thunderbird: move, delete, mark and save mails in local folders. No account, no network."""

from __future__ import annotations

import json

from osworld_gym.tasks.suites.authoring import (
    DOCUMENTS,
    Data,
    Part,
    bytes_step,
    desktop_task,
    every,
    in_window,
    keys_step,
    launch,
    metric,
    output,
    script,
    shell,
    text_step,
    type_step,
    wait_for_window,
)
from osworld_gym.tasks.suites.desktop.content.media import make_mail, make_mbox
from osworld_gym.tasks.task import Task

APP = "thunderbird"
PROFILE = "~/.thunderbird/t5q2a5hp.default-release"
FOLDERS = f"{PROFILE}/Mail/Local Folders"
MAILS = [
    make_mail(1, "Anna <anna@example.com>", "Lunch on Friday", "Shall we meet at noon?\n"),
    make_mail(
        2, "Ben <ben@example.com>", "Invoice 17", "Please find it attached.\n", {"invoice.txt": b"Total: 250 EUR\n"}
    ),
    make_mail(3, "Shop <ads@example.com>", "Cheap watches", "Buy now, buy all!\n"),
]
#: hides the status bar, whose text is not deterministic; its argument is the profile's folder
_NO_STATUS = """
import json, pathlib, sys
path = pathlib.Path(sys.argv[1], "xulstore.json")
data = json.loads(path.read_text()) if path.exists() else {}
data.setdefault("chrome://messenger/content/messenger.xhtml", {})["status-bar"] = {"collapsed": "true"}
path.write_text(json.dumps(data))
"""
#: lists the windows, like ``wmctrl -l``; starts Thunderbird again if it shows the root of the folders. On a loaded
#: machine Thunderbird may read session.json before its list of folders is there; it then drops the folder to open
#: (restoreTab in its mailTabs.js, displayFolder in about3Pane.js)
_OPEN_AGAIN = """
import subprocess, time
def windows():
    return subprocess.run(["wmctrl", "-l"], capture_output=True, text=True).stdout
def still(condition, seconds):
    end = time.monotonic() + seconds
    while condition(windows()):
        if time.monotonic() > end:
            return True
        time.sleep(0.1)
    return False
if still(lambda titles: "Local Folders - " in titles and "Inbox - " not in titles, 2):
    subprocess.run(["pkill", "-KILL", "thunderbird"])  # a proper end would save the wrong folder in session.json
    still(lambda titles: "Thunderbird" in titles, 5)
    null = subprocess.DEVNULL
    subprocess.Popen(["thunderbird"], stdin=null, stdout=null, stderr=null, start_new_session=True)
print(windows())
"""
NEWEST_FIRST = ("Cheap watches", "Invoice 17", "Lunch on Friday")


def inbox() -> list[Data]:
    """Setup: three unread mails in the local inbox, an empty folder Projects, Thunderbird open on the inbox."""
    tab = {
        "mode": "mail3PaneTab",
        "state": {
            "firstTab": True,
            "folderPaneVisible": True,
            "folderURI": "mailbox://nobody@Local%20Folders/Inbox",
            "messagePaneVisible": True,
        },
        "ext": {},
    }
    windows = [{"type": "3pane", "tabs": {"rev": 0, "selectedIndex": 0, "tabs": [tab]}}]
    return [
        bytes_step(f"{FOLDERS}/Inbox", make_mbox(MAILS)),
        text_step(f"{FOLDERS}/Projects", ""),
        text_step(f"{PROFILE}/session.json", json.dumps({"rev": 0, "windows": windows})),
        {"type": "execute", "parameters": {"command": ["python3", "-c", _NO_STATUS, PROFILE]}},
        launch("thunderbird"),
        *wait_for_window("Inbox - ", "python3", "-c", _OPEN_AGAIN),
    ]


def select(subject: str) -> Part:
    """Oracle steps that select a mail in the list; the newest is first."""
    down = NEWEST_FIRST.index(subject)
    return (
        f"Select the mail {subject}",
        [
            *(keys_step("f6", f"Move the focus to {where}") for where in PANES),
            keys_step("home", "Go to the first mail"),
            *(keys_step("down", "Go to the next mail") for _ in range(down)),
        ],
    )


PANES = ("the spaces bar", "the search", "the folders", "the list of mails")


def folder(name: str) -> Data:
    """Getter of a mail folder's subjects and flags; a mail that was moved away is expunged (flag 8) or gone."""
    path = f'"$HOME/{FOLDERS.removeprefix("~/")}/{name}"'
    lines = "'^(X-Mozilla-Status:|X-Mozilla-Keys:|Subject:)'"
    return shell(f"grep -hE {lines} {path} | paste -sd' ' | sed 's/X-Mozilla-Status:/\\n&/g'")


def in_folder(name: str, expect: list[str], unexpect: list[str] | None = None) -> Data:
    """Evaluator: each regex matches a line ``X-Mozilla-Status: … X-Mozilla-Keys: … Subject: …`` of the folder."""
    return metric("check_list", folder(name), {"expect": expect, "unexpect": unexpect or []})


#: regex of the flags of a mail that was not removed: without bit 8
HERE = "^X-Mozilla-Status: ...[0-7] .*Subject: "


def left(gone: str) -> Data:
    """Evaluator: the inbox contains all mails except the one whose subject begins with this text."""
    words = ("Lunch", "Invoice", "Cheap")
    return in_folder("Inbox", [f"{HERE}{word}" for word in words if word != gone], [f"{HERE}{gone}"])


def thunderbird_tasks() -> list[Task]:
    """Seven tasks."""
    return [*_moved(), *_marked(), *_kept()]


def _moved() -> list[Task]:
    return [
        desktop_task(
            "mail-delete",
            APP,
            "Delete the advertisement 'Cheap watches' from the inbox, so that it goes to the trash.",
            inbox(),
            every(
                in_folder("Trash", ["Subject: Cheap watches"], ["Subject: Invoice", "Subject: Lunch"]), left("Cheap")
            ),
            script(select("Cheap watches"), ("Delete it", [keys_step("delete", "Delete the mail")])),
        ),
        desktop_task(
            "mail-move",
            APP,
            "Move the mail 'Invoice 17' from the inbox to the folder Projects.",
            inbox(),
            every(
                in_folder("Projects", ["Subject: Invoice 17"], ["Subject: Lunch", "Subject: Cheap"]), left("Invoice")
            ),
            script(
                select("Invoice 17"),
                (
                    "Move it",
                    [
                        keys_step("alt m", "Open the menu Message"),
                        keys_step("m", "Choose Move To"),
                        keys_step("l", "Choose Local Folders"),
                        keys_step("p", "Choose Projects"),
                    ],
                ),
            ),
            difficulty="medium",
        ),
    ]


def _marked() -> list[Task]:
    return [
        desktop_task(
            "mail-star",
            APP,
            "Add a star to the mail 'Lunch on Friday'.",
            inbox(),
            in_folder(
                "Inbox",
                ["^X-Mozilla-Status: ...[4-7] .*Subject: Lunch"],
                ["^X-Mozilla-Status: ...[4-7] .*Subject: [IC]"],
            ),
            script(select("Lunch on Friday"), ("Add the star", [keys_step("s", "Star the mail")])),
        ),
        desktop_task(
            "mail-tag",
            APP,
            "Tag the mail 'Invoice 17' as Important.",
            inbox(),
            in_folder("Inbox", [r"Keys: \$label1 .*Subject: Invoice"], [r"Keys: \$label1 .*Subject: (Lunch|Cheap)"]),
            script(select("Invoice 17"), ("Tag it", [keys_step("1", "Tag the mail as Important")])),
        ),
        desktop_task(
            "mail-read",
            APP,
            "Mark all mails of the inbox as read, and add a star to the mail 'Invoice 17'.",
            inbox(),
            in_folder(
                "Inbox",
                ["^X-Mozilla-Status: ...5 .*Subject: Inv", *(f"^X-Mozilla-Status: ...1 .*Subject: {s}" for s in "LC")],
            ),
            script(
                ("Mark the mails", [keys_step("shift c", "Mark all mails of the folder as read")]),
                select("Invoice 17"),
                ("Add the star", [keys_step("s", "Star the mail")]),
            ),
            difficulty="medium",
        ),
    ]


def _kept() -> list[Task]:
    return [
        desktop_task(
            "mail-save",
            APP,
            "Save the mail 'Lunch on Friday' as the file lunch.eml in the folder Documents.",
            inbox(),
            metric(
                "check_include_exclude",
                output("cat", f"{DOCUMENTS}/lunch.eml"),
                {"include": ["Subject: Lunch on Friday", "Shall we meet at noon?"], "exclude": []},
            ),
            script(
                select("Lunch on Friday"),
                (
                    "Save it",
                    [
                        keys_step("ctrl s", "Open the dialog to save the mail"),
                        {
                            **type_step(f"{DOCUMENTS}/lunch.eml\n", "Type the file's name", overwrite=True),
                            "when": {"active": "Save"},
                        },
                    ],
                ),
                end={"file": f"{DOCUMENTS}/lunch.eml"},
            ),
            difficulty="medium",
        ),
        desktop_task(
            "mail-folder",
            APP,
            "Create a new folder named Travel inside the folder Inbox.",
            inbox(),
            metric("check_list", output("ls", "-1", f"{FOLDERS}/Inbox.sbd"), {"expect": ["^Travel$"], "unexpect": []}),
            script(
                (
                    "Create the folder",
                    [
                        keys_step("alt f", "Open the menu File"),
                        keys_step("n", "Choose New"),
                        keys_step("f", "Choose Folder"),
                        in_window("New Folder", type_step("Travel\n", "Type the name Travel")),
                    ],
                ),
            ),
            difficulty="medium",
        ),
    ]
