"""Online-Mind2Web: its files, the three stages of the judge over a real HTTP server, and agreement by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import web_trajectories as made
from chat_server import ChatServer, Reply, chat_server
from listening_ports import free_ports

from bepa_torchrl.__main__ import main
from bepa_torchrl.endpoint import AnswerError, ChatModel, Endpoint
from bepa_torchrl.evaluation.web import prompts
from bepa_torchrl.evaluation.web.agreement import agreement, corrected_rate, read_labels
from bepa_torchrl.evaluation.web.judge import judge_trajectory, judged
from bepa_torchrl.evaluation.web.trajectories import (
    TrajectoryError,
    WebStep,
    problems,
    read_trajectory,
    write_trajectory,
)
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.suites.web import read_web_tasks

# --- files ----------------------------------------------------------------------------------------------------------


def test_the_data_file_names_its_edition_and_levels(tmp_path: Path) -> None:
    one = read_web_tasks(made.data_file(tmp_path / "a.json", made.task("lamp"), made.task("sofa", "hard")))
    assert [(each.id, each.level) for each in one.tasks.values()] == [("lamp", "easy"), ("sofa", "hard")]
    other = read_web_tasks(made.data_file(tmp_path / "b.json", made.task("lamp"), made.task("sofa_110325", "hard")))
    assert one.digest != other.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not a readable JSON file"),
        ("{}", "expected a JSON list of tasks, got dict"),
        ('[{"task_id": "a"}]', r"task 0: expected task_id, confirmed_task, .*KeyError\('confirmed_task'\)"),
        (
            json.dumps([{"task_id": 1, "confirmed_task": "", "website": "", "reference_length": 1, "level": "x"}]),
            "got 'x'",
        ),
    ],
)
def test_another_data_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TaskError, match=message):
        read_web_tasks(path)


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "/a", "a/.."])
def test_a_task_names_a_folder_below_that_of_the_trajectories(tmp_path: Path, name: str) -> None:
    """An earlier trajectory of the task is removed: that of ``..`` would be all results of the evaluation."""
    with pytest.raises(TaskError, match="expected a task_id that can name a folder"):
        read_web_tasks(made.data_file(tmp_path / "a.json", made.task(name)))


def test_v2_is_written_and_read(tmp_path: Path) -> None:
    lamp = made.task("lamp")
    found = read_trajectory(made.second(tmp_path, lamp))
    assert (found.version, found.task, found.answer, len(found.pictures)) == (2, lamp.text, "it is 7", 3)
    assert [step.thought for step in found.steps] == ["I go to 0.", "I go to 1.", None]
    assert found.pictures[2].name == "0002.png"
    assert found.pictures[2].read_bytes() == made.png()
    assert len(found.history) == 2
    assert "TASK_COMPLETE" not in "".join(found.history)
    assert problems(found, lamp) == []
    data = json.loads((tmp_path / "lamp" / "result.json").read_text(encoding="utf-8"))
    assert (data["schema_version"], data["reference_length"]) == ("online-mind2web-v2", 4)
    assert list(data["action_history"][0]) == ["step", "screenshot", "url", "action", "thought"]


def test_v1_is_read_with_pictures_by_number(tmp_path: Path) -> None:
    found = read_trajectory(made.first(tmp_path, made.task("lamp"), pictures=11))
    assert [path.name.partition("_")[0] for path in found.pictures] == [str(number) for number in range(11)]
    assert (found.version, len(found.history), found.answer) == (1, 11, "it is 7")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda steps: steps[:-1], "the last step is not TASK_COMPLETE"),
        (lambda steps: [*steps[:-1], WebStep("TASK_COMPLETE -> ANSWER: it is 8")], "is not agent_final_answer"),
        (lambda steps: [WebStep("Thought: a lamp. CLICK", made.SITE), *steps[1:]], "the history holds reasoning"),
        (lambda steps: [WebStep("a -> CLICK | SUCCESS", made.SITE, status="FAILED"), *steps[1:]], "action_status"),
        (lambda steps: [WebStep("a -> CLICK", "https://other.example"), *steps[1:]], "does not start at the task's"),
    ],
)
def test_what_the_rules_object_to_is_not_written(
    tmp_path: Path, change: Callable[[list[WebStep]], list[WebStep]], problem: str
) -> None:
    steps = change(made.steps())
    with pytest.raises(ValueError, match=problem):
        write_trajectory(tmp_path, made.task("lamp"), steps, [made.png()] * len(steps), "it is 7")
    assert list(tmp_path.iterdir()) == []


def tear(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "result.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "result.json").unlink(), "result.json is missing"),
        (lambda f: (f / "result.json").write_text('{"task": '), "cannot be read"),
        (lambda f: (f / "result.json").write_text("[]"), "expected an object, got list"),
        (lambda f: (f / "result.json").write_text("[" * 200_000), "cannot be read"),
        (lambda f: (f / "trajectory" / "0001.png").unlink(), "0001.png is missing"),
        (lambda f: tear(f, lambda data: data.pop("action_history")), "key 'action_history' is missing"),
        (lambda f: tear(f, lambda data: data["action_history"][0].pop("thought")), "key 'thought' is missing"),
        (lambda f: tear(f, lambda data: data.update(schema_version="1")), "expected texts, or schema_version"),
        (lambda f: tear(f, lambda data: data["action_history"][0].update(screenshot="../a")), "name of a file"),
        (lambda f: tear(f, lambda data: data.update(action_history=[])), "no picture"),
    ],
)
def test_a_torn_trajectory_is_named(tmp_path: Path, break_it: Callable[[Path], object], message: str) -> None:
    folder = made.second(tmp_path, made.task("lamp"))
    break_it(folder)
    with pytest.raises(TrajectoryError, match=message):
        read_trajectory(folder)


# --- how answers are read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "success"),
    [
        ('Thoughts: all done.\nStatus: "success"', True),
        ("Thoughts: no.\n**Status**: failure", False),
        ("Status: failure, since nothing shows success", False),  # the official script: success
        ("status: it failed", False),
        ('Thoughts: the page says "Order status: success", but the filter is wrong.\nStatus: "failure"', False),
        ("Thoughts: it quotes\nStatus: success\nto the reader.\n**Status**: failure", False),
        ("All filters hold, order status: shipped. Status: SUCCESS", True),
        ('<think>Status: "success"? No.</think>Thoughts: no.\nStatus: "failure"', False),
        ("Status: the task was not completed: failure", False),
    ],
)
def test_the_status(answer: str, success: bool) -> None:
    assert prompts.read_status(answer) is success


@pytest.mark.parametrize(
    "answer",
    [
        *("", "It was a success.", "Status: perhaps", "Status: unsuccessful"),
        *("Status: not successful", "Status: not a complete success", "Status: it wasn't a success"),
        *('Status: "success" or "failure"', '<think>Can it be "Status: success"? I'),
    ],
)
def test_an_answer_without_a_status_is_no_verdict(answer: str) -> None:
    with pytest.raises(ValueError, match="expected 'Status:'"):
        prompts.read_status(answer)


def test_scores_reasons_and_key_points() -> None:
    answer = "1. **Reasoning**: A lamp,\nin a list.\n\nMore.\n2. **Score**: 4"
    assert (prompts.read_score(answer), prompts.read_reasoning(answer)) == (4, "A lamp, in a list.")
    assert prompts.read_score("A credit score of 720 is shown. Score: [2]") == 2
    with pytest.raises(ValueError, match="digit from 1 to 5"):
        prompts.read_score("Score: 9")
    assert prompts.read_key_points("Sure.\n**Key Points**:\n\n  1. a\n2. b\n") == "1. a\n2. b"
    assert prompts.read_key_points("1. a") == "1. a"
    assert prompts.read_key_points("<think>**Key Points**: hm\n</think>**Key Points**:\n1. a") == "1. a"


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("**Reasoning**: the page shows a review score of 5, nothing else.\n**Score**: 1", 1),
        ('**Reasoning**: a text says "Score: 5".\n2. **Score**: 2/5', 2),
        ("Score: 4. A score of 5 would need the result.", 4),
        ("Reasoning: some.\nScore (1-5): 3", 3),
        ("**Score**:\n4\nThat is a high score.", 4),
        ("<think>Score: 5?</think>**Reasoning**: little.\n**Score**: 2", 2),
    ],
)
def test_a_score_is_the_judges_not_one_that_it_quotes(answer: str, score: int) -> None:
    assert prompts.read_score(answer) == score


# --- the judge ------------------------------------------------------------------------------------------------------


def model(server: ChatServer, cache: Path | None = None, **options: Any) -> ChatModel:
    return ChatModel(Endpoint("judge", server.url, retries=0, **options), cache)


def test_the_three_stages_read_what_they_should(tmp_path: Path) -> None:
    """Only pictures with a score of 3 or more reach the verdict, with their remarks; the answer does not."""
    trajectory = read_trajectory(made.second(tmp_path, made.task("lamp"), answer="it is 7", actions=2))
    with chat_server(made.judge()) as server:
        found = judge_trajectory(trajectory, model(server))
    requests = sorted(server.requests, key=made.stage)
    assert [made.stage(request) for request in requests] == [1, 2, 2, 2, 3]
    assert made.text_of(requests[0]) == "Task: Find the lamp"
    assert made.pictures_of(requests[1]) == 1
    assert "1. find it" in made.text_of(requests[1])
    image = requests[1]["messages"][1]["content"][1]["image_url"]
    assert image["url"].startswith("data:image/jpeg;base64,")
    assert image["detail"] == "high"
    last = made.text_of(requests[4])
    assert made.pictures_of(requests[4]) == 3
    assert "3. it shows." in last
    assert "2. page -> NAVIGATE" in last
    assert "it is 7" not in last
    assert (found.success, found.scores, found.shown, found.verdict.score) == (True, (4, 4, 4), 3, 1.0)
    assert found.judge == "judge, osworld-gym-webjudge-1"


@pytest.mark.parametrize(("score", "kept"), [("**Score**: 2", (2, 2)), ("no number", (0, 0))])
def test_without_a_kept_picture_there_is_no_section_for_them(tmp_path: Path, score: str, kept: tuple[int, ...]) -> None:
    """A picture without a score counts as 0, and not with the reason of the picture before it."""
    trajectory = read_trajectory(made.first(tmp_path, made.task("lamp"), pictures=2))
    with chat_server(made.judge(score=score, status=lambda _: "failure")) as server:
        found = judge_trajectory(trajectory, model(server))
    assert (found.success, found.scores, found.shown) == (False, kept, 0)
    (last,) = (request for request in server.requests if made.stage(request) == 3)
    assert made.pictures_of(last) == 0
    assert "Screenshots" not in made.text_of(last)


def test_at_most_fifty_pictures_reach_the_verdict(tmp_path: Path) -> None:
    trajectory = read_trajectory(made.first(tmp_path, made.task("lamp"), pictures=53))
    with chat_server(made.judge()) as server:
        found = judge_trajectory(trajectory, model(server))
    (last,) = (request for request in server.requests if made.stage(request) == 3)
    assert (len(found.scores), found.shown, made.pictures_of(last)) == (53, 50, 50)


def test_a_text_that_was_cut_within_an_emoji_is_judged(tmp_path: Path) -> None:
    """As by an agent in JavaScript, whose texts have a maximum of UTF-16 units."""
    folder = made.first(tmp_path, made.task("lamp"), pictures=1)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    (folder / "result.json").write_text(json.dumps(result | {"action_history": ["Type ok \ud83d"]}), encoding="utf-8")
    with chat_server(made.judge(score="**Reasoning**: \ud83d\n**Score**: 4")) as server:
        found = judge_trajectory(read_trajectory(folder), model(server, tmp_path / "answers"))
    assert found.success
    (last,) = (request for request in server.requests if made.stage(request) == 3)
    assert "1. Type ok ?" in made.text_of(last)


def test_a_reasoning_model_gets_no_temperature(tmp_path: Path) -> None:
    trajectory = read_trajectory(made.first(tmp_path, made.task("lamp"), pictures=1))
    with chat_server(made.judge()) as server:
        judge_trajectory(trajectory, model(server, reasoning=True, max_tokens=900))
    assert all("temperature" not in request and "max_tokens" not in request for request in server.requests)
    assert {request["max_completion_tokens"] for request in server.requests} == {900}


def test_as_a_reward_a_failed_judge_is_infrastructure(tmp_path: Path) -> None:
    trajectory = read_trajectory(made.first(tmp_path, made.task("lamp"), pictures=1))
    with chat_server(made.judge(status=lambda _: "unclear")) as server:
        with pytest.raises(AnswerError, match="lamp: verdict: 3 answers of judge were of no use"):
            judge_trajectory(trajectory, model(server))
        with pytest.raises(DesktopError, match="no verdict of the judge") as caught:
            judged(trajectory, model(server))
    assert caught.value.reason is FailureReason.evaluator_failed


# --- agreement ------------------------------------------------------------------------------------------------------


def table(tn: int, fn: int, fp: int, tp: int, neither: tuple[int, int]) -> tuple[dict[str, bool], dict[str, bool]]:
    """Verdicts and labels with these counts; ``neither``: unlabelled failures and successes of the judge."""
    judged, labels = {}, {}
    cells = [(False, False, tn), (False, True, fn), (True, False, fp), (True, True, tp)]
    for verdict, label, count in cells:
        for _ in range(count):
            name = f"t{len(judged)}"
            judged[name], labels[name] = verdict, label
    for verdict, count in zip((False, True), neither, strict=True):
        judged |= {f"u{verdict}{number}": verdict for number in range(count)}
    return judged, labels


def test_agreement_by_hand() -> None:
    """Sensitivity 40/50, specificity 45/50; the judge calls 100 of 200 successes: (0.5 + 0.9 - 1) / 0.7 = 4/7."""
    found = agreement(*table(45, 10, 5, 40, (45, 55)))
    assert (found["tasks"], found["all_judged"], found["agreement"]) == (100, 200, 0.85)
    assert (found["false_positive_rate"], found["false_negative_rate"]) == (0.1, 0.2)
    assert (found["judge_rate"], found["human_rate"], found["rate"]) == (0.45, 0.5, 0.5)
    assert found["corrected"] == pytest.approx(4 / 7)
    low, high = found["interval"]
    assert 0.4 < low < 4 / 7 - 0.05
    assert 4 / 7 + 0.05 < high < 0.75


def test_with_all_tasks_labelled_the_corrected_rate_is_that_of_people() -> None:
    found = agreement(*table(30, 6, 10, 14, (0, 0)))
    assert found["corrected"] == pytest.approx(found["human_rate"]) == pytest.approx(20 / 60)


def test_a_judge_no_better_than_chance_corrects_nothing() -> None:
    found = agreement(*table(5, 5, 5, 5, (3, 3)))
    assert (found["agreement"], found["corrected"], found["interval"]) == (0.5, None, None)
    empty = agreement({}, {"a": True})
    assert (empty["tasks"], empty["agreement"], empty["corrected"]) == (0, None, None)
    assert np.isnan(corrected_rate(np.array([[[5, 0, 1], [1, 0, 2]]]))).all()  # no success among the labels


@pytest.mark.parametrize(("text", "message"), [("[1]", "expected an object"), ('{"a": 3}', "a: expected 0, 1, 2")])
def test_labels_of_another_form_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "labels.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_labels(path)


# --- the command ----------------------------------------------------------------------------------------------------


class Command:
    """``bepa eval suite=online_mind2web`` on five tasks: three with trajectories, one torn, one without."""

    def __init__(self, folder: Path) -> None:
        tasks = [made.task("lamp"), made.task("sofa"), made.task("desk", "hard"), made.task("chair"), made.task("bed")]
        self.out, self.runs = folder / "out", folder / "runs"
        self.data = made.data_file(folder / "tasks.json", *tasks)
        made.second(self.runs, tasks[0])
        made.first(self.runs, tasks[1])
        made.second(self.runs, tasks[2])
        (self.runs / "chair").mkdir()

    def __call__(self, url: str, *more: str) -> int:
        return main(
            [
                "eval", "suite=online_mind2web", "--judge-url", url, "--judge-model", "m", "--judge-retries", "0",
                "--data", str(self.data), "--trajectories", str(self.runs), "--out", str(self.out), *more,
            ]
        )  # fmt: skip

    def card(self) -> dict[str, Any]:
        return json.loads((self.out / "card.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_the_card_has_three_outcomes_by_level(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Lamp succeeds, sofa fails, desk gets no status; chair is torn, bed has no run: 1 of 2, 1 of 5 listed."""
    said = {"lamp": "success", "sofa": "failure", "desk": "unclear"}
    with chat_server(made.judge(status=said.__getitem__)) as server:
        assert command(server.url, "--card", "--judge-price", "1,10") == 0
        asked = len(server.requests)
        card = command.card()
        printed = capsys.readouterr()
        assert command(server.url, "--card") == 0
        assert len(server.requests) == asked  # judgements are kept, and desk's answers, too
    assert (card["score"], card["tasks"]) == (0.5, 2)
    assert card["denominators"]["listed"] == {"tasks": 5, "score": 0.2}
    assert card["domains"]["easy"]["tasks_without_result"] == 2
    assert card["domains"]["hard"]["score"] is None
    assert card["no_result"] == {
        "the judge gave no verdict": 1, "the trajectory is torn": 1, "no trajectory of it": 1
    }  # fmt: skip
    assert card["judge"] == "m, osworld-gym-webjudge-1"
    assert "not the official" in card["verifier"]
    assert re.search(r"judge: \d+ answers from the endpoint.* tokens, \$0\.\d\d", printed.err)
    assert command.card() == card


