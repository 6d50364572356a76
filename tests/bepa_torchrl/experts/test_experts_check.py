"""``bepa experts check`` on the bundled logs: the report of the documentation, JSON, exit codes, speed of reading."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from expert_logs import TASK, good, write_run
from repository import ROOT
from run_folders import training_run

from bepa_torchrl.cli import main
from bepa_torchrl.experts import READERS, check_sources, convert_trace, plan_from_trace
from bepa_torchrl.experts.readers.families import FAMILIES
from osworld_gym.tasks.suites.registry import load_suite
from scripts.make_expert_logs import write

LOGS = ROOT / "examples" / "experts"
PAGE = (ROOT / "docs" / "experts.md").read_text(encoding="utf-8")


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["experts", "check", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_documentation_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shown = re.search(r"\$ bepa experts check examples/experts\n(.*?)```", PAGE, re.S)
    assert shown
    assert check(capsys, "examples/experts") == (0, shown[1], "")


def test_the_documentation_has_every_family_with_its_scale() -> None:
    for family in FAMILIES:
        assert f"| `{family.name}` | {family.title} | {', '.join(family.scales) or 'not compared'} |" in PAGE
    assert set(re.findall(r"^\| `(\w+)` \| ", PAGE, re.M)) == set(READERS) - {"auto"}


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, str(LOGS), "--json")
    found = json.loads(out)
    assert code == 0
    runs = {run["run"]: run for run in found["runs"]}
    assert runs["agent_s3/sim/sim-toggle-on-00"] == {
        "source": str(LOGS),
        "run": "agent_s3/sim/sim-toggle-on-00",
        "family": "agent_s3",
        "task": "sim-toggle-on-00",
        "steps": 4,
        "outcome": "success",
        "usable": ["plan", "converted", "raw"],
        "problems": [],
        "skipped": False,
    }
    assert runs["agent_s2/sim/sim-toggle-off-02"]["outcome"] == "crashed"
    assert runs["agent_s3/sim/sim-toggle-off-02"]["outcome"] == "no result"
    assert "resized pixels would fit" in runs["wrong_scale/sim/sim-choose-00"]["problems"][0]
    assert found["totals"]["usable"] == {"plan": 4, "converted": 4, "raw": 4}
    assert found["totals"]["skipped"] == 3


def test_the_bundled_logs_are_what_the_script_writes(tmp_path: Path) -> None:
    write(tmp_path)
    made, kept = ({p.relative_to(r): p for p in r.rglob("*") if p.is_file()} for r in (tmp_path, LOGS))
    assert set(made) == set(kept)
    for name, path in made.items():
        if path.suffix != ".png":
            assert path.read_bytes() == kept[name].read_bytes(), name


def test_every_usable_run_of_the_bundled_logs_becomes_a_plan_and_a_conversion() -> None:
    traces = [trace for trace in READERS["auto"](LOGS, load_suite("sim").split("all")) if trace.success]
    assert len(traces) == 4
    for trace in traces:
        assert plan_from_trace(trace).startswith("1. ")
        assert convert_trace(trace).faithful


def test_runs_of_other_tasks_are_skipped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_run(tmp_path, good())
    assert check(capsys, str(tmp_path))[0] == 0
    code, out, _ = check(capsys, str(tmp_path), "--suite", "sim")
    assert code == 2
    assert "skipped 1: the task is not in the suite" in out


def test_a_task_that_ran_once_needs_no_folder(tmp_path: Path) -> None:
    write_run(tmp_path, good())
    head, row, *_ = check_sources([str(tmp_path)]).lines()
    assert head.split() == ["family", "task", "steps", "outcome", "usable", "for", "problems"]
    assert row.split() == ["agent_s2", TASK.id, "2", "success", "plan,", "converted,", "raw"]


def test_many_problems_are_counted(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "agent_s2" / "sim" / "sim-choose-00", tmp_path / "a-task")
    for picture in (tmp_path / "a-task").glob("*.png"):
        picture.unlink()
    (line,) = [line for line in check_sources([str(tmp_path)]).lines() if "a-task" in line]
    assert line.endswith("; 3 more")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/none"], "there is no folder"),
        (["{}"], "no run found; expected folders <task id>/traj.jsonl"),
        (["agent_s9:{}"], "no reader 'agent_s9' (did you mean 'agent_s"),
        (["{}", "--suite", "nothing"], "nothing"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = check(capsys, *(argument.format(tmp_path) for argument in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_training_run_is_named_once_and_its_expert_s_traces_are_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The rows of its caches are JSON below ``traces``, and no log."""
    run = training_run(tmp_path / "check")
    named = f"{run} is a training run: its caches, checkpoints and episodes are no logs, and are left out"
    code, out, _ = check(capsys, str(tmp_path))
    assert (code, out.count("training run"), "rows" in out) == (0, 1, False)
    assert out.splitlines()[-1] == named
    assert "1 runs of 1 tasks: success 1," in out
    found = json.loads(check(capsys, str(run), "--json")[1])
    assert (len(found["runs"]), found["training_runs"]) == (1, [str(run)])
    assert named not in check(capsys, str(run / "prepared" / "experts"))[1]


def test_a_part_of_a_training_run_without_logs_names_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = training_run(tmp_path / "check")
    code, out, err = check(capsys, str(run / "bepa"))
    assert (code, out) == (2, "")
    assert f"no run of an expert found, but the training run {run}; its expert's traces" in err
    assert f"are in {run / 'prepared' / 'experts'}" in err


def test_reading_logs_needs_no_torch() -> None:
    program = "import sys; from bepa_torchrl.cli import main; main(['experts', 'check', sys.argv[1]])"
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}; sys.exit('torch' in sys.modules)", str(LOGS)],
        check=False,
        capture_output=True,
    )
    assert ended.returncode == 0


def test_screenshots_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    import PIL.Image

    monkeypatch.setattr(PIL.Image, "open", None)
    assert len(check_sources([str(LOGS)]).runs) == 8
