"""``bepa status``: figures worked out by hand, a run's folder, and folders that are none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bepa_torchrl.cli import main
from bepa_torchrl.experiment.config import load_config, settings_to_yaml
from bepa_torchrl.experiment.run_record import RunRecord
from bepa_torchrl.methods import METHODS
from bepa_torchrl.monitoring.progress import iteration_line, row
from bepa_torchrl.monitoring.prometheus import StatusFile, method_samples, prometheus_text
from bepa_torchrl.monitoring.status import desktop_failures, method_status, run_status, utilisation
from bepa_torchrl.storage.json_lines import RecordError
from bepa_torchrl.storage.lock import locked


def line(iteration: int, seconds: float, **metrics: float) -> dict[str, Any]:
    totals = {"total/seconds": seconds, "total/episodes": 8.0 * iteration, "total/optimizer_steps": float(iteration)}
    return {"iteration": iteration, "phase": "rl", **totals, "seconds_collect": 3.0, **metrics}


LINES = [
    {"iteration": 0, "phase": "base", "total/seconds": 1.0, "total/episodes": 0.0, "total/optimizer_steps": 0.0},
    line(1, 10.0, **{"collect/stop_env_error": 1.0}),
    line(2, 14.0, **{"collect/stop_env_error": 2.0, "collect/retries": 4.0}),
    line(3, 20.0, **{"collect/success": 0.5, "collect/staleness_max": 1.0, "collect/staleness_0": 2.0}),
]


def test_figures_by_hand() -> None:
    found = method_status(LINES, 10, finished=False)
    assert found["iteration"] == 3
    assert found["seconds_per_iteration"] == 5.0  # from 10 s to 20 s in two iterations
    assert found["episodes_per_second"] == 1.6  # 16 in 10 s
    assert found["collecting"] == 0.6  # 6 s of 10 s
    assert found["seconds_left"] == 35.0  # seven iterations
    assert found["failures"] == {"env_error": 3.0, "crashed_desktop": 0.0, "retries": 4.0, "groups_requeued": 0.0}
    assert found["staleness"] == {"0": 2}
    assert found["newest"] == {"collect/success": 0.5, "collect/staleness_max": 1.0}
    assert method_status(LINES, 10, finished=True)["seconds_left"] == 0.0


USED = [
    line(1, 10.0, **{"collect/desktops": 4.0, "collect/busy_seconds": 3.0, "collect/failed_died": 2.0}),
    line(2, 14.0, **{"collect/desktops": 4.0, "collect/busy_seconds": 9.0, "collect/failed_hung": 0.0}),
    line(3, 20.0, **{"collect/desktops": 4.0, "collect/busy_seconds": 6.0, "collect/failed_died": 1.0}),
]


def test_the_use_of_desktops_and_their_failures_by_hand() -> None:
    assert utilisation(USED) == 0.5  # 18 s of 4 desktops that were there for 3 s in each of 3 iterations
    assert utilisation(LINES) is None
    assert desktop_failures(USED) == {"died": 3.0}
    found = method_status(USED, 10, finished=False)
    assert found["utilisation"] == 0.5
    assert found["failures"]["died"] == 3.0
    assert "desktops 50.0 % busy, failures died 1, 20 s" in iteration_line("bepa", USED[2], 10)
    assert "failures" not in iteration_line("bepa", USED[1], 10)
    assert row("bepa", USED, 10)[-3:] == ["50.0 %", "died 3", "20"]
    assert row("bepa", LINES, 10)[-3:] == ["–", "0", "20"]


def test_before_the_second_iteration_nothing_is_estimated() -> None:
    for lines in ([], LINES[:2]):
        found = method_status(lines, 10, finished=False)
        assert found["seconds_left"] is None
        assert found["seconds_per_iteration"] is None


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with one method."""
    record = RunRecord(tmp_path / "demo" / "grpo")
    record.begin(settings_to_yaml(load_config(["algo=grpo", "train.iterations=10"])))
    for metrics in LINES:
        record.iteration(metrics)
    return tmp_path / "demo"


def test_a_run_that_a_process_holds_is_running(run: Path) -> None:
    written = os.stat(run / "grpo" / "iterations.jsonl").st_mtime
    found = run_status(run, now=written + 7.0)
    assert not found["running"]
    assert found["methods"]["grpo"]["seconds_since_last"] == 7.0
    behind = run_status(run, now=written - 3600.0)  # on another machine
    assert behind["methods"]["grpo"]["seconds_since_last"] == 0.0
    assert found["methods"]["grpo"]["iterations"] == 10
    with locked(run):
        assert run_status(run)["running"]


