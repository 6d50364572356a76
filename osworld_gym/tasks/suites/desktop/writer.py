"""Tasks in LibreOffice Writer: text, formats, page breaks, tables, export."""

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
from osworld_gym.tasks.suites.desktop.content.texts import Paragraph, make_docx, make_odt
from osworld_gym.tasks.task import Task

APP = "libreoffice_writer"
LETTER = ["Dear Ms Meyer,", "The colour of the door is wrong.", "We ordered the colour green.", "Yours, Jo"]
REPORT: list[Paragraph] = ["Yearly report", "We sold more than last year.", "Appendix", "Tables and sources."]


def _docx(name: str, paragraphs: Sequence[Paragraph]) -> list[Data]:
    return [bytes_step(f"{DOCUMENTS}/{name}", make_docx(paragraphs)), *in_office(name)]


def _odt(name: str, paragraphs: Sequence[str]) -> list[Data]:
    return [bytes_step(f"{DOCUMENTS}/{name}", make_odt(paragraphs)), *in_office(name)]


def _text(name: str, **rules: object) -> Data:
    path = f"{DOCUMENTS}/{name}"
    return saved(path, metric("check_document", file_at(path), rules))


def _play(name: str, *parts: Part) -> Data:
    path = f"{DOCUMENTS}/{name}"
    return script(*parts, (f"Save {name}", saved_document(path)), end={"changed": path})


def writer_tasks() -> list[Task]:
    """Nine tasks."""
    return [*_words(), *_deletion(), *_formats(), *_parts(), *_export()]


def _words() -> list[Task]:
    return [
        desktop_task(
            "writer-replace",
            APP,
            "Replace 'colour' by 'color' everywhere in the open letter, and save it.",
            _odt("letter.odt", LETTER),
            _text("letter.odt", texts=[line.replace("colour", "color") for line in LETTER]),
            _play(
                "letter.odt",
                (
                    "Replace the word",
                    [
                        keys_step("ctrl h", "Open Find and Replace"),
                        in_window("Find", type_step("colour", "Type the old word", overwrite=True)),
                        keys_step("tab", "Leave the field"),
                        keys_step("alt p", "Go to the field Replace"),
                        type_step("color", "Type the new word", overwrite=True),
                        keys_step("alt l", "Choose Replace All"),
                        keys_step("esc", "Close the dialog"),
                    ],
                ),
            ),
            difficulty="medium",
        ),
        desktop_task(
            "writer-append",
            APP,
            "Add the sentence 'The next meeting is in May.' as a new last paragraph of the open report, and save it.",
            _docx("report.docx", REPORT),
            _text("report.docx", texts=[*REPORT, "The next meeting is in May."]),
            _play(
                "report.docx",
                (
                    "Write the paragraph",
                    [
                        keys_step("ctrl end", "Go to the end of the text"),
                        keys_step("enter", "Begin a new paragraph"),
                        type_step("The next meeting is in May.", "Type the sentence"),
                    ],
                ),
            ),
        ),
    ]


def _deletion() -> list[Task]:
    return [
        desktop_task(
            "writer-delete-paragraph",
            APP,
            "Delete the paragraph 'Internal: not for customers.' from the open note, and save it.",
            _odt("note.odt", ["Internal: not for customers.", "The shop opens at nine.", "Bring your own bag."]),
            _text("note.odt", texts=["The shop opens at nine.", "Bring your own bag."]),
            _play(
                "note.odt",
                (
                    "Delete the paragraph",
                    [
                        keys_step("ctrl home", "Go to the start of the text"),
                        keys_step("shift end", "Select the line"),
                        keys_step("delete", "Delete the selected words"),
                        keys_step("delete", "Delete the empty paragraph"),
                    ],
                ),
            ),
        ),
    ]


