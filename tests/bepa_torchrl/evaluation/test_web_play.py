"""Playing Online-Mind2Web on desktops without a browser: layout, resume, outcomes, refusals, the judge afterwards."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import web_trajectories as made
from chat_server import ChatServer, Reply, chat_server
from page_desktop import PageDesktop

from bepa_torchrl.cli import main
from bepa_torchrl.endpoint import Endpoint
from bepa_torchrl.evaluation.web.played import KeptForJudging, action_line, web_steps, write_played
from bepa_torchrl.evaluation.web.trajectories import problems, read_trajectory
from bepa_torchrl.evaluation.web.verifier import WebJudge
from bepa_torchrl.storage.json_lines import read_lines
from bepa_torchrl.viewer.pictures import Pictures
from bepa_torchrl.viewer.sources import open_sources
from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.errors import FailureReason, TaskError
from osworld_gym.tasks.evaluation.judging import Played, PlayedStep
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.suites.osworld.requirements import Machine, reasons_against
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.suites.web import WebTask, read_web_tasks, site_url
from osworld_gym.types import Action, Screenshot, StopReason

PAGES = ("env.provider=pages", "env.options.proxy=127.0.0.1:1")
TYPE = "Thought: I search.\nAction: type(content='{}\\n')"
DONE = "Thought: It is there.\nAction: finished(content='it is 7')"


def policy(request: dict[str, Any]) -> Reply:
    """A scripted policy: it searches for what the task names, then answers."""
    text = json.dumps([each for each in request["messages"] if each["role"] != "assistant"])
    name = re.search(r"Find the (\w+)", text)
    assert name is not None
    searched = any(each["role"] == "assistant" for each in request["messages"])
    return Reply(DONE if searched else TYPE.format(name[1]))


class Command:
    """``bepa eval suite=online_mind2web`` on lamp, sofa and desk; ``gone`` has a site that cannot be reached."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        gone = WebTask("gone", "Find the gone", "https://gone.example/", 2, "hard")
        self.tasks = [made.task("lamp"), made.task("sofa"), made.task("desk", "hard"), gone]
        self.data = made.data_file(folder / "tasks.json", *self.tasks)

    def __call__(self, server: ChatServer, *more: str) -> int:
        where = ["--policy-model", "p", "--policy-url", server.url, "--policy-retries", "0"]
        return self.run("policy=uitars15_7b", *PAGES, "env.desktops=2", *where, *more)

    def run(self, *more: str) -> int:
        names = ["--data", str(self.data), "--out", str(self.out)]
        return main(["eval", "suite=online_mind2web", *names, *more])

    def judged(self, server: ChatServer, judge: ChatServer, *more: str) -> int:
        where = ("--judge-model", "j", "--judge-url", judge.url, "--judge-retries", "0")
        return self(server, *where, "--card", *more)

    def results(self) -> dict[str, tuple[str, str]]:
        lines = read_lines(self.out / "results.jsonl")
        return {line["task"]: (line["result"], line["reason"]) for line in lines}

    def rewards(self) -> dict[str, tuple[float | None, str | None]]:
        lines = read_lines(self.out / "episodes.jsonl")
        return {line["task_id"]: (line["reward"], line.get("judge")) for line in lines}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_what_is_played_is_kept_and_judged_later(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a judge nothing has a result; with one, the policy is asked no more, and a lost site is tried again."""
    waits = ("no_result", "not judged")
    with chat_server(policy) as server:
        assert command(server, "--card") == 3
        assert "No task has a result." in capsys.readouterr().out
        lost = ("no_result", "infrastructure: setup_failed")
        assert command.results() == {"lamp": waits, "sofa": waits, "desk": waits, "gone": lost}
        assert command.rewards() == dict.fromkeys(("lamp", "sofa", "desk", "gone"), (None, None))
        trajectory = read_trajectory(command.out / "trajectories" / "lamp")
        assert problems(trajectory, command.tasks[0]) == []
        asked = len(server.requests)
        said = {"lamp": "success", "sofa": "failure", "desk": "unclear"}
        with chat_server(made.judge(status=said.__getitem__)) as judge:
            assert command.judged(server, judge) == 0
            judgements = len(judge.requests)
            assert command.judged(server, judge) == 0
            assert command(server, "--card") == 0  # nobody is asked, and what was judged is used
            assert len(judge.requests) == judgements
        assert len(server.requests) == asked
    assert command.results() == {
        "lamp": ("success", ""),
        "sofa": ("failure", ""),
        "desk": waits,  # the last command had no judge, and this one gave no verdict
        "gone": lost,
    }
    name = "j, osworld-gym-webjudge-1"
    assert command.rewards()["lamp"] == (1.0, name)
    assert command.rewards()["sofa"] == (0.0, name)
    assert command.rewards()["desk"] == (None, None)
    card = json.loads((command.out / "card.json").read_text())
    assert (card["score"], card["tasks"], card["judge"]) == (0.5, 2, name)
    assert card["denominators"]["listed"]["score"] == 0.25
    assert (card["policy"], card["digest"]) == ("p", read_web_tasks(command.data).digest)
    (source,) = open_sources([str(command.out)], Pictures(command.out / "pages"))
    shown = [episode for stream in source.find() for _, episode in stream.read(0) if episode is not None]
    assert {episode.task: (episode.outcome, episode.judge) for episode in shown}["lamp"] == ("success", name)


def test_the_layout_of_version_2(command: Command) -> None:
    with chat_server(policy) as server:
        command(server)
    folder = command.out / "trajectories" / "lamp"
    data = json.loads((folder / "result.json").read_text())
    assert (data["schema_version"], data["task"], data["agent_final_answer"]) == (
        "online-mind2web-v2",
        "Find the lamp",
        "it is 7",
    )
    steps = data["action_history"]
    assert [step["action"] for step in steps] == [
        f"page -> NAVIGATE -> {made.SITE} | SUCCESS",
        'page -> TYPE -> "lamp\\n" | SUCCESS',
        "TASK_COMPLETE -> ANSWER: it is 7",
    ]
    assert [step["url"] for step in steps] == [made.SITE, f"{made.SITE}?q=lamp", f"{made.SITE}?q=lamp"]
    assert [step["thought"] for step in steps] == [None, "I search.", "It is there."]
    assert [step["screenshot"] for step in steps] == ["0000.png", "0001.png", "0002.png"]
    pictures = [(folder / "trajectory" / step["screenshot"]).read_bytes() for step in steps]
    assert pictures[0] != pictures[1] == pictures[2]


def test_it_goes_on_where_it_ended(command: Command) -> None:
    """The policy's endpoint goes down after the first task; a trajectory that is torn since is played again."""
    down = True

    def script(request: dict[str, Any]) -> Reply:
        return Reply("gone", status=503) if down and len(server.requests) > 2 else policy(request)

    with chat_server(script) as server:
        assert command(server, "env.desktops=1") == 3
        assert [line["task_id"] for line in read_lines(command.out / "episodes.jsonl")] == ["lamp"]
        down = False
        assert command(server, "env.desktops=1") == 3
        assert len(server.requests) == 2 + 1 + 2 * 2
        (command.out / "trajectories" / "sofa" / "trajectory" / "0001.png").unlink()
        assert command(server, "env.desktops=1") == 3
        assert len(server.requests) == 2 + 1 + 2 * 2 + 2
    assert {name for name, found in command.results().items() if found[1] == "not judged"} == {"lamp", "sofa", "desk"}
    read_trajectory(command.out / "trajectories" / "sofa")


@pytest.mark.parametrize(
    ("reply", "says"),
    [(Reply("<html>", raw=True), "expected a chat completion"), (Reply("gone", status=503), "status 503")],
)
def test_a_judge_that_is_down_is_one_line_and_what_was_played_is_kept(
    command: Command, reply: Reply, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server(policy) as server:
        with chat_server(lambda _: reply) as judge:
            assert command.judged(server, judge) == 3
        (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("bepa eval:"))
        assert says in line
        assert "continue with: bepa eval suite=online_mind2web" in line
        asked = len(server.requests)
        with chat_server(made.judge()) as judge:
            assert command.judged(server, judge) == 0
        assert len(server.requests) == asked


def test_another_judge_is_refused(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with chat_server(policy) as server, chat_server(made.judge()) as judge:
        assert command.judged(server, judge) == 0
        assert command(server, "--judge-model", "k", "--judge-url", judge.url) == 2
    assert "has judgements of j, osworld-gym-webjudge-1, got k," in capsys.readouterr().err


def test_labels_of_people(command: Command, tmp_path: Path) -> None:
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({"lamp": 1, "sofa": 2, "desk": 0}))
    with chat_server(policy) as server, chat_server(made.judge()) as judge:
        assert command.judged(server, judge, "--labels", str(labels)) == 0
    assert command.results()["sofa"] == ("no_result", "not executable: by its human label")
    card = json.loads((command.out / "card.json").read_text())
    assert (card["agreement"]["tasks"], card["agreement"]["agreement"]) == (2, 0.5)


@pytest.mark.slow
def test_a_checkpoint_plays_too(command: Command) -> None:
    made.data_file(command.data, command.tasks[0])
    assert command.run("policy=tiny", *PAGES, "env.max_steps=2") == 3
    assert command.results() == {"lamp": ("no_result", "not judged")}
    steps = read_trajectory(command.out / "trajectories" / "lamp").steps
    assert steps[-1].action.startswith("TASK_COMPLETE -> ANSWER:")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env.desktops=1"], "desktops of env.provider=local have no network unless you allow it"),
        (["env.provider=container"], "desktops of env.provider=container have no network"),
        ([*PAGES, "env.suite=sim"], "env.suite=sim: suite=online_mind2web takes --data FILE instead"),
        ([*PAGES, "judge.model=m"], "judge.model=m: suite=online_mind2web takes --judge-model"),
        ([*PAGES, "--passes", "3"], "is played once"),
        ([*PAGES, "--oracle"], "are for tasks that are played with a verifier"),
        ([*PAGES, "--judge-url", "http://127.0.0.1:1/v1"], "--judge-url is read with --judge-model NAME only"),
        (["--trajectories", "x", "--policy-model", "m"], "--trajectories plays no policy"),
        (["--trajectories", "x"], "--trajectories requires a judge"),
    ],
)
def test_refusals(command: Command, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not command.out.exists()


def test_tasks_of_a_judge_need_the_suite(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "env=web", f"env.suite={command.data}", *PAGES, "--out", str(tmp_path / "x")]) == 2
    assert "play them with suite=online_mind2web --data FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"website": "file:///etc/passwd"}, "expected a URL such as"),
        ({"website": "http://[::1/"}, "expected a URL such as"),
        ({"task_id": "../up"}, "task_id that can name a folder"),
    ],
)
def test_a_task_that_leads_elsewhere_is_refused(tmp_path: Path, change: dict[str, str], message: str) -> None:
    path = made.data_file(tmp_path / "tasks.json", made.task("lamp"))
    path.write_text(json.dumps([json.loads(path.read_text())[0] | change]))
    with pytest.raises(TaskError, match=message):
        load_suite(path)


