"""A task file of a newer OSWorld: the suite's other tasks can be used, this one is listed and never scored."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from osworld_gym import cli
from osworld_gym.errors import TaskError
from osworld_gym.gymnasium_env import OSWorldGymnasiumEnv
from osworld_gym.tasks.evaluation.identity import evaluators_identity
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.providers import default_provider, wrong_provider
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.suites.osworld.requirements import Machine, files_of, reasons_against
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task
from osworld_gym.testing import ScriptedDesktop
from osworld_gym.types import StopReason

RULE = {"type": "rule", "rules": {"expected": "x"}}
EXACT = {"func": "exact_match", "result": {"type": "vm_command_line", "command": "true"}, "expected": RULE}
#: id → what differs from a good task, and the reason
NEWER: dict[str, tuple[dict[str, Any], str]] = {
    "new-parameter": (
        {"config": [{"type": "execute", "parameters": {"command": "ls", "retries": 3}}]},
        "config[0]: setup step 'execute': unknown parameters: retries; known: command",
    ),
    "no-parameter": ({"config": [{"type": "download", "parameters": {}}]}, "config[0]: setup step 'download': param"),
    "new-step": ({"config": [{"type": "chrome_open_tab"}]}, "config[0]: unknown setup step 'chrome_open_tab' (did you"),
    "new-key": ({"related_app": ["os"]}, "unknown key 'related_app' (did you mean 'related_apps'?)"),
    "new-evaluator": ({"evaluator": {"funcs": ["a"]}}, "evaluator: unknown key 'funcs' (did you mean 'func'?)"),
    "new-lists": ({"evaluator": EXACT | {"func": ["a", "b"]}}, "evaluator.result must be a list of 2"),
    "new-postconfig": (
        {"evaluator": EXACT | {"postconfig": [{"type": "sleep", "parameters": {"s": 1}}]}},
        "evaluator.postconfig[0]: setup step 'sleep': unknown parameters: s",
    ),
}


def write(folder: Path, task_id: str, **changes: Any) -> None:
    path = folder / "examples" / "os" / f"{task_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"id": task_id, "instruction": "do", "config": [], "evaluator": EXACT} | changes))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder of two good tasks and one of each in ``NEWER``."""
    for task_id in ("good-1", "good-2"):
        write(tmp_path, task_id)
    for task_id, (changes, _) in NEWER.items():
        write(tmp_path, task_id, **changes)
    (tmp_path / "test_all.json").write_text(json.dumps({"os": ["good-2", "new-step"]}))
    (tmp_path / "test_odd.json").write_text(json.dumps({"os": ["new-step"]}))
    return tmp_path


def test_one_unsupported_file_does_not_refuse_the_others(checkout: Path) -> None:
    suite = load_suite(checkout)
    assert {task.id: task.unsupported for task in suite.tasks if not task.unsupported} == {"good-1": "", "good-2": ""}
    for task_id, (_, reason) in NEWER.items():
        task = suite.task(task_id)
        assert task.unsupported.startswith(reason)
        assert task.source == str(checkout / "examples" / "os" / f"{task_id}.json")
        with pytest.raises(TaskError) as strict:
            Task.load(Path(task.source))
        assert str(strict.value) == f"{task.source}: {task.unsupported}"
    assert [task.id for task in suite.split("test")] == ["good-2", "new-step"]
    assert suite.task("new-step").tags == ("odd",)


def test_an_unsupported_task_is_neither_set_up_nor_scored(checkout: Path) -> None:
    suite, machine = load_suite(checkout), Machine()
    for task_id, (_, reason) in NEWER.items():
        task, desktop = suite.task(task_id), ScriptedDesktop()
        desktop.reset(0)
        with pytest.raises(TaskError, match=f"task '{task_id}' is not supported: .*; fix: correct the file, or use a"):
            prepare(task, desktop)
        for stop in (StopReason.finished, StopReason.call_user):
            with pytest.raises(TaskError, match="is not supported"):
                verify(task, desktop, stop=stop)
        for provider in ("local", "sim", "container"):
            (said,) = reasons_against(task, provider, machine)
            assert said.startswith(f"it is not supported: {reason}")
        assert files_of(task) == []
    assert evaluators_identity(suite.tasks, "auto") == "ours"
    assert default_provider(suite.tasks) == "local"
    assert wrong_provider("x", suite.tasks, "local") is None


