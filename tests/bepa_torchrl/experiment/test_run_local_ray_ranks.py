"""``experiment=local`` with its policy, asynchronous rollouts on Ray, and two ranks: a whole run on real desktops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from compared_runs import difference, trained_episodes, updates
from polling import until
from processes import command_lines, runs
from ray_heads import loaded_machine
from repository import ROOT

from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.scale.sharding.checkpoints.sharded import load_component
from osworld_gym.desktops.local.keeper import records

pytestmark = [pytest.mark.ray, pytest.mark.nightly, pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]
MAIN = "import sys; from bepa_torchrl.commands.train import main; sys.exit(main(sys.argv[1:]))"
METHOD, DEADLINE = "bepa", 1500.0
TASKS, GROUPS, SIZE, ITERATIONS = 2, 2, 2, 2
#: unknown tasks, which the policy fails, so that the experts' traces are injected and both ranks train
RUN = (
    "experiment=local",
    "compare=[]",
    "processes=1",
    "env.desktops=2",
    "env.warm_pool=0",
    "env.max_steps=2",
    "env.train_split=unknown",
    f"env.train_limit={TASKS}",
    "env.held_out_limit=1",
    "policy.max_new_tokens=32",
    f"collect.groups={GROUPS}",
    f"collect.group_size={SIZE}",
    "collect.mode=async",
    "cluster.address=local",
    "cluster.workers=2",
    "train.ranks=2",
    f"train.iterations={ITERATIONS}",
    "train.minibatch_groups=1",
    "train.save_every=1",
    "expert.pass_k=1",
    "expert.seed_from_converted=true",
    "eval.every=0",
    "eval.final_episodes=1",
    "eval.greedy=false",
    "record.every=1",
    "record.images=false",
    "restarts=2",
)
NOT_STARTED = "Ray has not started on this machine"  #: in 30 s, which a busy one may exceed; the run tries again


def seen_below(launcher: psutil.Process, seen: dict[psutil.Process, str]) -> None:
    """Adds the processes that the program has started, itself or through others, with their command lines."""
    for process, line in command_lines(launcher.pid).items():
        seen[process] = line or seen.get(process, "")


def play(folder: Path, log: Path) -> dict[psutil.Process, str]:
    """A whole ``bepa train``, and the processes that it had, each with its command line."""
    environment = os.environ | loaded_machine() | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MAIN, *RUN, f"runs={folder}", "name=x"]
    seen: dict[psutil.Process, str] = {}
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as program:
        try:
            end, own = time.monotonic() + DEADLINE, psutil.Process(program.pid)
            while program.poll() is None:
                seen_below(own, seen)
                assert time.monotonic() < end, f"no end of the run within {DEADLINE:.0f} s"
                with suppress(subprocess.TimeoutExpired):
                    program.wait(0.5)  # not more often: the search takes CPU time from the run
        finally:
            program.kill()
    method = folder / "x" / METHOD / "log.txt"
    assert program.returncode == 0, log.read_text() + (method.read_text() if method.exists() else "")
    return seen


def of_all_ranks(method: Path) -> TransformersPolicy:
    """The policy that the shards of both ranks make in the last checkpoint."""
    (component,) = method.glob(f"checkpoints/iteration-{ITERATIONS:012d}/components/*-sharded")
    assert len(list(component.glob("shards/rank-*-of-2.safetensors"))) == 2
    policy = load_policy("tiny_local")
    trained = [weight for name, weight in policy.model.named_parameters() if "visual" not in name]
    load_component(policy, torch.optim.AdamW(trained), component)
    return policy


def test_a_run_on_real_desktops_with_ray_and_two_ranks_ends_and_leaves_nothing(tmp_path: Path) -> None:
    seen = play(tmp_path, tmp_path / "log")
    method = tmp_path / "x" / METHOD

    lines = updates(tmp_path / "x", METHOD)
    assert [line["iteration"] for line in lines] == list(range(1, ITERATIONS + 1))
    assert all(line["collect/staleness_max"] == line["collect/version_lag_max"] == 0 for line in lines)
    steps = sum(line["train/optimizer_steps"] for line in lines)
    assert steps >= 1
    groups = read_lines(method / "groups.jsonl")
    assert sorted(line["group_id"] for line in groups) == list(range(ITERATIONS * GROUPS))
    assert sum(line["injected"] is not None for line in groups) >= 1
    episodes = trained_episodes(method)
    assert len(episodes) == ITERATIONS * GROUPS * SIZE
    assert set(episodes.values()) == {1}

    exported = load_policy(method / "policy")
    divided = of_all_ranks(method)
    assert divided.version == lines[-1]["policy_version"] == steps
    assert difference(divided, exported) == 0.0
    assert difference(load_policy("tiny_local"), exported) > 1e-5
    result = json.loads((tmp_path / "x" / "results.json").read_text())["methods"][METHOD]
    assert result["totals"]["episodes"] == ITERATIONS * GROUPS * SIZE
    assert [played for _, played in result["counts"]["sampled"].values()] == [1] * (TASKS + 1)

    text = (tmp_path / "log").read_text()
    assert text.count("restart ") == text.count(NOT_STARTED), text
    for words, count in (("ray::_Node", 2), ("ray::_Service", 1), ("ray::_Queue", 1), ("experiment.ranks", 1)):
        found = sum(words in command for command in seen.values())
        assert found == count or (words == "experiment.ranks" and NOT_STARTED in text), words
    assert sum(command.startswith("Xvfb") or "/Xvfb" in command for command in seen.values()) >= 4
    until(lambda: not any(map(runs, seen)), "processes end", 60.0)
    left = {int(folder.name.split("-")[0]) for folder in records.run_directory().glob("*-*")}
    assert not left & {process.pid for process in seen}
