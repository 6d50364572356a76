"""A training run whose rollouts are sampled by HTTP has the results of one that samples in its own process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from built_in_engine import TOKEN, served
from run_metrics import comparable
from safetensors.torch import load_file

from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment.run_record import read_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = (
    "experiment=smoke",
    "algo=level2",
    "compare=[]",
    "train.iterations=2",
    "train.old_log_probs=all",
    "train.minibatch_groups=1",
    "eval.every=0",
    "env.max_steps=3",
    "env.desktops=4",
    "record.every=0",
    "optimizer.lr=1e-3",
)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_run_equals_one_that_samples_by_itself(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEPA_ENGINE_TOKEN", TOKEN.decode())
    run = [*SETTINGS, f"runs={tmp_path}"]
    assert main([*run, "name=own"]) == 0
    with served(tmp_path / "weights") as server:
        remote = ["policy.rollout=vllm", f"policy.engine.url='{server.url}'", f"collect.mode={mode}"]
        assert main([*run, *remote, "name=remote"]) == 0
    own, other = (tmp_path / name / "level2" for name in ("own", "remote"))
    lines, expected = (read_lines(folder / "iterations.jsonl") for folder in (other, own))
    for line, same in zip(lines, expected, strict=True):
        found, known = comparable(line), comparable(same)
        both = found.keys() & known.keys()  # the modes report the queue, or the use of desktops
        assert both == known.keys() or mode == "async"
        assert both >= {"cache/injected", "collect/success"} or line["phase"] != "rl"
        assert {name: found[name] for name in both} == pytest.approx(
            {name: known[name] for name in both}, rel=1e-3, abs=1e-4
        )
    assert sum(line.get("train/optimizer_steps", 0.0) for line in lines) > 0
    assert all(line["engine/restarts"] == 0 and line["engine/probe_error_max"] < 1e-4 for line in lines[1:])
    assert all(line["engine/response_tokens"] > 0 for line in lines[1:])
    weights, trained = (load_file(folder / "policy" / "model.safetensors") for folder in (own, other))
    for name, weight in weights.items():
        torch.testing.assert_close(trained[name], weight, atol=1e-4, rtol=0)
