"""A Qwen3-VL checkpoint in a run with its own text: prompts, converted traces, self-rolls, a training iteration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from qwen3vl_checkpoint import TOOL_CALL, write_qwen3vl_checkpoint
from repository import ROOT
from rich.console import Console

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.cli import main
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.seeding import Stream, derive_seed
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.experiment.config import ConfigError, load_config, settings_to_yaml
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.method_process import MethodRun
from bepa_torchrl.experiment.phases import prepared_run
from bepa_torchrl.experiment.preparation import load_preparation
from bepa_torchrl.experiment.run_folder import run_folder
from bepa_torchrl.experiment.run_record import RunRecord
from bepa_torchrl.experiment.tasks import make_tasks
from bepa_torchrl.experts.seed import read_seed
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing import picture
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.types import PromptContext, StopReason

QWEN3VL = (
    "policy.action_text=qwen3vl",
    "policy.preset=official",
    "policy.history=last_k",
    "policy.history_images=2",
    "policy.max_prompt_tokens=4000",
    "policy.max_new_tokens=16",
    "policy.max_batch_tokens=16384",
    "train.max_tokens=16384",
    "env.call_user_tolerance=1",
)
QUICK = ("experiment=smoke", "compare=[]", "env.max_steps=2", "env.desktops=4", "train.minibatch_groups=1")
OWL = str(ROOT / "examples" / "experts" / "gui_owl")
TASK = "sim-toggle-on-00"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3vl_checkpoint(tmp_path_factory.mktemp("published") / "qwen3vl")


@pytest.fixture(scope="module")
def prepared(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """A run's folder with the converted traces of the tasks' oracles, and its settings."""
    runs = tmp_path_factory.mktemp("runs")
    overrides = (*QUICK, *QWEN3VL, f"policy.checkpoint={checkpoint}", f"runs={runs}", "name=all")
    config = load_config(overrides)
    folder = run_folder(config)
    folder.mkdir()
    prepared_run(config, folder, make_policy(config, seed=0), make_tasks(config), Console(quiet=True))
    return folder, overrides


def test_prompts_and_responses_as_tokens(checkpoint: Path) -> None:
    """The tool call's tags are one token each in responses and are kept when these are decoded."""
    config = load_config([*QWEN3VL, f"policy.checkpoint={checkpoint}"])
    policy = make_policy(config, seed=0)
    assert isinstance(policy, TransformersPolicy)
    response = f"Action: Wait.\n{TOOL_CALL[0]}\n{{}}\n{TOOL_CALL[1]}"
    tokens = policy.renderer.encode_response(response)
    ids = policy.renderer.processor.tokenizer.get_vocab()
    assert sum(int(token) in {ids[tag] for tag in TOOL_CALL} for token in tokens) == 2
    assert policy.renderer.processor.decode_responses([tokens.tolist()]) == [response]
    first, second = policy.render(
        [
            PromptContext("mute", [picture(0)]),
            PromptContext("mute", [picture(0), picture(1)], (response,), response_tokens=(tuple(tokens.tolist()),)),
        ]
    )
    assert first is not None
    assert second is not None
    row = torch.cat((first.tokens, tokens))
    assert torch.equal(second.tokens[: len(row)], row)  # the next prompt extends prompt and response
    text = policy.renderer.processor.tokenizer.decode(first.tokens)
    assert text.startswith("<|im_start|>system\n# Tools\n\n")
    assert "<|vision_end|>\nPlease generate the next move" in text


@pytest.mark.slow
def test_converted_traces_are_tool_calls_and_solve_their_tasks(prepared: tuple[Path, tuple[str, ...]]) -> None:
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
            assert '{"name": "computer_use", "arguments": ' in row[K.RESPONSE]
            assert len(row[K.IMAGES]) == min(step + 1, 2)
            assert torch.equal(row[K.RESPONSE_TOKENS], policy.encode_response(row[K.RESPONSE]))
            assert not result.done
            result = episode.act(row[K.RESPONSE])
            assert result.parse_error is None
        assert (result.stop, result.reward) == (StopReason.finished, 1.0)


@pytest.mark.slow
def test_an_iteration_trains_on_rollouts_and_traces(prepared: tuple[Path, tuple[str, ...]]) -> None:
    folder, overrides = prepared
    config = load_config([*overrides, "algo=level2", "train.iterations=1", "eval.every=0", "eval.final_episodes=0"])
    RunRecord(folder / "level2").begin(settings_to_yaml(config))
    assert MethodRun(folder / "level2").run() == 0
    results = json.loads((folder / "level2" / "results.json").read_text())
    assert results["totals"]["optimizer_steps"] > 0


def test_experts_convert_and_selfroll(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*QWEN3VL, f"policy.checkpoint={checkpoint}", "env.max_steps=2", "env.desktops=2"]
    assert main(["experts", "convert", OWL, "--out", str(tmp_path / "converted"), *settings]) == 0
    assert read_seed(tmp_path / "converted").action_text == "qwen3vl"
    cache = TaskTraceCache()
    cache.loads(tmp_path / "converted" / "cache")
    assert all("<tool_call>" in row[K.RESPONSE] for row in row_list(cache.get_trace(TASK)))
    more = ["--out", str(tmp_path / "rolled"), "expert.selfroll_attempts=1", *settings]
    assert main(["experts", "selfroll", OWL, *more]) == 0
    (attempt,) = [json.loads(line) for line in (tmp_path / "rolled" / "selfroll.jsonl").read_text().splitlines()]
    assert (attempt["kept"], attempt["steps"]) == (False, 2)
    capsys.readouterr()


def test_the_policy_file_has_the_official_agents_settings() -> None:
    config = load_config(["policy=qwen3vl_8b_tools"])
    policy = config.policy
    found = (policy.action_text, policy.preset, policy.history, policy.history_images)
    assert found == ("qwen3vl", "official", "last_k", 5)
    assert config.env.call_user_tolerance == 1
    with pytest.raises(ConfigError, match=r"policy\.preset: action_text=qwen3vl has the presets official; got"):
        load_config(["policy=qwen3vl_8b_tools", "policy.preset=paper"])
