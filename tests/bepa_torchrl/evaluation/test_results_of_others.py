"""``bepa eval --from`` on what real results folders have: each counts, or is without a result; none stops it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expert_logs import CLICK, OTHER, TASK, good, line, owl, plan, s2, write_run
from run_folders import recorded_expert, training_run

from bepa_torchrl.cli import main
from bepa_torchrl.evaluation.outcomes import read_outcomes

Card = Callable[..., dict[str, Any]]
TYPED = "import pyautogui; pyautogui.write('a')"
CLAUDE = {
    "name": "computer", "input": {"action": "left_click", "coordinate": [640, 360]}, "id": "t1",
    "action_type": "tool_use", "command": CLICK, "raw_response": "I click.",
}  # fmt: skip


@pytest.fixture
def card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Card:
    def make(root: Path, *more: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["eval", "--from", str(root), "--json", "--out", str(tmp_path / "card"), *more]) in (0, 3)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return json.loads(printed.out)  # type: ignore[no-any-return]

    return make


def steps_of(folder: Path) -> list[int]:
    return [outcome.steps for outcome in read_outcomes(folder / "card")[0]]


@pytest.mark.parametrize(
    ("text", "score"),
    [("1", 1.0), ("1.0\n", 1.0), ("True", 1.0), ("0.0", 0.0), ("False\n", 0.0), (None, None), ("", None), ("x", None)],
)
def test_1_the_result_is_a_value_or_none(tmp_path: Path, card: Card, text: str | None, score: float | None) -> None:
    write_run(tmp_path / "runs", good(), result=text)
    write_run(tmp_path / "runs", good(), task=OTHER.id)
    found = card(tmp_path / "runs")
    assert found["score"] == (1.0 if score is None else (1.0 + score) / 2)
    assert found["denominators"]["tasks_without_result"] == (score is None)
    assert found["no_result"] == ({"no readable result.txt": 1} if score is None else {})


def test_2_a_line_with_an_error_is_a_crash(tmp_path: Path, card: Card) -> None:
    write_run(tmp_path / "runs", [*good()[:1], {"Error": "Time limit exceeded in os/x"}], result=None)
    found = card(tmp_path / "runs")
    assert (found["score"], found["no_result"]) == (None, {"the runner crashed": 1})
    assert steps_of(tmp_path) == [1]


@pytest.mark.parametrize("first", [None, "step_0.png", "step_0_20250801@120000.png"])
def test_3_without_a_first_screenshot(tmp_path: Path, card: Card, first: str | None) -> None:
    write_run(tmp_path / "runs", good(), first=first)
    assert card(tmp_path / "runs")["score"] == 1.0
    assert steps_of(tmp_path) == [2]


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        ([line(1, CLAUDE, response="I click."), line(2, {"action_type": "DONE", "raw_response": "done"})], 2),
        ([line(1, {"action_space": "pyautogui", "action": CLICK, "call_id": "c"}), line(2, "DONE")], 2),
        ([s2(1, [CLICK, TYPED]), s2(2, "DONE")], 2),
        ([s2(1, CLICK), line(1, TYPED, response=s2(1, TYPED)["response"]), s2(2, "DONE")], 2),
    ],
    ids=["Claude's dict", "OpenAI's dict", "a list", "two lines of one step"],
)
def test_4_several_forms_of_an_action_are_one_step(tmp_path: Path, card: Card, lines: list[Any], steps: int) -> None:
    write_run(tmp_path / "runs", lines)
    assert card(tmp_path / "runs")["score"] == 1.0
    assert steps_of(tmp_path) == [steps]


TEXTS: dict[str, dict[str, Any]] = {
    "flat": {"plan": plan("agent.click('OK', 1, 'left')"), "plan_code": "agent.click('OK', 1, 'left')",
             "exec_code": CLICK, "reflection": None, "reflection_thoughts": None, "code_agent_output": None},
    "text": {"response": "Thought: I click.\nAction: click(start_box='(966,546)')"},
    "dict": {"response": s2(1, CLICK)["response"]},
    "absent": {"response": ...},
}  # fmt: skip


@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
def test_5_the_texts_are_anywhere(tmp_path: Path, card: Card, texts: dict[str, Any]) -> None:
    write_run(tmp_path / "runs", [line(1, CLICK, **texts), line(2, "DONE", **texts)])
    assert card(tmp_path / "runs")["score"] == 1.0
    assert steps_of(tmp_path) == [2]


@pytest.mark.parametrize("before", [True, False])
def test_6_pictures_before_or_after_the_action(tmp_path: Path, card: Card, before: bool) -> None:
    """OS-Symphony's lines name its instruction; its pictures are those before the action."""
    more = {"instruction": "Press OK"} if before else {}
    run = write_run(tmp_path / "runs", [line(1, CLICK, **more), line(2, "DONE", **more)], first=None)
    if before:
        (run / "traj_1.json").write_text("{}")
        (run / "time.txt").write_text("12.5")
    assert card(tmp_path / "runs")["score"] == 1.0


