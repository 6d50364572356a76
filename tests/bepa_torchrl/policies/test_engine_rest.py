"""Sleep and wake of an engine: the order of vLLM's calls, by an engine that refuses them in any other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
from packaging.version import Version
from vllm_engine import change, make_trainer

from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.scale.engine import sampler as sampler_module
from bepa_torchrl.scale.engine.engine_interface import EngineOutput, EngineRow, EngineSpec
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.engine.rest import check_sleep
from bepa_torchrl.scale.engine.sampler import VLLMSampler
from bepa_torchrl.scale.engine.weight_sync.probe import ProbeResult
from bepa_torchrl.scale.engine.weight_sync.stream import WeightStream
from bepa_torchrl.testing import picture
from osworld_gym.types import PromptContext


class StrictEngine:
    """In the place of vLLM's engine: what vLLM would answer wrongly or not at all is an AssertionError here."""

    concurrent = False

    def __init__(self, spec: EngineSpec, **options: Any) -> None:
        self.spec, self.options = spec, options
        self.calls: list[str] = []
        self.running, self.starts = False, 0
        self.there = {"weights", "kv_cache"}
        self.valid = True  # whether the weights' memory has weights
        self.failing = ""

    def _called(self, call: str) -> None:
        self.calls.append(call)
        assert self.running, f"{call}: the engine does not run"
        if self.failing == call:
            raise EngineError(f"{call} fails")

    def start(self, model: Path) -> None:
        assert model.is_dir()
        self.calls.append("start")
        self.running, self.starts = True, self.starts + 1
        self.there, self.valid = {"weights", "kv_cache"}, True

    def stop(self) -> None:
        self.running = False

    def sleep(self, level: Literal[1, 2]) -> None:
        self._called(f"sleep {level}")
        assert self.there == {"weights", "kv_cache"}
        self.there, self.valid = set(), level == 1

    def wake(self, part: str) -> None:
        self._called(f"wake {part}")
        assert part not in self.there
        assert part == "weights" or self.valid, "the cache's memory is taken before there are weights"
        self.there.add(part)

    def _loads(self, call: str) -> None:
        self._called(call)
        assert "weights" in self.there, f"{call}: the weights have no memory"

    def reload(self, model: Path) -> None:
        assert model.is_dir()
        self._loads("reload")
        self.valid = True

    def use_adapter(self, folder: Path) -> None:
        assert folder.is_dir()
        self._loads("adapter")
        assert self.valid, "adapters are added to no weights"

    def receive(self, stream: WeightStream) -> None:
        try:
            self._loads("receive")
        except EngineError as error:
            self.stop()
            raise WeightSyncError(str(error)) from error
        assert len(list(stream)) == len(stream.described)
        self.valid = True

    def generate(self, rows: Sequence[EngineRow]) -> list[EngineOutput]:
        assert self.running
        assert self.valid
        assert self.there == {"weights", "kv_cache"}
        return [EngineOutput(torch.tensor([5]), torch.tensor([-1.0]), 1, 0) for _ in rows]


def verify(policy: VLLMSampler) -> None:
    """In the place of the probe, whose responses take seconds: the engine is awake."""
    policy.engine.generate([])
    policy._verified = ProbeResult(policy.version, policy.weights.fingerprint, (), ())


@pytest.fixture(autouse=True)
def strict_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("engine")
    module.Engine = StrictEngine
    monkeypatch.setitem(sys.modules, "bepa_torchrl.scale.engine.engine", module)
    monkeypatch.setattr(sampler_module, "engine_version", lambda: Version("0.32"))
    monkeypatch.setattr(sampler_module, "check_sleep", lambda *_, **__: None)  # as on a GPU
    monkeypatch.setattr(VLLMSampler, "verify", verify)


def made(**options: Any) -> tuple[VLLMSampler, Any]:
    lora = options.pop("lora", None)
    policy = VLLMSampler(make_trainer(lora=lora), **({"sleep": True} | options))
    policy.sync()
    engine: Any = policy.engine
    return policy, engine


def sample(policy: VLLMSampler) -> None:
    prompts = [prompt for prompt in policy.renderer.render([PromptContext("open", [picture(1)])]) if prompt]
    assert len(policy.sample(prompts, [(1, 2)])) == 1


def test_weights_are_given_between_the_two_parts_of_the_memory() -> None:
    policy, engine = made()
    assert engine.options["arguments"]["enable_sleep_mode"] is True
    policy.rest()
    policy.rest()  # it sleeps already
    change(policy.trainer)
    policy.sync()
    assert engine.calls == ["start", "sleep 2", "wake weights", "reload", "wake kv_cache"]
    sample(policy)
    policy.close()


def test_weights_are_sent_between_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "choose_transfer", lambda *_: "ipc")
    policy, engine = made()
    policy.rest()
    change(policy.trainer)
    policy.sync()
    assert engine.calls == ["start", "sleep 2", "wake weights", "receive", "wake kv_cache"]
    sample(policy)
    policy.close()


