"""LoRA adapters that an engine gets alone: when they are, what is sent, and what is sent again.

The server is real; behind it is the built-in sampler instead of vLLM, so that tokens and log-probs must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from built_in_engine import BuiltInEngine, access_to, client_of, served
from vllm_engine import change, make_trainer

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.experiment.config import ConfigError, load_config
from bepa_torchrl.policies.transformers.lora import DECODER, Lora, adapter_weights
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.engine.http import client as client_module
from bepa_torchrl.scale.engine.http.client import EngineRefusedError
from bepa_torchrl.scale.engine.http.server import EngineServer
from bepa_torchrl.scale.engine.sampler import VLLMSampler
from bepa_torchrl.scale.engine.weight_sync.adapters import EngineAdapters, engine_adapters
from bepa_torchrl.testing import picture
from osworld_gym.types import PromptContext

LORA = Lora(rank=4, alpha=8, targets=("q_proj", "down_proj"))


class RecordingEngine(BuiltInEngine):
    """Records what it was given, also by the engines before it."""

    given: ClassVar[list[str]] = []

    def start(self, model: Path) -> None:
        self.given.append("start")
        super().start(model)

    def reload(self, model: Path) -> None:
        self.given.append("reload")
        super().start(model)

    def use_adapter(self, folder: Path) -> None:
        self.given.append("adapter")
        super().use_adapter(folder)


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the engines of a test are given. A server that is gone is noticed soon."""
    monkeypatch.setattr(client_module, "PATIENCE", 2.0)
    found: list[str] = []
    monkeypatch.setattr(RecordingEngine, "given", found)
    return found


def connected(server: EngineServer, trainer: TransformersPolicy | None = None, **options: Any) -> VLLMSampler:
    trainer = trainer or make_trainer(lora=LORA)
    return VLLMSampler(trainer, access=access_to(server), start_timeout=20.0, **options)


def rows(policy: VLLMSampler, count: int = 2) -> tuple[list[Prompt], list[tuple[int, ...]]]:
    contexts = [PromptContext(f"open {i}", [picture(i)]) for i in range(count)]
    return [prompt for prompt in policy.renderer.render(contexts) if prompt], [(11, 0, i, 0, 0) for i in range(count)]


def assert_as_trainer(policy: VLLMSampler) -> list[Response]:
    prompts, keys = rows(policy)
    found = policy.sample(prompts, keys)
    for mine, other in zip(found, policy.trainer.sample(prompts, keys), strict=True):
        assert mine.tokens.tolist() == other.tokens.tolist()
        torch.testing.assert_close(mine.log_probs, other.log_probs)
    return found


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


def test_weights_are_sent_once_and_then_adapters_alone(tmp_path: Path, given: list[str]) -> None:
    with served(tmp_path / "weights", kind=RecordingEngine) as server:
        policy = connected(server, folder=tmp_path / "own")
        before = assert_as_trainer(policy)
        for number in (3, 4):
            change(policy.trainer, "lora_")
            policy.sync()
            assert policy.version == policy.trainer.version
            assert [path.name for path in sorted((tmp_path / "own").iterdir())] == [f"adapter-{number}", "weights-1"]
            sent = sorted((tmp_path / "weights").iterdir(), key=size)
            assert [path.name.split("-", 1)[1] for path in sent] == [f"adapter-{number}", "weights-1"]
            assert size(sent[0]) < 0.1 * size(sent[1])
            found = assert_as_trainer(policy)
            assert any(not torch.equal(a.log_probs, b.log_probs) for a, b in zip(before, found, strict=True))
            before = found
        assert given == ["start", "adapter", "adapter", "adapter"]
        state = client_of(server).state()["weights"]
        assert state.endswith("-adapter-4")
        policy.close()
        assert client_of(server).state()["weights"] is None


@pytest.mark.slow
def test_merged_adapters_are_sent_with_all_weights(tmp_path: Path, given: list[str]) -> None:
    with served(tmp_path / "weights", kind=RecordingEngine) as server:
        policy = connected(server, adapters="merged")
        policy.sync()
        change(policy.trainer, "lora_")
        policy.sync()
        assert_as_trainer(policy)
        assert given == ["start", "reload"]
        policy.close()


@pytest.mark.slow
def test_weights_below_the_adapters_are_sent_again_if_they_changed(tmp_path: Path, given: list[str]) -> None:
    with served(tmp_path / "weights", kind=RecordingEngine) as server:
        policy = connected(server)
        policy.sync()
        change(policy.trainer)  # as a loaded checkpoint would
        policy.sync()
        assert_as_trainer(policy)
        assert given == ["start", "adapter", "reload", "adapter"]
        policy.load_weights(policy.trainer.named_weights(), version=policy.trainer.version + 1)  # merged
        assert_as_trainer(policy)
        assert given[4:] == ["reload"]
        policy.load_and_verify()
        assert_as_trainer(policy)
        assert given[5:] == ["reload", "adapter"]
        policy.close()


@pytest.mark.slow
def test_a_server_started_again_gets_weights_and_adapters_again(tmp_path: Path, given: list[str]) -> None:
    with served(tmp_path / "first", kind=RecordingEngine) as server:
        port = server.address[1]
        policy = connected(server)
        policy.sync()
        change(policy.trainer, "lora_")
        policy.sync()
        expected = assert_as_trainer(policy)
    given.clear()
    with served(tmp_path / "second", port=port, kind=RecordingEngine):
        found = assert_as_trainer(policy)
        assert [response.tokens.tolist() for response in found] == [each.tokens.tolist() for each in expected]
        assert given == ["start", "adapter"]
        assert policy.drain_metrics()["engine/restarts"] == 1
    given.clear()
    with served(tmp_path / "third", port=port, kind=RecordingEngine):  # before a sync
        change(policy.trainer, "lora_")
        policy.sync()
        assert_as_trainer(policy)
        assert given == ["start", "adapter"]
    policy.engine.start_timeout = 0.1  # type: ignore[attr-defined]
    change(policy.trainer, "lora_")
    with pytest.raises(WeightSyncError, match=r"did not load .*adapter-\d+: no answer from http"):
        policy.sync()


