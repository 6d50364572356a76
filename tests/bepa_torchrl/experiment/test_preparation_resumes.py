"""An interrupted preparation goes on where it was: nothing is done twice, and its result is that of one process."""

from __future__ import annotations

import io
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.cli import main
from bepa_torchrl.data import keys as K
from bepa_torchrl.experiment import expert_traces, phases, preparation
from bepa_torchrl.experiment.config import load_config, settings_to_yaml
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.method_process import MethodRun
from bepa_torchrl.experiment.run_folder import continue_command
from bepa_torchrl.experiment.run_record import RunRecord, read_lines
from bepa_torchrl.experiment.tasks import make_tasks
from bepa_torchrl.experts import save_traces
from bepa_torchrl.monitoring.stage_progress import ConsoleProgress
from bepa_torchrl.monitoring.status import run_status
from bepa_torchrl.rollout import stages
from bepa_torchrl.storage.json_lines import UNITS, count_units

#: the tiny policy on few tasks: some self-rollouts succeed
SETTINGS = (
    "experiment=smoke",
    "env.train_limit=5",
    "env.held_out_limit=1",
    "env.desktops=3",
    "expert.pass_k=2",
    "expert.selfroll_attempts=2",
    "eval.final_episodes=1",
    "record.outcomes=true",
    "policy.max_new_tokens=48",
    "compare=[]",
)
SLOW = 600.0  #: seconds that a loaded machine may take


class Interrupted(Exception):
    """Stands for a kill: it is raised at a unit of the preparation."""