def test_an_environment_draws_the_other_tasks_and_says_so(checkout: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        env = OSWorldGymnasiumEnv(ScriptedDesktop, suite=checkout, split="test")
    assert (
        f"1 of 2 tasks of split 'test' of suite '{checkout}' cannot run here and are left out: 1 × it is" in caplog.text
    )
    assert f"`osworld-gym tasks list --suite {checkout} --unsupported` lists the files" in caplog.text
    try:
        assert {env.reset(seed=seed)[1]["task_id"] for seed in range(5)} == {"good-2"}
        with pytest.raises(TaskError, match="task 'new-step' is not supported: "):
            env.reset(options={"task": "new-step"})
    finally:
        env.close()
    with pytest.raises(TaskError, match=r"1 of 1 tasks of split 'odd' of suite .* cannot run here"):
        OSWorldGymnasiumEnv(ScriptedDesktop, suite=checkout, split="odd")


def test_an_environment_leaves_out_what_cannot_run_if_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "good")
    write(tmp_path, "step", config=[{"type": "dance"}])
    write(tmp_path, "metric", evaluator=EXACT | {"func": "compare_hologram"})
    monkeypatch.setattr("osworld_gym.factory.make_desktop", lambda *_, **__: ScriptedDesktop())
    with OSWorldGymnasiumEnv("local", suite=tmp_path, runnable=True) as env:
        assert {env.reset(seed=seed)[1]["task_id"] for seed in range(5)} == {"good"}
    assert "2 of 3 tasks of split 'all'" in caplog.text
    assert "1 × unknown setup step dance" in caplog.text
    assert "1 × compare_hologram requires " in caplog.text  # OSWorld's evaluators, or newer ones than are installed
    with pytest.raises(ValueError, match="runnable=True requires a provider's name, got a function"):
        OSWorldGymnasiumEnv(ScriptedDesktop, suite=tmp_path, runnable=True)


def test_the_command_lists_them_with_file_reason_and_fix(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = ["--suite", str(checkout)]
    assert cli.main(["tasks", "list", *suite, "--unsupported"]) == 0
    said = capsys.readouterr()
    lines = {line.split("\t")[0]: line.split("\t")[2] for line in said.out.splitlines()}
    assert set(lines) == set(NEWER)
    for task_id, (_, reason) in NEWER.items():
        assert lines[task_id].startswith(f"{checkout}/examples/os/{task_id}.json: {reason}")
    assert (
        said.err
        == "7 of 9 tasks are not supported; fix: correct the file, or use a version of osworld-gym that knows this\n"
    )
    for more in ([], ["--provider", "local"]):
        assert cli.main(["tasks", "list", *suite, *more]) == 0
        said = capsys.readouterr()
        assert len(said.out.splitlines()) == 9
        assert f"7 of 9 tasks are not supported; `osworld-gym tasks list {' '.join(suite)} --unsupported`" in said.err
    assert cli.main(["tasks", "fetch", *suite]) == 0
    assert "7 of 9 tasks are not supported" in capsys.readouterr().err
    assert cli.main(["tasks", "show", *suite, "new-k"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["related_app"] == ["os"]
    assert f"not supported: {checkout}/examples/os/new-key.json: unknown key" in said.err
    assert cli.main(["tasks", "list", *suite, "--unsupported", "--hashes"]) == 2
    assert cli.main(["desktop", "--provider", "local", "--task", f"{checkout}:new-step"]) == 2
    assert "task 'new-step' is not supported: " in capsys.readouterr().err


def test_a_check_counts_an_unsupported_task_as_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "odd", config=[{"type": "sim", "parametres": {}}], oracle={"type": "sim", "goals": []})
    assert cli.main(["tasks", "check", "--suite", str(tmp_path), "--provider", "sim"]) == 1
    said = capsys.readouterr().out
    assert f"odd: task 'odd' is not supported: {tmp_path}/examples/os/odd.json: config[0]: unknown key 'param" in said
    assert "0 of 1 tasks" in said


def test_the_doctor_counts_them(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("osworld_gym.commands.doctor.PROVIDERS", ["sim"])
    monkeypatch.setenv("OSWORLD_ROOT", str(checkout))
    assert cli.main(["doctor"]) == 0
    said = (
        f"osworld    9 tasks at OSWORLD_ROOT={checkout}; 7 are not supported: `osworld-gym tasks list --suite osworld"
    )
    assert said in capsys.readouterr().out
    (checkout / "examples" / "os" / "good-1.json").write_text("{")
    assert cli.main(["doctor"]) == 0
    assert "osworld    cannot be read: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "broken",
    ["{", "[]", '{"id": 1}', '{"id": "a", "instruction": "do", "evaluator": {"func": "x"}, "config": [{"type": 1}]}'],
)
def test_a_file_that_is_no_task_is_an_error(checkout: Path, broken: str) -> None:
    (checkout / "examples" / "os" / "broken.json").write_text(broken)
    with pytest.raises(TaskError, match=r"broken\.json"):
        load_suite(checkout)


def test_a_task_is_found_by_the_beginning_of_its_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for task_id in ("ab", "abc1", "abc2", "x-1"):
        write(tmp_path, task_id)
    suite = load_suite(tmp_path)
    assert [suite.find(name).id for name in ("ab", "abc1", "x", "x-1")] == ["ab", "abc1", "x-1", "x-1"]
    with pytest.raises(TaskError, match=r"2 tasks of suite .* begin with 'abc', expected one: abc1, abc2; fix: write"):
        suite.find("abc")
    for absent in ("y", ""):
        with pytest.raises(TaskError, match=f"no task '{absent}' in suite"):
            suite.find(absent)
    assert cli.main(["tasks", "show", "--suite", str(tmp_path), "x"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "x-1"
    assert cli.main(["tasks", "show", "--suite", str(tmp_path), "a"]) == 2
    assert "3 tasks of suite " in capsys.readouterr().err
