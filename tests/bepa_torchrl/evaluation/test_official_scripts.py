"""The official scripts' scores of the same answers, as facts: equal to ours, or how and why ours differ.

Each table has answers, the score that the official rule gives (worked out by hand, no code of theirs), and ours. The
rules are those of OSWorld's show_result.py, open-compass/MMBench-GUI 44bd4d9, likaixin2000/ScreenSpot-Pro-GUI-Grounding
588f1f2, lmms-eval's osworld_g, and Online-Mind2Web's webjudge_online_mind2web.py.
"""

from __future__ import annotations

from pathlib import Path

import grounding_files as made
import pytest

from bepa_torchrl.evaluation.card import make_card
from bepa_torchrl.evaluation.grounding.answers import NoPoint, answered_letter, answered_point
from bepa_torchrl.evaluation.grounding.files import SUITES, SuiteFileError
from bepa_torchrl.evaluation.grounding.items import Item, Question
from bepa_torchrl.evaluation.grounding.scores import Scored, score_item, score_question, summary
from bepa_torchrl.evaluation.osworld_results import read_results
from bepa_torchrl.evaluation.web import prompts
from bepa_torchrl.evaluation.web.agreement import agreement
from osworld_gym.action_text.registry import action_text
from osworld_gym.types import Point
from osworld_gym.uitars.coords import ImageScaling

# --- OSWorld: show_result.py -----------------------------------------------------------------------------------------


def results_folder(folder: Path, results: dict[str, list[str | None]]) -> Path:
    """A folder of OSWorld's runner: domain → a text of ``result.txt`` for each of its tasks; None: a crash."""
    for domain, texts in results.items():
        for number, text in enumerate(texts):
            place = folder / domain / f"{domain}-{number}"
            place.mkdir(parents=True)
            (place / "traj.jsonl").write_text('{"step_num": 1, "action": "DONE", "response": "done", "done": true}\n')
            if text is not None:
                (place / "result.txt").write_text(text)
    return folder


#: results, and the official table: its domains (sum, count), its categories, its total
SHOWN = [
    (
        {"vlc": ["1.0", "0.0"], "thunderbird": ["1"], "chrome": ["0.0\n"], "gimp": ["1.0"]},
        {"vlc": (1, 2), "thunderbird": (1, 1), "chrome": (0, 1), "gimp": (1, 1)},
        {"Daily": 2 / 4},  # micro-averaged: not the mean of 1/2, 1 and 0; no Professional without vs_code
        3 / 5,
    ),
    (
        {"libreoffice_calc": ["True", "False"], "libreoffice_impress": ["1.0"], "libreoffice_writer": ["0.0"]},
        {"libreoffice_calc": (1, 2), "libreoffice_impress": (1, 1), "libreoffice_writer": (0, 1)},
        {"Office": 2 / 4},
        None,  # the total takes the text False as a success: 3 of 4, see test_osworld_results
    ),
    (
        {"os": ["1.0", None, None], "multi_apps": [None]},
        {"os": (1, 1)},  # crashes vanish, and a domain of crashes alone does
        {},
        1.0,
    ),
]


@pytest.mark.parametrize(("results", "domains", "categories", "total"), SHOWN)
def test_show_result(
    tmp_path: Path,
    results: dict[str, list[str | None]],
    domains: dict[str, tuple[int, int]],
    categories: dict[str, float],
    total: float | None,
) -> None:
    card = make_card(read_results(str(results_folder(tmp_path, results))), {})
    ran = {name: value for name, value in card["domains"].items() if value["tasks"]}
    assert {name: value["tasks"] for name, value in ran.items()} == {
        name: count for name, (_, count) in domains.items()
    }
    for name, (won, count) in domains.items():
        assert ran[name]["score"] == pytest.approx(won / count)
    assert {name: value["score"] for name, value in card["categories"].items()} == pytest.approx(categories)
    if total is not None:
        assert card["denominators"]["ran"]["score"] == pytest.approx(total)
    crashed = sum(text is None for texts in results.values() for text in texts)
    assert card["denominators"]["tasks_without_result"] == crashed


