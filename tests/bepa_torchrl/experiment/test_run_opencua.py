"""An OpenCUA checkpoint in a run: its prompts, its text in converted traces, rollouts and a training iteration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from opencua_checkpoint import write_opencua_checkpoint
from rich.console import Console
from safetensors.torch import load_file

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.seeding import Stream, derive_seed
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.experiment import preflight
from bepa_torchrl.experiment.config import ConfigError, load_config, settings_to_yaml
from bepa_torchrl.experiment.factory import make_env, make_policy, rollout_policy
from bepa_torchrl.experiment.launcher import run
from bepa_torchrl.experiment.method_process import MethodRun
from bepa_torchrl.experiment.phases import prepared_run
from bepa_torchrl.experiment.preparation import load_preparation
from bepa_torchrl.experiment.run_folder import run_folder
from bepa_torchrl.experiment.run_record import RunRecord, read_lines
from bepa_torchrl.experiment.tasks import make_tasks
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.engine.http.client import EngineClient
from bepa_torchrl.scale.wire.access import Access
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.types import StopReason

OPENCUA = (
    "policy.action_text=opencua",
    "policy.preset=action_history",
    "policy.history=last_k",
    "policy.history_images=2",
    "policy.max_prompt_tokens=4096",
    "policy.max_new_tokens=16",
    "policy.max_batch_tokens=16384",
    "train.max_tokens=16384",
    "env.call_user_tolerance=1",
)
QUICK = ("experiment=smoke", "compare=[]", "env.max_steps=2", "env.desktops=4", "train.minibatch_groups=1")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """A run's folder with the converted traces of the tasks' oracles, and its settings."""
    checkpoint = write_opencua_checkpoint(tmp_path_factory.mktemp("published") / "opencua")
    runs = tmp_path_factory.mktemp("runs")
    overrides = (*QUICK, *OPENCUA, f"policy.checkpoint={checkpoint}", f"runs={runs}", "name=all")
    config = load_config(overrides)
    folder = run_folder(config)
    folder.mkdir()
    policy = make_policy(config, seed=0)
    prepared_run(config, folder, policy, make_tasks(config), Console(quiet=True))
    return folder, overrides


def test_converted_traces_are_opencuas_text_and_solve_their_tasks(prepared: tuple[Path, tuple[str, ...]]) -> None:
    folder, overrides = prepared
    config = load_config(overrides)
    policy = make_policy(config, seed=0)
    tasks = {task.id: task for task in make_tasks(config).train}
    converted = load_preparation(folder / "prepared").converted
    assert len(converted) == 4
    options = EpisodeOptions(
        max_steps=30, call_user_tolerance=1, scaling=policy.image_scaling, action_text=config.policy.action_text
    )
    for number, (task_id, task) in enumerate(tasks.items()):
        episode = Episode(SimDesktop(), options)
        result = episode.begin(task, seed=derive_seed(config.seed, Stream.EXPERT, number, 0))
        for step, row in enumerate(row_list(converted.get_trace(task_id))):
            assert "## Action:\n" in row[K.RESPONSE]
            assert len(row[K.IMAGES]) == min(step + 1, 2)
            assert torch.equal(row[K.RESPONSE_TOKENS], policy.encode_response(row[K.RESPONSE]))
            assert not result.done
            result = episode.act(row[K.RESPONSE])
            assert result.parse_error is None
        assert (result.stop, result.reward) == (StopReason.finished, 1.0)


def test_an_iteration_trains_on_rollouts_and_traces(prepared: tuple[Path, tuple[str, ...]]) -> None:
    folder, overrides = prepared
    config = load_config([*overrides, "algo=level2", "train.iterations=1", "eval.every=0", "eval.final_episodes=0"])
    RunRecord(folder / "level2").begin(settings_to_yaml(config))
    assert MethodRun(folder / "level2").run() == 0
    results = json.loads((folder / "level2" / "results.json").read_text())
    assert results["totals"]["optimizer_steps"] > 0
    before = load_file(Path(config.policy.checkpoint) / "model.safetensors")
    after = load_file(folder / "level2" / "policy" / "model.safetensors")
    assert set(before) == set(after)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(name.startswith("language_model.") for name in moved)  # the tower is frozen
    lines = read_lines(folder / "level2" / "iterations.jsonl")
    assert sum(line.get("collect/episodes", 0.0) for line in lines) == 4.0


def test_the_environment_reads_its_text(prepared: tuple[Path, tuple[str, ...]]) -> None:
    config = load_config(prepared[1])
    policy = make_policy(config, seed=0)
    assert isinstance(policy, TransformersPolicy)
    env = make_env(config, policy.renderer.image_scaling, make_tasks(config).suite)
    try:
        assert env.vector.options.action_text == "opencua"
        assert env.vector.options.call_user_tolerance == 1
    finally:
        env.close()


def test_vllm_is_refused_before_anything_is_started(prepared: tuple[Path, tuple[str, ...]]) -> None:
    config = load_config([*prepared[1], "policy.rollout=vllm", "train.old_log_probs=all"])
    policy = make_policy(config, seed=0)
    with pytest.raises(ValueError, match="got an OpenCUA checkpoint"), rollout_policy(config, policy):
        pass


def test_the_policy_file_has_the_official_agents_settings() -> None:
    config = load_config(["policy=opencua_7b"])
    policy = config.policy
    assert (policy.action_text, policy.preset, policy.history, policy.history_images) == (
        "opencua",
        "action_history",
        "last_k",
        3,
    )
    assert config.env.call_user_tolerance == 1
    with pytest.raises(ConfigError, match=r"policy\.preset: action_text=opencua has the presets action_history"):
        load_config(["policy=opencua_7b", "policy.preset=paper"])
    with pytest.raises(ConfigError, match=r"policy\.preset: action_text=uitars has the presets paper"):
        load_config(["policy.preset=action_history"])


def test_an_engine_is_refused_before_the_preparation(
    prepared: tuple[Path, tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, overrides = prepared
    monkeypatch.setattr(preflight, "engine_access", lambda _: Access("http://127.0.0.1:9", b"a token of this test"))
    monkeypatch.setattr(EngineClient, "state", lambda _: {})
    engine = ("policy.rollout=vllm", "policy.engine.url=http://127.0.0.1:9", "train.old_log_probs=all")
    with pytest.raises(ValueError, match=r"samples Qwen2\.5-VL and Qwen3-VL only, got an OpenCUA checkpoint"):
        run((*overrides, *engine, f"runs={tmp_path / 'runs'}", "name=x"), console=Console(quiet=True))
    assert not (tmp_path / "runs").exists()
