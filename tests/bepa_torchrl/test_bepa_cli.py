"""The ``bepa`` command line: results of each command, and one-line errors before large imports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from closed_pipe import run_into, run_unread
from forked_commands import LARGE, ForkedCommands, forked_commands
from huggingface_hub import constants

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.cli import main
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.expert_traces import record_experts
from bepa_torchrl.experts import save_traces
from bepa_torchrl.failures import INFRASTRUCTURE, guarded
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing import small_checkpoint
from osworld_gym.tasks.suites.registry import load_suite

QUICK = ("experiment=smoke", "policy.max_new_tokens=8", "env.max_steps=2", "env.desktops=4")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    policy = TransformersPolicy(small_checkpoint(), preset="compact")
    return [*QUICK, f"policy.checkpoint={policy.save(tmp_path_factory.mktemp('policy') / 'random')}"]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    save_traces(record_experts(load_config(QUICK), load_suite("sim").split("train")[:3]), folder)
    return folder


def test_convert_writes_a_cache_of_plan_free_rows(traces: Path, settings: list[str], tmp_path: Path) -> None:
    assert main(["experts", "convert", str(traces), "--out", str(tmp_path / "conv"), *settings]) == 0
    cache = TaskTraceCache()
    cache.loads(tmp_path / "conv" / "cache")
    assert len(cache) == 3
    assert {cache.metadata(task).source for task in cache.task_ids()} == {"converted"}


def test_selfroll_writes_what_succeeded(
    traces: Path, settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experts", "selfroll", str(traces), "--out", str(tmp_path / "self"), *settings]) == 0
    assert "0 tasks self-rolled in 3 episodes" in capsys.readouterr().out


def test_eval_keeps_episodes_and_writes_a_card(
    settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every task twice; a second call plays nothing, and other settings are refused."""
    out = tmp_path / "evaluation"
    assert main(["eval", *settings, "--passes", "2", "--card", "--out", str(out)]) == 0
    assert "of 6 tasks" in capsys.readouterr().out
    card = json.loads((out / "card.json").read_text())
    assert (card["score"], card["denominators"]["episodes"], len(card["passes"])) == (0.0, 12, 2)
    episodes = (out / "episodes.jsonl").read_text().splitlines()
    assert len(episodes) == 12
    (out / "episodes.jsonl").write_text("\n".join(episodes[:7]) + "\n" + episodes[7][:40])  # as after kill -9
    assert main(["eval", *settings, "--passes", "2", "--json", "--out", str(out)]) == 0
    assert len((out / "episodes.jsonl").read_text().splitlines()) == 12
    assert json.loads(capsys.readouterr().out)["denominators"]["episodes_without_result"] == 0
    assert main(["eval", *settings, "--passes", "3", "--out", str(out)]) == 2
    assert f"an evaluation with other settings ({out}/settings.yaml): 2 passes → 3 passes; " in capsys.readouterr().err
    assert main(["eval", "--compare", str(out), str(out), "--json"]) == 0
    interval = json.loads(capsys.readouterr().out)["interval"]
    assert interval == pytest.approx([-0.390334, 0.390334], abs=1e-6)  # no episode differs: z² / (6 + z²)


def test_record_plays_the_simulated_desktops_tasks_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["record", str(tmp_path / "recorded"), "--suite", "sim", "--split", "template:slide", "--desktops", "1"]
    assert main(command) == 0
    assert "8 episodes recorded" in capsys.readouterr().out


