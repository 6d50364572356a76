"""Task files: errors are raised on loading and name file and key. OSWorld's 309 files all load."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from repository import OSWORLD_BESIDE

from osworld_gym.errors import TaskError
from osworld_gym.tasks.evaluation.verify import read_evaluator
from osworld_gym.tasks.suites.osworld.oracles import ORACLES
from osworld_gym.tasks.suites.osworld.requirements import KNOWN_ISSUES
from osworld_gym.tasks.suites.registry import load_suite, osworld_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason

DIGEST = "1ba9e02d29a6d74b"  # of the 309 files described in docs/tasks.md
EXACT = {
    "func": "exact_match",
    "result": {"type": "vm_command_line", "command": "true"},
    "expected": {"type": "rule", "rules": {"expected": ""}},
}
GOOD = {"id": "t", "instruction": "do", "config": [], "evaluator": EXACT}


def step(kind: str, **parameters) -> dict:
    return {"config": [{"type": kind, "parameters": parameters}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            step("download", files=[{"url": "http://x"}]),
            r"config\[0\].*'download': each of 'files' requires 'path' \(str\)",
        ),
        (step("execute", comand="ls"), r"config\[0\].*'execute': unknown parameters: comand; known: command, shell"),
        (step("launch"), r"'launch': parameter 'command' must be str or list, got nothing"),
        (step("chrome_open_tabs", urls_to_open="x"), r"'urls_to_open' must be list, got 'x'"),
        (step("activate_window", window_name="x", strict=1), r"'strict' must be bool or str, got 1"),
        ({"config": [{"parameters": {}}]}, r"config\[0\]: expected an object with a string 'type'"),
        ({"evaluator": EXACT | {"postconfig": [{"type": "sleep", "parameters": {}}]}}, r"postconfig\[0\].*'seconds'"),
        ({"evaluator": EXACT | {"postconfig": {}, "func": []}}, r"evaluator.func must be the name of a metric"),
        ({"evaluator": EXACT | {"conj": "xor"}}, r"evaluator.conj must be 'and' or 'or', got 'xor'"),
        ({"evaluator": EXACT | {"func": ["a", "b"]}}, r"evaluator.result must be a list of 2"),
        ({"evaluator": {"func": "exact_match"}}, r"evaluator.result must be an object for each metric, got None"),
        (
            {"evaluator": EXACT | {"result": {"command": "x"}}},
            r"evaluator.result must be a getter with a string 'type'",
        ),
        ({"evaluator": EXACT | {"options": ["x"]}}, r"evaluator.options must be an object for each metric"),
        ({"related_apps": "vlc"}, r"key 'related_apps' must be list, got str"),
        ({"instruction": None}, r"key 'instruction' must be str, got NoneType"),
        ({"confg": [{"type": "open"}]}, r"unknown key 'confg' \(did you mean 'config'\?\); known: id, instruction"),
        ({"Evaluator": EXACT}, r"unknown key 'Evaluator' \(did you mean 'evaluator'"),
        ({"tags": ["easy", 1]}, r"key 'tags' must be a list of str, got \['easy', 1\]"),
        ({"evaluator": EXACT | {"option": {}}}, r"evaluator: unknown key 'option' \(did you mean 'options'"),
        ({"evaluator": EXACT | {"post_config": []}}, r"evaluator: unknown key 'post_config' .*'postconfig'"),
        ({"config": [{"type": "simm", "parameters": {}}]}, r"config\[0\]: unknown setup step 'simm' .*'sim'\?"),
        ({"config": [{"type": "arrange", "params": {}}]}, r"config\[0\]: unknown key 'params' .*'parameters'"),
        ({"config": [{"type": "sim", "parameters": ["mute"]}]}, r"'sim': 'parameters' must be an object, got \['mute'"),
        (step("execute", command="ls", until={"retrncode": 0}), r"'until' has no retrncode; known: returncode, stdout"),
    ],
)
def test_errors_name_the_file_and_the_key(change, message, tmp_path):
    path = tmp_path / "os" / "t.json"
    path.parent.mkdir()
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(TaskError, match=message) as caught:
        Task.load(path)
    assert str(path) in str(caught.value)


def test_optional_keys_may_be_null_and_other_keys_are_kept(tmp_path):
    path = tmp_path / "os" / "t.json"
    path.parent.mkdir()
    own = {"hint": "none", "trajectory": "x/", "difficulty": "easy", "plan": "1. Look"}
    note = {"evaluator": EXACT | {"_config_note": "kept"}}
    path.write_text(json.dumps(GOOD | own | note | {"tags": None, "domain": None, "oracle": None, "config": None}))
    task = Task.load(path)
    assert (task.tags, task.domain, task.oracle, task.config) == ((), "os", None, ())
    assert task.raw == own


def test_hashes_pin_the_set(tmp_path):
    def make(folder: str, **changes) -> Path:
        path = tmp_path / folder / "examples" / "os" / "t.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(GOOD | changes))
        return tmp_path / folder

    one, same, other = (
        osworld_suite(make(*args, **kw)) for args, kw in ((("a",), {}), (("b",), {}), (("c",), {"id": "u"}))
    )
    assert one.digest == same.digest != other.digest
    assert len(one.digest) == 16
    (tmp_path / "a" / "test_small.json").write_text(json.dumps({"os": ["t"]}))
    labelled = osworld_suite(tmp_path / "a")
    assert labelled.tasks[0].tags == ("small",)
    assert labelled.digest == one.digest  # labels are not part of the content


def test_a_result_can_name_what_it_was_measured_on(tmp_path):
    folder = tmp_path / "evaluation_examples" / "examples" / "os"
    folder.mkdir(parents=True)
    (folder / "t.json").write_text(json.dumps(GOOD))
    suite = load_suite(tmp_path)
    (task,) = suite.tasks
    found = suite.fingerprint([task])
    assert found == {
        "suite": suite.name,
        "revision": "",
        "digest": suite.digest,
        "hashes": {task.id: task.content_hash},
    }
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, timeout=60)
    for place in (tmp_path, tmp_path / "evaluation_examples"):
        revision = load_suite(place).fingerprint([])["revision"]
        assert re.fullmatch("[0-9a-f]{40}", revision)
    assert load_suite(tmp_path).digest == suite.digest


def test_a_checkout_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("OSWORLD_ROOT", raising=False)
    with pytest.raises(TaskError, match=r"requires OSWORLD_ROOT, .*not set; fix: export OSWORLD_ROOT=FOLDER, or name"):
        load_suite("osworld")
    folder = tmp_path / "evaluation_examples" / "examples" / "os"
    folder.mkdir(parents=True)
    (folder / "t.json").write_text(json.dumps(GOOD))
    monkeypatch.setenv("OSWORLD_ROOT", str(tmp_path))
    assert [task.domain for task in load_suite("osworld").tasks] == ["os"]


def test_the_official_files_load(official_examples):
    suite = load_suite(official_examples)
    assert [task.unsupported for task in suite.tasks if task.unsupported] == []
    infeasible = [task for task in suite.tasks if task.evaluator["func"] == "infeasible"]
    assert all(read_evaluator(task)[1] or task in infeasible for task in suite.tasks)
    if suite.digest != DIGEST:  # another checkout, with unknown counts
        assert suite.tasks
        return
    assert len(suite.tasks) == 309
    assert len(infeasible) == 21
    assert {step["type"] for task in suite.tasks for step in task.config} == {
        *("download", "launch", "open", "execute", "command", "activate_window", "sleep"),
        *("chrome_open_tabs", "googledrive", "login", "update_browse_history"),
    }


def test_our_oracles_are_of_official_tasks(official_examples):
    ids = {task.id[:8]: task for task in load_suite(official_examples).tasks}
    assert set(ORACLES) | set(KNOWN_ISSUES) <= set(ids)
    assert not set(ORACLES) & set(KNOWN_ISSUES)
    for short, oracle in ORACLES.items():
        infeasible = ids[short].evaluator["func"] == "infeasible"
        assert (oracle.stop is StopReason.call_user) == infeasible
        assert bool(oracle.steps) != infeasible


@pytest.fixture
def official_examples() -> Path:
    for root in (os.environ.get("OSWORLD_ROOT"), OSWORLD_BESIDE):
        if root and (Path(root) / "evaluation_examples").is_dir():
            return Path(root) / "evaluation_examples"
    pytest.skip("OSWorld's task files are absent: set OSWORLD_ROOT to a checkout")