def test_a_website_without_a_scheme() -> None:
    assert site_url("www.shop.example/a") == "https://www.shop.example/a"


# --- an episode as a trajectory -------------------------------------------------------------------------------------


def frame(shade: int = 0) -> Screenshot:
    return Screenshot(pixels=np.full((4, 4, 3), shade, np.uint8))


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (Action("click", start=(3.4, 4)), "page -> CLICK coords(3, 4)"),
        (Action("drag", start=(1, 2), end=(3, 4)), "page -> DRAG coords(1, 2) coords(3, 4)"),
        (Action("hotkey", key="ctrl l"), "page -> PRESS -> ctrl l"),
        (Action("scroll", start=(1, 2), direction="down"), "page -> SCROLL coords(1, 2) -> down"),
        (Action("type", content='a "b"\n'), 'page -> TYPE -> "a \\"b\\"\\n"'),
        (Action("type", content="\ud800"), 'page -> TYPE -> "?"'),
        (Action("wait"), "page -> WAIT"),
    ],
)
def test_lines_of_the_history(action: Action, line: str) -> None:
    assert action_line(action) == line


def played(task: WebTask, tmp_path: Path, *steps: PlayedStep) -> Played:
    suite = load_suite(made.data_file(tmp_path / f"{task.id}.json", task))
    return Played(suite.tasks[0], frame(), made.SITE, steps, StopReason.finished, "uitars")


