"""A training run with policy.rollout=vllm has the results of the built-in sampler from the same seed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from run_metrics import comparable
from safetensors.torch import load_file

from bepa_torchrl.experiment.config import load_config, settings_to_yaml
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.method_process import MethodRun
from bepa_torchrl.experiment.phases import prepared_run
from bepa_torchrl.experiment.run_record import RunRecord, read_lines
from bepa_torchrl.experiment.tasks import make_tasks

pytestmark = pytest.mark.vllm

SETTINGS = (
    "experiment=smoke",
    "algo=level2",
    "compare=[]",
    "train.iterations=3",
    "train.old_log_probs=all",
    "train.minibatch_groups=1",
    "eval.every=0",
    "env.max_steps=3",
    "env.desktops=4",
    "record.every=1",
    "optimizer.lr=1e-3",
)


def train(
    runs: Path, rollout: str, *more: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Iterations, episodes and final weights of a method trained in this process."""
    folder = runs / "run"
    engine = ["policy.engine.kv_cache_gb=0.25"] if rollout == "vllm" else []
    config = load_config([*SETTINGS, *engine, f"runs={runs}", "name=run", f"policy.rollout={rollout}", *more])
    if not folder.exists():
        folder.mkdir()
        policy = make_policy(config, seed=0)
        prepared_run(config, folder, policy, make_tasks(config), Console(quiet=True))
    RunRecord(folder / rollout).begin(settings_to_yaml(config))
    assert MethodRun(folder / rollout).run() == 0
    assert not (folder / rollout / ".engine").exists() or not list((folder / rollout / ".engine").iterdir())
    return (
        read_lines(folder / rollout / "iterations.jsonl"),
        read_lines(folder / rollout / "episodes.jsonl"),
        load_file(folder / rollout / "policy" / "model.safetensors"),
    )


def test_the_run_equals_the_built_in_samplers(tmp_path: Path) -> None:
    built_in, expected, weights = train(tmp_path, "transformers")
    lines, episodes, trained = train(tmp_path, "vllm")
    assert [written(episode) for episode in episodes] == [written(episode) for episode in expected]
    assert sum(len(episode["steps"]) for episode in episodes) > 0
    assert len(lines) == len(built_in) == 4  # the base policy, three iterations
    for line, other in zip(lines, built_in, strict=True):
        assert comparable(line) == pytest.approx(comparable(other), rel=1e-3, abs=1e-4)
    assert sum(line.get("train/optimizer_steps", 0.0) for line in lines) > 0
    for name, weight in weights.items():
        torch.testing.assert_close(trained[name], weight, atol=1e-4, rtol=0)
    for line in lines[1:]:
        assert line["engine/restarts"] == 0
        assert line["engine/probe_error_max"] < 1e-4
        assert 0 <= line["engine/prefix_cache_hit_rate"] < 1
    differences = [v for line in lines for k, v in line.items() if "rollout_difference_max_on_policy" in k]
    assert differences
    assert all(0 <= value < 1e-4 for value in differences), differences


def test_an_asynchronous_run_equals_the_built_in_samplers(tmp_path: Path) -> None:
    """The engine belongs to the rollout service; another one is started for the evaluation at the end."""
    temporary = Path(tempfile.gettempdir())
    before = set(temporary.glob("bepa-vllm-*"))
    built_in, expected, weights = train(tmp_path, "transformers")
    lines, episodes, trained = train(tmp_path, "vllm", "collect.mode=async")
    assert set(temporary.glob("bepa-vllm-*")) <= before, "weights are left"
    assert sorted(map(written, episodes)) == sorted(map(written, expected))
    for line, other in zip(lines, built_in, strict=True):
        found, known = comparable(line), comparable(other)
        both = found.keys() & known.keys()
        assert {k: found[k] for k in both} == pytest.approx({k: known[k] for k in both}, rel=1e-3, abs=1e-4)
    assert sum(line.get("train/optimizer_steps", 0.0) for line in lines) > 0
    for name, weight in weights.items():
        torch.testing.assert_close(trained[name], weight, atol=1e-4, rtol=0)


def test_a_run_with_adapters_equals_the_built_in_samplers_also_resumed(tmp_path: Path) -> None:
    """The engine keeps the checkpoint's weights, and gets the adapters of each version; a resumed run's engine, too."""
    lora = ("policy.lora.rank=4", "policy.lora.alpha=32")
    built_in, expected, weights = train(tmp_path, "transformers", *lora)
    train(tmp_path, "vllm", *lora, "policy.engine.adapters=separate", "train.iterations=2")
    folder = tmp_path / "run" / "vllm"
    text = (folder / "config.yaml").read_text()
    resumed = text.replace("resume: false", "resume: true").replace("iterations: 2", "iterations: 3")
    (folder / "config.yaml").write_text(resumed)
    assert MethodRun(folder).run() == 0
    lines, episodes = (read_lines(folder / f"{name}.jsonl") for name in ("iterations", "episodes"))
    assert [line["iteration"] for line in lines] == [line["iteration"] for line in built_in] == [0, 1, 2, 3]
    assert [written(episode) for episode in episodes] == [written(episode) for episode in expected]
    for line, other in zip(lines, built_in, strict=True):
        assert comparable(line) == pytest.approx(comparable(other), rel=1e-3, abs=1e-4)
    assert sum(line.get("train/optimizer_steps", 0.0) for line in lines) > 0
    trained = load_file(folder / "policy" / "model.safetensors")
    for name, weight in weights.items():
        torch.testing.assert_close(trained[name], weight, atol=1e-4, rtol=0)
    assert 0 < max(line["engine/probe_error_max"] for line in lines[1:]) < 1e-4


@pytest.mark.parametrize("part", ["wording", "actions"])
def test_traces_that_the_engine_rewords_are_those_of_the_built_in_sampler(part: str, tmp_path: Path) -> None:
    """The engine samples their thoughts between the rollouts and the update; they are injected when a group fails."""
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps({"sim": ["sim-slide-04", "sim-slide-05"]}))
    few = (f"env.train_split={tasks}", "env.max_steps=4", "policy.max_new_tokens=32", "train.iterations=2")
    more = ("algo=bepa", f"cache.refresh={part}", "eval.final_episodes=0", *few)
    built_in, expected, weights = train(tmp_path, "transformers", *more)
    lines, episodes, trained = train(tmp_path, "vllm", *more)
    assert max(line.get("cache/reworded", 0.0) for line in lines) > 0
    injected = [step for episode in episodes if episode["off_policy"] for step in episode["steps"]]
    assert any(set(step["log_probs"]) == {None} for step in injected), "a self-rolled trace has known ones, a new none"
    assert [written(episode) for episode in episodes] == [written(episode) for episode in expected]
    for line, other in zip(lines, built_in, strict=True):
        assert comparable(line) == pytest.approx(comparable(other), rel=1e-3, abs=1e-4)
    for name, weight in weights.items():
        torch.testing.assert_close(trained[name], weight, atol=1e-4, rtol=0)


def written(episode: dict[str, Any]) -> list[Any]:
    """An episode without its log-probs."""
    steps = [(step["text"], step["tokens"], step["screenshot"]) for step in episode["steps"]]
    return [episode["task_id"], episode["slot"], episode["stop_reason"], episode["reward"], steps]
