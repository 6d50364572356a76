"""Oracles of official tasks from their own gold files, and the checkout whose files are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from file_desktop import FileDesktop

from osworld_gym.errors import TaskError
from osworld_gym.tasks.setup.file_cache import FileCache, gold_file, setup_file
from osworld_gym.tasks.suites.osworld.oracles import FAIL, ORACLES
from osworld_gym.tasks.suites.osworld.requirements import files_of
from osworld_gym.tasks.suites.osworld.solutions import oracle_of, play_official
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason
from scripts.made_files import fill_cache
from scripts.make_osworld_files import OFFLINE, write

SHEET = "/home/user/a.xlsx"
OPEN = {"type": "open", "parameters": {"path": SHEET}}
ON_DESKTOP = {"type": "vm_file", "path": SHEET, "dest": "a.xlsx"}
GOLD = {"type": "cloud_file", "path": "https://hub/gold.xlsx", "dest": "gold.xlsx"}


def task(evaluator: dict[str, Any], *config: dict[str, Any], task_id: str = "made-up") -> Task:
    return Task(task_id, "Fill it in.", tuple(config), evaluator, domain="libreoffice_calc")


def compare(**more: Any) -> dict[str, Any]:
    return {"func": "compare_table", "result": ON_DESKTOP, "expected": GOLD, **more}


def test_the_gold_file_is_put_in_place_while_the_application_is_closed(tmp_path: Path) -> None:
    made = task(compare(), OPEN)
    oracle = oracle_of(made)
    assert oracle is not None
    assert (oracle.stop, oracle.steps, oracle.files) == (
        StopReason.finished,
        (OPEN,),
        ((SHEET, gold_file("made-up", "https://hub/gold.xlsx", "gold.xlsx")),),
    )
    fill_cache(tmp_path, made)
    desktop = FileDesktop()
    play_official(oracle, made, desktop, FileCache(tmp_path, offline=True, also=()))
    assert desktop.files == {SHEET: (tmp_path / "made-up" / "gold.xlsx").read_bytes()}
    assert desktop.steps == ["execute", "open"]


def test_without_the_gold_file_there_is_no_solution(tmp_path: Path) -> None:
    oracle = oracle_of(task(compare()))
    assert oracle is not None
    assert (oracle.before, oracle.steps) == ((), ())  # nothing has the file open
    with pytest.raises(TaskError, match=r"requires https://hub/gold\.xlsx, and this cache is offline"):
        play_official(oracle, task(compare()), FileDesktop(), FileCache(tmp_path, offline=True, also=()))


@pytest.mark.parametrize(
    ("conj", "files"), [("and", ["/home/user/a.xlsx", "/home/user/b.csv"]), ("or", ["/home/user/a.xlsx"])]
)
def test_of_several_checks_all_or_one_are_solved(conj: str, files: list[str]) -> None:
    csv = {"type": "vm_file", "path": "/home/user/b.csv", "dest": "b.csv"}
    both = {
        "func": ["compare_table", "compare_csv"],
        "conj": conj,
        "result": [ON_DESKTOP, csv],
        "expected": [GOLD, GOLD],
    }
    oracle = oracle_of(task(both))
    assert oracle is not None
    assert [path for path, _ in oracle.files] == files


RULE = {"type": "rule", "rules": {"expected": "x"}}


@pytest.mark.parametrize(
    "evaluator",
    [
        compare(func="check_contrast"),  # a gold file is no solution to each metric
        compare(expected=RULE),
        compare(result={"type": "vm_command_line", "command": "true"}),
        {"func": ["compare_table", "exact_match"], "conj": "and", "result": [ON_DESKTOP] * 2, "expected": [GOLD, RULE]},
        {},
    ],
)
def test_other_tasks_have_no_oracle(evaluator: dict[str, Any]) -> None:
    assert oracle_of(task(evaluator)) is None


def test_a_written_oracle_comes_first_and_infeasible_tasks_are_given_up() -> None:
    assert oracle_of(task({"func": "infeasible"})) is FAIL
    assert oracle_of(task(compare(), task_id="f201fbc3-0000")) is ORACLES["f201fbc3"]


# --- the checkout ----------------------------------------------------------------------------------------------------


def listed(domain: str, count: int) -> list[str]:
    return [str(i) for i in json.loads(OFFLINE.read_text())[domain][:count]]


def real_checkout(folder: Path, *, tasks: dict[str, dict[str, Any]]) -> Path:
    for task_id, evaluator in tasks.items():
        download = {"files": [{"url": "https://hub/a.xlsx", "path": SHEET}]}
        data = {
            "id": task_id,
            "instruction": "Fill it in.",
            "snapshot": "x",
            "related_apps": [],
            "evaluator": evaluator,
        }
        data["config"] = [{"type": "download", "parameters": download}]
        place = folder / "evaluation_examples" / "examples" / "os"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{task_id}.json").write_text(json.dumps(data))
    return folder


def test_the_checkout_has_the_listed_tasks_and_their_files(tmp_path: Path) -> None:
    """Two are solved by their files, one is not on the list, one has no oracle."""
    csv = {"func": "compare_csv", "result": ON_DESKTOP, "expected": GOLD}
    first, second, third = listed("libreoffice_calc", 3)
    tasks = {first: csv, second: csv, third: csv | {"expected": RULE}, "not-listed": csv}
    suite = load_suite(real_checkout(tmp_path / "real", tasks=tasks))
    made = write(tmp_path / "made", suite)
    assert [each.id for each in made] == sorted([first, second])
    again = load_suite(tmp_path / "made")
    assert {each.id: each.content_hash for each in again.tasks} == {
        each.id: suite.task(each.id).content_hash for each in made
    }
    assert [each.id for each in again.split("made_up_files")] == sorted([first, second])
    cache = FileCache(tmp_path / "made" / "cache", offline=True, also=())
    for each in again.tasks:
        setup, gold = (cache.read(file) for file in files_of(each))
        assert setup != gold
        assert files_of(each)[0] == setup_file(each.id, "https://hub/a.xlsx", SHEET)
    assert not (tmp_path / "made" / "cache" / third).exists()


def test_a_number_of_tasks_is_spread_over_the_domain(tmp_path: Path) -> None:
    csv = {"func": "compare_csv", "result": ON_DESKTOP, "expected": GOLD}
    ids = listed("libreoffice_calc", 6)
    suite = load_suite(real_checkout(tmp_path / "real", tasks=dict.fromkeys(ids, csv)))
    everything = [each.id for each in write(tmp_path / "all", suite)]
    assert [each.id for each in write(tmp_path / "two", suite, 2)] == [everything[0], everything[len(everything) // 2]]
    with pytest.raises(FileExistsError):
        write(tmp_path / "two", suite)


def test_a_checkout_without_listed_tasks_is_refused(tmp_path: Path) -> None:
    suite = load_suite(real_checkout(tmp_path / "real", tasks={"not-listed": {"func": "infeasible"}}))
    with pytest.raises(TaskError, match=r"has no task of offline_295\.json that can run on this machine"):
        write(tmp_path / "made", suite)