def test_a_partial_score_is_part_of_the_official_mean_and_no_success(tmp_path: Path) -> None:
    card = make_card(read_results(str(results_folder(tmp_path, {"os": ["0.5", "1.0"]}))), {})
    assert (card["mean_score"], card["score"]) == (0.75, 0.5)  # the official table: 0.75


# --- MMBench-GUI L1 --------------------------------------------------------------------------------------------------

#: answer, the official letter, ours if it differs
LETTERS: list[tuple[str, str | None, str | None]] = [
    ("B", "B", "B"),
    ("b", "B", "B"),
    ("B.", "B", "B"),
    ("b: the menu", "B", "B"),
    ("It is C.", "C", "C"),
    ("I take Option D", "D", "D"),
    ("option d", "D", "D"),
    ("Answer: A", "A", "A"),
    ("answer：a", "A", "A"),
    ("  C", "C", "C"),
    ("the right one is 'B'", "B", "B"),
    ('I say "C"', "C", "C"),
    ("It must be D", "D", "D"),
    ("none of them", None, None),
    ("", None, None),
    # any line that begins with one of the letters a to f, in any word, is that answer there
    ("Because of the icon, C", "B", "C"),
    ("Clearly the menu", "C", None),
    ("the menu\nevery time", "E", None),
    # a small letter in quotes, or a word of one letter at the end, is an answer there, too
    ("it says 'a'", "A", None),
    ("the grade is a", "A", None),
]


@pytest.mark.parametrize(("answer", "official", "ours"), LETTERS)
def test_mmbench_l1_letters(answer: str, official: str | None, ours: str | None) -> None:
    assert answered_letter(answer, "ABCDEF") == ours
    differs = official != ours
    assert differs == (answer in [row[0] for row in LETTERS[15:]])


def test_mmbench_l1_scores_by_name() -> None:
    """Web: a hit of 2 options and a miss of 4; Linux: a hit of 4. All are easy.

    (a) 2/3. (b) the official weighted score: web (1/2 + 0) / (1/2 + 3/4) = 2/5, Linux 1, in all (2 × 2/5 + 1) / 3.
    (c) the paper's: (1/2 + 0 + 3/4) / 3 = 5/12.
    """
    answers = [("web", "AB", "A"), ("web", "ABCD", "B"), ("linux", "ABCD", "A")]
    scored = [
        score_question(
            Question(
                str(i), Path("x"), "?", dict.fromkeys(letters, ""), "A", {"difficulty": "easy", "platform": platform}
            ),
            answer,
        )
        for i, (platform, letters, answer) in enumerate(answers)
    ]
    found = summary(scored)
    assert found["score"] == pytest.approx(2 / 3)
    assert found["weighted_normalised"] == pytest.approx(3 / 5)
    assert found["weighted"] == pytest.approx(5 / 12)
    assert found["groups"]["difficulty × platform"]["easy, web"]["score"] == 0.5


def test_a_platform_without_questions_of_a_difficulty_does_not_undo_the_score() -> None:
    """The official script takes the mean of no hits for it, which is not a number, and so is the level's score."""
    groups = [{"difficulty": "easy", "platform": "web"}, {"difficulty": "hard", "platform": "linux"}]
    found = summary([Scored(str(i), True, groups=group, options=2) for i, group in enumerate(groups)])
    assert (found["score"], found["weighted_normalised"]) == (1.0, 1.0)


# --- MMBench-GUI L2 --------------------------------------------------------------------------------------------------

