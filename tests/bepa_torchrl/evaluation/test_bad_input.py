"""Evaluations that cannot be made as they are asked for: one line that says why, and what there is is kept.

Data files of another edition, missing images, answers in another scale, endpoints and judges that fail are in
``test_grounding``, ``test_hosted_policy`` and ``test_web``. Results of other agents are in
``test_results_of_others``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bepa_torchrl.cli import main
from bepa_torchrl.evaluation.outcomes import Result, read_outcomes
from bepa_torchrl.experiment.config import ConfigError
from bepa_torchrl.experiment.evaluation_folder import claim

ID = "11111111-2222-3333-4444-55555555555"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An OSWorld checkout of two tasks, made up: one requires a proxy, one opens a page."""
    root = tmp_path / "OSWorld"
    folder = root / "evaluation_examples" / "examples" / "chrome"
    folder.mkdir(parents=True)
    pages = [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://example.org"]}}]
    for number, more in enumerate(({"proxy": True}, {"config": pages})):
        task: dict[str, Any] = {
            "id": f"{ID}{number}",
            "instruction": "Find it",
            "snapshot": "chrome",
            "related_apps": [],
        }
        task |= {"config": [], "evaluator": {"func": "infeasible"}, **more}
        (folder / f"{ID}{number}.json").write_text(json.dumps(task))
    monkeypatch.setenv("OSWORLD_ROOT", str(root))
    monkeypatch.setenv("OSWORLD_GYM_OFFLINE", "1")
    no_desktop = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr("bepa_torchrl.experiment.preflight.make_desktop", lambda *_, **__: no_desktop)
    return root


@pytest.mark.usefixtures("checkout")
def test_tasks_that_need_the_web_without_being_allowed_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No desktop starts; each task has no result, with the reason, in each pass."""
    out = tmp_path / "out"
    assert main(["eval", "suite=osworld_verified", "--nothing", "--passes", "2", "--card", "--out", str(out)]) == 3
    outcomes, facts = read_outcomes(out)
    assert [outcome.result for outcome in outcomes] == [Result.no_result] * 4
    assert {outcome.reason for outcome in outcomes} == {"not executable: it needs the live web"}
    card = json.loads((out / "card.json").read_text())
    assert (card["score"], card["denominators"]["listed"]["tasks"]) == (None, 2)
    assert "No task has a result." in capsys.readouterr().out
    assert facts["list"] == "test"


@pytest.mark.usefixtures("checkout")
def test_a_checkout_of_another_edition_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It lacks the tasks of the offline list."""
    assert main(["eval", "suite=osworld_offline", "--nothing", "--out", str(tmp_path / "out")]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "offline_295.json: 295 listed tasks have no file, the first is" in told
    assert not (tmp_path / "out").exists()


def test_a_checkout_that_is_not_there_is_one_line(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for root in (str(tmp_path / "none"), str(checkout.parent)):
        monkeypatch.setenv("OSWORLD_ROOT", root)
        assert main(["eval", "suite=osworld_verified", "--nothing", "--out", str(tmp_path / "out")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "expected the folder of an OSWorld checkout" in line
        assert "fix: export OSWORLD_ROOT=FOLDER" in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["--compare", "a", "b"],
        ["suite=screenspot_v2", "--data", "x", "--out", "y"],
        ["suite=online_mind2web"],
    ],
)
def test_the_hash_of_a_machine_where_there_is_none(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--machine-hash", "a", *arguments]) == 2
    assert "--machine-hash identifies desktops that tasks were played on; leave it out" in capsys.readouterr().err


def test_the_machine_is_on_the_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["eval", "suite=sim", "env.train_limit=1", "--nothing", "--json"]
    assert main([*arguments, "--out", str(tmp_path / "a")]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["machine_hash"].startswith("simulated by osworld-gym ")
    assert card["evaluators"] == "ours"
    assert main([*arguments, "--machine-hash", "sha256:a", "--out", str(tmp_path / "b")]) == 0
    assert json.loads(capsys.readouterr().out)["machine_hash"] == "sha256:a"
    assert main(["eval", "--compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "not the same machine_hash: simulated by osworld-gym" in capsys.readouterr().out
    (tmp_path / "b" / "facts.json").write_text("[]")
    assert main(["eval", "--compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "facts.json: expected a JSON object, got list; evaluate again" in capsys.readouterr().err


def test_a_folder_of_other_settings_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What differs is named; the same command would be refused again, so that it is not what to continue with."""
    arguments = ["eval", "suite=sim", "--passes", "1", "--out", str(tmp_path / "out")]
    assert main([*arguments, "env.train_limit=2", "--nothing"]) == 0
    monkeypatch.setattr("bepa_torchrl.experiment.evaluated_policy.make_policy", lambda *_, **__: pytest.fail("loaded"))
    changed = ["env.train_limit=3", "policy.max_new_tokens=7", "--temperature", "0.5"]
    capsys.readouterr()
    assert main([*arguments, *changed]) == 2
    (told,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("bepa eval: "))
    assert "env.train_limit: 2 → 3; " in told
    assert re.search(r"policy\.max_new_tokens: \d+ → 7; ", told)
    assert "; temperature 0 → temperature 0.5; played by nothing → (not given); give another --out" in told
    assert "continue with" not in told


def test_many_other_settings_are_counted(tmp_path: Path) -> None:
    claim(tmp_path, "".join(f"key{number}: 1\n" for number in range(12)))
    with pytest.raises(ConfigError, match=r"key0: 1 → 2; .*key7: 1 → 2; 4 more; give another --out"):
        claim(tmp_path, "".join(f"key{number}: 2\n" for number in range(12)))
    (tmp_path / "settings.yaml").write_text("- [")
    with pytest.raises(ConfigError, match=r"settings\.yaml: expected the settings of an evaluation, got"):
        claim(tmp_path, "key: 1\n")
