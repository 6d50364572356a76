"""Made-up web sites in real Chromium: played by a script and a checkpoint, judged by a stand-in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bepa_torchrl.cli import main
from bepa_torchrl.endpoint import Endpoint
from bepa_torchrl.evaluation.web.trajectories import problems, read_trajectory
from bepa_torchrl.evaluation.web.verifier import WebJudge
from bepa_torchrl.storage.json_lines import read_lines
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.setup.chrome import page_url
from osworld_gym.tasks.setup.site import open_site
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.suites.web import read_web_tasks
from osworld_gym.types import StopReason
from osworld_gym.uitars.coords import RELATIVE_COORDINATES, ImageScaling
from scripts.web_sites import TASKS, ChatHandler, SitesHandler, command, serving, write_tasks

pytestmark = [pytest.mark.apps, pytest.mark.timeout(600)]
JUDGE = "stand-in, osworld-gym-webjudge-1"


class Sites:
    """The sites, the endpoint of the policy and the judge, and the tasks' file."""

    def __init__(self, folder: Path, port: int, chat: int) -> None:
        self.data, self.port, self.chat = write_tasks(folder), port, chat
        self.proxy = f"127.0.0.1:{port}"


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with serving(SitesHandler) as port, serving(ChatHandler) as chat:
        yield Sites(tmp_path, port, chat)


def test_the_suite_by_a_script(sites: Sites, tmp_path: Path) -> None:
    """Three tasks are done, one is done wrong, and one's site is down: no result. Nothing is played twice."""
    out = tmp_path / "out"
    arguments = [*command(sites.data, sites.port, sites.chat), "--card", "--out", str(out)]
    assert main(arguments) == 0
    results = {line["task"]: (line["result"], line["reason"]) for line in read_lines(out / "results.jsonl")}
    success = ("success", "")
    assert results == {
        "table": success,
        "search": success,
        "list": success,
        "cheapest": ("failure", ""),
        "closed": ("no_result", "infrastructure: setup_failed"),
    }
    steps = read_trajectory(out / "trajectories" / "table").steps
    assert [step.url for step in steps[:4]] == ["http://table.example/"] * 4
    assert {step.url for step in steps[4:]} == {"http://table.example/thanks?name=Weber&guests=4"}
    assert read_trajectory(out / "trajectories" / "list").steps[-1].url == "http://trains.example/bergen"
    for name, task in read_web_tasks(sites.data).tasks.items():
        if name != "closed":
            assert problems(read_trajectory(out / "trajectories" / name), task) == []
    card = json.loads((out / "card.json").read_text())
    assert (card["score"], card["judge"], card["denominators"]["listed"]["score"]) == (0.75, JUDGE, 0.6)
    lines = read_lines(out / "episodes.jsonl")
    assert {line["task_id"]: line["judge"] for line in lines if line["reward"] == 1.0} == dict.fromkeys(
        ("table", "search", "list"), JUDGE
    )
    before = {line["task_id"]: line["outcome"] for line in lines}
    assert main(arguments) == 0
    after = {line["task_id"]: line["outcome"] for line in read_lines(out / "episodes.jsonl")}
    assert {name: after[name] for name in after if name != "closed"} == {
        name: before[name] for name in before if name != "closed"
    }


def played(sites: Sites, name: str) -> Any:
    """The last result of the scripted policy's episode, scored by the judge."""
    task = load_suite(sites.data).task(name)
    judge = WebJudge(Endpoint("stand-in", f"http://127.0.0.1:{sites.chat}/v1", retries=0))
    options = EpisodeOptions(judge=judge, scaling=ImageScaling(relative=RELATIVE_COORDINATES["qwen3_vl"]))
    with LocalDesktop(proxy=sites.proxy) as desktop:
        episode = Episode(desktop, options)
        result = episode.begin(task, 0)
        for response in TASKS[name].responses:
            assert result.stop is None, result
            result = episode.act(response)
    return result


@pytest.mark.parametrize(("name", "reward"), [("table", 1.0), ("cheapest", 0.0)])
def test_the_reward_of_an_episode_is_the_judges(sites: Sites, name: str, reward: float) -> None:
    result = played(sites, name)
    assert (result.stop, result.reward, result.verdict.judge) == (StopReason.finished, reward, JUDGE)


def test_sites_that_are_down_and_a_browser_that_is_closed(sites: Sites) -> None:
    with LocalDesktop(proxy=sites.proxy) as desktop:
        desktop.reset(0)
        assert page_url(desktop) == ""
        for url in ("http://closed.example/", "https://closed.example/"):
            with pytest.raises(DesktopError, match="cannot be reached through the desktop's network") as caught:
                open_site(desktop, {"url": url})
            assert caught.value.reason is FailureReason.setup_failed


def test_a_checkpoint_plays(sites: Sites, tmp_path: Path) -> None:
    """The policy of real desktops, which knows no browser: it plays, and is judged."""
    tasks = json.loads(sites.data.read_text())
    sites.data.write_text(json.dumps([task for task in tasks if task["task_id"] == "search"]))
    arguments = [*command(sites.data, sites.port, sites.chat), "--out", str(tmp_path / "out"), "--steps", "2"]
    without = [each for each in arguments if each != "policy=uitars15_7b"]
    at = without.index("--policy-model")
    assert main([*without[:at], *without[at + 6 :], "policy=local"]) == 0
    (line,) = read_lines(tmp_path / "out" / "results.jsonl")
    assert (line["result"], line["steps"]) == ("failure", 2)
