"""The launcher: every method runs on the simulated desktop, runs resume, bad input gives one line and an exit code."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment import launcher as program
from bepa_torchrl.experiment import phases
from bepa_torchrl.experiment.config import load_config, read_settings, settings_to_yaml
from bepa_torchrl.experiment.expert_traces import expert_traces
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.method_process import MethodRun
from bepa_torchrl.experiment.phases import prepared_run
from bepa_torchrl.experiment.preparation import convert_all, load_preparation
from bepa_torchrl.experiment.run_folder import (
    begun,
    check_new_run,
    locked_new_run,
    locked_run,
    run_folder,
    write_settings,
)
from bepa_torchrl.experiment.run_record import RunRecord, read_lines
from bepa_torchrl.experiment.tasks import make_tasks
from bepa_torchrl.experts import READERS, TraceError
from bepa_torchrl.methods import METHODS
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.storage import FolderError
from bepa_torchrl.storage.json_lines import RecordError
from bepa_torchrl.storage.lock import FolderInUseError, locked
from bepa_torchrl.testing import small_checkpoint
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.uitars.coords import ImageScaling

QUICK = (
    "experiment=smoke",
    "policy.max_new_tokens=16",
    "env.max_steps=2",
    "env.desktops=8",
    "train.minibatch_groups=1",
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random small model: it solves nothing, but is trained on the expert's converted traces."""
    return TransformersPolicy(small_checkpoint(), preset="compact").save(tmp_path_factory.mktemp("policy") / "random")