def test_text_and_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(run)]) == 0
    text = capsys.readouterr().out
    assert "grpo: iteration 3 of 10, 20 s, 24 rollouts" in text
    assert "5.0 s per iteration, 1.60 rollouts/s, 60 % of the time collecting" in text
    assert "about 35 s of training left" in text
    assert "failures: env_error 3, retries 4" in text
    assert main(["status", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["methods"]["grpo"]["seconds_left"] == 35.0


def test_its_json_has_null_for_a_number_that_is_none(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN is no JSON, and other programs refuse it."""
    with (run / "grpo" / "iterations.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line(4, 25.0, **{"collect/success": float("nan")})) + "\n")
    assert main(["status", str(run), "--json"]) == 0
    state = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert state["methods"]["grpo"]["newest"]["collect/success"] is None


def test_a_finished_run_and_one_that_is_prepared_are_called_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "preparing").mkdir()
    (run / "preparing" / "units.jsonl").write_text("{}\n" * 7)
    assert main(["status", str(run)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"{run}: no process runs it"
    assert second == "preparation: 7 units finished"
    (run / "prepared").mkdir()
    results = run / "grpo" / "results.json"
    results.write_text('{"settings": {"iterations": 10}}')
    assert main(["status", str(run)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"{run}: finished"
    assert second == "grpo: finished, 20 s, 24 rollouts"
    results.write_text('{"settings": {"iterations": 2}}')  # then resumed with train.iterations=10
    assert main(["status", str(run)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"{run}: no process runs it"
    assert second == "grpo: iteration 3 of 10, 20 s, 24 rollouts"
    results.write_text("{}")
    with pytest.raises(RecordError, match=r"results\.json: expected the results of a method \(KeyError"):
        run_status(run)


def test_status_needs_the_base_package_only(run: Path) -> None:
    """Everything that the extras install is hidden from a process."""
    hidden = ["torch", "tensordict", "torchrl", "transformers", "hydra", "omegaconf", "yaml", "rich", "matplotlib"]
    code = f"import sys; sys.modules.update(dict.fromkeys({hidden})); from bepa_torchrl.cli import main; "
    code += "sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, "status", str(run)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "grpo: iteration 3 of 10" in done.stdout


def test_the_iterations_of_every_method_are_read_as_the_settings_say(tmp_path: Path) -> None:
    for name, algo in METHODS.items():
        record = RunRecord(tmp_path / name)
        record.begin(settings_to_yaml(load_config([f"algo={name}", "train.iterations=7"])))
        assert run_status(tmp_path)["methods"][name]["iterations"] == (7 if algo.rl else 0)
    (tmp_path / "bepa" / "config.yaml").write_text("algo: {")
    with pytest.raises(RecordError, match="expected the settings of a run"):
        run_status(tmp_path)


def test_a_method_of_the_users_own_module_needs_no_import(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As docs/howto/method.md makes one; the module may be on another machine."""
    settings = run / "grpo" / "config.yaml"
    settings.write_text(settings.read_text().replace("name: grpo\n", "name: my-own\n"))
    (run / "grpo").rename(run / "my-own")
    assert main(["status", str(run)]) == 0
    assert "my-own: iteration 3 of 10" in capsys.readouterr().out


def test_another_folder_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path)]) == 2
    assert "expected the folder of a run, with a folder per method" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "near"), [("mine", "did you mean runs/mine?"), ("runs/mine/prepared", "did you mean"), ("x", "see runs/")]
)
def test_a_run_that_is_in_the_folder_of_runs_is_named(
    given: str, near: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.parent / "place" / "runs").mkdir(parents=True)
    run.rename(run.parent / "place" / "runs" / "mine")
    monkeypatch.chdir(run.parent / "place")
    assert main(["status", given]) == 2
    assert near in capsys.readouterr().err


def test_damaged_files_are_named(tmp_path: Path) -> None:
    method = tmp_path / "bepa"
    RunRecord(method).begin(settings_to_yaml(load_config()))
    for text in ("{}\n", '{"phase": "rl", "iteration": "x"}\n'):
        (method / "iterations.jsonl").write_text(text)
        with pytest.raises(RecordError, match=rf"{method}/iterations\.jsonl: line 1: field 'iteration'"):
            run_status(tmp_path)
    (method / "iterations.jsonl").unlink()
    (method / "config.yaml").write_bytes(b"algo: \xff")
    with pytest.raises(RecordError, match=rf"{method}/config\.yaml: expected the settings of a run"):
        run_status(tmp_path)


def test_a_folder_of_runs_is_not_taken_for_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.yaml").write_text("seed: 0")
    for command in (["status"], ["view", "--out", str(run / "pages")]):
        assert main([*command, str(run.parent)]) == 2
        assert f"got a folder of runs; name one, such as {run}" in capsys.readouterr().err
    assert not (run / "pages").exists()


SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\{(?P<labels>[^}]*)\} (?P<value>\S+)")


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Name and labels → value, of a text in Prometheus' format; every sample has its TYPE before it."""
    found, typed = {}, set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind == "gauge"
            assert name not in typed
            typed.add(name)
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match["name"] in typed
            assert (match["name"], match["labels"]) not in found
            found[match["name"], match["labels"]] = float(match["value"])
    return found


def test_the_status_as_prometheus_text(run: Path) -> None:
    StatusFile(run).update()
    found = parsed((run / "status.prom").read_text())
    of_method = 'run="demo",method="grpo"'
    assert found["bepa_running", 'run="demo"'] == 1.0
    assert found["bepa_iteration", of_method] == 3.0
    assert found["bepa_seconds_left", of_method] == 35.0
    assert found["bepa_collecting", of_method] == 0.6
    assert found["bepa_failures", f'{of_method},kind="env_error"'] == 3.0
    assert found["bepa_staleness_groups", f'{of_method},batches="0"'] == 2.0
    assert found["bepa_collect_success", of_method] == 0.5
    StatusFile(run).update(ended=True)
    assert parsed((run / "status.prom").read_text())["bepa_running", 'run="demo"'] == 0.0
    assert {sample.name for sample in method_samples(run / "grpo")} == {name for name, _ in found} - {"bepa_running"}


def test_labels_are_escaped_and_unknown_values_left_out() -> None:
    method = method_status([], 10, finished=False) | {"seconds_since_last": None}
    text = prometheus_text({"folder": 'runs/a"b\\c', "running": False, "methods": {"bepa": method}})
    assert 'bepa_iterations{run="a\\"b\\\\c",method="bepa"} 10.0' in text.splitlines()
    assert "seconds_left" not in text


def test_a_status_that_cannot_be_written_does_not_end_the_run(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "status.prom").mkdir()
    StatusFile(run).update()
    assert "status.prom is not written" in caplog.text