class StaleAdapters(BuiltInEngine):
    """Says that it has loaded new adapters, and goes on with the first ones."""

    def use_adapter(self, folder: Path) -> None:
        if not any(name.endswith("adapter-2") for name in self.loads):
            super().use_adapter(folder)


def test_stale_adapters_are_noticed(tmp_path: Path) -> None:
    with served(tmp_path / "weights", kind=StaleAdapters) as server:
        policy = connected(server)
        policy.sync()
        change(policy.trainer, "lora_", by=1e-4)
        with pytest.raises(WeightSyncError, match=r"did not change the engine's log-probs|differ from the trainer's"):
            policy.sync()


class RefusingEngine(BuiltInEngine):
    """Takes no adapters."""

    def use_adapter(self, folder: Path) -> None:
        raise WeightSyncError(f"not {folder.name.split('-', 1)[1]}")


def test_refused_adapters_end_the_sync(tmp_path: Path) -> None:
    with served(tmp_path / "weights", kind=RefusingEngine) as server:
        policy = connected(server)
        with pytest.raises(WeightSyncError, match="not adapter-2"):
            policy.sync()
        policy.engine.stop()
        with pytest.raises(WeightSyncError, match="it is not running"):
            policy.engine.use_adapter(tmp_path)


@pytest.mark.slow
def test_adapters_of_another_run_or_incomplete_ones_are_refused(tmp_path: Path) -> None:
    with served(tmp_path / "weights") as server:
        client = client_of(server)

        def ask(**changes: Any) -> dict[str, Any]:
            return client.run("adapter", {"weights": "a", "adapter": "b"} | changes)

        assert ask() == {"exited": "it has no weights"}
        first, second = connected(server), connected(server)
        first.sync()
        second.sync()
        prompts, keys = rows(first)
        with pytest.raises(EngineRefusedError, match="of another run"):
            first.sample(prompts, keys)
        change(first.trainer, "lora_")
        with pytest.raises(WeightSyncError, match="of another run"):
            first.sync()
        own = server._model
        with pytest.raises(WeightSyncError, match=r"b was not uploaded whole"):
            ask(weights=own)
        with pytest.raises(EngineRefusedError, match="KeyError: 'weights'"):
            client.run("adapter", {"adapter": "b"})
        assert_as_trainer(second)


@pytest.mark.slow
def test_a_restart_before_a_sync_is_counted(tmp_path: Path) -> None:
    with served(tmp_path / "weights") as server:
        policy = connected(server, max_restarts=1)
        policy.sync()
        policy.engine.stop()
        policy.load_and_verify()
        assert_as_trainer(policy)
        assert policy.restarts == 1
        policy.engine.stop()
        with pytest.raises(EngineError, match=r"before its weights were replaced; it was restarted 1 times"):
            policy.load_and_verify()


def test_the_rule_by_which_adapters_are_sent_alone() -> None:
    adapted = make_trainer(lora=LORA).model
    assert engine_adapters(adapted, "auto") == EngineAdapters(4, ("down_proj", "q_proj"))
    assert engine_adapters(adapted, "separate") == EngineAdapters(4, ("down_proj", "q_proj"))
    assert engine_adapters(adapted, "merged") is None
    whole = make_trainer().model
    tower = make_trainer(lora=LORA).model
    tower.model.visual.merger.requires_grad_(True)
    large = make_trainer(lora=Lora(rank=513, alpha=8, targets=("q_proj",))).model
    for model, reason in (
        (whole, r"the policy has no adapters \(policy\.lora\.rank\)"),
        (tower, r"weights without adapters are trained, too, such as model\.visual\.merger\.ln_q\.weight"),
        (large, r"at most rank 512, policy\.lora\.rank is 513"),
    ):
        assert engine_adapters(model, "auto") is None
        with pytest.raises(ValueError, match=rf"adapters=separate: .*{reason}; set policy\.engine\.adapters=merged"):
            engine_adapters(model, "separate")


def test_adapters_outside_the_decoder_are_merged() -> None:
    """vLLM has those of the vision tower behind an experimental option only."""
    model = make_trainer(lora=LORA).model
    layer = model.get_submodule(f"{DECODER}layers.0.mlp.down_proj")
    model.model.visual.merger.adapted = layer
    assert any(".visual." in name for name, _ in model.named_parameters(remove_duplicate=False))
    del model.model.language_model.layers[0].mlp.down_proj
    assert any(name.startswith("model.visual.") for name in adapter_weights(model))
    assert engine_adapters(model, "auto") is None
    with pytest.raises(ValueError, match=r"vLLM has adapters in the decoder only, not at model\.visual"):
        engine_adapters(model, "separate")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy.engine.adapters=separate"], r"requires adapters; set policy\.lora\.rank"),
        (
            ["policy.engine.adapters=separate", "policy.lora.rank=4", "collect.mode=async"],
            r"requires collect\.mode=sync",
        ),
        (["policy.engine.adapters=alone"], r"policy\.engine\.adapters: expected .*; the default is .*=auto"),
    ],
)
def test_settings_that_exclude_each_other(overrides: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(["policy.rollout=vllm", "train.old_log_probs=all", *overrides])
