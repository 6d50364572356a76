"""Grounding suites: the published formats, answers in each policy's own scale, and each paper's score by hand."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import grounding_files as made
import pytest

from bepa_torchrl.__main__ import main
from bepa_torchrl.evaluation.grounding.answers import NoPoint, answered_letter, answered_point
from bepa_torchrl.evaluation.grounding.files import SUITES, SuiteFileError
from bepa_torchrl.evaluation.grounding.items import Box, Item, Polygon, Question
from bepa_torchrl.evaluation.grounding.scores import (
    Scored,
    grounding_card,
    score_item,
    score_question,
    summary,
)
from bepa_torchrl.evaluation.grounding.text import html, markdown
from bepa_torchrl.experiment.grounding_run import _png
from osworld_gym.action_text.registry import action_text
from osworld_gym.uitars.coords import ImageScaling
from scripts.make_sim_grounding import write as write_screens

PIXELS, THOUSANDTHS = ImageScaling(), ImageScaling(relative=1000)


def item(region: Box | Polygon | None, **groups: str) -> Item:
    return Item("i", Path("x.png"), "click", region, groups)


def test_boxes_include_their_borders() -> None:
    box = Box(10, 20, 30, 60)
    assert all(box.contains(point) for point in ((10, 20), (30, 60), (20, 40)))
    assert not any(box.contains(point) for point in ((9.9, 20), (20, 60.1)))


def test_a_polygon_that_is_not_convex() -> None:
    """An L: the corner that is cut out is outside."""
    shape = Polygon(((0, 0), (10, 0), (10, 5), (5, 5), (5, 10), (0, 10)))
    assert all(shape.contains(point) for point in ((2, 8), (8, 2), (5, 7), (0, 0), (10, 5)))
    assert not shape.contains((7, 7))


def test_each_suite_reads_its_own_boxes(tmp_path: Path) -> None:
    """The same region in every convention: x, y, width, height; two corners; shares of the image; pixels and -1."""
    boxes = {}
    for name in ("screenspot_v2", "screenspot_pro", "osworld_g", "mmbench_gui_l2"):
        folder = tmp_path / name
        {"mmbench_gui_l2": made.mmbench_l2}.get(name, getattr(made, name, None))(folder)  # type: ignore[misc]
        boxes[name] = SUITES[name].read(folder)
        assert all(each.image.is_file() for each in boxes[name])
    first = [items[0].region for items in boxes.values()]
    assert [(box.left, box.top, box.right, box.bottom) for box in first] == [pytest.approx((10, 20, 30, 60))] * 4
    assert boxes["mmbench_gui_l2"][1].region == Box(0, 20, 30, 60)
    assert boxes["osworld_g"][1].region == Polygon(((0, 0), (100, 0), (0, 100)))
    assert boxes["osworld_g"][2].region is None
    assert boxes["screenspot_v2"][2].groups == {"platform": "web", "type": "icon"}
    assert len(SUITES["screenspot_v2"].digest(tmp_path / "screenspot_v2")) == 16


def test_answers_are_read_in_the_policys_scale() -> None:
    """A screen of 200 x 100 is resized to 420 x 224 by UI-TARS's least area; Qwen3-VL's point is in thousandths."""
    assert PIXELS.model_size((200, 100)) == (420, 224)
    uitars = "Thought: it is there\nAction: click(point='<point>210 112</point>')"
    assert answered_point(uitars, action_text("uitars"), PIXELS, (200, 100)) == pytest.approx((100, 50))
    assert answered_point(uitars, action_text("uitars"), THOUSANDTHS, (200, 100)) == pytest.approx((42, 11.2))
    without = "Action: click(point='<point>210 112</point>')"  # the grounding prompt asks for no thought
    assert answered_point(without, action_text("uitars"), PIXELS, (200, 100)) == pytest.approx((100, 50))
    assert answered_point("Action: call_user()", action_text("uitars"), PIXELS, (200, 100)) is NoPoint.refusal
    assert answered_point("(196, 98)?", action_text("uitars"), PIXELS, (200, 100)) is NoPoint.wrong_format
    assert answered_point("Action: wait()", action_text("uitars"), PIXELS, (200, 100)) is NoPoint.wrong_format


def test_points_of_another_scale_are_noticed() -> None:
    """Pixels of an image of 2000 x 1000, read as thousandths: most are far outside, none stops the evaluation."""
    size, box = (2000, 1000), item(Box(1500, 800, 1600, 900))
    answers = [f"Action: click(point='<point>{x} {y}</point>')" for x, y in ((1550, 850), (900, 850), (1999, 2))]
    points = [answered_point(answer, action_text("uitars"), THOUSANDTHS, size) for answer in answers]
    scored = [score_item(box, point, size) for point in points]
    assert [(each.right, each.outside) for each in scored] == [(False, True), (False, False), (False, True)]
    card = grounding_card(scored, {"suite": "screenspot_v2", "published_items": 3})
    assert card["outside_image"] == 2
    assert "2 points are outside of their image: is the scale of the answers right?" in markdown(card)
    assert "outside of their image" not in markdown(grounding_card(scored[1:2], {"published_items": 1, "suite": "x"}))


@pytest.mark.parametrize(
    ("text", "letter"),
    [("B", "B"), ("B. that", "B"), ("(B): that", "B"), ("I choose Option B", "B"), ("Answer: B", "B"),
     ("the answer is 'B'", "B"), ("Because of the icon, B", "B"), ("E", None), ("none of them", None), ("", None)],
)  # fmt: skip
def test_letters(text: str, letter: str | None) -> None:
    assert answered_letter(text, ["A", "B"]) == letter


def test_a_refusal_is_right_only_where_nothing_fits() -> None:
    box = item(Box(0, 0, 1, 1))
    assert [score_item(box, answer).right for answer in ((0.5, 0.5), (2, 2), NoPoint.refusal)] == [True, False, False]
    nothing = item(None)
    assert [score_item(nothing, answer).right for answer in ((0.5, 0.5), NoPoint.refusal)] == [False, True]
    unread = score_item(nothing, NoPoint.wrong_format)
    assert (unread.right, unread.format_error) == (False, True)


def test_a_point_with_negative_coordinates_is_a_refusal() -> None:
    """OSWorld-G's own script has no other one: both coordinates of the answer are below 0."""
    answer = "Action: click(start_box='(-1,-1)')"
    for scaling in (PIXELS, THOUSANDTHS):
        point = answered_point(answer, action_text("uitars"), scaling, (200, 100))
        assert not isinstance(point, NoPoint)
        scored = [score_item(item(region), point, (200, 100)) for region in (None, Box(-5, -5, 1, 1))]
        assert [(each.right, each.outside) for each in scored] == [(True, False), (False, False)]
    half = [score_item(item(None), point, (200, 100)) for point in ((-1.0, 5.0), (5.0, -1.0), (0.0, 0.0))]
    assert [(each.right, each.outside) for each in half] == [(False, True), (False, True), (False, False)]