def test_bad_input_is_one_line(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert = ["experts", "convert"]
    assert main([*convert, str(tmp_path / "none"), "--out", str(tmp_path / "out"), *QUICK]) == 2
    assert main([*convert, str(traces), "--out", str(tmp_path), *QUICK]) == 2
    assert main(["train", "algo=bep"]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 3
    assert "there is no folder" in errors[0]
    assert "exists and is not overwritten; give another --out" in errors[1]
    assert "unknown algo 'bep' (did you mean 'bepa'?)" in errors[2]


def test_doctor_names_versions_and_what_a_run_uses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["torchrl"][0].isdigit()
    assert lines["desktop"].startswith("sim: usable")
    assert lines["policy"] == "tiny: found"
    assert re.fullmatch(r"runs: \d+\.\d GB free", lines["runs"])


def test_doctor_of_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = type(shutil.disk_usage(tmp_path))
    asked = []
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: asked.append(path) or usage(10**9, 10**9 - 5_000_000, 5_000_000)
    )
    assert main(["doctor", f"runs={tmp_path / 'not' / 'there'}"]) == 3
    assert asked == [tmp_path], "nothing is made"
    assert "disk full: 5.0 MB are free, a run requires 100 or more; free some space, or set" in capsys.readouterr().err


def test_doctor_refuses_versions_that_training_does_not_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "torchrl-0.9.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torchrl\nVersion: 0.9.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["doctor"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("bepa doctor: installed packages: expected torchrl<0.15,>=0.14.1, got 0.9.0; fix: pip ")


@pytest.mark.parametrize(
    ("device", "said"), [("cuda:97", " GPUs here; fix: policy.device=cpu"), ("cdua", "expected cpu, cuda or cuda:N")]
)
def test_a_device_that_is_not_here_is_bad_input(
    device: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("doctor", "train"):
        assert main([command, "experiment=smoke", f"runs={tmp_path}", f"policy.device={device}"]) == 2
        error = capsys.readouterr().err
        assert f"bepa {command}: policy.device={device}: " in error
        assert said in error


def test_doctor_of_a_resume_asks_for_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = [f"runs={tmp_path}", "name=x", "resume=true"]
    for command in ("doctor", "train"):
        assert main([command, *place]) == 2
        assert f"bepa {command}: nothing to resume in {tmp_path / 'x'}: there is no run" in capsys.readouterr().err


def test_doctor_says_where_a_repository_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert main(["doctor", "policy.checkpoint=owner/name"]) == 0
    said = "owner/name: not in the local Hugging Face cache: it is downloaded at the start, which was not tried"
    assert said in capsys.readouterr().out
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["doctor", "policy.checkpoint=owner/name"]) == 2
    assert "offline mode is on (HF_HUB_OFFLINE); fix: `hf download owner/name`" in capsys.readouterr().err
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    assert main(["doctor", "policy.checkpoint=owner/name"]) == 0
    assert "owner/name: found in the local Hugging Face cache" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["policy.checkpoint=/no/such/folder"], "policy.checkpoint=/no/such/folder: expected a checkpoint folder"),
        (["env.suite=SUITE"], "env.train_split=train: no split 'train' in suite"),
        (["env.suite=SUITE", "env.train_split=test"], "env.held_out_split=held_out: no split 'held_out' in suite"),
        (
            ["env.suite=SUITE", "env.train_split=test", "env.held_out_split=null", "experiment=smoke"],
            "collect.groups=2 requires 2 different training tasks, there are 1",
        ),
        (["storage=abf://c/x"], "storage=abf://c/x: unknown scheme 'abf' (did you mean 'abfs'?)"),
        (["env.provider=local"], "the tasks of suite sim run on provider sim, got local; fix: env.provider=sim, or"),
        (
            ["compare=[luffy]", "collect.group_size=2"],
            "compare=[luffy]: collect.group_size=2: luffy requires at least 3",
        ),
    ],
)
def test_doctor_fails_on_what_a_run_would_lack(
    settings: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usable = SimpleNamespace(close=lambda: None)  # also provider=local, whatever this machine has
    monkeypatch.setattr("bepa_torchrl.experiment.preflight.make_desktop", lambda *_, **__: usable)
    task = load_suite("sim").tasks[0]
    path = tmp_path / "examples" / task.domain / f"{task.id}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(task.to_json()))
    given = [each.replace("SUITE", str(tmp_path)) for each in settings]
    for command in (["doctor"], ["train", f"runs={tmp_path / 'runs'}"]):
        assert main([*command, *given]) == 2
        assert f"bepa {command[0]}: {said}" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_doctor_tries_where_a_run_would_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "stores" / "mine"
    place = [f"runs={tmp_path / 'runs'}", "name=x", f"storage={store}"]
    assert main(["doctor", *place]) == 0
    assert f"storage        {store}: usable" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "config.yaml").touch()
    assert main(["doctor", *place]) == 2
    assert f"{tmp_path / 'runs' / 'x'} exists and is not overwritten; give another name=" in capsys.readouterr().err


