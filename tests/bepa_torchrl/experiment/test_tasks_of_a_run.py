"""The tasks of a run: splits, tags, list files, tasks that cannot run here; and the source of its expert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bepa_torchrl.experiment.checks.tasks import task_checks, tasks_of_provider
from bepa_torchrl.experiment.config import ConfigError, check, load_config, with_changes
from bepa_torchrl.experiment.tasks import list_facts, make_tasks, not_executable
from osworld_gym.errors import TaskError

ACCOUNT = {"type": "googledrive", "parameters": {"settings_file": "x", "operation": ["delete"], "args": [{}]}}


def write_task(folder: Path, name: str, *config: dict[str, Any]) -> None:
    task = {"id": name, "instruction": f"Do {name}.", "config": config, "evaluator": {"func": "infeasible"}}
    (folder / "examples" / "os").mkdir(parents=True, exist_ok=True)
    (folder / "examples" / "os" / f"{name}.json").write_text(json.dumps(task))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """An OSWorld checkout of four tasks; one requires a Google account."""
    for name in ("a", "b", "c"):
        write_task(tmp_path, name)
    write_task(tmp_path, "drive", ACCOUNT)
    (tmp_path / "test_small.json").write_text(json.dumps({"os": ["c", "drive"]}))
    (tmp_path / "mine.json").write_text(json.dumps({"os": ["b", "a"]}))
    return tmp_path


def chosen(checkout: Path, *overrides: str) -> tuple[list[str], list[str]]:
    tasks = make_tasks(load_config(["env=osworld", f"env.suite={checkout}", *overrides]))
    return [task.id for task in tasks.train], [task.id for task in tasks.held_out]


def test_what_cannot_run_here_is_left_out_with_a_warning(checkout: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert chosen(checkout) == (["a", "b", "c"], [])
    assert "1 of 4 tasks of test cannot run here and are left out: 1 × googledrive" in caplog.text
    assert chosen(checkout, "env.runnable=false") == (["a", "b", "c", "drive"], [])


def test_a_list_file_and_a_label_choose_tasks(checkout: Path) -> None:
    lists = (f"env.train_split={checkout}/mine.json", "env.held_out_split=small")
    assert chosen(checkout, *lists) == (["b", "a"], ["c"])
    assert chosen(checkout, *lists, "env.train_limit=1") == (["b"], ["c"])
    with pytest.raises(TaskError, match=f"env.train_split=none: no split 'none' in suite '{checkout}', nor such a tag"):
        chosen(checkout, "env.train_split=none")
    with pytest.raises(TaskError, match=r"it has: all, test; fix: env.train_split=NAME .* with a list of tasks$"):
        chosen(checkout, "env.train_split=train", "env.held_out_split=held_out")
    with pytest.raises(TaskError, match=r"fix: env.held_out_split=NAME .*, or null for no held-out tasks$"):
        chosen(checkout, "env.held_out_split=held_out")
    (checkout / "mine.json").write_text(json.dumps({"os": ["z"]}))
    with pytest.raises(TaskError, match="1 listed tasks have no file, the first is 'z'"):
        chosen(checkout, *lists)


def test_no_task_is_both_trained_on_and_held_out(checkout: Path) -> None:
    with pytest.raises(ConfigError, match=r"share 1 tasks, first 'c'; fix: env.held_out_split=null"):
        chosen(checkout, "env.held_out_split=small")


def test_a_task_of_a_newer_osworld_is_left_out_of_training_and_has_no_result_in_an_evaluation(
    checkout: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newer = {"type": "execute", "parameters": {"command": "ls", "retries": 3}}
    for name in ("d", "e"):
        write_task(checkout, name, newer)
    reason = "it is not supported: config[0]: setup step 'execute': unknown parameters: retries"
    for runnable, ids in (("true", ["a", "b", "c"]), ("false", ["a", "b", "c", "drive"])):
        caplog.clear()
        assert chosen(checkout, f"env.runnable={runnable}") == (ids, [])
        assert f"2 × {reason}" in caplog.text
        assert f"`osworld-gym tasks list --suite {checkout} --unsupported` lists the files" in caplog.text
        settings = load_config(["env=osworld", f"env.suite={checkout}", f"env.runnable={runnable}"])
        every = make_tasks(settings, every=True).train
        assert [task.id for task in every] == ["a", "b", "c", "d", "drive", "e"]
        against = not_executable(settings, every)
        assert against["e"].startswith(reason)
        assert set(against) == {"d", "e"} | ({"drive"} if runnable == "true" else set())
    (checkout / "mine.json").write_text(json.dumps({"os": ["d"]}))
    with pytest.raises(ConfigError, match=r"no task left: split '.*/mine\.json' of .* has none that can run here"):
        chosen(checkout, f"env.train_split={checkout}/mine.json")


def provider_problem(provider: str, *suite: str) -> str | None:
    config = with_changes(load_config([*suite]), {"env.provider": provider})
    return tasks_of_provider(config, make_tasks(config))


def test_a_provider_that_the_tasks_do_not_run_on_is_refused_with_the_fix(checkout: Path) -> None:
    for provider in ("local", "container", "vm", "remote"):
        said = f"the tasks of suite sim run on provider sim, got {provider}; fix: env.provider=sim, or another"
        assert (provider_problem(provider) or "").startswith(said)
        assert provider_problem(provider, "env=local") is None
    for provider in ("sim", "one_of_another_package"):
        assert provider_problem(provider) is None
    wrong = provider_problem("sim", "env=local") or ""
    assert "with programs, such as provider local, got sim; fix: env.provider=local, or another env.suite" in wrong
    own = ("env=osworld", f"env.suite={checkout}", "env.runnable=false")
    assert (provider_problem("sim", *own) or "").startswith(f"1 of the 4 tasks of suite {checkout} run on a desktop")
    config = load_config(["env.provider=local"])
    with pytest.raises(ConfigError, match="the tasks of suite sim run on provider sim, got local"):
        check(config, task_checks(make_tasks(config)))


def test_a_method_without_its_expert_is_refused_with_the_fix(checkout: Path) -> None:
    settings = ["env=osworld", f"env.suite={checkout}"]
    config = load_config(settings)
    with pytest.raises(ConfigError, match=r"algo=bepa requires an expert, and none of the 3 training tasks"):
        check(config, task_checks(make_tasks(config)))
    check(with_changes(config, {"algo.name": "grpo"}), task_checks(make_tasks(config)))
    config = load_config([*settings, f"expert.logs=[{checkout}]"])
    check(config, task_checks(make_tasks(config)))


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        (["env.train_split=all"], {"list": "all"}),
        (["env.train_split=all", "env.train_limit=500"], {"list": "all"}),
        (
            ["env.train_split=all", "env.train_limit=2"],
            {"list": "the first 2 of 199 (env.train_limit=2)", "limited": {"tasks": 2, "of": 199}},
        ),
    ],
)
def test_a_card_names_the_list_and_its_limit(settings: list[str], facts: dict[str, object]) -> None:
    config = load_config(["env=sim", "env.held_out_split=null", "env.train_limit=null", *settings])
    assert list_facts(config, make_tasks(config)) == facts


def test_a_card_names_both_limits() -> None:
    config = load_config(["env=sim", "env.train_split=train", "env.train_limit=3", "env.held_out_limit=1"])
    tasks = make_tasks(config)
    whole = len(tasks.suite.split("train")) + len(tasks.suite.split(config.env.held_out_split or ""))
    facts = list_facts(config, tasks)
    assert facts["list"] == f"train: the first 4 of {whole} (env.train_limit=3, env.held_out_limit=1)"
    assert facts["limited"] == {"tasks": 4, "of": whole}
