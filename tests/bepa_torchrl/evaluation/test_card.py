"""The card by hand: three outcomes that are never mixed, each denominator, parts, passes, and its pages."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bepa_torchrl.cli import main
from bepa_torchrl.evaluation.card import DRIVE_TASKS, make_card
from bepa_torchrl.evaluation.card_text import html, markdown
from bepa_torchrl.evaluation.comparison import compare, comparison_lines
from bepa_torchrl.evaluation.outcomes import Outcome, Result, read_outcomes, write_outcomes
from bepa_torchrl.evaluation.statistics import wilson
from bepa_torchrl.storage.json_lines import RecordError

WIN, LOSS, NONE = Result.success, Result.failure, Result.no_result


def outcome(task: str, result: Result, attempt: int = 0, *, domain: str = "os", **more: object) -> Outcome:
    score = {WIN: 1.0, LOSS: 0.0, NONE: None}[result]
    return Outcome(task, domain, attempt, result, score, **more)  # type: ignore[arg-type]


def test_a_lost_episode_is_in_no_share_but_in_the_denominators() -> None:
    """Of four tasks one succeeds, two fail and one has no result: 1/3 of those that ran, 1/4 of those listed."""
    card = make_card(
        [outcome("a", WIN), outcome("b", LOSS), outcome("c", LOSS), outcome("d", NONE, reason="infrastructure: died")],
        {"suite": "s"},
    )
    assert card["score"] == pytest.approx(1 / 3)
    expected = wilson(1, 3)
    assert card["interval"] == pytest.approx([expected.low, expected.high])
    assert card["denominators"]["ran"] == {"tasks": 3, "score": pytest.approx(1 / 3)}
    assert card["denominators"]["listed"] == {"tasks": 4, "score": 0.25}
    assert card["denominators"]["tasks_without_result"] == 1
    assert card["no_result"] == {"infrastructure: died": 1}
    assert card["passes"] == [{"pass": 0, "success": 1, "failure": 2, "no_result": 1, "score": pytest.approx(1 / 3)}]


def test_a_part_of_a_list_is_not_called_the_edition() -> None:
    outcomes = [outcome("a", WIN), outcome("b", NONE, reason="lost")]
    facts = {"suite": "s", "policy": "p", "list": "the first 2 of 9 (env.train_limit=2)"}
    card = make_card(outcomes, facts | {"limited": {"tasks": 2, "of": 9}})
    assert card["denominators"]["limited"] == {"tasks": 2, "score": 0.5, "of": 9}
    assert "listed" not in card["denominators"]
    for page in (markdown(card), html(card)):
        assert "p on the first 2 of 9 tasks of s" in page
        assert "the first 2 of 9 tasks; no result counts as a failure" in page
        assert "the first 2 of 9 (env.train_limit=2)" in page
        assert "edition" not in page
    assert "all tasks of the edition" in markdown(make_card(outcomes, {"list": "all"}))


def test_all_tasks_of_a_folder_are_not_called_the_edition(tmp_path: Path) -> None:
    run = tmp_path / "results" / "os" / "a"
    run.mkdir(parents=True)
    (run / "result.txt").write_text("1.0")
    assert main(["eval", "--from", str(tmp_path / "results"), "--card", "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "card.md").read_text()
    assert "all tasks of the folder; no result counts as a failure" in page
    assert "edition" not in page


def test_the_tasks_of_google_drive_are_left_out_of_the_second_denominator() -> None:
    drive = min(DRIVE_TASKS)
    card = make_card([outcome("a", WIN), outcome(drive, NONE, reason="not executable: Drive")], {})
    assert card["denominators"]["listed"] == {"tasks": 2, "score": 0.5}
    assert card["denominators"]["without_drive"] == {"tasks": 1, "score": 1.0}


def test_passes_weigh_by_task_and_pass_at_k_by_hand() -> None:
    """Task a: 1 of 2 succeed, task b: 0 of 1 (the other has no result)."""
    card = make_card(
        [outcome("a", WIN), outcome("a", LOSS, 1), outcome("b", LOSS), outcome("b", NONE, 1, reason="lost")], {}
    )
    assert card["score"] == 0.25
    assert card["pass_at_k"] == {"1": {"tasks": 2, "score": 0.25}, "2": {"tasks": 1, "score": 1.0}}
    assert card["all_pass_at_k"]["2"] == {"tasks": 1, "score": 0.0}


def test_infeasible_tasks_are_a_column_of_their_own() -> None:
    card = make_card([outcome("a", LOSS), outcome("b", WIN, feasible=False)], {})
    assert (card["feasible"]["score"], card["infeasible"]["score"], card["infeasible"]["share"]) == (0.0, 1.0, 0.5)
    assert "as infeasible would get 50.0 %" in markdown(card)


def test_a_category_needs_all_of_its_domains() -> None:
    office = [outcome(d, WIN, domain=d) for d in ("libreoffice_calc", "libreoffice_impress", "libreoffice_writer")]
    card = make_card([*office, outcome("v", WIN, domain="vlc")], {})
    assert set(card["categories"]) == {"Office"}
    assert card["domains"]["vlc"]["tasks"] == 1


def test_partial_scores_are_no_successes() -> None:
    half = Outcome("a", "os", 0, LOSS, 0.5)
    card = make_card([half], {})
    assert (card["score"], card["mean_score"]) == (0.0, 0.5)


def test_without_any_result_there_is_no_score() -> None:
    card = make_card([outcome("a", NONE, reason="lost")], {"suite": "s", "policy": "p"})
    assert (card["score"], card["interval"]) == (None, None)
    assert "No task has a result." in markdown(card)


def test_texts_of_others_are_escaped() -> None:
    card = make_card([outcome("a", NONE, reason="<script>alert(1)</script>|x"), outcome("b", WIN)], {"policy": "<b>"})
    page = html(card)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt; on" in page
    assert "\\|x" in markdown(card)


def test_facts_are_written_as_text() -> None:
    facts = {"folders": ["a", "b"], "machine": {}, "versions": {"torch": "2.13", "cuda": None}, "retries": 0}
    page = markdown(make_card([outcome("a", WIN)], facts))
    assert "| folders | a, b |" in page
    assert "| machine |" not in page
    assert "| retries | 0 |" in page
    assert "| versions | torch 2.13, cuda – |" in page


def test_outcomes_are_read_back(tmp_path: Path) -> None:
    outcomes = [outcome("a", WIN, steps=3, stop="finished"), outcome("b", NONE, reason="lost")]
    write_outcomes(tmp_path, outcomes, {"suite": "s"})
    assert read_outcomes(tmp_path) == (outcomes, {"suite": "s"})
    (tmp_path / "results.jsonl").write_text('{"task": "a", "result": "maybe"}\n')
    with pytest.raises(RecordError, match=r"results\.jsonl:1: expected the keys attempt, domain"):
        read_outcomes(tmp_path)
    with pytest.raises(RecordError, match=r"it has no results\.jsonl"):
        read_outcomes(tmp_path / "none")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": ["a"]}, r"line 2: field 'task': expected a text, got \['a'\]; restore the file"),
        ({"attempt": "x"}, "line 2: field 'attempt': expected an integer from 0, got 'x'"),
        ({"score": float("nan")}, "line 2: field 'score': expected a finite number or null, got nan"),
        ({"steps": -1}, "line 2: field 'steps': expected an integer from 0, got -1"),
        ({"task": "a"}, "line 2: expected each pass of a task once, got pass 0 of 'a' twice; restore the file"),
    ],
)
def test_a_damaged_line_of_an_evaluation_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A file that was appended to another counted its tasks as several passes."""
    write_outcomes(tmp_path, [outcome("a", WIN)], {})
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(json.dumps(asdict(outcome("b", WIN)) | changes) + "\n")
    with pytest.raises(RecordError, match=message):
        read_outcomes(tmp_path)