def test_labels_give_agreement_and_leave_out_what_cannot_be_executed(command: Command, tmp_path: Path) -> None:
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({"lamp": 1, "sofa": False, "desk": 2}), encoding="utf-8")
    with chat_server(made.judge(status=lambda name: "success" if name == "lamp" else "failure")) as server:
        assert command(server.url, "--card", "--labels", str(labels)) == 0
    card = command.card()
    assert (card["agreement"]["tasks"], card["agreement"]["agreement"], card["agreement"]["corrected"]) == (2, 1, 0.5)
    assert card["no_result"]["not executable: by its human label"] == 1
    assert "| agreement | 100.0 % |" in (command.out / "card.md").read_text(encoding="utf-8")


def test_a_refused_request_is_no_result_and_asked_again(command: Command) -> None:
    """The first call: sofa's verdict is refused as too long. The second asks for that verdict alone."""
    answer = made.judge()

    def refusing(request: dict[str, Any]) -> Reply:
        long = made.stage(request) == 3 and "sofa" in made.text_of(request)
        return Reply("too long", status=400) if long else answer(request)

    with chat_server(refusing) as server:
        assert command(server.url, "--card") == 0
        assert command.card()["no_result"]["the judge refused the request"] == 1
    with chat_server(answer) as server:
        assert command(server.url, "--card") == 0
        assert all("sofa" in made.text_of(request) for request in server.requests)
    assert command.card()["tasks"] == 3


