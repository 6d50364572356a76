"""The desktop suite as data: schema, plans, splits, lengths of the oracle scripts. No desktop needed."""

import io
import json
import zipfile
from collections import Counter

import numpy as np
import pytest
from file_desktop import FileDesktop
from PIL import Image
from repository import ROOT

from osworld_gym.desktops.setup_schema import STEPS
from osworld_gym.tasks.evaluation.metrics.office import check_sheet
from osworld_gym.tasks.evaluation.verify import read_evaluator, verify
from osworld_gym.tasks.oracles.gui_script import LocalOracle
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.suites.authoring import DIFFICULTIES, plan_text
from osworld_gym.tasks.suites.desktop.content.media import make_png
from osworld_gym.tasks.suites.desktop.content.sheets import make_xlsx
from osworld_gym.tasks.suites.desktop.content.texts import make_docx
from osworld_gym.tasks.suites.desktop.suite import desktop_suite, new_tasks
from osworld_gym.tasks.suites.desktop.writer import REPORT
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason

SUITE = desktop_suite()
#: setup steps that OSWorld's client supports, and one of ours
KNOWN_STEPS = {"execute", "launch", "sleep", "write_file"}
APPLICATIONS = {
    *("libreoffice_calc", "libreoffice_writer", "libreoffice_impress", "chrome", "gimp", "vlc", "thunderbird"),
    *("file_manager", "text_editor", "terminal"),
}


def infeasible(task):
    return task.evaluator["func"] == "infeasible"


def test_the_suite_is_large_and_covers_every_application():
    assert load_suite("desktop") == SUITE
    assert len(new_tasks()) >= 40
    assert len(SUITE.tasks) >= 50
    assert {app for task in SUITE.tasks for app in task.raw["related_apps"]} >= APPLICATIONS
    assert sum(len(task.raw["related_apps"]) >= 2 and task.domain == "multi_apps" for task in SUITE.tasks) >= 5
    assert sum(map(infeasible, SUITE.tasks)) >= 5
    assert {task.raw["difficulty"] for task in SUITE.tasks} == set(DIFFICULTIES)
    assert len({task.instruction for task in SUITE.tasks}) == len(SUITE.tasks)


def test_the_splits_are_disjoint_and_cover_every_domain():
    train, held_out = SUITE.split("train"), SUITE.split("held_out")
    assert len(train) + len(held_out) == len(SUITE.tasks)
    assert 0.25 <= len(held_out) / len(SUITE.tasks) <= 0.35
    assert {task.domain for task in train} == {task.domain for task in held_out}
    assert not {task.content_hash for task in train} & {task.content_hash for task in held_out}
    assert any(map(infeasible, held_out))


@pytest.mark.parametrize("task", SUITE.tasks, ids=lambda task: task.id)
def test_every_task_is_well_formed(task):
    again = Task.from_json(json.loads(json.dumps(task.to_json())))
    assert again.content_hash == task.content_hash
    assert {step["type"] for step in task.config} <= KNOWN_STEPS & set(STEPS)
    if infeasible(task):
        assert "infeasible" in task.tags
        assert [step["do"] for step in task.oracle["steps"]] == ["fail"] * 3
    else:
        read_evaluator(task)
        assert 2 <= len(task.oracle["steps"]) <= 15
        assert all(step["do"] != "fail" for step in task.oracle["steps"])
    assert task.raw["difficulty"] in task.tags
    assert ("gui-oracle" in task.tags) != ("shell-oracle" in task.tags)
    for style in ("expert", "native"):
        assert isinstance(make_oracle(task, style), LocalOracle)


@pytest.mark.parametrize("task", SUITE.tasks, ids=lambda task: task.id)
def test_every_plan_describes_what_the_oracle_does(task):
    lines = task.raw["plan"].splitlines()
    assert [line.split(". ", 1)[0] for line in lines] == [str(number) for number in range(1, len(lines) + 1)]
    assert all(any(step["intent"] in line for step in task.oracle["steps"]) for line in lines)
    assert task.raw["plan"] == plan_text(task.oracle)


