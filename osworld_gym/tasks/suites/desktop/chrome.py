"""Tasks in the browser: bookmarks, settings, forms, downloads, printing. Pages are local files or served locally."""

from __future__ import annotations

from osworld_gym.tasks.suites.authoring import (
    DOCUMENTS,
    Data,
    desktop_task,
    file_at,
    in_window,
    infeasible_script,
    keys_step,
    launch_and_wait,
    metric,
    output,
    script,
    shell,
    text_step,
    type_step,
)
from osworld_gym.tasks.task import Task

APP = "chrome"
HOME = "/home/user"
PROFILE = "~/.config/google-chrome/Default"
SITE = "~/site"
LOG = "/tmp/site.log"
BOOKMARKS = ["cat", f"{PROFILE}/Bookmarks"]
PORT = 8000
#: ends Chrome in the same way as its menu, so that it writes its profile
CLOSED: Data = {
    "type": "execute",
    "parameters": {
        "command": "pkill -TERM -o chrome; for i in $(seq 100); do pgrep chrome > /dev/null || break; sleep 0.1; done",
        "shell": True,
    },
}


def page(title: str, body: str) -> str:
    """A small HTML page."""
    return f'<!DOCTYPE html><html><head><meta charset="utf-8"><title>{title}</title></head><body>{body}</body></html>\n'


def opened(name: str, title: str, body: str) -> list[Data]:
    """Setup: a local page, open in the browser."""
    return [
        text_step(f"{DOCUMENTS}/{name}", page(title, body)),
        *launch_and_wait(f"{title} - ", "google-chrome", f"file://{HOME}/Documents/{name}"),
    ]


def served(pages: dict[str, str], title: str) -> list[Data]:
    """Setup: a web site of these files on a port inside the desktop, with a request log, open in the browser."""
    server = f"exec python3 -u -m http.server {PORT} --bind 127.0.0.1 --directory $HOME/site > {LOG} 2>&1"
    ready = {"command": f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {PORT}))\"", "shell": True}
    return [
        *(text_step(f"{SITE}/{name}", text) for name, text in pages.items()),
        {"type": "launch", "parameters": {"command": server, "shell": True, "window": False}},
        {"type": "execute", "parameters": ready | {"until": {"returncode": 0}}},
        *launch_and_wait(f"{title} - ", "google-chrome", f"http://127.0.0.1:{PORT}/"),
    ]


def profile(name: str, include: list[str]) -> Data:
    """Evaluator: a file of Chrome's profile contains these texts after Chrome has exited, ignoring white space."""
    text = shell(f"tr -d ' \\n' < {PROFILE}/{name}")
    return metric("check_include_exclude", text, {"include": include, "exclude": []}) | {"postconfig": [CLOSED]}


def address(text: str, intent: str) -> list[Data]:
    """Oracle steps that open an address."""
    return [keys_step("ctrl l", "Go to the address bar"), type_step(f"{text}\n", intent)]


def sent(query: str) -> Data:
    """Evaluator: the form was sent with this query (a regex), by the server's log, and never with another one."""
    form = r"GET /thanks\.html"
    rules = {"expect": [rf"{form}\?{query} "], "unexpect": [rf"{form}(?!\?{query} )"]}
    return metric("check_list", output("cat", LOG), rules)


def logged(text: str) -> Data:
    """Condition: the server's log contains the text."""
    return {"says": text, "command": ["cat", LOG]}


def chrome_tasks() -> list[Task]:
    """Nine tasks, one of them infeasible."""
    return [*_profile_tasks(), *_settings_tasks(), *_page_tasks(), *_saving_tasks(), *_site_tasks(), *_download_tasks()]


def _profile_tasks() -> list[Task]:
    return [
        desktop_task(
            "chrome-bookmark",
            APP,
            "Bookmark the open page, with the name it has.",
            opened("recipes.html", "Soup recipes", "<h1>Soup recipes</h1><p>Leek, pea, onion.</p>"),
            profile("Bookmarks", ['"name":"Souprecipes"', "recipes.html"]),
            script(
                ("Bookmark the page", [keys_step("ctrl d", "Bookmark the page"), keys_step("enter", "Confirm")]),
                end={"says": "Soup recipes", "command": BOOKMARKS},
            ),
        ),
        desktop_task(
            "chrome-bookmark-name",
            APP,
            "Bookmark the open page under the name 'Train times'.",
            opened("tt.html", "tt-2024-v3-final", "<h1>Timetable</h1><p>Bergen 10:15</p>"),
            profile("Bookmarks", ['"name":"Traintimes"', "tt.html"]),
            script(
                (
                    "Bookmark the page",
                    [
                        keys_step("ctrl d", "Bookmark the page"),
                        type_step("Train times\n", "Type the name and confirm", overwrite=True),
                    ],
                ),
                end={"says": "Train times", "command": BOOKMARKS},
            ),
        ),
    ]


def _settings_tasks() -> list[Task]:
    return [
        desktop_task(
            "chrome-startup",
            APP,
            "Set the browser to continue where you left off when it starts.",
            opened("start.html", "Start page", "<h1>Start page</h1>"),
            profile("Preferences", ['"restore_on_startup":1']),
            script(
                (
                    "Open the settings",
                    address("chrome://settings/onStartup", "Type the address of the settings On startup"),
                ),
                (
                    "Change the setting",
                    [
                        in_window("Settings - On startup", keys_step("tab", "Leave the search")),
                        keys_step("tab", "Go to the choices"),
                        keys_step("down", "Choose Continue where you left off"),
                    ],
                ),
            ),
            difficulty="medium",
        ),
        desktop_task(
            "chrome-infeasible",
            APP,
            "Make the browser paint the icons of the desktop's other programs green.",
            opened("start.html", "Start page", "<h1>Start page</h1>"),
            {"func": "infeasible"},
            infeasible_script("Say that the browser cannot change other programs' icons"),
        ),
    ]


