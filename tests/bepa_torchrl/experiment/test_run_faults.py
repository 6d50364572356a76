"""Faults of complete runs, started by the command line: killed, stopped, damaged, full disk, started twice."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from small_disk import small_disk
from smallest_run import smallest_run

from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.training.checkpoint import damage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
#: a shell starts jobs in the background with SIGINT ignored, which these tests send
MAIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from bepa_torchrl.commands.train import main
sys.exit(main(sys.argv[1:]))
"""
DEADLINE = 300.0
LONG = "longer-than-the-80-columns-of-a-console-" * 2


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [
        *smallest_run(tmp_path_factory.mktemp("p")),
        "eval.every=0",
        "eval.final_episodes=0",
        "record.every=1",
        "record.images=false",
        "train.iterations=5",
    ]


@pytest.fixture(scope="module")
def straight(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without faults."""
    runs = tmp_path_factory.mktemp("runs")
    assert main([*settings, f"runs={runs}", "name=x"]) == 0
    return runs / "x"


def start(settings: list[str], *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAIN, *settings, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def iterations(folder: Path) -> list[dict[str, Any]]:
    path = folder / "level2" / "iterations.jsonl"
    return read_lines(path) if path.exists() else []


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    end = time.monotonic() + DEADLINE
    while not (found := what()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@pytest.fixture
def under_way(settings: list[str], tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process, Path]]:
    """A run in its third iteration or later, and the process of its method."""
    folder = tmp_path / LONG / "x"
    with start(settings, f"runs={folder.parent}", "name=x") as launcher:
        wait_for(lambda: any(line["iteration"] == 2 for line in iterations(folder)), launcher)
        children = psutil.Process(launcher.pid).children()
        (worker,) = (child for child in children if any("method_process" in word for word in child.cmdline()))
        try:
            yield launcher, worker, folder
        finally:
            for process in (launcher, worker):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def assert_same_run(folder: Path, straight: Path) -> None:
    """The same curve and the same weights; every step once in every log."""
    first, second = (
        [{k: v for k, v in line.items() if "seconds" not in k and k != "phase"} for line in iterations(run)]
        for run in (straight, folder)
    )
    assert len(second) == len(first)
    for found, expected in zip(second, first, strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    weights = [load_file(run / "level2" / "policy" / "model.safetensors") for run in (straight, folder)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    tokens = [
        [(line["iteration"], line["slot"], [step["tokens"] for step in line["steps"]]) for line in lines]
        for lines in (read_lines(run / "level2" / "episodes.jsonl") for run in (straight, folder))
    ]
    assert tokens[0] == tokens[1]
    assert_no_repeated_steps(folder, len(first) - 1)


def assert_no_repeated_steps(folder: Path, count: int) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    logs, expected = folder / "level2" / "logs", list(range(1, count + 1))
    lines = (logs / "csv" / "scalars" / "collect" / "success.csv").read_text().splitlines()
    assert [int(line.split(",")[0]) for line in lines] == expected
    events = [event for path in logs.rglob("events.out*") for event in EventFileLoader(str(path)).Load()]
    found = [e.step for e in events if e.HasField("summary") and e.summary.value[0].tag == "collect/success"]
    assert sorted(found) == expected


def gone(process: psutil.Process, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_a_second_process_is_refused_and_a_kill_ends_even_a_stopped_worker(
    under_way: tuple[subprocess.Popen[str], psutil.Process, Path],
    straight: Path,
    settings: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    launcher, worker, folder = under_way
    worker.send_signal(signal.SIGSTOP)  # an iteration that takes long
    for arguments in (["resume=true"], settings):
        assert main([*arguments, "name=x", f"runs={folder.parent}"]) == 2
        error = capsys.readouterr().err
        assert f"{folder} is in use by process {launcher.pid}; wait for it" in error
        assert len(error.strip().splitlines()) == 1
    launcher.kill()
    assert gone(worker, 10.0)
    assert main(["resume=true", "name=x", f"runs={folder.parent}"]) == 0
    assert_same_run(folder, straight)


def test_a_worker_that_is_killed_is_named_by_its_signal(
    under_way: tuple[subprocess.Popen[str], psutil.Process, Path], straight: Path
) -> None:
    launcher, worker, folder = under_way
    worker.kill()
    _, error = launcher.communicate(timeout=60)
    assert launcher.returncode == 3
    (line,) = error.strip().splitlines()
    assert "level2: ended by signal SIGKILL (killed from outside, or by the system when memory ran out" in line
    assert "lower train.max_tokens" in line
    assert line.endswith(f"; continue with: bepa train name=x resume=true runs={folder.parent}")
    assert main(["resume=true", "name=x", f"runs={folder.parent}"]) == 0
    assert_same_run(folder, straight)


def test_an_interrupted_run_ends_its_worker_and_prints_a_summary(
    under_way: tuple[subprocess.Popen[str], psutil.Process, Path],
) -> None:
    """The launcher alone gets the signal, then both, as from a terminal."""
    launcher, worker, folder = under_way
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.05)
    with suppress(psutil.NoSuchProcess):
        worker.send_signal(signal.SIGINT)
    output, error = launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert gone(worker, 1.0)
    assert "level2: interrupted\n" in (folder / "level2" / "log.txt").read_text()
    assert f"{folder}: no process runs it" in output.splitlines()
    assert "newest checkpoint: iteration" in output
    command = f"bepa train name=x resume=true runs={folder.parent}"
    assert error.splitlines()[-1] == f"bepa train: interrupted; continue with: {command}"
    assert 'bepa_running{run="x"} 0.0' in (folder / "status.prom").read_text().splitlines()


def test_an_interrupt_that_only_the_worker_gets_is_one_of_the_run(
    under_way: tuple[subprocess.Popen[str], psutil.Process, Path],
) -> None:
    """Ctrl-C reaches both in any order: the worker may have ended before the launcher handles the signal."""
    launcher, worker, folder = under_way
    worker.send_signal(signal.SIGINT)
    output, error = launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert f"{folder}: no process runs it" in output.splitlines()
    assert "resume=true" in error


def test_a_damaged_checkpoint_and_leftovers_of_a_killed_save(
    straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / LONG / "x"
    shutil.copytree(straight, folder)
    (folder / "level2" / "results.json").unlink()
    checkpoints = folder / "level2" / "checkpoints"
    newest = checkpoints / "iteration-000000000005"
    weights = next(newest.glob("components/*-weights/model.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-100] ^= 4  # in the weights, so that the file is still readable
    weights.write_bytes(bytes(data))
    (checkpoints / ".iteration-000000000006.stage-0").mkdir()
    assert main(["resume=true", "name=x", f"runs={folder.parent}"]) == 0
    output = capsys.readouterr().out
    assert f"results  {folder / 'results.json'}" in output.splitlines()
    printed = " ".join(output.split())
    assert "level2: checkpoint iteration-000000000005 is damaged (components" in printed
    assert "renamed to iteration-000000000005.damaged; going on from iteration 4" in printed
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "iteration-000000000004",
        "iteration-000000000005",
        "iteration-000000000005.damaged",
    ]
    assert_same_run(folder, straight)


def test_a_finished_run_is_made_longer_and_other_changes_are_refused(
    straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "x"
    shutil.copytree(straight, folder)
    before = (folder / "level2" / "config.yaml").read_text()
    resume = ["resume=true", "name=x", f"runs={tmp_path}"]
    for change, message in (
        ("optimizer.lr=1e-2", "resume=true cannot change optimizer.lr: 0.0003 → 0.01"),
        ("train.iterations=2", "train.iterations=2 is less than the 5 iterations"),
    ):
        assert main([*resume, "train.iterations=7", change]) == 2
        assert message in capsys.readouterr().err
    assert (folder / "level2" / "config.yaml").read_text() == before
    assert main([*resume, "train.iterations=7"]) == 0
    assert json.loads((folder / "level2" / "results.json").read_text())["iterations"] == 7
    assert [line["iteration"] for line in iterations(folder)] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert_no_repeated_steps(folder, 7)


def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(
    straight: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    size = sum(path.stat().st_size for path in straight.rglob("*") if path.is_file())
    blocks = sum(-path.stat().st_size % 4096 for path in straight.rglob("*") if path.is_file())
    largest = max(path.stat().st_size for path in straight.rglob("*") if path.is_file())
    with small_disk(tmp_path, size=size + blocks + 300_000, largest_file=largest - 1) as disk:
        folder = disk / "x"
        shutil.copytree(straight, folder)
        assert main(["resume=true", "name=x", f"runs={disk}", "train.iterations=7"]) == 3
        (line,) = capfd.readouterr().err.strip().splitlines()
        assert "level2: " in line
        assert "disk full" in line or "could not be saved" in line
        assert "resume=true" in line
        checkpoints = folder / "level2" / "checkpoints"
        assert sorted(path.name[-1] for path in checkpoints.iterdir()) == ["4", "5"]
        assert damage(checkpoints / "iteration-000000000005") is None
