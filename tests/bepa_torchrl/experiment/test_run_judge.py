"""``bepa train`` on web sites, whose rewards are a judge's: marked as such, and none where it fails."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import page_desktop  # noqa: F401  registers the provider "pages"
import pytest
import web_trajectories as made
from chat_server import ChatServer, chat_server
from repository import ROOT

from bepa_torchrl.cli import main
from bepa_torchrl.experiment.checks.tasks import task_checks
from bepa_torchrl.experiment.config import ConfigError, check, load_config
from bepa_torchrl.experiment.preflight import judge as judge_check
from bepa_torchrl.experiment.preflight import suite as suite_check
from bepa_torchrl.experiment.tasks import make_tasks
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.storage.json_lines import read_lines
from bepa_torchrl.testing import small_checkpoint

PAGES = ("env=web", "env.provider=pages", "env.options.proxy=127.0.0.1:1", "algo=grpo", "compare=[]")


def settings(folder: Path, *more: str) -> list[str]:
    data = made.data_file(folder / "tasks.json", made.task("lamp"), made.task("sofa"))
    return [*PAGES, f"env.suite={data}", *more]


def train(folder: Path, server: ChatServer) -> list[dict[str, Any]]:
    """The episodes of a run with one iteration."""
    checkpoint = TransformersPolicy(small_checkpoint(), preset="compact").save(folder / "random")
    quick = (
        *("import=[page_desktop]", f"policy.checkpoint={checkpoint}", f"runs={folder / 'runs'}", "name=x"),
        *("judge.model=j", f"judge.url={server.url}", "judge.retries=0", "policy.max_new_tokens=8"),
        *("env.max_steps=1", "env.desktops=2", "collect.groups=2", "collect.group_size=4", "collect.retries=0"),
        *("train.iterations=1", "train.minibatch_groups=1", "eval.final_episodes=0"),
    )
    assert main(["train", *settings(folder, *quick)]) == 0
    return [dict(line) for line in read_lines(folder / "runs" / "x" / "grpo" / "episodes.jsonl")]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a run find the module of the provider."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "support"))))


@pytest.mark.slow
@pytest.mark.usefixtures("children")
def test_a_judge_rewards_and_is_named(tmp_path: Path) -> None:
    """The judge says success of every other episode, so that there is something to learn."""
    says = itertools.cycle(("success", "failure"))
    with chat_server(made.judge(status=lambda _: next(says))) as server:
        episodes = train(tmp_path, server)
    assert sorted(line["reward"] for line in episodes) == [0.0] * 4 + [1.0] * 4
    assert {line["judge"] for line in episodes} == {"j, osworld-gym-webjudge-1"}
    assert {line["trained"] for line in episodes} == {True}
    results = json.loads((tmp_path / "runs" / "x" / "grpo" / "results.json").read_text())
    assert results["policy_version"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("children")
def test_a_judge_that_fails_rewards_nothing(tmp_path: Path) -> None:
    """It never gives a status for the sofa: those episodes are masked, and the others are trained on."""
    says = {"lamp": itertools.cycle(("success", "failure")), "sofa": itertools.repeat("unclear")}
    with chat_server(made.judge(status=lambda name: next(says[name]))) as server:
        episodes = train(tmp_path, server)
    sofa = [line for line in episodes if line["task_id"] == "sofa"]
    assert len(sofa) == 4
    assert {(line["reward"], line["failure"], line["trained"]) for line in sofa} == {(None, "evaluator_failed", False)}
    assert {line["reward"] for line in episodes if line["task_id"] == "lamp"} == {0.0, 1.0}


def test_its_tasks_need_a_judge(tmp_path: Path) -> None:
    without = load_config(settings(tmp_path))
    tasks = make_tasks(without)
    with pytest.raises(ConfigError, match=r"its tasks are scored by a judge; set judge\.model=NAME"):
        check(without, task_checks(tasks))
    check(load_config(settings(tmp_path, "judge.model=j", "collect.groups=2")), task_checks(tasks))


def test_a_judge_needs_its_tasks() -> None:
    sim = load_config(["judge.model=j"])
    with pytest.raises(ConfigError, match=r"judge.model=j: the tasks of env.suite=sim have verifiers, no judge"):
        check(sim, task_checks(make_tasks(sim)))


def test_a_url_needs_a_model_and_openai_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"judge\.url=http://x/v1 is read with judge\.model=NAME only; set it"):
        load_config(["judge.url=http://x/v1"])
    assert "set OPENAI_API_KEY" in str(judge_check(load_config(["judge.model=j"])))
    assert judge_check(load_config(["judge.model=j", "judge.url=http://x/v1"])) is None


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("env.provider=local",), "desktops of env.provider=local have no network"),
        (("env.provider=sim",), "desktops of env.provider=sim have no network"),
        (("env.provider=local", "env.options.proxy=127.0.0.1:1"), None),
        (("env.provider=vm",), None),
        (("env.suite=missing.json",), "env.suite=missing.json: no such file"),
    ],
)
def test_the_network_is_one_that_the_user_allows(tmp_path: Path, more: tuple[str, ...], problem: str | None) -> None:
    data = made.data_file(tmp_path / "tasks.json", made.task("lamp"))
    found = suite_check(load_config(["env=web", f"env.suite={data}", *more]))
    assert (found is None) == (problem is None)
    assert (problem or "None") in str(found)


def test_the_levels_are_tags(tmp_path: Path) -> None:
    made.data_file(tmp_path / "t.json", made.task("lamp"), made.task("sofa", "hard"))
    chosen = make_tasks(load_config([*PAGES, f"env.suite={tmp_path / 't.json'}", "env.train_split=hard"]))
    assert [task.id for task in chosen.train] == ["sofa"]
