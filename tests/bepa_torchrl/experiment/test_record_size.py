"""The size of a record: an upper bound before the run, and the oldest episodes thinned above the limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_record import hand_record, line, png, step, write

from bepa_torchrl.analysis.records import find_records
from bepa_torchrl.experiment.record_size import HEAD_BYTES, TOKEN_BYTES, estimated_bytes, record_bytes, thin_record
from bepa_torchrl.experiment.run_record import RunRecord
from bepa_torchrl.storage.record_format import image_path


@pytest.mark.parametrize(
    ("every", "whole"),
    [
        (1, 10 * 2 * 4),  # all
        (5, 3 * 2 * 4 + 7 * 2 * 2 + 4 * 3),  # iterations 1, 5 and 10; of the others two per group; four per task
        (0, 10 * 2 * 2 + 4 * 3),
    ],
)
def test_the_estimate_by_hand(every: int, whole: int) -> None:
    found = estimated_bytes(
        iterations=10, every=every, groups=2, group_size=4, tasks=3, steps=5, tokens=6, image=1000.0
    )
    extra = 12 if every == 1 else 0  # the first of each kind are among them already: it is an upper bound
    assert found == 80 * HEAD_BYTES + (whole + extra) * 5 * (1000 + 6 * TOKEN_BYTES)


def big(folder: Path, group: int, color: int, size: int = 10_000, **fields: object) -> dict:
    """An episode whose screenshot has about ``size`` bytes: of noise after the picture."""
    data = png(color) + bytes(size)
    made = step(folder, "x", color)
    path = image_path(folder, made["screenshot"])
    path.write_bytes(data)
    return line(group, 0, [made], **fields)


def test_the_oldest_lose_their_steps_and_unshared_screenshots(tmp_path: Path) -> None:
    folder = tmp_path / "bepa"
    folder.mkdir()
    lines = [
        big(folder, 0, 10),  # the first of its kind
        big(folder, 1, 11, off_policy=True, source="self_rolled"),
        big(folder, 2, 12),
        big(folder, 3, 13),
        big(folder, 4, 13),  # the same screenshot
        big(folder, 5, 14),
    ]
    write(folder, "episodes.jsonl", lines)
    before = record_bytes(folder)
    thinned = thin_record(folder, round((before - 15_000) / 0.8))
    (record,) = find_records(folder)
    assert [e.whole for e in record.episodes] == [True, True, False, False, False, True]
    assert [bool(each["steps"]) for each in record.lines()] == [True, True, False, False, False, True]
    assert (thinned.episodes, thinned.images, thinned.first, thinned.last) == (3, 2, 3, 5)
    assert len(list(folder.rglob("*.png"))) == 3
    assert record_bytes(folder) <= before - 15_000
    assert "steps of 3 episodes of iterations 3 to 5 removed" in str(thinned)


def test_injected_and_first_episodes_go_last(tmp_path: Path) -> None:
    method = hand_record(tmp_path / "run") / "bepa"
    record = RunRecord(method)
    assert record.thin(10**9) == ""
    assert "record.limit_gb: steps of 6 episodes" in record.thin(1)
    assert not any(each["steps"] for each in find_records(method)[0].lines())
    assert list(method.rglob("*.png")) == []
    assert record.thin(1) == ""


def test_a_screenshot_of_an_evaluation_stays(tmp_path: Path) -> None:
    method = hand_record(tmp_path / "run") / "bepa"
    write(method, "outcomes.jsonl", [{"steps": [step(method, "x", 1)]}])
    RunRecord(method).thin(1)
    assert len(list(method.rglob("*.png"))) == 1


def test_screenshots_without_a_line_are_the_first_to_go(tmp_path: Path) -> None:
    """A resume takes lines back, and a process may be killed when it has removed the steps: no line names them."""
    folder = tmp_path / "bepa"
    folder.mkdir()
    lines = [big(folder, group, 10 + group) for group in range(3)]
    write(folder, "episodes.jsonl", lines)
    before = record_bytes(folder)
    big(folder, 3, 20)
    thinned = thin_record(folder, round(before / 0.8))
    assert (thinned.episodes, thinned.images) == (0, 1)
    assert str(thinned) == ""
    (record,) = find_records(folder)
    assert all(e.whole for e in record.episodes)
    assert record_bytes(folder) == before