#: bbox, point in pixels of a 200 × 100 image, the official hit, ours
BOXES = [
    ([0.05, 0.2, 0.15, 0.6], (10, 20), True, True),
    ([0.05, 0.2, 0.15, 0.6], (31, 20), False, False),
    ([10, 20, 30, 60], (30, 60), True, True),
    ([10, 20, 30, 60], (20, 61), False, False),
    ([-1, 20, 30, 60], (0, 40), True, True),
    ([0, 20, 1, 60], (1, 40), True, True),  # pixels, since one is above 1
    ([0, 20, 1, 60], (2, 40), False, False),
    ([0, 0, 1, 1], (200, 100), True, True),  # shares
    # a -1 beside shares makes all of them pixels there, so that no click can hit
    ([-1, 0.2, 0.15, 0.6], (10, 40), False, True),
    # a click at the pixel (1, 1) is taken as the shares (1, 1) there, the corner at the other end
    ([0, 0, 2, 2], (1, 1), False, True),
]


@pytest.mark.parametrize(("bbox", "point", "official", "ours"), BOXES)
def test_mmbench_l2_boxes(tmp_path: Path, bbox: list[float], point: Point, official: bool, ours: bool) -> None:
    item = l2_item(tmp_path, bbox)
    assert item.region is not None
    assert item.region.contains(point) is ours
    assert (official != ours) == ((bbox, point, official, ours) in BOXES[8:])


def l2_item(folder: Path, bbox: list[float]) -> Item:
    line = {
        "index": 0, "image_path": "a.png", "instruction": "open", "bbox": bbox, "image_size": [200, 100],
        "data_type": "icon", "platform": "os_web", "app_name": "x", "grounding_type": "basic",
    }  # fmt: skip
    made.write(folder / "L2_annotations.json", [line])
    (item,) = SUITES["mmbench_gui_l2"].read(folder)
    assert isinstance(item, Item)
    return item


def test_a_box_beyond_the_image_does_not_end_the_evaluation(tmp_path: Path) -> None:
    """The official script raises at the first such item."""
    region = l2_item(tmp_path, [10, 20, 230, 60]).region
    assert region is not None
    assert region.contains((200, 40))


def test_mmbench_l2_table() -> None:
    """Basic: web 1 of 2 icons and 0 of 1 text (a format error), Windows 1 of 1; advanced: web 1 of 1.

    The official table: basic (1/3 × 3 + 1 × 1) / 4 = 1/2, advanced 1, average 3/4; one format error.
    """
    answers: list[tuple[str, str, str, bool, bool]] = [
        ("basic", "os_web", "icon", True, False),
        ("basic", "os_web", "icon", False, False),
        ("basic", "os_web", "text", False, True),
        ("basic", "os_windows", "text", True, False),
        ("advanced", "os_web", "icon", True, False),
    ]
    scored = [
        Scored(str(i), right, wrong, {"grounding": grounding, "platform": platform, "type": kind})
        for i, (grounding, platform, kind, right, wrong) in enumerate(answers)
    ]
    found = summary(scored)
    assert (found["basic_and_advanced"], found["format_errors"]) == (0.75, 1)
    assert found["groups"]["grounding"]["basic"]["score"] == 0.5
    table = found["groups"]["grounding × platform × type"]
    assert {part: (rate["score"], rate["of"]) for part, rate in table.items()} == {
        "basic, os_web, icon": (0.5, 2),
        "basic, os_web, text": (0.0, 1),
        "basic, os_windows, text": (1.0, 1),  # without icons the official script divides by 0 here
        "advanced, os_web, icon": (1.0, 1),
    }


def test_an_answer_that_the_official_default_parser_could_not_read() -> None:
    """It lacks a parameter that its caller passes: every answer is a format error there."""
    answer = "Action: click(point='<point>210 112</point>')"
    assert answered_point(answer, action_text("uitars"), ImageScaling(), (200, 100)) == pytest.approx((100, 50))


# --- ScreenSpot-v2, ScreenSpot-Pro -----------------------------------------------------------------------------------

