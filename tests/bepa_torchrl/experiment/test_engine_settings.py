"""The settings of the inference engine: what reaches vLLM, and what is refused before anything is loaded."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bepa_torchrl.commands import engine as command
from bepa_torchrl.experiment.config import ConfigError, check, load_config, settings_to_yaml
from bepa_torchrl.experiment.preflight import engine_cache

VLLM = ("policy.rollout=vllm", "train.old_log_probs=all")


def test_arguments_of_the_users_choice_are_kept() -> None:
    settings = load_config(
        [
            *VLLM,
            "policy.engine.arguments.tensor_parallel_size=2",
            "policy.engine.devices='2,3'",
            "policy.engine.max_rows=64",
        ]
    )
    engine = settings.policy.engine
    assert (dict(engine.arguments), engine.devices, engine.max_rows) == ({"tensor_parallel_size": 2}, "2,3", 64)
    assert "tensor_parallel_size: 2" in settings_to_yaml(settings)
    with pytest.raises(ConfigError, match=r"unknown key 'policy\.engine\.tensor'"):
        load_config(["policy.engine.tensor=2"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        # 66,048 tokens x 147,456 bytes (36 layers, 8 heads of 128 for keys and values, 2 bytes) = 9.74 GB
        (
            ("policy=qwen3vl_8b",),
            r"kv_cache_gb=4: .*66,048 tokens\) need 9\.74 GB.*set policy\.engine\.kv_cache_gb=9\.8 or more",
        ),
        (("policy=qwen3vl_8b", "policy.engine.kv_cache_gb=9.7"), "need 9.74 GB"),
        (("policy=qwen3vl_8b", "policy.engine.kv_cache_gb=9.8"), ""),
        (("policy=qwen3vl_8b", "policy.engine.kv_cache_gb=5", "policy.engine.arguments.tensor_parallel_size=2"), ""),
        (("policy=uitars15_7b",), ""),  # 66,048 x 57,344 = 3.79 GB
        # four heads on eight GPUs: each has one, 66,048 x 14,336 = 0.947 GB
        (
            (
                "policy=uitars15_7b",
                "policy.engine.kv_cache_gb=0.5",
                "policy.engine.arguments.tensor_parallel_size=8",
            ),
            r"need 0\.947 GB",
        ),
        (("policy=qwen3vl_8b", "policy.checkpoint=somebody/unknown"), ""),
    ],
)
def test_a_cache_below_one_window_is_refused(settings: tuple[str, ...], message: str) -> None:
    loaded = load_config([*settings, *VLLM])
    if message:
        with pytest.raises(ConfigError, match=message):
            check(loaded, (engine_cache,))
    else:
        check(loaded, (engine_cache,))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("policy.device=cpu",), r"requires policy\.device=cuda"),
        (("policy.device=cuda", "collect.mode=async", "collect.max_staleness=1"), r"requires collect\.mode=sync"),
        (("policy.device=cuda", "train.ranks=2"), r"requires train\.ranks=1"),
        (("policy.device=cuda", "policy.engine.url=http://10.0.0.1:8600"), r"leave policy\.engine\.url out"),
        (("policy.device=cuda",), ""),
    ],
)
def test_an_engine_sleeps_beside_a_trainer_of_one_rank_on_a_gpu(settings: tuple[str, ...], message: str) -> None:
    overrides = [*VLLM, "policy.engine.sleep=true", *settings]
    if message:
        with pytest.raises(ConfigError, match=rf"policy\.engine\.sleep=true .*{message}"):
            load_config(overrides)
    else:
        assert load_config(overrides).policy.engine.sleep


def test_weights_are_sent_between_gpus() -> None:
    for weights, device in (("auto", "cpu"), ("folder", "cpu"), ("nccl", "cuda:1")):
        load_config([*VLLM, f"policy.engine.weights={weights}", f"policy.device={device}"])
    with pytest.raises(ConfigError, match=r"policy\.engine\.weights=ipc requires policy\.device=cuda"):
        load_config([*VLLM, "policy.engine.weights=ipc", "policy.device=cpu"])


def test_bepa_train_says_so_before_torch_is_imported(tmp_path: Path) -> None:
    """With a vLLM that is only a name: the check must come before anything is loaded."""
    program = (
        "import sys; from bepa_torchrl.experiment import preflight; preflight.engine = lambda _: None;"
        "preflight.checkpoint = lambda _: None; from bepa_torchrl.__main__ import main; code = main();"
        "print('torch' in sys.modules); sys.exit(code)"
    )
    arguments = ["train", "policy=qwen3vl_8b", "env=sim", *VLLM, f"runs={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout.strip() == "False"
    assert "need 9.74 GB" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["tensor_parallel_size=2", 'quantization="fp8"'], {"tensor_parallel_size": 2, "quantization": "fp8"}),
        ([], {}),
    ],
)
def test_arguments_on_the_command_line(given: list[str], found: dict[str, Any]) -> None:
    assert command._arguments(given) == found


@pytest.mark.parametrize("text", ["tensor_parallel_size", "a b=2", "quantization=fp8", "=2"])
def test_an_argument_that_is_not_json_is_named(text: str) -> None:
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    options = parser.parse_args(["engine", "--argument", text])
    with pytest.raises(ValueError, match="--argument: expected NAME=VALUE with a value in JSON"):
        command.engine(options)


def test_what_is_in_the_folder_of_weights_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server removes its own folder when it ends; the user's may have other files."""
    monkeypatch.setattr("bepa_torchrl.scale.engine.errors.engine_version", lambda: "0")
    monkeypatch.setenv("BEPA_ENGINE_TOKEN", "a token of this test")
    (tmp_path / "mine").write_text("mine")

    def wait() -> None:
        assert len(list(tmp_path.iterdir())) == 2
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "threading", SimpleNamespace(Event=lambda: SimpleNamespace(wait=wait)))
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    for folder, problem in ((tmp_path, KeyboardInterrupt), (tmp_path / "mine", ValueError)):
        options = parser.parse_args(["engine", "--listen", "127.0.0.1:0", "--folder", str(folder)])
        with pytest.raises(problem):
            command.engine(options)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
