"""``train.ranks``: a run on 2 and 3 processes equals that of one; a lost rank ends it, resumably."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from compared_runs import METHOD, assert_same_record, assert_same_weights, difference, iterations
from processes import command_lines
from safetensors.torch import load_file
from smallest_run import TWO_RANKS, TWO_STEPS, smallest_run

from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment.config import read_settings
from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.failures import INFRASTRUCTURE
from bepa_torchrl.policies.transformers.policy import load_policy
from bepa_torchrl.training.checkpoint import PolicyWeights, damage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MAIN = "import sys; from bepa_torchrl.commands.train import main; sys.exit(main(sys.argv[1:]))"
DEADLINE = 300.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*smallest_run(tmp_path_factory.mktemp("p")), *TWO_STEPS]


@pytest.fixture(scope="module")
def alone(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three iterations in one process."""
    runs = tmp_path_factory.mktemp("runs")
    assert main([*settings, f"runs={runs}", "name=x", "train.iterations=3"]) == 0
    return runs / "x"


@pytest.fixture(scope="module")
def divided(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations on 2 ranks."""
    runs = tmp_path_factory.mktemp("runs")
    assert main([*settings, f"runs={runs}", "name=x", "train.iterations=2", *TWO_RANKS]) == 0
    return runs / "x"


def without_evaluation(line: dict[str, Any]) -> dict[str, Any]:
    """A line of the record as of the last iteration of a run, which is not evaluated in between."""
    return {key: value for key, value in line.items() if not key.startswith(("eval/", "cache/js", "cache/tail"))}


def test_two_ranks_equal_one_process(divided: Path, alone: Path) -> None:
    expected = iterations(alone)
    assert all(line["train/optimizer_steps"] == 2 and line["cache/injected"] > 0 for line in expected[1:])
    assert_same_record(iterations(divided)[:-1], expected[:-2])
    (last,), (same,) = iterations(divided)[-1:], expected[2:3]  # without an evaluation, which the longer run has here
    assert_same_record([last], [without_evaluation(same)])
    exported, same = (load_policy(divided / METHOD / "policy") for _ in range(2))
    (weights,) = (alone / METHOD / "checkpoints" / "iteration-000000000002").glob("components/*-weights")
    PolicyWeights(same).load(weights)
    assert difference(exported, same) < 1e-4
    assert difference(exported, load_policy(read_settings(alone / METHOD / "config.yaml").policy.checkpoint)) > 5e-4


def test_a_resume_on_three_ranks_goes_on_from_the_newest_intact_checkpoint(
    divided: Path, alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest checkpoint is damaged: iterations 2 and 3 are computed by 3 ranks from the shards of 2."""
    folder = tmp_path / "x"
    shutil.copytree(divided, folder)
    newest = folder / METHOD / "checkpoints" / "iteration-000000000002"
    (shard,) = newest.glob("components/*-sharded/shards/rank-1-of-2.safetensors")
    data = bytearray(shard.read_bytes())
    data[-100] ^= 4
    shard.write_bytes(bytes(data))
    assert main(["resume=true", "name=x", f"runs={tmp_path}", "train.iterations=3", "train.ranks=3"]) == 0
    assert "rank-1-of-2.safetensors does not have its checksum" in " ".join(capsys.readouterr().out.split())
    assert_same_record(iterations(folder), iterations(alone))
    assert_same_weights(*(run / METHOD / "policy" / "model.safetensors" for run in (folder, alone)))
    assert damage(folder / METHOD / "checkpoints" / "iteration-000000000003") is None


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.nightly)])
def test_one_process_then_two_ranks_then_one_equal_one_process(
    settings: list[str], alone: Path, tmp_path: Path, dtype: str
) -> None:
    """In bfloat16 the passes differ by rounding, and desktops see other actions: that run only has to go on."""
    run = [*settings, f"runs={tmp_path}", "name=x", "train.iterations=1", f"policy.dtype={dtype}"]
    resume = ["resume=true", "name=x", f"runs={tmp_path}"]
    assert main(run) == 0
    assert main([*resume, "train.iterations=2", *TWO_RANKS]) == 0
    assert main([*resume, "train.iterations=3", "train.ranks=1"]) == 0
    for number, kind in ((1, "weights"), (2, "sharded"), (3, "weights")):
        checkpoint = tmp_path / "x" / METHOD / "checkpoints" / f"iteration-{number:012d}"
        assert number == 1 or list(checkpoint.glob(f"components/*-{kind}"))
    if dtype == "float32":
        found, expected = (list(map(without_evaluation, iterations(run))) for run in (tmp_path / "x", alone))
        assert_same_record(found, expected)
        for ours, theirs in zip(found[1:], expected[1:], strict=True):
            for name in ("train/loss", "train/grad_norm"):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-5)
        weights = (folder / METHOD / "policy" / "model.safetensors" for folder in (tmp_path / "x", alone))
        assert_same_weights(*weights, tolerance=1e-5)
    else:
        assert [line["policy_version"] for line in iterations(tmp_path / "x") if line["phase"] == "rl"] == [2, 4, 6]