#: suite, point, the official judgement of the box 10..30 × 20..60; borders are in it
CLICKS = [
    ("screenspot_v2", (10.0, 20.0), True),
    ("screenspot_v2", (30.0, 60.0), True),
    ("screenspot_v2", (20.0, 39.0), True),
    ("screenspot_v2", (31.0, 40.0), False),  # as two corners, 10..20 × 20..40, it would end before (30, 60)
    ("screenspot_pro", (10.0, 20.0), True),
    ("screenspot_pro", (30.0, 60.0), True),
    ("screenspot_pro", (31.0, 40.0), False),
    ("screenspot_pro", (35.0, 70.0), False),  # as x, y, width and height, 10..40 × 20..80, it would be a hit
]


@pytest.mark.parametrize(("suite", "point", "right"), CLICKS)
def test_screenspot_clicks(tmp_path: Path, suite: str, point: Point, right: bool) -> None:
    getattr(made, suite)(tmp_path)
    item = SUITES[suite].read(tmp_path)[0]
    assert isinstance(item, Item)
    assert score_item(item, point).right is right
    unread = score_item(item, NoPoint.wrong_format)
    assert (unread.right, unread.format_error) == (False, True)  # in the denominator, and counted apart


def test_screenspot_tables() -> None:
    """Creative: a text right, a text unread; Office: an icon wrong. The official script: 1 of 3, text 1/2, icon 0."""
    answers: list[tuple[str, str, bool, bool]] = [
        ("Creative", "text", True, False),
        ("Creative", "text", False, True),
        ("Office", "icon", False, False),
    ]
    found = summary(
        [Scored(str(i), r, w, {"group": g, "application": "x", "type": t}) for i, (g, t, r, w) in enumerate(answers)]
    )
    assert (found["score"], found["format_errors"]) == (pytest.approx(1 / 3), 1)
    assert {name: rate["score"] for name, rate in found["groups"]["type"].items()} == {"icon": 0.0, "text": 0.5}
    table = {name: rate["score"] for name, rate in found["groups"]["group × type"].items()}
    assert table == {
        "Creative, text": 0.5,
        "Office, icon": 0.0,
    }  # theirs has 0 for Creative's icons, of which there are none


# --- OSWorld-G -------------------------------------------------------------------------------------------------------

#: item, answer, lmms-eval (refusals are in), ours
GROUNDED: list[tuple[int, Point | NoPoint, bool, bool]] = [
    (0, (10, 20), True, True),
    (
        0,
        (30, 60),
        True,
        True,
    ),  # x, y, width and height; as two corners it would end at (20, 40), as VLMEvalKit reads it
    (0, (31, 40), False, False),
    (0, NoPoint.refusal, False, False),
    (1, (30, 30), True, True),
    (1, (60, 60), False, False),
    (1, (50, 50), False, True),  # on the polygon's border, which is part of it here
    (2, NoPoint.refusal, True, True),
    (2, (10, 20), False, False),
    (2, NoPoint.wrong_format, False, False),
]


@pytest.mark.parametrize(("number", "answer", "official", "ours"), GROUNDED)
def test_osworld_g(tmp_path: Path, number: int, answer: Point | NoPoint, official: bool, ours: bool) -> None:
    made.osworld_g(tmp_path)
    item = SUITES["osworld_g"].read(tmp_path)[number]
    assert isinstance(item, Item)
    assert score_item(item, answer).right is ours
    assert (official != ours) == (answer == (50, 50))


def test_osworld_g_has_one_score_for_each_convention(tmp_path: Path) -> None:
    """Box right, triangle wrong, refusal right: 2 of 3 with refusals (564 items), 1 of 2 without (510)."""
    made.osworld_g(tmp_path)
    items = SUITES["osworld_g"].read(tmp_path)
    answers: list[Point | NoPoint] = [(20, 30), (90, 90), NoPoint.refusal]
    scored = [score_item(item, answer) for item, answer in zip(items, answers, strict=True) if isinstance(item, Item)]
    found = summary(scored)
    assert (found["score"], found["without_refusals"]["score"]) == (pytest.approx(2 / 3), 0.5)


