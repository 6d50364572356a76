"""Sources of expert traces in the settings: readers, folders, several experts, errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from expert_fixtures import s2_lines, write_log

from bepa_torchrl.experts import (
    READERS,
    TraceError,
    read_agent_s2,
    read_source,
    save_traces,
    split_source,
    successful_traces,
)
from bepa_torchrl.experts.readers import agent_s2, gui_owl, registry
from osworld_gym.tasks.task import Task

ONE, TWO, OTHER = (Task(name, f"Do {name}", evaluator={"func": "x"}) for name in ("one", "two", "other"))


def logs(folder: Path, scores: dict[str, str]) -> Path:
    for task, score in scores.items():
        write_log(folder, s2_lines(), task=task, score=score)
    return folder


def test_a_source_is_a_reader_and_a_folder_or_a_folder(tmp_path: Path) -> None:
    assert split_source(f"agent_s2:{tmp_path}") == ("agent_s2", tmp_path)
    assert split_source(str(tmp_path)) == ("", tmp_path)
    with pytest.raises(TraceError, match=r"no reader 's3'; expected agent_s2, gui_owl:FOLDER, or a FOLDER"):
        split_source(f"s3:{tmp_path}")
    with pytest.raises(TraceError, match=r"no reader 'agent_s3' \(did you mean 'agent_s2'\?\); expected agent_s2, gui"):
        split_source(f"agent_s3:{tmp_path}")
    with pytest.raises(TraceError, match=r"there is no folder /.*none; give the path of the folder with the logs"):
        split_source(f"gui_owl:{tmp_path}/none")
    with pytest.raises(TraceError, match=rf"there is no folder no-such-logs in {re.escape(str(Path.cwd()))}; give"):
        split_source("no-such-logs")


def test_each_framework_has_its_module_and_its_entry() -> None:
    assert {"agent_s2": agent_s2.read_agent_s2, "gui_owl": gui_owl.read_gui_owl} == READERS
    assert READERS is registry.READERS


def test_saved_traces_of_other_tasks_are_left_out(tmp_path: Path) -> None:
    save_traces(read_agent_s2(logs(tmp_path / "logs", {"one": "1.0", "two": "0.0"}), [ONE, TWO]), tmp_path / "saved")
    assert [trace.task_id for trace in read_source(str(tmp_path / "saved"), [ONE, OTHER])] == ["one"]
    with pytest.raises(TraceError, match="none of its 2 traces is of one of the 1 tasks; it has traces of one, two:"):
        read_source(str(tmp_path / "saved"), [OTHER])


def test_successes_come_in_the_order_of_the_sources(tmp_path: Path) -> None:
    first = logs(tmp_path / "first", {"one": "0.0", "two": "1.0"})
    second = logs(tmp_path / "second", {"one": "1.0", "two": "1.0"})
    found = successful_traces([f"agent_s2:{first}", f"agent_s2:{second}"], [ONE, TWO])
    assert [trace.task_id for trace in found] == ["two", "one", "two"]
    with pytest.raises(TraceError, match=r"no run that solved one of the 1 tasks, 1 that failed; add the logs"):
        successful_traces([f"agent_s2:{first}"], [ONE])