def test_the_summary_by_hand() -> None:
    """Two basic items (one right), one advanced (right): micro 2/3, the mean of basic and advanced 3/4."""
    kinds = [("basic", (0.5, 0.5)), ("basic", (2.0, 2.0)), ("advanced", (0.5, 0.5))]
    scored = [score_item(item(Box(0, 0, 1, 1), grounding=kind, platform="web", type="icon"), p) for kind, p in kinds]
    found = summary(scored)
    assert found["score"] == pytest.approx(2 / 3)
    assert found["basic_and_advanced"] == 0.75
    assert found["groups"]["platform × type"]["web, icon"]["of"] == 3


def test_a_hit_among_more_options_is_worth_more() -> None:
    """One of two options right, one of four wrong: accuracy 1/2, weighted (1/2 + 0) / 2."""
    two = Question("a", Path("x"), "?", {"A": "", "B": ""}, "A")
    four = Question("b", Path("x"), "?", dict.fromkeys("ABCD", ""), "A")
    found = summary([score_question(two, "A"), score_question(four, None)])
    assert (found["score"], found["weighted"], found["format_errors"]) == (0.5, 0.25, 1)


def test_the_two_conventions_of_osworld_g() -> None:
    scored = [score_item(item(Box(0, 0, 1, 1)), (2, 2)), score_item(item(None), NoPoint.refusal)]
    card = grounding_card(scored, {"suite": "osworld_g", "published_items": 564})
    assert (card["score"], card["without_refusals"]["score"]) == (0.5, 0.0)
    text = markdown(card)
    assert "| without the items whose answer is a refusal | 0.0 % | 1 |" in text
    assert "The published edition has 564 items, these files 2." in text
    page = html(card | {"policy": "<script>"})
    assert "<h1>&lt;script&gt; on other items in the format of osworld_g</h1>" in page


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "screenspot_web_v2.json").unlink(), "screenspot_web_v2.json is missing; give the folder"),
        (lambda f: (f / "screenspot_web_v2.json").write_text("{"), "not a readable JSON file"),
        (lambda f: (f / "screenspot_web_v2.json").write_text("{}"), "expected a JSON list of items, got dict"),
        (lambda f: made.write(f / "screenspot_web_v2.json", [{"bbox": [1, 2, 3, 4]}]), "item 0: key 'img_filename'"),
        (lambda f: made.write(f / "screenspot_web_v2.json", [{"bbox": [1, 2]}]), "item 0: not enough values"),
    ],
)
def test_another_edition_is_named(tmp_path: Path, break_it: object, message: str) -> None:
    made.screenspot_v2(tmp_path)
    break_it(tmp_path)  # type: ignore[operator]
    with pytest.raises(SuiteFileError, match=message):
        SUITES["screenspot_v2"].read(tmp_path)


def test_screenshots_of_osworld_g_are_beside_its_annotations(tmp_path: Path) -> None:
    """As in its repository; a copy with another layout is read, too (``grounding_files.osworld_g``)."""
    made.osworld_g(tmp_path)
    (tmp_path / "images").rename(tmp_path / "benchmark" / "images")
    assert all(each.image.is_file() for each in SUITES["osworld_g"].read(tmp_path))