def test_weights_that_were_dropped_are_given_again_although_they_have_not_changed() -> None:
    policy, engine = made()
    policy.rest()
    sample(policy)
    assert engine.calls == ["start", "sleep 2", "wake weights", "reload", "wake kv_cache"]
    policy.close()


def test_an_engine_with_adapters_keeps_the_weights_below_them() -> None:
    policy, engine = made(lora=Lora(rank=4, alpha=8, targets=("q_proj",), adapter=None))
    policy.rest()
    sample(policy)
    policy.rest()
    change(policy.trainer, "lora_")
    policy.sync()
    sample(policy)
    own = ["sleep 1", "wake weights", "wake kv_cache"]
    assert engine.calls == ["start", "adapter", *own, "sleep 1", "wake weights", "adapter", "wake kv_cache"]
    policy.close()


def test_an_engine_that_exits_while_it_sleeps_is_started_awake() -> None:
    policy, engine = made()
    policy.rest()
    engine.stop()
    change(policy.trainer)
    policy.sync()
    assert engine.calls == ["start", "sleep 2", "start"]
    sample(policy)
    policy.close()


@pytest.mark.parametrize("failing", ["wake weights", "reload", "wake kv_cache"])
def test_an_engine_that_fails_to_wake_up_is_stopped_and_started_again(failing: str) -> None:
    policy, engine = made()
    policy.rest()
    engine.failing = failing
    change(policy.trainer)
    with pytest.raises(EngineError, match=f"{failing} fails"):
        policy.sync()
    assert not engine.running
    engine.failing = ""
    policy.sync()
    assert engine.calls[-1] == "start"
    sample(policy)
    policy.close()


def test_without_the_setting_it_never_sleeps() -> None:
    policy, engine = made(sleep=False)
    policy.rest()
    assert engine.calls == ["start"]
    assert engine.options["arguments"] is None
    policy.close()


def test_the_first_transfer_that_fails_is_replaced_by_a_folder_if_the_choice_was_ours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sampler_module, "choose_transfer", lambda *_: "ipc")
    policy, engine = made()
    policy.rest()
    engine.failing = "receive"
    change(policy.trainer)
    policy.sync()
    assert engine.calls == ["start", "sleep 2", "wake weights", "receive", "start"]
    assert "it gets them as files instead" in caplog.text
    change(policy.trainer)
    policy.sync()
    assert engine.calls[-1] == "reload"
    sample(policy)
    policy.close()


@pytest.mark.parametrize("before", [0, 1])
def test_a_transfer_that_was_set_or_has_worked_must_not_fail(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "choose_transfer", lambda *_: "ipc")
    policy, engine = made(weights="auto" if before else "ipc")
    for _ in range(before):
        change(policy.trainer)
        policy.sync()
    engine.failing = "receive"
    change(policy.trainer)
    with pytest.raises(WeightSyncError, match="receive fails"):
        policy.sync()
    policy.close()


@pytest.mark.parametrize(
    ("device", "here", "message"),
    [("cpu", True, r"requires policy\.device=cuda, got cpu"), ("cuda:0", False, r"at policy\.engine\.url")],
)
def test_sleep_is_refused_where_it_gives_up_nothing(device: str, here: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_sleep(torch.device(device), here=here)


def test_a_sampler_on_the_cpu_refuses_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "check_sleep", check_sleep)
    with pytest.raises(ValueError, match=r"policy\.engine\.sleep=true requires policy\.device=cuda"):
        VLLMSampler(make_trainer(), sleep=True)


class WatchedLock:
    """A lock that counts who has come to it."""

    def __init__(self) -> None:
        self.come, self._lock = threading.Semaphore(0), threading.RLock()

    def __enter__(self) -> None:
        self.come.release()
        assert self._lock.acquire(timeout=20.0)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("asleep", [False, True])
def test_turns_that_come_at_once_start_or_wake_the_engine_once(asleep: bool) -> None:
    """Else the second turn would replace weights while the first one is sampled, which vLLM does not allow."""
    policy = VLLMSampler(make_trainer(), sleep=True)
    engine: Any = policy.engine
    if asleep:
        policy.sync()
        policy.rest()
        engine.calls.clear()
    lock, inside, both = WatchedLock(), threading.Event(), threading.Event()
    policy._lifecycle = lock  # type: ignore[assignment]
    begin = "wake" if asleep else "start"
    work = getattr(engine, begin)

    def held_up(*arguments: Any) -> None:
        inside.set()
        assert both.wait(20.0)
        work(*arguments)

    setattr(engine, begin, held_up)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(sample, policy)
        assert inside.wait(20.0)
        while lock.come.acquire(blocking=False):
            pass
        second = threads.submit(sample, policy)
        assert lock.come.acquire(timeout=20.0)
        both.set()
        for turn in (first, second):
            turn.result(30.0)
    assert engine.calls == (["wake weights", "reload", "wake kv_cache"] if asleep else ["start"])
    policy.close()