# --- what is imported -----------------------------------------------------------------------------------------------

_MEASURE = """
import json, resource, sys
LARGE = set(json.loads(sys.argv.pop(1)))
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
from bepa_torchrl.__main__ import main
try:
    code = main(sys.argv[1:])
except SystemExit as error:
    code = error.code
large = LARGE & set(sys.modules)
print("|" + json.dumps([code, sorted(large), cpu()]))
"""


def measured(*arguments: str) -> tuple[int, list[str], float]:
    """Exit code, large packages imported, CPU-seconds of a process of its own."""
    command = [sys.executable, "-c", _MEASURE, json.dumps(LARGE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    code, large, seconds = json.loads(done.stdout.rpartition("|")[2])
    return code, large, seconds


@pytest.fixture(scope="module")
def commands() -> Iterator[ForkedCommands]:
    with forked_commands() as found:
        yield found


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["eval", "--help"], ["experts", "plan", "--help"]]
)
def test_help_is_fast_and_imports_nothing_large(arguments: list[str]) -> None:
    for _ in range(5):  # the least of some: a start takes 0.5 CPU-seconds beside two trainings, more at a higher load
        code, large, seconds = measured(*arguments)
        assert (code, large) == (0, [])
        if seconds < 1.0:
            return
    pytest.fail(f"five starts took 1.0 CPU-seconds or more, the last {seconds:.2f}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "train.iteration=3"],
            "unknown key 'train.iteration' (did you mean 'train.iterations'?)",
        ),
        (["train", "compare=[lufy]"], "bepa train: compare: unknown algo 'lufy' (did you mean 'luffy'?)"),
        (["train", "--config-dir", "/no/such/folder"], "bepa train: --config-dir: expected an existing folder"),
        (["eval", "train.iterations=x"], "bepa eval: train.iterations: expected an integer of at least 1, got 'x'"),
        (["experts", "convert", "traces", "--out", "/", "seed=1"], "bepa experts convert: / exists and is not overwr"),
        (["convert", "traces", "out", "--config-dir", "x"], "bepa convert: this command is now: bepa experts convert"),
        (["selfroll"], "bepa selfroll: this command is now: bepa experts selfroll SOURCE --out FOLDER"),
        (["plan", "--gpu", "h300"], "bepa plan: unknown GPU 'h300'"),
        (["experts", "selfroll", "x", "--out", "y", "expert.tries=2"], "renamed to 'expert.selfroll_attempts'"),
        (["experts", "selfroll", "x", "--out", "y", "--plans", "z"], "z: not a file of plans of `bepa experts plan`"),
        (["train", "expert.plans=z"], "z: not a file of plans of `bepa experts plan`"),
        (["train", "cache.seed=z"], "cache.seed=z: expected a folder of `bepa experts selfroll` or `convert`"),
        (["experts", "split", "--out", "y", "--fraction", "2"], "expected --fraction in [0, 1] and --extra >= 0"),
        (["experts", "split", "--out", "y", "--run", "z"], "z/prepared/manifest.json: not a readable JSON file"),
        (["experts", "split", "x", "--out", "y", "--run", "z"], "leave SOURCE out"),
        (["experts", "plan", "x", "--out", "y", "--max-characters", "0"], "--max-characters: expected 1 or more"),
        (["experts", "plan", "seed=1", "--out", "y"], "bepa experts plan: expected a source, NAME:FOLDER or FOLDER"),
        (["experts", "check", "x", "--split", "train"], "--split=train is one of a suite; add --suite NAME"),
        (["record", "/dev/null"], "bepa record: /dev/null exists and is not overwritten; give another folder"),
        (["record", "/dev/null/x"], "bepa record: /dev/null/x cannot be made (Not a directory); give another folder"),
        (
            ["record", "x", "--suite", "sim", "--provider", "local"],
            "bepa record: the tasks of suite sim run on provider sim, got local; fix: --provider sim, or another --su",
        ),
        (["record", "x", "--provider", "sim"], "run on a desktop with programs, such as provider local, got sim; fix"),
        (["record", "x", "--desktops", "0"], "bepa record: --desktops: expected 1 or more, got 0"),
        (["rollouts", "--connect", "127.0.0.1:1", "--wait", "nan"], "--wait: expected a number of seconds of at least"),
        (["experts", "plan", "nowhere", "--out", "y"], "bepa experts plan: 'nowhere': there is no folder nowhere"),
        (["train", "algo"], "expected key=value, got 'algo'; write algo=VALUE, one of arpo, bepa"),
        (["train", "compare=[grpo"], "'compare=[grpo': the value cannot be read; close its brackets"),
        (["train", "compare=grpo,arpo"], "expected one value, got several; write a list as 'compare=[grpo,arpo]', and"),
        (["train", "policy.engine.devices=2,3"], 'a comma twice, for the shell and for Hydra: "policy.engine.dev'),
        (["train", "algo=bepa,grpo"], "bepa train: 'algo=bepa,grpo': expected one value, got several"),
        (["train", "seed=-5"], "seed: expected an integer of at least 0, got -5; the default is seed=0"),
        (["train", "train.iterations=0"], "train.iterations: expected an integer of at least 1, got 0"),
        (["train", "env.train_limit=0"], "env.train_limit: expected an integer of at least 1 or null, got 0"),
        (["train", "collect.max_staleness=2"], "collect.max_staleness=2 is read with collect.mode=async only"),
        (["train", "env.train_split=trian"], "no split 'trian' in suite 'sim'"),
        (["train", "collect.groups=65"], "collect.groups=65 requires 65 different training tasks"),
        (["train", "expert.logs=[nowhere]"], "there is no folder nowhere"),
        (["train", "policy.checkpoint=./nowhere"], "expected a checkpoint folder, no such folder"),
        (["train", "runs=/proc/runs"], "runs=/proc/runs: expected a folder in which"),
        (["train", "runs=/dev/null"], "runs=/dev/null: expected a folder in which"),
        (["train", "resume=true", "name=nothing"], "nothing to resume in runs/nothing"),
        (["eval", "env.suite=nowhere"], "unknown suite 'nowhere'"),
        (["eval", "suite=simm"], "unknown suite 'simm' (did you mean 'sim'?)"),
        (["eval", "--compare", "a", "b", "--card"], "leave --card, --out and --from out"),
        (["eval", "--compare", "a", "b"], "a: expected the folder of an evaluation"),
        (["eval", "--compare", "a", "b", "seed=1"], "bepa eval: seed=1: --compare plays nothing, and does not read it"),
        (["eval", "--compare", "a", "b", "--passes", "2"], "--passes: --compare plays nothing, and does not read it"),
        (["eval", "--compare", "a", "b", "--labels", "x"], "--labels is read with suite=online_mind2web only"),
        (["eval", "--compare", "a", "b", "--oracle"], "are for tasks that are played; leave them out"),
        (["eval", "--from", "a", "--temperature", "1"], "--temperature: --from plays nothing, and does not read it"),
        (["eval", "--from", "a", "seed=1"], "bepa eval: seed=1: --from plays nothing, and does not read it"),
        (["eval", "--from", "a", "--steps", "-3"], "bepa eval: --steps: expected 1 or more, got -3"),
        (["eval", "--out", "a", "--data", "b"], "--data is read with a grounding suite, or with suite=online_mind2web"),
        (["eval", "--out", "a", "--temperature", "nan"], "--temperature: expected 0 or more, got nan"),
        (["eval", "--out", "/dev/null/x"], "/dev/null/x cannot be made (Not a directory); give another --out"),
        (["eval", "--out", "/dev/null"], "bepa eval: /dev/null exists and is not overwritten; give another --out"),
        (["export", "runs/x", "--format", "atif", "--out", "/"], "bepa export: / exists and is not overwritten; give"),
        (["analyze", "nowhere", "--out", "out"], "bepa analyze: nowhere: expected the folder of a run"),
        (["analyze", "runs/x", "--out", "/"], "bepa analyze: / exists and is not overwritten; give another --out"),
        (["experts", "convert", "nowhere", "--out", "out"], "there is no folder nowhere"),
        (["experts", "selfroll", "nowhere", "--out", "out"], "there is no folder nowhere"),
        (
            ["experts", "split", "--run", "r", "--extra", "0", "--out", "out"],
            "--run takes the sets of a run; leave --extra",
        ),
        (["experts", "split", "--method", "bepa", "--out", "out"], "--method is read with --run RUN only; add it, or"),
        (["eval", "--compare", "a", "b", "--judge-retries", "0"], "--judge-retries is read with suite=online_mind2web"),
    ],
)
def test_errors_in_settings_names_and_paths_come_before_torch(
    arguments: list[str], message: str, tmp_path: Path, commands: ForkedCommands
) -> None:
    code, large, error = commands.run(arguments, tmp_path)
    assert (code, large) == (2, [])
    assert message in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["statu"], "plan, doctor, got 'statu' (did you mean 'status'?)"),
        (["moved"], "plan, doctor, got 'moved'"),
        (["experts", "chek"], "got 'chek' (did you mean 'check'?)"),
        (["status", "run", "--jsn"], "unrecognized arguments: --jsn (did you mean '--json'?)\n"),
        (["train", "--confg-dir=x"], "--confg-dir=x (did you mean '--config-dir'?)\n"),
        (["train", "--train.iterations=3"], "--train.iterations=3; settings have no dashes: KEY=VALUE"),
        (["experts", "check", "x", "--siute", "sim"], "unrecognized arguments: --siute (did you mean '--suite'?) sim"),
        (["export", "run", "--out", "x", "--format", "ati"], "got 'ati' (did you mean 'atif'?)"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_options_may_be_anywhere_among_the_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["eval"], ["experts", "convert", "traces", "--out", str(tmp_path / "out")]):
        assert main([*command, "threads=1", "--config-dir", str(tmp_path), "seed=x"]) == 2
        assert "seed: expected an integer of at least 0, got 'x'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["eval", "threads=1", "--no-such-option", "seed=x"])
    assert "unrecognized arguments: --no-such-option; settings have no dashes" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", [False, True])
def test_output_that_nobody_reads_is_no_error(unbuffered: bool) -> None:
    assert run_unread("bepa_torchrl", "plan", unbuffered=unbuffered) == (0, "")


def test_output_that_cannot_be_written_is_one_line() -> None:
    said = "bepa: standard output: [Errno 28] No space left on device\n"
    assert run_into("bepa_torchrl", "plan", output=">/dev/full") == (3, said)
    assert run_into("bepa_torchrl", "plan", output=">&-") == (0, "")


def test_a_broken_pipe_to_another_program_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> int:
        raise BrokenPipeError(32, "Broken pipe")

    assert guarded(program, "bepa train") == INFRASTRUCTURE
    assert capsys.readouterr().err == "bepa train: [Errno 32] Broken pipe\n"
