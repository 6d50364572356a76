"""vLLM's own weight transfer: its interface is the one that we call, and on the CPU, with gloo, it carries a sync."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.multiprocessing.reductions import reduce_tensor
from vllm_engine import assert_as_trainer, change, make_trainer

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.scale.engine import sampler as sampler_module
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.engine.sampler import VLLMSampler
from bepa_torchrl.testing import picture
from osworld_gym.types import PromptContext

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def names_of(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_vllms_interface_is_the_one_that_is_called() -> None:
    from vllm.distributed.weight_transfer import VLLMWeightSyncClient, WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.base import TrainerWeightTransferEngine, WeightSource
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine
    from vllm.v1.engine.async_llm import AsyncLLM

    from bepa_torchrl.scale.engine.weight_sync.transfer import StreamSource, WeightSyncCalls

    for name in ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"):
        assert names_of(getattr(WeightSyncCalls, name)) == names_of(getattr(VLLMWeightSyncClient, name)), name
        assert inspect.iscoroutinefunction(getattr(AsyncLLM, name))
    assert names_of(AsyncLLM.init_weight_transfer_engine) == names_of(AsyncLLM.update_weights) == ["request"]
    assert names_of(AsyncLLM.finish_weight_update) == ["weight_version"]
    assert names_of(AsyncLLM.start_weight_update) == []
    assert names_of(WeightTransferTrainerFactory.trainer_init) == ["init_info", "client", "source"]
    for kind in (IPCTrainerWeightTransferEngine, NCCLTrainerWeightTransferEngine):
        assert issubclass(kind, TrainerWeightTransferEngine)
        assert names_of(kind.send_weights) == []
        assert names_of(kind.shutdown) == []
    assert WeightSource.__abstractmethods__ == {"metadata", "__iter__"}
    assert issubclass(StreamSource, WeightSource)
    assert IPCTrainerInitInfo(rank=0, packed=True).backend == "ipc"
    info = NCCLTrainerInitInfo(rank=0, master_address="127.0.0.1", master_port=1, world_size=2, packed=True)
    assert (info.backend, info.is_sender) == ("nccl", True)


def test_ipc_handles_reach_the_engine_only_with_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the handles of shared memory are made of is not in msgpack; CUDA's have the same kinds of parts."""
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from bepa_torchrl.scale.engine.weight_sync.transfer import PICKLE, pickled_handles

    monkeypatch.delenv(PICKLE, raising=False)
    function, _ = reduce_tensor(torch.zeros(2))
    update = {"names": ["w"], "ipc_handles": {"GPU-1": (torch.Tensor, torch.float32, b"handle", 3)}}
    with pytest.raises(TypeError, match=PICKLE):
        MsgpackEncoder().encode(update)
    with pickled_handles("nccl"), pytest.raises(TypeError, match=PICKLE):
        MsgpackEncoder().encode(update)
    with pickled_handles("ipc"):
        found = MsgpackDecoder().decode(MsgpackEncoder().encode(update))
    kind, dtype, handle, device = found["ipc_handles"]["GPU-1"]
    assert (kind, dtype, bytes(handle), device) == (torch.Tensor, torch.float32, b"handle", 3)
    assert callable(function)
    with pytest.raises(TypeError, match=PICKLE):
        MsgpackEncoder().encode(update)


@pytest.fixture
def sent_by_gloo(monkeypatch: pytest.MonkeyPatch) -> Iterator[VLLMSampler]:
    """A sampler whose engine on the CPU gets weights by vLLM's NCCL transfer, with gloo in the place of NCCL."""
    import cpu_transfer
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

    monkeypatch.setattr(sampler_module, "choose_transfer", lambda *_: "nccl")  # as for two GPUs
    monkeypatch.setitem(WeightTransferTrainerFactory._registry, "nccl", lambda: cpu_transfer.Trainer)
    monkeypatch.setattr(cpu_transfer.nccl_engine, "open_trainer_endpoint", cpu_transfer.open_trainer_endpoint)
    support = str(Path(cpu_transfer.__file__).parent)
    monkeypatch.setenv("PYTHONPATH", support, prepend=":")
    policy = VLLMSampler(
        make_trainer(),
        kv_cache_gb=0.25,
        max_rows=32,
        weights="nccl",
        arguments={"worker_extension_cls": "cpu_transfer.Extension"},
        stall_timeout=120.0,
    )
    yield policy
    policy.close()


def assert_samples_as_trainer(policy: VLLMSampler) -> None:
    contexts = [PromptContext(f"open {i}", [picture(i)]) for i in range(3)]
    prompts: list[Prompt] = [prompt for prompt in policy.renderer.render(contexts) if prompt is not None]
    keys = [(11, 0, i) for i in range(3)]
    assert_as_trainer(policy.sample(prompts, keys), policy.trainer, prompts, keys)


def test_weights_are_sent_loaded_and_verified_and_sent_again_after_a_restart(sent_by_gloo: VLLMSampler) -> None:
    import cpu_transfer

    policy = sent_by_gloo
    policy.sync()  # the first weights: with the folder that the engine starts from
    assert policy.weights.sent == 0
    folders = sorted(policy.weights._folder.iterdir())
    for number in (1, 2):
        change(policy.trainer, by=0.05)
        policy.sync()  # compares log-probs with the trainer's, also of text with the tied head and of images
        assert policy.weights.sent == number
        assert_samples_as_trainer(policy)
    assert cpu_transfer.Trainer.sent == list(policy.weights.shapes)
    assert "lm_head.weight" in cpu_transfer.Trainer.sent  # a tied head is sent under both names
    assert sorted(policy.weights._folder.iterdir()) == folders  # nothing was written
    for number in policy.engine.process_ids:  # type: ignore[attr-defined]  # vLLM's engine
        psutil.Process(number).kill()
    assert_samples_as_trainer(policy)
    assert (policy.restarts, policy.weights.sent) == (1, 3)
    change(policy.trainer, by=0.05)
    for number in policy.engine.process_ids:  # type: ignore[attr-defined]
        psutil.Process(number).kill()
    with pytest.raises(EngineError, match=r"trainer has others by now; set policy\.engine\.weights=folder"):
        assert_samples_as_trainer(policy)
    policy.sync()
    assert_samples_as_trainer(policy)

    weight = next(iter(policy.weights.expected))
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        expected = policy.weights.expected | {weight: (torch.float32, (1, 2, 3))}
        patch.setattr(policy.weights, "expected", expected)
        change(policy.trainer)
        with pytest.raises(WeightSyncError, match="did not get weights by nccl"):
            policy.sync()
    assert not policy.engine.running  # it may have some of the new weights