def test_items_with_the_same_id_are_each_asked(tmp_path: Path) -> None:
    made.screenspot_pro(tmp_path)
    path = tmp_path / "annotations" / "blender_windows.json"
    (line,) = json.loads(path.read_text(encoding="utf-8"))
    made.write(path, [line, {**line, "bbox": [1, 2, 3, 4]}])
    items = SUITES["screenspot_pro"].read(tmp_path)
    assert [each.id for each in items] == ["blender_1", "blender_1#2"]


def test_the_tiny_policy_is_asked_once_per_item(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An image is missing: no result. The second call asks for it alone, and keeps the other answers."""
    data, out = tmp_path / "data", tmp_path / "out"
    made.screenspot_v2(data)
    image = data / "screenspotv2_image" / "web_1.png"
    image.rename(tmp_path / "away.png")
    arguments = ["eval", "suite=screenspot_v2", "--data", str(data), "--out", str(out), "--card", "threads=1"]
    assert main([*arguments, "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["denominators"] == {"items": 3, "published_items": 1272, "with_result": 2, "no_result": 1}
    before = (out / "answers.jsonl").read_text().splitlines()
    (tmp_path / "away.png").rename(image)
    assert main(arguments) == 0
    after = (out / "answers.jsonl").read_text().splitlines()
    assert after[:2] == [line for line in before if '"right":null' not in line]
    assert json.loads((out / "card.json").read_text())["denominators"]["no_result"] == 0
    assert main([*arguments, "policy.max_new_tokens=7"]) == 2
    assert ": policy.max_new_tokens: " in (told := capsys.readouterr().err)
    assert " → 7; give another --out" in told
    assert main(["eval", "suite=screenspot_v2", "--out", str(tmp_path / "x")]) == 2
    assert "requires --data FOLDER" in capsys.readouterr().err


def chunk(kind: bytes, data: bytes) -> bytes:
    """Of a PNG."""
    return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)


@pytest.mark.parametrize(
    ("size", "chunks"),
    [
        (8, ()),
        (8, (chunk(b"\1DAT", b""),)),
        (8, (chunk(b"gAMA", b"\0"),)),
        (60_000, (chunk(b"IDAT", b""),)),
    ],
)
def test_damage_of_every_kind_is_noticed(tmp_path: Path, size: int, chunks: tuple[bytes, ...]) -> None:
    """Pillow raises OSError, SyntaxError, ValueError and an error of its own, by where a PNG is damaged."""
    head = chunk(b"IHDR", size.to_bytes(4) * 2 + bytes([8, 2, 0, 0, 0]))
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(99))[:9]) + b"".join(chunks))
    assert str(_png(path)).startswith("the image cannot be read (")


def test_a_damaged_image_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    made.screenspot_v2(data)
    image = data / "screenspotv2_image" / "web_1.png"
    image.write_bytes(image.read_bytes()[:-30])
    assert main(["eval", "suite=screenspot_v2", "--data", str(data), "--out", str(out), "--card", "threads=1"]) == 0
    assert "of 2 items" in capsys.readouterr().out
    lines = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert [line["reason"] and line["reason"][:24] for line in lines] == [None, None, "the image cannot be read"]
    assert "<h1>tiny on other items" in (out / "card.html").read_text()


def test_options_of_episodes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--oracle", "--nothing", "--osworld-layout"):
        assert main(["eval", "suite=screenspot_v2", "--data", str(tmp_path), "--out", str(tmp_path / "x"), option]) == 2
        assert "are for tasks that are played" in capsys.readouterr().err


def test_an_item_counts_in_each_of_its_types() -> None:
    scored = [Scored("a", True, groups={"type": ["Icon", "Label"]}), Scored("b", False, groups={"type": ["Icon"]})]
    types = summary(scored)["groups"]["type"]
    assert {name: (rate["score"], rate["of"]) for name, rate in types.items()} == {"Icon": (0.5, 2), "Label": (1.0, 1)}


def test_the_tiny_policy_finds_labels_of_the_simulated_desktop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The screens of scripts/make_sim_grounding.py, by a policy that was pretrained on such."""
    data, out = tmp_path / "data", tmp_path / "out"
    write_screens(data, 15)
    assert main(["eval", "suite=screenspot_v2", "--data", str(data), "--out", str(out), "--json", "threads=1"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["denominators"]["items"], card["format_errors"]) == (30, 0)
    assert card["score"] >= 0.9
    assert "in the format of screenspot_v2" in markdown(card).splitlines()[0]


def test_questions_are_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.mmbench_l1(tmp_path / "data")
    arguments = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--json", "threads=1"]
    assert main(["eval", "suite=mmbench_gui_l1", *arguments]) == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["denominators"]["items"], set(card["groups"]["difficulty"])) == (3, {"easy", "medium", "hard"})
