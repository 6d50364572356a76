"""The picture of a finished run: what it shows is what the run recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bepa_torchrl.monitoring.overview import caption, draw_overview, overview_of, read_overview


def line(iteration: int, success: float, failed: int, solved: int, injected: int = 0) -> dict[str, Any]:
    """One iteration of 4 groups."""
    return {
        "iteration": iteration, "phase": "rl", "groups": 4.0, "collect/success": success,
        "groups_failed": float(failed), "groups_solved": float(solved), "cache/injected": float(injected),
    }  # fmt: skip


def results(*methods: str, held_out: float | None = 0.375) -> dict[str, Any]:
    """A run on 8 training tasks, which two iterations play once."""
    after = {"train": 0.75, "held_out": held_out, "expert_only": 0.5, "train/known": 1.0}
    return {
        "methods": {name: {"algo": name, "success": {"sampled": after, "greedy": {"train": 0.1}}} for name in methods},
        "base": {"success": {"sampled": {"train": 0.5, "held_out": held_out, "expert_only": 0.0}}},
        "sets": {"train": 8, "held_out": 0 if held_out is None else 6, "expert": 8, "expert_only": 2},
    }


BEPA = [line(1, 0.5, 2, 1, 1), line(2, 0.6, 2, 2, 2), line(3, 0.8, 1, 2, 1)]
GRPO = [line(1, 0.5, 2, 1), line(2, 0.5, 2, 1), line(3, 0.25, 3, 1)]


def test_each_point_is_one_pass_over_the_tasks_and_the_last_may_be_shorter() -> None:
    shown = overview_of(results("bepa", "grpo"), {"bepa": BEPA, "grpo": GRPO})
    assert (shown.window, shown.shown, shown.last) == (2, "bepa", 3)
    assert shown.learning["bepa"] == ([2, 3], [pytest.approx(0.55), 0.8])
    assert shown.learning["grpo"] == ([2, 3], [0.5, 0.25])


def test_groups_are_what_they_teach() -> None:
    """Of the first pass's 8 groups 4 fail, of which 3 get a trace; 3 succeed, and 1 is mixed."""
    shown = overview_of(results("bepa", "grpo"), {"bepa": BEPA, "grpo": GRPO})
    assert shown.iterations == [2, 3]
    assert shown.groups == {
        "failed": [0.125, 0.0], "injected": [0.375, 0.25], "mixed": [0.125, 0.25], "solved": [0.375, 0.5],
    }  # fmt: skip
    assert shown.whole == {kind: pytest.approx(n / 12) for kind, n in zip(shown.groups, (1, 4, 2, 5), strict=True)}
    assert caption(shown) == (
        "Success on the 8 training tasks after 3 iterations: 75 % by BEPA, 75 % by GRPO, from 50 % before; in 42 % of "
        "BEPA's groups all rollouts failed, and in 80 % of these a cached success took the place of a failure."
    )


def test_final_success_is_that_of_the_sampled_evaluation() -> None:
    shown = overview_of(results("bepa"), {"bepa": BEPA})
    assert shown.base == {"train": 0.5, "held_out": 0.375, "expert_only": 0.0}
    assert shown.final == {"bepa": {"train": 0.75, "held_out": 0.375, "expert_only": 0.5}}
    assert shown.tasks == {"train": 8, "held_out": 6, "expert_only": 2}


@pytest.mark.parametrize(
    ("algo", "kinds"),
    [("grpo", (1, 0, 1, 2)), ("luffy", (1, 0, 1, 2)), ("level1", (0, 1, 1, 2)), ("mine", (1, 0, 1, 2))],
)
def test_only_a_replaced_failure_makes_a_failed_group_teach(algo: str, kinds: tuple[int, ...]) -> None:
    shown = overview_of(results(algo), {algo: [line(1, 0.5, 1, 2, 1)]})
    assert tuple(shown.whole.values()) == tuple(kind / 4 for kind in kinds)


def test_fine_tuning_alone_has_no_groups_and_a_run_without_held_out_tasks_no_bar_for_them(tmp_path: Path) -> None:
    found = results("sft", held_out=None)
    (tmp_path / "sft").mkdir()
    (tmp_path / "results.json").write_text(json.dumps(found))
    (tmp_path / "sft" / "iterations.jsonl").write_text('{"iteration": 0, "phase": "base", "eval/train": 0.5}\n')
    shown = read_overview(tmp_path)
    assert (shown.shown, shown.learning, shown.whole, list(shown.tasks)) == ("", {}, {}, ["train", "expert_only"])
    assert caption(shown) == "Success on the 8 training tasks after fine-tuning: 75 % by sft, from 50 % before."
    assert draw_overview(tmp_path, title="t").read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_a_run_is_drawn_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(results("bepa", "grpo")))
    for name, lines in (("bepa", BEPA), ("grpo", GRPO)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "iterations.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert draw_overview(tmp_path, title="t") == tmp_path / "overview.png"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bepa", "grpo", "overview.png", "results.json"]


def test_a_run_without_evaluations_still_has_its_rollouts(tmp_path: Path) -> None:
    found = results("grpo") | {"base": {"success": {}}}
    found["methods"]["grpo"]["success"] = {}
    shown = overview_of(found, {"grpo": GRPO})
    assert (shown.base, shown.final) == ({}, {"grpo": {}})
    assert caption(shown) == "In 58 % of GRPO's groups all rollouts failed."
    (tmp_path / "grpo").mkdir()
    (tmp_path / "results.json").write_text(json.dumps(found))
    (tmp_path / "grpo" / "iterations.jsonl").write_text("".join(json.dumps(each) + "\n" for each in GRPO))
    assert draw_overview(tmp_path, title="t").read_bytes().startswith(b"\x89PNG")
