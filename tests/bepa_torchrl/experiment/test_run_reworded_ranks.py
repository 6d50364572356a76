"""``cache.refresh=wording`` and ``actions`` on two ranks: the run of one process, also killed and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from compared_runs import assert_same_record, assert_same_weights, difference, iterations, trained_episodes
from polling import until
from repository import ROOT

from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.policies.transformers.policy import load_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MAIN = "import sys; from bepa_torchrl.commands.train import main; sys.exit(main(sys.argv[1:]))"
METHOD, DEADLINE = "bepa", 600.0
#: the shipped policy solves them now and then, so that groups of all failures follow groups with a success
TASKS = ("sim-slide-04", "sim-slide-05")
RUN = (
    "experiment=smoke",
    "compare=[]",
    "env.desktops=4",
    "env.max_steps=4",
    "env.train_limit=null",
    "env.held_out_limit=1",
    "policy.max_new_tokens=32",
    "train.minibatch_groups=1",
    "train.iterations=3",
    "eval.every=0",
    "eval.final_episodes=0",
    "record.every=1",
    "record.images=false",
)


def reworded_and_injected(run: Path) -> list[tuple[int, float, str, int]]:
    """(group, share of new thoughts, source, policy version) of each injected trace that a rewording has written."""
    refreshed: dict[str, float] = {}
    found = []
    for line in read_lines(run / METHOD / "groups.jsonl"):
        task, share = line["task_id"], line["reworded"]
        if line["injected"] is not None and refreshed.get(task):
            found.append((line["group_id"], refreshed[task], line["injected"], line["injected_version"]))
        if share is not None:
            refreshed[task] = share
    return found


def injected_steps(run: Path) -> dict[str, list[tuple[list[int], Any, list[float]]]]:
    """Per injected trace, tokens, the sampler's log-probs and those that the policy in training computes."""
    lines = map(json.loads, (run / METHOD / "episodes.jsonl").read_text().splitlines())
    return {
        line["id"]: [(step["tokens"], step["log_probs"], step["old_log_probs"]) for step in line["steps"]]
        for line in lines
        if line["off_policy"]
    }


def killed_after_iteration(number: int, run: Path, settings: list[str]) -> None:
    """``bepa train``, which is killed together with its ranks when this iteration is recorded."""
    record = run / METHOD / "iterations.jsonl"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", MAIN, *settings], env=environment) as launcher:

        def recorded() -> bool:
            assert launcher.poll() is None, "the run has ended"
            return record.exists() and any(line["iteration"] >= number for line in read_lines(record))

        until(recorded, f"no iteration {number}", DEADLINE)
        every = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
        _, alive = psutil.wait_procs(every, timeout=60.0)
        assert not alive
    assert max(line["iteration"] for line in read_lines(record)) == number


@pytest.mark.parametrize(
    ("part", "source"), [("wording", "self_rolled"), pytest.param("actions", "on_policy", marks=pytest.mark.nightly)]
)
def test_two_ranks_that_are_killed_and_resumed_equal_one_process(part: str, source: str, tmp_path: Path) -> None:
    """Killed between the refresh by new weights, in iteration 2, and the injection of its trace in iteration 3."""
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps({"sim": TASKS}))
    settings = [*RUN, f"cache.refresh={part}", f"env.train_split={tasks}", f"runs={tmp_path}"]
    assert main([*settings, "name=alone"]) == 0
    alone, found = tmp_path / "alone", tmp_path / "x"
    killed_after_iteration(2, found, [*settings, "name=x", "train.ranks=2", "train.rank_timeout=200"])
    assert not any(version for _, _, _, version in reworded_and_injected(found)), "the kill was too late"
    assert main(["resume=true", "name=x", f"runs={tmp_path}"]) == 0

    injected = reworded_and_injected(found)
    assert all(0 < share <= 1 and kind == source for _, share, kind, _ in injected)
    assert any(version for *_, version in injected), "no trace was reworded by trained weights and injected"
    assert injected == reworded_and_injected(alone)
    assert_same_record(iterations(found, METHOD), iterations(alone, METHOD))
    ours, theirs = injected_steps(found), injected_steps(alone)
    assert ours.keys() == theirs.keys()
    for name, steps in theirs.items():
        for (tokens, sampled, old), (same, same_sampled, same_old) in zip(ours[name], steps, strict=True):
            assert (tokens, sampled) == (same, same_sampled)
            assert old == pytest.approx(same_old, rel=1e-4, abs=1e-4)
    assert trained_episodes(found / METHOD) == trained_episodes(alone / METHOD)
    assert set(trained_episodes(found / METHOD).values()) == {1}
    assert_same_weights(*(run / METHOD / "policy" / "model.safetensors" for run in (found, alone)))
    assert difference(load_policy(found / METHOD / "policy"), load_policy(tiny_checkpoint())) > 5e-4
