"""Sources of expert traces in the settings: readers, folders, several experts, errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from expert_fixtures import s2_lines, write_log
from installed import install

from bepa_torchrl.experts import (
    READERS,
    TraceError,
    check_sources,
    find_reader,
    read_source,
    save_traces,
    split_source,
    successful_traces,
)
from bepa_torchrl.experts.readers import registry
from bepa_torchrl.experts.sources import check_solved
from osworld_gym.errors import ExtensionError
from osworld_gym.tasks.task import Task

ONE, TWO, OTHER = (Task(name, f"Do {name}", evaluator={"func": "x"}) for name in ("one", "two", "other"))


def logs(folder: Path, scores: dict[str, str]) -> Path:
    for task, score in scores.items():
        write_log(folder, s2_lines(), task=task, score=score)
    return folder


def test_a_source_is_a_reader_and_a_folder_or_a_folder(tmp_path: Path) -> None:
    assert split_source(f"agent_s2:{tmp_path}") == ("agent_s2", tmp_path)
    assert split_source(str(tmp_path)) == ("", tmp_path)
    with pytest.raises(
        TraceError, match=r"no reader 'q9'; expected agent_s2, .*; write NAME:FOLDER, or a FOLDER alone"
    ):
        split_source(f"q9:{tmp_path}")
    with pytest.raises(TraceError, match=r"no reader 'agent_s4' \(did you mean 'agent_s3'\?\); expected agent_s2, "):
        split_source(f"agent_s4:{tmp_path}")
    with pytest.raises(TraceError, match=r"there is no folder /.*none; give the path of the folder with the logs"):
        split_source(f"gui_owl:{tmp_path}/none")
    with pytest.raises(TraceError, match=rf"there is no folder no-such-logs in {re.escape(str(Path.cwd()))}; give"):
        split_source("no-such-logs")


def test_a_folder_alone_is_traces_or_logs_of_any_family(tmp_path: Path) -> None:
    logs(tmp_path, {"one": "1.0"})
    read = read_source(str(tmp_path), [ONE])
    assert [trace.origin for trace in read] == [str(tmp_path)]
    assert [replace(trace, origin="") for trace in read] == READERS["agent_s2"](tmp_path, [ONE])


@pytest.mark.parametrize("reader", ["", "agent_s2:", "function:"])
def test_a_source_that_solved_nothing_is_found_without_its_screenshots(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(READERS, "function", lambda folder, tasks: find_reader("agent_s2")(folder, tasks))
    source = f"{reader}{logs(tmp_path, {'one': '0.0', 'two': '1.0'})}"
    if reader != "function:":
        for path in tmp_path.rglob("*.png"):
            path.unlink()
    check_solved([source], [ONE, TWO])
    with pytest.raises(TraceError, match="no run that solved one of the 1 tasks"):
        check_solved([source], [ONE])
    with pytest.raises(TraceError, match=r"choose the suite and split of these|no run of any of the 1 tasks"):
        check_solved([source, source], [OTHER])


def test_saved_traces_that_solved_nothing_are_found(tmp_path: Path) -> None:
    traces = READERS["agent_s2"](logs(tmp_path / "logs", {"one": "0.0", "two": "1.0"}), [ONE, TWO])
    save_traces(traces, tmp_path / "saved")
    check_solved([str(tmp_path / "saved")], [ONE, TWO])
    with pytest.raises(TraceError, match="no run that solved one of the 1 tasks"):
        check_solved([str(tmp_path / "saved")], [ONE])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with readers of its own, installed as pip leaves it."""
    site = tmp_path / "site"
    group = (
        "[bepa_torchrl.readers]\nmine = my_readers:read_mine\nbroken = my_readers:none\nnumber = my_readers:NUMBER\n"
    )
    module = (
        "from bepa_torchrl.experts import ExpertTrace\n"
        "NUMBER = 3\n"
        "def read_mine(folder, tasks):\n"
        "    return [ExpertTrace(task.id, task.instruction, 'mine', (), (), True) for task in tasks]\n"
    )
    install(site, "my-readers", group, module)
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("my_readers", None)