def test_7_a_wrong_scale_spoils_the_trace_and_not_the_score(tmp_path: Path, card: Card) -> None:
    """The texts' point is 10, 10, the executed click elsewhere: no plan and no image, but the evaluator's score."""
    bad = [owl(1, CLICK, {"action": "left_click", "coordinate": [10, 10]}), owl(2, "DONE", {"action": "terminate"})]
    write_run(tmp_path / "runs", bad)
    assert main(["experts", "check", str(tmp_path / "runs")]) != 0
    assert card(tmp_path / "runs")["score"] == 1.0


def test_8_several_runs_of_a_task_are_passes_and_their_folders_are_named(tmp_path: Path, card: Card) -> None:
    for model, result in (("a", "1"), ("b", "0"), ("c", None)):
        write_run(tmp_path / "runs", good(), model=model, result=result)
    found = card(tmp_path / "runs")
    assert (found["score"], found["denominators"]["tasks_without_result"]) == (0.5, 0)
    assert [each["success"] for each in found["passes"]] == [1, 0, 0]
    assert found["folders"] == ["pyautogui/screenshot/a", "pyautogui/screenshot/b"]
    write_run(tmp_path / "one", good())
    assert main(["eval", "--from", str(tmp_path / "one")]) == 0


@pytest.mark.parametrize("more", ["", "123456"])
def test_9_stamps_and_ten_steps(tmp_path: Path, card: Card, more: str) -> None:
    lines = [s2(n, CLICK, screenshot_file=f"step_{n}_20250801@1200{n:02d}{more}.png") for n in range(1, 12)]
    write_run(tmp_path / "runs", lines)
    assert card(tmp_path / "runs", "--steps", "15")["efficiency_quality"]["max_steps"] == 15
    assert steps_of(tmp_path) == [11]


@pytest.mark.parametrize("size", [(1280, 720), (1024, 768)])
def test_10_other_screens(tmp_path: Path, card: Card, size: tuple[int, int]) -> None:
    write_run(tmp_path / "runs", good(), size=size)
    assert card(tmp_path / "runs")["score"] == 1.0


# --- what else occurs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [None, "{torn", '{"step_num": 1}\n'])
def test_a_result_counts_without_a_readable_log(tmp_path: Path, card: Card, log: str | None) -> None:
    """As in OSWorld's own table: trajectories are large, and are deleted first."""
    path = write_run(tmp_path / "runs", good()) / "traj.jsonl"
    path.unlink()
    if log is not None:
        path.write_text(log)
    found = card(tmp_path / "runs")
    assert (found["score"], found["tasks"], list(found["domains"])) == (1.0, 1, ["os"])


def test_a_run_that_was_started_again_has_the_result_once(tmp_path: Path, card: Card) -> None:
    write_run(tmp_path / "runs", [s2(1, TYPED), s2(2, "FAIL"), *good()])
    found = card(tmp_path / "runs")
    assert (found["score"], found["denominators"]["episodes"]) == (1.0, 1)