def test_another_kind_of_box_is_another_edition(tmp_path: Path) -> None:
    made.osworld_g(tmp_path)
    line = {"id": "1", "image_path": "a.png", "instruction": "x", "box_type": "circle", "box_coordinates": [1, 2, 3]}
    made.write(tmp_path / "benchmark" / "OSWorld-G.json", [line])
    with pytest.raises(SuiteFileError, match="expected box_type bbox, polygon or refusal, got 'circle'"):
        SUITES["osworld_g"].read(tmp_path)


# --- WebJudge --------------------------------------------------------------------------------------------------------

#: answer of the third stage, the official label, ours; None: no verdict, so that the judge is asked again
STATUSES: list[tuple[str, int, bool | None]] = [
    ('Thoughts: done.\nStatus: "success"', 1, True),
    ("Thoughts: done.\nSTATUS: Success", 1, True),
    ('Thoughts: no.\nStatus: "failure"', 0, False),
    ("Status: failed", 0, False),
    # theirs: success is looked for anywhere after the first "status:", so also within other words
    ("Status: unsuccessful", 1, None),
    ("Status: failure, since nothing shows success", 1, False),
    # theirs: an answer in bold has no "status:", which is a failure of the agent
    ("**Status**: success", 0, True),
    # theirs: an answer without a verdict is a failure of the agent
    ("I cannot see the pages.", 0, None),
    ("Status:", 0, None),
]


@pytest.mark.parametrize(("answer", "official", "ours"), STATUSES)
def test_webjudge_status(answer: str, official: int, ours: bool | None) -> None:
    if ours is None:
        with pytest.raises(ValueError, match="expected 'Status:'"):
            prompts.read_status(answer)
    else:
        assert prompts.read_status(answer) is ours
    assert (ours is None or bool(official) != ours) == ((answer, official, ours) in STATUSES[4:])


#: answer of the second stage, the official score, ours; None: no score, so that the judge is asked again
SCORES: list[tuple[str, int, int | None]] = [
    ("1. **Reasoning**: a lamp.\n2. **Score**: 4", 4, 4),
    ("**Score**: 3/5", 3, 3),
    ("Score: [2]", 2, 2),
    ("no number", 0, None),  # and a later picture with a score keeps its own reason here
    ("Score: 9", 0, None),
    # theirs: the first digit after the first "Score", whatever it counts
    ("A Score of 514 points is shown.\n**Score**: 2", 5, 2),
    ("score: 4", 0, 4),
]


@pytest.mark.parametrize(("answer", "official", "ours"), SCORES)
def test_webjudge_scores(answer: str, official: int, ours: int | None) -> None:
    if ours is None:
        with pytest.raises(ValueError, match="digit from 1 to 5"):
            prompts.read_score(answer)
    else:
        assert prompts.read_score(answer) == ours
    assert ((ours or 0) != official) == ((answer, official, ours) in SCORES[5:])


def test_webjudge_agreement() -> None:
    """Ten tasks: two verdicts miss the label, one label is 2, one task has no verdict.

    Agreement is 6 of the 8 that have both. The official rate counts the task without a verdict as a failure, and the
    one that nobody could do as any other: 5 of 10; here it is 5 of 9 judged.
    """
    verdicts = {f"t{i}": i < 5 for i in range(9)}  # t9 has none
    labels: dict[str, bool | None] = {f"t{i}": i < 4 for i in range(10)} | {"t4": None, "t3": False, "t5": True}
    found = agreement(verdicts, labels)
    assert (found["tasks"], found["agreement"]) == (8, 6 / 8)
    assert (found["all_judged"], found["rate"]) == (9, pytest.approx(5 / 9))
    assert (found["judge_rate"], found["human_rate"]) == (4 / 8, 4 / 8)
    assert (found["false_positive_rate"], found["false_negative_rate"]) == (1 / 4, 1 / 4)