def _page_tasks() -> list[Task]:
    return [
        desktop_task(
            "chrome-open-file",
            APP,
            "Open the file map.html of the folder Documents in the open tab.",
            [
                text_step(f"{DOCUMENTS}/map.html", page("City map", "<h1>City map</h1>")),
                *opened("start.html", "Start page", "<h1>Start</h1>"),
            ],
            metric(
                "check_include_exclude", output("wmctrl", "-l"), {"include": ["City map - "], "exclude": ["Start page"]}
            ),
            script(
                ("Open the file", address(f"file://{HOME}/Documents/map.html", "Type the address of the file")),
                end={"window": "City map"},
            ),
        ),
        desktop_task(
            "chrome-print",
            APP,
            "Save the open page as the PDF file ticket.pdf in the folder Documents, by printing it.",
            opened("ticket.html", "Ticket", "<h1>Ticket 4711</h1><p>Seat 12</p>"),
            metric("check_pdf", file_at(f"{DOCUMENTS}/ticket.pdf"), {"pages": 1, "letters": "Ticket 4711 Seat 12"}),
            script(
                (
                    "Print the page",
                    [
                        keys_step("ctrl p", "Open the dialog to print"),
                        {"do": "wait", "intent": "Wait for the preview"},
                        keys_step("enter", "Choose Save"),
                        in_window(
                            "Save", type_step(f"{HOME}/Documents/ticket.pdf", "Type the file's name", overwrite=True)
                        ),
                        keys_step("alt s", "Choose Save"),
                    ],
                ),
                end={"file": f"{DOCUMENTS}/ticket.pdf"},
            ),
            difficulty="medium",
        ),
    ]


def _saving_tasks() -> list[Task]:
    return [
        desktop_task(
            "chrome-save-page",
            APP,
            "Save the open page as poem.html in the folder Downloads.",
            opened("page.html", "A poem", "<h1>A poem</h1><p>The rose is red.</p>"),
            metric(
                "check_include_exclude",
                output("cat", "~/Downloads/poem.html"),
                {"include": ["The rose is red."], "exclude": []},
            ),
            script(
                (
                    "Save the page",
                    [
                        keys_step("ctrl s", "Open the dialog to save"),
                        in_window(
                            "Save", type_step(f"{HOME}/Downloads/poem.html", "Type the file's name", overwrite=True)
                        ),
                        keys_step("alt s", "Choose Save"),
                    ],
                ),
                end={"file": "~/Downloads/poem.html"},
            ),
        ),
    ]


def _site_tasks() -> list[Task]:
    form = (
        '<h1>Book a table</h1><form action="thanks.html">Name <input name="name" autofocus> '
        'Guests <input name="guests"><button>Book</button></form>'
    )
    thanks = page("Thank you", "<h1>Thank you</h1>")
    times = "<h1>Trains</h1><table><tr><td>Oslo</td><td>09:40</td></tr><tr><td>Bergen</td><td>10:15</td></tr></table>"
    ask = '<form action="thanks.html">Departure <input name="at"><button>Send</button></form>'
    return [
        desktop_task(
            "chrome-form",
            APP,
            "Book a table for 4 guests on the open page, under the name Weber.",
            served({"index.html": page("Book a table", form), "thanks.html": thanks}, "Book a table"),
            sent("name=Weber&guests=4"),
            script(
                (
                    "Fill in the form",
                    [
                        type_step("Weber", "Type the name Weber"),
                        keys_step("tab", "Go to the field Guests"),
                        type_step("4\n", "Type the number and send the form"),
                    ],
                ),
                end=logged("thanks"),
            ),
        ),
        desktop_task(
            "chrome-read-and-answer",
            APP,
            "Find out on the open page when the train to Bergen leaves, and send that time with the form (like 08:00).",
            served({"index.html": page("Trains", times + ask), "thanks.html": thanks}, "Trains"),
            sent("at=10(:|%3A)15"),
            script(
                (
                    "Send the time",
                    [
                        keys_step("tab", "Go to the field Departure"),
                        type_step("10:15\n", "Type the departure 10:15 and send the form"),
                    ],
                ),
                end=logged("thanks"),
            ),
        ),
    ]


def _download_tasks() -> list[Task]:
    shop = '<h1>Shop</h1><a href="prices.csv" download>Price list</a>'
    return [
        desktop_task(
            "chrome-download",
            APP,
            "Download the price list that the open page links to.",
            served({"index.html": page("Shop", shop), "prices.csv": "item,price\nsoap,2\n"}, "Shop"),
            metric(
                "check_include_exclude", output("cat", "~/Downloads/prices.csv"), {"include": ["soap,2"], "exclude": []}
            ),
            script(
                (
                    "Download the list",
                    [keys_step("tab", "Go to the link Price list"), keys_step("enter", "Follow the link Price list")],
                ),
                end={"file": "~/Downloads/prices.csv"},
            ),
        ),
    ]