@pytest.mark.parametrize(
    ("lines", "result", "score", "steps"),
    [
        ([s2(1, CLICK), {"Error": "lost"}, *good()], "1.0", 1.0, 2),
        ([*good(), s2(1, CLICK), {"Error": "lost"}], "1.0", 1.0, 2),
        ([*good(), *[s2(number, CLICK) for number in (1, 2, 3)], {"Error": "lost"}], "1.0", 1.0, 2),
        ([s2(1, CLICK), {"Error": "lost"}, s2(1, CLICK), s2(2, CLICK), {"Error": "lost"}], None, None, 2),
        ([s2(1, CLICK), {"Error": "lost"}, s2(1, CLICK), s2(2, CLICK)], None, None, 2),
    ],
    ids=["crash first", "crash after it", "a longer one", "crashes alone", "crash and interruption"],
)
def test_a_crash_beside_another_run_in_its_log_is_no_pass_of_its_own(
    tmp_path: Path, card: Card, lines: list[dict[str, Any]], result: str | None, score: float | None, steps: int
) -> None:
    write_run(tmp_path / "runs", lines, result=result)
    found = card(tmp_path / "runs")
    assert (found["score"], found["denominators"]["tasks_without_result"]) == (score, int(score is None))
    assert steps_of(tmp_path) == [steps]


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        ([*good(), {"Error": "lost"}], 2),
        ([s2(1, CLICK), {"Error": "lost"}, *good(), {"Error": "lost"}], 2),
        ([s2(1, CLICK), s2(2, CLICK), {"Error": "lost"}], 2),
        ([*[s2(number, CLICK) for number in (1, 2, 3)], s2(1, CLICK), {"Error": "lost"}], 3),
        ([*[s2(number, CLICK) for number in (1, 2, 3)], s2(1, CLICK)], 3),
    ],
    ids=["after the end", "after the second's end", "alone", "after one at the limit", "interrupted after that"],
)
def test_a_result_counts_after_a_crash_as_in_osworlds_own_table(
    tmp_path: Path, card: Card, lines: list[dict[str, Any]], steps: int
) -> None:
    """OSWorld's runner writes result.txt, and then saves the recording, which may fail."""
    write_run(tmp_path / "runs", lines, args={"max_steps": 3})
    found = card(tmp_path / "runs")
    assert (found["score"], found["denominators"]["episodes"]) == (1.0, 1)
    assert steps_of(tmp_path) == [steps]


def test_the_name_of_a_folder_may_have_a_number_sign(tmp_path: Path, card: Card) -> None:
    write_run(tmp_path / "runs" / "model#1", good())
    assert card(tmp_path / "runs")["score"] == 1.0


def test_the_runners_summary_is_not_averaged(tmp_path: Path, card: Card) -> None:
    """It stores an error as the score 0.0; the crash has no result.txt."""
    write_run(tmp_path / "runs", good())
    write_run(tmp_path / "runs", [*good()[:1], {"Error": "lost"}], task=OTHER.id, result=None)
    summary = tmp_path / "runs" / "summary"
    summary.mkdir()
    errors = [{"application": "os", "task_id": OTHER.id, "status": "error", "score": 0.0, "err_message": "lost"}]
    (summary / "results.json").write_text(json.dumps(errors))
    found = card(tmp_path / "runs")
    assert (found["score"], found["denominators"]["tasks_without_result"]) == (1.0, 1)


def test_the_machine_of_others_is_what_they_state(tmp_path: Path, card: Card) -> None:
    write_run(tmp_path / "runs", good())
    assert card(tmp_path / "runs")["machine_hash"] == "not known"
    other = tmp_path / "other"
    assert main(["eval", "--from", str(tmp_path / "runs"), "--machine-hash", "sha256:a", "--out", str(other)]) == 0
    assert read_outcomes(other)[1]["machine_hash"] == "sha256:a"


