"""Tasks with two applications: what one shows is needed in the other."""

from __future__ import annotations

from osworld_gym.tasks.suites.authoring import (
    DOCUMENTS,
    TERMINAL,
    Data,
    Part,
    bytes_step,
    desktop_task,
    every,
    file_at,
    file_step,
    go_to,
    icon,
    in_editor,
    in_office,
    in_window,
    keys_step,
    launch,
    lines,
    metric,
    mouse,
    not_blank,
    output,
    save_step,
    saved,
    saved_document,
    script,
    type_step,
)
from osworld_gym.tasks.suites.desktop.chrome import page, served
from osworld_gym.tasks.suites.desktop.content.decks import make_pptx
from osworld_gym.tasks.suites.desktop.content.sheets import Rows, make_xlsx
from osworld_gym.tasks.suites.desktop.content.texts import make_odt
from osworld_gym.tasks.suites.desktop.thunderbird import inbox, select
from osworld_gym.tasks.task import Task

DOMAIN = "multi_apps"
STOCK: Rows = [["Item", "Units"], ["Pens", 120], ["Paper", 40], ["Ink", 15], ["Tape", 60]]


def switch(title: str, to: str) -> Part:
    """Oracle step: switches to the other window; the next step waits until it has the focus."""
    return f"Switch to {to}", [keys_step("alt tab", f"Switch to the window {title}")]


def contains(name: str, text: str) -> Data:
    """Condition: the document's text contains ``text``."""
    return {"says": text, "command": ["cat", f"{DOCUMENTS}/{name}"]}


def document(name: str, func: str, rules: Data) -> Data:
    """Evaluator of an office document."""
    path = f"{DOCUMENTS}/{name}"
    return saved(path, metric(func, file_at(path), rules))


def multi_tasks() -> list[Task]:
    """Seven tasks."""
    return [*_with_editor(), *_with_terminal(), *_with_office(), *_with_documents(), *_with_slides(), *_with_files()]


def _with_editor() -> list[Task]:
    return [
        desktop_task(
            "multi-calc-editor",
            DOMAIN,
            "Look up in the open workbook how many units of ink there are, and write the line 'Ink: <units>' into the "
            "file order.txt, which is open in the text editor behind it. Save order.txt.",
            [
                file_step("order.txt", ""),
                bytes_step(f"{DOCUMENTS}/stock.xlsx", make_xlsx({"Stock": STOCK})),
                in_editor("order.txt"),
                *in_office("stock.xlsx"),
            ],
            not_blank("order.txt", "Ink: 15\n"),
            script(
                switch("order.txt", "the text editor"),
                ("Write the line", [in_window("order.txt", type_step("Ink: 15", "Type the line Ink: 15"))]),
                save_step("order.txt"),
                end=contains("order.txt", "Ink"),
            ),
            difficulty="medium",
            apps=("libreoffice_calc", "text_editor"),
        ),
        desktop_task(
            "multi-mail-editor",
            DOMAIN,
            "The mail 'Lunch on Friday' proposes a time. Write the line 'Lunch at <that time>' into the file "
            "plan.txt, which is open in the text editor behind the mails, and save it.",
            [file_step("plan.txt", "Friday\n"), in_editor("plan.txt"), *inbox()],
            lines("plan.txt", ["^Friday$", "^Lunch at noon$"], ["^Lunch at (?!noon$)"]),
            script(
                select("Lunch on Friday"),
                switch("plan.txt", "the text editor"),
                (
                    "Write the line",
                    [
                        in_window("plan.txt", keys_step("ctrl end", "Go to the end of the text")),
                        type_step("Lunch at noon", "Type the line Lunch at noon"),
                    ],
                ),
                save_step("plan.txt"),
                end=contains("plan.txt", "noon"),
            ),
            difficulty="hard",
            apps=("thunderbird", "text_editor"),
        ),
    ]


def _with_terminal() -> list[Task]:
    return [
        desktop_task(
            "multi-terminal-editor",
            DOMAIN,
            "In the terminal, sort the lines of Documents/names.txt into Documents/sorted.txt; then open sorted.txt in "
            "the text editor (mousepad), add the line 'end' at its end, and save it.",
            [file_step("names.txt", "Zoe\nAnna\nMax\n"), TERMINAL],
            metric(
                "exact_match",
                output("grep", "-v", "^$", f"{DOCUMENTS}/sorted.txt"),
                {"expected": "Anna\nMax\nZoe\nend\n"},
            ),
            script(
                (
                    "Sort the lines",
                    [
                        type_step("sort Documents/names.txt > Documents/sorted.txt\n", "Type the command sort"),
                        type_step("mousepad Documents/sorted.txt &\n", "Open the result in the editor"),
                    ],
                ),
                (
                    "Add the line",
                    [
                        in_window("Mousepad", keys_step("ctrl end", "Go to the end of the text")),
                        type_step("end", "Type end"),
                    ],
                ),
                save_step("sorted.txt"),
                end=contains("sorted.txt", "end"),
            ),
            difficulty="medium",
            apps=("terminal", "text_editor"),
        ),
    ]


