"""Tasks in LibreOffice Calc: formulas, sheets, rows, formats, sorting, export."""

from __future__ import annotations

from osworld_gym.tasks.suites.authoring import (
    DOCUMENTS,
    Data,
    Part,
    bytes_step,
    desktop_task,
    file_at,
    go_to,
    in_office,
    in_window,
    infeasible_script,
    keys_step,
    metric,
    mouse,
    saved,
    saved_document,
    script,
    type_step,
)
from osworld_gym.tasks.suites.desktop.content.sheets import Cell, Rows, make_xlsx
from osworld_gym.tasks.task import Task

APP = "libreoffice_calc"
SALES: Rows = [
    ["Item", "Units", "Price"],
    ["Pens", 120, 1.5],
    ["Paper", 40, 6],
    ["Ink", 15, 22],
    ["Tape", 60, 3.25],
]
CHAPTERS: list[tuple[Cell, Cell]] = [("Chapter", "State"), *((i, "draft") for i in range(1, 7))]
#: the first sheet's tab, from the window's lower left corner
TAB = {"window": "LibreOffice Calc", "at": [174, -35]}
STAFF: Rows = [["Name", "Age"], ["Olga", 41], ["Ben", 29], ["Mia", 35], ["Carl", 52]]


def _refers(*cells: str) -> str:
    """A regex of formulas that refer to all of these cells, also as ``$B$2``."""
    return "(?i)^" + "".join(rf"(?=.*{cell[0]}\$?{cell[1:]}(?!\d))" for cell in cells)


#: formulas of the sum of B2 to B5: of the range, also with its heading, or of the single cells
SUM = rf"(?i)B\$?[12]:\$?B\$?5(?!\d)|{_refers('B2', 'B3', 'B4', 'B5').removeprefix('(?i)')}"


def _opened(name: str, sheets: dict[str, Rows]) -> list[Data]:
    return [bytes_step(f"{DOCUMENTS}/{name}", make_xlsx(sheets)), *in_office(name)]


def _sheet(name: str, **rules: object) -> Data:
    path = f"{DOCUMENTS}/{name}"
    return saved(path, metric("check_sheet", file_at(path), rules))


def _play(name: str, *parts: Part) -> Data:
    path = f"{DOCUMENTS}/{name}"
    return script(*parts, (f"Save {name}", saved_document(path)), end={"changed": path})


def calc_tasks() -> list[Task]:
    """Ten tasks, one of them infeasible."""
    return [*_formulas(), *_structure(), *_contents(), *_looks()]


def _formulas() -> list[Task]:
    return [
        desktop_task(
            "calc-sum",
            APP,
            "Put the total of the units into the cell B6 of the open workbook, with a formula, and save the file.",
            _opened("sales.xlsx", {"Sales": SALES}),
            _sheet("sales.xlsx", cells={"B6": 235, "B5": 60}, formulas={"B6": SUM}),
            _play(
                "sales.xlsx",
                ("Go to the cell", go_to("B6")),
                ("Write the formula", [type_step("=SUM(B2:B5)\n", "Type the formula =SUM(B2:B5)")]),
            ),
        ),
        desktop_task(
            "calc-product",
            APP,
            "Add a column 'Revenue' in D: units times price for each of the four items, as formulas. Save the file.",
            _opened("sales.xlsx", {"Sales": SALES}),
            _sheet(
                "sales.xlsx",
                cells={"D1": "Revenue", "D2": 180, "D3": 240, "D4": 330, "D5": 195},
                formulas={f"D{i}": _refers(f"B{i}", f"C{i}") for i in range(2, 6)},
            ),
            _play(
                "sales.xlsx",
                ("Write the heading", [*go_to("D1"), type_step("Revenue\n", "Type the heading Revenue")]),
                (
                    "Write the formulas",
                    [
                        type_step(
                            "".join(f"=B{i}*C{i}\n" for i in range(2, 6)), "Type the four formulas below each other"
                        )
                    ],
                ),
            ),
            difficulty="medium",
        ),
        desktop_task(
            "calc-average",
            APP,
            "Write the average age of the staff into the cell D2, with a formula, and save the workbook.",
            _opened("staff.xlsx", {"Staff": STAFF}),
            _sheet("staff.xlsx", cells={"D2": 39.25}, formulas={"D2": r"(?i)B(\$?\d|:)"}),
            _play(
                "staff.xlsx",
                ("Go to the cell", go_to("D2")),
                ("Write the formula", [type_step("=AVERAGE(B2:B5)\n", "Type the formula =AVERAGE(B2:B5)")]),
            ),
        ),
    ]