def test_what_a_policy_says_is_data(tmp_path: Path) -> None:
    """A response that cannot be read, one that acts and finishes, and a text that looks like reasoning."""
    actions = (Action("type", content="Thought: x\ud800"), Action("finished", content="7\ud800"))
    steps = (
        PlayedStep("no", (), "no_action", frame(1), "u1"),
        PlayedStep(DONE, actions, None, frame(2), "u2"),
    )
    episode = played(made.task("lamp"), tmp_path, *steps)
    found = [step.action for step, _ in web_steps(episode, made.SITE)]
    assert found[1:] == [
        "page -> UNREADABLE -> no_action | FAILED",
        'page -> TYPE -> "Thought: x?" | SUCCESS',
        "TASK_COMPLETE -> ANSWER: 7?",
    ]
    trajectory = read_trajectory(write_played(tmp_path / "runs", episode))
    assert problems(trajectory, made.task("lamp")) == ["the history holds reasoning"]
    assert trajectory.history == found[:-1]


def test_an_episode_without_an_answer(tmp_path: Path) -> None:
    """The step budget ended it: the last step is the answer, which is empty, with the last picture."""
    episode = played(made.task("lamp"), tmp_path, PlayedStep("x", (Action("wait"),), None, frame(1), "u1"))
    trajectory = read_trajectory(write_played(tmp_path / "runs", episode))
    assert (len(trajectory.steps), trajectory.answer, problems(trajectory, made.task("lamp"))) == (3, "", [])
    assert trajectory.pictures[1].read_bytes() == trajectory.pictures[2].read_bytes()