class Units:
    """Counts the expert runs, conversions and episodes that are done, and interrupts at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done, self.stop_at = 0, -1
        play, record, convert = stages.run_episodes, expert_traces.record_expert, preparation.convert_trace

        def episodes(*arguments: Any, on_result: Callable[[Any], None], **options: Any) -> Any:
            def finished(result: Any) -> None:
                self.count()
                on_result(result)

            return play(*arguments, on_result=finished, **options)

        def counted(unit: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                self.count()
                return unit(*arguments, **options)

            return call

        monkeypatch.setattr(stages, "run_episodes", episodes)
        monkeypatch.setattr(expert_traces, "record_expert", counted(record))
        monkeypatch.setattr(preparation, "convert_trace", counted(convert))

    def count(self) -> None:
        if self.done == self.stop_at:
            raise Interrupted
        self.done += 1


def prepared(folder: Path) -> preparation.Preparation:
    config = load_config([*SETTINGS, f"runs={folder.parent}", f"name={folder.name}"])
    folder.mkdir(parents=True, exist_ok=True)
    policy = make_policy(config, seed=config.seed)
    return phases.prepared_run(config, folder, policy, make_tasks(config), Console(quiet=True))


def content(folder: Path) -> dict[str, Any]:
    """What a preparation has produced, without times."""
    found = preparation.load_preparation(folder / "prepared")
    metrics = {name: value for name, value in found.metrics.items() if name != "seconds"}
    base = {name: evaluation.to_json() for name, evaluation in found.base.items()}
    caches = [rows_of(cache) for cache in (found.converted, found.self_rolled)]
    outcomes = [timeless(line) for line in read_lines(folder / "base" / "outcomes.jsonl")]
    return {"manifest": found.manifest, "metrics": metrics, "base": base, "caches": caches, "outcomes": outcomes}


def timeless(line: dict[str, Any]) -> dict[str, Any]:
    """An outcome without log-probs, which differ in rounding with the episodes of a batch."""
    return line | {"steps": [{k: v for k, v in step.items() if "log_probs" not in k} for step in line["steps"]]}


def rows_of(cache: TaskTraceCache) -> dict[str, list[Any]]:
    rows = {task: cache.get_trace(task).unbind(0) for task in cache.task_ids()}
    return {
        task: [(row[K.RESPONSE], row[K.PROMPT_TOKENS].tolist(), row[K.RESPONSE_TOKENS].tolist()) for row in each]
        for task, each in rows.items()
    }


@pytest.mark.slow
def test_an_interrupted_preparation_equals_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = Units(monkeypatch)
    prepared(tmp_path / "straight")
    whole = content(tmp_path / "straight")
    total = units.done
    assert total > 30
    assert whole["metrics"]["self_rolled"] > 0
    assert set(whole["manifest"].provenance["self_rolled"]) == set(whole["manifest"].self_rolled)

    units.done = 0
    lost = 0
    for stop in range(2, total, 7):  # in each stage: expert runs, conversion, LEVEL-1, pass@k, evaluations
        units.stop_at = stop
        with pytest.raises(Interrupted):
            prepared(tmp_path / "broken")
        assert not (tmp_path / "broken" / "prepared").exists()
        lost = count_units(tmp_path / "broken" / "preparing")
    units.stop_at = -1
    prepared(tmp_path / "broken")
    assert units.done == total, "nothing was done twice"
    assert lost > 0
    assert content(tmp_path / "broken") == whole
    assert not (tmp_path / "broken" / "preparing").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "twice"), [("grpo", 0), ("sft", 8)])  # fine-tuning is done again, from its start
def test_an_interrupted_final_evaluation_plays_only_what_is_missing_of_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str, twice: int
) -> None:
    folder = tmp_path / "run"
    prepared(folder)
    units = Units(monkeypatch)
    overrides = [*SETTINGS, f"algo={algo}", "train.iterations=1", "collect.groups=1", "collect.group_size=2"]
    for name in ("straight", "broken"):
        config = load_config([*overrides, "eval.every=0", f"runs={tmp_path}", "name=run"])
        RunRecord(folder / name).begin(settings_to_yaml(config))
    assert MethodRun(folder / "straight").run() == 0
    total, units.done, units.stop_at = units.done, 0, 8
    assert total == 12, "greedy and sampled on six tasks"
    with pytest.raises(Interrupted):
        MethodRun(folder / "broken").run()
    text = (folder / "broken" / "config.yaml").read_text().replace("resume: false", "resume: true")
    (folder / "broken" / "config.yaml").write_text(text)
    units.stop_at = -1
    assert MethodRun(folder / "broken").run() == 0
    assert units.done == total + twice
    results = [json.loads((folder / name / "results.json").read_text())["counts"] for name in ("straight", "broken")]
    assert results[0] == results[1]
    assert not (folder / "broken" / "evaluating").exists()


@pytest.mark.slow
def test_a_torn_line_costs_its_unit_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = Units(monkeypatch)
    units.stop_at = 14
    with pytest.raises(Interrupted):
        prepared(tmp_path / "torn")
    path = tmp_path / "torn" / "preparing" / UNITS
    path.write_bytes(path.read_bytes()[:-9])
    units.done, units.stop_at = 0, 0
    with pytest.raises(Interrupted):
        prepared(tmp_path / "torn")
    assert len(path.read_bytes().splitlines()) == 13


@pytest.mark.slow
def test_selfroll_goes_on_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(SETTINGS)
    save_traces(expert_traces.record_experts(config, make_tasks(config).train), tmp_path / "traces")
    command = ["experts", "selfroll", str(tmp_path / "traces"), "--out", str(tmp_path / "out"), *SETTINGS]
    units = Units(monkeypatch)
    assert main([*command[:4], str(tmp_path / "straight"), *SETTINGS]) == 0
    total, units.done, units.stop_at = units.done, 0, 3

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[__name__], "Interrupted", KeyboardInterrupt)
        assert main(command) == 130
    error = capsys.readouterr().err
    assert f"bepa experts selfroll: interrupted; continue with: bepa {shlex.join(command)}" in error
    units.stop_at = -1
    assert main(command) == 0
    assert units.done == total
    assert [path.name for path in tmp_path.glob("out*")] == ["out"]
    one, other = TaskTraceCache(), TaskTraceCache()
    one.loads(tmp_path / "straight" / "cache")
    other.loads(tmp_path / "out" / "cache")
    assert rows_of(one) == rows_of(other) != {}


def test_the_command_that_continues_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(["storage=s3://bucket/runs"])
    assert continue_command(load_config([]), Path("runs/x")) == "bepa train name=x resume=true"
    elsewhere = continue_command(config, tmp_path / "it's (mine)")
    assert load_config(shlex.split(elsewhere)[2:]).name == "it's (mine)"
    assert load_config(shlex.split(elsewhere)[2:]).runs == str(tmp_path)
    assert load_config(shlex.split(continue_command(config, Path("runs/007")))[2:]).name == "007"
    assert "storage=s3://bucket/runs" in elsewhere
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert continue_command(config, Path("runs/x")).startswith("torchrun … -m bepa_torchrl train name=x resume=true")


def test_progress_is_a_line_every_so_often_off_a_terminal() -> None:
    time_, out = [0.0], io.StringIO()
    console = Console(file=out, width=200)
    progress = ConsoleProgress(console, clock=lambda: time_[0], now=lambda: datetime(2026, 1, 1, 12, 0))
    with progress:
        progress.begin("LEVEL-1", 10, 2)
        for _ in range(8):
            time_[0] += 20.0
            progress.advance()
    # 2 in 40 s, 6 left: 120 s; 4 in 80 s, 4 left: 80 s; 6 in 120 s, 2 left: 40 s
    assert out.getvalue().splitlines() == [
        "LEVEL-1: 2 of 10 were finished before",
        "LEVEL-1: 4 of 10, 3.00 per min, about 2 min 00 s left, until 12:02",
        "LEVEL-1: 6 of 10, 3.00 per min, about 1 min 20 s left, until 12:01",
        "LEVEL-1: 8 of 10, 3.00 per min, about 40 s left, until 12:00",
        "LEVEL-1: 10 of 10",
    ]


def test_progress_is_a_bar_with_an_estimated_end_on_a_terminal() -> None:
    time_, out = [0.0], io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    with ConsoleProgress(console, clock=lambda: time_[0]) as progress:
        progress.begin("pass@5", 4, 0)
        time_[0] += 2.0
        progress.advance()
        progress.note("a note")
    text = out.getvalue()
    assert "━" in text
    assert "1/4" in text
    assert "0.50 per s, about 6 s left, until" in text


# a shell that starts this in the background has SIGINT ignored, which its processes inherit
MAIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from bepa_torchrl.commands.train import main
sys.exit(main(sys.argv[1:]))
"""
KILLED = (*SETTINGS, "algo=grpo", "train.iterations=1", "collect.groups=1", "collect.group_size=2", "eval.every=0")