@pytest.mark.parametrize("make", [lambda _: None, lambda root: (root / "os" / TASK.id).mkdir(parents=True)])
def test_a_folder_without_runs_is_one_line(
    tmp_path: Path, make: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "runs")
    assert main(["eval", "--from", str(tmp_path / "runs")]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("bepa eval: ")


def test_a_trial_of_harbors_is_one_pass_however_many_files_its_trajectory_is_in(tmp_path: Path, card: Card) -> None:
    """A trial that succeeded, in two files, beside one that failed, and one that crashed before its first step."""
    step = {"step_id": 1, "source": "agent", "message": "Wait.", "tool_calls": [
        {"tool_call_id": "c", "function_name": "computer_action", "arguments": {"type": "wait"}}
    ]}  # fmt: skip
    data = {"schema_version": "ATIF-v1.8", "agent": {"name": "desk", "version": "1"}, "steps": [step]}
    for name, reward in (("a", 1), ("b", 0), ("c", None)):
        trial = tmp_path / "jobs" / f"{name}__x7Qz"
        (trial / "agent").mkdir(parents=True)
        verified = None if reward is None else {"rewards": {"reward": reward}}
        result = {"task_name": name, "trial_name": trial.name, "verifier_result": verified}
        (trial / "result.json").write_text(json.dumps(result))
        files = {"a": ("trajectory.json", "trajectory.cont-1.json"), "b": ("trajectory.json",), "c": ()}[name]
        for file in files:
            (trial / "agent" / file).write_text(json.dumps(data))
    found = card(tmp_path / "jobs")
    assert (found["score"], found["denominators"]["episodes"]) == (0.5, 3)
    assert found["denominators"]["tasks_without_result"] == 1
    assert list(found["domains"]) == ["tasks"]


@pytest.mark.parametrize("torn", ["trajectory.json", "trajectory.cont-1.json"])
@pytest.mark.parametrize("text", ["{torn", '{"schema_version": "ATIF-v1.8", "steps": [1]}'])
def test_a_result_of_harbors_counts_without_a_readable_trajectory(
    tmp_path: Path, card: Card, torn: str, text: str
) -> None:
    trial = tmp_path / "jobs" / "a__x7Qz"
    (trial / "agent").mkdir(parents=True)
    result = {"task_name": "a", "trial_name": trial.name, "verifier_result": {"rewards": {"reward": 1}}}
    (trial / "result.json").write_text(json.dumps(result))
    (trial / "agent" / torn).write_text(text)
    found = card(tmp_path / "jobs")
    assert (found["score"], found["denominators"]["episodes"]) == (1.0, 1)


# --- what is no result of an agent -----------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["", "check", "check/prepared", "check/prepared/experts", "check/bepa"])
def test_a_training_run_is_no_result_of_an_agent(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its traces are the expert's. The refusal names how to evaluate its policy, and nothing is written."""
    training_run(tmp_path / "runs" / "check")
    write_run(tmp_path / "runs" / "agent", good())  # beside it, results that could be scored
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "--from", f"runs/{part}", "--card", "--out", "out"]) == 2
    out, told = capsys.readouterr()
    assert out == ""
    assert "got the training run runs/check, whose traces are its expert's" in told
    assert "`bepa eval policy.checkpoint=runs/check/bepa/policy --out FOLDER`" in told
    assert "`bepa status runs/check`" in told
    assert not (tmp_path / "out").exists()


def test_results_in_a_folder_of_ones_own_in_a_run_s_are_read(tmp_path: Path, card: Card) -> None:
    run = training_run(tmp_path / "check")
    write_run(run / "agent", good())
    assert card(run / "prepared" / ".." / "agent")["score"] == 1.0
    assert main(["eval", "--from", str(run / "agent" / "..")]) == 2


@pytest.mark.parametrize("reader", ["", "records:", "auto:"])
def test_recordings_of_an_expert_are_never_scored(
    reader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither alone nor beside results of an agent: only what the oracle solved is recorded."""
    recorded_expert(tmp_path / "recorded")
    write_run(tmp_path, good())
    for folder in (tmp_path / "recorded", tmp_path):
        assert main(["eval", "--from", f"{reader}{folder}"]) == 2
        out, told = capsys.readouterr()
        assert out == ""
        assert f"got recordings of an expert, such as {tmp_path / 'recorded' / 'traces'}" in told
        assert f"`bepa experts check {reader}{folder}`" in told


def test_a_part_of_a_suite_is_named_with_results_of_others(tmp_path: Path, card: Card) -> None:
    write_run(tmp_path / "runs", good(), task="sim-toggle-on-00")
    found = card(tmp_path / "runs", "suite=sim", "env.train_limit=2")
    assert found["list"] == "the first 2 of 199 (env.train_limit=2)"
    assert found["denominators"]["limited"]["of"] == 199
    assert read_outcomes(tmp_path / "card")[1]["limited"] == {"tasks": 2, "of": 199}