def _with_office() -> list[Task]:
    site = {"index.html": page("Shop", "<h1>Shop</h1><p>Lamp: 34 EUR</p><p>Chair: 59 EUR</p>")}
    prices: Rows = [["Item", "Price"], ["Lamp", None], ["Desk", 120]]
    return [
        desktop_task(
            "multi-browser-calc",
            DOMAIN,
            "Enter the price of the lamp, which the open web page tells, into the cell B2 of the workbook prices.xlsx, "
            "which is open behind the browser, and save the workbook.",
            [
                bytes_step(f"{DOCUMENTS}/prices.xlsx", make_xlsx({"Prices": prices})),
                *in_office("prices.xlsx"),
                *served(site, "Shop"),
            ],
            document("prices.xlsx", "check_sheet", {"cells": {"A2": "Lamp", "B2": 34, "B3": 120}}),
            script(
                switch("prices.xlsx", "Calc"),
                (
                    "Enter the price",
                    [
                        in_window("prices.xlsx", go_to("B2")[0]),
                        go_to("B2")[1],
                        type_step("34\n", "Type the price 34"),
                    ],
                ),
                ("Save prices.xlsx", saved_document(f"{DOCUMENTS}/prices.xlsx")),
                end={"changed": f"{DOCUMENTS}/prices.xlsx"},
            ),
            difficulty="medium",
            apps=("chrome", "libreoffice_calc"),
        ),
    ]


def _with_documents() -> list[Task]:
    return [
        desktop_task(
            "multi-editor-writer",
            DOMAIN,
            "Copy the whole text of the file quote.txt, which is open in the text editor, to the end of the Writer "
            "document speech.odt behind it, as a new paragraph, and save the document.",
            [
                file_step("quote.txt", "To be or not to be"),
                bytes_step(f"{DOCUMENTS}/speech.odt", make_odt(["Dear guests,", "as somebody said:"])),
                *in_office("speech.odt"),
                in_editor("quote.txt"),
            ],
            document(
                "speech.odt",
                "check_document",
                {"texts": ["Dear guests,", "as somebody said:", "To be or not to be"]},
            ),
            script(
                (
                    "Copy the text",
                    [keys_step("ctrl a", "Select the whole text"), keys_step("ctrl c", "Copy it")],
                ),
                switch("speech.odt", "Writer"),
                (
                    "Paste the text",
                    [
                        in_window("speech.odt", keys_step("ctrl end", "Go to the end of the text")),
                        keys_step("enter", "Begin a new paragraph"),
                        keys_step("ctrl v", "Paste the text"),
                    ],
                ),
                ("Save speech.odt", saved_document(f"{DOCUMENTS}/speech.odt")),
                end={"changed": f"{DOCUMENTS}/speech.odt"},
            ),
            difficulty="medium",
            apps=("text_editor", "libreoffice_writer"),
        ),
    ]


def _with_slides() -> list[Task]:
    return [
        desktop_task(
            "multi-calc-impress",
            DOMAIN,
            "Make the item with the most units in the open workbook the title of the only slide of best.pptx, which "
            "is open behind it (write the item's name alone), and save the presentation.",
            [
                bytes_step(f"{DOCUMENTS}/best.pptx", make_pptx([("Best item", ["This month"])])),
                bytes_step(f"{DOCUMENTS}/stock.xlsx", make_xlsx({"Stock": STOCK})),
                *in_office("best.pptx"),
                *in_office("stock.xlsx"),
            ],
            document("best.pptx", "check_slides", {"slides": [["Pens", "This month"]]}),
            script(
                switch("best.pptx", "Impress"),
                (
                    "Change the title",
                    [
                        in_window("best.pptx", keys_step("tab", "Select the title")),
                        keys_step("f2", "Edit the title"),
                        type_step("Pens", "Type Pens", overwrite=True),
                        keys_step("esc", "Leave the text"),
                    ],
                ),
                ("Save best.pptx", saved_document(f"{DOCUMENTS}/best.pptx")),
                end={"changed": f"{DOCUMENTS}/best.pptx"},
            ),
            difficulty="hard",
            apps=("libreoffice_calc", "libreoffice_impress"),
        ),
    ]


def _with_files() -> list[Task]:
    shop = '<h1>Shop</h1><a href="prices.csv" download>Price list</a>'
    site = {"index.html": page("Shop", shop), "prices.csv": "item,price\nsoap,2\n"}
    moved = every(
        metric("check_include_exclude", output("cat", f"{DOCUMENTS}/prices.csv"), {"include": ["soap,2"]}),
        metric("check_include_exclude", output("ls", "~/Downloads"), {"exclude": ["prices.csv"]}),
    )
    return [
        desktop_task(
            "multi-download-move",
            DOMAIN,
            "Download the price list that the open page links to; then move it with the file manager, which is open "
            "behind the browser, from Downloads to Documents.",
            [launch("pcmanfm", "~/Downloads"), *served(site, "Shop")],
            moved,
            script(
                (
                    "Download the list",
                    [keys_step("tab", "Go to the link Price list"), keys_step("enter", "Follow the link Price list")],
                ),
                (
                    "Switch to the file manager",
                    [keys_step("alt tab", "Switch to the file manager") | {"when": {"file": "~/Downloads/prices.csv"}}],
                ),
                (
                    "Move the file",
                    [
                        in_window(
                            "Downloads",
                            mouse(
                                "click",
                                icon("prices.csv", "~/Downloads"),
                                "the file prices.csv",
                                "Select the file prices.csv",
                            ),
                        ),
                        keys_step("ctrl x", "Cut it"),
                        keys_step("ctrl l", "Go to the address bar"),
                        type_step("/home/user/Documents\n", "Type the folder Documents", overwrite=True),
                        in_window("Documents", keys_step("ctrl v", "Paste the file")),
                    ],
                ),
                end={"file": f"{DOCUMENTS}/prices.csv"},
            ),
            difficulty="hard",
            apps=("chrome", "file_manager"),
        ),
    ]
