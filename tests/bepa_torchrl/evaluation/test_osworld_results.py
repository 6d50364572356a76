"""Results in OSWorld's layout: what its runner writes is read with crashes told apart, and ours has its form."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

import pytest

from bepa_torchrl.cli import main
from bepa_torchrl.evaluation.card import FOLDER_TASKS, make_card
from bepa_torchrl.evaluation.osworld_results import read_results, read_score, write_episode
from bepa_torchrl.evaluation.outcomes import Outcome, Result, read_outcomes
from bepa_torchrl.evaluation.suites import OFFLINE
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task

CODE = "import pyautogui; pyautogui.click(10, 20)"


def made_run(folder: Path, task: str, result: str | None, lines: list[dict[str, object]] | None = None) -> None:
    place = folder / "os" / task
    place.mkdir(parents=True)
    step = {"step_num": 1, "action_timestamp": "20260101@000000", "action": CODE, "response": "Thought: click",
            "reward": 0, "done": False, "info": {}, "screenshot_file": "step_1.png"}  # fmt: skip
    place.joinpath("traj.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines or [step]))
    if result is not None:
        place.joinpath("result.txt").write_text(result)


def suite_of(*ids: str, infeasible: tuple[str, ...] = ()) -> Suite:
    tasks = tuple(
        Task(i, "do", evaluator={"func": "infeasible" if i in infeasible else "exact_match"}, domain="os") for i in ids
    )
    return Suite("osworld", tasks, {"test": list(ids)})


def test_the_official_table_would_lose_the_crash(tmp_path: Path) -> None:
    """1.0, True, 0 and a part of 1, a crash, an interruption: four results, two without, one task never run."""
    made_run(tmp_path, "won", "1.0\n")
    made_run(tmp_path, "true", "True")
    made_run(tmp_path, "lost", "0")
    made_run(tmp_path, "part", "0.5")
    made_run(tmp_path, "crashed", None, [{"Error": "Time limit exceeded in os/crashed"}])
    made_run(tmp_path, "broken_off", None)
    suite = suite_of("won", "true", "lost", "part", "crashed", "broken_off", "never", infeasible=("won",))
    found = {outcome.task: outcome for outcome in read_results(str(tmp_path), suite)}
    assert {task: outcome.result for task, outcome in found.items()} == {
        "won": Result.success,
        "true": Result.success,
        "lost": Result.failure,
        "part": Result.failure,
        "crashed": Result.no_result,
        "broken_off": Result.no_result,
        "never": Result.no_result,
    }
    assert found["crashed"].reason == "the runner crashed"
    assert found["never"].reason == "no run of it"
    assert not found["won"].feasible
    card = make_card(list(found.values()), {})
    assert (card["score"], card["mean_score"]) == (0.5, 0.625)
    assert card["denominators"]["listed"] == {"tasks": 7, "score": pytest.approx(2 / 7)}


def test_tasks_are_in_the_order_of_the_suite(tmp_path: Path) -> None:
    """By hand: b succeeds after 1 of 4 steps, then a fails: 0.5 from 0.25 on; in the order of ids from 0.5 on."""
    made_run(tmp_path, "a", "0")
    made_run(tmp_path, "b", "1")
    found = read_results(str(tmp_path), suite_of("c", "b", "a"))
    assert [outcome.task for outcome in found] == ["c", "b", "a"]
    area = make_card(found, {"suite": "s", "steps_budget": 2})["efficiency_quality"]
    assert area == {"area": pytest.approx(0.5 * 76 / 101), "order": "of the suite", "max_steps": 2}
    area = make_card(read_results(str(tmp_path)), {"suite": FOLDER_TASKS, "steps_budget": 2})["efficiency_quality"]
    assert area == {"area": pytest.approx(0.5 * 51 / 101), "order": "of their ids", "max_steps": 2}


@pytest.mark.parametrize(
    ("text", "score"),
    [("1", 1.0), ("0.25\n", 0.25), ("True", 1.0), ("False", 0.0), ("", None), ("2", None), ("nan", None), ("x", None)],
)
def test_scores(tmp_path: Path, text: str, score: float | None) -> None:
    (tmp_path / "result.txt").write_text(text)
    assert read_score(tmp_path / "result.txt") == score


@pytest.mark.parametrize(
    ("second", "steps"),
    [([(1, False), (2, True)], 2), ([(1, False)], 3), ([(1, False), (2, False)], 3)],
    ids=["complete", "interrupted", "interrupted later"],
)
def test_of_two_runs_in_one_log_that_of_the_result_counts(
    tmp_path: Path, second: list[tuple[int, bool]], steps: int
) -> None:
    numbers = [(1, False), (2, False), (3, True), *second]
    lines: list[dict[str, object]] = [
        {"step_num": n, "action": CODE, "response": f"Thought: click {i}", "reward": 0, "done": done, "info": {}}
        for i, (n, done) in enumerate(numbers)
    ]
    made_run(tmp_path, "twice", "1.0\n", lines)
    (outcome,) = read_results(str(tmp_path))
    assert (outcome.result, outcome.steps) == (Result.success, steps)


def test_what_we_write_is_read_back_the_same(tmp_path: Path) -> None:
    screenshot = tmp_path / "some.png"
    screenshot.write_bytes(b"png")
    won = Outcome("a", "os", 0, Result.success, 1.0, steps=1)
    lost = Outcome("b", "os", 0, Result.no_result, None, reason="infrastructure: died", steps=1)
    for outcome in (won, lost):
        write_episode(tmp_path, outcome, ["Thought: click"], [CODE], [screenshot])
    assert (tmp_path / "os" / "a" / "step_1.png").read_bytes() == b"png"
    assert not (tmp_path / "os" / "b" / "result.txt").exists()
    found = {outcome.task: outcome for outcome in read_results(str(tmp_path))}
    assert (found["a"].result, found["a"].score, found["a"].domain) == (Result.success, 1.0, "os")
    assert found["b"].result is Result.no_result


def test_the_offline_list_is_the_published_one() -> None:
    domains = json.loads(OFFLINE.read_text())
    assert {domain: len(ids) for domain, ids in domains.items()} == {
        "libreoffice_calc": 47, "libreoffice_impress": 47, "libreoffice_writer": 22, "gimp": 25, "os": 23,
        "thunderbird": 15, "vlc": 15, "vs_code": 21, "chrome": 18, "multi_apps": 62,
    }  # fmt: skip
    ids = "".join(f"osworld_{domain}_{i}\n" for domain, members in domains.items() for i in members)
    assert (
        hashlib.sha256(ids.encode()).hexdigest() == "c5964dbe0b19aa92c01992596c217d999bde292d1db34136a64a155b13b983a1"
    )


def official_table(results: Path) -> dict[str, tuple[float, int]]:
    """What OSWorld's show_result.py makes of a folder: per domain and in all, the sum of the scores and their number.

    It takes each <domain>/<task id>/result.txt as a number; if it is none, per domain as a Python literal, and in the
    total as the truth value of the text. A task without the file is in neither.
    """
    table = {"all": (0.0, 0)}
    for file in results.glob("*/*/result.txt"):
        text, domain = file.read_text(), file.parts[-3]
        try:
            values = {domain: float(text), "all": float(text)}
        except ValueError:
            values = {domain: float(ast.literal_eval(text)), "all": float(bool(text))}
        for name, value in values.items():
            total, count = table.get(name, (0.0, 0))
            table[name] = (total + value, count + 1)
    return table


def test_the_official_total_counts_the_text_false_as_a_success(tmp_path: Path) -> None:
    """A metric that returns a bool leaves the text False, whose truth value is true; here it is a failure."""
    made_run(tmp_path, "lost", "False")
    assert official_table(tmp_path) == {"os": (0.0, 1), "all": (1.0, 1)}
    assert [outcome.result for outcome in read_results(str(tmp_path))] == [Result.failure]


def test_the_budget_of_others_is_what_they_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One success after 1 of 10 steps: R is 1 from u = 0.1 on, at 91 of 101 points."""
    made_run(tmp_path, "won", "1")
    assert main(["eval", "--from", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["efficiency_quality"] is None
    assert main(["eval", "--from", str(tmp_path), "--steps", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["efficiency_quality"]["area"] == pytest.approx(91 / 101)
    made_run(tmp_path, "long", "1", [{"step_num": n, "action": CODE, "response": "Thought: click"} for n in (1, 2, 3)])
    assert main(["eval", "--from", str(tmp_path), "--steps", "2"]) == 2
    assert "--steps 2: long has 3 steps; give the budget of the runs" in capsys.readouterr().err


def test_the_official_script_reads_an_evaluation_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each pass of the tiny policy has the table of the card's domains, and is read back with the same results."""
    out = tmp_path / "out"
    arguments = ["eval", "suite=sim", "env.train_limit=6", "env.desktops=6", "threads=1", "--passes", "2"]
    assert main([*arguments, "--osworld-layout", "--out", str(out), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    folders = [out / "osworld" / "pyautogui" / "screenshot" / f"pass_{number}" for number in (1, 2)]
    tables = [official_table(folder) for folder in folders]
    for domain, rate in card["domains"].items():
        assert [table[domain][1] for table in tables] == [rate["tasks"]] * 2
        assert sum(table[domain][0] for table in tables) / 2 / rate["tasks"] == pytest.approx(rate["score"])
    assert sum(table["all"][0] for table in tables) / 12 == pytest.approx(card["score"])
    played, _ = read_outcomes(out)
    for number, folder in enumerate(folders):
        found = {outcome.task: (outcome.result, outcome.steps) for outcome in read_results(str(folder))}
        assert found == {each.task: (each.result, each.steps) for each in played if each.attempt == number}
    lines = [json.loads(line) for file in folders[0].glob("*/*/traj.jsonl") for line in file.read_text().splitlines()]
    assert {line["action"] for line in lines if "finished(" in line["response"]} == {"DONE"}
    assert any(line["action"].startswith("import pyautogui\npyautogui.click(") for line in lines)
    assert (folders[0] / played[0].domain / played[0].task / "step_1.png").read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--osworld-layout", "--out", str(out), "--json"]) == 0
    assert official_table(folders[0]) == tables[0]