@pytest.mark.usefixtures("package")
def test_a_reader_of_an_installed_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    assert "my_readers" not in sys.modules
    assert "mine" in registry.reader_names()
    assert "my_readers" not in sys.modules  # listing imports nothing
    assert [trace.expert for trace in read_source(f"mine:{tmp_path}", [ONE])] == ["mine"]
    assert find_reader("mine") is READERS["mine"]
    origin = r"^the distribution my-readers has the entry point '{}' of bepa_torchrl.readers: "
    with pytest.raises(
        ExtensionError, match=origin.format("broken") + r"cannot import my_readers:none \(AttributeError: "
    ):
        find_reader("broken")
    expected = r"expected a function of \(folder, tasks\), my_readers:NUMBER is 3$"
    with pytest.raises(ExtensionError, match=origin.format("number") + expected):
        find_reader("number")
    checked = check_sources([f"mine:{tmp_path}"], [ONE])
    assert [(run.family, run.task, run.outcome) for run in checked.runs] == [("mine", "one", "success")]
    with pytest.raises(TraceError, match="reads runs of given tasks; name their suite with --suite"):
        check_sources([f"mine:{tmp_path}"])


def test_saved_traces_of_other_tasks_are_left_out(tmp_path: Path) -> None:
    save_traces(
        READERS["agent_s2"](logs(tmp_path / "logs", {"one": "1.0", "two": "0.0"}), [ONE, TWO]), tmp_path / "saved"
    )
    assert [trace.task_id for trace in read_source(str(tmp_path / "saved"), [ONE, OTHER])] == ["one"]
    with pytest.raises(TraceError, match="none of its 2 traces is of one of the 1 tasks; it has traces of one, two:"):
        read_source(str(tmp_path / "saved"), [OTHER])


def test_successes_come_in_the_order_of_the_sources(tmp_path: Path) -> None:
    first = logs(tmp_path / "first", {"one": "0.0", "two": "1.0"})
    second = logs(tmp_path / "second", {"one": "1.0", "two": "1.0"})
    found = successful_traces([f"agent_s2:{first}", f"agent_s2:{second}"], [ONE, TWO])
    assert [trace.task_id for trace in found] == ["two", "one", "two"]
    with pytest.raises(TraceError, match=r"no run that solved one of the 1 tasks \(.*\); add the logs"):
        successful_traces([f"agent_s2:{first}"], [ONE])


def test_screenshots_of_failed_runs_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs(tmp_path, {"one": "1.0", "two": "0.0"})
    loaded: list[str] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: loaded.append(path.parent.name) or read_bytes(path))
    assert [trace.task_id for trace in successful_traces([f"auto:{tmp_path}"], [ONE, TWO])] == ["one"]
    assert set(loaded) == {"one"}


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda folder: [], r"the reader 'odd': expected a function of \(folder, tasks\): "),  # noqa: ARG005
        (lambda folder, tasks: None, "the reader 'odd': expected a list of ExpertTrace, got NoneType"),  # noqa: ARG005
        (lambda folder, tasks: [{}], "the reader 'odd': expected a list of ExpertTrace, got one with a dict"),  # noqa: ARG005
    ],
)
def test_a_reader_that_is_something_else(
    read: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(READERS, "odd", read)
    with pytest.raises(TraceError, match=message):
        read_source(f"odd:{tmp_path}", [ONE])
    with pytest.raises(TraceError, match=message):
        check_sources([f"odd:{tmp_path}"], [ONE])


def test_traces_of_other_tasks_are_left_out_of_what_a_function_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = find_reader("agent_s2")(logs(tmp_path, {"one": "1.0", "two": "1.0"}), [ONE, TWO])
    monkeypatch.setitem(READERS, "all", lambda _folder, _tasks: both)
    assert [trace.task_id for trace in read_source(f"all:{tmp_path}", [ONE])] == ["one"]
    other = next(run for run in check_sources([f"all:{tmp_path}"], [ONE]).runs if run.task == "two")
    assert (other.skipped, other.usable, other.problems[0]) == (True, (), "the task is not in the suite")
    monkeypatch.setitem(READERS, "none", lambda _folder, _tasks: [])
    with pytest.raises(TraceError, match="the reader returned no trace of any of the 1 tasks of the suite"):
        check_sources([f"none:{tmp_path}"], [ONE])