def _structure() -> list[Task]:
    return [
        desktop_task(
            "calc-rename-sheet",
            APP,
            "Rename the sheet 'Sheet1' to 'Budget 2024' and save the workbook.",
            _opened("budget.xlsx", {"Sheet1": SALES, "Notes": [["none"]]}),
            _sheet("budget.xlsx", sheets=["Budget 2024", "Notes"], cells={"A2": "Pens"}),
            _play(
                "budget.xlsx",
                (
                    "Rename the sheet",
                    [
                        mouse("double", TAB, "the tab of Sheet1", "Double-click on the tab of the sheet"),
                        in_window("Rename Sheet", type_step("Budget 2024\n", "Type the new name", overwrite=True)),
                    ],
                ),
            ),
        ),
        desktop_task(
            "calc-delete-row",
            APP,
            "Delete the whole row of 'Ink' so that the rows below move up, and save the workbook.",
            _opened("sales.xlsx", {"Sales": SALES}),
            _sheet("sales.xlsx", cells={"A3": "Paper", "A4": "Tape", "B4": 60, "C4": 3.25, "A5": None}),
            _play(
                "sales.xlsx",
                ("Select the row", [*go_to("A4"), keys_step("shift space", "Select the whole row")]),
                ("Delete the row", [keys_step("ctrl -", "Delete the selected row")]),
            ),
        ),
    ]


def _contents() -> list[Task]:
    return [
        desktop_task(
            "calc-sort",
            APP,
            "Sort the staff by name, from A to Z, with each age staying beside its name. Save the workbook.",
            _opened("staff.xlsx", {"Staff": STAFF}),
            _sheet(
                "staff.xlsx",
                cells={
                    "A1": "Name",
                    "A2": "Ben",
                    "B2": 29,
                    "A3": "Carl",
                    "B3": 52,
                    "A4": "Mia",
                    "A5": "Olga",
                    "B5": 41,
                },
            ),
            _play(
                "staff.xlsx",
                (
                    "Sort the rows",
                    [
                        *go_to("A2:B5"),
                        keys_step("alt d", "Open the menu Data"),
                        keys_step("a", "Choose Sort Ascending"),
                    ],
                ),
            ),
            difficulty="medium",
        ),
        desktop_task(
            "calc-replace",
            APP,
            "Replace every 'draft' in the sheet by 'final', and save the workbook.",
            _opened("status.xlsx", {"Status": CHAPTERS}),
            _sheet("status.xlsx", cells={f"B{i}": "final" for i in range(2, 8)}),
            _play(
                "status.xlsx",
                (
                    "Replace the word",
                    [
                        keys_step("ctrl h", "Open Find and Replace"),
                        in_window("Find and Replace", type_step("draft", "Type the old word", overwrite=True)),
                        keys_step("tab", "Leave the field"),
                        keys_step("alt p", "Go to the field Replace"),
                        type_step("final", "Type the new word", overwrite=True),
                        keys_step("alt l", "Choose Replace All"),
                        keys_step("esc", "Close the message"),
                        keys_step("esc", "Close the dialog"),
                    ],
                ),
            ),
            difficulty="medium",
        ),
    ]


def _looks() -> list[Task]:
    return [
        desktop_task(
            "calc-bold",
            APP,
            "Make the heading row (A1 to C1) bold and save the workbook.",
            _opened("sales.xlsx", {"Sales": SALES}),
            _sheet(
                "sales.xlsx",
                formats={place: {"bold": place.endswith("1")} for place in ("A1", "B1", "C1", "A2")},
            ),
            _play(
                "sales.xlsx",
                ("Select the headings", go_to("A1:C1")),
                ("Make them bold", [keys_step("ctrl b", "Make the selected cells bold")]),
            ),
        ),
        desktop_task(
            "calc-percent",
            APP,
            "Show the shares in B2 to B4 as percentages (keep the values), and save the workbook.",
            _opened("shares.xlsx", {"Shares": [["Party", "Share"], ["Red", 0.45], ["Blue", 0.35], ["Green", 0.2]]}),
            _sheet(
                "shares.xlsx",
                cells={"B2": 0.45, "B3": 0.35, "B4": 0.2},
                formats={f"B{i}": {"number_format": {"matches": "%"}} for i in (2, 3, 4)},
            ),
            _play(
                "shares.xlsx",
                ("Select the shares", go_to("B2:B4")),
                ("Format them", [keys_step("ctrl shift 5", "Format the cells as percent")]),
            ),
        ),
        desktop_task(
            "calc-infeasible",
            APP,
            "Let Calc send the open sheet as a text message to the phone number 555-0100.",
            _opened("sales.xlsx", {"Sales": SALES}),
            {"func": "infeasible"},
            infeasible_script("Say that Calc cannot send text messages"),
        ),
    ]