def test_a_task_file_is_small_and_contains_no_path_of_this_machine():
    for task in SUITE.tasks:
        text = json.dumps(task.to_json())
        assert len(text) < 200_000, task.id
        assert "/home/" not in text.replace("/home/user", "")


def test_the_suite_is_the_same_every_time():
    before = {task.id: task.content_hash for task in SUITE.tasks}
    desktop_suite.cache_clear()
    assert {task.id: task.content_hash for task in desktop_suite().tasks} == before


def test_there_are_tasks_of_every_kind():
    assert min(Counter(task.domain for task in SUITE.tasks).values()) >= 2


def test_the_page_names_every_task():
    page = (ROOT / "docs" / "suite.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == {task.id for task in SUITE.tasks}
    held_out = {task.id for task in SUITE.split("held_out")}
    for task in SUITE.tasks:
        cells = [cell.strip() for cell in rows[task.id].strip("|").split("|")]
        split = "held out" if task.id in held_out else "train"
        wanted = [", ".join(task.raw["related_apps"]), str(len(task.oracle["steps"])), task.raw["difficulty"], split]
        assert cells[1:5] == wanted


LISTING = "/home/user/Documents:\nalpha.txt\nbeta.txt\n"
GONE = {"ls": LISTING, "ls ~/.local/share/Trash/files": "gamma.txt\n"}
IN_DOCUMENTS, IN_ARCHIVE = "/home/user/Documents:\nArchive/\n", "\n/home/user/Documents/Archive:\n"
RENAMED, COUNTED = "log1.bak\nlog2.bak\nlog3.bak\n", "cd ~/Documents && grep -c error log?.bak"
PAGE = '127.0.0.1 - - [1/Jan/2026] "GET / HTTP/1.1" 200 -\n'
BOOKED = PAGE.replace("/ ", "/thanks.html?name=Weber&guests=4 ")
TOLD = PAGE.replace("/ ", "/thanks.html?at=10%3A15 ")
UNTOUCHED = {"~/Documents/other.txt": b"x\n", "~/Documents/poem.txt": b"roses are red\n"}


@pytest.mark.parametrize(
    ("name", "commands", "score"),
    [
        ("local-files-delete", GONE, 1.0),
        ("local-files-delete", GONE | {"ls ~/.local/share/Trash/files": ""}, 0.0),  # deleted for ever, or moved
        ("local-files-delete", GONE | {"ls": f"{LISTING}other.txt\n", "ls ~/.local/share/Trash/files": ""}, 0.0),
        ("local-open-and-edit", {"grep": "sweep\ndone\n"}, 1.0),
        ("local-open-and-edit", {"grep": "done\nsweep\n"}, 0.0),  # not at the end
        ("desktop-editor-copy-between", {"grep": "My book\nroses are red\nviolets are blue\n"}, 1.0),
        ("desktop-editor-copy-between", {"grep": "roses are red\nviolets are blue\nMy book\n"}, 0.0),
        ("desktop-editor-new-file", {"grep": "eggs\nflour\n"}, 1.0),
        ("desktop-editor-new-file", {"grep": "eggs\nflour\nmilk\n"}, 0.0),
        ("desktop-os-count", {"grep": "6\n"}, 1.0),
        ("desktop-os-count", {"grep": "5\n6\n7\n"}, 0.0),  # guesses
        ("desktop-multi-calc-editor", {"grep": "Ink: 15\n"}, 1.0),
        ("desktop-multi-calc-editor", {"grep": "Ink: 14\nInk: 15\n"}, 0.0),
        ("local-files-move", {"ls": f"{IN_DOCUMENTS}beta.txt\ngamma.txt\n{IN_ARCHIVE}alpha.txt\n"}, 1.0),
        ("local-files-move", {"ls": f"{IN_DOCUMENTS}beta.txt\n{IN_ARCHIVE}alpha.txt\ngamma.txt\n"}, 0.0),
        ("local-files-move", {"ls": f"{IN_DOCUMENTS}{IN_ARCHIVE}alpha.txt\nbeta.txt\ngamma.txt\n"}, 0.0),
        ("local-files-move", {"ls": f"{IN_DOCUMENTS}alpha.txt\nbeta.txt\ngamma.txt\n{IN_ARCHIVE}alpha.txt\n"}, 0.0),
        ("local-files-new-folder", {"ls": "/home/user/Documents:\nPhotos/\nalpha.txt\nbeta.txt\ngamma.txt\n"}, 1.0),
        ("local-files-new-folder", {"ls": "/home/user/Documents:\nNewPhotos/\nalpha.txt\nbeta.txt\ngamma.txt\n"}, 0.0),
        ("desktop-os-archive", {"tar": "trip/\ntrip/day2.txt\ntrip/day1.txt\n"}, 1.0),
        ("desktop-os-archive", {"tar": "Documents/trip/day1.txt\nDocuments/trip/day2.txt\n"}, 1.0),
        ("desktop-os-archive", {"tar": "day1.txt\nday2.txt\n"}, 0.0),  # without the folder
        ("desktop-os-rename-many", {"ls": RENAMED, COUNTED: "log1.bak:1\nlog2.bak:2\nlog3.bak:3\n"}, 1.0),
        ("desktop-os-rename-many", {"ls": RENAMED, COUNTED: "log1.bak:0\nlog2.bak:0\nlog3.bak:0\n"}, 0.0),  # touched
        ("desktop-chrome-form", {"cat": f"{PAGE}{BOOKED}"}, 1.0),
        ("desktop-chrome-form", {"cat": f"{PAGE}{BOOKED}{BOOKED}"}, 1.0),  # loaded again
        ("desktop-chrome-form", {"cat": f"{PAGE}{BOOKED.replace('=4', '=3')}{BOOKED}"}, 0.0),  # a wrong booking, too
        ("desktop-chrome-form", {"cat": f"{PAGE}{BOOKED.replace('=4', '=40')}"}, 0.0),
        ("desktop-chrome-read-and-answer", {"cat": f"{PAGE}{TOLD}"}, 1.0),
        (
            "desktop-chrome-read-and-answer",
            {"cat": f"{PAGE}{TOLD.replace('10%3A15', '09%3A40')}{TOLD}"},
            0.0,
        ),  # guesses
    ],
)
def test_a_wrong_way_is_not_a_success(name, commands, score):
    assert scored(name, UNTOUCHED, commands) == score


def scored(name, files, commands=()) -> float:
    return verify(SUITE.task(name), FileDesktop(files, commands), stop=StopReason.finished).score


@pytest.mark.parametrize(
    ("text", "score"),
    [("water the plants\npay the rent\n", 1.0), ("water the plants\npay the rent", 1.0),
     ("\nwater the plants\npay the rent\n", 0.0)],
)  # fmt: skip
def test_a_line_that_was_only_emptied_is_not_deleted(text, score):
    assert scored("local-editor-delete-line", {"~/Documents/tasks.txt": text.encode()}) == score


@pytest.mark.parametrize(("texts", "score"), [(REPORT, 1.0), ([*REPORT, "b"], 0.0), (REPORT[:3], 0.0)])
def test_a_format_changes_no_text(texts, score):
    report = make_docx([(REPORT[0], "Heading1"), *texts[1:]])
    assert scored("desktop-writer-heading", {"~/Documents/report.docx": report}) == score


@pytest.mark.parametrize(("new", "score"), [(True, 1.0), (False, 0.0)])
def test_a_new_picture_is_not_the_open_one(new, score):
    scene = Image.open(io.BytesIO(make_png(320, 200)))
    out = io.BytesIO()
    (Image.new("RGB", (400, 300), "white") if new else scene.resize((400, 300))).save(out, "PNG")
    assert scored("desktop-gimp-new", {"~/Pictures/blank.png": out.getvalue()}) == score


@pytest.mark.parametrize(
    ("lines", "score"), [("Friday\nLunch at noon\n", 1.0), ("Friday\nLunch at one\nLunch at noon", 0.0)]
)
def test_one_answer_counts(lines, score):
    assert scored("desktop-multi-mail-editor", {"~/Documents/plan.txt": lines.encode()}) == score


@pytest.mark.parametrize(
    ("column", "score"),
    [([1.5, 6, 3.25], 1.0), ([1.5, 6, 22, 3.25], 0.0)],  # the second: only the cells of two columns were deleted
)
def test_a_whole_row_is_deleted(column, score):
    names, units = ["Pens", "Paper", "Tape", None], [120, 40, 60, None]
    rows = [["Item", "Units", "Price"], *zip(names, units, [*column, None], strict=False)]
    assert scored("desktop-calc-delete-row", {"~/Documents/sales.xlsx": make_xlsx({"Sales": rows})}) == score


@pytest.mark.parametrize(
    ("name", "cell", "formula", "right"),
    [
        ("sum", "B6", "SUM(B2:B5)", True),
        ("sum", "B6", "SUM($B$2:$B$5)", True),
        ("sum", "B6", "SUM(B1:B5)", True),
        ("sum", "B6", "B5+B4+B3+B2", True),
        ("sum", "B6", "B2+B5+55", False),
        ("sum", "B6", "SUM(B2:B50)", False),
        ("average", "D2", "AVERAGE(B2:B5)", True),
        ("average", "D2", "SUM(B2:B5)/COUNT(B2:B5)", True),
        ("average", "D2", "39.25", False),
        ("product", "D2", "B2*C2", True),
        ("product", "D2", "$C$2*$B2", True),
        ("product", "D2", "PRODUCT(B2:C2)", True),
        ("product", "D2", "180", False),
        ("product", "D2", "B2*1.5", False),
    ],
)
def test_which_formulas_are_right(name, cell, formula, right):
    rules = SUITE.task(f"desktop-calc-{name}").evaluator["expected"]["rules"]["formulas"]
    assert check_sheet(make_xlsx({"S": [[f"={formula}"]]}), {"formulas": {"A1": rules[cell]}}) == right


#: ways to make a colour grey; the last is no way to do it
GREY = {
    "luma": ([0.299, 0.587, 0.114], 1.0),
    "luminance": ([0.2126, 0.7152, 0.0722], 2.2),
    "average": ([1 / 3] * 3, 1.0),
    "blank": ([0.0] * 3, 1.0),
}


@pytest.mark.parametrize("way", GREY)
def test_grey_is_the_same_picture_in_grey(way):
    weights, gamma = GREY[way]
    colours = np.asarray(Image.open(io.BytesIO(make_png(320, 200)))) / 255
    grey = (colours**gamma @ weights) ** (1 / gamma) * 255
    out = io.BytesIO()
    Image.fromarray(grey.round().astype(np.uint8)).save(out, "PNG")
    assert scored("desktop-gimp-grey", {"~/Pictures/grey.png": out.getvalue()}) == (way != "blank")


@pytest.mark.parametrize(("before", "score"), [(["Our trip", "Where we are:"], 1.0), ([], 0.0)])
def test_a_table_does_not_take_the_place_of_the_text(before, score):
    texts = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in before)
    cells = [f"<w:tc><w:p><w:r><w:t>{t}</w:t></w:r></w:p></w:tc>" for t in ("Day", "Place", "Monday", "Rome")]
    table = f"<w:tbl><w:tr>{cells[0]}{cells[1]}</w:tr><w:tr>{cells[2]}{cells[3]}</w:tr></w:tbl><w:p/>"
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("word/document.xml", f"<w:document {space}><w:body>{texts}{table}</w:body></w:document>")
    assert scored("desktop-writer-table", {"~/Documents/trip.docx": out.getvalue()}) == score