def _formats() -> list[Task]:
    def first_line(intent: str, keys: str) -> Part:
        return (
            "Format the first line",
            [
                keys_step("ctrl home", "Go to the start of the text"),
                keys_step("shift end", "Select the first line"),
                keys_step(keys, intent),
            ],
        )

    plain = {"bold": False, "align": "left"}
    return [
        desktop_task(
            "writer-bold",
            APP,
            "Make the first line of the open report bold, only that one, and save the file.",
            _docx("report.docx", REPORT),
            _text(
                "report.docx",
                paragraphs={"^Yearly": {"bold": True}, "^We sold": plain, "^Appendix": plain, "^Tables": plain},
                texts=REPORT,
            ),
            _play("report.docx", first_line("Make it bold", "ctrl b")),
        ),
        desktop_task(
            "writer-heading",
            APP,
            "Give the first line of the open report the paragraph style Heading 1, and save the file.",
            _docx("report.docx", REPORT),
            _text(
                "report.docx",
                paragraphs={
                    "^Yearly": {"style": {"matches": "(?i)^heading 1$"}},
                    "^We sold": {"style": {"matches": "(?i)^(normal|)$"}},
                },
                texts=REPORT,
            ),
            _play("report.docx", first_line("Set the style Heading 1", "ctrl 1")),
        ),
        desktop_task(
            "writer-centre",
            APP,
            "Centre the first line of the open letter, leave the others as they are, and save the file.",
            _odt("letter.odt", LETTER),
            _text("letter.odt", paragraphs={"^Dear": {"align": "center"}, "^Yours": plain}, texts=LETTER),
            _play("letter.odt", first_line("Centre the paragraph", "ctrl e")),
        ),
    ]


def _parts() -> list[Task]:
    return [
        desktop_task(
            "writer-page-break",
            APP,
            "Insert a page break so that the last paragraph stands on a page of its own, and save the document.",
            _docx("minutes.docx", ["Minutes of the meeting", "All came.", "Signatures"]),
            _text("minutes.docx", pages=[["Minutes of the meeting", "All came."], ["Signatures"]]),
            _play(
                "minutes.docx",
                (
                    "Insert the page break",
                    [
                        keys_step("ctrl end", "Go to the end of the text"),
                        keys_step("home", "Go to the start of the last paragraph"),
                        keys_step("ctrl enter", "Insert a page break"),
                    ],
                ),
            ),
        ),
        desktop_task(
            "writer-table",
            APP,
            "Add a table of 2 columns and 2 rows at the end of the open text: Day, Place / Monday, Rome. Save it.",
            _docx("trip.docx", ["Our trip", "Where we are:"]),
            _text("trip.docx", texts=["Our trip", "Where we are:"], tables=[[["Day", "Place"], ["Monday", "Rome"]]]),
            _play(
                "trip.docx",
                (
                    "Insert the table",
                    [
                        keys_step("ctrl end", "Go to the end of the text"),
                        keys_step("enter", "Begin a new paragraph"),
                        keys_step("ctrl f12", "Open the dialog to insert a table"),
                        in_window("Insert Table", keys_step("enter", "Insert a table of two columns and two rows")),
                    ],
                ),
                (
                    "Fill it",
                    [
                        type_step("Day", "Type Day"),
                        keys_step("tab", "Go to the next cell"),
                        type_step("Place", "Type Place"),
                        keys_step("tab", "Go to the next cell"),
                        type_step("Monday", "Type Monday"),
                        keys_step("tab", "Go to the next cell"),
                        type_step("Rome", "Type Rome"),
                    ],
                ),
            ),
            difficulty="hard",
        ),
    ]


def _export() -> list[Task]:
    return [
        desktop_task(
            "writer-pdf",
            APP,
            "Export the open report as the PDF file report.pdf into the same folder.",
            _docx("report.docx", [*REPORT[:2], "\f", *REPORT[2:]]),
            metric("check_pdf", file_at(f"{DOCUMENTS}/report.pdf"), {"pages": 2, "letters": "".join(map(str, REPORT))}),
            script(
                (
                    "Export the document",
                    [
                        keys_step("alt f", "Open the menu File"),
                        keys_step("t", "Choose Export"),
                        in_window(
                            "Export", type_step(f"{DOCUMENTS}/report.pdf\n", "Type the file's name", overwrite=True)
                        ),
                        in_window("PDF Options", keys_step("enter", "Choose Export")),
                    ],
                ),
                end={"file": f"{DOCUMENTS}/report.pdf"},
            ),
            difficulty="medium",
        ),
    ]