def test_fine_tuning_on_two_ranks_equals_one_process(settings: list[str], tmp_path: Path) -> None:
    quick = [*settings, "algo=sft", "sft.epochs=1", "sft.lr=3e-4", "eval.final_episodes=0", f"runs={tmp_path}"]
    assert main([*quick, "name=one"]) == 0
    assert main([*quick, "name=two", *TWO_RANKS]) == 0
    assert_same_record(*(iterations(tmp_path / name, "sft") for name in ("two", "one")))
    assert_same_weights(*(tmp_path / name / "sft" / "policy" / "model.safetensors" for name in ("two", "one")))


def test_adapters_on_two_ranks_equal_one_process(settings: list[str], tmp_path: Path) -> None:
    """The checkpoints have the adapters alone, and a resumed run goes on from them."""
    run = [*settings, "policy.lora.rank=4", "optimizer.lr=1e-3", f"runs={tmp_path}"]
    assert main([*run, "name=one", "train.iterations=2"]) == 0
    assert main([*run, "name=two", "train.iterations=1", *TWO_RANKS]) == 0
    assert main(["resume=true", "name=two", f"runs={tmp_path}", "train.iterations=2"]) == 0
    one, two = (tmp_path / name / METHOD for name in ("one", "two"))
    assert_same_record(iterations(two.parent)[2:], iterations(one.parent)[2:])
    assert_same_weights(*(folder / "policy" / "model.safetensors" for folder in (two, one)))
    adapters = [load_file(folder / "policy" / "adapter" / "adapter_model.safetensors") for folder in (two, one)]
    assert adapters[0].keys() == adapters[1].keys()
    assert max(float((adapters[0][name] - weight).abs().max()) for name, weight in adapters[1].items()) < 1e-4
    assert max(float(weight.abs().max()) for name, weight in adapters[1].items() if "lora_B" in name) > 5e-4
    shards = list(two.glob("checkpoints/*/components/*-sharded/shards/rank-0-of-2.safetensors"))
    assert shards
    assert all(".lora_" in name for path in shards for name in load_file(path))


@pytest.mark.nightly
def test_8_bit_moments_on_two_ranks_are_resumed(settings: list[str], tmp_path: Path) -> None:
    """The resumed run is the uninterrupted one; in one process it goes on, too."""
    run = [*settings, "optimizer.kind=adamw_8bit", *TWO_RANKS, "eval.every=0", f"runs={tmp_path}"]
    assert main([*run, "name=whole", "train.iterations=2"]) == 0
    assert main([*run, "name=x", "train.iterations=1"]) == 0
    resume = ["resume=true", "name=x", f"runs={tmp_path}", "train.iterations=2"]
    assert main(resume) == 0
    assert_same_record(*(iterations(tmp_path / name) for name in ("x", "whole")))
    weights = (tmp_path / name / METHOD / "policy" / "model.safetensors" for name in ("x", "whole"))
    assert_same_weights(*weights, tolerance=1e-6)
    assert main([*resume[:-1], "train.iterations=3", "train.ranks=1"]) == 0
    assert [line["iteration"] for line in iterations(tmp_path / "x")] == [0, 1, 2, 3]


def test_a_killed_rank_ends_the_run_and_a_resume_goes_on(settings: list[str], alone: Path, tmp_path: Path) -> None:
    arguments = [*settings, f"runs={tmp_path}", "name=x", "train.iterations=3", *TWO_RANKS]
    record = tmp_path / "x" / METHOD / "iterations.jsonl"
    with subprocess.Popen([sys.executable, "-c", MAIN, *arguments], stderr=subprocess.PIPE, text=True) as launcher:
        end = time.monotonic() + DEADLINE
        while not (record.exists() and any(line["iteration"] == 1 for line in read_lines(record))):
            assert launcher.poll() is None, launcher.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)
        every = command_lines(launcher.pid)
        (follower,) = (child for child, line in every.items() if "bepa_torchrl.experiment.ranks" in line)
        (leader,) = (child for child, line in every.items() if "bepa_torchrl.experiment.method_process" in line)
        follower.send_signal(signal.SIGKILL)
        _, error = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == INFRASTRUCTURE, error
    line = error.strip().splitlines()[-1]
    assert line.startswith(f"{METHOD}: rank 1 of 2 ended by signal SIGKILL")
    assert "go on with resume=true" in line
    assert not leader.is_running()
    assert main(["resume=true", "name=x", f"runs={tmp_path}"]) == 0
    assert_same_record(iterations(tmp_path / "x"), iterations(alone))


def test_the_other_ranks_end_with_rank_0(settings: list[str], tmp_path: Path) -> None:
    arguments = [*settings, f"runs={tmp_path}", "name=x", "train.iterations=50", *TWO_RANKS]
    with subprocess.Popen([sys.executable, "-c", MAIN, *arguments], stderr=subprocess.PIPE) as launcher:
        end, found = time.monotonic() + DEADLINE, list[psutil.Process]()
        while not found:
            assert launcher.poll() is None, launcher.communicate()
            assert time.monotonic() < end
            time.sleep(0.1)
            every = command_lines(launcher.pid)
            found = [child for child, line in every.items() if "bepa_torchrl.experiment.ranks" in line]
        launcher.kill()
        gone, alive = psutil.wait_procs(found, timeout=DEADLINE)
        assert gone
        assert not alive