@pytest.fixture(scope="module")
def prepared(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """A run's folder with its preparation, and its settings."""
    runs = tmp_path_factory.mktemp("runs")
    overrides = (*QUICK, f"policy.checkpoint={checkpoint}", f"runs={runs}", "name=all", "compare=[]")
    config = load_config(overrides)
    folder = run_folder(config)
    folder.mkdir()
    policy = make_policy(config, seed=0)
    prepared_run(config, folder, policy, make_tasks(config), Console(quiet=True))
    return folder, overrides


def work(folder: Path, name: str, overrides: tuple[str, ...], *more: str) -> MethodRun:
    config = load_config([*overrides, *more])
    if not config.resume:
        RunRecord(folder / name).begin(settings_to_yaml(config))
    worker = MethodRun(folder / name)
    assert worker.run() == 0
    return worker


def test_preparation_is_whole_and_read_back(prepared: tuple[Path, tuple[str, ...]]) -> None:
    folder, _ = prepared
    found = load_preparation(folder / "prepared")
    assert found.manifest.counts["train"] == found.manifest.counts["expert"] == found.manifest.counts["converted"] == 4
    assert len(found.converted) == 4
    assert not set(found.converted.task_ids()) & set(found.manifest.held_out)
    assert {path.name for path in (folder / "prepared").iterdir()} == {
        "base.json",
        "checksums.json",
        "converted",
        "experts",
        "manifest.json",
        "self_rolled",
    }


def test_every_damaged_file_of_a_preparation_is_noticed(prepared: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    folder, _ = prepared
    copy = tmp_path / "prepared"
    shutil.copytree(folder / "prepared", copy)
    for path in sorted(copy.rglob("*.json")):
        data = path.read_bytes()
        for damaged in (data.replace(b"1", b"2", 1), data[:-3]):
            path.write_bytes(damaged)
            with pytest.raises((FolderError, TraceError)):
                load_preparation(copy)
        path.write_bytes(data)
    load_preparation(copy)
    (copy / "checksums.json").unlink()  # as in earlier versions
    load_preparation(copy)


def test_the_experts_of_another_run_are_taken_instead_of_playing(prepared: tuple[Path, tuple[str, ...]]) -> None:
    folder, overrides = prepared
    kept = load_config([*overrides, f"expert.logs=[{folder}/prepared/experts]"])
    tasks = make_tasks(kept).train
    found = expert_traces(kept, tasks)
    assert sorted(trace.task_id for trace in found) == sorted(task.id for task in tasks)
    twice = expert_traces(
        load_config([*overrides, f"expert.logs=[{folder}/prepared/experts,{folder}/prepared/experts]"]), tasks
    )
    assert len(twice) == 2 * len(found)
    assert len(convert_all(make_policy(kept, seed=0), twice)) == len(found)


def in_the_default_or_the_slow_tier() -> list[object]:
    """A sample of each kind in the default tier: of a cache, of mixed groups, of rollouts alone, of fine-tuning."""
    sample = ("level2", "luffy", "grpo", "sft")
    return [
        pytest.param(name, id=name, marks=() if name in sample else pytest.mark.slow)
        for name in METHODS
        if not name.startswith("sft_self")
    ]


@pytest.mark.parametrize("name", in_the_default_or_the_slow_tier())
def test_every_method_runs_by_one_key(name: str, prepared: tuple[Path, tuple[str, ...]]) -> None:
    folder, overrides = prepared
    worker = work(folder, name, overrides, f"algo={name}", "train.iterations=1", "eval.every=0", "collect.group_size=3")
    results = json.loads((folder / name / "results.json").read_text())
    assert results["algo"] == name
    assert set(results["success"]) == {"greedy", "sampled"}
    learns = name in ("replacement", "luffy", "level2", "rl_sft", "sft", "sft_rl")
    assert (results["totals"]["optimizer_steps"] > 0) == learns
    before = load_file(Path(worker.config.policy.checkpoint) / "model.safetensors")
    after = load_file(folder / name / "policy" / "model.safetensors")
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    assert bool(moved) == learns
    assert not any("visual" in key for key in moved)
    lines = read_lines(folder / name / "iterations.jsonl")
    episodes = {"luffy": 4.0, "sft": 0.0}.get(name, 6.0)
    assert sum(line.get("collect/episodes", 0.0) for line in lines) == episodes


@pytest.mark.slow
def test_fine_tuning_on_self_rolled_traces_requires_some(
    prepared: tuple[Path, tuple[str, ...]], tmp_path: Path
) -> None:
    """The random model solves nothing; with the converted traces instead of its own, it is trained on them."""
    folder, overrides = prepared
    with pytest.raises(ValueError, match="no trace to fine-tune on"):
        work(folder, "sft_self", overrides, "algo=sft_self")
    shutil.copytree(folder / "prepared", tmp_path / "prepared")
    shutil.rmtree(tmp_path / "prepared" / "self_rolled")
    shutil.copytree(folder / "prepared" / "converted", tmp_path / "prepared" / "self_rolled")
    work(tmp_path, "sft_self", overrides, "algo=sft_self", "eval.final_episodes=0")
    results = json.loads((tmp_path / "sft_self" / "results.json").read_text())
    rows = sum(line.get("rows", 0.0) for line in read_lines(tmp_path / "sft_self" / "iterations.jsonl"))
    assert results["totals"]["optimizer_steps"] > 0
    assert rows > 0
    assert results["totals"]["episodes"] == 0
    settings = ("algo=sft_self_rl", "eval.final_episodes=0", "train.iterations=1", "collect.group_size=3")
    work(tmp_path, "sft_self_rl", overrides, *settings)
    lines = read_lines(tmp_path / "sft_self_rl" / "iterations.jsonl")
    assert [line["phase"] for line in lines if line["phase"] != "sft"] == ["base", "rl"]
    assert sum(line.get("rows", 0.0) for line in lines if line["phase"] == "sft") == rows
    assert sum(line.get("collect/episodes", 0.0) for line in lines) == 6.0


@pytest.mark.slow  # test_trainer.py has the trainer's own
def test_resumed_run_gives_the_uninterrupted_curve(prepared: tuple[Path, tuple[str, ...]]) -> None:
    folder, overrides = prepared
    settings = (*overrides, "algo=level2", "eval.every=1", "collect.groups=2", "eval.final_episodes=0")
    work(folder, "straight", settings, "train.iterations=3")
    work(folder, "broken", settings, "train.iterations=2")
    text = (folder / "broken" / "config.yaml").read_text()
    resumed = text.replace("resume: false", "resume: true").replace("iterations: 2", "iterations: 3")
    (folder / "broken" / "config.yaml").write_text(resumed)
    assert MethodRun(folder / "broken").run() == 0
    one, other = (read_lines(folder / name / "iterations.jsonl") for name in ("straight", "broken"))
    timeless = [
        [{k: v for k, v in line.items() if "seconds" not in k and k != "phase"} for line in lines]
        for lines in (one, other)
    ]
    # the second run's second iteration was its last, which has no evaluation during training
    assert [line["iteration"] for line in other] == [0, 1, 2, 3]
    for line in (-1, 1):
        assert timeless[1][line] == pytest.approx(timeless[0][line], rel=1e-4, abs=1e-5)
    first, second = (load_file(folder / name / "policy" / "model.safetensors") for name in ("straight", "broken"))
    assert all((first[key] - second[key]).norm() <= 1e-5 * first[key].norm() for key in first)


@pytest.mark.slow
def test_tasks_without_a_trace_are_rolled_again_and_a_resumed_run_repeats_it(tmp_path: Path) -> None:
    """The tiny policy, which follows some plans; what is added is in the cache and its cost in the episodes."""
    overrides = (
        "experiment=smoke",
        "env.train_limit=32",
        "env.held_out_split=null",
        f"runs={tmp_path}",
        "name=again",
        "compare=[]",
        "eval.every=0",
    )
    config = load_config(overrides)
    folder = run_folder(config)
    folder.mkdir()
    prepared_run(config, folder, make_policy(config, seed=0), make_tasks(config), Console(quiet=True))
    settings = (*overrides, "algo=level1", "expert.reroll_every=1", "eval.final_episodes=0")
    work(folder, "straight", settings, "train.iterations=2")
    lines = [line for line in read_lines(folder / "straight" / "iterations.jsonl") if line["phase"] == "rl"]
    for before, after in itertools.pairwise(lines):
        assert after["cache/tasks"] == before["cache/tasks"] + before["reroll/added"]
        assert after["reroll/tasks"] == before["reroll/tasks"] - before["reroll/added"]
    assert lines[0]["reroll/tasks"] == 32 - lines[0]["cache/tasks"] > 0
    assert all(line["reroll/stale"] == 0 for line in lines)
    work(
        folder,
        "stale",
        (*settings, "collect.groups=16", "collect.group_size=4", "expert.reroll_stale=1"),
        "train.iterations=1",
    )
    (line,) = (line for line in read_lines(folder / "stale" / "iterations.jsonl") if line["phase"] == "rl")
    assert line["policy_version"] >= 1  # so that every trace of the base policy is stale
    assert (line["reroll/tasks"], line["reroll/stale"]) == (32, line["cache/tasks"])
    assert lines[-1]["total/episodes"] == sum(line["collect/episodes"] + line["reroll/episodes"] for line in lines)
    work(folder, "broken", settings, "train.iterations=1")
    text = (folder / "broken" / "config.yaml").read_text()
    resumed = text.replace("resume: false", "resume: true").replace("iterations: 1", "iterations: 2")
    (folder / "broken" / "config.yaml").write_text(resumed)
    assert MethodRun(folder / "broken").run() == 0
    again = [line for line in read_lines(folder / "broken" / "iterations.jsonl") if line["phase"] == "rl"]
    counted = ("cache/tasks", "reroll/tasks", "reroll/added", "total/episodes")
    assert [[line[key] for key in counted] for line in again] == [[line[key] for key in counted] for line in lines]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["algo=bepaa"], 2, "unknown algo 'bepaa' (did you mean 'bepa'?)"),
        (["import=[no_such_module]", "algo=own"], 2, "import: cannot import 'no_such_module' (ModuleNotFoundError: "),
        (["compare=[lufy]"], 2, "unknown algo 'lufy' (did you mean 'luffy'?)"),
        (["env.provider=simm"], 2, "unknown provider 'simm'"),
        (["env.suite=nowhere"], 2, "unknown suite 'nowhere'"),
        (["env.train_split=trian"], 2, "no split 'trian' in suite 'sim'"),
        (["env.train_limit=0"], 2, "env.train_limit: expected an integer of at least 1 or null, got 0"),
        (["collect.group_size=1"], 2, "collect.group_size=1: bepa requires at least 2"),
        (["collect.group_size=2", "algo=luffy"], 2, "collect.group_size=2: luffy requires at least 3"),
        (["collect.groups=65"], 2, "collect.groups=65 requires 65 different training tasks"),
        (
            ["policy.checkpoint=./nowhere"],
            2,
            "expected a checkpoint folder, no such folder; fix: policy.checkpoint=",
        ),
        (["loss.aggregation=sum_norm"], 2, "loss.aggregation=sum_norm requires the longest episode in units"),
        (["train.iteration=1"], 2, "unknown key 'train.iteration' (did you mean 'train.iterations'?)"),
        (["resume=true", "name=nothing"], 2, "nothing to resume in"),
        (["expert.logs=[s3:/x]"], 2, "no reader 's3'"),
        (["env.held_out_split=train"], 2, "env.train_split=train and env.held_out_split=train share 64 tasks"),
        (["env.train_split=nowhere.json"], 2, "env.train_split=nowhere.json: expected a list of tasks, no such file"),
        (["env=osworld", "env.suite=../nowhere"], 2, "unknown suite '../nowhere'"),
        (["name=a/b"], 2, "name='a/b' must be one folder name"),
        (["name=.."], 2, "name='..' must be one folder name"),
    ],
)
def test_bad_input_is_one_line_with_the_fix_and_writes_nothing(
    arguments: list[str], code: int, message: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"policy.checkpoint={checkpoint}", *arguments, f"runs={tmp_path}"]) == code
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_logs_that_solved_no_task_are_found_before_the_folder_is_made(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(READERS, "nothing", lambda _folder, _tasks: [])
    logs, runs = tmp_path / "logs", tmp_path / "runs"
    logs.mkdir()
    settings = [*QUICK, f"policy.checkpoint={checkpoint}", f"expert.logs=[nothing:{logs}]", f"runs={runs}", "name=x"]
    for more in ([], ["algo=grpo", "compare=[]"]):
        assert main([*settings, *more]) == 2
        error = capsys.readouterr().err
        assert "no run that solved one of the 4 tasks" in error
        assert "resume" not in error
        assert not (runs / "x").exists()


def test_the_launcher_keeps_no_weights_while_methods_train(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, alive = [], []
    make = phases.make_policy

    def note(*args: Any, **options: Any) -> Any:
        policy = make(*args, **options)
        made.append(weakref.ref(policy.model))
        return policy

    monkeypatch.setattr(phases, "make_policy", note)
    monkeypatch.setattr(phases, "prepared_run", lambda *_: None)
    monkeypatch.setattr(phases, "train_methods", lambda *_: alive.append(made[0]() is not None) or 1)
    overrides = [*QUICK, f"policy.checkpoint={checkpoint}", f"runs={tmp_path}", "name=run"]
    assert program.run(overrides, console=Console(quiet=True)) == 1
    assert alive == [False]


def test_bad_input_during_a_run_asks_for_another_name(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(*_: object) -> None:
        raise TraceError("no trace can be used")

    monkeypatch.setattr(phases, "prepared_run", end)
    assert main([*QUICK, f"policy.checkpoint={checkpoint}", f"runs={tmp_path}", "name=bad"]) == 2
    said = f"start a run with other settings by another name=, since {tmp_path}/bad exists"
    assert capsys.readouterr().err == f"bepa train: no trace can be used; {said}\n"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "bepa train: interrupted"),
        (DesktopError(FailureReason.died, "gone"), 3, "bepa train: died: gone"),
        (SystemExit(143), 143, "bepa train: ended"),
    ],
)
def test_what_ends_a_run_is_one_line_with_the_command_that_continues_it(
    error: BaseException,
    code: int,
    told: str,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def end(*_: object) -> None:
        raise error

    monkeypatch.setattr(phases, "prepared_run", end)
    overrides = [*QUICK, f"policy.checkpoint={checkpoint}", f"runs={tmp_path}", "name=ended"]
    try:
        found = main(overrides)
    except SystemExit as exit_:
        found = exit_.code
    assert found == code
    command = f"bepa train name=ended resume=true runs={tmp_path}"
    assert capsys.readouterr().err == f"{told}; continue with: {command}\n"
    monkeypatch.setattr(phases, "prepared_run", lambda *_: None)
    monkeypatch.setattr(phases, "train_methods", lambda *_: 1)
    assert main(shlex.split(command)[2:]) == 1  # it does


def test_a_run_is_not_overwritten(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").touch()
    assert main(["name=mine", f"runs={tmp_path}", f"policy.checkpoint={checkpoint}"]) == 2
    assert (
        "mine exists and is not overwritten; give another name=, or go on with resume=true" in capsys.readouterr().err
    )


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(flush: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process is killed when it flushes a file or folder for the n-th time; nothing is removed after it."""
    flushes = itertools.count()

    def fsync(_: int) -> None:
        if next(flushes) == flush:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        yield


def test_a_run_that_is_killed_while_its_folder_is_made_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the run has begun, its folder is as if it were not there: by ``begun``, too, for ranks that start again."""
    configs = {name: load_config([f"runs={tmp_path}", f"algo={name}"]) for name in ("bepa", "grpo")}

    def begin(name: str) -> None:
        with locked_new_run(tmp_path / name):
            phases._begin(tmp_path / name, configs["bepa"], configs, ["a=1"], ImageScaling(1, 1))

    (tmp_path / "0").mkdir()  # killed before the first write
    for flush in itertools.count():
        name = str(flush)
        try:
            with killed_at(flush, monkeypatch):
                begin(name)
        except Killed:
            if (tmp_path / name / "config.yaml").exists():
                continue  # in the last flush
        else:
            break
        assert not begun(load_config([f"runs={tmp_path}", f"name={name}"]))
        check_new_run(tmp_path / name)
        with pytest.raises(RecordError, match="its run has not begun; start it without resume=true"):
            locked_run(tmp_path / name).__enter__()
        begin(name)
        found = sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*"))
        files = ("config.yaml", "record.json")
        methods = [path for method in configs for path in (method, *(f"{method}/{file}" for file in files))]
        assert found == sorted([".lock", "config.yaml", "overrides.json", *methods])
        with pytest.raises(RecordError, match="exists and is not overwritten; give another name=, or go on with res"):
            begin(name)
    assert flush == 12  # two of each of six files


def test_settings_of_a_resume_are_replaced_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever its process is killed: methods with different numbers of iterations could not be compared."""
    names = ("bepa", "grpo")
    old, new = ({name: load_config([f"algo={name}", f"train.iterations={n}"]) for name in names} for n in (3, 4))

    def found(folder: Path) -> set[int]:
        with locked_run(folder):
            files = (folder / "config.yaml", *(folder / name / "config.yaml" for name in names))
            return {read_settings(path).train.iterations for path in files}

    for flush in itertools.count():
        folder = tmp_path / str(flush)
        with locked_new_run(folder):
            phases._begin(folder, old["bepa"], old, [], ImageScaling(1, 1))
        try:
            with killed_at(flush, monkeypatch):
                write_settings(folder, new["bepa"], new)
        except Killed:
            assert found(folder) in ({3}, {4})
        else:
            break
    assert found(folder) == {4}
    assert flush == 8  # two of each of four files
    (folder / "replacing.json").write_text('{"torn')
    with pytest.raises(
        RecordError, match=r"replacing.json: expected the settings of a resumed run .*; remove the file"
    ):
        found(folder)


@pytest.mark.parametrize("other", ["notes.txt", "prepared/", "bepa/iterations.jsonl", "mine/config.yaml", "bepa/x/"])
def test_a_folder_with_anything_else_is_not_taken_over(other: str, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    path = folder / other
    (path if other.endswith("/") else path.parent).mkdir(parents=True)
    if not other.endswith("/"):
        path.touch()
    (folder / "overrides.json").touch()
    fix = f"or move it away: it has {other.split('/')[0]}, and no run to go on with"
    with pytest.raises(RecordError, match=fix):
        check_new_run(folder)
    with pytest.raises(RecordError, match=fix):
        locked_new_run(folder).__enter__()
    with pytest.raises(RecordError, match="there is no run of that name; check name= and runs="):
        locked_run(folder).__enter__()
    assert (folder / "overrides.json").exists()
    assert path.exists()


def test_links_are_not_taken_over(tmp_path: Path) -> None:
    """What they lead to is not the run's."""
    (tmp_path / "x").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "x" / "bepa").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="it has bepa, and no run to go on with"):
        check_new_run(tmp_path / "x")


def test_a_folder_that_another_process_is_making_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with locked(tmp_path / "x"):
        for begin in (check_new_run, lambda folder: locked_new_run(folder).__enter__()):
            with pytest.raises(FolderInUseError):
                begin(tmp_path / "x")


@pytest.mark.slow
def test_whole_program_in_its_processes(checkpoint: Path, tmp_path: Path) -> None:
    overrides = [*QUICK, f"policy.checkpoint={checkpoint}", f"runs={tmp_path}", "name=x", "algo=level2"]
    assert main(overrides) == 0
    results: dict[str, Any] = json.loads((tmp_path / "x" / "results.json").read_text())
    assert set(results["methods"]) == {"level2", "grpo"}
    assert (tmp_path / "x" / "curves.png").exists()
    assert (tmp_path / "x" / "overview.png").exists()
    assert main([*overrides, "resume=true"]) == 0
