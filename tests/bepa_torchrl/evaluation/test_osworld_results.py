"""Results in OSWorld's layout: what its runner writes is read with crashes told apart, and ours has its form."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bepa_torchrl.evaluation.card import make_card
from bepa_torchrl.evaluation.osworld_results import read_results, read_score, write_episode
from bepa_torchrl.evaluation.outcomes import Outcome, Result
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


@pytest.mark.parametrize(
    ("text", "score"),
    [("1", 1.0), ("0.25\n", 0.25), ("True", 1.0), ("False", 0.0), ("", None), ("2", None), ("nan", None), ("x", None)],
)
def test_scores(tmp_path: Path, text: str, score: float | None) -> None:
    (tmp_path / "result.txt").write_text(text)
    assert read_score(tmp_path / "result.txt") == score


def test_what_we_write_is_read_back_the_same(tmp_path: Path) -> None:
    won = Outcome("a", "os", 0, Result.success, 1.0, steps=1)
    lost = Outcome("b", "os", 0, Result.no_result, None, reason="infrastructure: died", steps=1)
    for outcome in (won, lost):
        write_episode(tmp_path, outcome, ["Thought: click"], [CODE], [b"png"])
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
