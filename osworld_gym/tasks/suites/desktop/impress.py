"""Tasks in LibreOffice Impress: add, remove, copy and move slides, edit text, export."""

from __future__ import annotations

from collections.abc import Sequence

from osworld_gym.tasks.suites.authoring import (
    DOCUMENTS,
    Data,
    Part,
    bytes_step,
    desktop_task,
    file_at,
    in_office,
    in_window,
    keys_step,
    metric,
    saved,
    saved_document,
    script,
    type_step,
)
from osworld_gym.tasks.suites.desktop.content.decks import Slide, make_pptx
from osworld_gym.tasks.task import Task

APP = "libreoffice_impress"
DECK: list[Slide] = [("Our garden", ["Spring"]), ("Roses", ["Red", "White"]), ("Old photos", ["1999"])]
NEXT = keys_step("pagedown", "Go to the next slide")


def _opened(name: str, slides: Sequence[Slide]) -> list[Data]:
    return [bytes_step(f"{DOCUMENTS}/{name}", make_pptx(slides)), *in_office(name)]


def _slides(name: str, slides: Sequence[Slide]) -> Data:
    texts = [[title, "\n".join(lines)] if lines else [title] for title, lines in slides]
    path = f"{DOCUMENTS}/{name}"
    return saved(path, metric("check_slides", file_at(path), {"slides": texts}))


def _play(name: str, *parts: Part) -> Data:
    path = f"{DOCUMENTS}/{name}"
    return script(*parts, (f"Save {name}", saved_document(path)), end={"changed": path})


def impress_tasks() -> list[Task]:
    """Six tasks."""
    return [*_slide_tasks(), *_word_tasks()]


def _slide_tasks() -> list[Task]:
    return [
        desktop_task(
            "impress-delete-slide",
            APP,
            "Delete the last slide of the open presentation and save it.",
            _opened("garden.pptx", DECK),
            _slides("garden.pptx", DECK[:2]),
            _play(
                "garden.pptx",
                (
                    "Go to the slide",
                    [keys_step("pagedown", "Go to the second slide"), keys_step("pagedown", "Go to the last slide")],
                ),
                ("Delete it", [keys_step("alt l", "Open the menu Slide"), keys_step("d", "Choose Delete Slide")]),
            ),
        ),
        desktop_task(
            "impress-duplicate-slide",
            APP,
            "Duplicate the first slide, so that there are four, and save the presentation.",
            _opened("garden.pptx", DECK),
            _slides("garden.pptx", [DECK[0], *DECK]),
            _play(
                "garden.pptx",
                (
                    "Duplicate the slide",
                    [
                        keys_step("alt l", "Open the menu Slide"),
                        keys_step("down", "Go down to Duplicate Slide"),
                        keys_step("enter", "Choose Duplicate Slide"),
                    ],
                ),
            ),
        ),
        desktop_task(
            "impress-pdf",
            APP,
            "Export the open presentation as the PDF file garden.pdf into the same folder.",
            _opened("garden.pptx", DECK),
            metric(
                "check_pdf",
                file_at(f"{DOCUMENTS}/garden.pdf"),
                {"pages": 3, "letters": "".join(title + "".join(lines) for title, lines in DECK)},
            ),
            script(
                (
                    "Export the presentation",
                    [
                        keys_step("alt f", "Open the menu File"),
                        keys_step("t", "Choose Export"),
                        in_window(
                            "Export", type_step(f"{DOCUMENTS}/garden.pdf\n", "Type the file's name", overwrite=True)
                        ),
                        in_window("PDF Options", keys_step("enter", "Choose Export")),
                    ],
                ),
                end={"file": f"{DOCUMENTS}/garden.pdf"},
            ),
            difficulty="medium",
        ),
    ]


def _edit(shape: str, tabs: int) -> list[Data]:
    """Oracle steps that begin to edit the ``tabs``-th shape of the slide."""
    return [
        *(keys_step("tab", f"Select the {shape}") for _ in range(tabs)),
        keys_step("f2", f"Edit the text of the {shape}"),
    ]


def _word_tasks() -> list[Task]:
    return [
        desktop_task(
            "impress-title",
            APP,
            "Change the title of the first slide to 'Our park' and save the presentation.",
            _opened("garden.pptx", DECK),
            _slides("garden.pptx", [("Our park", DECK[0][1]), *DECK[1:]]),
            _play(
                "garden.pptx",
                (
                    "Change the title",
                    [
                        *_edit("title", 1),
                        type_step("Our park", "Type the new title", overwrite=True),
                        keys_step("esc", "Leave the text"),
                    ],
                ),
            ),
        ),
        desktop_task(
            "impress-bullet",
            APP,
            "Add the line 'Yellow' below 'White' on the slide 'Roses', and save the presentation.",
            _opened("garden.pptx", DECK),
            _slides("garden.pptx", [DECK[0], ("Roses", ["Red", "White", "Yellow"]), DECK[2]]),
            _play(
                "garden.pptx",
                ("Go to the slide", [NEXT]),
                (
                    "Add the line",
                    [
                        *_edit("list", 2),
                        keys_step("ctrl end", "Go to the end of the list"),
                        keys_step("enter", "Begin a new line"),
                        type_step("Yellow", "Type Yellow"),
                        keys_step("esc", "Leave the text"),
                    ],
                ),
            ),
            difficulty="medium",
        ),
        desktop_task(
            "impress-new-slide",
            APP,
            "Insert a new slide after the last one, with the title 'Thank you', and save the presentation.",
            _opened("talk.pptx", DECK[:1]),
            _slides("talk.pptx", [DECK[0], ("Thank you", [])]),
            _play(
                "talk.pptx",
                ("Insert the slide", [keys_step("ctrl m", "Insert a new slide")]),
                (
                    "Write the title",
                    [*_edit("title", 1), type_step("Thank you", "Type the title"), keys_step("esc", "Leave the text")],
                ),
            ),
            difficulty="medium",
        ),
    ]