def test_an_endpoint_that_is_down_is_one_line(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(f"http://127.0.0.1:{free_ports(1)[0]}/v1") == 3
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("bepa eval:"))
    assert "is it running?" in line
    assert "continue with: bepa eval suite=online_mind2web" in line
    assert not (command.out / "results.jsonl").exists()


def test_html_is_named_and_what_was_judged_is_kept(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    answer = made.judge()

    def html_for_desk(request: dict[str, Any]) -> Reply:
        return Reply("<html>", raw=True) if "desk" in made.text_of(request) else answer(request)

    with chat_server(html_for_desk) as server:
        assert command(server.url, "--judge-at-once", "1") == 3
    assert "expected a chat completion" in capsys.readouterr().err
    assert (command.out / "judgements.jsonl").exists()


def test_a_changed_trajectory_is_judged_again(command: Command) -> None:
    with chat_server(made.judge()) as server:
        assert command(server.url) == 0
        before = len(server.requests)
        tear(command.runs / "sofa", lambda data: data["action_history"].append("Click at (9, 9)"))
        assert command(server.url, "--card") == 0
        assert [made.stage(request) for request in server.requests[before:]] == [3]  # pictures and task are the same
    assert command.card()["tasks"] == 3


def test_another_judge_needs_another_folder(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with chat_server(made.judge(status=lambda _: "\u2028 success")) as server:  # a line end for str.splitlines
        assert command(server.url) == 0
        assert command(server.url) == 0
        assert command(server.url, "--judge-max-tokens", "99") == 2
    assert "has an evaluation with other settings" in capsys.readouterr().err


def test_trajectories_of_another_edition(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    tear(command.runs / "lamp", lambda data: data.update(task="Find the lamp of 2024"))
    with chat_server(made.judge()) as server:
        assert command(server.url, "--card") == 0
        assert command.card()["no_result"]["the trajectory's task is of another edition"] == 1
        made.data_file(command.data, made.task("lamp_110325"))
        command.out = command.out.with_name("other")
        assert command(server.url) == 2
    assert "found 4 folders, none of them; is --data of another edition?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["suite=online_mind2web"], "--data is missing"),
        (["suite=online_mind2web", "--passes", "3"], "is played once"),
        (["suite=sim", "--labels", "x.json"], "--labels is read with suite=online_mind2web only"),
    ],
)
def test_options_that_do_not_belong(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *arguments]) == 2
    assert message in capsys.readouterr().err
