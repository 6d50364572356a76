"""The coordinates of the texts are compared with the executed ones: a wrong scale is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from expert_logs import CLICK, OTHER, TASK, owl, write_run

from bepa_torchrl.experts import READERS, TraceError
from bepa_torchrl.experts.readers.executed import source_points
from bepa_torchrl.experts.readers.run_folder import scan_runs
from bepa_torchrl.experts.readers.scale import SCALES, Said, distances, scale_problem


def log(x: int, y: int) -> list[dict]:
    end = {"action": "terminate", "status": "success"}
    return [owl(1, CLICK, {"action": "left_click", "coordinate": [x, y]}), owl(2, "DONE", end)]


def test_scales_by_hand() -> None:
    size = (1920, 1080)
    points = {
        "screen pixels": (960, 540),
        "resized pixels": (966, 546),  # 1932 x 1092
        "thousandths": (500, 500),
        "0-999": (499.5, 499.5),
        "fractions": (0.5, 0.5),
    }
    assert set(points) == set(SCALES)
    for name, point in points.items():
        assert SCALES[name](point, size) == pytest.approx((960, 540))


def test_thousandths_under_the_name_of_pixels_are_refused_with_the_scale_that_fits(tmp_path: Path) -> None:
    write_run(tmp_path, log(500, 500))
    # 500 of 1932 and of 1092 is (496.9, 494.5): 465 pixels from (960, 540)
    with pytest.raises(TraceError, match=r"read as resized pixels, .* 465 pixels .*thousandths would fit"):
        READERS["gui_owl"](tmp_path, [TASK])
    (trace,) = READERS["gui_owl_1_5"](tmp_path, [TASK])
    assert trace.steps[0].actions[0].start == (960, 540)


def test_the_scale_tells_two_families_apart(tmp_path: Path) -> None:
    for model, point in (("one", (966, 546)), ("two", (500, 500))):
        write_run(tmp_path, log(*point), model=model)
    assert {run.run.split("/")[2]: run.family for run in scan_runs(tmp_path)} == {
        "one": "gui_owl",
        "two": "gui_owl_1_5",
    }


def test_a_folder_is_refused_by_its_median_and_others_are_read(tmp_path: Path) -> None:
    for number, point in enumerate([(966, 546), (967, 547), (1900, 1000)]):
        write_run(tmp_path, log(*point), model="good", task=f"task-{number}")
    write_run(tmp_path, log(10, 10), model="bad", task=OTHER.id)
    runs = {run.task_id: run for run in scan_runs(tmp_path)}
    assert [runs[f"task-{number}"].skipped for number in range(3)] == ["", "", ""]  # one typing error of three
    assert "no known scale fits" in runs[OTHER.id].skipped


def test_a_model_s_name_decides_before_the_scale_does(tmp_path: Path) -> None:
    write_run(tmp_path, log(966, 546), args={"model": "GUI-Owl-1.5-8B"})
    (run,) = scan_runs(tmp_path)
    assert run.family == "gui_owl_1_5"
    assert "resized pixels would fit" in run.skipped


def test_other_screens_have_their_own_size(tmp_path: Path) -> None:
    half = "import pyautogui; pyautogui.click(640, 360)"
    for size, point in (((1280, 720), (644, 364)), ((1024, 768), (640, 360))):  # 1288 x 728; 1036 x 756 of 1024 x 768
        root = tmp_path / str(size[0])
        write_run(root, [owl(1, half, {"action": "click", "coordinate": list(point)})], size=size)
    assert [run.skipped for run in scan_runs(tmp_path / "1280")] == [""]
    assert "screen pixels would fit" in scan_runs(tmp_path / "1024")[0].skipped


def test_points_are_compared_in_order_or_with_the_nearest() -> None:
    drag = Said(((0, 0), (10, 0)), ((0, 1), (10, 2)), (100, 100))
    end_only = Said(((10, 0),), ((0, 0), (10, 2)), (100, 100))
    assert distances([drag, end_only], "screen pixels") == [1, 2, 2]
    assert scale_problem([], ["thousandths"]) == ""
    assert scale_problem([Said(((5, 5),), (), (100, 100))], ["thousandths"]) == ""  # nothing was executed


def test_points_of_sources() -> None:
    source = "pyautogui.moveTo(1, 2); pyautogui.dragTo(x=3, y=4, duration=1); pyautogui.scroll(-5, x=5, y=6); f(7, 8)"
    assert source_points(source) == [(1, 2), (3, 4), (5, 6)]
    assert source_points("pyautogui.click(a, b); pyautogui.click(); pyautogui.click(1e999, 2)") == []
    assert source_points("not python(") == []
    assert source_points("(" * 10_000) == []