# --- the judge as a verifier ----------------------------------------------------------------------------------------


def run(tmp_path: Path, judge: Any, responses: tuple[str, ...] = (TYPE.format("lamp"), DONE)) -> Any:
    """The last result of an episode."""
    task = load_suite(made.data_file(tmp_path / "tasks.json", made.task("lamp"))).tasks[0]
    desktop = PageDesktop()
    try:
        episode = Episode(desktop, EpisodeOptions(judge=judge))
        result = episode.begin(task, 0)
        assert desktop.launched[0][0] == "google-chrome"
        for response in responses:
            assert result.stop is None, result
            result = episode.act(response)
    finally:
        desktop.close()
    return result


@pytest.mark.parametrize(("status", "reward"), [("success", 1.0), ("failure", 0.0)])
def test_the_reward_is_the_judges_and_names_it(tmp_path: Path, status: str, reward: float) -> None:
    with chat_server(made.judge(status=lambda _: status)) as server:
        judge = pickle.loads(pickle.dumps(WebJudge(Endpoint("j", server.url, retries=0))))
        result = run(tmp_path, judge)
        (verdict,) = (request for request in server.requests if made.stage(request) == 3)
    assert (result.stop, result.reward) == (StopReason.finished, reward)
    assert result.verdict.judge == "j, osworld-gym-webjudge-1"
    assert '2. page -> TYPE -> "lamp\\n" | SUCCESS' in made.text_of(verdict)
    assert made.pictures_of(verdict) == 3


@pytest.mark.parametrize(
    "script",
    [made.judge(status=lambda _: "unclear"), lambda _: Reply("<html>", raw=True), lambda _: Reply("no", status=500)],
)
def test_a_judge_that_fails_is_infrastructure_and_no_reward(
    tmp_path: Path, script: Callable[[dict[str, Any]], Reply]
) -> None:
    with chat_server(script) as server:
        result = run(tmp_path, WebJudge(Endpoint("j", server.url, retries=0)))
    assert (result.stop, result.verdict, result.failure) == (
        StopReason.env_error,
        None,
        FailureReason.evaluator_failed,
    )
    assert "no verdict of the judge" in result.info["failure"]


def test_an_episode_that_is_judged_later_has_no_verdict(tmp_path: Path) -> None:
    result = run(tmp_path, KeptForJudging(tmp_path / "runs"))
    assert (result.stop, result.verdict) == (StopReason.finished, None)
    assert read_trajectory(tmp_path / "runs" / "lamp").answer == "it is 7"


def test_what_its_tasks_require(tmp_path: Path) -> None:
    """They need the web, and no evaluator."""
    task = load_suite(made.data_file(tmp_path / "tasks.json", made.task("lamp"))).tasks[0]
    assert "it needs the live web" in reasons_against(task, "local", Machine(network=False))
    assert not [reason for reason in reasons_against(task, "local", Machine(network=True)) if "evaluator" in reason]
    with pytest.raises(TaskError, match="a judge scores what was done"):
        verify(task, PageDesktop(), stop=StopReason.finished)


def test_a_judged_task_needs_a_judge(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="scored by a judge, and there is none"):
        run(tmp_path, None)