def test_an_evaluation_whose_files_are_cut_off_is_refused(tmp_path: Path) -> None:
    write_outcomes(tmp_path, [outcome("a", WIN), outcome("b", WIN)], {})
    whole = (tmp_path / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").write_text(whole[:-20])
    with pytest.raises(RecordError, match="the last line is incomplete; restore the file"):
        read_outcomes(tmp_path)
    (tmp_path / "results.jsonl").write_text(whole)
    (tmp_path / "facts.json").write_text("[" * 100_000)
    with pytest.raises(RecordError, match="cannot be read"):
        read_outcomes(tmp_path)


def test_two_evaluations_are_compared_on_the_tasks_that_both_have() -> None:
    """Of a, b, c both have results: b is gained, none is lost; d and e are in one only."""
    first = [outcome("a", WIN), outcome("b", LOSS), outcome("c", LOSS), outcome("d", WIN)]
    second = [outcome("a", WIN), outcome("b", WIN), outcome("c", LOSS), outcome("e", WIN), outcome("d", NONE)]
    found = compare(first, second, ({"suite": "s", "steps_budget": 15}, {"suite": "s", "steps_budget": 50}))
    assert (found["tasks"], found["only_first"], found["only_second"]) == (3, 1, 1)
    assert found["difference"] == pytest.approx(1 / 3)
    assert found["mcnemar"] == {"only_first": 0, "only_second": 1, "p": 1.0}
    assert (found["gained"], found["lost"]) == (["b"], [])
    assert found["differing_facts"] == {"steps_budget": [15, 50]}
    assert "not the same steps_budget: 15 and 50" in comparison_lines(found)
    for fact in ("judge", "evaluators"):
        assert compare(first, second, ({fact: "a"}, {fact: "b"}))["differing_facts"] == {fact: ["a", "b"]}
    with pytest.raises(ValueError, match="no task in common"):
        compare([outcome("a", WIN)], [outcome("b", WIN)])


def test_a_comparison_says_which_conditions_are_not_known() -> None:
    """Cards of an earlier version name no evaluators; results of others no provider. Neither is a difference."""
    tasks = [outcome("a", WIN)]
    new = {"evaluators": "ours", "temperature": 0.0, "provider": "sim", "machine_hash": "not known", "machine": {}}
    old = {"temperature": 1.0, "machine_hash": "sha256:a", "machine": {"size": [800, 600]}, "judge": "a model"}
    found = compare(tasks, tasks, (old, new))
    differing = {"temperature": [1.0, 0.0], "machine": [{"size": [800, 600]}, {}], "judge": ["a model", None]}
    assert found["differing_facts"] == differing
    unknown = {"provider": [None, "sim"], "machine_hash": ["sha256:a", "not known"], "evaluators": [None, "ours"]}
    assert found["unknown_facts"] == unknown
    lines = comparison_lines(found)
    assert "not known whether both had the same evaluators: not known and ours" in lines
    assert "not known whether both had the same machine_hash: sha256:a and not known" in lines
    assert "not the same temperature: 1 and 0" in lines
    assert "not the same machine: size 800, 600 and none" in lines
    assert "not the same judge: a model and none" in lines


def test_a_comparison_claims_no_difference_that_is_impossible() -> None:
    """Twenty equal tasks, then two: no width of 0, and neither 0.0 nor 140.1 points."""
    equal = [outcome(str(number), WIN) for number in range(20)]
    text = "\n".join(comparison_lines(compare(equal, equal)))
    assert "difference +0.0 points, 95 % interval -16.1 to +16.1 (paired)" in text
    assert "this design shows differences of 36.6 points and more (power 80 %)" in text
    few = compare([outcome("a", WIN), outcome("b", LOSS)], [outcome("a", LOSS), outcome("b", WIN)])
    assert few["smallest_difference"] is None
    assert "that this design shows cannot be said from 2 tasks; it takes 6 or more" in "\n".join(comparison_lines(few))
    again = [*equal, *(outcome(str(number), WIN, 1) for number in range(20))]
    assert "cannot be said from these 20 tasks" in "\n".join(comparison_lines(compare(again, again)))


def test_a_task_with_several_passes_is_solved_by_more_than_half_of_them() -> None:
    first = [outcome("a", WIN), outcome("a", LOSS, 1)]
    second = [outcome("a", WIN), outcome("a", WIN, 1), outcome("a", LOSS, 2)]
    assert compare(first, second)["gained"] == ["a"]


def test_the_efficiency_quality_area_is_the_mean_over_passes() -> None:
    """Pass 0: a succeeds after 5 of 10 steps, pass 1: it fails; b has no result and is left out."""
    played = [outcome("a", WIN, steps=5), outcome("b", NONE, steps=3), outcome("a", LOSS, 1, steps=10)]
    card = make_card(played, {"steps_budget": 10})
    assert card["efficiency_quality"] == {
        "area": pytest.approx(51 / 101 / 2), "order": "of the suite", "max_steps": 10,
    }  # fmt: skip
    assert "efficiency-quality area | 0.252 (tasks in the order of the suite, 10 steps at most)" in markdown(card)
    assert make_card([outcome("a", WIN)], {"steps_budget": 10})["efficiency_quality"] is None
    assert make_card(played, {})["efficiency_quality"] is None