def start(runs: Path, name: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAIN, f"name={name}", f"runs={runs}", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_9_at_any_moment_of_the_preparation_changes_nothing(tmp_path: Path) -> None:
    """The real program; it is killed after some number of units, several times, and once interrupted by Ctrl-C."""
    with start(tmp_path, "straight", *KILLED) as straight:
        _, error = straight.communicate(timeout=SLOW)
        assert straight.returncode == 0, error
    ledger = tmp_path / "broken" / "preparing"
    more: tuple[str, ...] = KILLED
    for units, kind in ((3, signal.SIGKILL), (8, signal.SIGKILL), (13, signal.SIGINT), (21, signal.SIGKILL)):
        with start(tmp_path, "broken", *more) as process:
            end = time.monotonic() + SLOW
            while count_units(ledger) < units:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end
                time.sleep(0.01)
            assert list(run_status(tmp_path / "broken")["methods"]) == ["grpo"]
            process.send_signal(kind)
            _, error = process.communicate(timeout=SLOW)
        before = count_units(ledger)
        assert before >= units
        if kind == signal.SIGINT:
            assert process.returncode == 130
            command = error.strip().rpartition("continue with: ")[2]
            assert command == f"bepa train name=broken resume=true runs={tmp_path}"
        more = ("resume=true",)
    with start(tmp_path, "broken", *more) as process:
        output, error = process.communicate(timeout=SLOW)
        assert process.returncode == 0, error
    assert f"goes on: {before} units" in output
    one, other = (content(tmp_path / name) for name in ("straight", "broken"))
    assert one == other
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("straight", "broken")]
    assert results[0]["methods"]["grpo"]["counts"] == results[1]["methods"]["grpo"]["counts"]
